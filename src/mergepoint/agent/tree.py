"""The agent's tree: plan, approve, write code, run it, answer."""

from __future__ import annotations

import re
import warnings
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mergepoint.agent.skills import SkillLibrary, bundled_skills
from mergepoint.core.errors import Fault, SkillError, StepError
from mergepoint.core.paths import nearest
from mergepoint.journal.writer import run_off_loop
from mergepoint.sandbox.backends import CodeRunner, code_runner
from mergepoint.sandbox.job import CodeJob, CodeRun, Limits
from mergepoint.session.turn_runner import STEP
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Loop, Node
from mergepoint.tree.policy import Budget, Policy, Retry
from mergepoint.tree.prompts import CallContext, PromptContext, Template, as_text, reads

Action = Literal["chat", "execute_skill", "custom_script"]


def _all_wanted(schema: dict[str, Any]) -> None:
    """Make every field required: strict APIs allow no defaults (OpenAI's structured outputs)."""
    for one in schema["properties"].values():
        one.pop("default", None)
    schema["required"] = list(schema["properties"])


class Plan(BaseModel):
    """How to answer the user: in words, by a skill, or by a program written for it."""

    model_config = ConfigDict(json_schema_extra=_all_wanted)

    intent: str = Field(description="What the user wants, in one sentence.")
    action: Action = Field(
        description="chat: answer in words, nothing is run. execute_skill: a skill fits; name it. "
        "custom_script: no skill fits, and a program over the files can do it."
    )
    skill: str = Field(default="", description="The skill's name; only for execute_skill.")
    steps: list[str] = Field(
        default_factory=list, description="What the program does, step by step; none for chat."
    )


def plan_of(value: Any) -> Plan:
    """Return the plan in an output, or in text that a person has edited.

    Raises StepError for an invalid plan.
    """
    try:
        if isinstance(value, str):
            return Plan.model_validate_json(value)
        return Plan.model_validate(value)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in error.errors()
        )
        raise StepError(f"the plan is invalid: {wrong}") from error


def plan_problem(plan: Plan, skills: Collection[str]) -> str | None:
    """Return the problem of a plan, or None."""
    if plan.action == "chat":
        return None
    if plan.action == "execute_skill" and plan.skill not in skills:
        named = f"there is no skill {plan.skill!r}{nearest(plan.skill, skills)}"
        named = named if plan.skill else "execute_skill names no skill"
        return f"{named}; there are: {', '.join(skills) or 'none'}"
    if not any(step.strip() for step in plan.steps):
        return "the plan has no steps; say what the program is to do"
    return None


GO_ON = "go_on"
"""The tool by which a program requests another one that sees its output."""

OUTPUT: ContextVar[Callable[[str, str], None] | None] = ContextVar("OUTPUT", default=None)
"""Receives output as it is printed, with the path of the Call that runs the program."""

_LONGEST = 20_000  # characters of output for models and sessions
_SHOWN = 20  # names of files


@dataclass(frozen=True, kw_only=True)
class CodeTools:
    """The files, tools, limits and runner of an agent's programs."""

    skills: SkillLibrary
    files: Mapping[str, Path] = field(default_factory=dict)
    runner: CodeRunner | str | None = None
    limits: Limits = field(default_factory=Limits)

    def files_for(self, plan: Plan) -> dict[str, Path]:
        """Return the files for a plan's program: those of its skill, or of all skills."""
        if plan.action == "execute_skill" and self.skills[plan.skill].files:
            return {**self.skills[plan.skill].files, **self.files}
        return {**self.skills.files, **self.files}

    def job(self, code: str, plan: Plan, asked: list[str]) -> CodeJob:
        """Return a program as a job; its requests for another program are added to `asked`."""

        def go_on(what: str) -> str:
            asked.append(str(what))
            return "End here; another program follows."

        # The functions that it may call are those of its skill.
        own = self.skills[plan.skill].functions() if plan.action == "execute_skill" else {}
        tools = {**own, GO_ON: go_on}
        return CodeJob(code=code, files=self.files_for(plan), tools=tools, limits=self.limits)

    def found_runner(self) -> CodeRunner:
        """Return the runner. Raises SandboxMissing if no safe one is available."""
        if self.runner is None or isinstance(self.runner, str):
            return code_runner(self.runner)
        return self.runner


