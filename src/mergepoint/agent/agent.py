"""The agent: a tree that plans, asks, writes code, runs it in a sandbox, and answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mergepoint.agent.code_in import code_in, code_problem
from mergepoint.agent.code_runner import CodeRunner
from mergepoint.agent.execute import GO_ON, Equipment, executing
from mergepoint.agent.limits import Limits
from mergepoint.agent.plan import Plan, plan_of, plan_problem
from mergepoint.agent.prompts import Prompts
from mergepoint.agent.skill_library import EXAMPLES, SkillLibrary
from mergepoint.core.errors import Fault, SkillError, StepError
from mergepoint.session.artifacts import STEP
from mergepoint.tree.block import Block
from mergepoint.tree.budget import Budget
from mergepoint.tree.call import Call
from mergepoint.tree.context import PromptContext
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop
from mergepoint.tree.node import Node
from mergepoint.tree.policy import Policy, Retry
from mergepoint.tree.step import Step
from mergepoint.tree.template import Template

Asked = Literal["plan", "code"]

_STRUCTURED = Policy(retry=Retry(2, wait=0.1))  # a model that gave no plan may give one


def agent(
    skills: SkillLibrary | None = None,
    *,
    files: Mapping[str, Path | str] | None = None,
    runner: CodeRunner | str | None = None,
    limits: Limits | None = None,
    ask: Collection[Asked] = ("plan", "code"),
    plans: int = 5,
    attempts: int = 3,
    continuations: int = 2,
    budget: Budget | Mapping[str, Any] | None = None,
    name: str = "agent",
) -> Block:
    """Give the agent's tree; as any tree it is run, drawn, resumed, replayed and budgeted.

    It plans, with its `skills` (by default those that come along) and `files` (by the names that
    programs find them under) in view; a plan to chat goes straight to the answer. Else it writes
    a program, runs it by the `runner` (a name, or one of your own; None: the first safe one that
    works here) within `limits`, and answers from the output.

    `ask` says what waits for a person: the plan, each program. Nothing runs before it was
    approved, and a new program is a new question. A rejected plan is made again with the feedback,
    at most `plans` times; a program that is rejected, or fails, is written again with the error,
    at most `attempts` in a row; a program may ask for another one with its output in view, at most
    `continuations` times. What cannot be run (a plan without a known skill, an answer without a
    program, one that does not compile) is sent back without asking.

    The user's last message is what it answers; a run without a conversation has it as its input
    `request`. Outputs: proposal, plan, plan_review, draft, code, code_review, run.

    Raises TreeError, and SkillError for a tool whose name is taken.
    """
    known = SkillLibrary.at(EXAMPLES) if skills is None else skills
    _check_tools(known)
    given = {name: Path(path) for name, path in (files or {}).items()}
    equipment = Equipment(skills=known, files=given, runner=runner, limits=limits or Limits())
    prompts = Prompts(known, equipment)
    bounds = _Bounds(known, tuple(ask), attempts=attempts, continuations=continuations)
    return Block(
        [
            _planning(prompts, bounds, plans),
            _work(prompts, bounds, equipment),
            Step(prompts.answer, name="respond"),
        ],
        name=name,
        merge="last_response",
        inputs=(("request", ""),),
        budget=budget,
    )


def _planning(prompts: Prompts, bounds: _Bounds, plans: int) -> Node:
    """Give the loop that plans until a plan is approved."""
    meta = {STEP: "plan"}
    proposal = Step(
        prompts.plan,
        name="propose",
        schema=Plan,
        merge="none",
        capture_key="proposal",
        policy=_STRUCTURED,
        meta=meta,
    )
    plan = Call(
        as_proposed, name="plan", args={"proposal": Template("{{ proposal }}")}, capture_key="plan"
    )
    approval = Gate(
        plan,
        name="approval",
        capture_key="plan_review",
        question="Carry out this plan?",
        decide=bounds.decide_plan,
        meta=meta,
    )
    return Loop(
        [proposal, approval],
        name="planning",
        until="plan_review",
        max_iterations=plans,
        on_exhausted="keep",
        merge="none",
    )


def _work(prompts: Prompts, bounds: _Bounds, equipment: Equipment) -> Node:
    """Give the loop that writes programs and runs them; skipped where there is nothing to run."""
    draft = Step(prompts.code, name="write", merge="none", capture_key="draft")
    code = Call(
        code_in,
        name="code",
        args={"answer": Template("{{ draft }}")},
        capture_key="code",
        meta={STEP: "codegen"},
    )
    approval = Gate(
        code,
        name="approval",
        capture_key="code_review",
        question="Run this program?",
        decide=bounds.decide_code,
        meta={STEP: "codegen"},
    )
    execute = Call(executing(equipment), name="execute", capture_key="run", meta={STEP: "execute"})
    return Loop(
        [draft, approval, execute],
        name="work",
        until=bounds.nothing_to_run,
        may_skip=True,
        max_iterations=bounds.attempts * (1 + bounds.continuations),
        on_exhausted="keep",
        merge="none",
    )


def as_proposed(proposal: dict[str, Any]) -> dict[str, Any]:
    """Give the plan as it was proposed, for the gate to hold back."""
    return proposal


@dataclass(frozen=True)
class _Bounds:
    """What decides without a person, and when it is enough."""

    skills: SkillLibrary
    ask: tuple[Asked, ...]
    attempts: int
    continuations: int

    def decide_plan(self, question: Question) -> Decision | None:
        """Approve what runs nothing, send back what is no plan, and leave the rest to a person."""
        try:
            plan = plan_of(question.kept.outputs["plan"])
        except StepError as error:
            return Decision("reject", feedback=str(error))
        if problem := plan_problem(plan, self.skills):
            return Decision("reject", feedback=problem)
        if plan.action == "chat":
            return Decision(feedback="nothing is run")
        return None if "plan" in self.ask else Decision(feedback="approved by configuration")

    def decide_code(self, question: Question) -> Decision | None:
        """Send back what cannot be run, and leave the rest to a person."""
        if problem := code_problem(str(question.kept.outputs["code"])):
            return Decision("reject", feedback=problem)
        return None if "code" in self.ask else Decision(feedback="approved by configuration")

    def nothing_to_run(self, context: PromptContext) -> bool:
        """Say whether nothing is to be run, or nothing more."""
        plan, run = context.outputs.get("plan"), context.outputs.get("run")
        if plan is None or plan_of(plan).action == "chat":
            return True
        if run is None:
            return False
        if run["ok"]:
            return not run["next"] or run["round"] > self.continuations
        return bool(run["attempt"] >= self.attempts)


def _check_tools(skills: SkillLibrary) -> None:
    faults = [
        Fault(str(skill.folder), f"a tool cannot be called {GO_ON!r}; the agent has one of its own")
        for skill in skills.values()
        if any(tool.name == GO_ON for tool in skill.tools)
    ]
    if faults:
        raise SkillError(faults)
