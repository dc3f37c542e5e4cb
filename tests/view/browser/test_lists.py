"""The list of runs, a session, and Things in a browser: what a person finds there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.view.browser.opening import Opened, axe_problems, picture
from tests.view.talks import CHAT, PLAN, said, talk

from mergepoint import Block, Step, StepError, Template, cancel_turn, run_generation, run_recipe
from mergepoint.core.errors import MergepointError
from mergepoint.journal.file_journal import FileStore
from mergepoint.report.run_state import RunState, Unreadable, read_state
from mergepoint.session.session_store import sessions_at
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.view.list_data import Opening, listing
from mergepoint.view.run_data import page_of, run_data
from mergepoint.view.session_data import session_data
from mergepoint.view.texts import Texts

pytestmark = pytest.mark.browser

TREE = Block(
    [Step(Template("Say {{ topic }}."), name="a"), Step("Say b.", name="b")],
    name="interview",
    inputs=["topic"],
)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x1b[31m"
BASE: dict[str, Any] = {"format": "mergepoint.view/1", "version": "1", "texts": [], "runs": []}


@pytest.fixture(scope="module")
def chromium(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Return the browser, with a folder for the pages of the module."""
    return Opened(chromium, tmp_path_factory.mktemp("pages"))


def ran(store: FileStore, run_id: str, **given: Any) -> None:
    """Run two steps about a topic, and keep the run."""
    given = {"inputs": {"topic": "the sea"}, "model": ScriptedModel(default="Wide."), **given}
    run_generation(TREE, runs=store, run_id=run_id, **given)


def listed(store: FileStore, **more: Any) -> dict[str, Any]:
    """Return the page of the list of runs."""
    states: list[RunState | Unreadable] = []
    for run_id in store.runs():
        try:
            states.append(read_state(store, run_id))
        except MergepointError as error:
            states.append(Unreadable(run_id, str(error)))
    rows = listing(
        states,
        run_opening=lambda name: Opening(f"mergepoint view {name}"),
        session_opening=lambda name: Opening(f"mergepoint view --session {name}"),
        **more,
    )
    return {**BASE, "screen": "runs", "title": "Runs", "list": rows}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return a list of 30 runs: some failed, one damaged, one hostile, and a session."""
    folder = tmp_path_factory.mktemp("runs")
    store, sessions = FileStore(folder / "runs"), sessions_at(folder / "sessions")
    for number in range(24):
        ran(store, f"run-{number:02}", inputs={"topic": f"river number {number}"})
    for number in range(3):
        with pytest.raises(StepError):
            ran(store, f"bad-{number}", model=ScriptedModel(by_path={"interview/a": ""}))
    ran(store, "hostile", inputs={"topic": HOSTILE}, model=ScriptedModel(default=HOSTILE))
    ran(store, "damaged")
    journal = folder / "runs" / "damaged" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"a"', b'"c"', 1))
    memory, turns = talk(sessions, plans=(CHAT,), respond="Hello.")
    said(memory, turns, "Hi.")
    return listed(store, sessions=sessions)


def test_finds_my_run_by_its_input(chromium: Opened, runs: dict[str, Any]) -> None:
    """Which run was mine: a word of the input leaves one row, and a click shows its command."""
    with chromium.page(runs) as page:
        assert page.locator("tbody tr").count() == 30
        page.keyboard.press("/")
        page.keyboard.type("number 17")
        [row] = page.locator("tbody tr").all()
        assert "river number 17" in row.inner_text()
        row.locator(".runs-name").click()
        assert page.locator("tbody code").inner_text() == "mergepoint view run-17"


def test_filters_by_status_and_sorts(chromium: Opened, runs: dict[str, Any]) -> None:
    """The chip of a status leaves its runs, and the head of a column sorts them both ways."""
    with chromium.page(runs) as page:
        page.get_by_role("button", name="failed").click()
        names = [one.get_attribute("data-id") for one in page.locator("tbody tr").all()]
        assert sorted(names) == ["bad-0", "bad-1", "bad-2"]
        page.get_by_role("button", name="failed").click()
        page.get_by_role("button", name="Tokens").click()
        assert page.locator("th.runs-tokens").get_attribute("aria-sort") == "descending"
        # A session has the tokens of all its turns.
        assert page.locator("tbody tr").first.get_attribute("data-id") == "trip"


def test_a_running_run_says_that_it_is_alive(chromium: Opened, runs: dict[str, Any]) -> None:
    """Is it alive: the first column says it, in words."""
    row = {**runs["list"][3], "status": "running"}
    with chromium.page({**runs, "list": [row]}) as page:
        assert "running" in page.locator("tbody .runs-status").inner_text()


def test_two_ticked_runs_lead_to_their_comparison(chromium: Opened, runs: dict[str, Any]) -> None:
    """In a file, it is a command with the older run first; on a served page, a link."""
    live = dict.fromkeys(("data", "etag", "answers", "token", "list", "events"), "")
    with chromium.page(runs) as page:
        page.get_by_label("Compare run-03").check()
        page.get_by_label("Compare run-01").check()
        command = page.locator(".runs-compare code").inner_text()
        assert command == "mergepoint view run-01 run-03"
        # A third tick takes the first one away.
        page.get_by_label("Compare run-02").check()
        assert page.locator(".runs-compare code").inner_text() == "mergepoint view run-01 run-02"
        assert page.get_by_label("Compare trip").is_disabled()
        assert page.get_by_label("Compare damaged").is_disabled()
        picture(page, "runs-ticked")
    served = {**runs, "live": {**live, "compare": "/compare?token=x"}}
    with chromium.page(served) as page:
        page.get_by_label("Compare run-03").check()
        page.get_by_label("Compare run-01").check()
        link = page.get_by_role("link", name="Compare").get_attribute("href")
        assert link == "/compare?token=x&a=run-01&b=run-03"


def test_hostile_words_are_shown_and_not_run(chromium: Opened, runs: dict[str, Any]) -> None:
    """Scripts, escapes and direction marks in input and result are text, visibly."""
    with chromium.page(runs) as page:
        text = page.locator("tr[data-id=hostile]").inner_text()
        assert "<script>alert(1)</script>" in text
        assert "\\u202e" in text
        assert "\\x1b" in text
        assert page.locator("img").count() == 0


def test_a_thousand_runs_are_drawn_as_they_are_needed(
    chromium: Opened, runs: dict[str, Any]
) -> None:
    """Of 1,000 rows, the first are elements; the search looks at all of them."""
    rows = [
        {**runs["list"][5], "id": f"r{number}", "input": f"n{number}n"} for number in range(1000)
    ]
    with chromium.page({**runs, "list": rows}) as page:
        assert page.locator("tbody tr").count() < 1000
        page.locator("input[type=search]").fill("n987n")
        assert [row.get_attribute("data-id") for row in page.locator("tbody tr").all()] == ["r987"]


def test_an_empty_list_says_how_to_begin(chromium: Opened) -> None:
    """Without runs, the page names the command that makes one."""
    page_data = {**BASE, "screen": "runs", "title": "Runs", "list": []}
    with chromium.page(page_data) as page:
        assert "mergepoint demo" in page.locator("[role=status]").inner_text()


def talked(folder: Path) -> dict[str, Any]:
    """Return the page of a session: small talk, a program that failed once, a cancelled turn."""
    memory, turns = talk(
        folder, plans=([CHAT, PLAN, PLAN],), respond=["Hello.", "The sales are **42**."]
    )
    said(memory, turns, "Hi.")
    said(memory, turns, f"Sum the sales. {HOSTILE}", "approve", "approve", "approve")
    said(memory, turns, "And again?")
    cancel_turn(memory, "Never mind.")
    texts = Texts()
    found: list[Any] = []

    def run(state: Any) -> int:
        found.append(run_data(state, texts))
        return len(found) - 1

    data = session_data(memory, text=texts.add, run=run)
    return {
        **BASE,
        "screen": "session",
        "title": data["title"],
        "texts": texts.all,
        "runs": found,
        "session": data,
    }


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the page of a session with a failed program."""
    return talked(tmp_path_factory.mktemp("sessions"))


