"""Prompts of the agent: what it is asked when it plans, writes a program, and answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

from mergepoint.agent.execute import GO_ON, Equipment
from mergepoint.agent.plan import Plan, plan_of
from mergepoint.agent.skill_library import SkillLibrary
from mergepoint.tree.context import PromptContext
from mergepoint.tree.template import reads

PLAN = """\
    Plan how to answer the user's last message. What the user asked before and was not answered is
    over; leave it. Choose execute_skill where a skill fits, custom_script where none does but a
    program over the files can do it, and chat for all that needs no program."""

CODE = f"""\
    Write the Python program that carries out the plan. It runs once, in a sandbox without network,
    in a folder with the files below, which it can only read. It prints what the user is to know.
    Use the standard library and the tools below, which are plain functions that are there already.
    Only if you have to see the output before you can go on, call {GO_ON}("what is to be done next")
    at the end; another program is then written with that output in view.
    Answer with the whole program in one ```python block, and nothing else."""

FROM_OUTPUT = """\
    Answer the user's last message from what the program printed. Be short, name the numbers, and
    say nothing that the output does not say."""

FAILED = """\
    The program could not be made to work. Tell the user so in one or two sentences: what was
    tried, and the last problem. Give no result."""

NOT_APPROVED = """\
    No plan came about, so nothing was run. Tell the user so in one sentence, with the reason."""

CHAT = """\
    Answer the user's last message in words. Nothing was run for it."""


@dataclass(frozen=True)
class Prompts:
    """The agent's prompts; each reads what there is of the turn by then."""

    skills: SkillLibrary
    equipment: Equipment

    @reads(defaults={"plan_review": None, "proposal": None})
    def plan(self, context: PromptContext) -> str:
        """Ask for a plan; after a rejection for another one."""
        review = context.read("plan_review") or {}
        files = sorted({**self.skills.files, **self.equipment.files})
        parts = {"skills": self._skills(), "files": ", ".join(files) or "none"}
        if review.get("decision") == "reject":
            parts["rejected"] = _json(context.read("proposal"))
            parts["feedback"] = review["feedback"] or "Make another plan."
        return _prompt(PLAN, parts, context)

    @reads("plan", defaults={"run": None, "code": "", "draft": ""})
    def code(self, context: PromptContext) -> str:
        """Ask for a program; after a failure with what failed, and why."""
        plan, run = plan_of(context.read("plan")), context.read("run") or {}
        parts = {"plan": _json(plan.model_dump())}
        if plan.action == "execute_skill":
            parts |= self._skill(plan)
        parts["files"] = ", ".join(sorted(self.equipment.files_for(plan))) or "none"
        if run.get("so_far"):
            parts["output_so_far"] = run["so_far"]
        if run.get("next"):
            parts["next"] = run["next"]
        if run and not run["ok"]:
            refused = "refused" in run
            parts["previous_code"] = context.read("draft" if refused else "code")
            parts["previous_error"] = run["refused"] if refused else _failure(run)
        return _prompt(CODE, parts, context)

    @reads(defaults={"plan": None, "plan_review": None, "run": None})
    def answer(self, context: PromptContext) -> str:
        """Ask for the answer, from what came of the turn."""
        plan, run = context.read("plan"), context.read("run")
        if plan is None:
            review = context.read("plan_review") or {}
            return _prompt(NOT_APPROVED, {"reason": review.get("feedback") or "it was rejected"})
        if run is None:
            return _prompt(CHAT, {"skills": self._skills()}, context)
        if run["ok"]:
            return _prompt(FROM_OUTPUT, {"output": run["so_far"] or "(nothing)"}, context)
        parts = {"problem": run.get("refused") or _failure(run)}
        if run["so_far"]:
            parts["output_so_far"] = run["so_far"]
        return _prompt(FAILED, parts, context)

    def _skills(self) -> str:
        told = [
            f"- {skill.name}: {skill.description} {' '.join(skill.when.split())}"
            for skill in self.skills.values()
        ]
        return "\n".join(told) or "none"

    def _skill(self, plan: Plan) -> Mapping[str, str]:
        skill = self.skills[plan.skill]
        about = {
            "skill": f"{skill.name}: {skill.description}",
            "inputs": skill.inputs,
            "logic_flow": skill.flow,
            "tools": skill.contracts or "none",
        }
        return about | ({"example": skill.example} if skill.example else {})


def _failure(run: Mapping[str, Any]) -> str:
    """Say how a program failed, with what it had printed by then."""
    said = f"exit code {run['exit_code']}"
    if run["stopped"]:
        said = f"stopped: it passed the limit of {run['stopped']}"
    return f"{said}\n{run['output']}".rstrip()


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _prompt(task: str, parts: Mapping[str, str], context: PromptContext | None = None) -> str:
    """Give a prompt: the task, then what it is about in labelled parts."""
    parts = {**parts, **({} if context is None else {"request": _request(context)})}
    blocks = [f"<{label}>\n{text.strip()}\n</{label}>" for label, text in parts.items()]
    return "\n\n".join([dedent(task), *blocks])


def _request(context: PromptContext) -> str:
    """Give what the user said last; in a turn it is the last message of the base.

    A run without a conversation has it as its input.
    """
    said = [str(one.text) for one in context.messages if one.type == "human"]
    return said[-1] if said else str(context.inputs.get("request") or "")
