"""`mergepoint runs`: what is on disk of runs that are done, failed, killed, damaged or running."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from tests.apps.command import command, completions, line, on_terminal, plain, process

from mergepoint.apps.cli.runs import put_records
from mergepoint.engine.run_tree import run_generation
from mergepoint.journal.file_journal import FileJournal
from mergepoint.journal.line_logs import Tail
from mergepoint.tree.leaves import Step

PATHS = ["essay/draft", "essay/threads/first", "essay/threads/second", "essay/consensus"]

KILLING = '''\
"""A tree whose third prompt kills the process, as long as there is no file `ready`."""

import os
import signal
from pathlib import Path

from mergepoint import Block, Step


def die(ctx):
    if not Path("ready").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return "Go on."


tree = Block(
    [
        Step("Write a line.", name="draft"),
        Block([Step("Write more.", name="more"), Step(die, name="die")], name="stage"),
    ],
    name="killing",
)
'''


@pytest.fixture
def done() -> Path:
    """Return the folder of a run of four calls that is done."""
    assert command("run", "essay.py", "-i", "topic=rivers", "--run-id", "one").code == 0
    return Path("runs/one")


@pytest.fixture
def killed(here: Path) -> Path:
    """Return the folder of a run that was killed after two of three calls."""
    (here / "killing.py").write_text(KILLING, encoding="utf-8")
    run = process("run", "killing.py", "--run-id", "dead")
    assert run.code == -signal.SIGKILL
    folder = Path("runs/dead")
    assert not (folder / "transcript.json").exists()
    return folder


def journal_lines(folder: Path) -> list[bytes]:
    """Return the lines of a run's journal."""
    return (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)