def test_a_turn_is_shown_in_the_order_in_which_it_happened(
    chromium: Opened, session: dict[str, Any]
) -> None:
    """Plan, decision, program, its failure, the next program and the answer, one click away."""
    with chromium.page(session) as page:
        page.get_by_role("button", name="Turn 2").click()
        titles = page.locator(".session-list .session-title").all_inner_texts()
        assert titles == [
            "Plan",
            "Plan approved",
            "Program",
            "Program approved",
            "Output, exit code 1",
            "Program, attempt 2",
            "Program approved, attempt 2",
            "Output, attempt 2, exit code 0",
            "Answer",
        ]
        text = page.locator(".session-events").inner_text()
        assert "ZeroDivisionError" in text
        assert page.locator(".session-list .badge", has_text="user").count() == 3
        picture(page, "session")


def test_an_event_opens_the_xray_of_its_call(chromium: Opened, session: dict[str, Any]) -> None:
    """A program leads to the model's call that wrote it, not to the function that cut it out."""
    with chromium.page(session) as page:
        page.get_by_role("button", name="Turn 2").click()
        page.get_by_role("button", name="Program", exact=True).click()
        assert "work/iteration_01/write" in page.locator(".xray").inner_text()
        assert page.locator(".session-event.current").count() == 1
        assert "call=agent/work/iteration_01/write" in page.url
        address = page.url
        page.keyboard.press("Escape")
        assert page.locator(".xray").is_hidden()
        page.goto(address)
        page.go_back()


