"""Talk: a conversation with an agent, from the first line to the last."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from mergepoint.agent.agent_turn import (
    Listeners,
    Pending,
    cancel,
    decide,
    go_on,
    pending,
    say,
)
from mergepoint.apps.cli.chat.asking import ask
from mergepoint.apps.cli.chat.folded import Folded
from mergepoint.apps.cli.chat.lines import Lines
from mergepoint.apps.cli.chat.running import TurnLoop
from mergepoint.apps.cli.errors import DONE, FAILED, INTERRUPTED, OPEN
from mergepoint.apps.cli.output import tell
from mergepoint.core.errors import StepError
from mergepoint.session.memory import SessionMemory
from mergepoint.session.turn import Reply
from mergepoint.session.turn_runner import TurnRunner

Came = Reply | Pending


@dataclass
class Talk:
    """A session that is talked with. `code` is the exit code that the talk has come to."""

    memory: SessionMemory
    turns: TurnRunner
    loop: TurnLoop
    lines: Lines
    folded: Folded
    code: int = DONE

    @property
    def listeners(self) -> Listeners:
        """Give who is told of turns."""
        return Listeners(event=self.folded.event, output=self.folded.output)

    def begin(self) -> bool:
        """Go on with a turn that waits or was broken off; say whether the talk goes on."""
        self.memory.refresh()
        left = self.memory.unfinished
        if left is None:
            return True
        tell(f"turn {left.turn} has no answer yet: {left.content}")
        waits = pending(self.turns, self.memory)
        if waits is not None:
            return self._settled(waits)
        return self._went(go_on(self.turns, self.memory, listeners=self.listeners))

    def say(self, text: str) -> bool:
        """Say something and see its turn to an end; say whether the talk goes on."""
        return self._went(say(self.turns, self.memory, text, listeners=self.listeners))

    def _went(self, turn: Coroutine[Any, Any, Came]) -> bool:
        try:
            with self.folded.turning():
                came = self.loop.run(turn)
        except KeyboardInterrupt:
            self.folded.broken_off()
            self._cancelled()
            return True
        except Exception as error:  # noqa: BLE001  (whatever a model or a program raises)
            self.folded.broken_off()
            self._failed(error)
            return True
        return self._settled(came)

    def _settled(self, came: Came) -> bool:
        """Put an answer, or ask what waits and go on."""
        if isinstance(came, Reply):
            self.folded.answered(came.text)
            return True
        try:
            answered = ask(came, self.lines)
        except KeyboardInterrupt:
            tell()
            answered = None
        if answered is None or answered.act == "cancel":
            cancel(self.memory)
            self._cancelled(asked=answered is not None)
            return True
        if answered.act == "later":
            self.code = OPEN
            return False
        try:
            decide(self.turns, self.memory, answered.decision, to=came.key)
        except StepError as error:
            tell(str(error), style="yellow")
            return self._settled(came)
        return self._went(go_on(self.turns, self.memory, listeners=self.listeners))

    def _cancelled(self, *, asked: bool = False) -> None:
        tell("cancelled; nothing of it goes on", style="yellow")
        if not asked and not self.lines.person:
            self.code = INTERRUPTED

    def _failed(self, error: Exception) -> None:
        path = getattr(error, "pipeline_path", "")
        where = f" at {path}" if path else ""
        head, *rest = f"failed{where}: {type(error).__name__}: {error}".splitlines()
        tell(head, style="bold red")
        for line in rest:
            tell(line)
        if not self.lines.person:
            self.code = FAILED
