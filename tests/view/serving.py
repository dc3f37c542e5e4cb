"""A real server on loopback in a thread, and pages that a test changes by hand."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from mergepoint.view.gate_resume import ResumeCommand
from mergepoint.view.live_pages import Address, NoSuchPage, PageState
from mergepoint.view.server import ViewServer, address_of, listening, web_server

WAIT = 60.0
"""Seconds after which a server that says nothing counts as hanging."""


def usage() -> dict[str, Any]:
    """Return the usage of no call."""
    return {"calls": 0, "input_tokens": 0, "output_tokens": 0, "cost": None, "estimated": False}


def run_data(run_id: str, status: str, *, gate: str = "", texts: int = 0) -> dict[str, Any]:
    """Return the data of a page of a run; `gate` is the path of a waiting gate."""
    gates = [
        {
            "path": gate,
            "node": 0,
            "kind": "gate",
            "status": "waiting",
            "lead": [],
            "state": -1,
            "prompt": -1,
            "decision": {"question": 0, "decision": "", "held": [], "kept": []},
        }
    ]
    run = {
        "id": run_id,
        "graph": "essay",
        "kind": "tree",
        "status": status,
        "verdict": f"The run is {status}.",
        "nodes": [],
        "calls": gates if gate else [],
        "messages": [],
        "states": [],
        "paid": usage(),
        "reused": usage(),
    }
    return {
        "format": "mergepoint.view/1",
        "screen": "run",
        "title": run_id,
        "version": "1",
        "texts": ["Publish it?", *(f"text {n}" for n in range(texts))],
        "runs": [run],
    }


@dataclass
class HandMadePages:
    """Pages by their addresses, and how often the data of each were computed."""

    known: dict[Address, dict[str, Any]] = field(default_factory=dict)
    written: set[Address] = field(default_factory=set)
    computed: list[Address] = field(default_factory=list)
    changes: int = 0

    def state(self, address: Address) -> PageState:
        """Return the state of a page."""
        if address not in self.known:
            raise NoSuchPage(f"There is no {address.kind} {address.ids}.")
        return PageState(f"{self.changes}", written=address in self.written)

    def data(self, address: Address) -> Mapping[str, Any]:
        """Return the data of a page."""
        self.computed.append(address)
        return self.known[address]

    def put(self, address: Address, data: dict[str, Any], *, written: bool = False) -> None:
        """Change a page."""
        self.known[address] = data
        (self.written.add if written else self.written.discard)(address)
        self.changes += 1


@dataclass
class Served:
    """A server that runs: its address, a client, and the commands that it would run."""

    address: str
    client: httpx.Client
    pages: HandMadePages

    @property
    def port(self) -> int:
        """Return the port."""
        return int(self.address.rstrip("/").rpartition(":")[2])

    def live(self, path: str) -> dict[str, Any]:
        """Return what the page at a path knows about its server."""
        found: dict[str, Any] = self.client.get(f"{path}/data.json").json()["live"]
        return found


@contextlib.contextmanager
def served(pages: HandMadePages, resume: ResumeCommand | None = None) -> Iterator[Served]:
    """Serve pages until the block ends."""
    server = ViewServer(pages=pages, resume=None if resume is None else lambda *_: resume)
    with listening(0) as listener:
        web, _ = web_server(server, listener)
        thread = threading.Thread(target=web.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            with httpx.Client(base_url=address_of(listener), timeout=WAIT) as client:
                yield Served(address_of(listener), client, pages)
        finally:
            web.should_exit = True
            thread.join(WAIT)
            assert not thread.is_alive()


def events(response: httpx.Response) -> Iterator[tuple[str, str]]:
    """Yield name and data of each event of a stream, without its pings."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, line.removeprefix("data: ")
