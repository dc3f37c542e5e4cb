"""Limits of requests and tokens per minute that hold over all workers of a batch."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import partial
from itertools import count
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

from mergepoint.core.errors import RailError
from mergepoint.journal.redact import mask

if TYPE_CHECKING:
    from mergepoint.scale.rate_buckets import Bucket, WindowEntry

# A request leaves at most half of `margin` after it is granted: later, its worker asks again. The
# other half is for its way to the provider. So windows that are longer by the margin hold where
# requests arrive, even for a worker that was paused in between.

WINDOW = 60.0
MARGIN = 2.0
UNITS = 5_000
"""The most units of a window of tokens. pyrate-limiter stores one row for each unit."""

T = TypeVar("T")

_BYTES_PER_TOKEN = 3
_TRIES = 60.0  # seconds in which a database may come back
_PAUSE = 1.0  # seconds between two tries
_FORGET = 10.0  # seconds between two deletions of what has left the window


class RequestTooLarge(RailError):
    """A request that needs more tokens than a rate limit allows in a whole window."""


@dataclass(frozen=True, slots=True)
class RateLimits:
    """At most this many requests and tokens are sent in any window; None means no limit.

    The window slides: it isn't one that begins at a full minute.

    Args:
        requests_per_minute: The maximum number of requests.
        tokens_per_minute: The maximum number of tokens, of prompts and answers.
        window: The length of the window in seconds.
        margin: The most seconds between the permission to send a request and its arrival.

    Raises:
        ValueError: A number isn't positive.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    _: KW_ONLY
    window: float = WINDOW
    margin: float = MARGIN

    def __post_init__(self) -> None:
        for one in fields(self):
            value: Any = getattr(self, one.name)
            whole = one.name.endswith("minute")
            kinds = int if whole else int | float
            if value is None and whole:
                continue
            if isinstance(value, bool) or not isinstance(value, kinds) or value <= 0:
                kind = "a whole number" if whole else "a number of seconds"
                raise ValueError(f"{one.name} is {value!r}; use {kind} above 0")

    @property
    def limited(self) -> bool:
        """Return whether there is any limit."""
        return self.requests_per_minute is not None or self.tokens_per_minute is not None


@dataclass(slots=True)
class Permission:
    """The permission to send one request, since `granted` on this process's monotonic clock."""

    granted: float
    tokens: int
    entries: dict[str, WindowEntry] = field(default_factory=dict)


def estimated_tokens(prompt: int, output: int) -> int:
    """Return the tokens that are reserved for a request.

    Args:
        prompt: The most tokens of the prompt, which is its length in bytes. A third is reserved.
        output: The most tokens of the answer, all of which are reserved.
    """
    return math.ceil(prompt / _BYTES_PER_TOKEN) + output


class Quota:
    """One limit and its window; the amounts are rounded up to units."""

    def __init__(self, kind: str, bucket: Bucket, *, most: int, unit: int = 1) -> None:
        self.kind = kind
        self._bucket = bucket
        self._most = most
        self._unit = unit

    def take(self, name: str, amount: int) -> WindowEntry | int:
        """Take an amount from the window, or return the milliseconds to wait."""
        return self._bucket.take(name, self.units(amount))

    def change(self, entry: WindowEntry, amount: int) -> WindowEntry:
        """Change an amount that was taken; 0 gives it back."""
        units = self.units(amount) if amount else 0
        return entry if units == entry.units else self._bucket.change(entry, units)

    def units(self, amount: int) -> int:
        """Return the units of an amount, at least one."""
        return max(1, math.ceil(amount / self._unit))

    def allows(self, amount: int) -> bool:
        """Return whether an empty window has room for an amount."""
        return self.units(amount) <= self._most

    def forget(self) -> None:
        """Delete what has left the window."""
        self._bucket.forget()

    def close(self) -> None:
        """Close the bucket."""
        self._bucket.close()


