"""Bad input, on every engine: odd answers, odd prompts, odd names, odd shapes of trees."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import RootModel
from tests.engine.engines import Echo, Engine, texts

import mergepoint as mp
from mergepoint.core.errors import MissingKey, StepError, TreeError
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.runner import ChatRunner
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node
from mergepoint.tree.prompts import PromptContext, Template, reads


class Bare(BaseChatModel):
    """A chat model that returns whatever it is told, also what no chat model should."""

    result: Any = None

    @property
    def _llm_type(self) -> str:
        return "bare"

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        result: ChatResult = self.result
        return result


def a_step(**fields: Any) -> Block:
    """Return a tree of one step."""
    return Block([Step("A.", **fields)])


# Answers


@pytest.mark.parametrize(
    "answer", [None, "", " \n\t", [], [{"type": "reasoning", "reasoning": "x"}]]
)
def test_an_answer_without_text_raises(engine: Engine, answer: Any) -> None:
    """Nothing, white space or reasoning alone is no response, and is recorded as a failure."""
    recorder = Recorder()
    with pytest.raises(StepError, match=r"answer is blank \(finish_reason: stop\)") as raised:
        engine(a_step(), ScriptedModel([answer]), recorder=recorder)
    assert getattr(raised.value, "pipeline_path", "") == "pipeline/step_01"
    (record,) = recorder.journal.records
    assert (record.answered, record.response) == (False, "")
    assert record.message is not None


def test_an_answer_of_tool_calls_only_raises_and_names_them(engine: Engine) -> None:
    """A step makes text; a model that only calls tools is told apart from a blank one."""
    answer = Answer(tool_calls=[{"name": "search", "args": {}}, {"name": "order", "args": {}}])
    with pytest.raises(StepError, match=r"tool calls and no text \(search, order\)"):
        engine(a_step(), ScriptedModel([answer]))


def test_content_blocks_give_their_text(engine: Engine) -> None:
    """Of an answer in blocks the text is used."""
    blocks: list[str | dict[str, Any]] = [
        {"type": "text", "text": "one "},
        {"type": "text", "text": "two"},
    ]
    assert engine(a_step(), ScriptedModel([blocks])).texts == ["A.", "one two"]


def test_white_space_around_an_answer_is_kept(engine: Engine) -> None:
    """Nobody strips what a model said."""
    assert engine(a_step(), ScriptedModel([" x \n"])).texts == ["A.", " x \n"]


@pytest.mark.parametrize(
    "result",
    [
        None,
        ChatResult(generations=[]),
        ChatResult(generations=[ChatGeneration(message=HumanMessage("me"))]),
    ],
    ids=["none", "no generation", "a user's message"],
)
def test_a_model_that_breaks_its_contract_raises(engine: Engine, result: Any) -> None:
    """A model that gives no assistant message at all is a StepError at its path, on record."""
    recorder = Recorder()
    with pytest.raises(StepError, match=r"(contains|returned) no (assistant )?message") as raised:
        engine(a_step(), Bare(result=result), recorder=recorder)
    assert getattr(raised.value, "pipeline_path", "") == "pipeline/step_01"
    assert [record.answered for record in recorder.journal.records] == [False]


# Prompts


async def _later(ctx: PromptContext) -> str:
    return "A."


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (lambda ctx: None, "returned NoneType"),
        (lambda ctx: "  ", "blank text"),
        (lambda ctx: 7, "returned int"),
        (lambda ctx: [], "empty content blocks"),
        (lambda ctx: [{"type": "text", "text": " "}], "empty content blocks"),
        (lambda ctx: [""], "empty content blocks"),
        (lambda ctx: [{"text": "no type"}], "a mapping with 'type'"),
        (lambda ctx: ["text", 7], "a mapping with 'type'"),
        (lambda ctx: HumanMessage("x"), "returned HumanMessage"),
        (_later, "returned coroutine"),
    ],
    ids=[
        *("none", "blank", "number", "empty", "blank block", "blank text", "no type", "mixed"),
        *("message", "coroutine"),
    ],
)
def test_a_prompt_that_no_model_can_be_sent_raises(
    engine: Engine, prompt: Any, message: str
) -> None:
    """What a prompt function returns is checked before anything is made or paid."""
    model = ScriptedModel([])
    with pytest.raises(StepError, match=message) as raised:
        engine(Block([Step(prompt)]), model)
    assert getattr(raised.value, "pipeline_path", "") == "pipeline/step_01"
    assert model.calls == []


def test_a_prompt_that_raises_keeps_its_error(engine: Engine) -> None:
    """The prompt's own exception comes out, with the step's path."""

    def prompt(ctx: PromptContext) -> str:
        raise LookupError("nothing to say")

    with pytest.raises(LookupError, match="nothing to say") as raised:
        engine(Block([Step(prompt)]), ScriptedModel([]))
    assert getattr(raised.value, "pipeline_path", "") == "pipeline/step_01"


def test_a_prompt_cannot_change_the_messages_it_was_given(engine: Engine) -> None:
    """It gets copies: what it writes on them is seen by no call and no state."""

    def spoil(ctx: PromptContext) -> str:
        for message in ctx.messages:
            message.content = "spoiled"
            message.additional_kwargs["spoiled"] = True
        return "B."

    base: list[BaseMessage] = [
        HumanMessage("Hi.", id="g"),
        AIMessage([{"type": "text", "text": "Yes."}], id="h"),
    ]
    before = [message.model_copy(deep=True) for message in base]
    model = ScriptedModel(default="x")
    end = engine(Block([Step("A."), Step(spoil)]), model, messages=base)
    assert base == before
    assert texts(model.calls[1].messages) == ["Hi.", "Yes.", "A.", "x", "B."]
    assert end.messages[:2] == before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda ctx: ctx.messages.append(HumanMessage("more")),
        lambda ctx: ctx.messages.__setitem__(0, HumanMessage("other")),
        lambda ctx: ctx.outputs.__setitem__("a", "spoiled"),
        lambda ctx: ctx.outputs.clear(),
        lambda ctx: ctx.inputs.__setitem__("topic", "spoiled"),
        lambda ctx: setattr(ctx, "seed", 2),
    ],
    ids=["append", "set message", "set output", "clear outputs", "set input", "set seed"],
)
def test_a_prompt_that_writes_on_its_context_is_refused(engine: Engine, spoil: Any) -> None:
    """The view is read-only: the attempt raises at the step's path and nothing is applied."""
    tree = Block(
        [Step("A.", capture_key="a"), Step(lambda ctx: spoil(ctx) or "B.")], inputs=["topic"]
    )
    model = ScriptedModel(default="x")
    with pytest.raises((AttributeError, TypeError)) as raised:
        engine(tree, model, inputs={"topic": "cats"})
    assert getattr(raised.value, "pipeline_path", "") == "pipeline/step_02"
    assert len(model.calls) == 1


