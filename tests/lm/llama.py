"""A llama.cpp server as a child process, and a proxy before it that counts what it answers."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

SERVE = Path(__file__).with_name("serve.py")
MODEL = "openai:smollm2"
CONTEXT = 4096  # tokens of each slot


@dataclass(frozen=True)
class Llama:
    """A running server: its process and its port."""

    process: subprocess.Popen[str]
    port: int

    @property
    def url(self) -> str:
        """Return the base URL of its OpenAI-compatible interface."""
        return f"http://127.0.0.1:{self.port}/v1"

    def stop(self) -> int:
        """Close its stdin, wait for its end, and return its exit code."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        return self.process.wait(timeout=60)


@contextmanager
def llama(log: Path) -> Iterator[Llama]:
    """Run a server until the block is left; what llama.cpp logs goes to a file."""
    command = [sys.executable, str(SERVE), "--context", str(CONTEXT)]
    with (
        log.open("w") as errors,
        subprocess.Popen(  # noqa: S603  (this interpreter)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        line = process.stdout.readline() if process.stdout is not None else ""
        if not line.strip().isdigit():
            process.wait(timeout=60)
            raise RuntimeError(f"no server; the last lines of its log:\n{log.read_text()[-2000:]}")
        serving = Llama(process, int(line))
        try:
            yield serving
        finally:
            serving.stop()


@dataclass
class Proxy:
    """Passes requests on to a server on this machine, and keeps what was asked and answered.

    `asked` holds the body of each request, `answered` the status of those whose answer came back
    whole.
    """

    port: int
    asked: list[dict[str, Any]] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    listener: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """Return the base URL of the proxy."""
        assert self.listener is not None
        return f"http://127.0.0.1:{self.listener.server_port}/v1"

    @contextmanager
    def serving(self) -> Iterator[Proxy]:
        """Serve until the block is left."""
        self.listener = _Listener(self)
        thread = threading.Thread(target=self.listener.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self.listener.shutdown()
            thread.join()
            self.listener.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that were killed."""


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def do_POST(self) -> None:
        """Pass a request on, and its answer back, piece by piece."""
        proxy = cast("_Listener", self.server).proxy
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with proxy.lock:
            proxy.asked.append(json.loads(body))
        with closing(http.client.HTTPConnection("127.0.0.1", proxy.port)) as server:
            server.request("POST", self.path, body, {"Content-Type": "application/json"})
            answer = server.getresponse()
            with suppress(OSError):  # the client was killed
                self._pass_on(answer)
                with proxy.lock:
                    proxy.answered.append(answer.status)
            answer.close()

    def _pass_on(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", str(answer.headers["Content-Type"]))
        self.end_headers()
        while piece := answer.read1(4096):
            self.wfile.write(piece)