def damage(folder: Path, number: int) -> None:
    """Change a letter in a line of a run's journal; lines count from 1."""
    lines = journal_lines(folder)
    changed = bytearray(lines[number - 1])
    changed[len(changed) // 2] ^= 1
    lines[number - 1] = bytes(changed)
    (folder / "journal.jsonl").write_bytes(b"".join(lines))


def tear(folder: Path, number: int = 20) -> None:
    """Leave the beginning of a line at the end of a journal, as a kill does."""
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(journal_lines(folder)[1][:number])


@contextmanager
def written(folder: Path) -> Iterator[FileJournal]:
    """Hold a run's journal, as a process that runs it does."""
    with FileJournal.open(folder / "journal.jsonl") as journal:
        yield journal


@pytest.mark.campaign
def test_runs_are_listed_whatever_became_of_them(done: Path, killed: Path) -> None:
    """Done, failed, killed and unreadable runs are all there, the newest first."""
    command("run", "breaking.py", "--run-id", "bad")
    Path("runs/odd").mkdir()
    Path("runs/odd/transcript.json").write_text("[]", encoding="utf-8")
    listed = command("runs", "list")
    names = ["run", "odd", "bad", "dead", "one"]
    assert [line.split()[0] for line in listed.out.splitlines()] == names
    odd, bad, dead, one = command("runs", "list", "--json").data
    assert odd["state"] == "damaged"
    assert "holds no transcript" in odd["problem"]
    assert (bad["state"], bad["error"]["path"]) == ("failed", "breaking/stage/title")
    assert (dead["state"], dead["calls"], dead["of"]) == ("unfinished", 2, 3)
    assert (one["state"], one["calls"], one["of"], one["error"]) == ("done", 4, 4, None)
    assert one["offline"]
    assert one["tokens"] > 0
    newest = command("runs", "list", "--json", "-n", "2").data
    assert [run["run_id"] for run in newest] == ["odd", "bad"]


@pytest.mark.campaign
@pytest.mark.parametrize("words", [("runs", "list"), ("runs", "tail", "one"), ("show", "one")])
def test_what_runs_print_fits_a_terminal_of_80_columns(done: Path, words: tuple[str, ...]) -> None:
    """No line is cut by the terminal."""
    code, shown = on_terminal(*words)
    assert code == 0
    assert max(map(len, plain(shown).splitlines())) <= 80


@pytest.mark.campaign
def test_a_list_on_a_terminal_tells_one_run_from_another(done: Path) -> None:
    """Graph, state, duration and the first words of input and result are in two lines."""
    _, shown = on_terminal("runs", "list")
    head, row, story = plain(shown).splitlines()
    assert head.split()[:5] == ["run", "graph", "state", "calls", "time"]
    assert row.split()[:4] == ["one", "essay.py:tree", "done", "4/4"]
    assert story.startswith("  rivers -> ")
    (facts,) = command("runs", "list", "--json").data
    assert (facts["graph"], facts["models"]) == ("essay.py:tree", ["mergepoint:offline"])
    assert facts["text"].startswith(story.partition(" -> ")[2].rstrip("…")[:20])
    assert facts["seconds"] > 0


@pytest.mark.campaign
def test_a_run_is_shown_on_a_terminal_as_it_was_live(killed: Path) -> None:
    """Answered and missing calls have their marks, and the state says where the run stopped."""
    _, shown = on_terminal("show", "dead")
    text = plain(shown)
    assert "state     unfinished: no answer at killing/stage/die" in text
    assert "2 of 3 calls" in text
    assert "✓ more" in text
    assert "· die" in text


def test_a_run_that_is_being_written_is_running(done: Path) -> None:
    """The state is that of the lock, and to ask for it disturbs no writer."""
    with written(done) as journal:
        for _ in range(2):
            assert command("runs", "list", "--json").data[0]["state"] == "running"
        assert command("show", "one", "--json").data["state"] == "running"
        journal.append(journal.records[0])
    assert command("runs", "list", "--json").data[0]["state"] == "done"


def test_a_list_of_no_runs_is_empty() -> None:
    """Nothing goes to stdout, so that a script counts no line; people are told."""
    listed = command("runs", "list")
    assert (listed.code, listed.out) == (0, "")
    assert "no runs in runs" in listed.err
    assert command("runs", "list", "--json").data == []


@pytest.mark.campaign
def test_a_run_that_was_gone_on_with_and_killed_is_not_what_its_old_transcript_says(
    killed: Path,
) -> None:
    """A transcript with fewer calls than the journal is not believed."""
    lines = journal_lines(killed)
    (killed / "journal.jsonl").write_bytes(b"".join(lines[:2]))
    command("runs", "repair", "dead")
    assert (killed / "transcript.json").exists()
    (killed / "journal.jsonl").write_bytes(b"".join(lines))
    (run,) = command("runs", "list", "--json").data
    assert (run["state"], run["calls"]) == ("unfinished", 2)
    checked = command("runs", "check", "dead")
    assert checked.code == 3
    assert "killing/stage/more is only in the journal" in checked.out


@pytest.mark.campaign
def test_a_killed_run_is_shown_path_by_path(killed: Path) -> None:
    """What began it, which paths have an answer, what is missing, and how to go on."""
    shown = command("show", "dead")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert "state     unfinished: no answer at killing/stage/die is on record" in lines
    assert "resume    mergepoint resume dead" in lines
    tree = [line.split()[:2] for line in lines[lines.index("") + 1 :]]
    assert tree == [
        ["killing"],
        ["draft", "answered"],
        ["stage"],
        ["more", "answered"],
        ["die", "no"],
    ]
    data = command("show", "last", "--json").data
    assert data["missing"] == ["killing/stage/die"]
    assert [call["state"] for call in data["calls"]] == ["answered", "answered", "missing"]
    assert {call["kind"] for call in data["calls"]} == {"step", None}


ASKING = '''\
"""A function that asks its model and then kills the process, unless there is a file `ready`."""

import os
import signal
from pathlib import Path

from mergepoint import Block, Call


def ask(ctx):
    said = ctx.model().invoke("Write a line.").text
    if not Path("ready").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return str(said)


tree = Block([Call(ask, name="ask", capture_key="said")], name="asking")
'''


@pytest.mark.campaign
def test_a_function_that_was_killed_after_its_model_answered_has_no_answer(here: Path) -> None:
    """What is inside of it is on record, is told with it, and is taken when the run goes on."""
    (here / "asking.py").write_text(ASKING, encoding="utf-8")
    assert process("run", "asking.py", "--run-id", "dead").code == -signal.SIGKILL
    shown = command("show", "dead")
    assert "state     unfinished: no answer at asking/ask is on record" in shown.out.splitlines()
    data = command("show", "dead", "--json").data
    (call,) = data["calls"]
    assert (call["path"], call["state"], call["kind"]) == ("asking/ask", "missing", None)
    assert call["tokens"] > 0
    (here / "ready").touch()
    assert command("resume", "dead").code == 0
    assert len(journal_lines(Path("runs/dead"))) == 3
    (call,) = command("show", "dead", "--json").data["calls"]
    assert (call["state"], call["kind"]) == ("answered", "call")


def test_failed_attempts_are_shown_where_they_were(here: Path) -> None:
    """A path whose call failed says how often, and with which error."""
    text = (
        "from langchain_core.language_models import FakeListChatModel\n"
        "from mergepoint import Step\n\n"
        "tree = Step('x', model=FakeListChatModel(responses=[' ']), name='blank')\n"
    )
    (here / "blank.py").write_text(text, encoding="utf-8")
    assert command("run", "blank.py", "--run-id", "r").code == 1
    shown = command("show", "r").out
    assert "blank  failed    1 failed attempt, AnswerError: the model's answer is blank" in shown
    (call,) = command("show", "r", "--json").data["calls"]
    assert (call["state"], call["failed_attempts"]) == ("failed", 1)


@pytest.mark.campaign
def test_calls_of_a_killed_run_are_seen_by_show(killed: Path) -> None:
    """`mergepoint show` works from the journal where there is no transcript."""
    shown = command("show", "dead", "--calls")
    assert shown.code == 0
    assert shown.out.splitlines()[-1].startswith("The run isn't finished: no answer at")
    assert "It answered" in command("show", "last", "more").out


def test_the_last_records_are_one_line_each(done: Path) -> None:
    """Time, path, seconds, tokens and words are there; -n says how many."""
    lines = command("runs", "tail", "one").out.splitlines()
    assert [line.split()[1] for line in lines] == PATHS
    assert [line.split()[4] for line in lines] == ["tok"] * 4
    assert len(command("runs", "tail", "one", "-n", "2").out.splitlines()) == 2
    assert command("runs", "tail", "one", "-n", "0").out == ""
    text = command("runs", "tail", "one", "--json").out
    records = [json.loads(line) for line in text.splitlines()]
    assert [record["path"] for record in records] == PATHS
    assert [record["line"] for record in records] == [2, 3, 4, 5]
    assert all(record["text"] and record["error"] is None for record in records)


def test_records_are_followed_as_they_are_appended(done: Path) -> None:
    """A line that is torn is shown once it is whole, and the end is when the lock is gone."""
    lines = journal_lines(done)
    journal = done / "journal.jsonl"
    journal.write_bytes(b"".join(lines[:2]) + lines[2][:30])
    shown: list[list[str]] = []
    writer = journal.open("ab", buffering=0)
    import fcntl

    fcntl.flock(writer, fcntl.LOCK_EX)
    rest = [lines[2][30:], lines[3], b"", lines[4]]

    def pause() -> None:
        shown.append([text.split()[1] for text in out.getvalue().splitlines()])
        if rest:
            writer.write(rest.pop(0))
        else:
            writer.close()

    with redirect_stdout(io.StringIO()) as out:
        put_records(Tail.of_file(journal), last=10, follow=True, json=False, pause=pause)
    assert shown == [PATHS[:1], PATHS[:2], PATHS[:3], PATHS[:3], PATHS]


@pytest.mark.campaign
def test_following_a_run_that_has_ended_ends_at_once(killed: Path) -> None:
    """It says how the run ended and how to go on, on stderr."""
    tail = command("runs", "tail", "last", "-f")
    assert tail.code == 0
    assert len(tail.out.splitlines()) == 2
    assert "The run has ended: unfinished: no answer at killing/stage/die" in tail.err
    assert "resume: mergepoint resume dead" in tail.err


@pytest.mark.campaign
def test_ctrl_c_ends_following_with_130(done: Path) -> None:
    """Who follows a run that goes on leaves with the code of every command, and no message."""
    with written(done):
        tail = subprocess.Popen(  # noqa: S603  (this interpreter)
            line("runs", "tail", "one", "-f", "--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert tail.stdout is not None
        assert [json.loads(tail.stdout.readline())["path"] for _ in PATHS] == PATHS
        tail.send_signal(signal.SIGINT)
        out, err = tail.communicate(timeout=60)
    assert (tail.returncode, out, err) == (130, "", "")


def test_a_run_as_it_was_written_is_fine(done: Path, killed: Path) -> None:
    """Done, killed and failed runs have nothing wrong with them."""
    command("run", "breaking.py", "--run-id", "bad")
    checked = command("runs", "check", "--all")
    assert (checked.code, checked.err) == (0, "")
    assert set(checked.out.splitlines()) == {"one: OK", "dead: OK", "bad: OK"}
    with written(done):
        tear(done)
        assert command("runs", "check", "one").code == 0


def test_everything_that_is_wrong_is_told_with_its_line(done: Path) -> None:
    """Code 3, and a problem for each bad line and for a torn end, in one go."""
    damage(done, 2)
    damage(done, 4)
    tear(done)
    checked = command("runs", "check", "one", "--json")
    assert checked.code == 3
    (run,) = checked.data
    assert not run["ok"]
    assert [problem["line"] for problem in run["problems"]] == [2, 4, 6]
    text = command("runs", "check", "last")
    assert text.out.splitlines()[0].startswith("runs/one/journal.jsonl:2: its checksum does not")
    assert "mergepoint runs repair one" in text.err


def other_transcript(**changes: Any) -> None:
    """Write other values into the transcript of the run `one`."""
    file = Path("runs/one/transcript.json")
    data = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**data, **changes}), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 9}, "seed differs from the value computed from the journal"),
        ({"text": "Mine."}, "text differs"),
        ({"steps": []}, "steps: essay/draft is only in the journal"),
        ({"format": "x"}, "holds no transcript"),
    ],
)
def test_a_transcript_that_says_something_else_is_wrong(
    done: Path, changes: dict[str, Any], said: str
) -> None:
    """The transcript is compared with what the journal gives, and repair writes it anew."""
    before = (done / "transcript.json").read_text(encoding="utf-8")
    other_transcript(**changes)
    checked = command("runs", "check", "one")
    assert checked.code == 3
    assert said in checked.out
    assert command("runs", "repair", "one").code == 0
    assert (done / "transcript.json").read_text(encoding="utf-8") == before


