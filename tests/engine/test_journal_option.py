"""`journal=`, `reuse=` and `replay=` on compiled graphs and runners."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send
from tests.engine.engines import RUNNERS, Runner, texts

from mergepoint.core.errors import ReplayMiss, StepError, TreeError
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form, Graph, aresume_graph, compile_graph, resume_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.file_journal import FileStore
from mergepoint.testing.fakes import Killed, KillingStore
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Loop, Node
from mergepoint.tree.policy import Budget
from mergepoint.tree.prompts import CallContext, Template
from mergepoint.tree.transform import with_overrides

GIVEN: dict[str, Any] = {"messages": [("user", "Hi.")], "inputs": {"topic": "rain"}}


def tree() -> Block:
    """Return a tree with parallel children and an input."""
    sides = Block([Step("B.", name="b"), Step("C.", name="c")], name="sides", parallel=True)
    return Block(
        [Step(Template("Of {{ topic }}."), name="a"), sides, Step("D.", name="d")],
        inputs=["topic"],
        merge="last_response",
    )


def echo(**by_path: Any) -> ScriptedModel:
    """Return a model that repeats prompts, and answers otherwise at some paths."""
    homes = {"a": "pipeline", "d": "pipeline", "b": "pipeline/sides", "c": "pipeline/sides"}
    return ScriptedModel(
        by_path={f"{homes[name]}/{name}": answer for name, answer in by_path.items()},
        default=lambda messages: f"to {messages[-1].text}",
    )


def called(model: ScriptedModel) -> list[str]:
    """Return the last names of the paths at which a model was called, sorted."""
    return sorted(str(call.path).rpartition("/")[2] for call in model.calls)


def config(**options: Any) -> Any:
    """Return a config with these options."""
    return {"configurable": options}


def invoked(graph: Graph, given: Any, about: Any, *, on_loop: bool) -> dict[str, Any]:
    """Invoke a graph, on an event loop or not."""
    if on_loop:
        return dict(asyncio.run(graph.ainvoke(given, about)))
    return dict(graph.invoke(given, about))


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def on_loop(request: pytest.FixtureRequest) -> bool:
    """Return whether to run on an event loop."""
    return bool(request.param)


def test_a_run_is_found_by_its_id_and_goes_on(tmp_path: Path, form: Form, *, on_loop: bool) -> None:
    """What was answered before a failure is not asked again when the same run is invoked again."""
    about = config(mergepoint_run_id="r1")
    first = compile_graph(tree(), model=echo(d=TimeoutError("slow")), form=form, journal=tmp_path)
    with pytest.raises(TimeoutError):
        invoked(first, GIVEN, about, on_loop=on_loop)
    again = echo()
    graph = compile_graph(tree(), model=again, form=form, journal=tmp_path)
    found = invoked(graph, GIVEN, about, on_loop=on_loop)
    assert (called(again), texts(found["messages"])) == (["d"], ["Hi.", "to D."])
    assert found["messages"][-1].id == "r1/pipeline/d/1"
    idle = echo()
    whole = compile_graph(tree(), model=idle, form=form, journal=tmp_path)
    assert texts(invoked(whole, GIVEN, about, on_loop=on_loop)["messages"]) == ["Hi.", "to D."]
    assert idle.calls == []
    header, records = FileStore(tmp_path).read("r1")
    assert (header.inputs, len(records)) == ({"topic": "rain"}, 5)


def test_a_run_without_a_name_gets_a_journal_of_its_own(tmp_path: Path, form: Form) -> None:
    """Runs that nobody named are new ones, each with its journal."""
    model = echo()
    graph = compile_graph(tree(), model=model, form=form, journal=tmp_path)
    for _ in range(2):
        graph.invoke(GIVEN)
    assert (len(FileStore(tmp_path).runs()), len(model.calls)) == (2, 8)


def test_other_inputs_are_another_run(tmp_path: Path, form: Form) -> None:
    """A run is not gone on with by what it was not given, and the error names the difference."""
    graph = compile_graph(tree(), model=echo(), form=form, journal=tmp_path)
    graph.invoke(GIVEN, config(mergepoint_run_id="r1"))
    other = {"messages": [("user", "Ho.")], "inputs": {"topic": "snow"}}
    with pytest.raises(StepError, match="began with other inputs and messages; pass the"):
        graph.invoke(other, config(mergepoint_run_id="r1"))
    with pytest.raises(StepError, match="began with other seed"):
        graph.invoke(GIVEN, config(mergepoint_run_id="r1", mergepoint_seed=3))
    graph.invoke(GIVEN, config(mergepoint_run_id="r1"))


def test_a_changed_tree_does_not_go_on(tmp_path: Path, form: Form) -> None:
    """The paths that differ are named, and nothing is called."""
    about = config(mergepoint_run_id="r1")
    compile_graph(tree(), model=echo(), form=form, journal=tmp_path).invoke(GIVEN, about)
    other, idle = with_overrides(tree(), {"a": {"prompt": "Other."}}), echo()
    graph = compile_graph(other, model=idle, form=form, journal=tmp_path)
    with pytest.raises(TreeError, match="pipeline/a: is another step"):
        graph.invoke(GIVEN | {"inputs": {"topic": "rain"}}, about)
    assert idle.calls == []


def test_one_process_and_one_call_hold_a_run_at_a_time(tmp_path: Path, form: Form) -> None:
    """A run that is being written is not begun a second time."""
    graph = compile_graph(tree(), model=echo(), form=form, journal=tmp_path)
    graph.invoke(GIVEN, config(mergepoint_run_id="r1"))
    with (
        FileStore(tmp_path).open("r1"),
        pytest.raises(JournalError, match="is being written by this process"),
    ):
        graph.invoke(GIVEN, config(mergepoint_run_id="r1"))


def test_turns_of_a_thread_have_a_journal_each(
    tmp_path: Path, form: Form, *, on_loop: bool
) -> None:
    """The first is named as the thread, the next ones are numbered."""
    graph = compile_graph(
        tree(), model=echo(), form=form, journal=tmp_path, checkpointer=InMemorySaver()
    )
    about = config(thread_id="t")
    invoked(graph, GIVEN, about, on_loop=on_loop)
    second = {"messages": [("user", "More.")], "inputs": {"topic": "snow"}}
    found = invoked(graph, second, about, on_loop=on_loop)
    assert texts(found["messages"]) == ["Hi.", "to D.", "More.", "to D."]
    assert sorted(FileStore(tmp_path).runs()) == ["t", "t.2"]
    assert [message.id for message in found["messages"][1::2]] == [
        "t/pipeline/d/1",
        "t.2/pipeline/d/1",
    ]


def test_a_turn_that_leaves_no_message_is_told_from_the_next(tmp_path: Path, form: Form) -> None:
    """A turn is known by what it was given, where the conversation holds nothing of it."""
    model = echo()
    silent = Block([Step(Template("Of {{ topic }}."), name="a")], inputs=["topic"], merge="none")
    graph = compile_graph(
        silent, model=model, form=form, journal=tmp_path, checkpointer=InMemorySaver()
    )
    for topic in ("rain", "snow"):
        given = {"messages": [], "inputs": {"topic": topic}}
        graph.invoke(given, config(thread_id="t"))
    assert (sorted(FileStore(tmp_path).runs()), len(model.calls)) == (["t", "t.2"], 2)


def gated() -> Node:
    """Return a tree with a gate behind a step."""
    gate = Gate(Step("Plan.", name="plan", capture_key="plan"), name="gate", question="Good?")
    return Block([Step("Think.", name="think"), gate, Step("Do.", name="do")])


@pytest.mark.parametrize("way", ["command", "answerer"])
def test_a_gate_is_answered_in_another_process(
    tmp_path: Path, form: Form, way: str, *, on_loop: bool
) -> None:
    """An interrupted thread goes on with the answer, and asks no model what it asked before."""
    saver, about = InMemorySaver(), config(thread_id="t")
    first = compile_graph(gated(), model=echo(), form=form, journal=tmp_path, checkpointer=saver)
    stopped = invoked(first, {"messages": [("user", "Hi.")]}, about, on_loop=on_loop)
    (asked,) = stopped["__interrupt__"]
    assert asked.value["question"] == "Good?"
    later = echo()
    graph = compile_graph(gated(), model=later, form=form, journal=tmp_path, checkpointer=saver)
    if way == "command":
        found = invoked(graph, Command(resume={asked.id: "approve"}), about, on_loop=on_loop)
    else:
        recorder = Recorder(answerer=lambda question: "approve")
        found = invoked(graph, None, {**about, "callbacks": [recorder]}, on_loop=on_loop)
    assert (called(later), texts(found["messages"])[-1]) == (["do"], "to Do.")
    kinds = [record.kind for record in FileStore(tmp_path).read("t")[1] if record.answered]
    assert kinds == ["step", "step", "gate", "step"]


def test_an_answer_on_record_is_not_asked_again(tmp_path: Path, form: Form) -> None:
    """A decision that was written before the graph went on is found there."""
    about = config(mergepoint_run_id="r1")
    asked: list[str] = []

    def answer(question: Any) -> str:
        asked.append(question.path)
        return "approve"

    for model in (ScriptedModel(["1", "2", TimeoutError("slow")]), ScriptedModel(["3"])):
        graph = compile_graph(gated(), model=model, form=form, journal=tmp_path)
        try:
            callbacks: Any = {**about, "callbacks": [Recorder(answerer=answer)]}
            found = graph.invoke({"messages": []}, callbacks)
        except TimeoutError:
            continue
    assert (asked, texts(found["messages"])[1::2]) == (["pipeline/gate"], ["1", "2", "3"])


def test_in_a_host_each_place_has_its_own_runs(tmp_path: Path, form: Form) -> None:
    """Two pipelines in one host, and one at several scopes, do not share a journal."""
    host = StateGraph(MessagesState)
    one = compile_graph(Step("One.", name="root"), model=echo(), form=form, journal=tmp_path)
    two = compile_graph(Step("Two.", name="root"), model=echo(), form=form, journal=tmp_path)
    host.add_node("one", one)
    host.add_node("two", two)
    host.add_edge(START, "one")
    host.add_edge("one", "two")
    graph = host.compile(checkpointer=InMemorySaver())
    found = graph.invoke({"messages": [HumanMessage("Hi.")]}, config(thread_id="t"))
    assert texts(found["messages"])[2::2] == ["to One.", "to Two."]
    assert sorted(FileStore(tmp_path).runs()) == ["t.one", "t.two"]
    record = FileStore(tmp_path).read("t.two")[1][0]
    assert (record.key.run, record.key.full_path) == ("t.two", "two/root")
    scoped = compile_graph(Step("S.", name="root"), model=echo(), form=form, journal=tmp_path)
    for scope in ("x", "y/z"):
        scoped.invoke({"messages": [], "scope": scope}, config(mergepoint_run_id="r"))
    assert {"r.x", "r.y.z"} < set(FileStore(tmp_path).runs())


def test_tasks_of_one_host_at_once_have_a_journal_each(tmp_path: Path, form: Form) -> None:
    """Three tasks of a thread run the graph at the same time, each on a message of its own."""
    all_there = threading.Barrier(3, timeout=30)

    def answer(messages: Sequence[BaseMessage]) -> str:
        all_there.wait()
        return f"to {messages[0].text}"

    model = ScriptedModel(default=answer)
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("fan", compile_graph(Step("A."), model=model, form=form, journal=tmp_path))
    topics = [HumanMessage(text, id=text) for text in ("x", "y", "z")]
    builder.add_conditional_edges(
        START, lambda _: [Send("fan", {"messages": [topic]}) for topic in topics], ["fan"]
    )
    found = builder.compile().invoke({"messages": []}, config(thread_id="t"))
    assert {"to x", "to y", "to z"} <= set(texts(found["messages"]))
    assert sorted(FileStore(tmp_path).runs()) == ["t.fan", "t.fan.2", "t.fan.3"]


def test_a_part_alone_has_a_journal_under_its_own_path(tmp_path: Path, form: Form) -> None:
    """A part keeps its path, also on record, and goes on like a whole tree."""
    for model in (echo(b="one", c="two"), echo()):
        part = compile_graph(tree(), model=model, form=form, journal=tmp_path, at="pipeline/sides")
        found = part.invoke({**GIVEN, "messages": []}, config(mergepoint_run_id="r1"))
    assert (texts(found["messages"])[1::2], model.calls) == (["one", "two"], [])
    assert FileStore(tmp_path).read("r1")[0].tree["path"] == "pipeline/sides"


def test_a_graph_takes_over_the_answers_of_another_run(tmp_path: Path, form: Form) -> None:
    """With reuse= only what asks something else is paid; with replay= nothing is."""
    model = echo()
    graph = compile_graph(tree(), model=model, form=form, journal=tmp_path)
    graph.invoke(GIVEN, config(mergepoint_run_id="r1"))
    edited, paid = with_overrides(tree(), {"d": {"prompt": "E."}}), echo()
    graph = compile_graph(edited, model=paid, form=form, journal=tmp_path, reuse="r1")
    found = graph.invoke(GIVEN, config(mergepoint_run_id="r2"))
    assert (called(paid), texts(found["messages"])) == (["d"], ["Hi.", "to E."])
    for source, place in (("r2", tmp_path), (tmp_path / "r2", None)):
        idle = echo()
        again = compile_graph(edited, model=idle, form=form, journal=place, replay=source)
        assert texts(again.invoke(GIVEN)["messages"]) == ["Hi.", "to E."]
        assert idle.calls == []
    strict = compile_graph(tree(), model=echo(), form=form, replay=tmp_path / "r2")
    with pytest.raises(ReplayMiss, match="pipeline/d asks something else"):
        strict.invoke(GIVEN)


@pytest.mark.parametrize("way", ["reuse", "replay"])
def test_a_run_that_takes_over_answers_goes_on_with_them(
    tmp_path: Path, form: Form, way: str
) -> None:
    """Killed in the middle it takes the rest from the other run too, and asks no model."""
    ChatRunner(echo(), form=form, journal=tmp_path).run(started(), tree())
    idle = ScriptedModel([])
    about: Any = {"form": form, way: tmp_path / "r1"}
    killing = KillingStore(FileStore(tmp_path), at=2)
    with pytest.raises(Killed):
        ChatRunner(idle, journal=killing, **about).run(started("r2"), tree())
    again = ChatRunner(idle, journal=tmp_path, **about).run(started("r2"), tree())
    assert again.text == "to D."
    graph = compile_graph(tree(), model=idle, journal=killing, **about)
    with pytest.raises(Killed):
        graph.invoke({**GIVEN, "messages": []}, config(mergepoint_run_id="r3"))
    graph = compile_graph(tree(), model=idle, journal=tmp_path, **about)
    found = graph.invoke({**GIVEN, "messages": []}, config(mergepoint_run_id="r3"))
    assert texts(found["messages"]) == ["to D."]
    records = FileStore(tmp_path).read("r3")[1]
    assert len({record.path for record in records}) == len(records)


def started(run_id: str = "r1") -> RunContext:
    """Return the context of a run."""
    return RunContext(run_id=run_id, inputs={"topic": "rain"})


def test_what_excludes_or_names_nothing_is_told(tmp_path: Path) -> None:
    """Two sources at once, an unknown run, and an id without a store are clear errors."""
    with pytest.raises(StepError, match="exclude each other"):
        compile_graph(tree(), model=echo(), reuse="r1", replay="r2")
    graph = compile_graph(tree(), model=echo(), replay="r1")
    with pytest.raises(JournalError, match="pass a run's folder, or pass journal= as well"):
        graph.invoke(GIVEN)
    graph = compile_graph(tree(), model=echo(), journal=tmp_path, reuse="r1")
    with pytest.raises(JournalError, match="there is no run 'r1'"):
        graph.invoke(GIVEN)
    graph = compile_graph(tree(), model=echo(), journal=tmp_path)
    with pytest.raises(JournalError, match="'a/b' isn't a run id"):
        graph.invoke(GIVEN, config(mergepoint_run_id="a/b"))


def test_a_graph_inside_of_a_call_is_in_the_same_journal(
    tmp_path: Path, form: Form, *, on_loop: bool
) -> None:
    """Whatever id the thread gives the run, a graph that a function runs has the same."""
    inner = compile_graph(Step("Inner.", name="inner"), model=echo(), form=form)
    outer = Block([Step("Outer.", name="outer"), Call(inner, name="graph", merge="all_messages")])
    model = echo()
    graph = compile_graph(outer, model=model, form=form, journal=tmp_path)
    found = invoked(graph, {"messages": []}, config(thread_id="t"), on_loop=on_loop)
    assert texts(found["messages"])[1::2] == ["to Outer.", "to Inner."]
    records = FileStore(tmp_path).read("t")[1]
    assert [(record.kind, record.key.full_path) for record in records] == [
        ("step", "pipeline/outer"),
        ("step", "pipeline/graph/inner"),
        ("call", "pipeline/graph"),
    ]


def test_paths_inside_of_a_call_begin_with_the_calls(form: Form, *, on_loop: bool) -> None:
    """A graph that a function runs has paths of its own, though its tree has those of the outer."""
    model = echo()
    inner = compile_graph(Block([Step("Inner.", name="same")]), model=model, form=form)
    graph = Call(inner, name="graph", merge="all_messages")
    outer = Loop(
        [Step("Outer.", name="same"), graph],
        name="pipeline",
        until=lambda ctx: False,
        max_iterations=2,
        on_exhausted="keep",
    )
    chat, ctx = ChatRunner(model, form=form), RunContext(run_id="r1")
    asyncio.run(chat.arun(ctx, outer)) if on_loop else chat.run(ctx, outer)
    transcript = ctx.transcript()
    replayed = transcript.replay().state
    assert replayed is not None
    assert texts(replayed.messages) == texts(ctx.messages)
    inside = "pipeline/iteration_02/graph/pipeline/same"
    assert inside in {record.path for record in transcript.records}
    used = transcript.usage_by_path
    assert used["pipeline/iteration_01"].calls == 2


def test_a_graph_inside_of_a_call_may_have_its_own_journal(
    tmp_path: Path, form: Form, *, on_loop: bool
) -> None:
    """Then the Call alone is in the journal around, and what the graph did in its own."""
    model = echo()
    inner = compile_graph(Step("Inner."), model=model, form=form, journal=tmp_path / "in")
    outer = Block([Step("Outer."), Call(inner, name="graph", merge="all_messages")])
    graph = compile_graph(outer, model=model, form=form, journal=tmp_path / "out")
    for _ in range(2):
        found = invoked(graph, {"messages": []}, config(mergepoint_run_id="r"), on_loop=on_loop)
    assert (texts(found["messages"])[1::2], len(model.calls)) == (["to Outer.", "to Inner."], 2)
    assert len(FileStore(tmp_path / "out").read("r")[1]) == 2
    (run_id,) = FileStore(tmp_path / "in").runs()
    (record,) = FileStore(tmp_path / "in").read(run_id)[1]
    assert (run_id, record.key.full_path) == ("r.pipeline.graph", "pipeline/graph/step_01")


def test_a_budget_counts_what_the_run_used_before(tmp_path: Path, form: Form) -> None:
    """A run that goes on has what is left of its budget."""
    about, steps = config(mergepoint_run_id="r1"), Block([Step("A."), Step("B."), Step("C.")])
    limits: Any = {"budget": Budget(calls=3), "form": form, "journal": tmp_path}
    first = compile_graph(steps, model=ScriptedModel(["1", TimeoutError("slow")]), **limits)
    with pytest.raises(TimeoutError):
        first.invoke({"messages": []}, about)
    rest = compile_graph(steps, model=ScriptedModel(["2", "3"]), **limits)
    with pytest.raises(Exception, match="3 calls, is not enough"):
        rest.invoke({"messages": []}, about)


@pytest.mark.parametrize("runner", RUNNERS, ids=str)
def test_a_runner_writes_each_turn(tmp_path: Path, runner: Runner) -> None:
    """Each turn of a conversation has a journal, and the context the records of all."""
    chat = ChatRunner(echo(), form=runner.form, journal=tmp_path)
    ctx = RunContext(run_id="r1", inputs={"topic": "rain"})
    for _ in range(2):
        asyncio.run(chat.arun(ctx, tree())) if runner.on_loop else chat.run(ctx, tree())
    assert sorted(FileStore(tmp_path).runs()) == ["r1", "r1.2"]
    assert [len(FileStore(tmp_path).read(run)[1]) for run in ("r1", "r1.2")] == [4, 4]
    assert len(ctx.steps) == 8
    assert ctx.usage.calls == 8


@pytest.mark.parametrize("runner", RUNNERS, ids=str)
def test_a_runner_goes_on_with_a_turn(tmp_path: Path, runner: Runner) -> None:
    """A turn that failed is gone on with by a context of the same id, and transcripts are whole."""
    failing = ChatRunner(echo(d=TimeoutError("slow")), form=runner.form, journal=tmp_path)
    before = RunContext(run_id="r1", inputs={"topic": "rain"})
    with pytest.raises(TimeoutError):
        failing.run(before, tree())
    rest = echo()
    chat = ChatRunner(rest, form=runner.form, journal=tmp_path)
    ctx = RunContext(run_id="r1", inputs={"topic": "rain"})
    asyncio.run(chat.arun(ctx, tree())) if runner.on_loop else chat.run(ctx, tree())
    assert (called(rest), ctx.text) == (["d"], "to D.")
    assert [step.path.rpartition("/")[2] for step in ctx.steps] == ["a", "b", "c", "d"]
    assert ctx.created_at == before.created_at
    assert len(ctx.transcript().failures) == 1


def test_events_and_steps_are_journaled_too(tmp_path: Path, form: Form) -> None:
    """Every way to run a tree with a runner writes the journal."""
    model = echo()
    chat = ChatRunner(model, form=form, journal=tmp_path)
    list(chat.events(RunContext(run_id="r1", inputs={"topic": "rain"}), tree()))
    assert chat.run_step(RunContext(run_id="r2"), Step("Say.")) == "to Say."

    async def flat() -> None:
        ctx = RunContext(run_id="r3", inputs={"topic": "rain"})
        async for _ in chat.aevents(ctx, tree()):
            pass

    asyncio.run(flat())
    store = FileStore(tmp_path)
    assert {run: len(store.read(run)[1]) for run in store.runs()} == {"r1": 4, "r2": 1, "r3": 4}


def test_a_runner_replays_offline(tmp_path: Path, form: Form) -> None:
    """A runner without a journal may take its answers from a run, turn by turn."""
    ChatRunner(echo(), form=form, journal=tmp_path).run(
        RunContext(run_id="r1", inputs={"topic": "rain"}), tree()
    )
    idle = echo()
    chat = ChatRunner(idle, form=form, replay=tmp_path / "r1")
    ctx = RunContext(inputs={"topic": "rain"})
    assert (chat.run(ctx, tree()).text, idle.calls) == ("to D.", [])
    assert {step.source for step in ctx.steps} == {"replayed"}


def test_a_function_runs_once_in_a_run_that_goes_on(tmp_path: Path, form: Form) -> None:
    """What a function gave is on record, and given again."""
    ran: list[str] = []

    def look(ctx: CallContext) -> str:
        ran.append(ctx.call_id)
        return "seen"

    node = Block([Call(look, capture_key="seen"), Step(Template("Say {{ seen }}."))])
    for answer in (TimeoutError("slow"), "said"):
        graph = compile_graph(node, model=ScriptedModel([answer]), form=form, journal=tmp_path)
        try:
            found = graph.invoke({"messages": []}, config(mergepoint_run_id="r1"))
        except TimeoutError:
            continue
    assert (ran, found["outputs"]) == (["r1/pipeline/call_01"], {"seen": "seen"})
    assert isinstance(found["messages"][-1], AIMessage)


@pytest.mark.parametrize("saved", [True, False], ids=["saver", "journal alone"])
def test_a_stopped_run_is_resumed_by_its_name(
    tmp_path: Path, form: Form, *, saved: bool, on_loop: bool
) -> None:
    """Through an error and two gates a run comes to its end, whether there is a checkpointer."""
    saver, about = InMemorySaver() if saved else None, config(thread_id="t")
    twice = Block([gated(), Gate(Step("More.", name="more"), name="last")], name="pipeline")
    models = [ScriptedModel(["1", TimeoutError("slow")]), ScriptedModel(["2", "3", "4"])]
    first, graph = (
        compile_graph(twice, model=model, form=form, journal=tmp_path, checkpointer=saver)
        for model in models
    )
    with pytest.raises(TimeoutError):
        invoked(first, {"messages": [HumanMessage("Hi.", id="h")]}, about, on_loop=on_loop)

    def go_on(answers: Any = None) -> Any:
        if on_loop:
            return asyncio.run(aresume_graph(graph, about, answers=answers))
        return resume_graph(graph, about, answers=answers)

    (asked,) = go_on()["__interrupt__"]
    assert asked.value["path"] == "pipeline/block_01/gate"
    (asked,) = go_on({"pipeline/block_01/gate": "approve"})["__interrupt__"]
    assert asked.value["path"] == "pipeline/last"
    for _ in range(2):
        found = go_on({"pipeline/last": "approve"})
        assert texts(found["messages"])[2::2] == ["1", "2", "3", "4"]
    assert [len(model.calls) for model in models] == [2, 3]


def test_the_last_turn_of_a_thread_is_resumed(tmp_path: Path, form: Form) -> None:
    """Without a checkpointer the turns of a thread are told by their journals."""
    for text in ("One.", "Two."):
        graph = compile_graph(Step("Say.", name="say"), model=echo(), form=form, journal=tmp_path)
        graph.invoke({"messages": [HumanMessage(text)]}, config(thread_id="t"))
    found = resume_graph(graph, config(thread_id="t"))
    assert texts(found["messages"]) == ["Two.", "Say.", "to Say."]
    found = resume_graph(graph, config(mergepoint_run_id="t"))
    assert texts(found["messages"])[0] == "One."


def test_what_cannot_be_resumed_is_told(tmp_path: Path) -> None:
    """A run without a name, without a journal, and one that never began are clear errors."""
    bare = compile_graph(Step("Say."), model=echo(), checkpointer=InMemorySaver())
    with pytest.raises(StepError, match="name the run to resume"):
        resume_graph(compile_graph(Step("Say."), model=echo(), journal=tmp_path), {})
    with pytest.raises(StepError, match="the run 't' is unknown"):
        resume_graph(bare, config(thread_id="t"))
    with pytest.raises(JournalError, match="there is no run 't'"):
        resume_graph(
            compile_graph(Step("Say."), model=echo(), journal=tmp_path), config(thread_id="t")
        )
