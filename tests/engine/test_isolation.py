"""Nobody outside the merge can change a state: models, callbacks, functions, gates, callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult, LLMResult
from pydantic import Field
from tests.engine.engines import RUNNERS, Engine, Runner

from mergepoint.core.merge import State
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import run_generation
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.replay import replay
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Loop, Node
from mergepoint.tree.policy import Policy
from mergepoint.tree.prompts import copied, copied_message


def given() -> list[BaseMessage]:
    """Return a conversation with nested content, metadata and tool calls."""
    call: Any = {"name": "look", "args": {"at": ["sea"]}, "id": "c1", "type": "tool_call"}
    return [
        HumanMessage([{"type": "text", "text": "Hello."}, "there"], id="g0"),
        AIMessage(
            [{"type": "text", "text": "Good day.", "annotations": [{"url": "u"}]}],
            id="g1",
            tool_calls=[call],
            additional_kwargs={"deep": {"list": [1]}},
            response_metadata={"finish_reason": "stop"},
        ),
        ToolMessage("calm", tool_call_id="c1", id="g2", artifact={"raw": [1]}),
    ]


def spoil(messages: Sequence[Any]) -> None:
    """Change everything about messages that can be changed, the innermost first."""
    for message in messages:
        for name, value in vars(message).items():
            if name.endswith(("tool_calls", "tool_call_chunks")):
                for call in value:
                    call["name"] = "spoiled"
                    _spoil_inside(call["args"])
            else:
                _spoil_inside(value)
        message.content = "spoiled"
        message.id = "spoiled"
        message.name = "spoiled"
    if isinstance(messages, list):
        messages.append(HumanMessage("spoiled"))


def _spoil_inside(value: Any) -> None:
    if isinstance(value, list | dict):
        for item in list(value.values() if isinstance(value, dict) else value):
            _spoil_inside(item)
        if isinstance(value, list):
            value.append("spoiled")
        else:
            value.update(dict.fromkeys([key for key in value if key == "text"], "spoiled"))
            value["spoiled"] = "spoiled"


class Spoiling(BaseChatModel):
    """A model that edits what it is given in place, and goes on editing what it answered."""

    answers: list[Any] = Field(default_factory=list)
    seen: list[Any] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "spoiling"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.seen.append([message.model_dump() for message in messages])
        beside = "Voice" in str(messages[-1].content)  # its siblings have not answered yet
        for earlier in () if beside else self.answers:
            earlier.content.append({"type": "text", "text": "spoiled"})
            earlier.response_metadata["spoiled"] = True
        spoil(messages)
        message = AIMessage(
            [{"type": "text", "text": f"answer {len(self.seen)}"}],
            response_metadata={"finish_reason": "stop", "deep": [{"k": "v"}]},
        )
        self.answers.append(message)
        return ChatResult(generations=[ChatGeneration(message=message)])


class SpoilingHandler(BaseCallbackHandler):
    """A callback that edits what it is shown of models."""

    run_inline = True
    raise_error = True

    def on_chat_model_start(
        self, serialized: Any, messages: list[list[BaseMessage]], **kwargs: Any
    ) -> None:
        """Edit the prompt."""
        for batch in messages:
            spoil(batch)

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, **kwargs: Any) -> None:
        """Edit a piece of the answer."""
        if chunk is not None:
            spoil([chunk.message])

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        """Edit the answer."""
        for row in response.generations:
            for generation in row:
                if isinstance(generation, ChatGeneration):
                    spoil([generation.message])


def blocks(ctx: Any) -> Any:
    """Return a prompt of content blocks."""
    return [
        {"type": "text", "text": "Look."},
        {"type": "image", "base64": "aa", "mime_type": "image/png"},
    ]


TREE = Block(
    [
        Step(blocks, name="look", system="Be brief.", examples=[("A.", "B.")]),
        Block(
            [Step(f"Voice {n}.", name=f"voice_{n}", merge="none") for n in range(4)],
            name="voices",
            parallel=True,
        ),
        Step("Agree.", name="agree", merge="last_response"),
    ],
    name="tree",
)


def clean(record: CallRecord) -> CallRecord:
    """Return a record after a check that nothing in it was edited."""
    assert "spoiled" not in repr(record)
    return record


def run(engine: Engine, model: BaseChatModel, *handlers: BaseCallbackHandler) -> tuple[Any, Any]:
    """Run the tree with handlers on the model; return the end and the recorder."""
    recorder = Recorder()
    model.callbacks = list(handlers)
    messages = given()
    end = engine(TREE, model, messages=messages, recorder=recorder)
    assert [one.model_dump() for one in messages] == [one.model_dump() for one in given()]
    return end, recorder


@pytest.mark.parametrize("who", ["model", "callback", "both"])
def test_models_and_callbacks_change_nothing(engine: Engine, who: str) -> None:
    """State, caller's messages, records and siblings are as with a model that edits nothing."""
    model: Any = Spoiling() if who != "callback" else ScriptedModel(default=given()[1])
    handlers = [] if who == "model" else [SpoilingHandler()]
    end, recorder = run(engine, model, *handlers)
    assert "spoiled" not in repr(end)
    assert [one.type for one in end.messages[:3]] == ["human", "ai", "tool"]
    records = [clean(record) for record in recorder.journal.records]
    by_path = {record.path: record for record in records}
    assert by_path["tree/look"].prompt == blocks(None)
    assert [one.text for one in by_path["tree/look"].lead] == ["Be brief.", "A.", "B."]
    state = replay(records, TREE, base=State(tuple(given()))).state
    assert state is not None
    assert [one.model_dump() for one in state.messages] == [
        one.model_dump() for one in end.messages
    ]


