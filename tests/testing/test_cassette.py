"""Cassettes: a run recorded once, and replayed with the model switched off."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel

from mergepoint.core.errors import ReplayMiss, StepError
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.interpreter import interpret
from mergepoint.engine.run_tree import arun_generation, run_generation
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.file_journal import read_journal
from mergepoint.testing.cassettes import Cassette, CassetteError, in_order
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.testing.server import Body, ModelServer, ServerReply
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node
from mergepoint.tree.prompts import Template
from mergepoint.tree.transform import with_overrides


class Verdict(BaseModel):
    """A structured answer."""

    score: int


class Chat(TypedDict):
    """The state of a host."""

    messages: list[Any]


TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


def whole() -> Node:
    """Return a tree with threads, a nested block, a structured answer and one with tool calls."""
    voices = [Step(f"As {who}.", name=who, merge="none", capture_key=who) for who in "ab"]
    return Block(
        [
            Step(Template("Draft {{ topic }}."), name="draft", params={"tools": TOOLS}),
            Block(voices, name="voices", merge="none", parallel=True),
            Block(
                [
                    Step(Template("Join {{ a }} and {{ b }}."), name="join"),
                    Step("Judge.", name="judge", schema=Verdict, merge="none", capture_key="score"),
                ],
                name="end",
                merge="last_response",
            ),
        ],
        inputs=["topic"],
    )


def say(body: Body) -> ServerReply | str | dict[str, Any]:
    """Answer over HTTP as a model would: by what is asked."""
    prompt = str(body["messages"][-1]["content"])
    if prompt == "Judge.":
        return {"score": 7}
    if prompt.startswith("Draft"):
        call = {"name": "look_up", "args": {"word": "rain"}, "id": "call_1"}
        return ServerReply("Rain falls today.", tool_calls=[call])
    return f"So be it: {prompt}"


def client(url: str) -> ChatOpenAI:
    """Return the provider's own client, which tries once."""
    return ChatOpenAI(
        model="scripted",
        base_url=url,
        api_key="none needed",  # type: ignore[arg-type]
        max_retries=0,
        timeout=10,
        stream_usage=True,
    )


def told(ctx: RunContext) -> Any:
    """Return what a run left."""
    return [str(message.text) for message in ctx.messages], ctx.outputs


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the place of a cassette."""
    return tmp_path / "cassettes" / "one.jsonl"


@pytest.mark.parametrize("form", ["subgraphs", "fused"])
def test_a_graph_is_tested_without_the_model_it_was_recorded_with(path: Path, form: Form) -> None:
    """State, answers with tool calls, structured ones and usage replay with the server off."""
    with ModelServer(say) as server, Cassette(path) as cassette:
        url = server.url
        live = cassette.run(whole(), model=client(url), inputs={"topic": "rain"}, form=form)
    assert cassette.recording
    with Cassette(path) as cassette:
        off = cassette.run(whole(), model=client(url), inputs={"topic": "rain"}, form=form)
    assert not cassette.recording
    assert told(off) == told(live)
    assert off.outputs["score"] == {"score": 7}
    assert {record.source for record in cassette.records} == {"replayed"}
    found = {record.path: record.message for record in cassette.records}
    draft = found["pipeline/draft"]
    assert draft is not None
    assert draft.tool_calls == live.steps[0].message.tool_calls  # type: ignore[union-attr]
    assert draft.tool_calls[0]["args"] == {"word": "rain"}
    assert [step.usage for step in off.steps] == [step.usage for step in live.steps]
    assert len(server.log) == 5


def streamed(cassette: Cassette, url: str) -> list[AIMessageChunk]:
    """Return the pieces of a graph's answers as they came."""
    graph = compile_graph(whole(), model=client(url))
    stream: Any = graph.stream(
        {"messages": [], "inputs": {"topic": "rain"}},
        {"callbacks": [cassette.recorder]},
        stream_mode="messages",
        subgraphs=True,
    )
    return [chunk for _, (chunk, _) in stream if isinstance(chunk, AIMessageChunk) and chunk.text]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # langchain-openai's, when live
