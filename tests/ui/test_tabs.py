"""Conversations in tabs, over the real socket: asked, approved, stopped, killed, found again."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("chainlit")
pytest.importorskip("socketio")

import socketio.exceptions
from tests.ui.conftest import Server, Starting
from tests.ui.serve import ANSWER, GREETING, MENDED
from tests.ui.tab import Tab

from mergepoint import open_session

pytestmark = pytest.mark.chainlit

PLAN = "Carry out this plan?"
CODE = "Run this program?"


def asyncly(work: Callable[[], Awaitable[None]]) -> None:
    """Run what a test does on a loop of its own."""

    async def run() -> None:
        await work()

    asyncio.run(run())


async def approved(tab: Tab, text: str) -> None:
    """Say something, and approve plan and program."""
    await tab.say(text)
    await tab.until_asked(PLAN)
    await tab.click("Approve")
    await tab.until_asked(CODE)
    await tab.click("Approve")


def runs(tab: Tab) -> bool:
    """Return whether a program has printed its first line."""
    return any("begun" in one["output"] for one in tab.steps.values() if "Execute" in one["name"])


def data(tab: Tab) -> list[tuple[Any, ...]]:
    """Return what a tab shows, less what differs by the moment at which it looks."""
    return sorted(
        (one["id"], one["type"], one["name"], one.get("parentId") or "", one["output"])
        for one in tab.steps.values()
        if one["type"] != "user_message"
    )


def test_a_question_is_answered_at_once(server: Server) -> None:
    """A chat is answered without a question, streams, and stands once in thread and session."""

    async def work() -> None:
        async with Tab(server.address) as tab:
            await tab.say("Hi slowly")
            await tab.until_said(GREETING)
            assert tab.texts() == [GREETING]
            assert tab.actions == {}
            assert "stream_start" in tab.events
            assert len(tab.tokens) > 2
            again = Tab(server.address, tab.thread)
            async with again:
                assert data(again) == data(tab)
        memory = open_session(tab.thread, sessions=server.place)
        assert [one.content for one in memory.get_messages()] == ["Hi slowly", GREETING]

    asyncly(work)


def test_a_plan_is_approved_and_carried_out(server: Server) -> None:
    """Plan, Codegen and Execute are steps, nested as they ran, now and when loaded later."""

    async def work() -> None:
        async with Tab(server.address) as tab:
            await tab.say("Please sum it")
            await tab.until_asked(PLAN)
            old = next(one for one in tab.actions.values() if one["label"] == "Approve")
            await tab.click("Approve")
            await tab.until_asked(CODE)
            await tab.click("Approve")
            await tab.until_said(ANSWER)
            plan, code = tab.named("Plan"), tab.named("Codegen (attempt 1)")
            execute, run = tab.named("Execute (attempt 1)"), tab.named("on_message")
            assert "1. Read the sales." in plan["output"]
            assert plan["parentId"] == code["parentId"] == execute["parentId"] == run["id"]
            approved_, run_data = f"{CODE} ✓ **Approved**", execute["id"]
            order = [one["output"] or one["id"] for one in tab.shown()]
            ids = [one["id"] for one in tab.shown()]
            assert order.index(approved_) < ids.index(run_data) < order.index(ANSWER)
            assert "Exit code 0" in execute["output"]
            assert tab.texts() == [f"{PLAN} ✓ **Approved**", f"{CODE} ✓ **Approved**", ANSWER]
            assert tab.texts("assistant_message") == [ANSWER]
            assert re.fullmatch(r"Execute \(attempt 1\) · ok · \d\.\d\ds", execute["name"])
            cost = tab.shown()[-1]
            assert re.fullmatch(r"3 calls · \d+ tokens · cost unknown · \d\.\d\ds", cost["name"])
            assert "| agent/respond |" in cost["output"]
            assert tab.actions == {}
            async with Tab(server.address, tab.thread) as again:
                assert data(again) == data(tab)
                assert again.actions == {}
                await again.click_action(old)
                await again.until(lambda: any("decided already" in one for one in again.toasts))
                assert data(again) == data(tab)

    asyncly(work)


def test_what_fails_is_mended_at_the_second_attempt(server: Server) -> None:
    """A failed run is a wrong step, and attempt 2 stands beside attempt 1."""

    async def work() -> None:
        async with Tab(server.address) as tab:
            await approved(tab, "Let it fail")
            await tab.until(lambda: "Codegen (attempt 2)" in str(tab.steps))
            await tab.until_asked(f"**{CODE}**")
            assert "print(7)" in tab.named("Codegen (attempt 2)")["output"]
            assert tab.named("Codegen (attempt 2)")["defaultOpen"]
            assert not tab.named("Codegen (attempt 1)")["defaultOpen"]
            execute = tab.named("Execute (attempt 1)")
            assert execute["isError"]
            assert re.fullmatch(r"Execute \(attempt 1\) · failed · \d\.\d\ds", execute["name"])
            assert re.search(
                r"Exit code 1 after \d\.\d\ds: `ValueError: not a number`$", execute["output"]
            )
            asked = tab.texts()[-1]
            assert "failed with exit code 1: `ValueError: not a number`" in asked
            assert "```diff" in asked
            assert "\n+print(7)" in asked
            await tab.click("Approve")
            await tab.until_said(MENDED)

    asyncly(work)


def test_words_at_a_plan_change_it(server: Server) -> None:
    """A message at an open plan is its feedback: another plan is asked about, and kept as said."""

    async def work() -> None:
        async with Tab(server.address) as tab:
            await tab.say("Please sum it")
            await tab.until_asked(PLAN)
            await tab.click("Ask for changes")
            await tab.until(lambda: bool(tab.toasts))
            said = await tab.say("only the north")
            await tab.until(lambda: "Plan (attempt 2)" in str(tab.steps))
            await tab.until_asked(f"**{PLAN}**")
            assert "Mind: only the north" in tab.named("Plan (attempt 2)")["output"]
            assert f"{PLAN} ↻ **Sent back**" in tab.texts()
            around = tab.steps[str(tab.named("Plan (attempt 2)")["parentId"])]
            assert (around["name"], around["parentId"]) == ("on_message", said)
            async with Tab(server.address, tab.thread) as again:
                assert data(again) == data(tab)
                assert again.steps[said]["output"] == "only the north"
                assert again.texts("user_message") == ["Please sum it", "only the north"]
                assert len(again.actions) == 4
        memory = open_session(tab.thread, sessions=server.place)
        assert memory.turn == 1
        assert [one.feedback for one in memory.get_working_steps() if one.feedback] == [
            "only the north"
        ]

    asyncly(work)


def test_a_cancelled_turn_is_over(server: Server) -> None:
    """After a cancel the next message is a turn of its own."""

    async def work() -> None:
        async with Tab(server.address) as tab:
            await tab.say("Please sum it")
            await tab.until_asked(PLAN)
            await tab.click("Cancel")
            await tab.until(lambda: "Cancelled." in tab.texts())
            assert tab.actions == {}
            await tab.say("Hi there")
            await tab.until_said(GREETING)
            async with Tab(server.address, tab.thread) as again:
                assert data(again) == data(tab)

    asyncly(work)


def test_a_click_on_an_old_button_does_nothing_and_says_so(server: Server) -> None:
    """A button of a question that was decided starts nothing, in any tab."""

    async def work() -> None:
        async with Tab(server.address) as tab:
            await tab.say("Please sum it")
            await tab.until_asked(PLAN)
            old = next(one for one in tab.actions.values() if one["label"] == "Approve")
            await tab.click("Approve")
            await tab.until_asked(CODE)
            before = data(tab)
            await tab.click_action(old)
            await tab.until(lambda: any("decided already" in one for one in tab.toasts))
            made_up = {**old, "payload": {"turn": 1, "key": "../../x"}}
            assert (await tab.click_action(made_up)).status_code == 200
            assert data(tab) == before

    asyncly(work)


def test_two_tabs_show_the_same(server: Server) -> None:
    """What one tab does the other shows as it happens, and only the first of two clicks counts."""

    async def work() -> None:
        async with Tab(server.address) as one:
            await one.say("Please sum it")
            await one.until_asked(PLAN)
            async with Tab(server.address, one.thread) as two:
                await two.until_asked(PLAN)
                await asyncio.gather(one.click("Approve"), two.click("Approve"))
                await one.until_asked(CODE)
                await two.until_asked(CODE)
                assert len(one.toasts) + len(two.toasts) == 1
                await two.click("Approve")
                await one.until_said(ANSWER)
                await two.until_said(ANSWER)
                assert data(one) == data(two)
                assert one.actions == two.actions == {}

    asyncly(work)


def test_a_tab_that_was_away_catches_up(server: Server) -> None:
    """A page whose connection broke is given what happened meanwhile, and each button once."""

    async def work() -> None:
        async with Tab(server.address) as one:
            await one.say("Please sum it")
            await one.until_asked(PLAN)
            await one.drop()
            async with Tab(server.address, one.thread) as two:
                await two.click("Approve")
                await two.until_asked(CODE)
                await one.open()
                await one.until_asked(CODE)
                assert data(one) == data(two)
                await one.click("Approve")
                await two.until_said(ANSWER)

    asyncly(work)


def test_a_turn_is_followed_by_a_tab_that_comes_later(server: Server) -> None:
    """A reload while a program runs shows it running, and a stop from there ends it."""

    async def work() -> None:
        async with Tab(server.address) as one:
            await approved(one, "Run forever")
            await one.until(lambda: runs(one))
            async with Tab(server.address, one.thread) as two:
                await two.until(lambda: two.busy and runs(two))
                assert two.actions == {}
                await two.say("Hi there")
                await two.until(lambda: any("Not taken" in text for text in two.texts()))
                await two.stop()
                await one.until(lambda: "Cancelled." in one.texts() and not one.busy)

    asyncly(work)


def test_a_stop_stops_the_sandbox_too(server: Server) -> None:
    """What a program runs in is told to end, and the turn is cancelled and over."""
    stopped = Path(server.place) / "stopped"
    stopped.unlink(missing_ok=True)

    async def work() -> None:
        async with Tab(server.address) as tab:
            await approved(tab, "Run forever")
            await tab.until(lambda: runs(tab))
            await tab.stop()
            await tab.until(lambda: "Cancelled." in tab.texts() and not tab.busy)
            assert stopped.read_text() == "stopped"
            assert "Task manually stopped." not in tab.texts()
            async with Tab(server.address, tab.thread) as again:
                assert again.texts().count("Cancelled.") == 1
                assert data(again) == data(tab)
                execute = again.named("Execute (attempt 1)")
                assert re.fullmatch(r"Execute \(attempt 1\) · stopped · .*s", execute["name"])
                assert "```text\nbegun\n```\n\nStopped by you after" in execute["output"]
                assert not execute["isError"]
                assert "Task manually stopped." not in again.texts()
                await again.say("Hi there")
                await again.until_said(GREETING)

    asyncly(work)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap")
def test_a_stop_leaves_no_process(starting: Starting) -> None:
    """A program that runs in a real sandbox is gone after a stop, with all that ran for it."""

    async def work() -> None:
        server = starting("--runner", "bubblewrap")
        assert server.process is not None
        async with Tab(server.address) as tab:
            await approved(tab, "Run forever")
            await tab.until(lambda: runs(tab))
            assert below(server.process.pid) != []
            await tab.stop()
            await tab.until(lambda: "Cancelled." in tab.texts() and not tab.busy)
            assert below(server.process.pid) == []

    asyncly(work)


def below(process: int) -> list[int]:
    """Return the processes that a process has begun and that are there (proc(5))."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *below(int(child))]
    return found


