"""Spans of recorded runs, as a collector on loopback received them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.otel.collector import ERROR, Collector, collecting
from tests.otel.trees import every_kind, model

from mergepoint import Block, Call, GateOpen, RunContext, Step, compile_graph, run
from mergepoint.core.errors import MergepointError
from mergepoint.core.paths import ancestors
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal import CallRecord, FileStore, Transcript, read_journal, transcript_of
from mergepoint.otel import CONVENTIONS, ExportError, export_run, trace_id
from mergepoint.report.transcript_index import TranscriptIndex
from mergepoint.testing import Answer, Killed, KillingStore, ScriptedModel
from mergepoint.testing.random_trees import WITH_TOOLS, Case, seeded_case
from mergepoint.testing.tree_functions import TableModel

APPROVE = {"write/review": "approve"}
SECRET = "sk-abcdefghijklmnop123456"  # the form of a key, and none
SEEDS = 60


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Serve a collector."""
    with collecting() as found:
        yield found


def requests(transcript: Transcript) -> list[CallRecord]:
    """Return the requests to models, failed ones included."""
    return [
        one
        for one in transcript.everything
        if one.kind in ("step", "inner") and one.model != "note" and not one.begun
    ]


def check(collector: Collector, transcript: Transcript) -> None:
    """Assert that the spans are one tree, with the paths, counts and sums of the transcript."""
    spans = {span.span_id: span for span in collector.spans}
    assert len(spans) == len(collector.spans)
    assert {span.trace_id for span in spans.values()} == {trace_id(transcript.run_id)}
    assert collector.root.attributes["mergepoint.run_id"] == transcript.run_id
    for span in spans.values():
        if span.parent_id:
            parent = spans[span.parent_id]
            assert parent.path in (span.path, *ancestors(span.path)[:1])
            assert parent.start <= span.start <= span.end <= parent.end
    chats = collector.of("chat")
    asked = requests(transcript)
    assert Counter(span.path for span in chats) == Counter(one.path for one in asked)
    assert Counter(span.start for span in chats) == Counter(
        round(one.started * 1e6) * 1000 for one in asked
    )
    usage = transcript.usage
    assert collector.total("gen_ai.usage.input_tokens") == usage["input_tokens"]
    assert collector.total("gen_ai.usage.output_tokens") == usage["output_tokens"]
    assert collector.root.attributes["mergepoint.run.input_tokens"] == usage["input_tokens"]


def test_spans_of_a_tree_as_they_arrive(collector: Collector) -> None:
    """A tree with a loop, parallel children, a gate, a function and tools arrives as one trace."""
    result = run(every_kind(), {}, model=model(), answerer=APPROVE)
    assert export_run(result, collector.url) == len(collector.spans)
    check(collector, result.transcript)
    for path in ("/api/otel", "/v1/traces"):
        export_run(result, f"{collector.url}{path}")
    expected = ["/v1/traces", "/api/otel/v1/traces", "/v1/traces"]
    assert [header["path"] for header in collector.headers] == expected
    assert collector.batches[0] == collector.batches[1] == collector.batches.pop()
    assert collector.batches.pop()
    root = collector.root
    assert (root.name, root.operation) == ("invoke_workflow write", "invoke_workflow")
    assert root.resource["service.name"] == "mergepoint"
    assert root.schema == f"https://opentelemetry.io/schemas/{CONVENTIONS}"
    kinds = {
        span.path: span.attributes["mergepoint.kind"]
        for span in collector.spans
        if span.operation != "chat"
    }
    assert kinds == {
        "write": "block",
        "write/rounds": "loop",
        "write/rounds/iteration_01": "iteration",
        "write/rounds/iteration_02": "iteration",
        "write/both": "block",
        "write/review": "gate",
        "write/inside": "call",
        "write/sum": "step",
        "write/sum/tool_01": "tool",
    }
    tool = collector.at("write/sum/tool_01")
    assert (tool.name, tool.operation) == ("execute_tool add", "execute_tool")
    assert collector.at("write/review").attributes["mergepoint.decision"] == "approve"
    assert collector.at("write/draft").name == "chat scripted"


def test_merges_and_fates_are_those_of_the_run(collector: Collector) -> None:
    """Each answer has the merge of its step, and the fate that the report finds for it."""
    result = run(every_kind(), {}, model=model(), answerer=APPROVE)
    export_run(result, collector.url)
    index = TranscriptIndex(result.transcript)
    fates = {
        path: view.fate.end for path in index.paths if (view := index.call(path)).fate is not None
    }
    found = {
        span.path: span.attributes["mergepoint.fate"]
        for span in collector.spans
        if "mergepoint.fate" in span.attributes
    }
    assert found == fates
    assert fates["write/both/a"] == "dropped"
    merges = {span.path: span.attributes.get("mergepoint.merge") for span in collector.spans}
    assert merges["write/rounds"] == "last_response"
    assert merges["write/both/a"] == "none"
    assert collector.at("write/both/b").attributes["mergepoint.capture"] == "b"


