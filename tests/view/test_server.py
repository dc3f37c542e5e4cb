"""The server: pages and data, events until a run ends, and who is refused."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.view.serving import HandMadePages, Served, events, run_data, served

from mergepoint.view.gate_resume import ResumeCommand
from mergepoint.view.live_pages import Address
from mergepoint.view.server import ServeError, listening
from mergepoint.view.web_app import MOST_BYTES

RUN = Address("run", ("r 1",))
PATH = "/run/r%201"
GATE = "essay/approval"
LIST: dict[str, Any] = {
    "format": "mergepoint.view/1",
    "screen": "runs",
    "title": "Runs",
    "version": "1",
    "texts": [],
    "runs": [],
    "list": [],
}


@pytest.fixture
def pages() -> HandMadePages:
    """Return a list, a run that waits at a gate, and two runs that are compared."""
    found = HandMadePages()
    found.put(Address("runs"), LIST)
    found.put(RUN, run_data("r 1", "waiting", gate=GATE))
    found.put(Address("compare", ("a", "b&c")), LIST)
    found.put(Address("session", ("s/../1",)), LIST)
    return found


@pytest.fixture
def server(pages: HandMadePages) -> Iterator[Served]:
    """Yield a server of the pages, whose resume command fails at once."""
    with served(pages, ResumeCommand(["no-such-command", "--json"])) as found:
        yield found


def test_pages_and_their_data(server: Served) -> None:
    """Every page comes as HTML and as JSON, with the addresses that its script needs."""
    for path, below in (("/", "/"), (PATH, f"{PATH}/"), ("/compare?a=a&b=b%26c", "/compare/")):
        html = server.client.get(path)
        assert html.status_code == 200
        assert html.headers["content-type"] == "text/html; charset=utf-8"
        live = server.client.get(
            f"{below}data.json" + ("?a=a&b=b%26c" if "compare" in path else "")
        ).json()["live"]
        assert server.client.get(live["data"]).json()["live"] == live
        assert live["token"] in html.text
    assert server.live(PATH)["answers"] == f"{PATH}/answer"
    assert server.live("")["list"] == ""
    assert server.live(PATH)["list"] == "/"


def test_what_does_not_exist_is_not_found(server: Served) -> None:
    """A missing run is 404, as a page, as data, as events and for an answer, and says so."""
    for path in ("/run/other", "/run/other/data.json", "/run/other/events", "/session/other"):
        found = server.client.get(path)
        assert (found.status_code, found.text[:11]) == (404, "There is no")
    assert server.client.get("/compare?a=x").status_code == 404
    assert server.client.get("/nothing").status_code == 404
    assert server.client.get("/run/..%2F..%2Fetc").status_code == 404


def test_unchanged_pages_cost_nothing(server: Served) -> None:
    """A request with the ETag of the present data is answered without them, or their computing."""
    first = server.client.get(f"{PATH}/data.json")
    computed = len(server.pages.computed)
    for path in (PATH, f"{PATH}/data.json"):
        again = server.client.get(path, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert len(server.pages.computed) == computed
    assert first.headers["etag"] == first.json()["live"]["etag"]
    server.pages.put(RUN, run_data("r 1", "done"))
    changed = server.client.get(
        f"{PATH}/data.json", headers={"if-none-match": first.headers["etag"]}
    )
    assert changed.json()["runs"][0]["status"] == "done"


def test_events_follow_a_run_until_it_ends(server: Served) -> None:
    """Each change is told once, with the ETag of the new data, and the end is the last event."""
    server.pages.put(RUN, run_data("r 1", "running"), written=True)
    with server.client.stream("GET", f"{PATH}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        told = events(response)
        for number in range(3):
            name, data = next(told)
            etag = server.client.get(f"{PATH}/data.json").headers["etag"]
            assert (name, json.loads(data)) == ("changed", {"etag": etag})
            server.pages.put(RUN, run_data("r 1", "running", texts=number), written=True)
        assert next(told)[0] == "changed"
        server.pages.put(RUN, run_data("r 1", "done"))
        assert [name for name, _ in told] == ["changed", "ended"]


def test_two_viewers_share_the_work(server: Served) -> None:
    """Both are told of every change, and the data of a change are computed once."""
    server.pages.put(RUN, run_data("r 1", "running"), written=True)
    with (
        server.client.stream("GET", f"{PATH}/events") as one,
        server.client.stream("GET", f"{PATH}/events") as other,
    ):
        both = [events(one), events(other)]
        for status in ("running", "done"):
            assert [next(told)[0] for told in both] == ["changed", "changed"]
            before = len(server.pages.computed)
            found = [server.client.get(f"{PATH}/data.json").json() for _ in both]
            assert [page["runs"][0]["status"] for page in found] == [status, status]
            assert len(server.pages.computed) <= before + 1
            if status == "running":
                server.pages.put(RUN, run_data("r 1", "done"))
        assert [next(told)[0] for told in both] == ["ended", "ended"]


def test_a_run_that_waits_is_followed_further(server: Served) -> None:
    """A waiting run can be resumed from anywhere, so its events go on after it stopped."""
    with server.client.stream("GET", f"{PATH}/events") as response:
        told = events(response)
        assert next(told)[0] == "changed"
        server.pages.put(RUN, run_data("r 1", "running"), written=True)
        assert next(told)[0] == "changed"
        server.pages.put(RUN, run_data("r 1", "failed"))
        assert [name for name, _ in told] == ["changed", "ended"]


def test_a_run_that_is_deleted_while_it_is_watched_ends(server: Served) -> None:
    """The events of a run that is gone end, and its page is 404 afterwards."""
    with server.client.stream("GET", f"{PATH}/events") as response:
        told = events(response)
        assert next(told)[0] == "changed"
        del server.pages.known[RUN]
        assert [name for name, _ in told] == ["ended"]
    assert server.client.get(PATH).status_code == 404


def answer(
    server: Served, body: Any, *, headers: dict[str, str] | None = None, path: str = PATH
) -> httpx.Response:
    """Send an answer as the page does; a header of None is left out."""
    own = {
        "x-mergepoint-token": server.live(PATH)["token"],
        "origin": server.address.rstrip("/"),
        "content-type": "application/json",
        **(headers or {}),
    }
    content = body if isinstance(body, str | bytes) else json.dumps(body)
    sent = {name: value for name, value in own.items() if value}
    return server.client.post(f"{path}/answer", content=content, headers=sent)


GOOD = {"path": GATE, "decision": "approve"}


@pytest.mark.parametrize(
    "headers",
    [
        {"x-mergepoint-token": ""},
        {"x-mergepoint-token": "guessed"},
        {"x-mergepoint-token": "ä"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "https://127.0.0.1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "127.0.0.1:1"},
    ],
)
def test_answers_from_elsewhere_are_refused(server: Served, headers: dict[str, str]) -> None:
    """Without the token, the own origin and the own host, no answer is looked at."""
    headers = {name: value.encode("latin-1") for name, value in headers.items()}  # type: ignore[misc]
    refused = answer(server, GOOD, headers=headers)
    assert refused.status_code == 403


def test_a_missing_token_names_the_command_for_scripts(server: Served) -> None:
    """Who sends no token has no page, and is told how a script answers."""
    said = answer(server, GOOD, headers={"x-mergepoint-token": ""}).text
    assert "no token" in said
    assert "mergepoint resume RUN --answer" in said


def test_an_answer_from_the_page_reaches_the_command(server: Served) -> None:
    """With token, origin and host the command is run; its refusal is told in its own words."""
    for headers in ({}, {"origin": f"http://localhost:{server.port}"}, {"origin": ""}):
        refused = answer(server, GOOD, headers=headers)
        assert refused.status_code == 409
        assert "No such command" in refused.json()["message"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("{", 400, "Expecting"),
        ("[" * 100_000, 400, ""),
        ([], 400, "an object"),
        ({"decision": "approve"}, 400, "the path of a gate"),
        ({"path": GATE}, 400, "decision"),
        ({"path": GATE, "decision": "aprove"}, 400, "did you mean"),
        ({"path": GATE, "decision": "approve", "text": "x"}, 400, "takes no edits"),
        ({"path": GATE, "decision": "approve", "more": 1}, 400, "has no 'more'"),
        ({"path": "essay/draft", "decision": "approve"}, 409, "No gate waits at essay/draft"),
        ({**GOOD, "feedback": "x" * MOST_BYTES}, 413, "at most"),
        (b"\xff\xfe", 400, ""),
    ],
)
def test_answers_that_decide_nothing_are_refused(
    server: Served, body: Any, status: int, said: str
) -> None:
    """What isn't a decision about a waiting gate gets a reason, and nothing is run."""
    refused = answer(server, body)
    assert refused.status_code == status
    assert said in refused.json()["message"]