def test_a_failed_turn_can_be_tried_again(server: Server) -> None:
    """An error is shown with where it came from, and trying again asks what has no answer alone."""

    async def work() -> None:
        async with Tab(server.address) as tab:
            await tab.say("Let it break")
            await tab.until(lambda: "Try again" in tab.labels() and not tab.busy)
            assert any("the provider is down" in text for text in tab.texts())
            async with Tab(server.address, tab.thread) as again:
                await again.click("Try again")
                await again.until_said(GREETING)
                assert again.texts() == [GREETING]
                assert again.actions == {}

    asyncly(work)


def test_a_killed_server_goes_on_where_it_asked(starting: Starting) -> None:
    """After kill -9 at an approval the thread has its question again, and is carried out."""

    async def work() -> None:
        server = starting()
        async with Tab(server.address) as tab:
            await tab.say("Please sum it")
            await tab.until_asked(PLAN)
            before = data(tab)
            server.kill()
        server.start()
        async with Tab(server.address, tab.thread) as again:
            assert data(again) == before
            await again.click("Approve")
            await again.until_asked(CODE)
            server.kill()
        server.start()
        async with Tab(server.address, tab.thread) as last:
            await last.click("Approve")
            await last.until_said(ANSWER)
            assert last.texts().count(ANSWER) == 1
            listed = await last.threads()
            assert [(one["id"], one["name"]) for one in listed] == [(tab.thread, "Please sum it")]

    asyncly(work)


