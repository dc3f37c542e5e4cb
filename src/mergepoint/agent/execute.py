"""Execute: the program that was approved, run by a CodeRunner as the function of a Call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mergepoint.agent.code_job import CodeJob
from mergepoint.agent.code_run import CodeRun
from mergepoint.agent.code_runner import CodeRunner, code_runner
from mergepoint.agent.limits import Limits
from mergepoint.agent.plan import Plan, plan_of
from mergepoint.agent.skill_library import SkillLibrary
from mergepoint.tree.context import CallContext
from mergepoint.tree.template import reads

GO_ON = "go_on"
"""The tool by which a program asks for another one, once its output is seen."""

OUTPUT: ContextVar[Callable[[str, str], None] | None] = ContextVar("OUTPUT", default=None)
"""Who is told of output as it comes, with the path of the Call that runs the program."""

_LONGEST = 20_000  # characters of output that models are shown and sessions keep
_SHOWN = 20  # names of files


@dataclass(frozen=True, kw_only=True)
class Equipment:
    """What programs of an agent are run with."""

    skills: SkillLibrary
    files: Mapping[str, Path] = field(default_factory=dict)
    runner: CodeRunner | str | None = None
    limits: Limits = field(default_factory=Limits)

    def files_for(self, plan: Plan) -> dict[str, Path]:
        """Give the files that a plan's program finds: a skill's own, else those of all."""
        if plan.action == "execute_skill" and self.skills[plan.skill].files:
            return {**self.skills[plan.skill].files, **self.files}
        return {**self.skills.files, **self.files}

    def tools_for(self, plan: Plan) -> dict[str, Callable[..., Any]]:
        """Give the functions that a plan's program may call: those of its skill."""
        return self.skills[plan.skill].functions() if plan.action == "execute_skill" else {}

    def job(self, code: str, plan: Plan, asked: list[str]) -> CodeJob:
        """Give a program as a job; what it wants done next is added to `asked`."""

        def go_on(what: str) -> str:
            asked.append(str(what))
            return "End here; another program follows."

        tools = {**self.tools_for(plan), GO_ON: go_on}
        return CodeJob(code=code, files=self.files_for(plan), tools=tools, limits=self.limits)

    def found_runner(self) -> CodeRunner:
        """Give the runner. Raises SandboxMissing where none is safe here."""
        if self.runner is None or isinstance(self.runner, str):
            return code_runner(self.runner)
        return self.runner


def executing(
    equipment: Equipment,
) -> Callable[[CallContext], Awaitable[dict[str, Any]]]:
    """Give the function of the Call that runs what was approved.

    It gives `output` (None where nothing was run), `exit_code`, `ok`, `stopped`, `next` (what
    another program is to do, if this one asks for it), `attempt` (tries since something went
    well), `round` (programs that went well), and how it was run.
    """

    @reads("plan", "code_review", defaults={"code": "", "run": None})
    async def execute(context: CallContext) -> dict[str, Any]:
        before = context.read("run") or _NOTHING
        review = context.read("code_review")
        if review["decision"] == "reject":
            return _refused(before, review["feedback"] or "it was rejected")
        asked: list[str] = []
        told = OUTPUT.get()
        listen = None if told is None else (lambda piece: told(context.path, piece))
        job = equipment.job(context.read("code"), plan_of(context.read("plan")), asked)
        run = await equipment.found_runner().run(job, on_output=listen)
        return _ran(before, run, asked)

    return execute


_NOTHING: Mapping[str, Any] = {"attempt": 0, "round": 0, "ok": False, "so_far": ""}


def _refused(before: Mapping[str, Any], why: str) -> dict[str, Any]:
    """Give the result where nothing was run."""
    return {
        "output": None,
        "ok": False,
        "next": "",
        "refused": why,
        "so_far": before["so_far"],
        "attempt": _attempt(before),
        "round": before["round"],
    }


def _ran(before: Mapping[str, Any], run: CodeRun, asked: Sequence[str]) -> dict[str, Any]:
    """Give the result of a run, after the one before it."""
    return {
        **_plain(run),
        "next": asked[-1] if asked and run.ok else "",
        "so_far": _so_far(before, run),
        "attempt": _attempt(before),
        "round": before["round"] + run.ok,
    }


def _attempt(before: Mapping[str, Any]) -> int:
    """Give how many tries there were since a program went well."""
    return 1 if before["ok"] else int(before["attempt"]) + 1


def _so_far(before: Mapping[str, Any], run: CodeRun) -> str:
    """Give the output of all programs that went well."""
    texts = [before["so_far"], run.output if run.ok else ""]
    return clipped("\n".join(text.rstrip() for text in texts if text.strip()))


def _plain(run: CodeRun) -> dict[str, Any]:
    return {
        "output": clipped(run.output),
        "exit_code": run.exit_code,
        "ok": run.ok,
        "stopped": run.stopped,
        "truncated": run.truncated,
        "backend": run.backend,
        "made": [f"{one.name} ({one.size} bytes)" for one in run.made[:_SHOWN]],
        "tools": [call.name for call in run.tool_calls[:_SHOWN]],
    }


def clipped(text: str) -> str:
    """Give a text that is not too long for a prompt: its beginning and its end."""
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"
