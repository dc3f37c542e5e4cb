"""ChatRunner, RunContext and run_generation: what a run is given and what it leaves."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler, CallbackManager
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from tests.engine.engines import Runner, texts

from mergepoint.core.errors import StepError, TreeError
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import TRANSCRIPT, arun_generation, run_generation
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.transcript import read_transcript
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node
from mergepoint.tree.prompts import Template


class Paths(BaseCallbackHandler):
    """A callback handler of one's own."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        """Note the path of a call."""
        self.seen.append(kwargs["metadata"]["mergepoint"]["path"])


def two_steps() -> Block:
    """Return two steps, the second of which is captured."""
    return Block([Step("A."), Step("B.", merge="last_response", capture_key="b")])


def test_a_run_fills_its_context_and_gives_it_back(runner: Runner) -> None:
    """Messages grow by what is kept, outputs are what was captured, steps what was called."""
    ctx = RunContext(messages=[HumanMessage("Hi.")])
    assert runner(ctx, two_steps(), ScriptedModel(["one", "two"])) is ctx
    assert texts(ctx.messages) == ["Hi.", "A.", "one", "two"]
    assert ctx.outputs == {"b": "two"}
    assert [(step.path, step.response) for step in ctx.steps] == [
        ("pipeline/step_01", "one"),
        ("pipeline/step_02", "two"),
    ]
    assert (ctx.text, ctx.error) == ("two", None)


def test_a_fresh_context_holds_nothing() -> None:
    """Without a run there are no messages, outputs, steps, text or error."""
    ctx = RunContext()
    assert (ctx.messages, ctx.outputs, ctx.steps, ctx.text, ctx.error) == ([], {}, (), "", None)
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", ctx.run_id)


def test_the_rng_of_a_context_follows_its_seed() -> None:
    """Two contexts of one seed draw the same."""
    assert RunContext(seed=3).rng.random() == RunContext(seed=3).rng.random()
    assert RunContext(seed=3).rng.random() != RunContext(seed=4).rng.random()


def test_a_context_carries_a_conversation_over_turns(runner: Runner) -> None:
    """The second turn sees the first; its ids tell it apart, and its outputs are added."""
    ctx, model = RunContext(run_id="r"), ScriptedModel(["one", "two", "three"])
    runner(ctx, two_steps(), model)
    runner(ctx, Block([Step("C.")]), model)
    assert texts(model.calls[2].messages) == ["A.", "one", "two", "C."]
    assert ctx.outputs == {"b": "two"}
    assert [str(message.id) for message in ctx.messages[-2:]] == [
        "r.2/pipeline/step_01/0",
        "r.2/pipeline/step_01/1",
    ]
    assert [step.response for step in ctx.steps] == ["one", "two", "three"]
    first, second = (ctx.transcript(turn) for turn in ctx.turns)
    assert [len(one.records) for one in (first, second)] == [2, 1]
    assert texts(second.messages) == ["A.", "one", "two"]


def test_steps_are_in_the_order_of_the_tree(runner: Runner) -> None:
    """However parallel calls fall, ctx.steps lists them as declared."""
    names = ["z", "m", "a"]
    tree = Block([Step(f"{name}.", name=name) for name in names], parallel=True)
    ctx = runner(RunContext(), tree, ScriptedModel(default="x"))
    assert [step.path for step in ctx.steps] == [f"pipeline/{name}" for name in names]


def test_a_context_hands_its_inputs_and_its_seed_to_the_run(runner: Runner) -> None:
    """Inputs reach templates, the seed reaches a prompt's random numbers."""
    tree = Block([Step(Template("{{ topic }}")), Step(lambda ctx: str(ctx.seed))], inputs=["topic"])
    ctx = RunContext(inputs={"topic": "cats"}, seed=42)
    model = ScriptedModel(default="x")
    runner(ctx, tree, model)
    assert [call.messages[-1].text for call in model.calls] == ["cats", "42"]
    assert ctx.transcript().seed == 42
    assert ctx.transcript().inputs == {"topic": "cats"}


