"""Execute: the program that was approved, run by a CodeRunner as the function of a Call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
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
        before = context.read("run") or {"attempt": 0, "round": 0, "ok": False, "next": ""}
        count = {
            "attempt": 1 if before["ok"] else before["attempt"] + 1,
            "round": before["round"],
        }
        review = context.read("code_review")
        if review["decision"] == "reject":
            refused = review["feedback"] or "it was rejected"
            kept = {"so_far": before.get("so_far", "")}
            return {"output": None, "ok": False, "next": "", "refused": refused, **kept, **count}
        plan = plan_of(context.read("plan"))
        asked: list[str] = []

        def go_on(what: str) -> str:
            asked.append(str(what))
            return "End here; another program follows."

        job = CodeJob(
            code=context.read("code"),
            files=equipment.files_for(plan),
            tools={**equipment.tools_for(plan), GO_ON: go_on},
            limits=equipment.limits,
        )
        told = OUTPUT.get()
        listen = None if told is None else (lambda piece: told(context.path, piece))
        run = await equipment.found_runner().run(job, on_output=listen)
        count["round"] += run.ok
        next_ = asked[-1] if asked and run.ok else ""
        return {**_plain(run), "next": next_, "so_far": _so_far(before, run), **count}

    return execute


def _so_far(before: Mapping[str, Any], run: CodeRun) -> str:
    """Give the output of all programs that went well."""
    texts = [before.get("so_far", ""), run.output if run.ok else ""]
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
