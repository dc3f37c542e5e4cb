"""Pages that a server shows: their data, computed once per change, and the events that follow."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import quote, urlencode

from mergepoint.core.errors import MergepointError
from mergepoint.view.page import page_json

PAUSE = 0.3
"""Seconds between two looks at what a page shows."""

_MOST_KEPT = 4  # pages whose data stay in memory: those of 10,000 calls take 26 MB


class NoSuchPage(MergepointError, LookupError):
    """A run or session that doesn't exist."""


@dataclass(frozen=True, slots=True)
class Address:
    """A page of the server: the list, a run, a session, or two runs that are compared."""

    kind: Literal["runs", "run", "session", "compare"]
    ids: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Return the page's path on the server, quoted."""
        if self.kind == "runs":
            return "/"
        if self.kind == "compare":
            return "/compare?" + urlencode(dict(zip("ab", self.ids, strict=True)))
        return f"/{self.kind}/{quote(self.ids[0], safe='')}"

    def below(self, name: str) -> str:
        """Return the path of something that belongs to the page, such as its data."""
        path, _, query = self.path.partition("?")
        return f"{path.rstrip('/')}/{name}" + (f"?{query}" if query else "")


@dataclass(frozen=True, slots=True)
class PageState:
    """A cheap view of what a page shows.

    `stamp` changes whenever the page's data do. `written` says whether a process writes it now.
    """

    stamp: str
    written: bool = False


class Pages(Protocol):
    """The runs and sessions that a server shows. Called in threads, by many viewers at once."""

    def state(self, address: Address) -> PageState:
        """Return the state of a page. Raises NoSuchPage if there is no such run or session."""
        ...

    def data(self, address: Address) -> Mapping[str, Any]:
        """Return the data of a page (see page.d.ts), without its part `live`.

        Raises NoSuchPage if there is no such run or session, and MergepointError if it can't be
        read.
        """
        ...


@dataclass(frozen=True, slots=True)
class BuiltPage:
    """The data of a page as JSON, and whether what it shows may still change by itself."""

    etag: str
    json: bytes
    waiting: frozenset[str]
    live: bool


class PageCache:
    """The data of pages: several viewers of a page share what is computed for it.

    Args:
        pages: The runs and sessions.
        token: Token that answers at gates have to bring along.
        answers: Whether answers at gates can be given.
        enqueues: Whether a run whose gate is answered waits in a queue for a worker.
    """

    def __init__(self, pages: Pages, *, token: str, answers: bool, enqueues: bool = False) -> None:
        self.token = token
        self._pages = pages
        self._answers = answers
        self._enqueues = enqueues
        self._built: OrderedDict[Address, BuiltPage] = OrderedDict()
        self._locks: dict[Address, asyncio.Lock] = {}

    async def state(self, address: Address) -> PageState:
        """Return the state of a page. Raises NoSuchPage if there is no such run or session."""
        return await asyncio.to_thread(self._pages.state, address)

    def state_now(self, address: Address) -> PageState:
        """Return the state of a page, as `state`, while nothing else runs."""
        return self._pages.state(address)

    async def etag(self, address: Address) -> str:
        """Return what identifies the present data of a page. Raises NoSuchPage, as `state`."""
        return self._etag(await self.state(address))

    async def built(self, address: Address) -> BuiltPage:
        """Return the present data of a page. Raises MergepointError, as `Pages.data`."""
        async with self._locks.setdefault(address, asyncio.Lock()):
            # Before the data: what is written in between makes another state, and is fetched then.
            state = await self.state(address)
            known = self._built.get(address)
            if known is None or known.etag != self._etag(state):
                known = await asyncio.to_thread(self._build, address, state)
                self._built[address] = known
            self._built.move_to_end(address)
            while len(self._built) > _MOST_KEPT:
                gone, _ = self._built.popitem(last=False)
                self._locks.pop(gone, None)
        return known

    async def events(self, address: Address) -> AsyncIterator[dict[str, str]]:
        """Yield an event for each change of a page, and one when its run has ended."""
        sent, before = "", None
        while True:
            try:
                state = await self.state(address)
            except NoSuchPage:  # deleted while it was watched
                break
            if (etag := self._etag(state)) != sent:
                yield _event("changed", {"etag": etag})
                sent = etag
            # Twice the same: files are written after the journal is closed, such as the transcript.
            elif state == before and await self._is_over(address, state):
                break
            before = state
            await asyncio.sleep(PAUSE)
        yield _event("ended", {})

    async def _is_over(self, address: Address, state: PageState) -> bool:
        if address.kind != "run" or state.written:
            return False
        return not (await self.built(address)).live

    def _etag(self, state: PageState) -> str:
        # The token is part of the data, and belongs to this server.
        whole = f"{self.token}\n{state.written}\n{state.stamp}"
        return f'"{hashlib.sha256(whole.encode()).hexdigest()[:32]}"'

    def _build(self, address: Address, state: PageState) -> BuiltPage:
        data = dict(self._pages.data(address))
        etag = self._etag(state)
        is_run = address.kind == "run"
        run: Mapping[str, Any] = data["runs"][0] if is_run else {"status": "", "calls": []}
        waiting = frozenset(
            str(call["path"])
            for call in run["calls"]
            if call["kind"] == "gate" and call["status"] == "waiting"
        )
        data["live"] = {
            "data": address.below("data.json"),
            "etag": etag,
            "events": "" if address.kind == "compare" else address.below("events"),
            "answers": address.below("answer") if is_run and self._answers else "",
            "enqueues": self._enqueues,
            "token": self.token,
            "list": "" if address.kind == "runs" else "/",
            "compare": "/compare",
        }
        json = page_json(data)
        # A run that waits can be resumed here or by the command, and is followed further.
        return BuiltPage(
            etag, json, waiting, live=run["status"] in ("queued", "running", "waiting")
        )


def _event(name: str, data: Mapping[str, Any]) -> dict[str, str]:
    return {"event": name, "data": page_json(data).decode()}