def managed(handlers: list[BaseCallbackHandler]) -> CallbackManager:
    """Return the handlers as a manager, as a host hands them on."""
    return CallbackManager.configure(inheritable_callbacks=handlers)


@pytest.mark.parametrize("wrap", [list, managed], ids=["list", "manager"])
def test_a_contexts_config_goes_to_every_call(runner: Runner, wrap: Any) -> None:
    """Callbacks of one's own hear each call, and the context still records."""
    paths = Paths()
    ctx = RunContext(config={"callbacks": wrap([paths]), "tags": ["mine"], "max_concurrency": 1})
    runner(ctx, two_steps(), ScriptedModel(default="x"))
    assert paths.seen == ["pipeline/step_01", "pipeline/step_02"]
    assert len(ctx.steps) == 2


def test_a_recorder_in_the_config_gets_the_records_too(runner: Runner) -> None:
    """The context's own recorder and another one do not get in each other's way."""
    other = Recorder()
    ctx = RunContext(config={"callbacks": [other]})
    runner(ctx, two_steps(), ScriptedModel(default="x"))
    assert other.journal.records == ctx.recorder.journal.records
    assert len(other.journal.records) == 2


def test_a_runner_compiles_a_tree_once() -> None:
    """The graph of a tree is kept, and of many trees only the latest."""
    runner = ChatRunner(ScriptedModel(default="x"), form="fused")
    trees: list[Node] = [Step(f"{n}.") for n in range(70)]
    for tree in [*trees, trees[0], trees[-1]]:
        assert runner.run(RunContext(), tree).text == "x"
    kept = runner._graphs
    assert len(kept) == 64
    assert next(reversed(kept.values())).tree is trees[-1]


def test_run_step_gives_the_response_whatever_is_kept() -> None:
    """A merge-none step leaves the conversation alone and its answer is given."""
    ctx = RunContext(messages=[HumanMessage("Hi.")])
    runner = ChatRunner(ScriptedModel(["thought", "said"]))
    assert runner.run_step(ctx, Step("A.", merge="none", capture_key="a")) == "thought"
    assert texts(ctx.messages) == ["Hi."]
    assert runner.run_step(ctx, Step(Template("Of {{ a }}."))) == "said"
    assert texts(ctx.messages) == ["Hi.", "Of thought.", "said"]


def test_run_steps_builds_on_what_the_context_holds() -> None:
    """Steps run one after the other, read earlier outputs, and add to them."""
    ctx = RunContext(outputs={"old": "earlier", "plan": "first"}, inputs={"topic": "cats"})
    model = ScriptedModel(["p", "x"])
    steps = [
        Step(Template("{{ topic }} {{ old }}"), capture_key="plan", merge="none"),
        Step(Template("{{ plan }}")),
    ]
    ChatRunner(model).run_steps(ctx, steps)
    assert [texts(call.messages) for call in model.calls] == [["cats earlier"], ["p"]]
    assert ctx.outputs == {"old": "earlier", "plan": "p"}
    assert [step.path for step in ctx.steps] == ["pipeline/step_01", "pipeline/step_02"]


@pytest.mark.parametrize("declared", [True, False])
def test_a_run_reads_and_keeps_the_outputs_of_its_context(
    runner: Runner, *, declared: bool
) -> None:
    """As run_steps does: by a template, or in a function that declares no reads."""
    ctx = RunContext(outputs={"old": {"deep": [1]}, "plan": "first"}, inputs={"topic": "cats"})
    prompt = Template("{{ topic }} {{ old }}") if declared else lambda c: f"{c.read('old')}"
    tree = Block(
        [Step(prompt, capture_key="plan", merge="none"), Step(Template("{{ plan }}"))],
        inputs=("topic",),
    )
    model = ScriptedModel(["p", "x"])
    runner(ctx, tree, model)
    sent = 'cats {"deep": [1]}' if declared else "{'deep': [1]}"
    assert [texts(call.messages) for call in model.calls] == [[sent], ["p"]]
    assert ctx.outputs == {"old": {"deep": [1]}, "plan": "p"}
    assert ctx.inputs == {"topic": "cats"}
    assert [step.path for step in ctx.steps] == ["pipeline/step_01", "pipeline/step_02"]