def test_a_stream_is_replayed_in_one_piece(path: Path) -> None:
    """Tokens that came one by one come as one chunk an answer, the same in all."""
    with ModelServer(say) as server, Cassette(path) as cassette:
        url = server.url
        pieces = streamed(cassette, url)
    with Cassette(path) as cassette:
        chunks = streamed(cassette, url)
    assert len(chunks) < len(pieces)
    drafts = [str(chunk.text) for chunk in chunks if str(chunk.id).endswith("pipeline/draft/1")]
    assert drafts == ["Rain falls today."]
    answers = {record.path: record.response for record in cassette.records}
    assert answers["pipeline/end/judge"] == '{"score":7}'


def test_a_replay_needs_no_listener(path: Path) -> None:
    """The proof that the server is off: the same run without a cassette fails."""
    with ModelServer(say) as server, Cassette(path) as cassette:
        url = server.url
        cassette.run(Block([Step("A.")]), model=client(url))
    with pytest.raises(Exception, match="onnection"):
        ChatRunner(client(url)).run(RunContext(), Block([Step("A.")]))
    with Cassette(path) as cassette:
        assert cassette.run(Block([Step("A.")]), model=client(url)).text == "So be it: A."


def one() -> Node:
    """Return a small tree."""
    return Block([Step("Draft.", name="draft"), Step("End.", name="end", system="Be brief.")])


def record(path: Path, answers: list[Any], tree: Node | None = None) -> None:
    """Record a run."""
    with Cassette(path, mode="rewrite") as cassette:
        cassette.run(tree or one(), model=ScriptedModel(answers))


SILENT = ScriptedModel([])


@pytest.mark.parametrize(
    ("change", "diff"),
    [
        ({"end": {"prompt": "Stop."}}, r"-End\.\n\+Stop\."),
        ({"end": {"system": "Be long."}}, r"-system: Be brief\.\n\+system: Be long\."),
        ({"end": {"temperature": 1}}, r'-params: \{\}\n\+params: \{"temperature": 1\}'),
        ({"end": {"schema": Verdict}}, "or its schema"),
    ],
)
def test_a_changed_request_is_shown(path: Path, change: dict[str, Any], diff: str) -> None:
    """A request that changed is a miss that says what changed, and how to record again."""
    record(path, ["x", "y"])
    cassette = Cassette(path, way_out="to record it: do so")
    with pytest.raises(ReplayMiss, match=rf"(?s)pipeline/end.*{diff}.*to record it: do so"):
        cassette.run(with_overrides(one(), change), model=SILENT)


def test_a_miss_that_somebody_caught_still_counts(path: Path) -> None:
    """Code under test that goes on after an error does not hide that a request changed."""
    record(path, ["x", "y"])
    cassette = Cassette(path, allow_unused=True)
    with pytest.raises(ReplayMiss):
        cassette.run(Block([Step("Other.", name="draft")]), model=SILENT)
    with pytest.raises(ReplayMiss, match=r"\+Other\."):
        cassette.finish()


def test_samples_stay_samples(path: Path) -> None:
    """Runs of one tree with one request get their own answers again, in their order."""
    tree = Block([Step("Say a number.", name="say")])
    with Cassette(path) as cassette:
        model = ScriptedModel(["1", "2", "3"])
        assert [cassette.run(tree, model=model).text for _ in range(3)] == ["1", "2", "3"]
    with Cassette(path) as cassette:
        assert [cassette.run(tree, model=SILENT).text for _ in range(3)] == ["1", "2", "3"]
    cassette = Cassette(path)
    for _ in range(3):
        cassette.run(tree, model=SILENT)
    with pytest.raises(ReplayMiss, match="made more often than recorded"):
        cassette.run(tree, model=SILENT)


