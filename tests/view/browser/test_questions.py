"""The questions that people have about a run, each answered by its page within two clicks or keys.

The answers that are looked for come from the records of the runs, never from this file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.view.browser.opening import Opened
from tests.view.browser.stored_runs import CHANGED, CHANGED_PROMPT, REFUSED, THINGS, StoredRuns

from mergepoint.report.transcript_index import TranscriptIndex

pytestmark = pytest.mark.browser

MOST = 2
STAGE = "pipeline/section_2b_title"


@dataclass
class Person:
    """A reader of a page, whose clicks and keys are counted; more than two fail."""

    page: Any
    done: list[str] = field(default_factory=list)

    def click(self, selector: str) -> None:
        """Click an element."""
        self._did(selector)
        self.page.locator(selector).first.click()

    def press(self, key: str) -> None:
        """Press a key."""
        self._did(key)
        self.page.keyboard.press(key)

    def reads(self, selector: str = "body") -> str:
        """Return the text of the first element as it is shown, in one line."""
        return " ".join(self.page.locator(selector).first.inner_text().split())

    def sees_at_once(self, selector: str) -> bool:
        """Return whether an element is in the window without scrolling."""
        box = self.page.locator(selector).first.bounding_box()
        return bool(box) and box["y"] >= 0 and box["y"] + min(box["height"], 40) <= 800

    def _did(self, what: str) -> None:
        self.done.append(what)
        assert len(self.done) <= MOST, f"more than {MOST} clicks: {self.done}"


def card(path: str) -> str:
    """Return the selector of the name of a call in the story, which opens its X-ray."""
    return f'.call[data-path="{path}"] .call-name'


def flat(text: str) -> str:
    """Return a text in one line."""
    return " ".join(text.split())


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredRuns:
    """Return a folder with a run of 42 calls, and one that differs from it in a prompt."""
    found = StoredRuns(tmp_path_factory.mktemp("stored"))
    found.make_picture()
    found.make_picture("changed", "--set", CHANGED_PROMPT, "--reuse", "picture")
    found.make_failed()
    return found


@pytest.fixture(scope="module")
def opened(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Return the browser, with a folder for the pages of the module."""
    return Opened(chromium, tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def picture(stored: StoredRuns) -> Path:
    """Return the page of the run of 42 calls."""
    return stored.page("picture")


@pytest.fixture(scope="module")
def index(stored: StoredRuns) -> TranscriptIndex:
    """Return what is on record of the run of 42 calls."""
    return TranscriptIndex(stored.transcript("picture"))


def test_did_it_work_and_what_came_out(opened: Opened, picture: Path, stored: StoredRuns) -> None:
    """The verdict and the result are there without a click and without scrolling."""
    transcript = stored.transcript("picture")
    with opened.file(picture) as page:
        person = Person(page)
        assert person.sees_at_once(".verdict")
        assert person.sees_at_once(".result")
        assert person.reads(".verdict").startswith("Done: 42 of 42 calls answered")
        assert person.reads(".result-clip").startswith(flat(transcript.text)[:100])
        person.click("text=show all")
        assert flat(transcript.text) in person.reads(".result-full")


def test_which_run_was_mine(opened: Opened, stored: StoredRuns) -> None:
    """The list shows the first words of a run's input, and finds it by them."""
    inputs = stored.transcript("failed").inputs
    with opened.file(stored.page()) as page:
        person = Person(page)
        person.press("/")
        page.keyboard.type(inputs["topic"])
        rows = page.locator(".runs-table tbody tr")
        rows.first.wait_for()
        assert rows.count() == 1
        assert inputs["topic"] in person.reads(".runs-table tbody tr")
        assert "report" in person.reads(".runs-table tbody tr")


def test_is_it_alive(opened: Opened, stored: StoredRuns) -> None:
    """A run of another process is shown as running, with the call that it is at."""
    with stored.running():
        file = stored.page("running")
    answered = len(stored.transcript("running").records)
    with opened.file(file) as page:
        person = Person(page)
        assert person.reads(".verdict").startswith(f"Running: {answered} of 3 calls answered")
        assert "running" in person.reads(".top-line")
        two = page.get_by_role("treeitem", name="two")
        assert "running" in str(two.get_attribute("aria-label"))
    # Its process is gone now.
    with opened.file(stored.page("running")) as page:
        assert "Running" not in Person(page).reads(".verdict")


def test_where_and_why_did_it_fail(opened: Opened, stored: StoredRuns) -> None:
    """The first failure with its path and its reason is there without a click."""
    error = stored.transcript("failed").error
    assert error is not None
    with opened.file(stored.page("failed")) as page:
        person = Person(page)
        assert person.sees_at_once(".failure-box")
        said = person.reads(".failure-box")
        assert error["path"].removeprefix("report/") in said
        assert error["type"] in said
        assert flat(error["message"])[:80] in said


def test_what_did_the_model_say_when_it_failed(opened: Opened, stored: StoredRuns) -> None:
    """The refused answer is shown in full, marked where it did not parse, without a click."""
    with opened.file(stored.page("failed")) as page:
        person = Person(page)
        assert person.reads(".xray h2") == "rate"
        assert flat(REFUSED).rstrip() in person.reads(".x-refused-answer").replace("▸", "")
        assert page.locator(".x-refused-answer .parse-error").count() == 1
        assert "line 1, column" in str(page.locator(".parse-error").get_attribute("title"))


def test_what_did_this_call_see(opened: Opened, picture: Path, index: TranscriptIndex) -> None:
    """One click on a call of the story shows every message that it saw, in order."""
    path = f"{STAGE}/tot_enclave/consensus"
    wanted = [flat(one.text) for one in index.call(path).seen]
    with opened.file(picture) as page:
        person = Person(page)
        person.click(card(path))
        page.locator(".xray .cards").wait_for()
        shown = page.locator(".xray .cards > li").all_inner_texts()
        assert len(shown) == len(wanted)
        for text, card_text in zip(wanted, shown, strict=True):
            assert text[:60] in flat(card_text)


def test_who_wrote_this_sentence(opened: Opened, picture: Path, index: TranscriptIndex) -> None:
    """A search for a sentence of the result finds the call whose answer had it first."""
    sentence = "one small mark of daily use near the lower edge"
    first = next(path for path in index.paths if sentence in str(index.record(path).response or ""))
    with opened.file(picture) as page:
        person = Person(page)
        person.press("/")
        page.keyboard.type(sentence)
        page.locator(".search-row").first.wait_for()
        person.press("Enter")
        assert first.removeprefix("pipeline/") in person.reads(".xray .x-path")
        assert sentence in person.reads(".xray .x-answer")


def test_where_was_the_good_answer_lost(opened: Opened, picture: Path) -> None:
    """One click on a critic shows the merge that dropped its answer, and who still read it."""
    path = f"{STAGE}/tot_enclave/munch"
    with opened.file(picture) as page:
        person = Person(page)
        person.click(card(path))
        fate = person.reads(".xray .x-fate")
        assert "Dropped at" in fate
        assert "tot_enclave/munch" in fate
        assert "read by" in fate
        assert "consensus" in fate


def test_what_was_slow(opened: Opened, picture: Path, stored: StoredRuns) -> None:
    """One key shows the timeline, which names the slowest call."""
    records = [one for one in stored.transcript("picture").records if one.kind == "step"]
    slowest = max(records, key=lambda one: one.ended - one.started).path
    with opened.file(picture) as page:
        person = Person(page)
        person.press("2")
        said = person.reads(".t-slowest")
        assert said.startswith(f"slowest: {slowest.removeprefix('pipeline/')}")


def test_what_was_expensive(opened: Opened, picture: Path, stored: StoredRuns) -> None:
    """The outline shows the cost of the most expensive stage without a click."""
    records = [one for one in stored.transcript("picture").records if one.kind == "step"]
    tokens: dict[str, int] = {}
    for one in records:
        assert one.usage is not None
        stage = one.path.split("/")[1]
        cost = one.usage["input_tokens"] + 2 * one.usage["output_tokens"]
        tokens[stage] = tokens.get(stage, 0) + cost
    most = max(tokens, key=lambda stage: tokens[stage])
    with opened.file(picture) as page:
        labels = [
            str(one.get_attribute("aria-label")) for one in page.locator("[role=treeitem]").all()
        ]
        (found,) = (one for one in labels if one.startswith(f"{most},"))
        assert f"${tokens[most] / 1e6:.4f}" in found


def test_what_will_it_cost(opened: Opened, stored: StoredRuns) -> None:
    """The page of explain says the calls and the cost before they are made, without a click."""
    paid = [one for one in stored.transcript("picture").records if one.kind == "step"]
    cost = sum(one.cost or 0.0 for one in paid)
    with opened.file(stored.plan()) as page:
        said = Person(page).reads("main")
        assert f"{len(paid)} model calls" in said
        named = [float(one) for one in re.findall(r"\$(\d+\.\d+)", said)]
        assert any(abs(one - cost) < 0.15 * cost for one in named)


def test_how_did_the_draft_change(opened: Opened, picture: Path, index: TranscriptIndex) -> None:
    """The story shows the words that the consensus cut and added, without a click."""
    draft, consensus = (
        flat(str(index.record(f"{STAGE}/{name}").response))
        for name in ("draft", "tot_enclave/consensus")
    )
    with opened.file(picture) as page:
        body = page.locator(f'.call[data-path="{STAGE}/tot_enclave/consensus"] .diff')
        kept = body.evaluate(
            "e => [...e.children].filter(x => x.tagName !== 'DEL').map(x => x.textContent).join('')"
        )
        was = body.evaluate(
            "e => [...e.children].filter(x => x.tagName !== 'INS').map(x => x.textContent).join('')"
        )
        assert re.findall(r"\w+", kept) == re.findall(r"\w+", consensus)
        assert re.findall(r"\w+", was) == re.findall(r"\w+", draft)


def test_what_differs_between_two_runs(opened: Opened, stored: StoredRuns) -> None:
    """The page of two runs begins with the first divergence, and says how many calls it changed."""
    with opened.file(stored.page("picture", "changed")) as page:
        person = Person(page)
        first = page.get_by_text("First divergence").first.locator("xpath=..")
        said = flat(first.inner_text())
        assert CHANGED in said
        assert "prompt" in said
        assert "{{ brief }}" in person.reads("body")


def test_which_critic_mattered(opened: Opened, picture: Path, index: TranscriptIndex) -> None:
    """One click on the consensus ranks the critics by the changed words that are theirs."""
    stage = "pipeline/initial_prompt"
    path = f"{stage}/tot_enclave/consensus"
    added = "Light: low golden light from one side"
    assert added in flat(str(index.record(path).response))
    with opened.file(picture) as page:
        person = Person(page)
        person.click(card(path))
        rows = [flat(one) for one in page.locator(".influence tr").all_inner_texts()]
        counts = [int(re.findall(r"(\d+) word", row)[0]) for row in rows]
        assert counts == sorted(counts, reverse=True)
        assert len(rows) == 5
        (munch,) = (row for row in rows if "munch" in row)
        assert "low golden light from one side" in munch


def test_which_thing_was_chosen_and_why(opened: Opened, stored: StoredRuns) -> None:
    """The page of a recipe with 200 Things says which is the result, with its score."""
    stored.make_things()
    with opened.file(stored.page("things")) as page:
        person = Person(page)
        assert f"{THINGS + 2} Things on record, 1 result" in person.reads(".things-summary")
        assert page.locator(".tab-things [role=row]").count() < THINGS
        assert "chosen" in person.reads(".tab-things")


def test_what_failed_in_the_session(opened: Opened, stored: StoredRuns) -> None:
    """A session's page shows the failed program between its code and the next attempt."""
    stored.make_session()
    with opened.file(stored.page("--session", "trip")) as page:
        said = Person(page).reads("main")
        places = [
            said.index(words)
            for words in ("Plan approved", "print(1 / 0)", "ZeroDivisionError", "print(42)")
        ]
        assert places == sorted(places)


def test_the_story_of_42_calls_fits_three_screens(opened: Opened, picture: Path) -> None:
    """At 1280 x 800 a person scrolls at most two screens to read all of it."""
    with opened.file(picture) as page:
        height = page.evaluate("document.documentElement.scrollHeight")
        assert page.locator(".call").count() == 42
        assert height <= 3 * 800
