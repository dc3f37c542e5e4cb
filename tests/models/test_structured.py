"""Structured output by each method, with LangChain's real client and with other models."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from tests import provider

from mergepoint.core.errors import AnswerError, StepError, TreeError, TruncatedAnswer
from mergepoint.engine.context import RunContext
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.transcript import Transcript
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.testing.server import Body, ModelServer, ServerReply
from mergepoint.tree.leaves import Method, Step
from mergepoint.tree.transform import with_overrides
from mergepoint.tree.tree_yaml import from_yaml

GOOD = '{"winner":"munch"}'
METHODS: tuple[Any, ...] = get_args(Method)


class Verdict(BaseModel):
    """A judgement."""

    winner: str


def client(server: ModelServer, **options: Any) -> ChatOpenAI:
    """Return the provider's own client, pointed at the server; it tries once."""
    return provider.client(server.url, **options)


def step(method: Method | None, **fields: Any) -> Step:
    """Return a step that is answered with a verdict."""
    return Step("Who wins?", schema=Verdict, method=method, capture_key="v", **fields)


def answer(body: Body) -> ServerReply:
    """Answer as a server that can do each of them."""
    return ServerReply({"winner": "munch"})


@pytest.mark.first_case
@pytest.mark.parametrize("method", [None, *METHODS])
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_each_method_gives_the_same_answer(
    method: Method | None, *, streaming: bool, on_loop: bool
) -> None:
    """Text, output and record are alike; only the request differs."""
    ctx = RunContext()
    with ModelServer(answer) as server:
        runner = ChatRunner(client(server, streaming=streaming))
        tree = step(method, temperature=0.5)
        provider.on_a_loop(runner.arun(ctx, tree)) if on_loop else runner.run(ctx, tree)
    assert (ctx.text, ctx.outputs) == (GOOD, {"v": {"winner": "munch"}})
    body = server.log[0].body
    kind = body.get("response_format", {}).get("type")
    expected = {"json_schema": "json_schema", "json_mode": "json_object"}
    assert kind == expected.get(method or "json_schema")
    assert ("tools" in body) == (method == "function_calling")
    told = [one["content"] for one in body["messages"] if one["role"] == "system"]
    assert any("JSON schema" in text for text in told) == (method in ("json_mode", "prompt"))
    assert body["temperature"] == 0.5


def test_openai_is_sent_what_its_client_makes_of_the_class() -> None:
    """The response format is that of the class, so that strict schemas are the same."""
    with ModelServer(answer) as server:
        ChatRunner(client(server)).run(RunContext(), step(None))
        client(server).with_structured_output(Verdict).invoke("Who wins?")
    ours, theirs = (exchange.body["response_format"] for exchange in server.log)
    assert ours == theirs


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "half of it": ('{"winner": "mun', {"line": 1, "column": 15}),
    "prose": ("The winner\nis Munch.", {"line": 1, "column": 1}),
    "another field": ('{"loser": "munch"}', {"field": "winner"}),
}


@pytest.mark.first_case
@pytest.mark.parametrize("method", [None, "json_schema", "json_mode", "prompt"])
@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
def test_an_answer_that_does_not_fit_is_kept_whole(
    method: Method | None, case: str, *, streaming: bool
) -> None:
    """OpenAI's client raises without the text; the failed attempt has all of it, and the place."""
    text, position = WRONG[case]
    ctx = RunContext()
    with ModelServer([text]) as server, pytest.raises(AnswerError) as raised:
        ChatRunner(client(server, streaming=streaming)).run(ctx, step(method))
    assert raised.value.position == position
    (record,) = ctx.recorder.journal.records
    assert record.message is not None
    assert record.message.text == text
    assert record.error is not None
    assert record.error["position"] == position


def test_json_that_ends_in_the_middle_names_the_way_out() -> None:
    """Whether the server says that it was cut off or not."""
    half = '{"winner": "mun'
    with ModelServer([half, ServerReply(half, finish_reason="length")]) as server:
        with pytest.raises(AnswerError, match="raise the limit of its tokens, such as max_tokens"):
            ChatRunner(client(server)).run(RunContext(), step(None))
        with pytest.raises(TruncatedAnswer, match="Raise the limit, such as max_tokens"):
            ChatRunner(client(server)).run(RunContext(), step(None))


def test_a_server_without_structured_output_is_told_a_way_out() -> None:
    """Prose in place of JSON names the other methods."""
    with ModelServer(["Munch wins."]) as server, pytest.raises(AnswerError, match="or prompt"):
        ChatRunner(client(server)).run(RunContext(), step("json_schema"))


@pytest.mark.parametrize(
    "said",
    [
        f"Here it is:\n```json\n{GOOD}\n```\nI hope it helps.",
        f"```\n{GOOD}\n```",
        f"The verdict is {GOOD}. That is all.",
        f"\n {GOOD}\n",
    ],
)
def test_a_prompt_takes_json_among_other_text(said: str) -> None:
    """Small models say more than they are asked for."""
    ctx = RunContext()
    ChatRunner(FakeListChatModel(responses=[said])).run(ctx, step("prompt"))
    assert ctx.text == GOOD
    assert ctx.steps[0].message is not None
    assert ctx.steps[0].message.text == said


def test_places_are_those_in_the_whole_answer() -> None:
    """What comes before the JSON counts."""
    text = 'So:\n```json\n{"winner": }\n```'
    with pytest.raises(AnswerError) as raised:
        ChatRunner(FakeListChatModel(responses=[text])).run(RunContext(), step("prompt"))
    assert raised.value.position == {"line": 3, "column": 12}


def test_the_instruction_joins_the_system_message_and_enters_no_state() -> None:
    """A chat template may take one system message; the record has it, the conversation not."""
    ctx = RunContext()
    model = ScriptedModel([GOOD])
    ChatRunner(model).run(ctx, step("prompt", system="Be brief."))
    system, _ = model.calls[0].messages
    assert system.text.startswith("Be brief.\n\nAnswer with one JSON object")
    assert json.dumps(Verdict.model_json_schema()) in system.text
    assert [message.type for message in ctx.messages] == ["human", "ai"]
    assert Transcript.from_json(ctx.transcript().to_json()).records[0].lead[0].text == system.text


def test_a_model_without_a_method_says_which_there_are() -> None:
    """It is a fault of the tree, found before anything is asked."""
    with pytest.raises(StepError, match=r"no structured output by json_mode.*'prompt'"):
        ChatRunner(ScriptedModel([GOOD])).run(RunContext(), step("json_mode"))


def test_the_method_is_checked() -> None:
    """A misspelt one, and one without a schema, are faults of the step."""
    with pytest.raises(TreeError, match="did you mean 'json_mode'"):
        Step("A.", schema=Verdict, method="json_mod")  # type: ignore[arg-type]
    with pytest.raises(TreeError, match="method 'prompt' needs a schema"):
        Step("A.", method="prompt")
    with pytest.raises(TreeError, match="needs a schema"):
        from_yaml("prompt: A.\nmethod: prompt\n")


def test_the_method_can_be_set_by_path_and_is_part_of_the_request() -> None:
    """Another method is another request: its answers are not taken for those of this one."""
    digests = set()
    for method in (None, *METHODS):
        changed = with_overrides(step(None), {"step_01": {"method": method}})
        assert isinstance(changed, Step)
        model = ScriptedModel([{"winner": "munch"}])
        if method in (None, "function_calling", "prompt"):
            fields = ChatRunner(model)._calls(changed).fields(changed, "step_01")
            digests.add(json.dumps([fields["schema"], fields.get("method")]))
    assert len(digests) == 3