def test_an_answer_has_to_be_json(server: Served) -> None:
    """Forms of other pages can send texts without a preflight, so their types are refused."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert answer(server, GOOD, headers={"content-type": kind}).status_code == 415


def test_a_run_that_is_written_takes_no_answer(server: Served) -> None:
    """Another process asks for the decision, or has it already."""
    server.pages.put(RUN, run_data("r 1", "running", gate=GATE), written=True)
    refused = answer(server, GOOD)
    assert refused.status_code == 409
    assert "Another process" in refused.json()["message"]


def test_a_server_without_answers_takes_none(pages: HandMadePages) -> None:
    """Where answers can't be given, the page is told, and the address doesn't exist."""
    with served(pages) as server:
        assert server.live(PATH)["answers"] == ""
        assert answer(server, GOOD).status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:1", "localhost", "", "[::1]"])
def test_nothing_is_read_under_another_host(server: Served, host: str) -> None:
    """A name that an attacker points here gets neither pages, nor data, nor events."""
    for path in ("/", PATH, f"{PATH}/data.json", f"{PATH}/events"):
        found = server.client.get(path, headers={"host": host})
        assert found.status_code == 403
        assert server.live(PATH)["token"] not in found.text


WEBSOCKET = """GET /run/r%201/events HTTP/1.1\r
Host: 127.0.0.1:{port}\r
Upgrade: websocket\r
Sec-WebSocket-Version: 13\r
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r
"""


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil.example\r\n",
        "GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n",
        WEBSOCKET,
    ],
)
def test_requests_that_no_browser_sends_are_refused(server: Served, head: str) -> None:
    """No host, two hosts, another host, or a websocket: none of them gets a page."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        end = b"Connection: Upgrade\r\n\r\n" if head is WEBSOCKET else b"Connection: close\r\n\r\n"
        connection.sendall(head.format(port=server.port).encode() + end)
        status = connection.recv(4096).split(b"\r\n")[0].decode()
    assert status.split()[1] in ("400", "403")


def test_every_response_has_the_headers(server: Served) -> None:
    """Pages aren't framed, guessed at, kept without asking, or read by other origins."""
    for path in ("/", PATH, f"{PATH}/data.json", "/nothing", "/run/other"):
        headers = server.client.get(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == "no-cache"
        assert "access-control-allow-origin" not in headers
    refused = server.client.get("/", headers={"host": "evil.example"}).headers
    assert refused["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"


def test_only_get_and_post_are_known(server: Served) -> None:
    """Other methods change nothing, and a preflight of another origin isn't allowed."""
    for method in ("PUT", "DELETE", "PATCH"):
        assert server.client.request(method, PATH).status_code == 405
    preflight = server.client.request(
        "OPTIONS",
        f"{PATH}/answer",
        headers={"origin": "http://evil.example", "access-control-request-method": "POST"},
    )
    assert preflight.status_code == 403
    assert "access-control-allow-origin" not in preflight.headers


def test_a_port_in_use_is_told() -> None:
    """Two servers can't have one port; the message names the way out."""
    with listening(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServeError, match=f"can't listen on 127.0.0.1:{port}: .*--port"):
            listening(port)