def test_a_server_killed_while_it_works_goes_on(starting: Starting) -> None:
    """A turn that was killed in its midst is offered to go on, and another message waits for it."""

    async def work() -> None:
        server = starting("--slow", "1")
        async with Tab(server.address) as tab:
            await tab.say("Hi there")
            await tab.until(lambda: any(one["name"] == "Plan" for one in tab.steps.values()))
            server.kill()
        server.start()
        async with Tab(server.address, tab.thread) as again:
            await again.say("And now?")
            await again.until(lambda: any("no answer yet" in text for text in again.texts()))
            await again.click("Go on")
            await again.until_said(GREETING)
            async with Tab(server.address, tab.thread) as last:
                assert last.texts("user_message") == ["Hi there", "And now?"]
                assert last.actions == {}

    asyncly(work)


def test_an_open_page_leaves_no_thread(server: Server) -> None:
    """A page that is only looked at is no conversation."""

    async def work() -> None:
        async with Tab(server.address) as tab:
            before = await tab.threads()
            async with Tab(server.address):
                pass
            assert await tab.threads() == before

    asyncly(work)


def test_a_text_that_was_edited_is_the_decision(server: Server) -> None:
    """A plan and a program are edited, checked, and carried out as they were edited."""

    async def work() -> None:
        async with Tab(server.address) as tab:
            await tab.say("Please sum it")
            await tab.until_asked(PLAN)
            opened = await tab.edit()
            assert opened["text"].startswith("intent: Answer the request\naction: custom_script\n")
            assert "action" in await tab.save(opened, "intent: x\naction: fly\n")
            assert "the plan:2: this is not YAML" in await tab.save(opened, "intent: [")
            assert tab.labels() == {"Approve", "Edit", "Ask for changes", "Cancel"}
            assert await tab.save(opened, opened["text"].replace("region", "product")) is None
            await tab.until_asked(CODE)
            assert "Sum them by product." in tab.named("Plan as edited")["output"]
            program = await tab.edit()
            assert "does not compile" in await tab.save(program, "print(")
            assert await tab.save(program, "print('south 12')\n") is None
            await tab.until_said(ANSWER)
            decided = f"{CODE} ✓ **Approved as edited**"
            assert decided in tab.texts()
            assert "print('south 12')" in tab.named("Codegen as edited")["output"]
            assert "south 12" in tab.named("Execute (attempt 1)")["output"]
            assert "decided already" in await tab.save(program, "print(1)")
            async with Tab(server.address, tab.thread) as again:
                assert data(again) == data(tab)
        memory = open_session(tab.thread, sessions=server.place)
        edits = [one for one in memory.get_working_steps() if one.decision == "edit"]
        assert [one.decides for one in edits] == ["plan", "codegen"]
        assert edits[1].content == "print('south 12')\n"

    asyncly(work)