def quotas(
    limits: RateLimits, at: str | None, *, clock: Callable[[], int] | None = None
) -> tuple[Quota, ...]:
    """Return the quotas of limits, in a place.

    Workers, and batches, with the same limits at the same place share them.

    Args:
        limits: The limits.
        at: None for this process, the path of an SQLite file, or a postgresql:// URL.
        clock: Returns milliseconds; not for PostgreSQL, which has its own.
    """
    from mergepoint.scale import rate_buckets as buckets

    interval = round((limits.window + limits.margin) * 1000)
    made: list[Quota] = []
    for kind, limit in (
        ("requests", limits.requests_per_minute),
        ("tokens", limits.tokens_per_minute),
    ):
        if limit is None:
            continue
        unit = 1 if kind == "requests" else math.ceil(limit / UNITS)
        most = limit // unit
        # The same windows for the same limits: units of different sizes can't be added.
        about = f"{kind} {limit} {interval}"
        table = f"{kind}_{hashlib.sha256(about.encode()).hexdigest()[:12]}"
        bucket: Bucket
        if at is None:
            bucket = buckets.MemoryBucket(most, interval, clock=clock)
        elif is_postgres(at):
            bucket = buckets.ServerBucket(most, interval, address=at, table=table)
        else:
            bucket = buckets.FileBucket(most, interval, path=at, table=table, clock=clock)
        made.append(Quota(kind, bucket, most=most, unit=unit))
    return tuple(made)


def is_postgres(at: str) -> bool:
    """Return whether a place is a database of PostgreSQL, and not a file."""
    return at.partition("://")[0].partition("+")[0] in ("postgres", "postgresql")


def take_all(owned: tuple[Quota, ...], name: str, tokens: int) -> Permission | int:
    """Take one request with its tokens from all quotas, or return the milliseconds to wait."""
    permission = Permission(time.monotonic(), tokens)
    for quota in owned:
        taken = quota.take(name, 1 if quota.kind == "requests" else tokens)
        if isinstance(taken, int):
            give_back(owned, permission)
            return taken
        permission.entries[quota.kind] = taken
    return permission


def give_back(owned: tuple[Quota, ...], permission: Permission) -> None:
    """Return a permission whose request wasn't sent."""
    for quota in owned:
        if (entry := permission.entries.pop(quota.kind, None)) is not None:
            quota.change(entry, 0)