def test_a_failed_attempt_is_a_span_with_an_error(collector: Collector) -> None:
    """A blank answer that was asked for again is a span of its own, and the run succeeded."""
    result = run(every_kind(), {}, model=model(), answerer=APPROVE)
    export_run(result, collector.url)
    first, second = sorted(
        (span for span in collector.spans if span.path == "write/end"), key=lambda one: one.start
    )
    assert (first.status, first.attributes["error.type"]) == (ERROR, "AnswerError")
    assert first.attributes["mergepoint.attempt"] == 1
    assert (second.status, second.attributes["mergepoint.attempt"]) == (0, 2)
    assert collector.root.status == 0
    assert collector.root.attributes["mergepoint.status"] == "done"


def test_exporting_twice_gives_the_same_ids(tmp_path: Path) -> None:
    """The ids follow from the record: of a result, its folder, its id, and its transcript alike."""
    result = run(every_kind(), {}, model=model(), answerer=APPROVE, runs=tmp_path)
    assert result.path_of_run is not None
    header, records = read_journal(result.path_of_run / "journal.jsonl")
    found = []
    for target in (
        result,
        result.path_of_run,
        str(result.path_of_run),
        result.run_id,
        transcript_of(header, records),
    ):
        with collecting() as collector:
            export_run(target, collector.url, runs=tmp_path)
            found.append(collector.spans)
    assert all(one == found[0] for one in found)


def test_no_content_unless_asked_for(collector: Collector) -> None:
    """Neither prompts nor answers, arguments nor errors leave the machine by default."""
    result = run(every_kind(), {}, model=model(), answerer=APPROVE)
    export_run(result, collector.url)
    told = json.dumps([dict(span.attributes) for span in collector.spans])
    for text in ("Draft.", "Some words.", "The end.", "Ask.", '"a": 1', "blank"):
        assert text not in told
    assert {span.message for span in collector.spans} == {""}


def test_content_follows_the_conventions(collector: Collector) -> None:
    """With content each request has the messages that it sent and the answer, as JSON parts."""
    result = run(every_kind(), "Hello.", model=model(), answerer=APPROVE)
    export_run(result, collector.url, content=True)
    draft = collector.at("write/draft").attributes
    assert json.loads(draft["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Hello."}]},
        {"role": "user", "parts": [{"type": "text", "content": "Draft."}]},
    ]
    assert json.loads(draft["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": "Some words."}],
            "finish_reason": "stop",
        }
    ]
    tool = collector.at("write/sum/tool_01").attributes
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"a": 1, "b": 2}
    assert json.loads(tool["gen_ai.tool.call.result"]) == "3"
    assert "The end." in collector.root.attributes["gen_ai.output.messages"]
    assert {span.message for span in collector.spans if span.status == ERROR} != {""}


def test_a_recipe_has_spans_of_stages_and_things(collector: Collector) -> None:
    """Stages and Things of a recipe are spans, also of work without a model."""
    result = run("best_of_n", ["A title."], model="offline")
    export_run(result, collector.url)
    check(collector, result.transcript)
    kinds = Counter(span.attributes["mergepoint.kind"] for span in collector.spans)
    assert kinds == {"recipe": 1, "stage": 6, "thing": 9, "step": 8}
    made = collector.at("best_of_n/stage_3/synthesize/best_of_n.stage_3.synthesize#0").attributes
    assert made["mergepoint.parents"] == ["0.0", "0.1", "0.2", "0.3"]
    assert "content" in made["mergepoint.wrote"]


def test_a_failed_run_marks_the_way_to_its_failure(collector: Collector, tmp_path: Path) -> None:
    """The failed call and all nodes around it have the error; what succeeded has none."""
    tree = Block(
        [Step("One.", name="one"), Block([Step("Two.", name="two")], name="part")], name="work"
    )
    broken = ScriptedModel(by_path={"work/part/two": ConnectionError("gone")}, default="Fine.")
    with pytest.raises(ConnectionError):
        run(tree, {}, model=broken, runs=tmp_path, run_id="r1")
    export_run("r1", collector.url, runs=tmp_path)
    header, records = read_journal(tmp_path / "r1" / "journal.jsonl")
    check(collector, transcript_of(header, records))
    assert {span.path for span in collector.spans if span.status == ERROR} == {
        "work",
        "work/part",
        "work/part/two",
    }
    assert collector.at("work/part/two").attributes["error.type"] == "ConnectionError"
    # A journal has the calls only: why the run ended is in its transcript.
    assert collector.root.attributes["error.type"] == "ConnectionError"
    assert collector.root.attributes["mergepoint.status"] == "failed"