def test_turns_of_one_context(path: Path) -> None:
    """A conversation that goes on is recorded and replayed turn by turn."""

    def talk(model: ScriptedModel, form: Form) -> list[str]:
        with Cassette(path) as cassette:
            ctx = cassette.context(messages=[("user", "Hello.")])
            for _ in range(2):
                ChatRunner(model, form=form).run(ctx, one())
        assert [step.key.run for step in ctx.steps] == ["cassette-1"] * 2 + ["cassette-1.2"] * 2
        return [str(message.text) for message in ctx.messages]

    assert talk(ScriptedModel(["a", "b", "c", "d"]), "subgraphs") == talk(SILENT, "fused")


def test_calls_of_a_compiled_graph_in_a_host(path: Path) -> None:
    """A compiled tree inside of a host graph replays under the path of its node."""

    def hosted(model: ScriptedModel) -> list[str]:
        host = StateGraph(Chat)
        host.add_node("inner", compile_graph(one(), model=model))
        host.add_edge(START, "inner")
        host.add_edge("inner", END)
        with Cassette(path) as cassette:
            done = host.compile().invoke({"messages": []}, {"callbacks": [cassette.recorder]})
        assert {found.key.full_path for found in cassette.records} == {
            "inner/pipeline/draft",
            "inner/pipeline/end",
        }
        return [str(message.text) for message in done["messages"]]

    assert hosted(ScriptedModel(["a", "b"])) == hosted(SILENT) == ["Draft.", "a", "End.", "b"]


def test_runs_with_a_journal_of_their_own(path: Path, tmp_path: Path) -> None:
    """A run that writes its own journal is recorded too, redacted in the cassette alone."""

    def generate(model: ScriptedModel, folder: str) -> Any:
        tree = Block([Step("Who?"), Step("Where?")])
        with Cassette(path, redact=hide) as cassette:
            return run_generation(tree, model=model, ctx=cassette.context(), runs=tmp_path / folder)

    live = generate(ScriptedModel(["Ada", "here, Ada"]), "live")
    assert read_journal(live.path_of_run / "journal.jsonl")[1][1].response == "here, Ada"
    assert generate(SILENT, "off").text == "here, X"


def test_a_recorder_keeps_its_journal(path: Path, tmp_path: Path) -> None:
    """A cassette's recorder as that of a run that opens a journal is refused, with the way out."""
    cassette = Cassette(path)
    with pytest.raises(CassetteError, match=r"ctx=cassette\.context\(\)"):
        cassette.recorder.journal = cassette.recorder.journal
    ctx = RunContext(recorder=cassette.recorder)
    assert ChatRunner(ScriptedModel(["a", "b"])).run(ctx, one()).text == "b"
    assert len(cassette.records) == 2


def test_other_engines_and_loops(path: Path, tmp_path: Path) -> None:
    """What one engine recorded, the interpreter and an event loop replay."""
    record(path, ["a", "b"])
    with Cassette(path) as cassette:
        state = interpret(one(), model=SILENT, recorder=cassette.recorder)
    assert str(state.messages[-1].text) == "b"
    with Cassette(path) as cassette:
        ctx = cassette.context()
        done = asyncio.run(arun_generation(one(), model=SILENT, ctx=ctx, runs=tmp_path))
    assert done.text == "b"


def test_a_refused_answer_is_refused_again(path: Path) -> None:
    """An answer that a step cannot use leads to the same error in a replay."""
    said = AIMessage("", tool_calls=[{"name": "look_up", "args": {}, "id": "1"}])
    for model in (ScriptedModel([said]), SILENT):
        with Cassette(path) as cassette, pytest.raises(StepError, match="tool calls and no text"):
            cassette.run(Block([Step("A.")]), model=model)