class Names(RootModel[list[str]]):
    """Some names."""


def test_a_captured_list_cannot_be_changed_by_a_reader(engine: Engine) -> None:
    """Plain JSON in outputs is handed out as a copy too."""

    @reads("names")
    def spoil(ctx: PromptContext) -> str:
        ctx.outputs["names"].append("spoiled")
        ctx.read("names").append("spoiled")
        return f"{ctx.outputs['names']}"

    tree = Block([Step("A.", schema=Names, capture_key="names"), Step(spoil)])
    end = engine(tree, ScriptedModel(['["a"]', "x"]))
    assert end.outputs == {"names": ["a"]}
    assert end.texts[2] == "['a']"


def test_a_declared_read_that_is_missing_raises_with_the_key(engine: Engine) -> None:
    """A blank value of a declared read is found before the function is called."""
    called: list[bool] = []

    @reads("topic")
    def prompt(ctx: PromptContext) -> str:
        called.append(True)
        return "A."

    with pytest.raises(MissingKey, match="'topic' is there but blank"):
        engine(Block([Step(prompt)], inputs=["topic"]), ScriptedModel([]), inputs={"topic": None})
    assert called == []


def test_a_template_that_renders_to_nothing_raises(engine: Engine) -> None:
    """Optional reads may be blank; a prompt may not."""
    tree = Block([Step(Template("{{ a }}", defaults={"a": " "}))])
    with pytest.raises(StepError, match="rendered to blank text"):
        engine(tree, ScriptedModel([]))


# Names

ODD = ("*", "[a]", "{b}", "**", "a b", "größe", "火", "messages", "work", "outputs", "facts")
ODDER = (
    "results",
    "captures",
    "inputs",
    "scope",
    "a.b",
    "-",
    "'q'",
    '"',
    "a\\b",
    "🙂",
    "é",
    "e\u0301",
)


@pytest.mark.parametrize("names", [ODD, ODDER], ids=["odd", "odder"])
def test_odd_names_are_names(engine: Engine, names: tuple[str, ...]) -> None:
    """Unicode, spaces, braces, stars and the engine's own words can name steps and blocks."""
    steps = [Step(f"{n}.", name=name) for n, name in enumerate(names)]
    inner: list[Node] = [Block([step], name=step.name) for step in steps]
    tree = Block(
        [Block(inner, name=names[0]), Block(steps, name=names[1], parallel=True)], name=names[2]
    )
    recorder = Recorder()
    engine(tree, ScriptedModel(default="x"), recorder=recorder)
    found = [record.path for record in recorder.journal.records]
    deep = [f"{names[2]}/{names[0]}/{name}/{name}" for name in names]
    wide = [f"{names[2]}/{names[1]}/{name}" for name in names]
    assert sorted(found) == sorted([*deep, *wide])


