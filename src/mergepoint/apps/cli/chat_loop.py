"""The chat with an agent: its setup, its turns, and its slash commands."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from langchain_core.language_models import BaseChatModel

from mergepoint.agent.skills import EXAMPLES as BUNDLED_SKILLS
from mergepoint.agent.skills import SkillLibrary
from mergepoint.agent.tree import Asked, agent
from mergepoint.agent.turns import Listeners, Pending, cancel, decide, go_on, pending, say
from mergepoint.apps.cli.chat_terminal import ChatInput, TurnView, ask
from mergepoint.apps.cli.framework import tell_traceback
from mergepoint.apps.cli.inputs import read_budget, read_prices
from mergepoint.apps.cli.invocation import model_settings
from mergepoint.apps.cli.options import OFFLINE, SESSIONS, Approval, ChatOptions
from mergepoint.apps.cli.output import DONE, FAILED, INTERRUPTED, OPEN, CommandError, tell
from mergepoint.apps.cli.run_store import LAST
from mergepoint.apps.cli.sessions import (
    CHAT_OPTIONS,
    brief_lines,
    chat_command,
    message_lines,
    step_lines,
)
from mergepoint.apps.cli.tree_run import resolve_model_or_refuse
from mergepoint.core.errors import SandboxMissing, SessionError, StepError
from mergepoint.core.paths import nearest
from mergepoint.models.event_loop import run_sync
from mergepoint.models.pricing import Price
from mergepoint.models.providers import NO_SETTINGS, ModelSettings
from mergepoint.sandbox.backends import CodeRunner, code_runner
from mergepoint.session.fact_extraction import learn_facts
from mergepoint.session.session_memory import SessionMemory, Sessions, failed_turn, records_of
from mergepoint.session.session_store import sessions_at
from mergepoint.session.turn_runner import Reply, TurnRunner
from mergepoint.targets import find_target
from mergepoint.tree.nodes import REQUIRED, Node
from mergepoint.tree.policy import Budget

_APPROVALS: Final[Mapping[Approval, tuple[Asked, ...]]] = {
    "everything": ("plan", "code"),
    "plans": ("plan",),
    "programs": ("code",),
    "nothing": (),
}


@dataclass(frozen=True, kw_only=True)
class ChatSetup:
    """The model, agent and limits of a chat.

    `about` describes the model, `ask` lists the actions that need approval, and `resume_words`
    are the options of the command that resumes the chat.
    """

    model: BaseChatModel
    about: str
    settings: ModelSettings = NO_SETTINGS
    skills: SkillLibrary
    files: Mapping[str, Path] = field(default_factory=dict)
    ask: tuple[Asked, ...] = ("plan", "code")
    runner: CodeRunner | str | None = None
    budget: Budget | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    sessions: str = SESSIONS
    resume_words: Sequence[str] = ()
    quiet: bool = False
    traceback: bool = False

    def turns(self, target: str | None = None) -> TurnRunner:
        """Return the runner of the turns, of the agent or of a tree that answers.

        Raises CommandError for a recipe, and for a tree that needs inputs.
        """
        if target is not None:
            return TurnRunner(
                _answering_tree(target),
                model=self.model,
                settings=self.settings,
                budget=self.budget,
                prices=self.prices,
            )
        tree = agent(self.skills, files=self.files, runner=self.runner, ask=self.ask)
        return TurnRunner(
            tree,
            model=self.model,
            settings=self.settings,
            budget=self.budget,
            prices=self.prices,
            meta={CHAT_OPTIONS: list(self.resume_words)},
        )


def _answering_tree(target: str) -> Node:
    tree = find_target(target).tree
    if tree is None:
        raise CommandError(f"{target!r} is a recipe, and a chat needs a tree.")
    needed = [one.name for one in getattr(tree, "inputs", ()) if one.default is REQUIRED]
    if needed:
        raise CommandError(
            f"{target} needs the inputs {', '.join(map(repr, needed))}, and a page has only "
            "messages. Add defaults to the inputs, or use mergepoint run."
        )
    return tree


def new_setup(options: ChatOptions) -> ChatSetup:
    """Return the setup that options describe. Raises CommandError for invalid options."""
    settings = model_settings(options)
    note = " (a rule-based stand-in, not a language model)" if options.model == OFFLINE else ""
    return ChatSetup(
        model=resolve_model_or_refuse(options.model, settings),
        settings=settings,
        about=f"model {options.model}{note}",
        skills=SkillLibrary.at(*(options.skills or [BUNDLED_SKILLS])),
        files=_files_by_name(options.file),
        ask=_APPROVALS[options.ask],
        runner=options.runner,
        budget=read_budget(options.budget),
        prices=read_prices(options.price),
        sessions=options.sessions,
    )


def _files_by_name(paths: Sequence[Path]) -> dict[str, Path]:
    """Return files by the names under which programs find them."""
    files: dict[str, Path] = {}
    for path in paths:
        if not path.is_file():
            raise CommandError(f"--file {path}: the file doesn't exist.")
        if path.name in files:
            raise CommandError(f"--file {path}: another file is named {path.name!r}. Rename one.")
        files[path.name] = path.resolve()
    return files


def converse(setup: ChatSetup, *, resume: str | None = None, messages: Sequence[str] = ()) -> int:
    """Chat until the person leaves, and return the exit code.

    Raises SessionError for a session that can't be opened, CommandError for an unknown runner.
    """
    turns, place = setup.turns(), sessions_at(setup.sessions)
    if not setup.quiet:
        _report_runner(setup.runner)
    memory = _open_session(place, resume)
    if not setup.quiet:
        tell(f"session {memory.session_id}, {setup.about}; /help lists commands", style="dim")
    with warnings.catch_warnings():
        # langchain-openai streams structured answers with a warning about its own field.
        warnings.filterwarnings("ignore", "Pydantic serializer warnings", UserWarning)
        chat = Chat(
            memory,
            turns,
            ChatInput(messages),
            TurnView(turns.tree, quiet=setup.quiet),
            setup.traceback,
        )
        _chat(chat, place, setup.skills)
    if not setup.quiet:
        tell(f"resume: {chat_command(chat.memory, setup.resume_words)}", style="dim")
    return chat.code


def _chat(chat: Chat, place: Sessions, skills: SkillLibrary) -> None:
    """Handle lines until the person leaves, or answers a question later."""
    continues = chat.begin()
    while continues:
        try:
            line = chat.input.next_message()
        # Ctrl-C cancels turns, so at the prompt it must not end the whole chat by accident.
        except KeyboardInterrupt:
            tell("\nTo leave: Ctrl-D or /quit", style="dim")
            continue
        if line is None:
            break
        # New for each line, because /resume and /new replace the session.
        effect = SlashCommands(chat.memory, place, skills).of(line)
        if effect.leave:
            break
        if effect.session is not None:
            try:
                chat.memory = _open_session(place, effect.session or None)
            except SessionError as error:
                tell(str(error), style="yellow")
                continue
            tell(f"session {chat.memory.session_id}", style="dim")
            continues = chat.begin()
        elif effect.say:
            continues = chat.say(effect.say)


def _open_session(place: Sessions, resume: str | None) -> SessionMemory:
    """Open a session by its id, or start a new one."""
    if resume is None:
        return place.create()
    if resume != LAST:
        return place.open(resume)
    there = [one.session_id for one in place.sessions() if not one.problem]
    if not there:
        raise CommandError("There is no session to resume yet. To start one: mergepoint chat")
    return place.open(there[0])


def _report_runner(runner: CodeRunner | str | None) -> None:
    """Report if programs can't run here, or run without isolation."""
    if runner is not None and not isinstance(runner, str):
        return
    try:
        name = code_runner(runner).name
    except SandboxMissing as error:
        tell(f"Programs can't run here, so the agent can only talk: {error}", style="yellow")
    except ValueError as error:
        raise CommandError(f"--runner: {error}") from error
    else:
        if name == "unsafe_subprocess":
            tell(
                "Programs run WITHOUT ISOLATION, with your files, keys and network.",
                style="bold yellow",
            )