def correct(owned: tuple[Quota, ...], permission: Permission, tokens: int) -> None:
    """Replace the estimated tokens of a request by the actual ones."""
    for quota in owned:
        if quota.kind == "tokens" and (entry := permission.entries.get("tokens")) is not None:
            permission.entries["tokens"] = quota.change(entry, max(1, tokens))


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that waits for its turn."""

    name: str
    tokens: int
    granted: Future[Permission]


class RateLimiter:
    """Grants requests in the order in which this process asks for them.

    One thread talks to the buckets, so that no event loop waits for a database. The order between
    processes isn't defined.

    Args:
        limits: The limits.
        at: None for this process, the path of an SQLite file for the processes of one machine, or a
            postgresql:// URL for several machines.
    """

    def __init__(self, limits: RateLimits, at: str | None = None) -> None:
        self.limits = limits
        self._at = at
        self._quotas: tuple[Quota, ...] = ()
        self._changed = threading.Condition()
        self._queue: deque[_Waiting] = deque()
        self._after: deque[Callable[[], None]] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._names = count(1)
        self._prefix = token_hex(4)
        self._forgot = time.monotonic()

    def open(self) -> None:
        """Open the place of the limits, which may wait for a file or a server.

        Raises MergepointError if a package is missing, JournalError if the place can't be used.
        """
        self._quotas = quotas(self.limits, self._at)
        self._thread = threading.Thread(target=self._run, name="mergepoint-rates", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what was settled, refuse what still waits, and close the place."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        for quota in self._quotas:
            quota.close()

    def ask(self, tokens: int) -> Future[Permission]:
        """Return a future of the permission to send a request with so many tokens.

        To stop waiting, cancel it. Raises RequestTooLarge if the limits never allow so many.
        """
        quota = next((one for one in self._quotas if one.kind == "tokens"), None)
        if quota is not None and not quota.allows(tokens):
            raise RequestTooLarge(
                f"a request needs about {tokens:,} tokens, and the rate limit allows "
                f"{self.limits.tokens_per_minute:,} in "
                f"{self.limits.window:g} s, so it could never be sent; set a lower max_tokens, "
                "shorten the prompt, or raise tokens_per_minute"
            )
        waiting = _Waiting(f"{self._prefix}-{next(self._names)}", tokens, Future())
        waiting.granted.add_done_callback(self._wake_if_cancelled)
        with self._changed:
            self._queue.append(waiting)
            self._changed.notify_all()
        return waiting.granted

    def _wake_if_cancelled(self, granted: Future[Permission]) -> None:
        if granted.cancelled():
            with self._changed:
                self._changed.notify_all()

    def fresh(self, permission: Permission) -> bool:
        """Return whether a request may still be sent with a permission."""
        return time.monotonic() - permission.granted <= self.limits.margin / 2

    def settle(self, permission: Permission, tokens: int) -> None:
        """Replace the estimate of a request by its actual tokens, later in the thread."""
        if self.limits.tokens_per_minute is not None:
            self._later(lambda: correct(self._quotas, permission, tokens))

    def release(self, permission: Permission) -> None:
        """Return the permission of a request that wasn't sent, later in the thread."""
        self._later(lambda: give_back(self._quotas, permission))

    def _later(self, work: Callable[[], None]) -> None:
        with self._changed:
            self._after.append(work)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._queue or self._after or self._closing):
                    self._changed.wait(_FORGET)
                closing = self._closing
                after, self._after = self._after, deque()
                while self._queue and self._queue[0].granted.cancelled():
                    self._queue.popleft()
                first = self._queue[0] if self._queue else None
            for work in after:
                # Without the correction, the estimate counts.
                with suppress(Exception):
                    work()
            if closing:
                self._refuse_all(RailError("the rate limits of the batch are closed"))
                return
            self._forget()
            if first is not None and (wait := self._grant(first)):
                with self._changed:
                    self._changed.wait_for(partial(self._is_due, first), wait)

    def _is_due(self, first: _Waiting) -> bool:
        return bool(self._after) or self._closing or first.granted.cancelled()

    def _grant(self, first: _Waiting) -> float:
        """Grant the first request, or return the seconds to wait for it."""
        try:
            taken = self._tried(lambda: take_all(self._quotas, first.name, first.tokens))
        except RailError as error:
            self._refuse_all(error)
            return 0.0
        if isinstance(taken, int):
            return taken / 1000
        self._dequeue(first)
        if first.granted.set_running_or_notify_cancel():
            first.granted.set_result(taken)
        else:
            self.release(taken)
        return 0.0

    def _dequeue(self, first: _Waiting) -> None:
        with self._changed:
            self._queue.remove(first)

    def _tried(self, work: Callable[[], T]) -> T:
        """Return the result of work in a database, which may be restarted meanwhile."""
        until = time.monotonic() + _TRIES
        while True:
            try:
                return work()
            except Exception as error:
                if self._at is None or self._closing or time.monotonic() >= until:
                    raise RailError(
                        f"the rate limits at {mask(str(self._at))} can't be read: "
                        f"{mask(str(error))}; make sure that the file or the server can be "
                        "reached, and resume"
                    ) from error
                time.sleep(_PAUSE)

    def _forget(self) -> None:
        now = time.monotonic()
        if now - self._forgot > _FORGET:
            self._forgot = now
            with suppress(Exception):  # the next time will do
                for quota in self._quotas:
                    quota.forget()

    def _refuse_all(self, error: RailError) -> None:
        with self._changed:
            queue, self._queue = self._queue, deque()
        for waiting in queue:
            if waiting.granted.set_running_or_notify_cancel():
                waiting.granted.set_exception(error)


def rate_limits_of(limits: Mapping[str, Any]) -> RateLimits:
    """Return the rate limits among the limits of a batch. Raises ValueError."""
    names = {one.name for one in fields(RateLimits)}
    return RateLimits(**{name: limits[name] for name in names & limits.keys()})
