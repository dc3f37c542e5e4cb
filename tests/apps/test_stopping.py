"""Runs that end before their end: what is said, what is written, and the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.apps.command import command, only_transcript, paths, process, transcripts

ANSWERED = ["breaking/draft", "breaking/stage/more"]


def test_a_prompt_that_raises_fails_the_run_with_1() -> None:
    """The message says where, what and how far; the transcript holds what was answered."""
    run = command("run", "breaking.py", "--run-id", "r")
    transcript = only_transcript()
    assert (run.code, run.out) == (1, "")
    lines = run.err.splitlines()
    head = "failed at breaking/stage/title: ValueError: the brief has no title (breaking.py:7)"
    assert head in lines
    assert "  answered before: 2 of 4 calls" in lines
    after = lines[lines.index(head) :]
    assert [line.strip() for line in after if line.startswith("    ")] == ANSWERED
    assert f"  transcript: {Path('runs/r/transcript.json')}" in lines
    assert paths(transcript) == ANSWERED
    assert transcript["error"]["path"] == "breaking/stage/title"
    assert Path("runs/r/graph.svg").is_file()


def test_a_failure_is_json_with_json() -> None:
    """Type, message, path, transcript and the way on, and nothing else on stdout."""
    run = command("run", "breaking.py", "--json", "--quiet", "--run-id", "r")
    assert run.code == 1
    assert run.err == ""
    assert run.data == {
        "status": "failed",
        "type": "ValueError",
        "message": "the brief has no title (breaking.py:7)",
        "path": "breaking/stage/title",
        "transcript": str(transcripts()[0]),
        "run_id": "r",
        "resume": "mergepoint resume r",
    }


def test_a_traceback_is_shown_when_asked_for() -> None:
    """--traceback adds the engine's frames, and changes neither message nor code."""
    run = command("run", "breaking.py", "--traceback")
    assert run.code == 1
    assert "Traceback (most recent call last)" in run.err
    assert "failed at breaking/stage/title" in run.err
    assert "langgraph" in run.err
    assert "langgraph" not in command("run", "breaking.py").err


def test_a_model_that_fails_fails_the_run(here: Path) -> None:
    """An answer that cannot be used is a failure of its call, with its record."""
    text = (
        "from langchain_core.language_models import FakeListChatModel\n"
        "from mergepoint import Block, Step\n\n"
        "good, blank = (FakeListChatModel(responses=[text]) for text in ('Yes.', ' '))\n"
        "tree = Block([Step('x', model=good), Step('y', model=blank)])\n"
    )
    (here / "blank.py").write_text(text, encoding="utf-8")
    run = command("run", "blank.py")
    assert run.code == 1
    assert "failed at pipeline/step_02: AnswerError: the model's answer is blank" in run.err
    transcript = only_transcript()
    assert paths(transcript) == ["pipeline/step_01"]
    assert [step["path"] for step in transcript["failures"]] == ["pipeline/step_02"]


def test_ctrl_c_ends_the_run_with_130_and_its_transcript() -> None:
    """What was answered is on disk, and the message is one, not a traceback."""
    run = command("run", "stopping.py")
    assert run.code == 130
    assert "interrupted" in run.err.splitlines()
    assert "  answered before: 1 of 2 calls" in run.err.splitlines()
    assert paths(only_transcript()) == ["stopping/draft"]


def test_ctrl_c_is_json_with_json() -> None:
    """An interrupted run says so in its JSON."""
    run = command("run", "stopping.py", "--json")
    assert (run.code, run.data["status"]) == (130, "interrupted")
    assert run.data["transcript"] == str(transcripts()[0])


def test_a_transcript_that_cannot_be_written_is_a_failure(here: Path) -> None:
    """When the folder of runs goes away under the run, no file is named that is not there."""
    text = (
        "import shutil\nfrom pathlib import Path\nfrom mergepoint import Step\n\n\n"
        "def vanish(ctx):\n    shutil.rmtree('runs')\n    Path('runs').touch()\n"
        "    return 'Hi'\n\n\n"
        "tree = Step(vanish)\n"
    )
    (here / "vanishing.py").write_text(text, encoding="utf-8")
    run = command("run", "vanishing.py")
    assert run.code == 1
    assert "  transcript: not written" in run.err.splitlines()
    Path("runs").unlink()
    assert command("run", "vanishing.py", "--json").data["transcript"] is None


