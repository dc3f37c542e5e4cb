"""Merging, on every engine: what a node leaves behind, and what those after it see."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from tests.engine.engines import RUN, Engine, texts

from mergepoint.core.errors import TreeError
from mergepoint.core.merge import MergeMode
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node
from mergepoint.tree.prompts import PromptContext, Template
from mergepoint.tree.validate import check


def given() -> list[BaseMessage]:
    """Return a conversation to start from."""
    return [HumanMessage("Hello.", id="g0"), AIMessage("Good day.", id="g1")]


def enclave(merge: MergeMode = "last_response") -> Block:
    """Return two voices side by side and a consensus."""
    voices = [Step("Edit as one.", name="one"), Step("Edit as two.", name="two")]
    return Block(
        [Block(voices, name="threads", parallel=True), Step("Agree.", name="consensus")],
        name="tot_enclave",
        merge=merge,
    )


def test_merge_none_leaves_the_parent_unchanged_and_is_recorded(engine: Engine) -> None:
    """Nothing of a merge-none step is in the state, and its call is on record."""
    recorder = Recorder()
    tree = Block([Step("Think.", merge="none")])
    end = engine(tree, ScriptedModel(["a thought"]), messages=given(), recorder=recorder)
    assert end.messages == given()
    records = recorder.journal.records
    assert [(one.path, one.response) for one in records] == [("pipeline/step_01", "a thought")]


def test_last_response_appends_exactly_one_assistant_message(engine: Engine) -> None:
    """Of all that a block made its last response is left."""
    tree = Block([Step("A."), Step("B.")], merge="last_response")
    end = engine(tree, ScriptedModel(["first", "second"]), messages=given())
    assert end.messages[:2] == given()
    assert [(one.type, one.text) for one in end.messages[2:]] == [("ai", "second")]


def test_all_messages_appends_the_pair(engine: Engine) -> None:
    """A step that keeps all adds its prompt and the response."""
    end = engine(Block([Step("A.")]), ScriptedModel(["answer"]), messages=given())
    assert end.messages[:2] == given()
    assert [(one.type, one.text) for one in end.messages[2:]] == [("human", "A."), ("ai", "answer")]


def test_last_response_without_output_raises(engine: Engine) -> None:
    """A block that can never hold a response is refused before the first call is paid."""
    tree = Block([Step("A."), Block([Step("B.", merge="none")], name="in", merge="last_response")])
    model = ScriptedModel(default="x")
    with pytest.raises(
        ValueError, match="last_response requested but no assistant output exists"
    ) as raised:
        engine(tree, model)
    assert getattr(raised.value, "pipeline_path", "") == "pipeline/in"
    assert model.calls == []


def test_repeated_enclave_names_give_distinct_paths(engine: Engine) -> None:
    """The same block in two stages is told apart by path, and so are its messages."""
    recorder = Recorder()
    stages = [Block([Step("Draft.", name="draft"), enclave()], name=name) for name in ("a", "b")]
    end = engine(Block(stages), ScriptedModel(default="x"), recorder=recorder)
    paths = [record.path for record in recorder.journal.records]
    assert len(set(paths)) == len(paths) == 8
    assert {"pipeline/a/tot_enclave/consensus", "pipeline/b/tot_enclave/consensus"} < set(paths)
    ids = [message.id for message in end.messages]
    assert len(set(ids)) == len(ids)


def test_a_tot_pipeline_keeps_one_assistant_message_a_stage(engine: Engine) -> None:
    """Stages of draft and enclave that merge their last response leave one message each."""
    stages = [
        Block([Step("Draft."), enclave()], name=f"stage_{n}", merge="last_response")
        for n in range(3)
    ]
    consensus = {f"pipeline/stage_{n}/tot_enclave/consensus": f"agreed {n}" for n in range(3)}
    end = engine(Block(stages), ScriptedModel(by_path=consensus, default="x"))
    assert [(one.type, one.text) for one in end.messages] == [
        ("ai", "agreed 0"),
        ("ai", "agreed 1"),
        ("ai", "agreed 2"),
    ]


def test_merge_none_on_steps_lets_both_calls_see_the_same_base(engine: Engine) -> None:
    """A merge-none step leaves nothing for the one after it to see."""
    model = ScriptedModel(default="x")
    tree = Block([Step("A.", merge="none"), Step("B.", merge="none")])
    engine(tree, model, messages=given())
    first, second = model.calls
    assert texts(first.messages) == ["Hello.", "Good day.", "A."]
    assert texts(second.messages) == ["Hello.", "Good day.", "B."]


def test_a_step_that_merges_its_last_response_keeps_no_prompt(engine: Engine) -> None:
    """The step after it sees the response and not what was asked."""
    model = ScriptedModel(["one", "two"])
    end = engine(Block([Step("A.", merge="last_response"), Step("B.")]), model)
    assert texts(model.calls[1].messages) == ["one", "B."]
    assert end.texts == ["one", "B.", "two"]


@pytest.mark.parametrize("mode", ["all", "", None, "ALL_MESSAGES"])
@pytest.mark.parametrize(
    "make", [lambda mode: Step("A.", merge=mode), lambda mode: Block([], merge=mode)]
)
def test_an_invalid_mode_raises(make: Any, mode: object) -> None:
    """A wrong mode is refused when the node is made, and the allowed ones are listed."""
    with pytest.raises(ValueError, match="'all_messages', 'last_response', 'none'"):
        make(mode)


def test_the_root_merges_too(engine: Engine) -> None:
    """The root's own mode decides what the conversation gets."""
    tree = Block([Step("A.", capture_key="a")], merge="none")
    end = engine(tree, ScriptedModel(["answer"]), messages=given())
    assert (end.messages, end.outputs) == (given(), {"a": "answer"})


