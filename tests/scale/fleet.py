"""A batch of seven calls each, a server that counts them, and drivers that can be killed."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Self

from mergepoint.scale import BatchEngine, BatchInput, BatchResult, RunSpec
from mergepoint.scale.run_spec import installed_version, store_at_place, target_of
from mergepoint.scale.worker import LimitedRuns, members_of

CALLS = 7
TREE = "\n".join(
    [
        "name: parts",
        "inputs: [topic]",
        "merge: last_response",
        "nodes:",
        *(
            f"  - name: part_{number}\n"
            f'    prompt: {{template: "Part {number} of {{{{ topic }}}}."}}\n'
            "    merge: last_response"
            for number in range(1, CALLS + 1)
        ),
    ]
)


class CountingModel:
    """An OpenAI-compatible server that counts the whole answers that a living client got.

    It answers "Part 3 of q1." with "Done: Part 3 of q1.". An answer that its client didn't read,
    because it was killed, doesn't count: such a call never finished.
    """

    def __init__(self, *, delay: float) -> None:
        self._delay = delay
        self._counts = Counter[str]()
        self.last: dict[str, float] = {}
        """When each request was answered last, also if its client didn't read it."""
        self.url = ""
        self._loop = asyncio.new_event_loop()

    @property
    def answered(self) -> int:
        """Return the number of answers."""
        return self._counts.total()

    @property
    def repeated(self) -> int:
        """Return the number of answers to requests that had one already."""
        return sum(number - 1 for number in self._counts.values())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered = ""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                answered = ""
                length = re.search(rb"content-length: (\d+)", head.lower())
                assert length is not None
                body = json.loads(await reader.readexactly(int(length[1])))
                await asyncio.sleep(self._delay)
                if reader.at_eof():
                    return
                asked = str(body["messages"][-1]["content"])
                answered = asked
                self.last[asked] = time.time()
                self._counts[asked] += 1
                writer.write(_response(asked))
                await writer.drain()
        except ConnectionError:
            # A process with many threads lives on for a while after SIGKILL, in which its
            # connections are open and nobody reads. With an unread answer they end with a reset;
            # if all was read, with an EOF.
            if answered:
                self._counts[answered] -= 1
        except (asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            writer.close()

    def __enter__(self) -> Self:
        started = threading.Event()

        async def begin() -> asyncio.Server:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            started.set()
            return server

        def work() -> None:
            server = self._loop.run_until_complete(begin())
            self._loop.run_forever()
            server.close()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0.1))
            self._loop.close()

        self._thread = threading.Thread(target=work, name="CountingModel", daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _response(asked: str) -> bytes:
    message = {"role": "assistant", "content": f"Done: {asked}"}
    plain = {
        "id": "answer",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10},
    }
    body = json.dumps(plain).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def spec_of(store: str, url: str, *, batch: str = "fleet", target: str = TREE) -> RunSpec:
    """Return the spec of a batch whose calls go to a server."""
    options = {"model": "openai:scripted", "base_url": url, "timeout": 30.0}
    plain: dict[str, Any] = {
        "batch": batch,
        "target": target,
        "kind": "yaml",
        "store": store,
        "options": options,
    }
    draft = RunSpec(**plain, version=installed_version(), fingerprint="")
    found = target_of(draft)
    members = members_of(found, options, store_at_place(store), LimitedRuns(draft))
    print_of = members.fingerprint
    return RunSpec(**plain, version=draft.version, fingerprint=print_of)


async def numbered(count: int, *, without: Iterable[str] = ()) -> AsyncIterator[BatchInput]:
    """Yield inputs "q0", "q1" and so on."""
    known = set(without)
    for number in range(count):
        if f"q{number}" not in known:
            yield BatchInput(id=f"q{number}", value={"topic": f"q{number}"}, number=number)


def is_right(result: BatchResult) -> bool:
    """Return whether a result is the answer to its own input's last part."""
    return result.status == "done" and result.text == f"Done: Part {CALLS} of {result.id}."


async def all_results(engine: BatchEngine, spec: RunSpec, count: int) -> list[BatchResult]:
    """Return the results of a batch."""
    return [result async for result in engine.results(spec, numbered(count))]


def lines_of(out: Path) -> list[BatchResult]:
    """Return the complete lines of a results file."""
    if not out.exists():
        return []
    text = out.read_text()
    return [
        BatchResult.from_plain(json.loads(line))
        for line in text[: text.rfind("\n") + 1].splitlines()
    ]


async def drive(engine: BatchEngine, spec: RunSpec, count: int, out: Path) -> None:
    """Append the results that a file doesn't have yet, as `batch` does."""
    known = [one.id for one in lines_of(out)]
    with out.open("a") as file:
        async for result in engine.results(spec, numbered(count, without=known)):
            file.write(json.dumps(result.to_plain()) + "\n")
            file.flush()


def waited(holds: Callable[[], bool], what: str, seconds: float) -> None:
    """Wait until something holds. Raises AssertionError that says what for."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds:g} seconds for {what}"
        time.sleep(0.2)


def main() -> None:
    """Drive a batch: the engine's name and options, the spec, the count, and the file."""
    kind, options, spec, count, out = sys.argv[1:]
    engine: BatchEngine
    if kind == "ray":
        from mergepoint.scale.ray_engine import RayEngine

        engine = RayEngine(**json.loads(options))
    else:
        from mergepoint.scale.queue_engine import QueueEngine

        engine = QueueEngine(**json.loads(options))
    asyncio.run(drive(engine, RunSpec.from_plain(json.loads(spec)), int(count), Path(out)))


if __name__ == "__main__":
    main()
