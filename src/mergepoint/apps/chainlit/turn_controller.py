"""The controller of turns: receives messages and clicks, runs turns, and updates every tab."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

from chainlit.session import WebsocketSession

from mergepoint.agent.turns import cancel, decide, go_on, pending, say
from mergepoint.apps.chainlit.browser_tab import TabView
from mergepoint.apps.chainlit.buttons import APPROVE, CANCEL, EDIT, GO_ON, REPLAN, SAVE
from mergepoint.apps.chainlit.gate_editing import edited, editor_of
from mergepoint.apps.chainlit.live_turn import LiveTurn
from mergepoint.apps.chainlit.thread_rows import words_row
from mergepoint.apps.chainlit.thread_status import Known, ThreadStatus
from mergepoint.apps.chainlit.threads import Threads, known_of
from mergepoint.apps.chainlit.work_steps import BY_USER
from mergepoint.core.errors import MergepointError
from mergepoint.session.entries import StepType, execution_content
from mergepoint.session.session_memory import SessionMemory
from mergepoint.session.turn_runner import TurnRunner

LOG = logging.getLogger("mergepoint.chainlit")
OLD = "That was decided already. Nothing was done."
RUNNING = "An answer is being worked on. Wait for it, or stop it."
UNFINISHED = "The last message has no answer yet. Go on with it or cancel it, with its buttons."
CHANGE = "Write in a message what should be different."
# Seconds between two updates of the tabs while a turn runs.
_PAUSE = 0.04

Act = Callable[..., Awaitable[object]]


class Refused(MergepointError):
    """A message or click that can't be accepted now."""


class _Running:
    """A turn that is running in a thread."""

    def __init__(self, live: LiveTurn, memory: SessionMemory, known: Known) -> None:
        self.live = live
        self.memory = memory
        self.known = known
        self.task: asyncio.Task[None] | None = None