def test_a_failure_of_the_provider_is_not_recorded(path: Path) -> None:
    """A call that failed without an answer could not be replayed, so nothing is written."""
    cassette = Cassette(path)
    with pytest.raises(TimeoutError):
        cassette.run(one(), model=ScriptedModel(["a", TimeoutError("slow")]))
    with pytest.raises(CassetteError, match=r"pipeline/end \(TimeoutError\)"):
        cassette.finish()
    assert not path.exists()


def record_and_fail(path: Path) -> None:
    """Record a run anew in a test that fails after it."""
    with Cassette(path, mode="rewrite") as cassette:
        cassette.run(one(), model=ScriptedModel(["c", "d"]))
        raise ZeroDivisionError


def test_an_error_in_the_body_leaves_nothing(path: Path) -> None:
    """A recording whose test failed is not written, and one that was there stays."""
    with pytest.raises(ZeroDivisionError):
        record_and_fail(path)
    assert not path.parent.exists()
    record(path, ["a", "b"])
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError):
        record_and_fail(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_answers_left_over(path: Path) -> None:
    """Answers that no call asked for fail the replay, unless they are allowed."""
    record(path, ["a", "b"])
    part = Block([Step("Draft.", name="draft")])
    cassette = Cassette(path)
    cassette.run(part, model=SILENT)
    with pytest.raises(CassetteError, match=r"1 answers in .* were not used: pipeline/end"):
        cassette.finish()
    with Cassette(path, allow_unused=True) as cassette:
        cassette.run(part, model=SILENT)


def test_no_call_at_all(path: Path) -> None:
    """A recording that heard nothing is told: the recorder was given to no graph."""
    with pytest.raises(CassetteError, match=r"no call reached.*cassette\.recorder"):
        Cassette(path).finish()
    with Cassette(path, allow_unused=True):
        pass
    assert read_journal(path)[1] == ()


def chatting(model: ScriptedModel) -> Any:
    """Return a graph that calls a model in a function of its own."""

    def talk(state: Chat) -> Any:
        return {"messages": [model.invoke("Hi.")]}

    host = StateGraph(Chat)
    host.add_node("talk", talk)
    host.add_edge(START, "talk")
    return host.compile()


def test_calls_that_are_no_steps_are_refused(path: Path) -> None:
    """A call that no cassette can answer is told when it is recorded, and not made in a replay."""
    cassette = Cassette(path)
    chatting(ScriptedModel(["x"])).invoke({"messages": []}, {"callbacks": [cassette.recorder]})
    with pytest.raises(CassetteError, match="talk: a chat model is called there"):
        cassette.finish()
    record(path, ["a", "b"])
    idle = ScriptedModel(["x"])
    with pytest.raises(CassetteError, match="talk: a chat model is called there"):
        chatting(idle).invoke({"messages": []}, {"callbacks": [Cassette(path).recorder]})
    assert idle.calls == []


def hide(text: str) -> str:
    """Take a name out of a text."""
    return text.replace("Ada", "X").replace("Grace", "X")


def test_redaction(path: Path) -> None:
    """No text of the file holds what was redacted, and what follows from an answer is found."""
    tree = Block(
        [
            Step(
                Template("Greet {{ who }}."), name="greet", system="You are Ada.", capture_key="k"
            ),
            Step(Template("Again: {{ k }}"), name="again", params={"user": "Ada"}),
            Step("Score.", schema=Verdict),
        ],
        inputs=["who"],
    )
    said = AIMessage(
        [{"type": "text", "text": "Hello Ada"}],
        additional_kwargs={"deep": ["Ada"]},
        tool_calls=[{"name": "call", "args": {"who": "Ada"}, "id": "1"}],
    )
    with Cassette(path, redact=hide) as cassette:
        model = ScriptedModel([said, "And again, Ada", {"score": 1}])
        live = cassette.run(tree, model=model, inputs={"who": "Ada"})
    assert live.text == '{"score":1}'
    assert "Ada" in str(live.messages)
    assert b"Ada" not in path.read_bytes()
    assert b"Hello X" in path.read_bytes()
    with Cassette(path, redact=hide) as cassette:
        off = cassette.run(tree, model=SILENT, inputs={"who": "Grace"})
    assert str(off.messages[3].text) == "And again, X"
    with pytest.raises(ReplayMiss, match="Greet X and Bob"):
        Cassette(path, redact=hide).run(tree, model=SILENT, inputs={"who": "Ada and Bob"})


def test_keys_are_masked_without_a_hook(path: Path) -> None:
    """A cassette is a journal like others: known forms of keys never reach it, and it replays."""
    key = "sk-proj-Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8"
    tree = Block([Step(f"Try {key}.", name="try"), Step("Why?", name="why")])
    with Cassette(path) as cassette:
        cassette.run(tree, model=ScriptedModel([f"{key} fails", "It is old."]))
    assert key.encode() not in path.read_bytes()
    with Cassette(path) as cassette:
        off = cassette.run(tree, model=SILENT)
    assert [str(message.text) for message in off.messages][1:] == [
        "[masked] fails",
        "Why?",
        "It is old.",
    ]


def test_a_redaction_that_redacts_itself(path: Path) -> None:
    """A hook that changes its own output would make a replay miss, and is refused."""
    cassette = Cassette(path, redact=lambda text: text + ".")
    with pytest.raises(CassetteError, match="changes its own output"):
        cassette.run(one(), model=ScriptedModel(["a", "b"]))


def test_recorded_again_the_file_is_the_same(path: Path) -> None:
    """Times, run ids and the order of calls side by side leave no trace in the file."""
    with ModelServer(say) as server:
        for _ in range(2):
            with Cassette(path, mode="rewrite") as cassette:
                graph = compile_graph(whole(), model=client(server.url))
                given = {"messages": [], "inputs": {"topic": "rain"}}
                graph.invoke(given, {"callbacks": [cassette.recorder]})
                before, now = path.read_bytes() if path.exists() else b"", path
    assert now.read_bytes() == before
    assert b"cassette" in before.splitlines()[0]


def test_one_changed_answer_changes_one_line(path: Path) -> None:
    """A recording with another answer at the end differs in that line alone."""
    record(path, ["a", "b"])
    before = path.read_bytes().splitlines()
    record(path, ["a", "c"])
    after = path.read_bytes().splitlines()
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, True, False]


