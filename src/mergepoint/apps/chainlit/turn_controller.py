"""The controller of turns: receives messages and clicks, runs turns, and updates every tab."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from chainlit.session import WebsocketSession

from mergepoint.agent.turns import Listeners, cancel, decide, go_on, pending, say
from mergepoint.apps.chainlit.browser_tab import TabView
from mergepoint.apps.chainlit.buttons import (
    APPROVE,
    CANCEL,
    EDIT,
    GO_ON,
    REPLAN,
    SAVE,
    decision_for,
    editor_of,
)
from mergepoint.apps.chainlit.thread_view import BY_USER
from mergepoint.apps.chainlit.threads import Threads, ids_of
from mergepoint.apps.chainlit.turn_data import ChainlitIds, Partial, ThreadStatus
from mergepoint.core.errors import MergepointError
from mergepoint.engine.callbacks import Event
from mergepoint.journal.call_records import CallRecord
from mergepoint.session.entries import StepType, execution_content
from mergepoint.session.session_memory import SessionMemory, records_of
from mergepoint.session.turn_runner import TurnRunner

if TYPE_CHECKING:
    from mergepoint.apps.cli.turn_queue import InQueue, TurnQueue

_LEAF_EVENTS = ("step", "call")


class LiveTurn:
    """Collects the events of a run, from any thread, as the state of the turn."""

    def __init__(self, memory: SessionMemory) -> None:
        self._loop = asyncio.get_running_loop()
        self.listeners = Listeners(event=self._receive_event, output=self._append)
        self.changed = asyncio.Event()
        self._memory = memory
        self._partial: dict[str, Partial] = {}
        self._stopped: list[Partial] = []
        self._records: Sequence[CallRecord] | None = None
        self._worker: InQueue = ""

    def status(self) -> ThreadStatus:
        """Return the current state of the turn."""
        partial = tuple(self._partial.values())
        records = self._read_records()
        return ThreadStatus(records=records, partial=partial, live=True, worker=self._worker)

    def receive(self, worker: InQueue, records: Sequence[CallRecord]) -> None:
        """Take the state of a turn that a worker carries out."""
        if worker != self._worker or len(records) != len(self._records or ()):
            self._worker, self._records = worker, records
            self.changed.set()

    def interrupted(self) -> Sequence[Partial]:
        """Return the stopped calls with their partial output."""
        return (*self._stopped, *self._partial.values())

    def _read_records(self) -> Sequence[CallRecord]:
        if self._records is None:
            found = records_of(self._memory, self._memory.turn)
            self._records = () if found is None else found[1]
        return self._records

    def _receive_event(self, event: Event) -> None:
        # Runs call back from worker threads; the state belongs to the loop.
        self._loop.call_soon_threadsafe(self._apply, event)

    def _apply(self, event: Event) -> None:
        """Collect partial text, which counts until the call has a record."""
        if event.of in _LEAF_EVENTS and event.kind == "token":
            self._append(event.path, event.text)
            return
        # Any other event may have added records: read them again on the next look.
        self._records = None
        if event.of in _LEAF_EVENTS and event.kind == "start":
            answered = Counter(one.path for one in self._read_records() if one.answered)
            # By its number, a call is not shown twice once its answer has a record.
            begun = Partial(event.path, answered[event.path] + 1, datetime.now(UTC))
            self._partial[event.path] = begun
        elif event.kind in ("error", "stopped", "left_out"):
            ended = self._partial.pop(event.path, None)
            if ended is not None and event.kind == "stopped":
                self._stopped.append(ended)
        self.changed.set()

    def _append(self, path: str, text: str) -> None:
        if (found := self._partial.get(path)) is not None:
            self._partial[path] = replace(found, text=found.text + text)
            self.changed.set()


LOG = logging.getLogger("mergepoint.chainlit")
OUTDATED = "That was decided already. Nothing was done."
RUNNING = "An answer is in progress. Wait for it, or stop it."
UNFINISHED = "The last message has no answer yet. Resume or cancel it with its buttons."
CHANGE = "Write in a message what should be different."
# Seconds between two updates of the tabs while a turn runs.
_UPDATE_SECONDS = 0.04

WITH_WORKER = "A worker has this turn already, and can't be stopped from here."


@dataclass(frozen=True, slots=True)
class Act:
    """The work of a turn, given its state; `queued` if a worker does it."""

    work: Callable[[LiveTurn], Awaitable[object]]
    queued: bool = False


class Refused(MergepointError):
    """A message or click that can't be accepted now."""