class TurnController:
    """Serves the tabs of one server: one turn at a time per thread, for any number of tabs."""

    def __init__(self, threads: Threads, turns: TurnRunner) -> None:
        self.threads = threads
        self._turns = turns
        self._running: dict[str, _Running] = {}
        self._screens: dict[str, TabView] = {}
        self._later: set[asyncio.Task[None]] = set()
        self._opening: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        # One lock per thread: two quick messages must not both start a turn.
        threads.running = self._standing

    def screen(self, session: WebsocketSession) -> TabView:
        """Return a tab's view, and subscribe the tab to its thread."""
        found = self._screens.get(session.id)
        if found is None or found.session is not session:
            found = self._screens[session.id] = TabView(session)
        return found

    async def said(self, session: WebsocketSession, message: str, text: str, run: str) -> None:
        """Accept a message: the next turn's, or feedback at an open gate.

        It returns when the turn ends or waits for a decision.

        Args:
            session: The tab.
            message: Id of the message.
            text: The message's text.
            run: Id of the step that Chainlit puts around the turn.

        Raises:
            Refused: The message can't be accepted now.
        """
        thread = session.thread_id
        # A page that reconnects later must get the same thread again.
        session.thread_id_to_resume = thread
        self.screen(session)
        async with self._opening[thread]:
            task = await self._taken(thread, message, text, run)
        # A closed tab cancels this coroutine, but not the turn.
        await asyncio.shield(task)

    async def _taken(self, thread: str, message: str, text: str, run: str) -> asyncio.Task[None]:
        if thread in self._running:
            raise Refused(RUNNING)
        memory = self.threads.memory(thread, create=True)
        known = known_of(self.threads.kept(thread))
        unfinished, open_ = memory.unfinished, pending(self._turns, memory)
        if unfinished is None:
            known = Known(runs={**known.runs, message: run}, words=known.words)
            act = partial(say, self._turns, memory, text, message_id=message)
        elif open_ is not None:
            entry = f"{unfinished.run}/{open_.path}/step-1"
            decide(self._turns, memory, {"decision": "reject", "feedback": text}, to=open_.key)
            await self.threads.keep(thread, [words_row(message, entry)])
            runs = {**known.runs, message: run}
            known = Known(runs=runs, words={**known.words, entry: message})
            act = partial(go_on, self._turns, memory)
        else:
            raise Refused(UNFINISHED)
        return self._begin(thread, memory, known, act)

    async def clicked(
        self, session: WebsocketSession, name: str, said: Mapping[str, Any]
    ) -> asyncio.Task[None] | None:
        """Perform a button's action and return the turn that it starts; ignore outdated buttons."""
        thread, screen = session.thread_id, self.screen(session)
        async with self._opening[thread]:
            if thread in self._running:
                await screen.toast(RUNNING)
                return None
            memory = self.threads.memory(thread)
            act = self._meant(memory, name, said)
            if act is None:
                await screen.toast(OLD)
            elif act == REPLAN:
                await screen.toast(CHANGE)
            elif act == EDIT:
                await self._edit(memory, screen, said)
            elif act == CANCEL:
                cancel(memory, "by the user")
            elif callable(act):
                return self._begin(thread, memory, known_of(self.threads.kept(thread)), act)
        await self._tell(thread)
        await self._mark(thread)
        return None

    async def _edit(self, memory: SessionMemory, screen: TabView, said: Mapping[str, Any]) -> None:
        """Open an editor in a tab with the subject of the question."""
        open_ = pending(self._turns, memory)
        if open_ is not None:
            await screen.post(
                {
                    "mergepoint": "edit",
                    **asdict(editor_of(open_)),
                    "action": {"name": SAVE, "payload": dict(said)},
                    "sessionId": screen.session.id,
                }
            )

    async def saved(
        self, session: WebsocketSession, said: Mapping[str, Any]
    ) -> asyncio.Task[None] | str:
        """Apply an edited text as the decision, and return the turn that continues with it.

        If the text is invalid, return the problem for the editor; the question then stays open.
        """
        thread = session.thread_id
        self.screen(session)
        async with self._opening[thread]:
            if thread in self._running:
                return RUNNING
            memory = self.threads.memory(thread)
            if self._meant(memory, EDIT, said) is None:
                return OLD
            open_ = pending(self._turns, memory)
            if open_ is None:
                return OLD
            try:
                decision = edited(open_, str(said.get("text", "")))
                decide(self._turns, memory, decision, to=open_.key)
            except MergepointError as error:
                return str(error)
            act = partial(go_on, self._turns, memory)
            return self._begin(thread, memory, known_of(self.threads.kept(thread)), act)

    async def stop(self, thread: str) -> None:
        """Stop a thread's turn and everything that runs for it."""
        running = self._running.get(thread)
        if running is not None and running.task is not None and not running.task.cancelling():
            running.task.cancel()

    async def loaded(self, session: WebsocketSession) -> None:
        """Send the buttons to a tab that loads a thread; stored messages aren't sent again."""
        thread, screen = session.thread_id, self.screen(session)
        try:
            scene = self.threads.scene(thread)
        # The loaded thread shows the error itself.
        except MergepointError:
            return
        screen.knows(scene)
        await screen.show_buttons(scene)
        if thread in self._running:
            self._afterwards(self._join(thread, screen))

    async def _join(self, thread: str, screen: TabView) -> None:
        """Subscribe a tab to the running turn once Chainlit has assigned the thread to it."""
        # Chainlit sends the stored steps after this callback returns; updates sent earlier would be
        # overwritten.
        await asyncio.sleep(5 * _PAUSE)
        if thread in self._running:
            await screen.busy(working=True)
        await self._tell(thread)

    def _meant(self, memory: SessionMemory, name: str, said: Mapping[str, Any]) -> Act | str | None:
        """Return the action of a click, or None if the click is outdated."""
        if said.get("turn") != memory.turn:
            return None
        standing = self.threads.standing(memory)
        if standing.elsewhere:
            return None
        if name == GO_ON:
            ended = memory.past.ended(memory.turn)
            failed = ended is not None and ended.error is not None and not ended.cancelled
            free = failed or (memory.unfinished is not None and not standing.questions)
            return partial(go_on, self._turns, memory) if free else None
        if memory.unfinished is None:
            return None
        open_ = pending(self._turns, memory)
        if said.get("key") != (open_.key if open_ else None):
            return None
        if name == APPROVE and open_ is not None:
            decide(self._turns, memory, "approve", to=open_.key)
            return partial(go_on, self._turns, memory)
        return name

    def _begin(
        self, thread: str, memory: SessionMemory, known: Known, act: Act
    ) -> asyncio.Task[None]:
        # The task gets an empty context: Chainlit's context of one tab must not leak into the turn.
        running = self._running[thread] = _Running(LiveTurn(memory), memory, known)
        running.task = asyncio.create_task(self._run(thread, running, act), context=Context())
        return running.task

    async def _run(self, thread: str, running: _Running, act: Act) -> None:
        """Run a turn and update the tabs until it ends. The session records its errors.

        Errors are raised only if the session recorded nothing: it took no message.
        """
        before = _ends(running.memory)
        telling = asyncio.create_task(self._keep_telling(thread, running))
        for screen in self._looking(thread):
            await screen.busy(working=True)
        await self._mark(thread)
        try:
            await act(listeners=running.live.listeners)
        except asyncio.CancelledError:
            LOG.info("a turn of %s was stopped", thread)
            self._keep_stopped(running)
        except Exception as error:
            LOG.warning("a turn of %s ended with %s: %s", thread, type(error).__name__, error)
            if _ends(running.memory) == before:
                raise
        finally:
            # Stop the periodic updates first: the last update below must not be overtaken.
            telling.cancel()
            await asyncio.wait({telling})
            del self._running[thread]
            await self._tell(thread, running.known)
            for screen in self._looking(thread):
                await screen.busy(working=False)
            await self._mark(thread)

    def _keep_stopped(self, running: _Running) -> None:
        """Store the output of a stopped program: its run has no record of it."""
        memory, artifacts = running.memory, self.threads.scenes.places.artifacts
        asked = memory.past.asked(memory.turn)
        for one in running.live.interrupted():
            if asked is None or artifacts.type_at(one.path) is not StepType.EXECUTE:
                continue
            seconds = (datetime.now(UTC) - one.started).total_seconds()
            try:
                memory.add_working_step(
                    StepType.EXECUTE,
                    execution_content(one.text, ""),
                    {"stopped": BY_USER, "seconds": round(seconds, 3)},
                    path=one.path,
                    turn=asked.turn,
                    step_id=f"{asked.run}/{one.path}/step-{one.number}",
                    made_at=one.started,
                    attempt=artifacts.attempt_at(one.path),
                )
            except MergepointError as error:
                LOG.warning("what %s had printed is not kept: %s", one.path, error)

    async def _mark(self, thread: str) -> None:
        """Send the thread's status to all tabs of its owner, for their thread lists."""
        mark = self.threads.mark(thread)
        owners = {one.owner for one in self._looking(thread)}
        for screen in [*self._screens.values()]:
            if screen.owner in owners:
                await screen.post({"mergepoint": "mark", "thread": thread, "mark": mark})

    async def _keep_telling(self, thread: str, running: _Running) -> None:
        while True:
            await running.live.changed.wait()
            running.live.changed.clear()
            await self._tell(thread, running.known)
            await asyncio.sleep(_PAUSE)

    async def _tell(self, thread: str, known: Known | None = None) -> None:
        """Send the current state of a thread's last turn to all of its tabs."""
        memory = self.threads.memory(thread)
        known = known or known_of(self.threads.kept(thread))
        standing = self.threads.standing(memory)
        scene = self.threads.scenes.turn(memory, memory.turn, standing, known)
        for screen in self._looking(thread):
            await screen.show(scene, turn=memory.turn)

    def _looking(self, thread: str) -> list[TabView]:
        """Return the views of a thread's tabs, and drop those that Chainlit has closed."""
        for key in [*self._screens]:
            if WebsocketSession.get_by_id(key) is not self._screens[key].session:
                del self._screens[key]
        return [one for one in self._screens.values() if one.session.thread_id == thread]

    def _standing(self, thread: str) -> ThreadStatus | None:
        running = self._running.get(thread)
        return None if running is None else running.live.standing()

    def _afterwards(self, work: Any) -> None:
        # The event loop keeps only weak references to tasks.
        task = asyncio.create_task(work, context=Context())
        self._later.add(task)
        task.add_done_callback(self._later.discard)


def _ends(memory: SessionMemory) -> tuple[int, str]:
    """Return the last turn and the id of its end, which show whether a session changed."""
    ended = memory.past.ended(memory.turn)
    return memory.turn, ended.id if ended else ""