TurnResult = Reply | Pending


@dataclass
class Chat:
    """A session with a person. `code` is the exit code so far.

    With `whole_tracebacks`, tracebacks have the frames of the engine too.
    """

    memory: SessionMemory
    turns: TurnRunner
    input: ChatInput
    view: TurnView
    whole_tracebacks: bool = False
    code: int = DONE

    @property
    def listeners(self) -> Listeners:
        """Return the listeners of turns."""
        return Listeners(event=self.view.event, output=self.view.output)

    def begin(self) -> bool:
        """Resume a turn without an answer; return whether the chat continues.

        A failed turn is retried, unless a message is sent.
        """
        self.memory.refresh()
        left, failed = self.memory.unfinished, failed_turn(self.memory)
        if left is not None:
            tell(f"Turn {left.turn} has no answer yet: {left.content}")
        elif failed is None:
            return True
        elif self.input.is_scripted:
            tell(f"Turn {failed.turn} failed and has no answer. To retry it, omit -m.")
            return True
        else:
            tell(f"Retrying turn {failed.turn}, which failed: {failed.content}")
        found = records_of(self.memory, self.memory.turn)
        self.view.new_turn(() if found is None else found[1])
        waits = None if left is None else pending(self.turns, self.memory)
        if waits is not None:
            return self._finish_turn(waits)
        return self._run_turn(go_on(self.turns, self.memory, listeners=self.listeners))

    def say(self, text: str) -> bool:
        """Send a message and finish its turn; return whether the chat continues."""
        self.view.new_turn()
        return self._run_turn(say(self.turns, self.memory, text, listeners=self.listeners))

    def _run_turn(self, turn: Coroutine[Any, Any, TurnResult]) -> bool:
        try:
            with self.view.shown():
                outcome = run_sync(turn)
        except KeyboardInterrupt:
            self.view.interrupted()
            self._report_cancel()
            return True
        except Exception as error:  # noqa: BLE001  (a model or a program can raise anything)
            self.view.interrupted()
            self._report_failure(error)
            return True
        return self._finish_turn(outcome)

    def _finish_turn(self, outcome: TurnResult) -> bool:
        """Print an answer, or ask for a decision and continue."""
        if isinstance(outcome, Reply):
            self.view.answered(outcome.text)
            # After the answer is shown: the person doesn't wait for it.
            learn_facts(self.memory)
            return True
        try:
            answered = ask(outcome, self.input)
        except KeyboardInterrupt:
            tell()
            answered = None
        if answered is None or answered.act == "cancel":
            cancel(self.memory)
            self._report_cancel(asked=answered is not None)
            return True
        if answered.act == "later":
            self.code = OPEN
            return False
        try:
            decide(self.turns, self.memory, answered.decision, to=outcome.key)
        except StepError as error:
            # The decision was not recorded, so the same question is still open.
            tell(str(error), style="yellow")
            return self._finish_turn(outcome)
        return self._run_turn(go_on(self.turns, self.memory, listeners=self.listeners))

    def _report_cancel(self, *, asked: bool = False) -> None:
        tell("Canceled. Nothing of it will be run.", style="yellow")
        # A person has seen it; a script learns it from the exit code.
        if not asked and not self.input.person:
            self.code = INTERRUPTED

    def _report_failure(self, error: Exception) -> None:
        tell_traceback(error, whole=self.whole_tracebacks)
        path = getattr(error, "pipeline_path", "")
        where = f" at {path}" if path else ""
        head, *rest = f"failed{where}: {type(error).__name__}: {error}".splitlines()
        tell(head, style="bold red")
        for line in rest:
            tell(line)
        if not self.input.person:
            self.code = FAILED