@pytest.mark.campaign
def test_a_record_of_another_tree_is_wrong(done: Path, killed: Path) -> None:
    """A whole line from another run's journal is found by its path."""
    with (done / "journal.jsonl").open("ab") as file:
        file.write(journal_lines(killed)[1])
    checked = command("runs", "check", "one")
    assert checked.code == 3
    assert "journal.jsonl:6: a record of killing/draft, which isn't a path" in checked.out


@pytest.mark.parametrize("args", [[], ["one", "--all"]])
def test_a_check_needs_runs_or_all(done: Path, args: list[str]) -> None:
    """Neither and both are refused."""
    checked = command("runs", "check", *args)
    assert checked.code == 2
    assert "Name the runs to check, or use --all." in checked.err


def test_a_repair_keeps_what_is_good_and_a_copy_of_the_rest(done: Path) -> None:
    """The good lines stay, the file as it was lies beside, and a resume pays the lost calls."""
    before = journal_lines(done)
    damage(done, 3)
    whole = (done / "journal.jsonl").read_bytes()
    repaired = command("runs", "repair", "one", "--json")
    assert repaired.code == 0
    assert repaired.data == {
        "run_id": "one",
        "repaired": True,
        "kept": 1,
        "dropped": 3,
        "torn": 0,
        "copy": "runs/one/journal.jsonl.damaged-1",
        "transcript": "runs/one/transcript.json",
    }
    assert "3 lines would be dropped, and a resume repeats those calls" in repaired.err
    assert journal_lines(done) == before[:2]
    assert (done / "journal.jsonl.damaged-1").read_bytes() == whole
    assert command("runs", "check", "one").code == 0
    assert command("runs", "list", "--json").data[0]["calls"] == 1
    assert command("resume", "one", "-q").code == 0
    assert [json.loads(text[9:])["path"] for text in journal_lines(done)[1:]] == PATHS


