"""Who is let in: hosts, origins, logins, the secret; and what is laid out for the page."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.apps.command import command

from mergepoint.apps.chainlit.security import (
    Attempts,
    ExternalLinkFilter,
    LoginError,
    Logins,
    RequestGuard,
    login_line,
)
from mergepoint.apps.chainlit.web_server import (
    AppFolderError,
    app_folder,
    is_loopback,
    login_secret,
)
from mergepoint.core.errors import install_command

HOSTS = {"localhost", "127.0.0.1", "::1"}


def status(scope: dict[str, Any], *, hosts: set[str] | None = HOSTS) -> int:
    """Return what a request is answered with; 1008 closes a socket."""
    sent: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    keeper = RequestGuard(inner, hosts=hosts, origins=["http://localhost:8000"])
    asyncio.run(keeper(scope, receive, send))
    found: int = sent[0].get("status") or sent[0]["code"]
    return found


def request(method: str = "GET", kind: str = "http", **headers: str) -> dict[str, Any]:
    """Return a request with headers."""
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": kind, "method": method, "headers": pairs}


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST"])
def test_this_machine_is_let_in(host: str) -> None:
    """Every name of this machine is one."""
    assert status(request(host=host)) == 200


@pytest.mark.parametrize("host", ["evil.example", "", "localhost.evil.example:8000", "[::2]"])
def test_another_host_is_not(host: str) -> None:
    """A name that was made to point here is refused, in requests and in sockets."""
    assert status(request(host=host)) == 403
    assert status(request(kind="websocket", host=host)) == 1008


def test_another_origin_is_not() -> None:
    """A page from elsewhere may neither change anything nor open a socket."""
    own = {"host": "localhost:8000", "origin": "http://localhost:8000"}
    strange = {"host": "localhost:8000", "origin": "http://evil.example"}
    assert status(request("POST", **own)) == status(request(kind="websocket", **own)) == 200
    assert status(request("POST", **strange)) == 403
    assert status(request(kind="websocket", **strange)) == 1008


def test_a_public_server_knows_its_own_origin() -> None:
    """Where every host is let in, a page of that very host may do what it does."""
    own = {"host": "here.example", "origin": "https://here.example"}
    assert status(request("POST", **own), hosts=None) == 200
    assert status(request("POST", host="here.example", origin="null"), hosts=None) == 403


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/json"])
def test_a_page_links_to_nothing_elsewhere(kind: str) -> None:
    """Fonts and styles of other servers are taken out of HTML, and out of nothing else."""
    page = (
        b'<head><link rel="preconnect" href="https://fonts.example" crossorigin />\n'
        b'<link\n  href="https://fonts.example/css2?family=Inter&display=swap"\n/>'
        b'<link rel="stylesheet" href="/public/page.css"></head>'
    )
    sent: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        assert dict(scope["headers"]).keys() == {b"accept"}  # so that it is not compressed
        headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(page))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": page[:60], "more_body": True})
        await send({"type": "http.response.body", "body": page[60:]})

    async def send(message: Any) -> None:
        sent.append(message)

    headers = {"accept": "text/html,*/*", "accept-encoding": "gzip"}
    asyncio.run(ExternalLinkFilter(inner)(request(**headers), None, send))
    body = b"".join(one.get("body", b"") for one in sent)
    own = b'<head><link rel="stylesheet" href="/public/page.css"></head>'
    assert body == (own if kind.startswith("text/html") else page)
    assert int(dict(sent[0]["headers"])[b"content-length"]) == len(body)


def test_logins_that_fail_wait() -> None:
    """After ten from one address the next are refused, until the first are five minutes old."""
    asked: list[str] = []

    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["client"][0])
        await send({"type": "http.response.start", "status": 401, "headers": []})

    async def tried(keeper: RequestGuard, address: str, path: str = "/login") -> Any:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {**request("POST", host="localhost"), "path": path, "client": (address, 1)}
        await keeper(scope, None, send)
        return sent[0]

    async def work() -> None:
        keeper = RequestGuard(refusing, hosts=HOSTS, origins=[])
        for _ in range(10):
            assert (await tried(keeper, "10.0.0.1"))["status"] == 401
        refused = await tried(keeper, "10.0.0.1")
        assert refused["status"] == 429
        assert 0 < int(dict(refused["headers"])[b"retry-after"]) <= 300
        assert len(asked) == 10
        assert (await tried(keeper, "10.0.0.2"))["status"] == 401
        assert (await tried(keeper, "10.0.0.1", "/logout"))["status"] == 401

    asyncio.run(work())


def test_failed_attempts_are_forgotten() -> None:
    """An attempt counts for five minutes, and names that were made up fill no memory."""
    now = [0.0]
    attempts = Attempts(2, clock=lambda: now[0])
    assert attempts.wait("ada") == 0
    attempts.add_failure("ada")
    now[0] = 100.0
    attempts.add_failure("ada")
    assert attempts.wait("ada") == 200.0
    assert attempts.wait("grace") == 0
    now[0] = 300.0
    assert attempts.wait("ada") == 0
    for number in range(20_000):
        attempts.add_failure(str(number))
    assert len(attempts._failures) == 10_000


def test_logins_hold_no_password(tmp_path: Path) -> None:
    """A line lets its own password in and no other, and does not hold it."""
    line = login_line("ada", "lövelace")
    path = tmp_path / "logins.txt"
    path.write_text(f"# who may\n\n{line}\n")
    logins = Logins.read(path)
    assert "lövelace" not in line
    assert logins.matches("ada", "lövelace")
    assert not logins.matches("ada", "lovelace")
    assert not logins.matches("bob", "")
    assert login_line("ada", "x") != login_line("ada", "x")


def test_a_file_of_logins_lists_every_fault(tmp_path: Path) -> None:
    """Lines that are none are named with their numbers, and an empty file lets nobody in."""
    line = login_line("ada", "x")
    path = tmp_path / "logins.txt"
    path.write_text(f"{line}\nbob:secret\n{line}\nbare\n")
    with pytest.raises(
        LoginError, match=r":2: the line isn't.*\n.*:3: ada occurs.*\n.*:4: the line isn't"
    ):
        Logins.read(path)
    path.write_text("# nobody\n")
    with pytest.raises(LoginError, match="the file has no logins"):
        Logins.read(path)
    with pytest.raises(LoginError, match="can't read"):
        Logins.read(tmp_path / "missing")


@pytest.mark.parametrize(("name", "password"), [("a:b", "x"), ("", "x"), ("#a", "x"), ("a", "")])
def test_names_that_a_file_cannot_hold_are_refused(name: str, password: str) -> None:
    """A name or password that would not be found again makes no line."""
    with pytest.raises(LoginError):
        login_line(name, password)


def test_the_secret_is_made_once_for_its_owner(tmp_path: Path) -> None:
    """It is the same at every start, nobody else may read it, and another is refused."""
    found = login_secret(tmp_path)
    assert login_secret(tmp_path) == found
    path = tmp_path / "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(AppFolderError, match="other users can read"):
        login_secret(tmp_path)
    path.chmod(0o600)
    path.write_text("")
    with pytest.raises(AppFolderError, match="delete it"):
        login_secret(tmp_path)


def test_the_page_works_beside_its_sessions() -> None:
    """The folder of the page is in that of the sessions, and for a database in the user's own."""
    assert app_folder("sessions") == Path("sessions/.ui")
    assert app_folder("sqlite:///x.db").parts[-2:] == ("mergepoint", "ui")


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("x", False)],  # noqa: S104
)
def test_loopback_is_told_from_the_world(host: str, *, here: bool) -> None:
    """Only addresses of this machine are served without a login."""
    assert is_loopback(host) is here