def test_gates_of_another_tree_are_shown_whole(starting: Starting) -> None:
    """What such a gate asked about, what was decided and said there stays, loaded later too."""

    async def work() -> None:
        server = starting("--gated")
        async with Tab(server.address) as tab:
            await tab.say("Hi there")
            await tab.until_asked("Is this title good?")
            assert tab.texts() == [f"{GREETING}\n\n**Is this title good?**"]
            said = await tab.say("shorter")
            await tab.until(lambda: len(tab.texts()) == 2 and not tab.busy)
            await tab.until_asked("**Is this title good?**")
            assert tab.texts()[0] == f"{GREETING}\n\nIs this title good? ↻ **Sent back**"
            editor = await tab.edit()
            assert (editor["title"], editor["text"]) == ("Edit the answer", GREETING)
            assert await tab.save(editor, "The sea: a title") is None
            await tab.until_said(GREETING)
            assert tab.texts()[1:] == [
                "The sea: a title\n\nIs this title good? ✓ **Approved as edited**",
                GREETING,
            ]
            async with Tab(server.address, tab.thread) as again:
                assert data(again) == data(tab)
                assert again.texts("user_message") == ["Hi there", "shorter"]
                assert again.steps[said]["output"] == "shorter"

    asyncly(work)


def test_threads_are_marked_as_they_stand(server: Server) -> None:
    """Running, waiting and failed threads are marked in the list, at once in every tab."""

    async def work() -> None:
        async with Tab(server.address) as other, Tab(server.address) as tab:

            def report_errors(mark: str) -> bool:
                posted = [one for one in other.posts if one.get("thread") == tab.thread]
                return bool(posted) and posted[-1]["mark"] == mark

            async def listed() -> str:
                found = {one["id"]: one["metadata"] for one in await other.threads()}
                return str(found[tab.thread].get("mark"))

            await tab.say("Run forever")
            await other.until(lambda: report_errors("waiting"))
            assert await listed() == "waiting"
            await tab.click("Approve")
            await tab.until_asked(CODE)
            await tab.click("Approve")
            await tab.until(lambda: runs(tab))
            await other.until(lambda: report_errors("running"))
            assert await listed() == "running"
            await tab.stop()
            await other.until(lambda: report_errors(""))
            assert await listed() == "None"
            await tab.say("Let it break for the marks")
            await other.until(lambda: report_errors("failed"))
            assert await listed() == "failed"

    asyncly(work)


