"""Chainlit's data layer on sessions: each trap that its calls hold, without a browser."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("chainlit")

from chainlit.context import context_var, init_ws_context
from chainlit.data.base import BaseDataLayer
from chainlit.element import Text
from chainlit.session import WebsocketSession, ws_sessions_id, ws_sessions_sid
from chainlit.types import Feedback, Pagination, ThreadFilter
from chainlit.user import User
from fastapi import HTTPException

from mergepoint import Block, SessionMemory, Step, TurnRunner
from mergepoint.apps.chainlit.data_layer import REQUESTER, FileDataLayer
from mergepoint.apps.chainlit.shown_step import shown_id, without_paths
from mergepoint.apps.chainlit.threads import Threads
from mergepoint.session.session_memory import Sessions
from mergepoint.session.session_store import FileSessions, sessions_at
from mergepoint.testing.scripted_model import ScriptedModel

pytestmark = pytest.mark.chainlit

TREE = Block(
    [
        Step("Plan.", name="plan", merge="none", meta={"step_type": "plan"}),
        Step("Answer.", name="answer"),
    ],
    name="chat",
)
THREAD = "11111111-1111-4111-8111-111111111111"


@pytest.fixture(params=["files", "sqlite"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Sessions:
    """Return an empty place of each kind."""
    if request.param == "sqlite":
        pytest.importorskip("sqlalchemy")
        return sessions_at(f"sqlite:///{tmp_path / 'sessions.db'}")
    return sessions_at(tmp_path / "sessions")


@pytest.fixture
def layer(sessions: Sessions) -> FileDataLayer:
    """Return a data layer there."""
    return FileDataLayer(Threads(sessions, TREE), local="local")


def asyncly(work: Callable[[], Awaitable[None]]) -> None:
    """Run what a test does on a loop of its own, for a page that is in use."""

    async def run() -> None:
        with page(interacted=True):
            await work()

    asyncio.run(run())


def step(key: str, **fields: Any) -> Any:
    """Return a step of the page's own, as Chainlit hands it over."""
    given: dict[str, Any] = {
        "id": key,
        "threadId": THREAD,
        "parentId": None,
        "name": "mergepoint",
        "type": "assistant_message",
        "output": "",
        "input": "",
        "metadata": {},
        "createdAt": "2026-01-31T09:30:00.000000Z",
    }
    return {**given, **fields}


def said(sessions: Sessions, text: str = "Hi.", thread: str = THREAD) -> SessionMemory:
    """Have a turn in a thread."""
    memory = sessions.open(thread, create=True)
    model = ScriptedModel([f"The plan of {text}", f"The answer to {text}"])
    TurnRunner(TREE, model=model).run(memory, text, message_id=str(uuid.uuid4()))
    return memory


async def whole(layer: FileDataLayer, thread: str = THREAD) -> Any:
    """Return a thread, which is there."""
    found = await layer.get_thread(thread)
    assert found is not None
    return found


@contextmanager
def page(*, interacted: bool) -> Iterator[tuple[WebsocketSession, list[tuple[str, Any]]]]:
    """Yield the session of a page on the thread, and what it is sent."""
    sent: list[tuple[str, Any]] = []

    async def emit(event: str, data: Any) -> None:
        sent.append((event, data))

    session = WebsocketSession(
        id=str(uuid.uuid4()),
        socket_id=str(uuid.uuid4()),
        emit=emit,
        emit_call=emit,
        user_env={},
        client_type="webapp",
        thread_id=THREAD,
    )
    session.has_first_interaction = interacted
    before = context_var.get(None)
    init_ws_context(session)
    try:
        yield session, sent
    finally:
        if before is not None:
            context_var.set(before)
        ws_sessions_id.pop(session.id)
        ws_sessions_sid.pop(session.socket_id)


def test_nothing_of_a_data_layer_is_missing(layer: FileDataLayer) -> None:
    """Each of Chainlit's abstract methods is there, and the queued ones are queued."""
    assert len(BaseDataLayer.__abstractmethods__) == 18
    queue_until_message = (
        "create_element",
        "delete_element",
        "create_step",
        "update_step",
        "delete_step",
    )

    async def work() -> None:
        with page(interacted=False) as (session, _):
            for name in queue_until_message:
                await getattr(layer, name)(step("a"))
            assert [*session.thread_queues] == [*queue_until_message]

    asyncly(work)