def test_a_second_repair_keeps_the_first_copy(done: Path) -> None:
    """Copies are numbered, and none is written over."""
    damage(done, 5)
    command("runs", "repair", "one")
    damage(done, 4)
    again = command("runs", "repair", "one", "--json").data
    assert again["copy"].endswith(".damaged-2")
    assert (done / "journal.jsonl.damaged-1").exists()
    assert command("runs", "repair", "one").out == "one: nothing to repair\n"


@pytest.mark.campaign
def test_a_torn_end_is_cut_off_without_a_copy(killed: Path) -> None:
    """No record is lost by it, and the transcript is written."""
    before = journal_lines(killed)
    tear(killed)
    repaired = command("runs", "repair", "dead", "--json").data
    assert (repaired["torn"], repaired["dropped"], repaired["copy"]) == (20, 0, None)
    assert journal_lines(killed) == before
    error = json.loads((killed / "transcript.json").read_text(encoding="utf-8"))["error"]
    assert error["type"] == "Unfinished"


def test_what_is_being_written_is_not_repaired(done: Path) -> None:
    """A run with a writer is refused, and stays as it is."""
    tear(done)
    before = (done / "journal.jsonl").read_bytes()
    with (done / "journal.jsonl").open("ab") as writer:
        import fcntl

        fcntl.flock(writer, fcntl.LOCK_EX)
        repaired = command("runs", "repair", "one", "--yes")
    assert repaired.code == 2
    assert "the run is being written by" in repaired.err
    assert (done / "journal.jsonl").read_bytes() == before


