"""A run with gates in a process of its own: it tells what is asked, and is told the answers.

There are six ways for an answer to come in. `journal`: who answers writes it into the journal, and
the graph goes on. `told`: the process of the run is told it, and does the same. `answers`: it gives
it to `resume_graph`. `command`: it invokes the graph with `Command(resume=...)`. `resume`: it gives
it to `run_generation(resume=...)`. `person`: a function that `run_generation` was given waits for
it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command, Durability
from tests.crash.doomed import AskingModel, Line, Order, Tell, ended, kept, telling
from tests.crash.trees import gated

from mergepoint import (
    GateOpen,
    Node,
    Question,
    Recorder,
    RunContext,
    compile_graph,
    resume_graph,
    run_generation,
)
from mergepoint.engine.compiler import Graph
from mergepoint.journal.file_journal import store_at
from mergepoint.journal.replay import answer_questions
from mergepoint.journal.stores import Store

Saver = BaseCheckpointSaver[Any]
Kind = Literal["sqlite", "postgresql", "none"]
Way = Literal["journal", "told", "answers", "command", "resume", "person"]
WAYS: Mapping[Kind, tuple[Way, ...]] = {
    "sqlite": ("journal", "told", "answers", "command"),
    "postgresql": ("journal", "told", "answers", "command"),
    "none": ("journal", "told", "answers", "resume", "person"),
}


@dataclass(frozen=True, kw_only=True)
class Attended(Order):
    """What a process is to do, where its checkpoints are, and how answers come in."""

    saver: Kind
    checkpoints: str
    way: Way
    durability: Durability


def attend(order: Attended, pipe: Connection) -> None:
    """Run the tree with gates to its end, and tell what is asked on the way."""

    def work(tell: Tell) -> Any:
        if order.way in ("resume", "person"):
            return _Generation(order, pipe, tell).ran()
        with saver_at(order.saver, order.checkpoints) as saver:
            return _Compiled(order, pipe, tell, saver).ran()

    telling(Tell(pipe), work)


@contextmanager
def saver_at(kind: Kind, address: str) -> Iterator[Saver | None]:
    """Yield the saver at an address."""
    if kind == "none":
        yield None
    elif kind == "sqlite":
        with SqliteSaver.from_conn_string(address) as saver:
            yield saver
    else:
        from langgraph.checkpoint.postgres import PostgresSaver  # the others do without it

        with PostgresSaver.from_conn_string(address) as saver:
            yield saver


class _Run:
    """What is the same for graphs and for `run_generation`."""

    def __init__(self, order: Attended, pipe: Connection, tell: Tell) -> None:
        ask = Line(order.url, order.attempt, tell)
        self.order = order
        self.pipe = pipe
        self.tell = tell
        self.tree: Node = gated(ask)
        self.model = AskingModel(ask=ask)
        self.store: Store = store_at(order.runs)

    def answers(self, paths: Iterable[str]) -> Mapping[str, Any]:
        """Return which questions are open, and wait for answers to some of them."""
        self.tell("open", tuple(paths))
        answers: Mapping[str, Any] = self.pipe.recv()
        return answers

    def write(self, answers: Mapping[str, Any]) -> None:
        """Write answers into the journal, then tell that they are taken."""
        answer_questions(self.store, self.order.run, self.tree, answers)
        for path in answers:
            self.tell("kept", path)


class _Compiled(_Run):
    """A compiled graph with a journal, which stops at gates by `interrupt()`."""

    def __init__(self, order: Attended, pipe: Connection, tell: Tell, saver: Saver | None) -> None:
        super().__init__(order, pipe, tell)
        self._graph: Graph = compile_graph(
            self.tree,
            model=self.model,
            checkpointer=saver,
            form=order.form,
            journal=self.store,
        )
        ids = {"thread_id": order.run, "mergepoint_run_id": order.run}
        self._config: Any = {"configurable": ids, "callbacks": [Recorder(on_event=kept(tell))]}
        self._by_thread = saver is not None and order.way != "answers"

    def ran(self) -> Any:
        """Go on until no question is open; give the end."""
        state = self._begun()
        while pending := {one.value["path"]: one.id for one in state.get("__interrupt__", ())}:
            answers = self.answers(pending)
            if self.order.way == "command":
                resume = {pending[path]: answers[path] for path in answers}
                state = self._invoked(Command(resume=resume))
            elif self.order.way == "answers":
                state = resume_graph(self._graph, self._config, answers=answers)
            else:
                if self.order.way == "told":
                    self.write(answers)
                state = self._gone_on()
        return ended(state["messages"], state["outputs"])

    def _begun(self) -> dict[str, Any]:
        """Begin the run, or go on with it, as a server does that does not know of a crash."""
        if self._by_thread:
            found = self._graph.get_state(self._config)
            if found.values and not found.next:
                return dict(found.values)
            return self._invoked(None if found.next else {"messages": []})
        if not self.store.has(self.order.run):
            return self._invoked({"messages": []})
        return self._gone_on()

    def _gone_on(self) -> dict[str, Any]:
        if self._by_thread:
            return self._invoked(None)
        return resume_graph(self._graph, self._config)

    def _invoked(self, given: Any) -> dict[str, Any]:
        durability = self.order.durability if self._graph.checkpointer else None
        return dict(self._graph.invoke(given, self._config, durability=durability))


class _Generation(_Run):
    """A run of `run_generation`, which raises where nobody answers."""

    def ran(self) -> Any:
        """Go on until no question is open; give the end."""
        answerer: Any = _Waiting(self.pipe, self.tell) if self.order.way == "person" else None
        while True:
            try:
                return self._run(answerer)
            except GateOpen as error:
                answerer = self.answers(question.path for question in error.questions)

    def _run(self, answerer: Any) -> Any:
        run = self.order.run
        done = run_generation(
            self.tree,
            model=self.model,
            ctx=RunContext(run_id=run, recorder=Recorder(on_event=kept(self.tell))),
            runs=self.store,
            form=self.order.form,
            resume=run if self.store.has(run) else None,
            answerer=answerer,
        )
        return ended(done.messages, done.outputs)


class _Waiting:
    """A function that answers at gates, once somebody outside has decided."""

    def __init__(self, pipe: Connection, tell: Tell) -> None:
        self._pipe = pipe
        self._tell = tell
        self._answers: dict[str, Any] = {}
        self._news = threading.Condition()
        threading.Thread(target=self._hear, daemon=True).start()

    def __call__(self, question: Question) -> Any:
        """Tell that it is asked, and wait for the answer."""
        self._tell("open", (question.path,))
        with self._news:
            self._news.wait_for(lambda: question.path in self._answers)
            return self._answers[question.path]

    def _hear(self) -> None:
        while True:
            answers = self._pipe.recv()
            with self._news:
                self._answers.update(answers)
                self._news.notify_all()