def test_a_lone_step_is_a_tree(engine: Engine) -> None:
    """A step needs no block around it, and its path is `step_01`."""
    model = ScriptedModel(["answer"])
    assert engine(Step("A.", merge="last_response"), model).texts == ["answer"]
    assert model.calls[0].path == "step_01"


def test_messages_are_fresh_and_named_by_run_path_and_number(engine: Engine) -> None:
    """Ids are `<run>/<path>/<n>`, and nothing of the model's own id is left in them."""
    answer = AIMessage("answer", id="own", response_metadata={"k": "v"}, name="bot")
    end = engine(Block([Block([Step("A.")], name="in")]), ScriptedModel([answer]))
    assert [message.id for message in end.messages] == [
        f"{RUN}/pipeline/in/step_01/0",
        f"{RUN}/pipeline/in/step_01/1",
    ]
    assert "own" not in repr(end.messages)
    assert end.messages[1] is not answer


def test_captures_survive_every_mode(engine: Engine) -> None:
    """Modes govern messages only: what was captured inside of merge none can be read after."""
    inner = Block([Step("A.", merge="none", capture_key="a")], merge="none")
    model = ScriptedModel(["one", "two"])
    end = engine(Block([inner, Step(Template("Of {{ a }}."), capture_key="b")]), model)
    assert texts(model.calls[1].messages) == ["Of one."]
    assert end.outputs == {"a": "one", "b": "two"}


def test_a_block_captures_its_last_response_whatever_its_mode(engine: Engine) -> None:
    """A block's capture is the last assistant message of what it made after nested merges."""
    tree = Block(
        [Block([Step("A."), Step("B.", merge="none")], merge="none", capture_key="k"), Step("C.")]
    )
    assert engine(tree, ScriptedModel(["one", "two", "three"])).outputs == {"k": "one"}


def test_a_capture_is_what_the_block_itself_made(engine: Engine) -> None:
    """A response of the base is no response of the block."""
    tree = Block([Step("A."), Block([Step("B.", merge="none")], capture_key="k")])
    assert [fault.path for fault in check(tree)] == ["pipeline/block_02"]
    with pytest.raises(TreeError, match="no assistant output exists"):
        engine(tree, ScriptedModel(default="x"), messages=given())


def test_last_response_is_taken_after_nested_merges(engine: Engine) -> None:
    """What a nested block dropped is no last response of the block around it."""
    tree = Block([Step("A."), Block([Step("B.")], merge="none")], merge="last_response")
    assert engine(tree, ScriptedModel(["kept", "dropped"])).texts == ["kept"]


def test_blocks_in_blocks_mean_their_nodes_in_a_row(engine: Engine) -> None:
    """`Block([Block(xs), y])` that keep all mean `Block([*xs, y])`, up to paths."""
    xs: list[Node] = [Step("A."), Step("B.", merge="last_response")]
    y = Step("C.")
    nested = engine(Block([Block(xs), y]), ScriptedModel(["1", "2", "3"]))
    flat = engine(Block([*xs, y]), ScriptedModel(["1", "2", "3"]))
    assert nested.texts == flat.texts == ["A.", "1", "2", "C.", "3"]


def test_the_old_parent_is_a_prefix_of_the_new(engine: Engine) -> None:
    """A run only adds: system messages, tool calls and ids of the base stay as they are."""
    base = [SystemMessage("Be kind.", id="s"), *given()]
    end = engine(Block([Step("A.", merge="last_response")]), ScriptedModel(["x"]), messages=base)
    assert end.messages[:3] == base