@pytest.mark.parametrize("who", ["model", "callback"])
def test_a_call_sends_what_the_state_holds_whoever_edited_it_before(
    engine: Engine, who: str
) -> None:
    """A callback cannot put words into a request, nor an earlier call into a later one."""
    model = Spoiling()
    run(engine, model, *([SpoilingHandler()] if who == "callback" else []))
    assert "spoiled" not in repr(model.seen)
    voices = [seen for seen in model.seen if "Voice" in str(seen[-1]["content"])]
    assert len(voices) == 4
    assert all(seen[:-1] == voices[0][:-1] for seen in voices)
    assert [len(seen) for seen in model.seen] == [7, 6, 6, 6, 6, 6]


class Failing(Spoiling):
    """A model that edits what it is given, and fails the first time."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        result = super()._generate(messages)
        if len(self.seen) == 1:
            raise TimeoutError("once")
        return result


def test_another_attempt_sends_the_same(engine: Engine) -> None:
    """What a model did to its messages before it failed is not in the next attempt."""
    model = Failing()
    tree = Step("A.", policy=Policy(retry={"attempts": 2, "wait": 0.001}))  # type: ignore[arg-type]
    engine(tree, model, messages=given())
    assert model.seen[0] == model.seen[1]
    assert "spoiled" not in repr(model.seen)


@pytest.mark.parametrize("on_loop", [False, True])
def test_pieces_of_a_stream_cannot_be_edited(form: Form, *, on_loop: bool) -> None:
    """A callback that edits tokens leaves the answer that they add up to as it is."""
    model = ScriptedModel([Answer(AIMessage([{"type": "text", "text": "Calm."}]))])
    model.callbacks = [SpoilingHandler()]
    graph = compile_graph(Step("A."), model=model, form=form)
    found: Any = None
    modes: Any = ["messages", "values"]

    async def last() -> Any:
        return [c async for m, c in graph.astream({"messages": []}, stream_mode=modes)][-1]

    if on_loop:
        found = asyncio.run(last())
    else:
        found = [c for m, c in graph.stream({"messages": []}, stream_mode=modes)][-1]
    assert found["messages"][-1].content == [{"type": "text", "text": "Calm."}]


@pytest.mark.parametrize("kind", ["call", "until", "gate", "prompt"])
def test_functions_of_the_tree_change_nothing(engine: Engine, kind: str) -> None:
    """What prompt functions, Calls, conditions and gates are given are copies."""

    def seen(ctx: Any) -> Any:
        messages = ctx.kept.messages if kind == "gate" else ctx.messages
        spoil([messages[n] for n in range(len(messages))])
        values = ctx.kept.outputs if kind == "gate" else ctx.outputs
        for value in values.values():
            _spoil_inside(value)
        return {"call": [1], "until": True, "gate": "approve", "prompt": "B."}[kind]

    first = Call(lambda ctx: {"deep": [1]}, name="made", capture_key="deep")
    nodes: dict[str, Node] = {
        "call": Call(seen),
        "until": Loop([Step("B.")], until=seen, max_iterations=1),
        "gate": Gate(Block([Step("B."), Call(lambda ctx: [2], capture_key="k")]), decide=seen),
        "prompt": Step(seen),
    }
    end = engine(Block([first, nodes[kind]]), ScriptedModel(default="b"), messages=given())
    assert "spoiled" not in repr(end)


def test_what_a_function_gave_is_its_own(engine: Engine) -> None:
    """A function that goes on editing its result, or its messages, changes no state."""
    kept: list[Any] = []

    def first(ctx: Any) -> Any:
        value = AIMessage([{"type": "text", "text": "made"}])
        kept.append(value)
        return value

    def second(ctx: Any) -> Any:
        spoil(kept)
        return {"list": kept}["list"][:0] or [1]

    tree = Block([Call(first, merge="all_messages"), Call(second), Step("A.")])
    recorder = Recorder()
    end = engine(tree, ScriptedModel(default="b"), recorder=recorder)
    assert "spoiled" not in repr(end)
    assert "spoiled" not in repr(recorder.journal.records)


def test_the_callers_inputs_are_their_own(engine: Engine) -> None:
    """A caller, or a callback of theirs, that edits an input during the run changes nothing."""
    inputs: dict[str, Any] = {"notes": [{"k": "v"}]}

    def edit(ctx: Any) -> Any:
        _spoil_inside(inputs)
        return ctx.inputs["notes"]

    tree = Block(
        [Call(edit, capture_key="seen"), Step(lambda ctx: str(ctx.inputs["notes"]))],
        inputs=("notes",),
    )
    end = engine(tree, ScriptedModel(default="b"), inputs=inputs)
    assert end.outputs == {"seen": [{"k": "v"}]}
    assert end.texts == ["[{'k': 'v'}]", "b"]


@pytest.mark.parametrize("runner", RUNNERS, ids=str)
def test_a_context_is_changed_by_the_run_alone(runner: Runner) -> None:
    """Also where callbacks of the whole graph edit what LangGraph shows them."""

    class Everywhere(SpoilingHandler):
        def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
            """Edit what the graph is given."""
            if isinstance(inputs, dict) and kwargs.get("parent_run_id") is None:
                spoil(list(inputs.get("messages") or []))

    mine = given()
    ctx = RunContext(messages=mine, config={"callbacks": [Everywhere()]})
    runner(ctx, TREE, Spoiling())
    assert [one.model_dump() for one in ctx.messages[:3]] == [one.model_dump() for one in given()]
    assert [one.model_dump() for one in mine] == [one.model_dump() for one in given()]
    assert ctx.transcript().messages == tuple(given())


def test_answers_from_a_journal_are_handed_out_as_copies(tmp_path: Path, form: Form) -> None:
    """A callback that edits a replayed answer changes neither the state nor the record."""
    first = run_generation(
        TREE,
        model=ScriptedModel(default=given()[1]),
        ctx=RunContext(run_id="a"),
        runs=tmp_path,
        form=form,
    )
    model = ScriptedModel()
    model.callbacks = [SpoilingHandler()]
    again = run_generation(
        TREE, model=model, ctx=RunContext(run_id="b"), runs=tmp_path, form=form, reuse="a"
    )
    assert "spoiled" not in repr(again)
    assert [one.text for one in again.messages] == [one.text for one in first.messages]


def test_records_share_nothing_with_the_state(engine: Engine) -> None:
    """Who edits a record does not edit the conversation."""
    recorder = Recorder()
    end = engine(TREE, Spoiling(), recorder=recorder)
    for record in recorder.journal.records:
        _spoil_inside(record.prompt)
        assert record.message is not None
        spoil([record.message, *record.lead])
    assert "spoiled" not in repr(end)


def test_models_inside_of_a_function_leave_the_record_as_it_is(engine: Engine) -> None:
    """A model that edits the messages of a function changes neither record nor messages."""
    own = given()[:1]

    def ask(ctx: Any) -> str:
        ctx.model().invoke(own)
        return "asked"

    recorder = Recorder()
    engine(Call(ask), Spoiling(), recorder=recorder)
    assert "spoiled" not in repr(recorder.journal.records)
    assert own == given()[:1]


def test_copies_share_nothing_and_are_equal() -> None:
    """Of every kind of message, with fields of its own, and of values of any kind."""
    for message in [*given(), AIMessage("x", extra={"deep": [1]})]:
        made = copied_message(message)
        assert made == message
        assert type(made) is type(message)
        assert made.model_dump_json(exclude_unset=True) == message.model_dump_json(
            exclude_unset=True
        )
        before = message.model_dump()
        spoil([made])
        assert message.model_dump() == before
    value = {"a": [{"b": (1, {2})}], "c": given()}
    made_value = copied(value)
    assert made_value == value
    _spoil_inside(made_value)
    assert "spoiled" not in repr(value)


def test_what_cannot_be_copied_is_handed_on() -> None:
    """An object that Python cannot copy, as an artifact of a tool, costs nobody the run."""
    lock = threading.Lock()
    message = ToolMessage("x", tool_call_id="c1", artifact={"lock": lock, "list": [1]})
    made = copied_message(message)
    assert made.artifact["lock"] is lock
    assert made.artifact["list"] is not message.artifact["list"]
