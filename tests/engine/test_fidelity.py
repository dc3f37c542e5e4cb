"""The assistant message in the state is the provider's, on every engine and after every resume."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel
from tests.engine.engines import RUN, Engine

from mergepoint.core.errors import StepError
from mergepoint.core.merge import State
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import run_generation
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.file_journal import FileStore
from mergepoint.journal.replay import replay
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Gate, Node


class Brief(BaseModel):
    """A structured answer."""

    subject: str
    light: str


class Detail:
    """An object that a client library leaves in the metadata of an answer."""

    def __str__(self) -> str:
        return "detail"


THOUGHT = {"type": "reasoning", "reasoning": "The sea is wide.", "signature": "s1"}
CITED: dict[str, Any] = {
    "type": "text",
    "text": "The sea is calm.",
    "annotations": [{"type": "citation", "url": "https://example.org", "start_index": 4}],
}
USAGE: Any = {
    "input_tokens": 3,
    "output_tokens": 5,
    "total_tokens": 8,
    "output_token_details": {"reasoning": 4},
}
CALL: Any = {"name": "look_up", "args": {"place": ["sea"]}, "id": "c1", "type": "tool_call"}


def answer(**changed: Any) -> AIMessage:
    """Return an answer with everything that providers send."""
    fields: dict[str, Any] = {
        "content": [dict(THOUGHT), {**CITED}],
        "id": "provider-1",
        "name": "writer",
        "usage_metadata": {**USAGE},
        "response_metadata": {"finish_reason": "stop", "model_name": "m-1", "logprobs": None},
        "additional_kwargs": {"reasoning_content": "The sea is wide.", "refusal": None},
        "tool_calls": [{**CALL}],
    }
    return AIMessage(**{**fields, **changed})


def whole(message: BaseMessage, **changed: Any) -> dict[str, Any]:
    """Return all fields of a message, the id left out."""
    fields = {**message.model_dump(), **changed}
    del fields["id"]
    return fields


def test_the_merged_message_is_the_providers_but_for_its_id(engine: Engine) -> None:
    """Content blocks, usage, metadata, reasoning, name, citations and tool calls are kept."""
    end = engine(Step("Describe the sea.", name="draft"), ScriptedModel([answer()]))
    made = end.messages[-1]
    assert whole(made) == whole(answer())
    assert made.id == f"{RUN}/draft/1"
    assert type(made) is AIMessage


@pytest.mark.parametrize("merge", ["all_messages", "last_response"])
def test_containers_merge_the_whole_message(engine: Engine, merge: Any) -> None:
    """What passes the exits of a block in a block, and of a parallel block, loses nothing."""
    inner = Block([Step("One."), Step("Two.", name="two")], merge=merge)
    beside = Block([inner, Step("Three.", merge="none")], parallel=True, merge=merge)
    model = ScriptedModel(default=answer())
    end = engine(Block([beside]), model)
    assert end.messages[-1].id == f"{RUN}/pipeline/block_01/block_01/two/1"
    assert whole(end.messages[-1]) == whole(answer())


def test_the_next_call_receives_the_whole_message(engine: Engine) -> None:
    """A model is sent its earlier answer with reasoning, name and tool calls."""
    model = ScriptedModel([answer(), "Done."])
    engine(Block([Step("One."), Step("Two.")]), model)
    assert whole(model.calls[-1].messages[1]) == whole(answer())


def test_text_beside_tool_calls_is_no_reason_to_drop_them(engine: Engine) -> None:
    """Valid and invalid tool calls beside a text are in the state."""
    invalid: Any = {"name": "f", "args": "{", "id": "c2", "error": "no JSON"}
    said = AIMessage(
        "One moment.", tool_calls=[CALL], invalid_tool_calls=[{**invalid, "type": None}]
    )
    made = engine(Step("Go on."), ScriptedModel([said])).messages[-1]
    assert isinstance(made, AIMessage)
    assert [one["name"] for one in made.tool_calls] == ["look_up"]
    assert [one["name"] for one in made.invalid_tool_calls] == ["f"]


class Client(BaseChatModel):
    """A model whose client leaves objects of its own in an answer, and answers with a chunk."""

    chunk: bool = False

    @property
    def _llm_type(self) -> str:
        return "client"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        message: AIMessage = AIMessageChunk(content="Calm.", id="p1", response_metadata={"at": 1})
        if not self.chunk:
            message = answer(additional_kwargs={"parsed": Brief(subject="sea", light="dim")})
            message.response_metadata["objects"] = (Detail(), float("inf"))
        return ChatResult(generations=[ChatGeneration(message=message)])


def test_objects_of_a_client_library_become_plain_data(engine: Engine) -> None:
    """A message holds what a journal can hold, so that a resumed run has the same one."""
    made = engine(Step("Go on."), Client()).messages[-1]
    assert made.additional_kwargs == {"parsed": {"subject": "sea", "light": "dim"}}
    assert made.response_metadata["objects"] == ["detail", "inf"]


def test_a_model_that_answers_with_a_chunk_leaves_a_message(engine: Engine) -> None:
    """The state holds whole messages, whatever class a model answers with."""
    made = engine(Step("Go on."), Client(chunk=True)).messages[-1]
    assert type(made) is AIMessage
    assert (made.text, made.response_metadata, made.id) == ("Calm.", {"at": 1}, f"{RUN}/step_01/1")


@pytest.mark.parametrize("on_loop", [False, True])
def test_a_streamed_answer_is_whole(form: Form, *, on_loop: bool) -> None:
    """What the pieces of a stream add up to is in the state: usage, metadata, tool calls."""
    tree = Step("Describe the sea.")
    graph = compile_graph(tree, model=ScriptedModel([answer()]), form=form)
    config: Any = {"configurable": {"mergepoint_run_id": RUN}}
    given: Any = {"messages": []}

    async def last() -> Any:
        found: Any = None
        async for mode, chunk in graph.astream(given, config, stream_mode=["messages", "values"]):
            found = chunk if mode == "values" else found
        return found

    if on_loop:
        state = asyncio.run(last())
    else:
        modes: Any = ["messages", "values"]
        state = [c for m, c in graph.stream(given, config, stream_mode=modes) if m == "values"][-1]
    made = state["messages"][-1]
    assert [one["type"] for one in made.content] == ["reasoning", "text"]
    assert (made.usage_metadata, made.name) == (USAGE, "writer")
    assert made.response_metadata == answer().response_metadata
    assert made.tool_calls == [CALL]


STRUCTURED = {
    "a tool call": AIMessage(
        [THOUGHT, {"type": "tool_use", "id": "c1", "name": "Brief", "input": {}}],
        tool_calls=[{**CALL, "name": "Brief", "args": {"subject": "sea", "light": "dim"}}],
        additional_kwargs={"tool_calls": [{"id": "c1"}], "refusal": None},
        response_metadata={"finish_reason": "tool_calls", "model_name": "m-1"},
        usage_metadata=USAGE,
    ),
    "blocks of text": AIMessage(
        [THOUGHT, {"type": "text", "text": ' {"subject": "sea", "light": "dim"}'}],
        additional_kwargs={"refusal": None},
        response_metadata={"finish_reason": "tool_calls", "model_name": "m-1"},
        usage_metadata=USAGE,
    ),
}


@pytest.mark.parametrize("how", STRUCTURED)
def test_a_structured_answer_keeps_what_is_beside_its_json(engine: Engine, how: str) -> None:
    """Its text is canonical JSON; the call that held it is gone, or it would wait for a result."""
    tree = Step("Fill in.", schema=Brief, capture_key="brief")
    end = engine(tree, ScriptedModel([STRUCTURED[how].model_copy(deep=True)]))
    made = end.messages[-1]
    assert isinstance(made, AIMessage)
    assert made.content == [THOUGHT, {"type": "text", "text": '{"light":"dim","subject":"sea"}'}]
    assert made.tool_calls == []
    assert made.additional_kwargs == {"refusal": None}
    assert made.usage_metadata == USAGE
    assert made.response_metadata == {"finish_reason": "tool_calls", "model_name": "m-1"}
    assert end.outputs == {"brief": {"subject": "sea", "light": "dim"}}


def test_a_structured_answer_in_two_tool_calls_is_refused(engine: Engine) -> None:
    """The second is not dropped without a word."""
    filled = {**CALL, "name": "Brief", "args": {"subject": "sea", "light": "dim"}}
    model = ScriptedModel([AIMessage("", tool_calls=[filled, {**filled, "id": "c2"}])])
    with pytest.raises(StepError, match=r"Brief with 2 tool calls \(Brief, Brief\)"):
        engine(Step("Fill in.", schema=Brief), model)


def test_an_edited_response_keeps_who_answered(engine: Engine) -> None:
    """An edit at a gate replaces the content; usage, metadata and name are facts of the call."""
    decide = lambda question: {"decision": "edit", "text": "The sea is rough."}  # noqa: E731
    made = engine(Gate(Step("Go on."), decide=decide), ScriptedModel([answer()])).messages[-1]
    assert whole(made) == whole(answer(content="The sea is rough."))


SUITE = Block(
    [
        Step("One.", name="one"),
        Block(
            [Step("Fill in.", name="form", schema=Brief), Step("Two.", name="two")],
            name="inner",
            parallel=True,
        ),
        Step("Three.", name="three"),
    ],
    name="suite",
)


def answers(**last: Any) -> dict[str, Any]:
    """Return answers to the suite, by path."""
    return {
        "suite/one": answer(),
        "suite/inner/form": STRUCTURED["a tool call"].model_copy(deep=True),
        "suite/inner/two": answer(tool_calls=[]),
        "suite/three": last.get("three", "Done."),
    }


def dumped(messages: Any) -> list[dict[str, Any]]:
    """Return all fields of messages."""
    return [message.model_dump() for message in messages]


def test_resume_replay_and_reuse_give_the_same_messages(tmp_path: Path, form: Form) -> None:
    """To every field, whether an answer is live, from the journal, or from another run's."""
    broken = ScriptedModel(by_path=answers(three=Answer(error=RuntimeError("down"))))
    about: dict[str, Any] = {"runs": tmp_path, "form": form}
    with pytest.raises(RuntimeError, match="down"):
        run_generation(SUITE, model=broken, ctx=RunContext(run_id="a"), **about)
    resumed = run_generation(
        SUITE, model=ScriptedModel(by_path={"suite/three": "Done."}), resume="a", **about
    )
    live = run_generation(
        SUITE, model=ScriptedModel(by_path=answers()), ctx=RunContext(run_id="a"),
        **{**about, "runs": tmp_path / "live"},
    )  # fmt: skip
    assert dumped(resumed.messages) == dumped(live.messages)
    for how in ("replay", "reuse"):
        origin: dict[str, Any] = {**about, how: "a"}
        again = run_generation(SUITE, model=ScriptedModel(), ctx=RunContext(run_id=how), **origin)
        found = [{**one, "id": one["id"].replace(how, "a")} for one in dumped(again.messages)]
        assert found == dumped(live.messages)
    header, records = FileStore(tmp_path).read("a")
    state = replay(records, SUITE, base=State(header.messages)).state
    assert state is not None
    assert dumped(state.messages) == dumped(live.messages)
    assert dumped(live.transcript.replay().state.messages) == dumped(live.messages)  # type: ignore[union-attr]