# Slash commands.

HELP = """\
/help             show this help
/steps [TURN]     plan, programs, output and decisions of the last turn, or of one
/history [N]      the conversation, or its last N turns
/facts            remembered facts
/skills           skills of the agent
/sessions         all sessions
/resume ID        resume another session
/new              start a new session
/edit             write a message in your editor
/quit             leave (also Ctrl-D). Ctrl-C cancels the current turn."""


@dataclass(frozen=True, slots=True)
class LineEffect:
    """The effect of a line: a message to `say`, another `session` (blank: a new one), the end."""

    say: str = ""
    session: str | None = None
    leave: bool = False


class SlashCommands:
    """The slash commands of a chat."""

    def __init__(self, memory: SessionMemory, sessions: Sessions, skills: SkillLibrary) -> None:
        self._memory = memory
        self._sessions = sessions
        self._skills = skills
        self._known: dict[str, Callable[[str], LineEffect]] = {
            "/help": lambda _: self._show(HELP.splitlines()),
            "/steps": self._steps,
            "/history": self._history,
            "/facts": self._facts,
            "/skills": lambda _: self._show(
                [f"{one.name}: {one.description}" for one in skills.values()]
            ),
            "/sessions": lambda _: self._show(brief_lines(sessions.sessions(), memory.session_id)),
            "/resume": self._resume,
            "/new": lambda _: LineEffect(session=""),
            "/edit": self._edit,
            "/quit": lambda _: LineEffect(leave=True),
        }

    def of(self, line: str) -> LineEffect:
        """Return the effect of a line; a line without a slash is a message."""
        if not line.startswith("/"):
            return LineEffect(say=line)
        word, _, rest = line.partition(" ")
        known = self._known.get(word)
        if known is None:
            near = nearest(word, self._known)
            return self._show([f"Unknown command {word}{near}. To list all: /help"])
        return known(rest.strip())

    def _show(self, lines: list[str]) -> LineEffect:
        for line in lines:
            tell(line)
        return LineEffect()

    def _steps(self, rest: str) -> LineEffect:
        turn = _number(rest, self._memory.turn)
        if turn is None:
            return self._show([f"/steps {rest}: TURN must be a number."])
        steps = self._memory.get_steps(turn=turn)
        return self._show(step_lines(steps) or [f"Turn {turn} has no steps."])

    def _history(self, rest: str) -> LineEffect:
        last = _number(rest, self._memory.turn)
        if last is None:
            return self._show([f"/history {rest}: N must be a number."])
        messages = self._memory.get_messages(last=last)
        return self._show(message_lines(messages) or ["There are no messages yet."])

    def _facts(self, rest: str) -> LineEffect:
        facts = [f"{one.content} (turn {one.turn})" for one in self._memory.get_facts()]
        return self._show(facts or ["There are no facts yet."])

    def _resume(self, rest: str) -> LineEffect:
        return (
            LineEffect(session=rest)
            if rest
            else self._show(["Use /resume ID. To list the sessions: /sessions"])
        )

    def _edit(self, rest: str) -> LineEffect:
        try:
            found = click.edit(rest, extension=".md")
        except click.ClickException as error:
            return self._show([f"Can't start the editor: {error.format_message()}"])
        return LineEffect(say=(found or "").strip())


def _number(text: str, default: int) -> int | None:
    if not text:
        return default
    # int() raises ValueError for more than 4,300 digits.
    return int(text) if text.isdecimal() and len(text) < 10 else None