def call(path: str, response: str) -> CallRecord:
    """Return a record."""
    return CallRecord(key=CallKey("r", "", path), prompt="?", response=response)


def test_the_order_of_the_file_is_kept() -> None:
    """Calls keep their places of before, new ones stand where they came, samples in their order."""
    before = [call("b", ""), call("a", ""), call("a", ""), call("c", "")]
    after = [call("a", "1"), call("n", ""), call("a", "2"), call("b", ""), call("a", "3")]
    found = [(one.path, one.response) for one in in_order(after, before)]
    assert found == [("b", ""), ("a", "1"), ("n", ""), ("a", "2"), ("a", "3")]


def test_a_cassette_that_was_changed_by_hand(path: Path) -> None:
    """A line that does not fit its checksum is named, with the way to record again."""
    record(path, ["a", "b"])
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"z"'))
    with pytest.raises(JournalError, match=r"(?s)line 2.*mode='rewrite'"):
        Cassette(path)
    record(path, ["a", "b"])


def test_an_unknown_mode(path: Path) -> None:
    """The modes are listed."""
    with pytest.raises(ValueError, match="'once', 'replay', 'rewrite', not 'always'"):
        Cassette(path, mode="always")  # type: ignore[arg-type]


def test_nothing_is_recorded_in_a_replay(path: Path) -> None:
    """A missing file is an error before a model is asked."""
    with pytest.raises(CassetteError, match=r"the cassette .*mode='rewrite'"):
        Cassette(path, mode="replay")