@pytest.mark.parametrize(
    "name", ["a/b", "a|b", "a:b", "__x", "__merge__", "", " ", "a\nb", "a\x00", "\ud800"]
)
def test_names_that_belong_to_paths_and_engines_are_refused(name: str) -> None:
    """Separators, control characters and a leading `__` are a TreeError when the node is made."""
    for make in (lambda: Step("A.", name=name), lambda: Block([], name=name)):
        with pytest.raises(TreeError, match="name"):
            make()


def test_names_that_collide_are_refused() -> None:
    """An explicit name that is another's name by position is a collision."""
    with pytest.raises(TreeError, match="children 1 and 2 are both named 'step_02'"):
        Block([Step("A.", name="step_02"), Step("B.")])


# Shapes


def deep_tree(depth: int) -> Node:
    """Return blocks inside of each other, with a step before and after each."""
    node: Node = Step("Deepest.")
    for level in range(depth):
        node = Block([node, Step(f"{level}.", merge="last_response")], name="b")
    return node


def test_a_tree_60_deep_runs(engine: Engine) -> None:
    """Sixty blocks inside of each other run, and the innermost has its whole path."""
    recorder = Recorder()
    end = engine(deep_tree(60), Echo(), recorder=recorder)
    assert len(end.messages) == 62
    assert recorder.journal.records[0].path == "/".join(["b"] * 60) + "/step_01"


@pytest.mark.first_case
def test_a_failure_60_deep_is_located(engine: Engine) -> None:
    """The innermost path survives sixty levels, and the error keeps its type."""
    with pytest.raises(RuntimeError, match="deep down") as raised:
        engine(deep_tree(60), ScriptedModel([RuntimeError("deep down")]))
    assert getattr(raised.value, "pipeline_path", "") == "/".join(["b"] * 60) + "/step_01"