def test_a_lone_step_reads_the_outputs_of_its_context(runner: Runner) -> None:
    """Its path stays that of a lone step, and an input of the same name counts instead."""
    ctx = RunContext(outputs={"old": "earlier", "other": "kept"})
    runner(ctx, Step(Template("{{ old }}")), ScriptedModel(["x"]))
    assert (ctx.steps[0].path, ctx.steps[0].prompt) == ("step_01", "earlier")
    runner(ctx, Step(Template("{{ other }}"), name="b", capture_key="c"), ScriptedModel(["y"]))
    assert ctx.outputs == {"old": "earlier", "other": "kept", "c": "y"}
    ctx.inputs = {"old": "input"}
    tree = Block([Step(Template("{{ old }}"))], inputs=("old",))
    runner(ctx, tree, ScriptedModel(["z"]))
    assert ctx.steps[-1].prompt == "input"


def test_a_resumed_run_has_the_outputs_of_its_context(tmp_path: Path) -> None:
    """They are in the journal, so that the rest of the run reads the same."""
    tree = Block([Step("A."), Step(Template("{{ old }}"), capture_key="new")])
    ctx = RunContext(run_id="a", outputs={"old": "earlier"})
    with pytest.raises(TimeoutError):
        run_generation(tree, model=ScriptedModel(["x", TimeoutError("no")]), ctx=ctx, runs=tmp_path)
    assert ctx.outputs == {"old": "earlier"}
    model = ScriptedModel(["y"])
    again = run_generation(tree, model=model, runs=tmp_path, resume="a")
    assert texts(model.calls[0].messages)[-1] == "earlier"
    assert again.outputs == {"old": "earlier", "new": "y"}


def test_outputs_that_nobody_reads_are_no_inputs(runner: Runner) -> None:
    """They are kept, and what a run is recorded with does not grow."""
    ctx = RunContext(outputs={"old": "earlier"})
    runner(ctx, Step("A."), ScriptedModel(["x"]))
    assert ctx.outputs == {"old": "earlier"}
    assert ctx.transcript().inputs == {}


def test_failed_steps_leave_the_outputs_of_the_context() -> None:
    """When run_steps fails, what the context held is still there."""
    ctx = RunContext(outputs={"old": "earlier"})
    runner = ChatRunner(ScriptedModel(["x", TimeoutError("no")]))
    with pytest.raises(TimeoutError):
        runner.run_steps(ctx, [Step("A.", capture_key="a"), Step("B.")])
    assert (ctx.outputs, ctx.messages) == ({"old": "earlier"}, [])
    assert ctx.error is not None
    assert [step.response for step in ctx.steps] == ["x"]


def test_a_run_writes_its_transcript(tmp_path: Path) -> None:
    """run_generation leaves `<runs>/<run_id>/transcript.json`, and its result says where."""
    found = run_generation(
        two_steps(),
        model=ScriptedModel(["one", "two"]),
        messages=[HumanMessage("Hi.")],
        ctx=RunContext(run_id="r"),
        runs=tmp_path,
    )
    assert found.path_of_run == tmp_path / "r"
    assert read_transcript(tmp_path / "r" / TRANSCRIPT) == found.transcript
    assert (found.text, texts(found.messages)) == ("two", ["Hi.", "A.", "one", "two"])
    assert found.outputs == {"b": "two"}
    assert [step.response for step in found.steps] == ["one", "two"]
    assert found.usage.total_tokens == found.transcript.usage["total_tokens"] > 0


def test_a_run_on_a_loop_writes_its_transcript(tmp_path: Path) -> None:
    """arun_generation does the same, and takes inputs."""
    tree = Block([Step(Template("{{ topic }}"))], inputs=["topic"])
    found = asyncio.run(
        arun_generation(
            tree, model=ScriptedModel(["x"]), inputs={"topic": "cats"}, runs=str(tmp_path)
        )
    )
    assert found.text == "x"
    assert found.path_of_run is not None
    assert read_transcript(found.path_of_run / TRANSCRIPT).inputs == {"topic": "cats"}


