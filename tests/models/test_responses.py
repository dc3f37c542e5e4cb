"""Answers that are not whole: by every provider's finish reason, and as clients report them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from mergepoint.core.errors import AnswerError, BrokenAnswer, TruncatedAnswer
from mergepoint.models.responses import check_end, finish_reason, read_answer, truncation


def answer(**about: Any) -> AIMessage:
    """Return an answer with this response metadata."""
    return AIMessage(content="Rain", response_metadata=about)


LIMITS = {
    "OpenAI, Mistral, Ollama's OpenAI interface": {"finish_reason": "length"},
    "Anthropic": {"stop_reason": "max_tokens"},
    "Anthropic, context": {"stop_reason": "model_context_window_exceeded"},
    "Bedrock": {"stopReason": "max_tokens"},
    "Gemini, Cohere": {"finish_reason": "MAX_TOKENS"},
    "Ollama": {"done_reason": "length"},
    "Mistral, context": {"finish_reason": "model_length"},
    "OpenAI's responses": {
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
    },
    "a status alone": {"status": "incomplete"},
    "chunks that repeat it": {"finish_reason": "lengthlength"},
}
FILTERS = {
    "OpenAI": {"finish_reason": "content_filter"},
    "Bedrock": {"stopReason": "guardrail_intervened"},
    "Gemini": {"finish_reason": "SAFETY"},
    "Gemini, copyright": {"finish_reason": "RECITATION"},
    "Anthropic": {"stop_reason": "refusal"},
    "OpenAI's responses": {
        "status": "incomplete",
        "incomplete_details": {"reason": "content_filter"},
    },
}
WHOLE = {
    "OpenAI": {"finish_reason": "stop"},
    "OpenAI, tools": {"finish_reason": "tool_calls"},
    "Anthropic": {"stop_reason": "end_turn", "stop_sequence": None},
    "Anthropic, tools": {"stop_reason": "tool_use"},
    "Gemini": {"finish_reason": "STOP"},
    "Ollama": {"done_reason": "stop"},
    "Cohere": {"finish_reason": "COMPLETE"},
    "OpenAI's responses": {"status": "completed", "incomplete_details": None},
    "nothing said": {},
    "chunks that repeat it": {"finish_reason": "stopstop"},
}


@pytest.mark.parametrize("about", [*LIMITS.values(), *FILTERS.values()], ids=str)
def test_a_truncated_answer_is_an_error_in_every_spelling(about: dict[str, Any]) -> None:
    """Each provider's word for a limit or a filter is one, and the text names the way out."""
    with pytest.raises(TruncatedAnswer, match=r"t/a: .*Policy\(accept_truncated=True\)"):
        truncation(answer(**about), "t/a", accepted=False)
    assert truncation(answer(**about), "t/a", accepted=True) == finish_reason(answer(**about))


@pytest.mark.parametrize("about", WHOLE.values(), ids=str)
def test_a_whole_answer_is_none(about: dict[str, Any]) -> None:
    """What ended by itself, or says nothing, is no truncated answer."""
    assert truncation(answer(**about), "t/a", accepted=False) == ""


@pytest.mark.parametrize("reason", ["error", "abort", "MALFORMED_FUNCTION_CALL"])
def test_a_provider_that_failed_while_it_answered_broke_off(reason: str) -> None:
    """Some servers end an answer with their failure as its reason; nobody accepts that."""
    with pytest.raises(BrokenAnswer, match=f"t/a: .*{reason}"):
        truncation(answer(finish_reason=reason), "t/a", accepted=True)


def test_a_stream_without_an_end_is_known_for_providers_that_report_one() -> None:
    """For other providers nobody knows whether it means anything."""
    with pytest.raises(BrokenAnswer, match="without a finish reason"):
        check_end(answer(), "openai:gpt", "t/a")
    check_end(answer(), "homemade:llm", "t/a")
    check_end(answer(finish_reason="length"), "openai:gpt", "t/a")


def test_a_body_that_is_no_json_is_a_broken_answer() -> None:
    """The bare error of a parser gets the path, and is the cause."""

    def own() -> Any:
        return json.loads("<html>")

    with pytest.raises(BrokenAnswer, match=r"t/a: .*JSONDecodeError") as raised:
        read_answer(own, "t/a")
    assert isinstance(raised.value.__cause__, json.JSONDecodeError)


def test_an_error_of_the_models_own_code_stays_what_it_is() -> None:
    """Only what was raised while an answer was read is about the answer."""

    def own() -> Any:
        raise ValueError("temperature is too high")

    with pytest.raises(ValueError, match="too high") as raised:
        read_answer(own, "t/a")
    assert not isinstance(raised.value, AnswerError)