def wide_tree(width: int, *, parallel: bool = False) -> Block:
    """Return steps in one block, of which the responses of thirty are kept."""
    steps = [
        Step(f"{n}.", merge="none" if n % (width // 30) else "last_response") for n in range(width)
    ]
    return Block(steps, parallel=parallel)


@pytest.mark.first_case
@pytest.mark.parametrize("parallel", [False, True], ids=["in a row", "side by side"])
def test_a_tree_300_wide_runs(engine: Engine, *, parallel: bool) -> None:
    """Three hundred steps of one block run, in a row or side by side."""
    end = engine(wide_tree(300, parallel=parallel), Echo())
    assert end.texts == [f"to {n}." for n in range(0, 300, 10)]


@pytest.mark.campaign
@pytest.mark.parametrize("parallel", [False, True], ids=["in a row", "side by side"])
def test_a_tree_3000_wide_runs(engine: Engine, *, parallel: bool) -> None:
    """Three thousand steps of one block run, in a row or side by side."""
    end = engine(wide_tree(3000, parallel=parallel), Echo())
    assert end.texts == [f"to {n}." for n in range(0, 3000, 100)]


@pytest.mark.campaign
def test_a_tree_3000_wide_runs_where_no_graph_is_needed() -> None:
    """The fused form, which runs the interpreter, takes three thousand steps as they come."""
    graph = compile_graph(wide_tree(3000), model=Echo(), form="fused")
    assert len(graph.invoke({"messages": []})["messages"]) == 30


@pytest.mark.parametrize("thing", ["A.", None, [Step("A.")], {"prompt": "A."}, Step, 7])
def test_what_is_no_tree_is_refused(engine: Engine, thing: Any) -> None:
    """Text, a list or a class is a TreeError that says what to write."""
    with pytest.raises(TreeError, match="Step"):
        engine(thing, ScriptedModel([]))


@pytest.mark.parametrize("thing", ["A.", None, [Step("A.")]])
def test_a_runner_refuses_what_is_no_tree_and_keeps_its_context(thing: Any) -> None:
    """The error is a TreeError, and the context can still say what happened."""
    ctx = RunContext(messages=[HumanMessage("Hi.")])
    with pytest.raises(TreeError, match="Step"):
        ChatRunner(ScriptedModel([])).run(ctx, thing)
    assert texts(ctx.messages) == ["Hi."]
    assert ctx.steps == ()


@pytest.mark.parametrize("child", ["A.", None, 7, Step, [Step("A.")]])
def test_what_is_no_node_is_refused_in_a_block(child: Any) -> None:
    """A block's children are nodes, and the error says at which position there is none."""
    with pytest.raises(TreeError, match=r"child 2 is .*wrap a (prompt in Step|function in Call)"):
        Block([Step("A."), child])


def test_no_model_is_a_tree_error_with_the_path(engine: Engine) -> None:
    """A step without a model is found before the first call, and the ways to give one are said."""
    own = ScriptedModel(default="x")
    tree = Block([Step("A.", model=own), Block([Step("B.")], name="in")])
    with pytest.raises(TreeError, match="no model: give one to the run") as raised:
        engine(tree, None)
    assert raised.value.pipeline_path == "pipeline/in/step_01"
    assert own.calls == []


@pytest.mark.parametrize("form", ["", "graph", None])
def test_an_unknown_form_is_refused(form: Any) -> None:
    """A form that does not exist is a TreeError that lists the forms."""
    given: Form = form
    with pytest.raises(TreeError, match="allowed are 'subgraphs', 'fused'"):
        compile_graph(Step("A."), model=ScriptedModel([]), form=given)


def test_an_unknown_part_is_refused_with_the_parts_there_are() -> None:
    """A path that fits no node lists those that exist."""
    with pytest.raises(LookupError, match="no node at 'pipeline/x'") as raised:
        compile_graph(Block([Step("A.")]), model=ScriptedModel([]), at="pipeline/x")
    assert "pipeline/step_01" in str(raised.value)


@pytest.mark.parametrize("answer", ["", " \n", AIMessage([])])
def test_a_step_can_allow_an_empty_response(engine: Engine, answer: Any) -> None:
    """It is merged, captured and recorded like any other answer."""
    recorder = Recorder()
    tree = Block([Step("A.", allow_empty_response=True, capture_key="a"), Step("B.")])
    end = engine(tree, ScriptedModel([answer, "b"]), recorder=recorder)
    assert end.outputs["a"].strip() == ""
    assert [one.type for one in end.messages] == ["human", "ai", "human", "ai"]
    assert [record.answered for record in recorder.journal.records] == [True, True]


def test_an_empty_response_may_be_tool_calls_alone(engine: Engine) -> None:
    """The tool calls are in the state."""
    call: Any = {"name": "look", "args": {}, "id": "c1", "type": "tool_call"}
    tree = Step("A.", allow_empty_response=True)
    made = engine(tree, ScriptedModel([AIMessage("", tool_calls=[call])])).messages[-1]
    assert isinstance(made, AIMessage)
    assert made.tool_calls == [call]


@pytest.mark.parametrize(
    "prompt", ["", " ", Template("{{ a }}", defaults={"a": ""}), lambda ctx: "", lambda ctx: [""]]
)
def test_a_step_can_allow_an_empty_prompt(engine: Engine, prompt: Any) -> None:
    """It is sent as it is."""
    model = ScriptedModel(["answer"])
    engine(Step(prompt, allow_empty_prompt=True), model)
    assert str(model.calls[0].messages[-1].text).strip() == ""


@pytest.mark.parametrize("prompt", [5, None, b"text", ("a", "b")])
def test_a_prompt_that_is_no_text_is_a_type_error_too(engine: Engine, prompt: Any) -> None:
    """Whether it is the step's own or what its function returned."""
    with pytest.raises(TypeError) as raised:
        Step(prompt)
    assert isinstance(raised.value, TreeError)
    with pytest.raises(TypeError) as returned:
        engine(Step(lambda ctx: prompt), ScriptedModel(default="x"))
    assert isinstance(returned.value, StepError)


@pytest.mark.parametrize("way", ["run", "arun", "runner", "async runner"])
def test_a_refused_tree_leaves_its_run_id_free(way: str, tmp_path: Path) -> None:
    """A tree that reads what nobody writes begins no journal; mended, it runs under the same id."""

    def once(tree: Block) -> str:
        model = ScriptedModel(default="x")
        options: dict[str, Any] = {"model": model, "runs": tmp_path, "run_id": "r"}
        if way == "run":
            return mp.run(tree, **options).text
        if way == "arun":
            return asyncio.run(mp.arun(tree, **options)).text
        runner, ctx = ChatRunner(model, journal=tmp_path), RunContext(run_id="r")
        if way == "runner":
            return runner.run(ctx, tree).text
        return asyncio.run(runner.arun(ctx, tree)).text

    with pytest.raises(TreeError, match="plan"):
        once(Block([Step(Template("Do {{ plan }}."))]))
    assert not list(tmp_path.rglob("journal.jsonl"))
    assert once(Block([Step("Do it.")])) == "x"