def test_an_open_page_makes_no_thread(layer: FileDataLayer, sessions: Sessions) -> None:
    """What a page says before its first message waits for it."""

    async def work() -> None:
        key = str(uuid.uuid4())
        with page(interacted=False) as (session, _):
            await layer.create_step(step(key, output="Welcome."))
            assert not sessions.has(THREAD)
            session.has_first_interaction = True
            await layer.update_thread(THREAD, name="Hi.", user_id="u")
            await session.flush_method_queue()
        assert [one["output"] for one in (await whole(layer))["steps"]] == ["Welcome."]

    asyncly(work)


def test_a_thread_is_what_the_session_says(layer: FileDataLayer, sessions: Sessions) -> None:
    """Message, plan and answer come from the session, each once, and nothing is stored for them."""
    memory = said(sessions)
    rows = sessions.beside("chainlit", THREAD)

    async def work() -> None:
        steps = (await whole(layer))["steps"]
        shown = [(one["type"], one["name"], one["output"]) for one in steps]
        kind, cost, calls = shown.pop()
        assert kind == "llm"
        assert cost.startswith("2 calls · 12 tokens · cost unknown · ")
        assert calls.count("\n") == 3
        assert shown == [
            ("user_message", "user", "Hi."),
            ("run", "on_message", ""),
            ("tool", "Plan", "The plan of Hi."),
            ("assistant_message", "mergepoint", "The answer to Hi."),
            (
                "system_message",
                "mergepoint",
                f"[How this answer was made](/xray/{THREAD}#run={THREAD}.1&call=chat/answer)",
            ),
        ]
        assert steps[0]["id"] == memory.get_messages()[0].id
        assert [one["parentId"] for one in steps[1:]] == [steps[0]["id"], *[steps[1]["id"]] * 4]
        for one in steps:  # Chainlit hands over what it shows, and again when it changes
            await layer.create_step(one)
            await layer.update_step(one)
        assert (await whole(layer))["steps"] == steps
        assert rows.rows() == []

    asyncly(work)


def test_the_step_around_a_turn_keeps_chainlits_id(
    layer: FileDataLayer, sessions: Sessions
) -> None:
    """Feedback names the step that Chainlit put around a turn, so its id is kept, and no text."""
    memory = said(sessions)
    asked = memory.get_messages()[0].id

    async def work() -> None:
        run = str(uuid.uuid4())
        around = step(run, type="run", name="on_message", parentId=asked, input="Hi.")
        await layer.create_step(around)
        await layer.update_step({**around, "end": "2026-01-31T09:30:09.000000Z"})
        feedback = Feedback(forId=run, value=1, threadId=THREAD, comment="good")
        key = await layer.upsert_feedback(feedback)
        assert await layer.upsert_feedback(feedback) == key
        steps = {one["id"]: one for one in (await whole(layer))["steps"]}
        assert steps[run]["feedback"] == {"id": key, "forId": run, "value": 1, "comment": "good"}
        assert sum(one["parentId"] == run for one in steps.values()) == 4
        assert "Hi." not in str(sessions.beside("chainlit", THREAD).rows())
        assert await layer.delete_feedback(key)
        assert not await layer.delete_feedback(key)
        assert {one["feedback"] for one in (await whole(layer))["steps"]} == {None}

    asyncly(work)


@pytest.mark.parametrize("named", [True, False])
def test_feedback_is_the_owners(
    layer: FileDataLayer,
    sessions: Sessions,
    named: bool,  # noqa: FBT001
) -> None:
    """Nobody else writes, changes or takes back what was thought of an answer."""
    said(sessions)

    async def work() -> None:
        run = next(one["id"] for one in (await whole(layer))["steps"])
        thread = THREAD if named else None
        REQUESTER.set("local")
        key = await layer.upsert_feedback(Feedback(forId=run, value=1, threadId=thread))
        REQUESTER.set("mallory")
        for given in (None, key):
            with pytest.raises(HTTPException, match="This thread doesn't exist"):
                await layer.upsert_feedback(Feedback(id=given, forId=run, value=0, threadId=thread))
        with pytest.raises(HTTPException, match="This thread doesn't exist"):
            await layer.delete_feedback(key)
        REQUESTER.set("local")
        assert layer.threads.rows(THREAD).feedback[key]["value"] == 1
        assert await layer.delete_feedback(key)

    asyncio.run(work())