def test_a_session_opens_at_its_last_turn(chromium: Opened, session: dict[str, Any]) -> None:
    """The last turn is open, with the reason for which it was canceled; `p` goes back."""
    with chromium.page(session) as page:
        assert page.locator(".session-turn.current").inner_text().startswith("Turn 3")
        assert "Never mind." in page.locator(".session-events").inner_text()
        page.keyboard.press("p")
        assert page.locator(".session-turn.current").inner_text().startswith("Turn 2")
        assert page.locator("img").count() == 0


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the page of a recipe's run with more than 200 Things."""
    store = FileStore(tmp_path_factory.mktemp("recipes"))
    items = ["Why do tides exist?", "What is rain?", HOSTILE]
    run_recipe("best_of_n", items, model="offline", knobs={"n": 70}, runs=store, run_id="best")
    texts = Texts()
    return page_of(run_data(read_state(store, "best"), texts), texts, version="1")


def test_things_say_which_was_chosen_and_why(chromium: Opened, things: dict[str, Any]) -> None:
    """Which critic mattered: the score and the chosen Thing, and a click shows who gave it."""
    with chromium.page(things) as page:
        assert "216 Things on record, 3 results" in page.locator(".things-summary").inner_text()
        chosen = page.locator(".thing", has_text="★").first
        assert chosen.locator(".thing-score").inner_text()
        chosen.locator(".thing-id").click()
        history = page.locator(".things-history").inner_text()
        assert "stage_1.generate wrote content" in history
        assert "stage_2.critique wrote" in history
        page.locator(".things-history button", has_text="its call").last.click()
        assert page.locator(".xray").is_visible()
        picture(page, "things")


def test_a_thing_that_lost_says_to_which(chromium: Opened, things: dict[str, Any]) -> None:
    """A sample that wasn't chosen names the one that was, and both scores."""
    with chromium.page(things) as page:
        page.locator(".thing", has_text="not chosen").first.locator(".thing-id").click()
        detail = page.locator(".things-detail").inner_text()
        assert re.search(r"0\.\d+ was chosen, with a score of \d+\.", detail)


def test_a_lost_best_thing_is_named(chromium: Opened, things: dict[str, Any]) -> None:
    """Where was the good answer lost: a sentence names the best Thing that is no result."""
    recipe = things["runs"][0]["recipe"]
    rows = [{**one, "props": {}} for one in recipe["things"]]
    rows[5] = {**rows[5], "score": 99.5, "end": "dropped", "why": "not among the results"}
    rows[6] = {**rows[6], "score": 99.9, "stale": True}
    run = {**things["runs"][0], "recipe": {**recipe, "things": rows}}
    with chromium.page({**things, "runs": [run]}) as page:
        summary = page.locator(".things-summary").inner_text()
        assert (
            f"The best score, 99.5, has {rows[5]['id']}, which isn't a result: dropped" in summary
        )
        page.locator(".things-summary button").click()
        assert "not among the results" in page.locator(".things-detail").inner_text().lower()
        stale = page.locator(".thing-score.stale").first
        assert "stale" in stale.inner_text()


def many_things(things: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a page with a chain of families of Things."""
    rows: list[dict[str, Any]] = []
    lineage: list[dict[str, Any]] = []
    some = things["runs"][0]["recipe"]["things"][1]
    for at in range(number):
        name = f"{at // 10}" if at % 10 == 0 else f"{at // 10}.{at % 10 - 1}"
        parents = [] if at % 10 == 0 else [f"{at // 10}"]
        rows.append({**some, "id": name, "parents": parents, "score": at, "end": "result"})
        if parents:
            entry = {"thing": name, "stage": "r.make", "wrote": ["content"], "calls": []}
            lineage.append({**entry, "parents": parents, "drafted": True})
    stages = [{"id": "r.make", "path": "r/make", "came": 1, "left": number, "failed": 0}]
    recipe = {**things["runs"][0]["recipe"], "things": rows, "lineage": lineage, "stages": stages}
    return {**things, "runs": [{**things["runs"][0], "recipe": recipe}]}


def test_ten_thousand_things_are_drawn_as_they_are_seen(
    chromium: Opened, things: dict[str, Any]
) -> None:
    """Only the rows in view are elements, and the last one is reached by scrolling."""
    with chromium.page(many_things(things, 10_000)) as page:
        assert page.locator(".thing").count() < 100
        page.locator(".things-list").evaluate("list => { list.scrollTop = list.scrollHeight }")
        page.locator(".things-list .thing-id", has_text="999.8").click()
        assert "Made from 999" in page.locator(".things-detail").inner_text()
        assert page.locator(".things-edges path").count() < 200


def test_hostile_things_are_text(chromium: Opened, things: dict[str, Any]) -> None:
    """A hostile item is shown as it is, and nothing of it runs."""
    with chromium.page(things) as page:
        page.get_by_label("Filter Things").fill("<img")
        assert "onerror=alert(2)" in page.locator(".thing").first.inner_text()
        assert page.locator("img").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("screen", ["runs", "session", "things"])
def test_axe_finds_nothing_serious(
    chromium: Opened, request: pytest.FixtureRequest, screen: str, width: int, scheme: str
) -> None:
    """Lists, sessions and Things have names, roles and contrast, in light, dark and on a phone."""
    with chromium.page(request.getfixturevalue(screen), width=width, scheme=scheme) as page:
        page.wait_for_selector("h1")
        assert axe_problems(page) == []
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        picture(page, f"{screen}-{width}-{scheme}")