@pytest.mark.parametrize("at", [1, 3, 6, 9])
def test_a_killed_run_and_its_resumed_end_are_one_trace(at: int, tmp_path: Path) -> None:
    """A killed run can be exported; after a resume its spans come again with the same ids."""
    with pytest.raises(Killed):
        run(
            every_kind(),
            {},
            model=model(),
            answerer=APPROVE,
            runs=KillingStore(FileStore(tmp_path), at=at),
            run_id="r1",
        )
    with collecting() as killed:
        export_run("r1", killed.url, runs=tmp_path)
    check(killed, transcript_of(*FileStore(tmp_path).read("r1")))
    assert killed.root.attributes["mergepoint.status"] == "unfinished"
    assert killed.root.attributes["error.type"] == "Unfinished"
    result = run(every_kind(), model=model(), answerer=APPROVE, runs=tmp_path, resume="r1")
    with collecting() as resumed:
        export_run("r1", resumed.url, runs=tmp_path)
    check(resumed, result.transcript)
    assert resumed.root.attributes["mergepoint.status"] == "done"
    ids = [{span.span_id for span in one.spans} for one in (killed, resumed)]
    assert ids[0] < ids[1]


def test_reused_answers_cost_nothing(collector: Collector, tmp_path: Path) -> None:
    """A replayed run has the same tree of spans, marked as reused, and no token usage."""
    run(every_kind(), {}, model=model(), answerer=APPROVE, runs=tmp_path, run_id="r1")
    result = run(
        every_kind(), {}, model=model(), answerer=APPROVE, runs=tmp_path, replay="r1", run_id="r2"
    )
    export_run("r2", collector.url, runs=tmp_path)
    check(collector, result.transcript)
    assert {span.attributes["mergepoint.source"] for span in collector.of("chat")} == {"reused"}
    assert collector.total("gen_ai.usage.input_tokens") == 0


def test_a_waiting_run_is_no_failure(collector: Collector, tmp_path: Path) -> None:
    """A run that waits at a gate has no error, and its gate waits."""
    with pytest.raises(GateOpen):
        run(every_kind(), {}, model=model(), runs=tmp_path, run_id="r1")
    export_run("r1", collector.url, runs=tmp_path)
    assert collector.root.status == 0
    assert collector.root.attributes["mergepoint.status"] == "waiting"
    assert collector.at("write/review").attributes["mergepoint.decision"] == "waiting"


def test_a_run_without_calls_is_one_span(collector: Collector) -> None:
    """A run that was refused before its first call has a span of its own."""
    context = RunContext()
    with pytest.raises(MergepointError):
        ChatRunner("offline").run(context, Block([Step("{{ x }}")], name="empty"))
    transcript = context.transcript()
    export_run(transcript, collector.url)
    assert collector.root.path == "empty"
    assert collector.root.status == ERROR


def test_a_single_step_is_a_run_with_one_request(collector: Collector) -> None:
    """A tree that is one step has the span of the run, and in it that of the request."""
    result = run(Step("Hi.", name="hi"), {}, model="offline")
    export_run(result, collector.url)
    assert {span.path for span in collector.spans} == {"hi"}
    (chat,) = collector.of("chat")
    assert chat.parent_id == collector.root.span_id


def test_turns_of_a_conversation_are_linked(collector: Collector) -> None:
    """The runs of one session have its id as their conversation, or the one that is given."""
    for number in (1, 2):
        result = run(Step("Hi.", name="hi"), {}, model="offline", run_id=f"session.{number}")
        export_run(result, collector.url)
    assert {span.attributes["gen_ai.conversation.id"] for span in collector.spans} == {"session"}
    collector.batches.clear()
    export_run(result, collector.url, conversation="c7")
    assert {span.attributes["gen_ai.conversation.id"] for span in collector.spans} == {"c7"}


def test_secrets_stay_masked(collector: Collector, tmp_path: Path) -> None:
    """A key in a prompt, an answer or an error is masked, from memory as from a journal."""
    tree = Block([Step(f"My key is {SECRET}.", name="one"), Step("Two.", name="two")], name="w")

    def script() -> ScriptedModel:
        return ScriptedModel(
            by_path={"w/one": f"Yours: {SECRET}", "w/two": RuntimeError(f"no: {SECRET}")}
        )

    context = RunContext(run_id="memory")
    with pytest.raises(RuntimeError):
        ChatRunner(script()).run(context, tree)
    export_run(context.transcript(), collector.url, content=True)
    with pytest.raises(RuntimeError):
        run(tree, {}, model=script(), runs=tmp_path, run_id="journal")
    export_run("journal", collector.url, runs=tmp_path, content=True)
    told = [str(dict(span.attributes)) + span.message for span in collector.spans]
    assert not any(SECRET in one for one in told)
    assert any("My key is [masked]" in one for one in told)
    assert any("no: [masked]" in one for one in told)


