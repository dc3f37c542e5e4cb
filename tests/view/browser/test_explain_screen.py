"""A run before it is paid in a browser: what each step will see, and who makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.apps.command import command
from tests.view.browser.opening import Opened, axe_problems, picture

pytestmark = pytest.mark.browser

PLAN = r'''
"""An essay with a loop, a gate and critics, and words that could do harm."""

from mergepoint import Block, Gate, Loop, Step, Template

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x1b[31m"


def critic(name):
    return Step("Criticise the last response.", name=name, merge="none", capture_key=name)


again = Step("Is it good enough? " + "It has to be. " * 400, name="again", capture_key="ok")
tree = Block(
    [
        Step(Template("Write about {{ topic }}."), name="draft"),
        Block([critic("first"), critic("second")], name="critics", merge="none"),
        Step(Template("Revise it by {{ first }}."), name="revise", merge="last_response"),
        Gate(Step("Plan: " + HOSTILE, name="plan"), name="approval"),
        Loop([again], until="ok", max_iterations=3, name="polish"),
    ],
    name="essay",
    inputs=("topic",),
)
'''


@pytest.fixture(scope="module")
def chromium(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Return the browser, with a folder for the pages of the module."""
    return Opened(chromium, tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page that the command writes."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "essay.py").write_text(PLAN, encoding="utf-8")
    file = folder / "plan.html"
    told = command(
        *("explain", str(folder / "essay.py"), "-i", "topic=rain"),
        *("--model", "openai:gpt-5-mini", "-o", str(file)),
    )
    assert told.code == 0, told.err
    return file


def step(page: Any, path: str) -> Any:
    """Return the button of a step."""
    return page.locator(f'.explain-steps button[title="{path}"]')


def test_a_step_shows_its_messages_with_the_merges_that_bring_them(
    chromium: Opened, plan: Path
) -> None:
    """What will this call see: each message has its maker and its merge, one click away."""
    with chromium.file(plan) as page:
        assert page.locator("h1").inner_text() == "essay.py, before it runs"
        step(page, "essay/revise").click()
        panel = page.get_by_role("complementary", name="What the step will see")
        cards = panel.locator(".explain-cards > li")
        assert "Write about rain." in cards.nth(0).inner_text()
        assert "[answer of essay/draft" in cards.nth(1).inner_text()
        step(page, "essay/approval/plan").click()
        brought = panel.locator(".explain-cards .badge[class*=merge-]").all_inner_texts()
        assert any("last response" in words for words in brought), brought
        panel.get_by_role("button", name="essay/revise").first.click()
        assert panel.locator("h2").inner_text() == "essay/revise"
        assert "call=essay/revise" in page.url
        picture(page, "explain-step")


def test_the_keyboard_goes_through_the_steps(chromium: Opened, plan: Path) -> None:
    """`j` and `k` choose a step, `[` its last maker, Enter what has the focus, Escape nothing."""
    with chromium.file(plan) as page:
        heading = page.locator(".explain-sees h2")
        page.keyboard.press("j")
        assert heading.inner_text() == "essay/draft"
        page.keyboard.press("j")
        assert heading.inner_text() == "essay/critics/first"
        page.keyboard.press("[")
        assert heading.inner_text() == "essay/draft"
        page.keyboard.press("j")
        page.keyboard.press("k")
        assert heading.inner_text() == "essay/draft"
        step(page, "essay/revise").press("Enter")
        assert heading.inner_text() == "essay/revise"
        page.keyboard.press("Escape")
        assert heading.count() == 0
        assert page.locator(".explain-step.is-selected").count() == 0


def test_what_scrolls_is_reached_by_the_keyboard(chromium: Opened, plan: Path) -> None:
    """A long message can be scrolled without a mouse: it takes the focus."""
    with chromium.file(plan) as page:
        step(page, "essay/polish/iteration_01/again").click()
        text = page.locator(".explain-text").last
        assert text.evaluate("one => one.scrollHeight > one.clientHeight")
        text.focus()
        assert text.evaluate("one => document.activeElement === one")
        page.keyboard.press("End")
        page.wait_for_function("() => document.activeElement.scrollTop > 0")


def test_hostile_prompts_are_shown_and_not_run(chromium: Opened, plan: Path) -> None:
    """Scripts, escapes and direction marks of a prompt are text, visibly."""
    with chromium.file(plan) as page:
        step(page, "essay/approval/plan").click()
        text = page.locator(".explain-text").last.inner_text()
        assert "</script><script>alert(1)</script>" in text
        assert "\\u202e" in text
        assert "\\x1b" in text
        assert page.locator("img").count() == 0


def test_print_has_all_steps_and_the_messages_of_the_chosen_one(
    chromium: Opened, plan: Path
) -> None:
    """On paper, the chosen step has all its messages in full, and no invitation to choose one."""
    with chromium.file(plan, width=1000) as page:
        page.emulate_media(media="print")
        assert page.locator(".explain-sees").is_hidden()
        picture(page, "explain-print-none")
        page.emulate_media(media="screen")
        step(page, "essay/polish/iteration_01/again").click()
        page.emulate_media(media="print")
        assert page.locator(".explain-sees").is_visible()
        for one in page.locator(".explain-sees, .explain-text").all():
            assert one.evaluate("one => one.scrollHeight - one.clientHeight") <= 1
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        picture(page, "explain-print")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_serious(chromium: Opened, plan: Path, width: int, scheme: str) -> None:
    """With and without a chosen step: names, roles, contrast, and nothing that overflows."""
    with chromium.file(plan, width=width, scheme=scheme) as page:
        assert axe_problems(page) == []
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        for path in ("essay/approval/plan", "essay/polish/iteration_01/again"):
            step(page, path).click()
            assert axe_problems(page) == []
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        picture(page, f"explain-{width}-{scheme}")
