"""Retries: which errors of providers may be temporary, and how long to wait."""

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

from mergepoint.core.errors import (
    CallTimeout,
    MergepointError,
    MissingKey,
    StepError,
    TruncatedAnswer,
)
from mergepoint.tree.policy import Retry

LONGEST_ASKED: Final = 600.0
"""The maximum of a provider's Retry-After, in seconds."""

_PASSING_STATUS = frozenset({408, 409, 429})
# Network errors of HTTP clients, by class name, so that no client is imported here.
_NETWORK = frozenset(
    {
        "APIConnectionError",
        "APIError",  # of OpenAI's client, without a status: an error object in a stream
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
    """The clock of retries: how to wait, the time, and random numbers from 0 to 1."""

    sleep: Callable[[float], None] = time.sleep
    asleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    now: Callable[[], float] = time.time
    chance: Callable[[], float] = _own_random.random


CLOCK: ContextVar[Clock] = ContextVar("mergepoint_clock", default=Clock())  # noqa: B039  (frozen)


def wait_before_next(
    retry: Retry | None, attempt: int, error: BaseException, clock: Clock
) -> float | None:
    """Return the seconds to wait after a failed attempt, or None if it was the last."""
    if retry is None or not may_be_temporary(error):
        return None
    # Tenacity's rules take the state of its own loop, and read only the attempt's number.
    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = attempt
    if stop_after_attempt(retry.attempts)(state):
        return None
    asked = retry_after(error, clock)
    if asked is not None:
        return asked
    wait = wait_exponential(multiplier=retry.wait, max=retry.longest)
    # Jitter, so that concurrent calls that failed together do not retry together.
    return wait(state) * (1.0 + clock.chance())


def may_be_temporary(error: BaseException) -> bool:
    """Return whether another attempt may succeed, after an error of network, load or answer.

    A rejected request, a bug, a spent budget and a missing recorded answer are permanent.
    """
    if isinstance(error, MergepointError):
        for_ever = isinstance(error, MissingKey | TruncatedAnswer)
        unusable = isinstance(error, StepError) and not for_ever
        return unusable or isinstance(error, CallTimeout)
    if not isinstance(error, Exception):
        return False
    status = _status(error)
    if status is not None:
        return status in _PASSING_STATUS or status >= 500
    # Some clients parse a structured answer themselves, and raise pydantic's error if it is
    # invalid.
    return isinstance(error, ValidationError) or any(map(_is_network, _causes(error)))


def retry_after(error: BaseException, clock: Clock) -> float | None:
    """Return the seconds of the Retry-After that came with an error, at most LONGEST_ASKED.

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
    """Return the HTTP status of an error, under any of the names that clients use."""
    for source in (error, getattr(error, "response", None)):
        for name in ("status_code", "http_status", "status", "code"):
            value = getattr(source, name, None)
            if (
                isinstance(value, int) and 400 <= value <= 599
            ):  # an error about the body of a good response has 200
                return int(value)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes; clients wrap errors of the layer below."""
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


_WORKED_ON = {408, 499}  # timeouts: the answer may have been generated
_NOT_REACHED = {"ConnectError", "ConnectTimeout", "ConnectionRefusedError"}


def was_refused(error: BaseException | None) -> bool:
    """Return whether the provider certainly rejected the request, or never received it.

    This is a status from 400 to 499 that is not a timeout, or a failed connection. After anything
    else, such as a timeout or an interrupted connection, the call may have been billed.
    """
    for cause in _chained_causes(error):
        if type(cause).__name__ in _NOT_REACHED:
            return True
        status = getattr(cause, "status_code", None)
        if status is None:
            status = getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(status, int):
            return 400 <= status < 500 and status not in _WORKED_ON
    return False


def _chained_causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