def test_a_hook_changes_what_is_sent(collector: Collector) -> None:
    """The redact hook sees every text of the content."""
    result = run(Step("Alice asks.", name="one"), {}, model="offline")
    hide = lambda text: text.replace("Alice", "[name]")  # noqa: E731
    export_run(result, collector.url, content=True, redact=hide)
    told = str([dict(span.attributes) for span in collector.spans])
    assert "[name] asks." in told
    assert "Alice" not in told


def test_hostile_text_arrives_as_it_is(collector: Collector) -> None:
    """Script tags, escapes, direction marks and lone surrogates cost no span."""
    hostile = "</script><b>\x1b[2J\u202e"
    tree = Block([Step(hostile, name="<b>"), Step("Two.", name="\u202eevil")], name="w")
    result = run(tree, {}, model=ScriptedModel(default=Answer(hostile + "\ud800")))
    export_run(result, collector.url, content=True)
    assert {span.path for span in collector.spans} == {"w", "w/<b>", "w/\u202eevil"}
    assert (
        hostile
        in json.loads(collector.root.attributes["gen_ai.output.messages"])[0]["parts"][0]["content"]
    )


@pytest.mark.campaign
def test_a_large_run_comes_in_batches(collector: Collector) -> None:
    """A request holds at most 512 spans and 2 MB of text, and nothing is lost between them."""
    tree = Block([Step("x", name=f"s{n:03}", merge="none") for n in range(700)], name="w")
    result = run(tree, {}, model="offline")
    export_run(result, collector.url)
    assert [len(batch) for batch in collector.batches] == [512, 189]
    check(collector, result.transcript)
    collector.batches.clear()
    tree = Block([Step("x", name=f"s{n}", merge="none") for n in range(6)], name="w")
    result = run(tree, {}, model=ScriptedModel(default="y" * 900_000))
    export_run(result, collector.url, content=True)
    assert [len(batch) for batch in collector.batches] == [3, 2, 2]


def test_a_collector_that_refuses_is_an_error() -> None:
    """An address that is none, and a collector that says no, are named in the error."""
    result = run(Step("Hi.", name="hi"), {}, model="offline")
    with collecting(answer=400) as collector, pytest.raises(ExportError, match=r"refused .*400"):
        export_run(result, collector.url)
    with pytest.raises(ExportError, match="isn't the URL of a collector"):
        export_run(result, "localhost:4318")


def test_tools_that_fail_are_errors_of_their_span(collector: Collector) -> None:
    """A tool that raised has an error, although its model was told and the run went on."""

    def burn() -> str:
        """Raise."""
        raise ValueError("hot")

    calls = Answer("", tool_calls=[{"name": "burn", "args": {}}])
    script = ScriptedModel(by_path={"t": [calls, "Too hot."]})
    result = run(Step("Burn.", name="t", tools=[burn]), {}, model=script)
    export_run(result, collector.url)
    tool = collector.at("t/tool_01")
    assert (tool.status, bool(tool.attributes["error.type"])) == (ERROR, True)
    assert collector.root.status == 0


def test_calls_below_a_function_are_inside_its_span(collector: Collector) -> None:
    """A recipe as a function of a tree has its calls below the function's span."""
    graph = compile_graph("best_of_n", model="offline")
    tree = Block([Call(graph, name="best", args={"items": ["A"]}, merge="none")], name="w")
    result = run(tree, {}, model="offline")
    export_run(result, collector.url)
    check(collector, result.transcript)
    assert len(collector.of("chat")) == 8


@pytest.mark.parametrize("seed", range(SEEDS))
def test_spans_of_random_trees(seed: int, collector: Collector) -> None:
    """Any run, finished or failed, is one tree of spans with the transcript's counts and sums."""
    case = seeded_case(seed, kinds=WITH_TOOLS)
    transcript = _transcript_of(case)
    if transcript is None:
        pytest.skip("the case has no run")
    export_run(transcript, collector.url)
    check(collector, transcript)


def _transcript_of(case: Case) -> Transcript | None:
    context = RunContext(inputs=dict(case.inputs), messages=list(case.messages))
    with suppress(Exception):  # drawn trees fail in every way
        ChatRunner(TableModel(table=case.answers)).run(context, case.tree)
    return context.transcript() if context.turns else None
