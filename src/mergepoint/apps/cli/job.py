"""Job: one run of a tree, shown as it goes, with its files."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from mergepoint.apps.cli.command import Command, written
from mergepoint.apps.cli.errors import Interrupted, Stopped, Waiting
from mergepoint.apps.cli.gates import Decider, can_ask, in_order
from mergepoint.apps.cli.home import DRAWING, TRANSCRIPT, Home
from mergepoint.apps.cli.live import telling
from mergepoint.apps.cli.watch import Watch
from mergepoint.core.errors import GateOpen, MergepointError, TreeError
from mergepoint.tree.budget import Budget
from mergepoint.tree.node import Node
from mergepoint.tree.outline import leaf_count

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from mergepoint.apps.cli.homes import Homes
    from mergepoint.models.prices import Price
    from mergepoint.record.transcript import Transcript
    from mergepoint.run.context import RunContext

_LANDING = "stopping: waiting for the calls in flight (once more to drop them)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be run, and how."""

    command: Command  # kept with the run, for `mergepoint resume`
    tree: Node
    model: BaseChatModel
    homes: Homes
    inputs: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[str] = ()
    seed: int = 0
    run_id: str | None = None
    origin: Mapping[str, Home] = field(default_factory=dict)  # resume, reuse or replay
    answers: Mapping[str, Any] = field(default_factory=dict)  # at gates, by path
    said: Sequence[str] = ()  # the same, as they were given
    budget: Budget | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    source: Path | None = None  # the file the tree is from, for the places of errors


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that succeeded, and where it is kept."""

    transcript: Transcript
    home: Home
    seconds: float

    @property
    def files(self) -> dict[str, Path]:
        """Give the files of the run by what they are."""
        files = {"transcript": self.home.file(TRANSCRIPT), "graph": self.home.file(DRAWING)}
        return {what: file for what, file in files.items() if file is not None}


def carry_out(job: Job, *, quiet: bool) -> Finished:
    """Run a job and write its files.

    Raises CommandError where its folder cannot be made, and Stopped or Interrupted, with the
    transcript on disk, when the run ends before its end.
    """
    from mergepoint.run.context import RunContext
    from mergepoint.run.facts import new_run_id
    from mergepoint.run.recorder import Recorder

    home = job.origin.get("resume") or job.homes.new(job.run_id or new_run_id())
    _draw(job.tree, home)
    watch = Watch(job.tree)
    started = time.monotonic()
    with contextlib.redirect_stdout(sys.stderr), telling(watch, quiet=quiet) as teller:
        decider = Decider(job.answers, asks=can_ask(), aside=teller.aside)
        recorder = Recorder(on_event=teller.note, answerer=decider)
        context = RunContext(run_id=home.run_id, seed=job.seed, recorder=recorder)
        context.meta = written(job.command, home.folder)
        if job.command.max_concurrency is not None:
            context.config["max_concurrency"] = job.command.max_concurrency
        presses: list[int] = []
        try:
            with _stoppable(watch, presses, decider):
                transcript = _generated(job, context, home)
            watch.end()
        except (Exception, KeyboardInterrupt) as error:
            if not isinstance(error, GateOpen):
                watch.fail((context.error or {}).get("path", ""))
            stopped = _stopped(error, context, home, job)
            if isinstance(stopped, Interrupted):
                stopped.dropped = len(presses) > 1
            if isinstance(stopped, Waiting):
                stopped.questions = in_order(decider.open, job.tree)
            raise stopped from error
    return Finished(transcript, home, time.monotonic() - started)


def _draw(tree: Node, home: Home) -> None:
    from mergepoint.report.draw import to_svg

    if home.folder is not None and home.file(DRAWING) is None:  # not where a resume is refused
        (home.folder / DRAWING).write_text(to_svg(tree), encoding="utf-8")


def _generated(job: Job, context: RunContext, home: Home) -> Transcript:
    from langchain_core.messages import HumanMessage

    from mergepoint.run.generation import run_generation

    named = {way: other.named for way, other in job.origin.items()}
    return run_generation(
        job.tree,
        model=job.model,
        inputs=None if "resume" in job.origin else job.inputs,
        messages=[HumanMessage(content=text) for text in job.messages],
        resume=named.get("resume"),
        reuse=named.get("reuse"),
        replay=named.get("replay"),
        budget=job.budget,
        prices=job.prices,
        ctx=context,
        form=job.command.form,
        view=job.command.view,
        runs=home.store,
    ).transcript


def _stopped(error: BaseException, context: RunContext, home: Home, job: Job) -> BaseException:
    """Give the error that tells what happened; a tree that cannot run is told as it is."""
    if isinstance(error, TreeError) or not context.turns:
        return error
    transcript = context.transcript()
    facts = {"type": type(error).__name__, "message": str(error), "path": ""}
    facts |= context.error or {}
    kind = Interrupted if isinstance(error, KeyboardInterrupt) else Stopped
    kind = Waiting if isinstance(error, GateOpen) else kind
    if kind is Interrupted:
        facts["message"] = "the run was ended from outside"
    elif not isinstance(error, MergepointError):
        facts["message"] += _place(error, job.source)
    return kind(
        facts,
        home=home,
        answered=[record.path for record in transcript.records if record.kind != "gate"],
        total=leaf_count(transcript.tree),
        tries=sum(record.path == facts["path"] for record in transcript.failures),
        command=job.command,
        answers=job.said,
    )


def _place(error: BaseException, source: Path | None) -> str:
    """Give the innermost line that lies beside the tree's own file, as ` (file:line)`."""
    if source is None:
        return ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(source.parent.resolve()) and "site-packages" not in file.parts:
            return f" ({file.name}:{frame.lineno})"
    return ""


@contextlib.contextmanager
def _stoppable(watch: Watch, presses: list[int], decider: Decider) -> Iterator[None]:
    """End the run by KeyboardInterrupt on Ctrl-C and on signals that ask the process to end.

    Each is noted in `presses`. After the first the calls in flight land, for as long as the door
    grants, and none is started; the second drops them. Who is asked at a gate then decides later.
    """
    from mergepoint.models.halt import halting
    from mergepoint.models.landing import GRACE

    if threading.current_thread() is not threading.main_thread():
        yield
        return

    drop = threading.Timer(GRACE, os.kill, (os.getpid(), signal.SIGINT))
    drop.daemon = True

    def stop(number: int, frame: FrameType | None) -> None:
        presses.append(number)
        watch.notice = _LANDING
        in_flight = halt.stop()
        if len(presses) == 1 and (in_flight or decider.asking):
            drop.start()
            return
        raise KeyboardInterrupt

    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    with halting() as halt:
        before = {name: signal.signal(getattr(signal, name), stop) for name in names}
        try:
            yield
        finally:
            drop.cancel()
            for name, handler in before.items():
                signal.signal(getattr(signal, name), handler)