@pytest.mark.campaign
@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_to_end_writes_the_transcript(here: Path, signal: str) -> None:
    """A process that is told to end, or whose terminal is gone, leaves its transcript too."""
    text = (here / "stopping.py").read_text(encoding="utf-8")
    (here / "stopping.py").write_text(text.replace("SIGINT", signal), encoding="utf-8")
    run = process("run", "stopping.py")
    assert run.code == 130
    assert "Traceback" not in run.err
    assert paths(only_transcript()) == ["stopping/draft"]


@pytest.mark.campaign
def test_a_second_ctrl_c_drops_the_calls_in_flight(here: Path) -> None:
    """The process ends at once, though a call in another thread never does."""
    text = """\
import os
import signal
import threading

from mergepoint import Block, Step

ready = threading.Event()


def hang(ctx):
    ready.set()
    threading.Event().wait()


def press(ctx):
    ready.wait()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
        pressed.wait(0.05)
    threading.Event().wait()


pressed = threading.Event()
steps = [Step(hang, name="hang", merge="none"), Step(press, name="press", merge="none")]
tree = Block([Step("x", name="draft"), Block(steps, name="threads", parallel=True)], name="t")
"""
    (here / "hanging.py").write_text(text, encoding="utf-8")
    run = process("run", "hanging.py")
    assert run.code == 130
    assert paths(only_transcript()) == ["t/draft"]


def test_signals_mean_what_they_meant_before() -> None:
    """A run leaves the handlers of the process as they were."""
    import signal

    before = [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)]
    command("run", "stopping.py")
    assert [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)] == before


LANDING = '''\
"""A tree whose first call is Ctrl-C, alone or beside another."""

import os
import signal
import time

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from mergepoint import Block, Step
from mergepoint.models.timeouts import STOP_SIGNAL


class Pressing(BaseChatModel):
    """Presses Ctrl-C in its call `Press.`; all answer after that."""

    @property
    def _llm_type(self):
        return "pressing"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        prompt = messages[-1].text
        if prompt == "Press.":
            os.kill(os.getpid(), signal.SIGINT)
        while not STOP_SIGNAL.get().stopped:  # the main thread hears of a signal a little later
            time.sleep(0.001)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("landed"))])


model = Pressing()
press = [Step("Press.", name="press", model=model), Step("Next.", name="next", model=model)]
alone = Block(press, name="t")
beside = Block(
    [Block(press, name="a"), Block([Step("B.", name="b", model=model)], name="c")],
    parallel=True,
    name="t",
)
'''


@pytest.mark.campaign
@pytest.mark.parametrize("form", ["subgraphs", "fused"])
def test_ctrl_c_lands_the_call_in_flight(here: Path, form: str) -> None:
    """What was asked when it was pressed is answered and on record; the next call is not made."""
    (here / "landing.py").write_text(LANDING, encoding="utf-8")
    run = process("run", "landing.py:alone", "--form", form)
    assert run.code == 130
    assert any(line.startswith("interrupted") for line in run.err.splitlines())
    transcript = only_transcript()
    assert paths(transcript) == ["t/press"]
    assert transcript["failures"] == []
    assert transcript["steps"][0]["response"] == "landed"


@pytest.mark.campaign
@pytest.mark.parametrize("form", ["subgraphs", "fused"])
def test_ctrl_c_stops_the_work_in_other_threads(here: Path, form: str) -> None:
    """Parallel children land the call that they are in, and go no further."""
    (here / "landing.py").write_text(LANDING, encoding="utf-8")
    run = process("run", "landing.py:beside", "--form", form)
    assert run.code == 130
    transcript = only_transcript()
    assert set(paths(transcript)) <= {"t/a/press", "t/c/b"}
    assert "t/a/press" in paths(transcript)