def test_every_turn_of_a_context_has_a_transcript_of_its_own(tmp_path: Path) -> None:
    """A second run in one context is written beside the first."""
    ctx = RunContext(run_id="r")
    for number in (1, 2):
        run_generation(Step("A."), model=ScriptedModel([f"{number}"]), ctx=ctx, runs=tmp_path)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["r", "r.2"]
    assert texts(read_transcript(tmp_path / "r.2" / TRANSCRIPT).messages) == ["A.", "1"]


def test_the_text_of_a_run_is_what_it_kept_not_what_was_there(tmp_path: Path) -> None:
    """A run that keeps nothing has no text, though the conversation had one."""
    found = run_generation(
        Step("A.", merge="none"),
        model=ScriptedModel(["x"]),
        messages=[AIMessage("earlier")],
        runs=tmp_path,
    )
    assert found.text == ""
    assert texts(found.messages) == ["earlier"]


def test_contexts_run_beside_each_other() -> None:
    """One runner serves several contexts at once, each with its own records."""
    runner = ChatRunner(ScriptedModel(default=lambda messages: f"to {messages[-1].text}"))

    async def work() -> list[RunContext]:
        trees = [Step(f"{n}.") for n in range(5)]
        return await asyncio.gather(*(runner.arun(RunContext(), tree) for tree in trees))

    assert [ctx.text for ctx in asyncio.run(work())] == [f"to {n}." for n in range(5)]


def test_one_tree_runs_in_several_contexts_at_once() -> None:
    """Runs of one compiled tree under unrelated recorders are no conflict."""
    runner, tree = ChatRunner(ScriptedModel(default="x")), two_steps()

    async def work() -> list[RunContext]:
        return await asyncio.gather(*(runner.arun(RunContext(), tree) for _ in range(4)))

    assert [len(ctx.steps) for ctx in asyncio.run(work())] == [2] * 4


def test_a_pair_is_a_message_here_too(tmp_path: Path) -> None:
    """What LangChain takes for a message may be given to a run, and the transcript is written."""
    given: Any = [("user", "Hi."), {"role": "assistant", "content": "Yes?"}]
    found = run_generation(
        Step("A.", merge="last_response"), model=ScriptedModel(["x"]), messages=given, runs=tmp_path
    )
    assert texts(found.messages) == ["Hi.", "Yes?", "x"]


def test_a_bad_list_of_steps_is_refused_before_a_call() -> None:
    """Two steps of one name are a TreeError, and the context is as it was."""
    ctx, model = RunContext(outputs={"old": 1}), ScriptedModel([])
    with pytest.raises(TreeError, match="both named 'a'"):
        ChatRunner(model).run_steps(ctx, [Step("A.", name="a"), Step("B.", name="a")])
    assert (ctx.outputs, ctx.steps, model.calls) == ({"old": 1}, (), [])


def test_the_conversation_of_a_context_is_a_list_of_its_own(runner: Runner) -> None:
    """A run never writes into the caller's list."""
    mine: list[BaseMessage] = [HumanMessage("Hi.")]
    ctx = RunContext(messages=mine)
    runner(ctx, Step("A."), ScriptedModel(["x"]))
    assert mine == [HumanMessage("Hi.")]
    assert len(ctx.messages) == 3


def test_a_runner_of_ones_own_compiles_once_for_many_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model and budget are those of each run, sync and on a loop."""
    compiled: list[Node] = []

    def counted(tree: Node, **options: Any) -> Any:
        compiled.append(tree)
        return compile_graph(tree, **options)

    monkeypatch.setattr("mergepoint.engine.runner.compile_graph", counted)
    runner, tree = ChatRunner(ScriptedModel(["one", "two", "three"])), Step("A.", name="a")
    first = run_generation(tree, runner=runner, runs=tmp_path)
    second = asyncio.run(arun_generation(tree, runner=runner, runs=tmp_path))
    assert (first.text, second.text) == ("one", "two")
    assert len(compiled) == 1
    with pytest.raises(StepError, match="a runner for run_generation must have no journal"):
        run_generation(tree, runner=ChatRunner("offline", journal=tmp_path), runs=tmp_path)
