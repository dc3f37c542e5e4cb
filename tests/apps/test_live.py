"""Live: the tree as a terminal shows it, and the lines where there is none."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from tests.apps.test_watch import TREE, Hands

from mergepoint.apps.cli.live import LiveTree, PlainLines, Screen
from mergepoint.apps.cli.progress import Progress
from mergepoint.engine.callbacks import Event
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block


def console_of(width: int, height: int, *, encoding: str = "utf-8") -> Console:
    """Return a terminal without colours that keeps what it shows."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=file, force_terminal=True, color_system=None, width=width, height=height)


def shown(tree: LiveTree) -> list[str]:
    """Return the lines that are shown at this moment."""
    with tree.console.capture() as captured:
        tree.console.print(tree)
    return [line.rstrip() for line in captured.get().splitlines()]


def watched() -> tuple[Progress, Hands]:
    """Return a watch on a tree of which the first call is done and the second runs."""
    hands = Hands()
    watch = Progress(TREE, clock=hands)
    watch.note(Event("start", "t/draft", model="m:x"))
    hands.time = 1.5
    watch.note(Event("end", "t/draft", model="m:x", tokens=1200))
    watch.note(Event("start", "t/stage/a", model="m:x"))
    hands.time = 2.0
    return watch, hands


def test_the_tree_shows_state_model_time_and_tokens() -> None:
    """Every path has a line with its mark; what runs is timed to now."""
    watch, _ = watched()
    bar, *rows, last = shown(LiveTree(watch, console_of(60, 20)))
    assert bar.endswith("1 of 3 calls  2.00s  1,200 tok")
    assert [row.split() for row in rows] == [
        ["⠦", "t", "1/3", "calls", "2.00s", "1,200", "tok"],
        ["├─", "✓", "draft", "m:x", "1.50s", "1,200", "tok"],
        ["├─", "⠦", "stage", "0/2", "calls", "0.50s"],
        ["│", "├─", "⠦", "a", "m:x", "0.50s"],
        ["│", "└─", "·", "b"],
        ["└─", "✓", "empty"],
    ]
    assert last == ""


def test_the_last_frame_has_no_spinner_and_no_notice() -> None:
    """When the run is over nothing seems to move."""
    watch, _ = watched()
    tree = LiveTree(watch, console_of(60, 20))
    watch.notice = "stopping"
    assert shown(tree)[-1] == "stopping"
    tree.over = True
    text = "\n".join(shown(tree))
    assert "stopping" not in text
    assert "◐ a" in text


@pytest.mark.parametrize("height", [4, 10, 24, 40])
@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_it_fits_the_terminal(width: int, height: int) -> None:
    """No line is wider and the whole is not taller, at any size, for a large tree."""
    block = [Block([Step("x", name="y" * 50)] * 1, name=f"long name {n}") for n in range(60)]
    watch = Progress(Block(block, name="t"))
    watch.note(Event("start", f"t/long name 30/{'y' * 50}", model="provider:" + "z" * 80))
    lines = shown(LiveTree(watch, console_of(width, height)))
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_a_narrow_terminal_leaves_out_who_answers() -> None:
    """Names come before models where there is no room for both."""
    watch, _ = watched()
    text = "\n".join(shown(LiveTree(watch, console_of(40, 20))))
    assert "m:x" not in text
    assert "draft" in text


def test_a_terminal_without_unicode_gets_ascii() -> None:
    """Branches, marks and spinner are ASCII where nothing else can be shown."""
    watch, _ = watched()
    rows = shown(LiveTree(watch, console_of(60, 20, encoding="ascii")))[1:]
    assert "\n".join(rows).isascii()
    assert any(row.startswith("|- v draft") for row in rows)


def test_names_cannot_move_the_cursor() -> None:
    """A model's name with a control code in it is shown, not obeyed."""
    watch = Progress(Step("x", name="a"))
    watch.note(Event("start", "a", model="evil\x1b[2J"))
    assert "\x1b" not in "".join(shown(LiveTree(watch, console_of(80, 20))))


