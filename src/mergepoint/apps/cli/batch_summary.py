"""The summary of a batch: totals, failures by kind, and the commands to go on."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mergepoint.apps.cli.batch_progress import rate_text, spent_text
from mergepoint.apps.cli.output import FAILED, INTERRUPTED, brief, clock, tell, tell_fact
from mergepoint.core.errors import MergepointError
from mergepoint.scale.batch_note import without_password
from mergepoint.scale.batch_tally import BatchTally
from mergepoint.scale.protocol import BatchBudgetUsedUp, RunSpec

if TYPE_CHECKING:
    from mergepoint.apps.cli.batch_job import BatchJob

_GROUPS = 10  # groups of failures in the summary


@dataclass(frozen=True, kw_only=True)
class BatchSummary:
    """The report of a batch.

    `whole` counts all results, and `now` those of this process. `error` ended the batch; `needed`
    are the amounts that a larger budget must have room for.
    """

    job: BatchJob
    spec: RunSpec
    whole: BatchTally
    now: BatchTally
    seconds: float
    left: int | None
    error: MergepointError | None
    needed: Mapping[str, float]
    interrupted: bool

    @property
    def code(self) -> int:
        """Return the exit code."""
        if self.interrupted:
            return INTERRUPTED
        return FAILED if self.error is not None or self.whole.failed else 0

    @property
    def status(self) -> str:
        """Return "done", "failed", "interrupted", or "stopped" (by an error)."""
        if self.interrupted:
            return "interrupted"
        if self.error is not None:
            return "stopped"
        return "failed" if self.whole.failed else "done"

    @property
    def next_command(self) -> str | None:
        """Return the command that goes on or retries failures, None if all inputs are done."""
        if self.interrupted or self.error is not None:
            needed = self.needed if isinstance(self.error, BatchBudgetUsedUp) else None
            return self.job.command(resume=self.job.resume, needed=needed)
        return self.job.command(resume=True) if self.whole.failed else None

    @property
    def look(self) -> str | None:
        """Return the command that shows a failed run, None without one."""
        runs = [one for group in self.whole.failures for one in group.run_ids if one]
        if not runs:
            return None
        place = without_password(self.spec.store)
        name = "--store" if "://" in place else "--out"
        if name == "--out":
            place = os.path.relpath(place)
        return f"mergepoint show {shlex.quote(runs[0])} {name} {shlex.quote(place)}"

    @property
    def page(self) -> str | None:
        """Return the command that shows the results as a page, None without a results file."""
        out = self.job.out
        return None if out is None else f"mergepoint view {shlex.quote(str(out))}"

    def to_json(self) -> dict[str, Any]:
        """Return JSON data."""
        rate = self.now.total / self.seconds if self.seconds else 0.0
        now = self.now.to_plain()
        return {
            "status": self.status,
            "batch_id": self.spec.batch,
            **self.whole.to_plain(),
            "left": self.left,
            "now": {name: value for name, value in now.items() if name != "failures"},
            "seconds": round(self.seconds, 3),
            "per_second": round(rate, 3),
            "out": self.job.options.out,
            "store": without_password(self.spec.store),
            "error": None if self.error is None else _error(self.error),
            "resume": self.next_command,
            "look": self.look,
        }

    def tell(self) -> None:
        """Write the summary to stderr."""
        tell()
        failed = f", {self.whole.failed:,} failed" if self.whole.failed else ""
        left = f", {self.left:,} left" if self.left else ""
        where = "" if self.job.out is None else f" in {self.job.out}"
        tell_fact("results", f"{self.whole.done:,} done{failed}{left}{where}")
        rate = rate_text(self.now.total / self.seconds) if self.now.total and self.seconds else ""
        tell_fact("time", ", ".join(filter(None, [clock(self.seconds), rate])))
        tell_fact("paid now", spent_text(self.now))
        if self.whole.calls != self.now.calls:
            tell_fact("paid in all", spent_text(self.whole))
        label = "failures"
        groups = self.whole.failures
        for group in groups[:_GROUPS]:
            where = f" at {group.path}" if group.path else ""
            more = ", ..." if group.count > len(group.ids) else ""
            ids = ", ".join(group.ids)
            tell_fact(label, f"{group.count:,} {group.type}{where}: {ids}{more}", style="red")
            tell_fact("", brief(group.message, 200))
            label = ""
        if len(groups) > _GROUPS:
            tell_fact("", f"and {len(groups) - _GROUPS:,} more kinds of failures")
        if self.page and self.whole.total:
            tell_fact("page", self.page)
        if self.look:
            tell_fact("look inside", self.look)
        if self.next_command:
            tell_fact("go on" if self.left or self.error else "retry", self.next_command)


def _error(error: MergepointError) -> Mapping[str, str]:
    return {"type": type(error).__name__, "message": str(error)}