def executing(
    equipment: CodeTools,
) -> Callable[[CallContext], Awaitable[dict[str, Any]]]:
    """Return the function of the Call that runs an approved program.

    Its result has `output` (None if nothing was run), `exit_code`, `ok`, `stopped`, `next` (the
    task of another program, if this one requests it), `attempt` (tries since the last success),
    `round` (successful programs), and details of the run.
    """

    @reads("plan", "code_review", defaults={"code": "", "run": None})
    async def execute(context: CallContext) -> dict[str, Any]:
        before = context.read("run") or _NOTHING
        review = context.read("code_review")
        if review["decision"] == "reject":
            return _refused(before, review["feedback"] or "it was rejected")
        asked: list[str] = []
        # Read the context variable here: the runner may call back in another context.
        listener = OUTPUT.get()
        listen = None if listener is None else (lambda piece: listener(context.path, piece))
        plan = plan_of(context.read("plan"))
        # Off the loop: it imports the skill's tools.py, which is a user's code.
        job = await run_off_loop(equipment.job, context.read("code"), plan, asked)
        runner = await run_off_loop(equipment.found_runner)  # the probe starts a process
        run = await runner.run(job, on_output=listen)
        return _ran(before, run, asked)

    return execute


_NOTHING: Mapping[str, Any] = {"attempt": 0, "round": 0, "ok": False, "so_far": ""}


def _refused(before: Mapping[str, Any], why: str) -> dict[str, Any]:
    """Return the result if nothing was run."""
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
    """Return the result of a run, given the one before it."""
    texts = [before["so_far"], run.output if run.ok else ""]
    return {
        **_plain(run),
        # A failed program is written again first, so its request does not count.
        "next": asked[-1] if asked and run.ok else "",
        "so_far": clipped("\n".join(text.rstrip() for text in texts if text.strip())),
        "attempt": _attempt(before),
        "round": before["round"] + run.ok,
    }


def _attempt(before: Mapping[str, Any]) -> int:
    """Return the number of tries since a program succeeded."""
    return 1 if before["ok"] else int(before["attempt"]) + 1


def _plain(run: CodeRun) -> dict[str, Any]:
    return {
        # No duration: results are compared in replays, and a duration differs in each run.
        "output": clipped(run.output),
        "stdout": clipped(run.stdout),
        "stderr": clipped(run.stderr),
        "exit_code": run.exit_code,
        "ok": run.ok,
        "stopped": run.stopped,
        "truncated": run.truncated,
        "backend": run.backend,
        "made": [f"{one.name} ({one.size} bytes)" for one in run.made[:_SHOWN]],
        "tools": [call.name for call in run.tool_calls[:_SHOWN]],
    }


def clipped(text: str) -> str:
    """Return text shortened for a prompt: its beginning and its end."""
    if len(text) <= _LONGEST:
        return text
    # Both ends matter: the beginning has the header of a table, the end the traceback.
    half = _LONGEST // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"


# Recordings and the offline model match the prompts below word by word: another wording makes
# every recorded answer of an agent stale.
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
    """The agent's prompts; each reads the state of the turn so far."""

    skills: SkillLibrary
    equipment: CodeTools

    @reads(defaults={"plan_review": None, "proposal": None})
    def plan(self, context: PromptContext) -> str:
        """Return the prompt for a plan; after a rejection, for another plan."""
        review = context.read("plan_review") or {}
        files = sorted({**self.skills.files, **self.equipment.files})
        parts = {"skills": self._skills(), "files": ", ".join(files) or "none"}
        if review.get("decision") == "reject":
            parts["rejected"] = as_text(context.read("proposal"))
            parts["feedback"] = review["feedback"] or "Make another plan."
        return _prompt(PLAN, parts, context)

    @reads("plan", defaults={"run": None, "code": "", "draft": ""})
    def code(self, context: PromptContext) -> str:
        """Return the prompt for a program; after a failure, with the failed one and its error."""
        plan, run = plan_of(context.read("plan")), context.read("run") or {}
        parts = {"plan": as_text(plan.model_dump())}
        if plan.action == "execute_skill":
            skill = self.skills[plan.skill]
            parts["skill"] = f"{skill.name}: {skill.description}"
            parts |= {"inputs": skill.inputs, "logic_flow": skill.flow}
            parts["tools"] = skill.contracts or "none"
            parts |= {"example": skill.example} if skill.example else {}
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
        """Return the prompt for the answer, from the result of the turn."""
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
        lines = [
            f"- {skill.name}: {skill.description} {' '.join(skill.when.split())}"
            for skill in self.skills.values()
        ]
        return "\n".join(lines) or "none"


def _failure(run: Mapping[str, Any]) -> str:
    """Return a description of a program's failure, with its output so far."""
    ending = f"exit code {run['exit_code']}"
    if run["stopped"]:
        ending = f"stopped: it passed the limit of {run['stopped']}"
    return f"{ending}\n{run['output']}".rstrip()


def _prompt(task: str, parts: Mapping[str, str], context: PromptContext | None = None) -> str:
    """Return a prompt: the task, then its context in labeled parts."""
    parts = {**parts, **({} if context is None else {"request": _request(context)})}
    blocks = [f"<{label}>\n{text.strip()}\n</{label}>" for label, text in parts.items()]
    return "\n\n".join([dedent(task), *blocks])