def test_without_a_terminal_each_call_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A line when a call has ended: how many, how, where, who, how long, how much."""
    hands = Hands()
    lines = PlainLines(Progress(TREE, clock=hands))
    lines(Event("start", "t/draft", model="m:x"))
    lines(Event("token", "t/draft", text="a"))
    hands.time = 1.25
    lines(Event("end", "t/draft", model="m:x", tokens=12))
    lines(Event("start", "t/stage/a", model="m:x"))
    lines(Event("error", "t/stage/a", model="m:x"))
    lines(Event("end", "elsewhere", model="m:x"))
    assert capsys.readouterr().err.splitlines() == [
        "[1/3] done   t/draft  m:x  1.25s  12 tok",
        "[2/3] failed t/stage/a  m:x  0.00s",
    ]


def test_an_answer_from_the_record_is_not_told_as_a_call(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A line, and a row on a terminal, show that an answer was recorded before."""
    watch = Progress(TREE, clock=Hands())
    lines = PlainLines(watch)
    lines(Event("start", "t/draft", model="m:x"))
    lines(Event("end", "t/draft", model="m:x", tokens=12, recorded=True))
    assert capsys.readouterr().err.splitlines() == ["[1/3] reused t/draft  m:x  0.00s  12 tok"]
    head, _, row, *_ = shown(LiveTree(watch, console_of(80, 20)))
    assert row.split() == ["├─", "✓", "draft", "reused", "m:x", "0.00s", "12", "tok"]
    assert "1 of 3 calls, 1 reused" in head


def test_truncated_answers_and_retries_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The live view marks an answer that was cut off, and says when a stream begins anew."""
    watch = Progress(TREE, clock=Hands())
    lines = PlainLines(watch)
    lines(Event("start", "t/draft", model="m:x"))
    lines(Event("retry", "t/draft", model="m:x", text="the stream broke off\nand more"))
    lines(Event("start", "t/draft", model="m:x"))
    lines(Event("end", "t/draft", model="m:x", truncated="length"))
    assert capsys.readouterr().err.splitlines() == [
        "retry  t/draft  the stream broke off",
        "[1/3] done   t/draft  truncated (length)  m:x  0.00s",
    ]
    assert (watch.root.failed, watch.root.done) == (0, 1)
    assert "truncated (length)" in "\n".join(shown(LiveTree(watch, console_of(120, 20))))


def test_a_stderr_that_is_gone_stops_the_lines_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The calls of a run may be paid for; nobody listening is no reason to end it."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    watch = Progress(TREE)
    lines = PlainLines(watch)
    monkeypatch.setattr("sys.stderr", Gone())
    for path in ("t/draft", "t/stage/a"):
        lines(Event("start", path))
        lines(Event("end", path))
    assert watch.root.done == 2


def test_what_is_left_out_is_told_and_not_red() -> None:
    """The bar is full at the end of a run that went on without some calls."""
    watch, _ = watched()
    watch.note(Event("end", "t/stage/a", model="m:x"))
    watch.note(Event("start", "t/stage/b", model="m:x"))
    watch.note(Event("left_out", "t/stage/b", model="m:x"))
    watch.end()
    tree = LiveTree(watch, console_of(70, 20))
    tree.over = True
    bar, *rows = shown(tree)
    assert "2 of 3 calls, 1 skipped" in bar
    assert rows[4].split()[:7] == ["│", "└─", "∅", "b", "skipped:", "no", "budget"]
    assert rows[0].split()[0] == "✓"
    tree = LiveTree(watch, console_of(70, 20, encoding="ascii"))
    assert "0 b" in "\n".join(shown(tree))


def test_a_question_stays_where_it_was_asked() -> None:
    """The tree that comes back after it begins below, and draws over nothing."""
    watch, _ = watched()
    console = console_of(60, 20)
    tree = LiveTree(watch, console)
    with Screen(console, lambda: tree) as screen:
        with screen.aside():
            console.print("Shall we?")
        with screen.aside():
            console.print("And now?")
    console.file.flush()
    written = console.file.buffer.getvalue().decode()  # type: ignore[attr-defined]
    for asked in ("Shall we?", "And now?"):
        before_the_tree = written.partition(asked)[2].partition("of 3 calls")[0]
        assert before_the_tree
        assert "\x1b[1A" not in before_the_tree  # one line up
