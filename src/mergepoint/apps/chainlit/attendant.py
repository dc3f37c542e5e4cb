"""Attendant: takes what people say and click, runs the turns, and tells every tab."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from functools import partial
from typing import Any

from chainlit.session import WebsocketSession

from mergepoint.agent.agent_turn import cancel, decide, go_on, pending, say
from mergepoint.apps.chainlit.buttons import APPROVE, CANCEL, GO_ON, REPLAN
from mergepoint.apps.chainlit.live import LiveTurn
from mergepoint.apps.chainlit.rows import words_row
from mergepoint.apps.chainlit.screen import Screen
from mergepoint.apps.chainlit.standing import Known, Standing
from mergepoint.apps.chainlit.threads import Threads, known_of
from mergepoint.core.errors import MergepointError
from mergepoint.session.memory import SessionMemory
from mergepoint.session.turn_runner import TurnRunner

LOG = logging.getLogger("mergepoint.chainlit")
OLD = "That was decided already. Nothing was done."
RUNNING = "An answer is being worked on. Wait for it, or stop it."
UNFINISHED = "The last message has no answer yet. Go on with it or cancel it, with its buttons."
CHANGE = "Write in a message what should be different."
_PAUSE = 0.04  # seconds between two looks at a turn that runs

Act = Callable[..., Awaitable[object]]


class Refused(MergepointError):
    """Something that a person said and that cannot be taken now."""


class _Running:
    """A turn that runs in a thread."""

    def __init__(self, live: LiveTurn, memory: SessionMemory, known: Known) -> None:
        self.live = live
        self.memory = memory
        self.known = known
        self.task: asyncio.Task[None] | None = None


class Attendant:
    """Serves the tabs of one server. Threads have one turn at a time, and any number of tabs."""

    def __init__(self, threads: Threads, turns: TurnRunner) -> None:
        self.threads = threads
        self._turns = turns
        self._running: dict[str, _Running] = {}
        self._screens: dict[str, Screen] = {}
        self._later: set[asyncio.Task[None]] = set()
        self._opening: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        threads.running = self._standing

    def screen(self, session: WebsocketSession) -> Screen:
        """Give a tab's screen; from then on it hears of its thread."""
        return self._screens.setdefault(session.id, Screen(session))

    async def said(self, session: WebsocketSession, message: str, text: str, run: str) -> None:
        """Take a message: the next turn's, or what should be different at an open gate.

        It returns when the turn has ended or waits. `run` is the id of the step that Chainlit puts
        around it. Raises Refused for what cannot be taken now, and what a session raises.
        """
        thread = session.thread_id
        session.thread_id_to_resume = thread  # a page that was away is given the thread again
        self.screen(session)
        async with self._opening[thread]:
            task = await self._taken(thread, message, text, run)
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
        """Do what a button says, and give the turn that runs by it; an old one does nothing."""
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
            elif act == CANCEL:
                cancel(memory, "by the user")
            elif callable(act):
                return self._begin(thread, memory, known_of(self.threads.kept(thread)), act)
        await self._tell(thread)
        return None

    async def stop(self, thread: str) -> None:
        """Stop the turn of a thread, with everything that runs for it."""
        running = self._running.get(thread)
        if running is not None and running.task is not None and not running.task.cancelling():
            running.task.cancel()

    async def loaded(self, session: WebsocketSession) -> None:
        """Give a tab that loads a thread the buttons; what is stored is not sent again."""
        thread, screen = session.thread_id, self.screen(session)
        try:
            scene = self.threads.scene(thread)
        except MergepointError:  # the thread itself says so
            return
        screen.knows(scene)
        await screen.show_buttons(scene)
        if thread in self._running:
            self._afterwards(self._join(thread, screen))

    async def _join(self, thread: str, screen: Screen) -> None:
        """Let a tab follow the turn that runs, as soon as it has been given the thread."""
        await asyncio.sleep(5 * _PAUSE)
        if thread in self._running:
            await screen.busy(working=True)
        await self._tell(thread)

    def _meant(self, memory: SessionMemory, name: str, said: Mapping[str, Any]) -> Act | str | None:
        """Give what a click comes to, None where it is about something that is over."""
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
        running = self._running[thread] = _Running(LiveTurn(memory), memory, known)
        running.task = asyncio.create_task(self._run(thread, running, act), context=Context())
        return running.task

    async def _run(self, thread: str, running: _Running, act: Act) -> None:
        """Run a turn, and tell the tabs until it has ended. What it failed with is in the session.

        Raises what the session has no place for: it took no message.
        """
        before = _ends(running.memory)
        telling = asyncio.create_task(self._keep_telling(thread, running))
        for screen in self._looking(thread):
            await screen.busy(working=True)
        try:
            await act(listeners=running.live.listeners)
        except asyncio.CancelledError:
            LOG.info("a turn of %s was stopped", thread)
        except Exception as error:
            LOG.warning("a turn of %s ended with %s: %s", thread, type(error).__name__, error)
            if _ends(running.memory) == before:
                raise
        finally:
            telling.cancel()
            await asyncio.wait({telling})
            del self._running[thread]
            await self._tell(thread, running.known)
            for screen in self._looking(thread):
                await screen.busy(working=False)

    async def _keep_telling(self, thread: str, running: _Running) -> None:
        while True:
            await running.live.changed.wait()
            running.live.changed.clear()
            await self._tell(thread, running.known)
            await asyncio.sleep(_PAUSE)

    async def _tell(self, thread: str, known: Known | None = None) -> None:
        """Show every tab of a thread its last turn as it is now."""
        memory = self.threads.memory(thread)
        known = known or known_of(self.threads.kept(thread))
        standing = self.threads.standing(memory)
        scene = self.threads.scenes.turn(memory, memory.turn, standing, known)
        for screen in self._looking(thread):
            await screen.show(scene, turn=memory.turn)

    def _looking(self, thread: str) -> list[Screen]:
        """Give the screens of a thread; those of tabs that Chainlit has let go are forgotten."""
        for key in [*self._screens]:
            if WebsocketSession.get_by_id(key) is not self._screens[key].session:
                del self._screens[key]
        return [one for one in self._screens.values() if one.session.thread_id == thread]

    def _standing(self, thread: str) -> Standing | None:
        running = self._running.get(thread)
        return None if running is None else running.live.standing()

    def _afterwards(self, work: Any) -> None:
        task = asyncio.create_task(work, context=Context())
        self._later.add(task)
        task.add_done_callback(self._later.discard)


def _ends(memory: SessionMemory) -> tuple[int, str]:
    """Give the last turn and what it came to, to see whether a session took anything."""
    ended = memory.past.ended(memory.turn)
    return memory.turn, ended.id if ended else ""
