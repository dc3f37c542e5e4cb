"""Bounds of a call's tokens, and the stopwatch of a budget."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from mergepoint.models.budget import (
    MEDIA_ESTIMATE,
    CallShape,
    output_at_most,
    output_cap,
    output_cap_of,
    prompt_at_most,
)
from mergepoint.models.retry import was_refused
from mergepoint.models.timeouts import Stopwatch
from mergepoint.testing.scripted_model import ScriptedModel


@given(st.lists(st.text(), max_size=5))
def test_a_prompt_is_bounded_by_its_bytes(texts: list[str]) -> None:
    """Were every byte a token of its own, the bound would still hold."""
    messages: list[BaseMessage] = [HumanMessage(text) for text in texts]
    assert prompt_at_most(messages, {}) >= sum(
        len(text.encode("utf-8", "surrogatepass")) for text in texts
    )


def test_everything_that_is_sent_counts() -> None:
    """Names, tool calls, blocks, images, tools and a schema each raise the bound."""
    plain = prompt_at_most([HumanMessage("x")], {})
    call = {"name": "look", "args": {"where": "there"}, "id": "1"}
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    richer: list[tuple[BaseMessage, dict[str, Any]]] = [
        (HumanMessage("x", name="someone"), {}),
        (AIMessage("x", tool_calls=[call]), {}),
        (HumanMessage([{"type": "text", "text": "xy"}]), {}),
        (HumanMessage("x"), {"tools": [{"name": "look"}]}),
    ]
    assert all(prompt_at_most([message], params) > plain for message, params in richer)
    assert prompt_at_most([HumanMessage([image])], {}) >= MEDIA_ESTIMATE
    assert prompt_at_most([HumanMessage("x")], {}, schema=500) >= plain + 500
    assert prompt_at_most([SystemMessage("s"), HumanMessage("x")], {}) > plain


@pytest.mark.parametrize(
    ("params", "cap"),
    [
        ({}, None),
        ({"max_tokens": 10}, 10),
        ({"max_completion_tokens": 10, "max_tokens": 20}, 20),
        ({"max_output_tokens": 7}, 7),
        ({"num_predict": -1}, None),
        ({"options": {"num_predict": 5}}, 5),
        ({"max_tokens": True}, None),
    ],
)
def test_the_limit_of_an_answer_is_found(params: dict[str, Any], cap: int | None) -> None:
    """Each provider's name of it counts, and what means no limit does not."""
    assert output_cap(params) == cap


def test_the_call_s_limit_stands_over_the_model_s_and_that_over_the_estimate() -> None:
    """Where nothing limits an answer the estimate stands for it; n answers are n times as long."""

    class Short(ScriptedModel):
        max_tokens: int = 30

    shape = CallShape("a:b", output=output_cap_of(Short()))
    assert output_at_most({"max_tokens": 5}, shape, estimate=99) == 5
    assert output_at_most({}, shape, estimate=99) == 30
    assert output_at_most({}, None, estimate=99) == 99
    assert output_at_most({"n": 3}, shape, estimate=99) == 90


def test_a_stopwatch_stands_still_in_pauses_and_never_goes_back() -> None:
    """Pauses may overlap, and a clock that jumps back costs nothing."""
    now = [100.0]
    watch = Stopwatch(lambda: now[0])
    now[0] = 103.0
    assert watch.elapsed == 3.0
    with watch.pause():
        now[0] = 110.0
        with watch.pause():
            now[0] = 120.0
        now[0] = 130.0
        assert watch.elapsed == 3.0
    now[0] = 131.0
    assert watch.elapsed == 4.0
    watch.stop()
    now[0] = 140.0
    watch.start()
    now[0] = 50.0
    assert watch.elapsed == 4.0
    now[0] = 52.0
    assert watch.elapsed == 6.0


class Status(Exception):
    """A provider's error."""

    def __init__(self, status_code: int) -> None:
        super().__init__(str(status_code))
        self.status_code = status_code


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (Status(429), True),
        (Status(401), True),
        (Status(408), False),
        (Status(500), False),
        (TimeoutError(), False),
        (ConnectionRefusedError(), True),
        (None, False),
    ],
)
def test_a_refused_request_is_told_from_one_that_may_have_been_worked_on(
    error: BaseException | None, *, refused: bool
) -> None:
    """Only what the provider turned away, or never got, certainly cost nothing."""
    assert was_refused(error) is refused


def test_the_reason_of_an_error_tells_too() -> None:
    """A provider's package wraps the status or the lost connection in errors of its own."""
    wrapped = RuntimeError("failed")
    wrapped.__cause__ = Status(429)
    assert was_refused(wrapped)
