"""Attempts: which failures of a call may pass, and how long to wait before it is tried again."""

from __future__ import annotations

import asyncio
import math
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

from pydantic import ValidationError
from tenacity import RetryCallState, Retrying, stop_after_attempt, wait_exponential

from mergepoint.core.errors import CallTimeout, MergepointError, MissingKey, StepError
from mergepoint.tree.policy import Retry

LONGEST_ASKED: Final = 600.0
"""What a provider's Retry-After is held to, in seconds; beyond it waiting helps nobody."""

_PASSING_STATUS = frozenset({408, 409, 429})
# Network errors of HTTP clients, by the names of their classes: none of them is imported here.
_NETWORK = frozenset(
    {
        "APIConnectionError",
        "ClientConnectionError",
        "ClientPayloadError",
        "ConnectTimeout",
        "ConnectionError",
        "HTTPException",
        "IncompleteRead",
        "ProtocolError",
        "ReadTimeout",
        "TransportError",
    }
)
_own_random = random.Random()  # noqa: S311  (spreads waits; a seed of the user's stays untouched)


@dataclass(frozen=True, slots=True)
class Clock:
    """How the door waits between attempts, what time it is, and a number from 0 up to 1."""

    sleep: Callable[[float], None] = time.sleep
    asleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    now: Callable[[], float] = time.time
    chance: Callable[[], float] = _own_random.random


CLOCK: ContextVar[Clock] = ContextVar("mergepoint_clock", default=Clock())  # noqa: B039  (frozen)


def wait_before_next(
    retry: Retry | None, attempt: int, error: BaseException, clock: Clock
) -> float | None:
    """Give the seconds to wait after a failed attempt, or None where it was the last."""
    if retry is None or not may_pass(error):
        return None
    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = attempt
    if stop_after_attempt(retry.attempts)(state):
        return None
    asked = asked_wait(error, clock)
    if asked is not None:
        return asked
    wait = wait_exponential(multiplier=retry.wait, max=retry.longest)
    return wait(state) * (1.0 + clock.chance())


def may_pass(error: BaseException) -> bool:
    """Say whether another attempt may fare better: the network, the provider's load, the answer.

    What the provider refused, a mistake in code, a spent budget and a call that is not on record
    stay what they are.
    """
    if isinstance(error, MergepointError):
        unusable = isinstance(error, StepError) and not isinstance(error, MissingKey)
        return unusable or isinstance(error, CallTimeout)
    if not isinstance(error, Exception):
        return False
    status = _status(error)
    if status is not None:
        return status in _PASSING_STATUS or status >= 500
    # Some clients read a structured answer themselves, and raise pydantic's error for a misfit.
    return isinstance(error, ValidationError) or any(map(_is_network, _causes(error)))


def asked_wait(error: BaseException, clock: Clock) -> float | None:
    """Give the seconds of the Retry-After that came with an error, at most LONGEST_ASKED.

    https://www.rfc-editor.org/rfc/rfc9110#field.retry-after: seconds, or a date.
    """
    for source in (getattr(error, "response", None), error):
        value = _header(getattr(source, "headers", None), "retry-after")
        seconds = None if value is None else _seconds(value, clock)
        if seconds is not None:
            return min(seconds, LONGEST_ASKED)
    return None


def _header(headers: Any, name: str) -> str | None:
    if not isinstance(headers, Mapping):
        return None
    found = (value for key, value in headers.items() if str(key).lower() == name)
    value = next(found, None)
    return None if value is None else str(value).strip()


def _seconds(value: str, clock: Clock) -> float | None:
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - clock.now()
        except ValueError:
            return None
        return max(seconds, 0.0)
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _status(error: Exception) -> int | None:
    """Give the HTTP status that an error carries, under any of the names that clients use."""
    for source in (error, getattr(error, "response", None)):
        for name in ("status_code", "http_status", "status", "code"):
            value = getattr(source, name, None)
            if isinstance(value, int) and 400 <= value <= 599:  # 200 where an answer is no good
                return int(value)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Give an error and what it was raised from; clients wrap those of the layer below."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


def _is_network(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return True
    kinds = type(error).__mro__
    return any(kind.__module__ != "builtins" and kind.__name__ in _NETWORK for kind in kinds)