def _request(context: PromptContext) -> str:
    """Return the user's last message; in a turn it is the last message of the base.

    A run without a conversation has it as its input.
    """
    requests = [str(one.text) for one in context.messages if one.type == "human"]
    return requests[-1] if requests else str(context.inputs.get("request") or "")


# The end must equal the start, so that a program can contain another kind of fence.
_FENCE = re.compile(
    r"^(?P<fence>```+|~~~+)[ \t]*(?P<word>[\w+-]*)[^\n]*\n(?P<code>.*?)^(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_PYTHON = frozenset({"", "python", "py", "python3"})

NO_FENCE = "the answer holds no program; put the whole program into one ```python block"


def code_in(answer: str) -> str:
    """Return the longest block of Python in an answer, or an empty string."""
    # The longest: models also show short usage examples in blocks of their own.
    found = [one["code"] for one in _FENCE.finditer(answer) if one["word"].lower() in _PYTHON]
    return max(found, key=len, default="")


def code_problem(code: str) -> str | None:
    """Return why a program cannot be run, or None. It is compiled and not run."""
    if not code.strip():
        return NO_FENCE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the code are not errors
            # Otherwise the `__future__` import of this module would apply to the code.
            compile(code, "<code>", "exec", dont_inherit=True)
    except SyntaxError as error:
        shown = f": {error.text.strip()}" if error.text and error.text.strip() else ""
        return f"the program does not compile: line {error.lineno or 1}: {error.msg}{shown}"
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return f"the program does not compile: {error}"
    return None


Asked = Literal["plan", "code"]

_STRUCTURED = Policy(retry=Retry(2, wait=0.1))  # a second attempt may return a valid plan


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
    """Return the agent's tree, which you can run, draw, resume, replay and budget like any tree.

    It plans; a plan to chat goes straight to the answer. Otherwise it writes a program, runs it,
    and answers from the output. Nothing runs before it is approved, and a new program is a new
    question. A rejected plan is made again with the feedback. A program that is rejected or fails
    is written again with the error. A program may request another one that sees its output. A plan
    without a known skill, an answer without a program, and a program that does not compile are sent
    back without a question.

    The user's last message is the task; a run without a conversation has it as its input `request`.
    Outputs: proposal, plan, plan_review, draft, code, code_review, run.

    Args:
        skills: The skills to choose from; by default the bundled ones.
        files: Files for programs, by name.
        runner: The name of a code runner, or your own; None means the first safe one that works
            here.
        limits: The limits of each program.
        ask: What a person must approve: the plan, each program.
        plans: The maximum number of plans.
        attempts: The maximum number of tries in a row for a program.
        continuations: The maximum number of further programs.

    Raises:
        TreeError: An argument is invalid.
        SkillError: A tool has a reserved name.
    """
    known = bundled_skills() if skills is None else skills
    reserved = f"a tool cannot be called {GO_ON!r}; the agent has one of its own"
    taken = [one for one in known.values() if any(tool.name == GO_ON for tool in one.tools)]
    if taken:
        raise SkillError([Fault(str(skill.folder), reserved) for skill in taken])
    given = {name: Path(path) for name, path in (files or {}).items()}
    equipment = CodeTools(skills=known, files=given, runner=runner, limits=limits or Limits())
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
    """Return the loop that plans until a plan is approved."""
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
    # The gate holds this Call instead of the step: a rejected node leaves no output, and the next
    # attempt reads the rejected proposal.
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


def _work(prompts: Prompts, bounds: _Bounds, equipment: CodeTools) -> Node:
    """Return the loop that writes programs and runs them; skipped if nothing needs to run."""
    draft = Step(prompts.code, name="write", merge="none", capture_key="draft")
    # As in `_planning`; a person sees and edits only the program, without the prose around it.
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
    """Return the plan as proposed, for the gate."""
    return proposal


@dataclass(frozen=True)
class _Bounds:
    """The decisions that need no person, and the conditions of the loops."""

    skills: SkillLibrary
    ask: tuple[Asked, ...]
    attempts: int
    continuations: int

    def decide_plan(self, question: Question) -> Decision | None:
        """Approve plans that run nothing, reject invalid ones, and leave the rest to a person."""
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
        """Reject programs that cannot run, and leave the rest to a person."""
        if problem := code_problem(str(question.kept.outputs["code"])):
            return Decision("reject", feedback=problem)
        return None if "code" in self.ask else Decision(feedback="approved by configuration")

    def nothing_to_run(self, context: PromptContext) -> bool:
        """Return whether nothing, or nothing more, needs to run."""
        plan, run = context.outputs.get("plan"), context.outputs.get("run")
        if plan is None or plan_of(plan).action == "chat":
            return True
        # The loop asks before its first iteration too (may_skip), when nothing has run yet.
        if run is None:
            return False
        if run["ok"]:
            return not run["next"] or run["round"] > self.continuations
        return bool(run["attempt"] >= self.attempts)
