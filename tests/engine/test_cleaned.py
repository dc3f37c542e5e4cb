"""Lone surrogates, which nobody can send again, and token counts that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from tests.engine.engines import Engine, texts

from mergepoint import Budget, BudgetExceeded, run_generation
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.context import RunContext
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.file_journal import FileStore
from mergepoint.streams.thing import Thing
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.testing.server import ModelServer, ServerReply
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.prompts import CallContext, PromptContext, Template

HALF = "\ud83d"


class Verdict(BaseModel):
    """A judgement."""

    winner: str


def client(server: ModelServer, **options: Any) -> ChatOpenAI:
    """Return the provider's own client, pointed at the server; it tries once."""
    return ChatOpenAI(
        model="scripted",
        base_url=server.url,
        api_key="none needed",  # type: ignore[arg-type]
        **{"max_retries": 0, "timeout": 10, **options},
    )


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
def test_half_a_character_does_not_make_a_run_unfinishable(*, streaming: bool) -> None:
    """The next request can be encoded, and the record says what was changed."""
    ctx = RunContext()
    with ModelServer([f"Rain {HALF}", "Sun."]) as server:
        ChatRunner(client(server, streaming=streaming)).run(ctx, Block([Step("A."), Step("B.")]))
    assert texts(ctx.messages) == ["A.", "Rain \ufffd", "B.", "Sun."]
    assert [record.cleaned for record in ctx.steps] == [("content",), ()]
    assert [step.get("cleaned") for step in ctx.transcript().to_json()["steps"]] == [
        ["content"],
        None,
    ]
    assert server.log[1].body["messages"][1]["content"] == "Rain \ufffd"


def test_a_character_in_two_pieces_of_a_stream_is_joined() -> None:
    """Each half is shown as U+FFFD, and the answer has the whole character."""
    ctx = RunContext()
    model = ScriptedModel([Answer(chunks=["a\ud83d", "\ude00b"])])
    tokens = [one.text for one in ChatRunner(model).events(ctx, Step("A.")) if one.kind == "token"]
    assert tokens == ["a\ufffd", "\ufffdb"]
    assert ctx.text == "a\N{GRINNING FACE}b"
    assert [record.cleaned for record in ctx.steps] == [("content",)]


def test_every_part_of_an_answer_is_cleaned(engine: Engine) -> None:
    """Blocks, reasoning, tool calls, names and what the provider says beside it."""
    message = AIMessage(
        [{"type": "reasoning", "reasoning": HALF}, {"type": "text", "text": f"a{HALF}"}],
        tool_calls=[{"name": f"f{HALF}", "args": {f"k{HALF}": HALF}, "id": "1"}],
        additional_kwargs={"reasoning_content": HALF},
        response_metadata={"note": HALF},
        name=f"n{HALF}",
    )
    recorder = Recorder()
    made = engine(Step("A."), ScriptedModel([message]), recorder=recorder)
    (record,) = recorder.journal.records
    str(made.messages[-1].model_dump()).encode()
    str(record).encode()
    assert set(record.cleaned) == {
        "content",
        "tool_calls",
        "additional_kwargs",
        "response_metadata",
        "name",
    }


def test_a_structured_answer_is_cleaned(engine: Engine) -> None:
    """The message and the output hold what can be sent."""
    made = engine(
        Step("A.", schema=Verdict, capture_key="v"), ScriptedModel([{"winner": f"a{HALF}"}])
    )
    assert made.outputs == {"v": {"winner": "a\ufffd"}}
    texts(made.messages)[-1].encode()


def asks(ctx: PromptContext) -> str:
    """Return a prompt with half a character in it."""
    return f"B{HALF}."


def gives(ctx: CallContext) -> dict[str, str]:
    """Return a value with half a character in it."""
    return {"x": HALF}


def test_what_is_given_is_cleaned_too(engine: Engine) -> None:
    """Messages, inputs, prompts and what functions give."""
    tree = Block(
        [
            Step(Template("A {{ topic }}."), system=f"S{HALF}", examples=[(HALF, f"x{HALF}")]),
            Step(asks),
            Call(gives, name="gives", capture_key="g", merge="none"),
            Step(f"C{HALF}."),
        ],
        inputs=("topic",),
    )
    recorder = Recorder()
    model = ScriptedModel(default="so")
    made = engine(
        tree, model, messages=[HumanMessage(f"H{HALF}")], inputs={"topic": HALF}, recorder=recorder
    )
    assert made.outputs["g"] == {"x": "\ufffd"}
    assert [record.cleaned for record in recorder.journal.records if record.kind == "call"] == [
        ("value",)
    ]
    for seen in model.calls:
        "".join(str(message.content) for message in seen.messages).encode()


def test_a_run_says_that_what_it_was_given_was_cleaned(tmp_path: Path) -> None:
    """The header names it, and a resume with the same inputs is the same run."""
    tree = Block([Step(Template("A {{ topic }}."))], inputs=("topic",))
    about: dict[str, Any] = {"runs": tmp_path, "inputs": {"topic": HALF}}
    ctx = RunContext(run_id="r1")
    run_generation(tree, model=ScriptedModel(["so"]), ctx=ctx, **about)
    header, _ = FileStore(tmp_path).read("r1")
    assert (header.cleaned, header.inputs) == (("inputs",), {"topic": "\ufffd"})


def test_a_thing_holds_nothing_that_cannot_be_sent() -> None:
    """Content, props and their names are cleaned as they come in."""
    thing = Thing(f"a{HALF}", {f"k{HALF}": [HALF]})
    assert (thing.content, thing.props) == ("a\ufffd", {"k\ufffd": ["\ufffd"]})
    assert thing.redrafted({"x": HALF}).content == {"x": "\ufffd"}


USAGES: dict[str, dict[str, Any]] = {
    "negative": {"prompt_tokens": -900, "completion_tokens": -900, "total_tokens": -1800},
    "absurd": {"prompt_tokens": 10**30, "completion_tokens": 1, "total_tokens": 10**30},
    "negative total": {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": -10},
}


@pytest.mark.parametrize("case", USAGES)
def test_counts_that_cannot_be_move_no_budget(case: str) -> None:
    """Such an answer is charged the most that it may have used, and nothing is given back."""
    ctx = RunContext()
    tree = Block([Step(f"{n}.", params={"max_tokens": 10}) for n in range(9)])
    tree = Block(tree.nodes, budget=Budget(tokens=700))
    with (
        ModelServer(lambda _: ServerReply("so", usage=USAGES[case])) as server,
        pytest.raises(BudgetExceeded),
    ):
        ChatRunner(client(server)).run(ctx, tree)
    assert 0 < len(server.log) < 9
    records = ctx.recorder.journal.records
    assert {record.usage for record in records} == {None}
    assert {record.cleaned for record in records if record.answered} == {("usage_metadata",)}
    assert ctx.usage.total_tokens == 0


def test_details_that_cannot_be_are_left_out() -> None:
    """More cached tokens than the prompt has would make a call cheaper than it can be."""
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 5,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 10**9},
    }
    ctx = RunContext()
    with ModelServer([ServerReply("so", usage=usage)]) as server:
        ChatRunner(client(server)).run(ctx, Step("A."))
    (record,) = ctx.steps
    assert record.usage is not None
    assert (record.usage["total_tokens"], "input_token_details" in record.usage) == (10, False)