def test_a_click_waits_for_its_page(starting: Starting) -> None:
    """A button that is clicked before the page has found the server again does what it says."""

    async def work() -> None:
        server = starting()
        async with Tab(server.address) as tab:
            await tab.say("Please sum it")
            await tab.until_asked(PLAN)
            approve = next(one for one in tab.actions.values() if one["label"] == "Approve")
            await tab.drop()
            server.kill()
            server.start()
            clicked = asyncio.create_task(tab.click_action(approve))
            await asyncio.sleep(0.3)
            assert not clicked.done()
            await tab.open()
            assert (await clicked).status_code == 200
            await tab.until_asked(CODE)

    asyncly(work)


def test_what_cannot_be_stored_is_said(server: Server) -> None:
    """An error of the data layer, for which nobody waits, is a message and a toast."""

    async def work() -> None:
        async with Tab(server.address) as tab:
            await tab.say("Hi there")
            await tab.until_said(GREETING)
            rows = Path(server.place) / str(tab.thread) / "chainlit.jsonl"
            rows.rename(rows.with_suffix(".away"))
            rows.mkdir()
            await tab.say("More")
            await tab.until(lambda: any("Not stored" in one for one in tab.texts()))
            await tab.until(lambda: any("chainlit.jsonl" in one for one in tab.toasts))
            async with Tab(server.address, tab.thread) as again:
                assert "chainlit.jsonl" in again.texts()[0]

    asyncly(work)


def test_a_damaged_session_says_so_and_is_not_taken_for_an_empty_one(server: Server) -> None:
    """A thread whose file was changed is listed and opened, with what is wrong and the way out."""
    memory = open_session(sessions=server.place)
    memory.add_response("user", "Hi there")
    journal = Path(server.place) / memory.session_id / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b"Hi there", b"Hi THERE"))

    async def work() -> None:
        async with Tab(server.address, memory.session_id) as tab:
            assert ["checksum" in text for text in tab.texts()] == [True]
            await tab.say("Hello?")
            await tab.until(lambda: any("Not taken" in text for text in tab.texts()))
            listed = {one["id"]: one["name"] for one in await tab.threads()}
            assert listed[memory.session_id].startswith("⚠ cannot be read")

    asyncly(work)
    assert b"Hello?" not in journal.read_bytes()


def test_ids_that_leave_the_folder_are_no_threads(server: Server) -> None:
    """A thread id from a client that is none finds nothing, and nothing is made under it."""

    async def work() -> None:
        evil = Tab(server.address, "../x")
        await evil.login()
        evil.waits = False
        await evil.open()
        await evil.say("Hi there")
        await evil.until(lambda: any("no id for a session" in one for one in evil.texts()))
        await evil.__aexit__()

    asyncly(work)
    assert not (Path(server.place).parent / "x").exists()


@pytest.mark.parametrize(
    "name", ["../..", "x/../../..", "", "{00000000-0000-4000-8000-000000000000}"]
)
def test_a_tab_whose_name_is_a_way_out_is_not_let_in(server: Server, name: str) -> None:
    """Chainlit deletes the folder of a tab's name when it is closed, so the name is checked."""

    async def work() -> None:
        evil = Tab(server.address)
        evil.session = name
        await evil.login()
        with pytest.raises(socketio.exceptions.ConnectionError):
            await evil.open()
        await evil.__aexit__()

    asyncly(work)