def test_the_next_turn_of_a_context_sends_the_whole_message(form: Form) -> None:
    """A conversation over several turns keeps what the provider sent."""
    model = ScriptedModel([answer(), "Done."])
    runner = ChatRunner(model, form=form)
    ctx = runner.run(RunContext(run_id="t"), Step("One."))
    runner.run(ctx, Step("Two."))
    assert whole(model.calls[-1].messages[1]) == whole(answer())


def test_a_checkpointer_keeps_the_whole_message(form: Form) -> None:
    """What LangGraph writes down and reads again is the same message."""
    graph = compile_graph(
        Step("One."), model=ScriptedModel([answer()]), form=form, checkpointer=InMemorySaver()
    )
    config: Any = {"configurable": {"thread_id": "t1"}}
    graph.invoke({"messages": []}, config)
    assert whole(graph.get_state(config).values["messages"][-1]) == whole(answer())


def test_what_the_model_said_is_on_record_as_it_came(engine: Engine) -> None:
    """A record holds the answer with the provider's id, and its whole tool call."""
    recorder = Recorder()
    tree: Node = Step("Fill in.", schema=Brief)
    engine(tree, ScriptedModel([STRUCTURED["a tool call"]]), recorder=recorder)
    (record,) = recorder.journal.records
    assert record.message is not None
    assert whole(record.message) == whole(STRUCTURED["a tool call"])
    assert json.loads(record.response) == {"subject": "sea", "light": "dim"}
