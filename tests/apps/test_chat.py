"""`mergepoint chat` and `mergepoint sessions`, on the offline model and in a real sandbox."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from tests.apps.command import command, completions, line, on_terminal, plain

from mergepoint import open_session
from mergepoint.agent.skills import EXAMPLES, SkillLibrary
from mergepoint.apps.cli.chat_loop import ChatSetup, converse
from mergepoint.apps.cli.chat_terminal import TurnView, WrappedText
from mergepoint.core.errors import SandboxMissing
from mergepoint.engine.callbacks import Event
from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.sandbox.job import CodeJob, CodeRun
from mergepoint.session.session_store import sessions_at
from mergepoint.testing.fakes import ScriptedRunner
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.testing.server import ModelServer, ServerReply
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block

SUM = "Sum the sales by region."
ASKED = "[l]ater: "


def newest() -> Any:
    """Return the session that was written last."""
    first, *_ = sessions_at("sessions").sessions()
    return open_session(first.session_id, sessions="sessions")


def test_messages_on_the_command_line_are_answered_in_turn() -> None:
    """Answers go to stdout, steps and all else to stderr, and the session can be gone on with."""
    done = command("chat", "-m", SUM, "-m", "Hello.", "--ask", "nothing")
    assert done.code == 0
    assert done.out.startswith("Sales by region:\n- east: 16506.80\n")
    assert "offline model" in done.out
    assert "plan: sales_report" in done.err
    assert "run: exit code 0, 6 lines" in done.err
    assert "\nresume: mergepoint chat --resume " in done.err


def test_the_last_line_names_what_a_resume_has_to_be_told_again(here: Path) -> None:
    """Model, address, limits and what the agent has, as far as they are not the usual ones."""
    (here / "a b.csv").write_text("x\n1\n", encoding="utf-8")
    with ModelServer(["Hello."] * 9) as server:
        server_words = ("--model", "openai:test", "--base-url", server.url, "--timeout", "9")
        agent_words = ("--file", "a b.csv", "--ask", "plans", "--runner", "bubblewrap")
        done = command("chat", *server_words, *agent_words, "--budget", "calls=3", given="")
    _, _, words = done.err.splitlines()[-1].partition("--resume ")
    assert words.partition(" ")[2] == (
        "--file 'a b.csv' --ask plans --runner bubblewrap --model openai:test "
        f"--base-url {server_url(server_words)} --timeout 9 --budget calls=3"
    )


def server_url(words: Sequence[str]) -> str:
    """Return the address among the words of a command."""
    return words[words.index("--base-url") + 1]


def test_a_key_is_no_part_of_the_last_line() -> None:
    """In the place of an address with a password the word URL stands."""
    url = "http://me:secret@127.0.0.1:9/v1"
    done = command("chat", "--model", "openai:test", "--base-url", url, given="")
    assert done.err.splitlines()[-1].endswith(" --model openai:test --base-url URL")


@pytest.mark.campaign
def test_a_turn_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume tries it again, and leaves it alone where something else is said."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    plan = {"intent": "Say hello.", "action": "chat", "skill": "", "steps": []}
    failed = ServerReply("wrong key", status=401)
    with ModelServer([plan, failed, plan, "Bye.", failed, plan, "Hello."]) as server:
        model = ("--model", "openai:test", "--base-url", server.url)
        assert command("chat", *model, "-m", "Hi").code == 1
        other = command("chat", *model, "--resume", "last", "-m", "Bye")
        assert "Turn 1 failed and has no answer. To retry it, omit -m." in other.err
        assert other.out == "Bye.\n"
        assert command("chat", *model, "--resume", "last", "-m", "Hi").code == 1
        way_on = command("sessions", "show", "last").out.splitlines()[-1]
        again = command(*shlex.split(way_on.removeprefix("resume: mergepoint ")), given="")
    assert (again.code, again.out) == (0, "Hello.\n")
    assert "Retrying turn 3, which failed: Hi" in again.err
    assert "resume: " not in command("sessions", "show", "last").out


def test_a_pipe_holds_messages_and_answers() -> None:
    """Lines are messages, and answers where it asks; commands too."""
    said = f"{SUM}\nr by product\napprove\nwhat?\na\n/steps\n/history\n/nope\n/quit\nnever said\n"
    done = command("chat", given=said)
    assert done.code == 0
    assert done.out.startswith("Sales by product:\n")
    assert done.out.count("Total: 40546.40") == 1
    assert done.err.count("Plan: Sum the sales by region.") == 2
    assert "Use one of: [a]pprove" in done.err
    assert (
        "decision (attempt 1) agent/planning/iteration_01/approval reject: by product" in done.err
    )
    assert "1 assistant:\n  Sales by product:" in done.err
    assert "Unknown command /nope" in done.err
    assert "never said" not in done.err


def test_what_ends_at_a_question_waits() -> None:
    """Exit code 4, the question on record; `--resume last` asks it again and goes on."""
    assert command("chat", given=f"{SUM}\na\n").code == 4
    again = command("chat", "--resume", "last", given="a\n")
    assert again.code == 0
    assert f"Turn 1 has no answer yet: {SUM}" in again.err
    assert "Plan:" not in again.err  # it was approved before
    assert again.out.startswith("Sales by region:\n")


def test_a_cancelled_turn_is_over() -> None:
    """The next line is a message of its own."""
    done = command("chat", given=f"{SUM}\nc\nHello.\n")
    assert done.code == 0
    assert "Canceled. Nothing of it will be run." in done.err
    memory = newest()
    assert [one.role for one in memory.get_messages()] == ["user", "user", "assistant"]
    assert command("chat", "--resume", "last", given="").code == 0


@pytest.mark.campaign
def test_a_chat_that_was_killed_at_a_question_goes_on() -> None:
    """After kill -9 the next process finds the question and has it answered."""
    chat = subprocess.Popen(  # noqa: S603  (this interpreter, on this package)
        line("chat"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert chat.stdin is not None
    assert chat.stderr is not None
    chat.stdin.write(f"{SUM}\n".encode())
    chat.stdin.flush()
    assert any(b"2. Print" in line for line in chat.stderr)
    chat.kill()
    chat.wait()
    chat.stdin.close()
    chat.stderr.close()
    done = command("chat", "--resume", "last", given="a\na\n")
    assert done.code == 0
    assert done.out.startswith("Sales by region:\n")
    steps = [(str(one.type), one.decides) for one in newest().get_working_steps()]
    assert steps[:2] == [("plan", ""), ("decision", "plan")]


@pytest.mark.parametrize("session", ["../../etc", "/etc", "a/b", ".", "gone"])
def test_ids_that_are_none_are_refused(session: str) -> None:
    """What would leave the folder never gets near the file system, nor does what is not there."""
    before = sorted(Path().rglob("*"))
    for done in (command("chat", "--resume", session), command("sessions", "show", session)):
        assert done.code == 2
        assert done.err.startswith("error: ")
    assert sorted(Path().rglob("*")) == before


def test_without_any_session_there_is_nothing_to_resume() -> None:
    """`last` of nothing is told, and lists say that there is nothing."""
    assert "no session to resume yet" in command("chat", "--resume", "last").err
    assert command("sessions", "list").err == "There are no sessions in sessions.\n"
    assert command("sessions", "show", "last").code == 2


def test_options_that_cannot_be_are_refused() -> None:
    """Unknown runners, missing files and folders without skills, before anything is begun."""
    assert "'bash' is not one of 'bubblewrap'" in command("chat", "--runner", "bash").err
    assert "the file doesn't exist" in command("chat", "--file", "gone.csv").err
    assert "no skill found" in command("chat", "--skills", ".").err
    assert not Path("sessions").exists()


def test_what_is_said_of_oneself_is_remembered() -> None:
    """Facts are found by rules after each answer, and `/facts` tells them."""
    done = command("chat", given="My name is Ada.\n/facts\n")
    assert "name is Ada. (turn 1)" in done.err


def test_files_are_what_programs_can_read() -> None:
    """A file of one's own is found under its name."""
    Path("mine.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    words = "Write a script that counts the lines of mine.txt"
    done = command("chat", "--file", "mine.txt", "-m", words, "--ask", "nothing", "-q")
    assert (done.out, done.err) == ("mine.txt: 3 lines, 3 words\n", "")


def scripted(**options: Any) -> ChatSetup:
    """Return a setup whose model writes the program "one", and no sandbox."""
    plan = {"intent": "do", "action": "custom_script", "steps": ["Do."]}
    answers: list[Any] = [plan, "```python\nprint('one')\n```", "It is done."]
    fields: dict[str, Any] = {
        "model": ScriptedModel(answers),
        "about": "a script",
        "skills": SkillLibrary.at(EXAMPLES),
        "ask": (),
        **options,
    }
    return ChatSetup(**fields)


class Nowhere:
    """A runner that finds nothing to run programs in."""

    name = "nowhere"

    async def run(self, job: CodeJob, *, on_output: Any = None) -> CodeRun:
        """Refuse."""
        raise SandboxMissing("bubblewrap is not installed; pip install 'mergepoint[monty]'")


def test_a_turn_that_fails_is_told_and_the_next_line_is_taken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a sandbox nothing is run; the reason and the way out are told, the exit code is 1."""
    assert converse(scripted(runner=Nowhere()), messages=["Do it."]) == 1
    told = capsys.readouterr().err
    assert "failed at agent/work/iteration_01/execute: SandboxMissing: bubblewrap is not" in told
    [step] = newest().get_steps(type="response")
    assert step.error["type"] == "SandboxMissing"


def test_an_edited_program_is_what_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What comes out of the editor is run; an edit that does not compile is asked about again."""
    editor = Path("editor.py")
    editor.write_text(
        "import pathlib, sys\n"
        "file, log = pathlib.Path(sys.argv[1]), pathlib.Path('times')\n"
        "log.write_text(log.read_text() + '.' if log.exists() else '.')\n"
        "file.write_text('print(' if log.read_text() == '.' else 'print(2)\\n')\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("EDITOR", f"{sys.executable} {editor.resolve()}")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO("Do it.\ne\ne\n"))
    runner = ScriptedRunner(["2\n"])
    assert converse(scripted(runner=runner, ask=("code",))) == 0
    assert [job.code for job in runner.jobs] == ["print(2)\n"]
    assert "does not compile: line 1" in capsys.readouterr().err


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_ctrl_c_cancels_the_turn_and_not_the_command() -> None:
    """At a prompt and at a question; `/quit` leaves with exit code 0."""
    steps = [
        ("> ", "\x03"),
        ("or /quit", f"{SUM}\n"),
        (ASKED, "\x03"),
        ("will be run.", "Hello.\n"),
    ]
    code, shown = on_terminal("chat", then=[*steps, ("a file.", "/quit\n")])
    text = plain(shown)
    assert code == 0
    assert "Canceled. Nothing of it will be run." in text
    assert "Traceback" not in text
    assert [one.role for one in newest().get_messages()] == ["user", "user", "assistant"]


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_turn_is_shown_as_the_live_tree() -> None:
    """On a terminal a turn has the view of `run`; it goes, and leaves steps and answer."""
    code, shown = on_terminal("chat", "-m", "Hello.")
    text = plain(shown)
    assert code == 0
    assert "propose" in text
    assert "respond" in text
    assert re.search(r"\d+ of (up to )?\d+ calls", text)


def test_a_view_knows_the_calls_of_another_process() -> None:
    """The tree of a resumed turn has the recorded calls of its beginning."""
    tree = Block([Step("x", name="a"), Step("x", name="b")], name="t")
    view = TurnView(tree, quiet=True)
    record = CallRecord(key=CallKey("r", "", "t/a"), prompt="", message=AIMessage("y"))
    view.new_turn([record])
    view.event(Event("start", "t/b"))
    assert (view.progress.root.done, view.progress.root.recorded) == (1, 1)
    assert view.progress.root.running == 1


@pytest.mark.parametrize("size", [1, 2, 5, 99])
def test_streamed_lines_end_between_words(capsys: pytest.CaptureFixture[str], size: int) -> None:
    """However the pieces are cut, words stay whole, and breaks and indentation as they came."""
    text = "One two three four five,\n  - six seven eight nine\n\nabcdefghijklmnopqrstuvwxyz end"
    flow = WrappedText(20)
    for start in range(0, len(text), size):
        flow.put(text[start : start + size])
    flow.end()
    assert capsys.readouterr().out == (
        "One two three four\nfive,\n  - six seven eight\nnine\n\nabcdefghijklmnopqrstuvwxyz\nend\n"
    )


def test_sessions_are_listed_shown_exported_checked_and_repaired() -> None:
    """Each as text and, but for the export, as JSON; damage is named, and what is good kept."""
    command("chat", "-m", SUM, "--ask", "nothing", "-q")
    session = newest().session_id
    assert session in command("sessions", "list").out
    assert f"1 user:\n  {SUM}" in command("sessions", "show", "last").out
    assert "exit code 0" in command("sessions", "show", "last", "--turn", "1", "--steps").out
    assert "has only 1 turns" in command("sessions", "show", "last", "--turn", "2").err
    data = command("sessions", "show", session, "--json").data
    assert [one["role"] for one in data["messages"]] == ["user", "assistant"]
    assert session in command("sessions", "export", "last").out.splitlines()[0]
    assert command("sessions", "list", "--json").data[0]["title"] == SUM
    assert command("sessions", "export", "last", "--to", "s.yaml").code == 0
    assert command("sessions", "export", "last", "--to", "s.yaml").code == 2
    assert command("sessions", "check", "--all").out == f"{session}: OK\n"
    journal = Path("sessions") / session / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b"16506.80", b"99999.99"))
    found = command("sessions", "check", session)
    assert found.code == 3
    assert "its checksum does not fit" in found.out
    assert not command("sessions", "check", session, "--json").data[0]["ok"]
    assert command("sessions", "show", session).code == 2
    assert "Copied the damaged file to" in command("sessions", "repair", session).out
    assert command("sessions", "check", session).code == 0
    assert command("sessions", "check").code == 2


@pytest.mark.campaign
def test_the_shell_completes_sessions() -> None:
    """Ids and `last` are offered where a session is named."""
    open_session("trip", sessions="sessions")
    assert completions("mergepoint chat --resume ") == ["last", "trip"]