def test_without_a_header_nothing_is_repaired(done: Path) -> None:
    """A journal whose first line is damaged is left alone, and said to be past repair."""
    damage(done, 1)
    before = (done / "journal.jsonl").read_bytes()
    repaired = command("runs", "repair", "one")
    assert repaired.code == 2
    assert "its header cannot be read" in repaired.err
    assert (done / "journal.jsonl").read_bytes() == before
    assert command("runs", "check", "one").code == 3


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize(("typed", "code"), [("n\n", 130), ("y\n", 0)])
def test_on_a_terminal_a_repair_asks(done: Path, typed: str, code: int) -> None:
    """A no changes nothing."""
    damage(done, 3)
    before = (done / "journal.jsonl").read_bytes()
    left, shown = on_terminal("runs", "repair", "one", typed=typed)
    assert left == code
    assert "Continue?" in plain(shown)
    assert ((done / "journal.jsonl").read_bytes() == before) == (code == 130)


@pytest.mark.campaign
def test_a_run_is_exported_from_its_journal(done: Path, killed: Path) -> None:
    """The JSON is the transcript's, to stdout or a file; of a killed run it says so."""
    expected = json.loads((done / "transcript.json").read_text(encoding="utf-8"))
    (done / "transcript.json").unlink()
    assert command("runs", "export", "one").data == expected
    assert command("runs", "export", "one", "--to", "out.json").out == ""
    assert json.loads(Path("out.json").read_text(encoding="utf-8")) == expected
    dead = command("runs", "export", "dead").data
    assert (dead["error"]["type"], dead["text"], len(dead["steps"])) == ("Unfinished", "", 2)
    assert command("runs", "export", "one", "--to", "essay.py/x.json").code == 2


def test_a_run_without_a_journal_is_refused(done: Path) -> None:
    """What needs a journal says that there is none, and what there is."""
    shutil.copytree(done, "runs/two")
    Path("runs/two/journal.jsonl").unlink()
    for name in ("tail", "repair", "export"):
        refused = command("runs", name, "two")
        assert refused.code == 2
        assert "Run 'two' has no journal" in refused.err
    assert command("show", "two").code == 0
    assert command("runs", "check", "two").code == 0
    assert command("runs", "list", "--json").data[0]["state"] == "done"


def test_runs_alone_are_answered_with_help() -> None:
    """The group without a command shows what there is, and a script hears that it was wrong."""
    run = process("runs")
    assert (run.code, run.out) == (2, "")
    assert "repair" in run.err


@pytest.mark.campaign
def test_the_shell_completes_runs_with_a_journal(killed: Path) -> None:
    """Ids are offered where a run is named, and the paths of a killed run too."""
    Path("runs/bare").mkdir()
    Path("runs/bare/transcript.json").write_text("{}", encoding="utf-8")
    assert completions("mergepoint runs tail ") == ["last", "dead"]
    assert completions("mergepoint runs check de") == ["dead"]
    assert completions("mergepoint resume de") == ["dead"]
    assert completions("mergepoint show dead killing/s") == ["killing/stage/more"]


def test_a_folder_of_runs_elsewhere_is_named_whole(done: Path) -> None:
    """The command to go on with names a folder where the id alone would not be found."""
    shutil.copytree(done, "mine/one")
    lines = journal_lines(Path("mine/one"))
    Path("mine/one/journal.jsonl").write_bytes(b"".join(lines[:3]))
    shown = command("show", "one", "--out", "mine", "--json").data
    assert shown["folder"] == str(Path("mine/one"))
    assert "resume    mergepoint resume mine/one" in command("show", "mine/one").out


def test_a_run_of_a_thread_is_listed_by_its_newest_message() -> None:
    """Earlier messages are the thread's history, and not what the run was asked."""
    history = [
        HumanMessage("What is a fjord?"),
        AIMessage("A drowned valley."),
        HumanMessage("Why?"),
    ]
    run_generation(Step("Answer.", name="say"), model="offline", messages=history)
    assert "Why? ->" in command("runs", "list").out