def test_strangers_are_not_let_in(server: Server) -> None:
    """Requests for another host or from another origin are refused, and pages load from here."""

    async def work() -> None:
        async with Tab(server.address) as tab:
            http = tab._http
            assert (await http.get("/", headers={"Host": "evil.example"})).status_code == 403
            origin = {"Origin": "http://evil.example"}
            assert (await http.post("/auth/header", headers=origin)).status_code == 403
            page = await http.get("/")
            assert "default-src 'self'" in page.headers["content-security-policy"]
            settings = (await http.get("/project/settings?language=en-US")).json()
            assert settings["features"]["edit_message"] is False
            assert settings["features"]["spontaneous_file_upload"]["enabled"] is False
            assert "You decide" in settings["markdown"]

    asyncly(work)


def test_names_and_passwords_where_they_are_asked_for(starting: Starting, tmp_path: Path) -> None:
    """With a file of logins each sees their own threads, and a wrong password is none."""
    from mergepoint.apps.chainlit.security import login_line

    logins = tmp_path / "logins.txt"
    logins.write_text("\n".join([login_line("ada", "lovelace"), login_line("bob", "builder")]))

    async def work() -> None:
        server = starting("--login", str(logins))
        ada, bob = Tab(server.address), Tab(server.address)
        assert (await ada.login()).status_code == 400
        assert (await ada.login("ada", "wrong")).status_code == 401
        assert (await ada.login("ada", "lovelace")).status_code == 200
        assert (await bob.login("bob", "builder")).status_code == 200
        await ada.open()
        await bob.open()
        await ada.say("Hi there")
        await ada.until_said(GREETING)
        await ada.until(lambda: [one["mark"] for one in ada.posts] == ["running", ""])
        assert bob.posts == []
        assert [one["id"] for one in await ada.threads()] == [ada.thread]
        assert await bob.threads() == []
        assert (await bob.get(f"/project/thread/{ada.thread}")).status_code == 401
        xray = await ada.get(f"/xray/{ada.thread}")
        assert (xray.status_code, GREETING in xray.text) == (200, True)
        async with httpx.AsyncClient(base_url=server.address) as nobody:
            assert (await nobody.get(f"/xray/{ada.thread}")).status_code == 401
        for path in (f"/xray/{ada.thread}", "/xray/none"):
            assert (await bob.get(path)).status_code == 404
        judged = {"forId": ada.named("on_message")["id"], "value": 1, "threadId": ada.thread}
        body = {"feedback": judged, "sessionId": ada.session}
        key = (await ada.send("PUT", "/feedback", body)).json()["feedbackId"]
        for changed in ({**judged, "value": 0}, {**judged, "threadId": None, "id": key}):
            refused = await bob.send("PUT", "/feedback", {**body, "feedback": changed})
            assert "This thread doesn't exist" in refused.text
        assert (await bob.send("DELETE", "/feedback", {"feedbackId": key})).status_code == 404
        kept = (await ada.get(f"/project/thread/{ada.thread}")).json()
        assert [one["feedback"]["value"] for one in kept["steps"] if one["feedback"]] == [1]
        for _ in range(10):
            assert (await bob.login("ada", "guess")).status_code in (401, 429)
        assert (await bob.login("ada", "guess")).status_code == 429
        for tab in (ada, bob):
            await tab.__aexit__()

    asyncly(work)


def test_a_thread_is_renamed_judged_and_deleted(server: Server) -> None:
    """What the list and the thumbs do is kept beside the session, and goes with it."""

    async def work() -> None:
        async with Tab(server.address) as tab:
            await tab.say("Hi there")
            await tab.until_said(GREETING)
            thread = tab.thread
            await tab.send("PUT", "/project/thread", {"threadId": thread, "name": "Greetings"})
            run = tab.named("on_message")["id"]
            judged = {"forId": run, "value": 1, "threadId": thread, "comment": "good"}
            said = await tab.send(
                "PUT", "/feedback", {"feedback": judged, "sessionId": tab.session}
            )
            assert said.json()["success"]
            mine = [one["name"] for one in await tab.threads(search="greet") if one["id"] == thread]
            assert mine == ["Greetings"]
            assert thread in [one["id"] for one in await tab.threads(feedback=1)]
            async with Tab(server.address, thread) as again:
                assert again.steps[run]["feedback"]["comment"] == "good"
            key = said.json()["feedbackId"]
            await tab.send("DELETE", "/feedback", {"feedbackId": key})
            assert thread not in [one["id"] for one in await tab.threads(feedback=1)]
            await tab.send("DELETE", "/project/thread", {"threadId": thread})
            assert thread not in [one["id"] for one in await tab.threads()]
            assert not (Path(server.place) / str(thread)).exists()
        async with Tab(server.address) as other:
            assert thread not in [one["id"] for one in await other.threads()]

    asyncly(work)