def test_errors_tell_a_client_no_paths(layer: FileDataLayer, sessions: Sessions) -> None:
    """Of a file that cannot be read the page names the file, and not where it lies."""
    for text, safe in (
        (
            "can't write to /srv/me/sessions/a/journal.jsonl: full",
            "can't write to journal.jsonl: full",
        ),
        ("'/srv/a b' is gone, sqlite:////srv/me/s.db too", "'a b' is gone, s.db too"),
        (r"C:\Users\me\x.yaml, ~/me/y.yaml", "x.yaml, y.yaml"),
        (
            "plan/approval and 1/2 of text/plain at https://x.org",
            "plan/approval and 1/2 of text/plain at https://x.org",
        ),
    ):
        assert without_paths(text) == safe

    async def work() -> None:
        if isinstance(sessions, FileSessions):
            said(sessions)
            (sessions.folder / THREAD / "journal.jsonl").write_text("nothing\n", encoding="utf-8")
            shown = (await whole(layer))["steps"][-1]["output"]
            assert "journal.jsonl" in shown
            assert str(sessions.folder) not in shown

    asyncio.run(work())


def test_calls_in_any_order_come_to_the_same(layer: FileDataLayer, sessions: Sessions) -> None:
    """An update before its create stands, and an empty create takes nothing away."""
    said(sessions)

    async def work() -> None:
        key = str(uuid.uuid4())
        await layer.update_step(step(key, output="whole", isError=True))
        await layer.create_step(step(key))
        await layer.create_step(step(key, output="half"))
        await layer.create_step(step(key, output="half"))
        found = [one for one in (await whole(layer))["steps"] if one["id"] == key]
        assert [(one["output"], one["isError"]) for one in found] == [("whole", True)]
        await layer.delete_step(key)
        await layer.create_step(step(key, output="late"))
        assert key not in [one["id"] for one in (await whole(layer))["steps"]]

    asyncly(work)


def test_calls_of_a_thread_are_done_in_turn(layer: FileDataLayer, sessions: Sessions) -> None:
    """Tasks that nobody waits for are done one after the other, as they were begun."""
    said(sessions)

    async def work() -> None:
        key = str(uuid.uuid4())
        tasks = [
            asyncio.create_task(layer.update_step(step(key, output=str(number))))
            for number in range(20)
        ]
        await asyncio.gather(*tasks)
        found = [one["output"] for one in (await whole(layer))["steps"] if one["id"] == key]
        assert found == ["19"]

    asyncly(work)


def test_metadata_are_merged(layer: FileDataLayer, sessions: Sessions) -> None:
    """Metadata of a thread grow, None takes a key away, and what is known is not written again."""
    said(sessions)
    rows = sessions.beside("chainlit", THREAD)

    async def work() -> None:
        await layer.update_thread(THREAD, metadata={"a": 1, "b": 2})
        await layer.update_thread(THREAD, metadata={"b": None, "c": {"d": 3}})
        assert (await whole(layer))["metadata"] == {"a": 1, "c": {"d": 3}}
        before = len(rows.rows())
        await layer.update_thread(THREAD, metadata={"a": 1})
        assert len(rows.rows()) == before
        await layer.update_thread(THREAD, name="Named", tags=["x"])
        assert (await whole(layer))["name"] == "Named"
        assert (await whole(layer))["tags"] == ["x"]

    asyncly(work)


def test_a_deleted_thread_stays_gone(layer: FileDataLayer, sessions: Sessions) -> None:
    """What a tab says of a deleted thread when it is closed does not bring it back."""
    said(sessions)

    async def work() -> None:
        await layer.update_thread(THREAD, metadata={"a": 1})
        await layer.delete_thread(THREAD)
        await layer.update_thread(THREAD, metadata={"a": 1})
        assert await layer.get_thread(THREAD) is None
        assert await layer.get_thread_author(THREAD) == ""
        assert not sessions.has(THREAD)

    asyncly(work)