def test_without_the_extra_it_says_what_to_install() -> None:
    """The command ends with exit code 2 and the line that installs what is missing."""
    if find_spec("chainlit") is not None:
        pytest.skip("Chainlit is installed here")
    done = command("ui", "--headless")
    assert done.code == 2
    assert install_command("chainlit") in done.err


@pytest.mark.chainlit
def test_a_tree_that_no_message_can_run_is_refused() -> None:
    """Inputs that a page cannot give are named before it is served."""
    done = command("ui", "plan_approve", "--headless", "--port", "0")
    assert done.code == 2
    assert "plan_approve needs the inputs 'topic', and a page has only messages" in done.err


def test_help_has_examples() -> None:
    """The help shows how it is started."""
    done = command("ui", "--help")
    assert done.code == 0
    assert "mergepoint ui --host 0.0.0.0 --login logins.txt" in done.out
    assert "Examples:" in done.out


@pytest.mark.campaign
def test_the_command_loads_no_chainlit() -> None:
    """Neither the library nor the command imports it before a page is served."""
    program = "import mergepoint.apps.cli.app, mergepoint.apps.chainlit.web_server, sys;"
    program += "print([one for one in sys.modules if one.startswith(('chainlit', 'fastapi'))])"
    done = subprocess.run(  # noqa: S603  (our own interpreter)
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"


def test_a_password_is_read_from_a_pipe() -> None:
    """Without a terminal the line is the password, and without a line it is refused."""
    done = command("ui", "--new-login", "ada", given="a lantern\n")
    assert done.code == 0
    assert Logins({"ada": done.out.strip().partition(":")[2]}).matches("ada", "a lantern")
    refused = command("ui", "--new-login", "ada", given="")
    assert (refused.code, refused.out) == (2, "")
    assert "pass the password through a pipe" in refused.err
