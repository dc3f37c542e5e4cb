"""Runs to look at in a browser, each made as people make them, with the pages of the command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel
from tests.view.talks import said, talk

from mergepoint import AnswerError, Block, Step, Template, run_generation
from mergepoint.journal.file_journal import FileStore
from mergepoint.journal.transcript import Transcript
from mergepoint.report.run_state import read_state
from mergepoint.session.session_store import sessions_at
from mergepoint.testing.scripted_model import ScriptedModel

ROOT = Path(__file__).parents[3]
BRIEF = ROOT / "graphs" / "image_prompt" / "inputs.yaml"
PRICE = "mergepoint:*=1,2"  # USD per million tokens, so that costs are numbers of this run
CHANGED = "pipeline/section_2b_title/draft"
CHANGED_PROMPT = f"{CHANGED}:prompt=Write one title of four words for this: {{{{ brief }}}}"
THINGS = 200
REFUSED = '{"score": 8, "reason": "It is quiet, '


class Rating(BaseModel):
    """A rating with its reason."""

    score: int
    reason: str


REPORT = Block(
    [
        Step(Template("Write about {{ topic }}."), name="draft"),
        Step("Rate it.", name="rate", schema=Rating, merge="none", capture_key="rating"),
        Step("Improve it.", name="improve"),
    ],
    name="report",
    inputs=["topic"],
)


@dataclass(frozen=True)
class StoredRuns:
    """A folder of runs and sessions."""

    folder: Path

    @property
    def runs(self) -> Path:
        """Return the folder of runs."""
        return self.folder / "runs"

    def command(self, *args: str) -> str:
        """Return what a command prints to stdout; it runs in the folder, and must succeed."""
        done = subprocess.run(  # noqa: S603  (our own interpreter)
            [sys.executable, "-m", "mergepoint.apps.cli", *args],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def page(self, *args: str) -> Path:
        """Return the page that `mergepoint view` writes."""
        name = "-".join(one.strip("-") for one in args) or "list"
        file = self.folder / "pages" / f"{name}.html"
        file.parent.mkdir(exist_ok=True)
        self.command("view", *args, "--no-open", "-o", str(file))
        return file

    def plan(self) -> Path:
        """Return the page that `mergepoint explain` writes before the 42 calls are made."""
        file = self.folder / "pages" / "plan.html"
        file.parent.mkdir(exist_ok=True)
        given = ("--input-file", str(BRIEF), "--price", PRICE, "--like", "picture")
        self.command("explain", "image_prompt", *given, "-o", str(file))
        return file

    def transcript(self, run_id: str) -> Transcript:
        """Return what is on record of a run."""
        return read_state(FileStore(self.runs), run_id).transcript

    def make_picture(self, run_id: str = "picture", *options: str) -> None:
        """Run the 42 calls of image_prompt."""
        given = ("--input-file", str(BRIEF), "--price", PRICE, "--yes", "-q")
        self.command("run", "image_prompt", *given, "--run-id", run_id, *options)

    def make_failed(self) -> None:
        """Run a tree whose second answer doesn't parse."""
        model = ScriptedModel(
            by_path={"report/draft": "The harbor sleeps.", "report/rate": [REFUSED] * 9}
        )
        try:
            run_generation(
                REPORT,
                inputs={"topic": "a harbor"},
                model=model,
                runs=FileStore(self.runs),
                run_id="failed",
            )
        except AnswerError:
            return
        raise AssertionError("the run did not fail")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have a run of another process wait in its second call."""
        command = [sys.executable, "-m", "tests.view.browser.waiting_run", str(self.runs)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "waiting\n"
                yield
            finally:
                process.kill()

    def make_things(self) -> None:
        """Run a recipe whose critic scores 200 Things."""
        self.command(
            *("run", "best_of_n", "A title for a poster of a night market.", "--yes", "-q"),
            *("-k", f"n={THINGS}", "--price", PRICE, "--run-id", "things"),
        )

    def make_session(self) -> None:
        """Have a session whose first program fails."""
        memory, turns = talk(sessions_at(self.folder / "sessions"), ask=("plan",))
        said(memory, turns, "How much did we sell?", "approve")