def test_outputs_start_empty_on_a_reused_thread(form: Form) -> None:
    """A second run on the same thread goes on with the conversation, and with no old output."""
    tree = Block([Step(lambda ctx: f"Keys: {sorted(ctx.outputs)}.", capture_key="k")])
    model = ScriptedModel(["one", "two"])
    graph = compile_graph(tree, model=model, checkpointer=InMemorySaver(), form=form)
    thread: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"messages": given()}, thread)
    second = graph.invoke({"messages": [HumanMessage("More.", id="g2")]}, thread)
    assert texts(model.calls[1].messages)[-1] == "Keys: []."
    assert texts(second["messages"]) == [
        *("Hello.", "Good day.", "Keys: [].", "one", "More.", "Keys: [].", "two"),
    ]
    assert second["outputs"] == {"k": "two"}


def test_outputs_of_an_earlier_run_are_gone_when_nothing_is_captured(form: Form) -> None:
    """Outputs are those of the last run, even where it captures nothing."""
    saver, model = InMemorySaver(), ScriptedModel(default="x")
    thread: Any = {"configurable": {"thread_id": "t"}}
    for tree in (Block([Step("A.", capture_key="k")]), Block([Step("B.")])):
        graph = compile_graph(tree, model=model, checkpointer=saver, form=form)
        end = graph.invoke({"messages": []}, thread)
    assert end["outputs"] == {}


def test_inputs_of_an_earlier_turn_do_not_leak_into_the_next(form: Form) -> None:
    """Inputs are given for each run: a turn without them takes the default, not the last value."""
    tree = Block([Step(Template("About {{ topic }}."))], inputs=[("topic", "cats")])
    model = ScriptedModel(default="x")
    graph = compile_graph(tree, model=model, checkpointer=InMemorySaver(), form=form)
    thread: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"messages": [], "inputs": {"topic": "dogs"}}, thread)
    graph.invoke({"messages": []}, thread)
    assert [texts(call.messages)[-1] for call in model.calls] == ["About dogs.", "About cats."]


def test_the_callers_list_and_messages_are_never_changed(engine: Engine) -> None:
    """What was handed in stays as it was, also where messages have no id yet."""
    mine: list[BaseMessage] = [
        HumanMessage("Hello."),
        AIMessage([{"type": "text", "text": "Yes."}]),
    ]
    before = [message.model_copy(deep=True) for message in mine]
    objects = list(mine)
    engine(Block([Step("A."), Step("B.")]), ScriptedModel(default="x"), messages=mine)
    assert mine == before
    assert all(one is other for one, other in zip(mine, objects, strict=True))


def test_nothing_of_the_engine_is_visible_in_prompt_functions(engine: Engine) -> None:
    """A prompt function sees the base, the outputs so far, the run and its own path."""
    seen: list[tuple[str, str, list[str], dict[str, Any]]] = []

    def prompt(ctx: PromptContext) -> str:
        seen.append((ctx.run_id, ctx.path, texts(ctx.messages), dict(ctx.outputs)))
        return "B."

    tree = Block([Block([Step("A.", capture_key="a"), Step(prompt)], name="in")])
    engine(tree, ScriptedModel(["one", "two"]))
    assert seen == [(RUN, "pipeline/in/step_02", ["A.", "one"], {"a": "one"})]


def test_draws_follow_the_seed_and_the_path(engine: Engine) -> None:
    """A prompt's random numbers depend on seed and path alone."""

    def prompt(ctx: PromptContext) -> str:
        return str(ctx.rng.random())

    def drawn(seed: int) -> list[str]:
        model = ScriptedModel(default="x")
        engine(Block([Step(prompt, merge="none"), Step(prompt, merge="none")]), model, seed=seed)
        return [str(call.messages[-1].text) for call in model.calls]

    assert drawn(1) == drawn(1)
    assert len({*drawn(1), *drawn(2)}) == 4


def test_draws_are_the_same_on_every_engine(engine: Engine) -> None:
    """The numbers are those of the interpreter."""
    tree = Block([Step(lambda ctx: str(ctx.rng.random()))])
    here = engine(tree, ScriptedModel(["x"]), seed=5).texts[0]
    assert here == Engine("interpret", on_loop=False)(tree, ScriptedModel(["x"]), seed=5).texts[0]


def test_taking_out_a_silent_node_changes_no_other_call(engine: Engine) -> None:
    """An uncaptured merge-none node can be taken out without anyone noticing."""

    def seen(nodes: list[Node]) -> list[list[str]]:
        model = ScriptedModel(by_prompt={"Muse.": "dropped"}, default="x")
        engine(Block(nodes), model)
        return [texts(call.messages) for call in model.calls if call.messages[-1].text != "Muse."]

    assert seen([Step("A."), Step("Muse.", merge="none"), Step("B.")]) == seen(
        [Step("A."), Step("B.")]
    )


def test_run_ids_tell_runs_apart_when_none_is_given() -> None:
    """Two runs of one graph never give two messages one id."""
    graph = compile_graph(Step("A."), model=ScriptedModel(default="x"))
    ids = [graph.invoke({"messages": []})["messages"][0].id for _ in range(2)]
    assert ids[0] != ids[1]
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}/step_01/0", cast("str", id_)) for id_ in ids)