def test_threads_are_listed_in_pages(layer: FileDataLayer, sessions: Sessions) -> None:
    """Pages hold each thread of their user once, newest first, and searches find what was said."""
    threads = [str(uuid.uuid4()) for _ in range(5)]
    for number, thread in enumerate(threads):
        said(sessions, f"Question {number}", thread)

    async def listed(**wanted: Any) -> list[str]:
        found: list[str] = []
        cursor = None
        while True:
            pages = Pagination(first=2, cursor=cursor)
            got = await layer.list_threads(pages, ThreadFilter(**wanted))
            found += [one["id"] for one in got.data]
            cursor = got.pageInfo.endCursor
            if not got.pageInfo.hasNextPage:
                return found

    async def work() -> None:
        ada = await layer.create_user(User(identifier="ada"))
        assert ada is not None
        assert ada == await layer.get_user("ada")
        assert await layer.get_user("nobody") is None
        assert await listed() == threads[::-1]
        await layer.update_thread(threads[1], name="Question 1", user_id=ada.id)
        assert await listed(userId=ada.id) == [threads[1]]
        assert await layer.get_thread_author(threads[1]) == "ada"
        assert await layer.get_thread_author(threads[0]) == "local"
        assert await listed(search="answer to question 3") == [threads[3]]
        await layer.upsert_feedback(Feedback(forId="x", value=0, threadId=threads[2]))
        assert await listed(feedback=0) == [threads[2]]
        assert await listed(feedback=1) == []

    asyncly(work)


def test_elements_are_kept_whole(layer: FileDataLayer, sessions: Sessions) -> None:
    """A text that was sent comes back with its content, until it is taken away."""
    said(sessions)

    async def work() -> None:
        with page(interacted=True) as (_, sent):
            text = Text(name="note", content="é", for_id="x", mime="text/plain")
            await layer.create_element(text)
            found = await layer.get_element(THREAD, text.id)
            assert found is not None
            assert found["url"] == "data:text/plain;base64,w6k="
            assert [one["id"] for one in (await whole(layer))["elements"]] == [text.id]
            await layer.delete_element(text.id)
            assert await layer.get_element(THREAD, text.id) is None
            assert sent == []
            await layer.create_element(Text(name="huge", content="x" * 9_000_000, for_id="x"))
            assert "9,000,000 bytes" in str(sent)

    asyncly(work)


def test_marked_messages_are_found(layer: FileDataLayer, sessions: Sessions) -> None:
    """A mark on a message of the session is kept beside it, and its text is not."""
    memory = said(sessions)

    async def work() -> None:
        user = await layer.create_user(User(identifier="local"))
        assert user is not None
        asked = next(one for one in (await whole(layer))["steps"] if one["type"] == "user_message")
        await layer.set_step_favorite(asked, favorite=True)
        found = await layer.get_favorite_steps(user.id)
        assert [one["id"] for one in found] == [memory.get_messages()[0].id]
        await layer.set_step_favorite(asked, favorite=False)
        assert await layer.get_favorite_steps(user.id) == []
        assert "Hi." not in str(sessions.beside("chainlit", THREAD).rows())

    asyncly(work)


def test_errors_are_shown(layer: FileDataLayer, sessions: Sessions, tmp_path: Path) -> None:
    """What cannot be stored is said once on the page, and to a request as its answer."""
    said(sessions)
    sessions.delete(THREAD)

    async def work() -> None:
        with page(interacted=True) as (_, sent):
            for _ in range(3):
                await layer.create_step(step("a", output="x"))
            assert [event for event, _ in sent] == ["new_message", "toast"]
            assert "Not stored" in str(sent)

    async def request() -> None:
        with pytest.raises(HTTPException, match="any more"):
            await layer.upsert_feedback(Feedback(forId="x", value=0, threadId=THREAD))

    asyncio.run(request())
    asyncly(work)


@pytest.mark.parametrize("thread", ["../../etc", "", ".", "a/b", "a" * 200])
def test_ids_that_are_none_find_nothing(layer: FileDataLayer, thread: str) -> None:
    """A thread id from a client that would leave the folder is of no thread."""

    async def work() -> None:
        assert await layer.get_thread(thread) is None
        assert await layer.get_thread_author(thread) == ""
        assert await layer.get_element(thread, "x") is None

    asyncly(work)


def test_ids_follow_from_entries() -> None:
    """Random ids of Chainlit stay, and ids of entries give the same one at every look."""
    assert shown_id(THREAD) == THREAD
    assert shown_id("a.1/user") == shown_id("a.1/user") != shown_id("a.2/user")
    assert uuid.UUID(shown_id("a.1/user")).version == 5