@dataclass(eq=False)
class _Running:
    """A turn that is running in a thread."""

    live: LiveTurn
    memory: SessionMemory
    ids: ChainlitIds
    queued: bool = False
    task: asyncio.Task[None] | None = None


class TurnController:
    """Serves the tabs of one server: one turn at a time per thread, for any number of tabs.

    With a queue, turns are resumed by its workers, and this server follows them.
    """

    def __init__(self, threads: Threads, turns: TurnRunner, queue: TurnQueue | None = None) -> None:
        self.threads = threads
        self._turns = turns
        self._queue = queue
        self._running: dict[str, _Running] = {}
        self._tabs: dict[str, TabView] = {}
        self._background: set[asyncio.Task[None]] = set()
        # One lock per thread: two quick messages must not both start a turn.
        self._start_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        threads.running = self._status
        if queue is not None:
            threads.in_queue = queue.state

    def tab(self, session: WebsocketSession) -> TabView:
        """Return a tab's view, and subscribe the tab to its thread."""
        found = self._tabs.get(session.id)
        if found is None or found.session is not session:
            found = self._tabs[session.id] = TabView(session)
        return found

    async def receive(self, session: WebsocketSession, message: str, text: str, run: str) -> None:
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
        self.tab(session)
        async with self._start_locks[thread]:
            task = await self._accept(thread, message, text, run)
        # A closed tab cancels this coroutine, but not the turn.
        await asyncio.shield(task)

    async def _accept(self, thread: str, message: str, text: str, run: str) -> asyncio.Task[None]:
        if thread in self._running:
            raise Refused(RUNNING)
        memory = self.threads.memory(thread, create=True)
        ids = ids_of(self.threads.rows(thread))
        unfinished, question = memory.unfinished, pending(self._turns, memory)
        if unfinished is None:
            ids = replace(ids, turn_steps={**ids.turn_steps, message: run})
            act = Act(
                lambda live: say(
                    self._turns, memory, text, message_id=message, listeners=live.listeners
                )
            )
        elif question is not None:
            entry = f"{unfinished.run}/{question.path}/step-1"
            decide(self._turns, memory, {"decision": "reject", "feedback": text}, to=question.key)
            # The row links the message to its session entry.
            await self.threads.append(
                thread, [{"kind": "step", "id": message, "data": {"of": entry}}]
            )
            ids = ChainlitIds(
                turn_steps={**ids.turn_steps, message: run}, replies={**ids.replies, entry: message}
            )
            act = self._resume(memory)
        else:
            raise Refused(UNFINISHED)
        return self._begin(thread, memory, ids, act)

    async def click(
        self, session: WebsocketSession, name: str, payload: Mapping[str, Any]
    ) -> asyncio.Task[None] | None:
        """Perform a button's action and return the turn that it starts; ignore outdated buttons."""
        thread, tab = session.thread_id, self.tab(session)
        async with self._start_locks[thread]:
            if thread in self._running:
                await tab.toast(RUNNING)
                return None
            memory = self.threads.memory(thread)
            act = self._action_for(memory, name, payload)
            if act is None:
                await tab.toast(OUTDATED)
            elif act == REPLAN:
                await tab.toast(CHANGE)
            elif act == EDIT:
                await self._open_editor(memory, tab, payload)
            elif act == CANCEL:
                cancel(memory, "by the user")
            elif isinstance(act, Act):
                return self._begin(thread, memory, ids_of(self.threads.rows(thread)), act)
        await self._update_tabs(thread)
        await self._send_mark(thread)
        return None

    async def _open_editor(
        self, memory: SessionMemory, tab: TabView, payload: Mapping[str, Any]
    ) -> None:
        """Open an editor in a tab with the subject of the question."""
        question = pending(self._turns, memory)
        if question is not None:
            await tab.post(
                {
                    "mergepoint": "edit",
                    **asdict(editor_of(question)),
                    "action": {"name": SAVE, "payload": dict(payload)},
                    "sessionId": tab.session.id,
                }
            )

    async def save_edit(
        self, session: WebsocketSession, payload: Mapping[str, Any]
    ) -> asyncio.Task[None] | str:
        """Apply an edited text as the decision, and return the turn that continues with it.

        If the text is invalid, return the problem for the editor; the question then stays open.
        """
        thread = session.thread_id
        self.tab(session)
        async with self._start_locks[thread]:
            if thread in self._running:
                return RUNNING
            memory = self.threads.memory(thread)
            question = pending(self._turns, memory)
            if self._action_for(memory, EDIT, payload) is None or question is None:
                return OUTDATED
            try:
                decision = decision_for(question, str(payload.get("text", "")))
                decide(self._turns, memory, decision, to=question.key)
            except MergepointError as error:
                return str(error)
            act = self._resume(memory)
            return self._begin(thread, memory, ids_of(self.threads.rows(thread)), act)

    async def stop(self, thread: str) -> None:
        """Stop a thread's turn and everything that runs for it, or take it back from the queue."""
        running = self._running.get(thread)
        if running is not None and running.queued and self._queue is not None:
            # The turn is followed until the queue doesn't have it any more.
            if not await self._queue.take_back(running.memory) and thread in self._running:
                for tab in self._tabs_of(thread):
                    await tab.toast(WITH_WORKER)
                    await tab.busy(working=True)
            return
        if running is not None and running.task is not None and not running.task.cancelling():
            running.task.cancel()

    async def load(self, session: WebsocketSession) -> None:
        """Send the buttons to a tab that loads a thread; stored messages aren't sent again."""
        thread, tab = session.thread_id, self.tab(session)
        try:
            async with self._start_locks[thread]:
                self._follow_again(thread)
            steps = self.threads.steps(thread)
        # The loaded thread shows the error itself.
        except MergepointError:
            return
        tab.mark_sent(steps)
        await tab.show_buttons(steps)
        if thread in self._running:
            self._start_in_background(self._join(thread, tab))

    async def _join(self, thread: str, tab: TabView) -> None:
        """Subscribe a tab to the running turn once Chainlit has assigned the thread to it."""
        # Chainlit sends the stored steps after this callback returns; updates sent earlier would be
        # overwritten.
        await asyncio.sleep(5 * _UPDATE_SECONDS)
        if thread in self._running:
            await tab.busy(working=True)
        await self._update_tabs(thread)

    def _action_for(
        self, memory: SessionMemory, name: str, payload: Mapping[str, Any]
    ) -> Act | str | None:
        """Return the action of a click, or None if the click is outdated."""
        if payload.get("turn") != memory.turn:
            return None
        status = self.threads.status(memory)
        if status.elsewhere or status.worker:
            return None
        if name == GO_ON:
            ended = memory.past.ended(memory.turn)
            failed = ended is not None and ended.error is not None and not ended.cancelled
            free = failed or (memory.unfinished is not None and not status.questions)
            return self._resume(memory) if free else None
        if memory.unfinished is None:
            return None
        question = pending(self._turns, memory)
        if payload.get("key") != (question.key if question else None):
            return None
        if name == APPROVE and question is not None:
            decide(self._turns, memory, "approve", to=question.key)
            return self._resume(memory)
        return name

    def _resume(self, memory: SessionMemory) -> Act:
        """Return the act that resumes a turn: here, or on a worker."""
        queue = self._queue
        if queue is None:
            return Act(lambda live: go_on(self._turns, memory, listeners=live.listeners))

        async def hand_over(live: LiveTurn) -> None:
            try:
                await queue.put(memory)
            except MergepointError as error:
                for tab in self._tabs_of(memory.session_id):
                    await tab.toast(f"The turn wasn't added to the queue: {error}")
                raise
            await queue.follow(memory, live.receive)

        return Act(hand_over, queued=True)

    def _follow_again(self, thread: str) -> None:
        """Follow a turn that is in the queue, as after a restart of the server."""
        queue = self._queue
        if queue is None or thread in self._running:
            return
        memory = self.threads.memory(thread)
        status = self.threads.status(memory)
        if not status.worker:
            return

        async def follow(live: LiveTurn) -> None:
            # As in `_join`: updates that are sent now would be overwritten.
            await asyncio.sleep(5 * _UPDATE_SECONDS)
            await queue.follow(memory, live.receive)

        ids = ids_of(self.threads.rows(thread))
        self._begin(thread, memory, ids, Act(follow, queued=True))
        self._running[thread].live.receive(status.worker, status.records)

    def _begin(
        self, thread: str, memory: SessionMemory, ids: ChainlitIds, act: Act
    ) -> asyncio.Task[None]:
        # The task gets an empty context: Chainlit's context of one tab must not leak into the turn.
        running = self._running[thread] = _Running(LiveTurn(memory), memory, ids, act.queued)
        running.task = asyncio.create_task(self._run(thread, running, act), context=Context())
        return running.task

    async def _run(self, thread: str, running: _Running, act: Act) -> None:
        """Run a turn and update the tabs until it ends. The session records its errors.

        Errors are raised only if the session recorded nothing: it took no message.
        """
        before = _last_end(running.memory)
        updates = asyncio.create_task(self._update_while_running(thread, running))
        for tab in self._tabs_of(thread):
            await tab.busy(working=True)
        await self._send_mark(thread)
        try:
            await act.work(running.live)
        except asyncio.CancelledError:
            LOG.info("a turn of %s was stopped", thread)
            self._store_stopped(running)
        except Exception as error:
            LOG.warning("a turn of %s ended with %s: %s", thread, type(error).__name__, error)
            if _last_end(running.memory) == before:
                raise
        finally:
            # Stop the periodic updates first: the last update below must not be overtaken.
            updates.cancel()
            await asyncio.wait({updates})
            del self._running[thread]
            await self._update_tabs(thread, running.ids)
            for tab in self._tabs_of(thread):
                await tab.busy(working=False)
            await self._send_mark(thread)

    def _store_stopped(self, running: _Running) -> None:
        """Store the output of a stopped program: its run has no record of it."""
        memory, artifacts = running.memory, self.threads.view.places.artifacts
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
                LOG.warning("can't store the output of the stopped %s: %s", one.path, error)

    async def _send_mark(self, thread: str) -> None:
        """Send the thread's status to all tabs of its owner, for their thread lists."""
        mark = self.threads.mark(thread)
        owners = {one.owner for one in self._tabs_of(thread)}
        for tab in [*self._tabs.values()]:
            if tab.owner in owners:
                await tab.post({"mergepoint": "mark", "thread": thread, "mark": mark})

    async def _update_while_running(self, thread: str, running: _Running) -> None:
        while True:
            await running.live.changed.wait()
            # Clear before reading the state: a change during the update must cause another one.
            running.live.changed.clear()
            await self._update_tabs(thread, running.ids)
            await asyncio.sleep(_UPDATE_SECONDS)

    async def _update_tabs(self, thread: str, ids: ChainlitIds | None = None) -> None:
        """Send the current state of a thread's last turn to all of its tabs."""
        memory = self.threads.memory(thread)
        ids = ids or ids_of(self.threads.rows(thread))
        status = self.threads.status(memory)
        steps = self.threads.view.turn(memory, memory.turn, status, ids)
        for tab in self._tabs_of(thread):
            await tab.show(steps, turn=memory.turn)

    def _tabs_of(self, thread: str) -> list[TabView]:
        """Return the views of a thread's tabs, and drop those that Chainlit has closed."""
        for key in [*self._tabs]:
            if WebsocketSession.get_by_id(key) is not self._tabs[key].session:
                del self._tabs[key]
        return [one for one in self._tabs.values() if one.session.thread_id == thread]

    def _status(self, thread: str) -> ThreadStatus | None:
        running = self._running.get(thread)
        return None if running is None else running.live.status()

    def _start_in_background(self, work: Any) -> None:
        # The event loop keeps only weak references to tasks.
        task = asyncio.create_task(work, context=Context())
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _last_end(memory: SessionMemory) -> tuple[int, str]:
    """Return the last turn and the id of its end, which show whether a session changed."""
    ended = memory.past.ended(memory.turn)
    return memory.turn, ended.id if ended else ""
