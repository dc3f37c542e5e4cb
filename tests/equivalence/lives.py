"""A case's run with a journal on disk: left alone, killed and resumed, or replayed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from tests.equivalence.engines import RUN, SEED

from mergepoint.core.errors import GateOpen
from mergepoint.core.merge import State
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import TRANSCRIPT, arun_generation, run_generation
from mergepoint.journal.call_records import CallRecord, is_tool
from mergepoint.journal.file_journal import JOURNAL, FileStore
from mergepoint.journal.journal_check import check_run
from mergepoint.journal.replay import replay
from mergepoint.journal.transcript import read_transcript, transcript_of
from mergepoint.testing.fakes import Killed, KillingStore, When
from mergepoint.testing.random_trees import Case
from mergepoint.testing.tree_functions import AnswerTable, DecisionFunction, Line, TableModel
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Loop, Node, Order, root_path, walk

WHENS: Sequence[When] = ("before", "torn", "after")
MOST_KILLS = 4


Found = tuple[Sequence[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Way:
    """A form of graph, sync or async; `bare` as a compiled graph with a journal of its own."""

    form: Form
    on_loop: bool
    bare: bool = False

    def __str__(self) -> str:
        told = f"{self.form}, async" if self.on_loop else self.form
        return f"bare {told}" if self.bare else told

    def run(self, case: Case, *, resume: bool = False, **about: Any) -> Found:
        """Begin a case's run or go on with it, and give its messages and outputs."""
        given = {"messages": list(case.messages), "inputs": dict(case.inputs)}
        if self.bare:
            return self._invoked(case.tree, given, **about)
        if resume:
            about["resume"] = RUN
        else:
            about |= {"ctx": RunContext(run_id=RUN, seed=SEED), **given}
        found = self.generate(case.tree, **about)
        return found.messages, found.outputs

    def _invoked(self, tree: Node, given: Any, *, runs: Any, **about: Any) -> Found:
        graph = compile_graph(tree, form=self.form, journal=runs, **about)
        config: Any = {"configurable": {"mergepoint_run_id": RUN, "mergepoint_seed": SEED}}
        if self.on_loop:
            found = asyncio.run(graph.ainvoke(given, config))
        else:
            found = graph.invoke(given, config)
        return found["messages"], found["outputs"]

    def generate(self, tree: Node, **about: Any) -> Any:
        """Run a tree with a journal."""
        if self.on_loop:
            return asyncio.run(arun_generation(tree, form=self.form, **about))
        return run_generation(tree, form=self.form, **about)


WAYS = tuple(Way(form, on_loop) for form in ("subgraphs", "fused") for on_loop in (False, True))
ALL_WAYS = (*WAYS, *(replace(way, bare=True) for way in WAYS))


Key = tuple[str, str, str]
"""A call: its path, its kind, and its prompt behind so many messages.

An execution of a tool is inside of its step, as what a function asks is inside of the function.
"""


@dataclass(frozen=True)
class End:
    """How a run ended: its whole messages and its outputs, or type and path of the error."""

    messages: tuple[str, ...] = ()
    outputs: Mapping[str, Any] = field(default_factory=dict)
    error: tuple[str, str] | None = None


@dataclass(frozen=True)
class Left:
    """What a run left: its end; the answered calls, without times; the paths that it paid for.

    `odd` says what no run may leave behind.
    """

    end: End
    answered: Mapping[Key, CallRecord]
    called: tuple[str, ...]
    odd: tuple[str, ...]


class NoAnswers(AnswerTable):
    """A table that refuses every call."""

    def __call__(self, path: str, seen: Sequence[Line]) -> str:
        """Refuse."""
        raise AssertionError(f"a model was called at {path}")


def left_alone(case: Case, way: Way, folder: Path) -> Left:
    """Run a case from its start to its end."""
    model = TableModel(table=case.answers)
    end = _ended(case, way, model=model, runs=folder)
    return _left(case, folder, end, model)


def gone_on(case: Case, way: Way, folder: Path) -> Left:
    """Resume what there is of a case's run."""
    model = TableModel(table=case.answers)
    end = _ended(case, way, model=model, runs=folder, resume=True)
    return _left(case, folder, end, model)


def replayed(case: Case, way: Way, folder: Path, *, of: Path) -> Left:
    """Replay a run strictly, without a model; where none was begun, run it."""
    if not _begun(of):
        return left_alone(case, way, folder)
    model = TableModel(table=NoAnswers(case.answers.seed))
    end = _ended(case, way, model=model, runs=folder, replay=of / RUN)
    return _left(case, folder, end, model)


@dataclass
class Lives:
    """A run that is killed at random records, and resumed until it is done.

    `records` is how many it will have, `deciders` are by their paths in the tree those who answer
    at gates where nobody is: the run ends open there, and is resumed with what they say.

    `kills` counts when it was killed, `asked` are the gates that it ended open at, and `again` the
    calls that were paid once more though they were on record.
    """

    case: Case
    way: Way
    folder: Path
    chance: random.Random
    records: int
    deciders: Mapping[str, DecisionFunction] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    asked: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    _answers: dict[str, Any] = field(default_factory=dict)
    _known: set[Key] = field(default_factory=set)

    def lived(self) -> Left:
        """Run to the end."""
        model = TableModel(table=self.case.answers)
        for _ in range(self.chance.randint(1, MOST_KILLS + len(self.deciders))):
            self._cut_short(model)
        end = None
        while end is None:
            end = self._life(model, self.folder)
        return _left(self.case, self.folder, end, model)

    def _cut_short(self, model: TableModel) -> None:
        """Live once more, unless there is so little left that it comes to its end."""
        when = self.chance.choice(WHENS)
        left = max(1, self.records - len(self._known))
        store = KillingStore(FileStore(self.folder), at=self.chance.randint(1, left), when=when)
        try:
            self._life(model, store)
        except Killed:
            self.kills[when] += 1

    def _life(self, model: TableModel, runs: Any) -> End | None:
        """Begin, or go on; None where it ended open."""
        about: dict[str, Any] = {"model": model, "runs": runs}
        if self.deciders:
            about["answerer"] = self._answers
        earlier = len(model.saw)
        try:
            return _ended(self.case, self.way, resume=_begun(self.folder), **about)
        except GateOpen as error:
            order = Order(self.case.tree, root_path(self.case.tree))
            for question in error.questions:
                self.asked.append(question.path)
                decider = self.deciders[order.static(question.path)]
                self._answers[question.path] = decider(question)
            return None
        finally:
            known = {(path, prompt) for path, _, prompt in self._known}
            called = [(path, lines[-1][1]) for path, lines in model.saw[earlier:]]
            self.again += [path for path, prompt in called if (path, prompt) in known]
            records = FileStore(self.folder).read(RUN)[1] if _begun(self.folder) else ()
            self._known = {_key(record) for record in records if record.answered}


def unattended(tree: Node) -> tuple[Node, dict[str, DecisionFunction]]:
    """Return a tree at whose gates nobody is, and by path those who were."""
    deciders = {
        path: node.decide
        for path, node in walk(tree)
        if isinstance(node, Gate) and isinstance(node.decide, DecisionFunction)
    }
    return _emptied(tree), deciders


def _emptied(node: Node) -> Node:
    if isinstance(node, Gate):
        return replace(node, node=_emptied(node.node), decide=None)
    if isinstance(node, Block | Loop):
        return replace(node, nodes=[_emptied(child) for child in node.nodes])
    return node


def _ended(case: Case, way: Way, **about: Any) -> End:
    try:
        messages, outputs = way.run(case, **about)
    except GateOpen:
        raise
    except Exception as error:  # noqa: BLE001  (every error is compared)
        return End(error=(type(error).__name__, str(getattr(error, "pipeline_path", ""))))
    return _end(messages, outputs)


def _end(messages: Sequence[Any], outputs: Mapping[str, Any]) -> End:
    return End(tuple(str(message.model_dump()) for message in messages), dict(outputs))


def _left(case: Case, folder: Path, end: End, model: TableModel) -> Left:
    called = tuple(path for path, _ in model.saw)
    if not _begun(folder):  # a graph that is not given what it takes begins no run
        return Left(end, {}, called, ())
    header, records = FileStore(folder).read(RUN)
    answered = [record for record in records if record.answered]
    known = {_key(record): _timeless(record) for record in answered}
    odd = []
    if len(known) < len(answered):
        odd.append("a call is on record twice")
    base = State(header.messages)
    again = replay(records, case.tree, base=base, inputs=header.inputs, seed=header.seed).state
    if end.error is None and (again is None or _end(again.messages, again.outputs) != end):
        odd.append(f"the journal replays to {again}")
    transcript = transcript_of(header, records)
    if (folder / RUN / TRANSCRIPT).exists():  # a graph alone leaves none
        transcript = read_transcript(folder / RUN / TRANSCRIPT)
    told = (*transcript.records, *transcript.inner)
    if {_key(record): _timeless(record) for record in told} != known:
        odd.append("the transcript is not what is on record")
    odd += map(str, check_run(folder / RUN, journal=JOURNAL, transcript=TRANSCRIPT))
    return Left(end, known, called, tuple(odd))


def _begun(folder: Path) -> bool:
    return (folder / RUN / JOURNAL).exists()


def _key(record: CallRecord) -> Key:
    kind = "inner" if is_tool(record) else record.kind
    return record.path, kind, f"{record.context}: {HumanMessage(record.prompt).text}"


def _timeless(record: CallRecord) -> CallRecord:
    said = tuple(_unnamed(message) for message in record.messages)
    return replace(record, started=0.0, ended=0.0, source="live", messages=said)


def _unnamed(message: BaseMessage) -> BaseMessage:
    """Return a message without the random id that LangChain gives to an answer of a model."""
    if not str(message.id).startswith("lc_run-"):
        return message
    return message.model_copy(update={"id": None})


def leaves(case: Case) -> int:
    """Count the steps and Calls of a case."""
    return sum(isinstance(node, Step | Call) for _, node in walk(case.tree))


def unlike(who: str, found: Left, expected: Left, *, inside: bool = True) -> Iterator[str]:
    """Yield what a run left otherwise than another; without `inside` of functions only the outside.

    (A function that is on record is not run in a replay, and asks no model.)
    """
    if found.end != expected.end:
        yield f"{who} ended with\n  {found.end}\n  and not\n  {expected.end}"
    for key in sorted(found.answered.keys() | expected.answered.keys()):
        one, other = found.answered.get(key), expected.answered.get(key)
        if one != other and (inside or key[1] != "inner"):
            yield f"{who}, the record of {key}:\n  {one}\n  and not\n  {other}"


def faults(seed: int, case: Case, folder: Path, counts: Counter[str]) -> list[str]:
    """Return what is wrong with the lives of a case; nothing when all is as it should be."""
    turn = counts["trees"] % len(ALL_WAYS)
    way, other = ALL_WAYS[turn], ALL_WAYS[turn - 1]
    live = left_alone(case, way, folder / "live")
    lives = Lives(case, way, folder / "lives", random.Random(seed), len(live.answered))  # noqa: S311
    resumed = lives.lived()
    strict = replayed(case, other, folder / "strict", of=folder / "lives")
    found = [*live.odd, *resumed.odd, *strict.odd, *unlike("resumed", resumed, live)]
    found += [f"{path} was paid again" for path in lives.again]
    found += [f"{path} was paid in a replay" for path in strict.called]
    if live.end.error is None:
        found += unlike("replayed", strict, live, inside=False)
    elif strict.end.error is None or strict.end.error[1] != live.end.error[1]:
        found.append(f"the replay ended with {strict.end}, and not at {live.end.error[1]}")
    counts += Counter({"trees": 1, "that fail": live.end.error is not None, str(way): 1})
    counts += Counter({f"kills {when}": number for when, number in lives.kills.items()})
    inside = sum(kind == "inner" for _, kind, _ in live.answered)
    counts += Counter({"records": len(live.answered), "calls": len(live.called)})
    counts += Counter({"calls inside of functions": inside})
    return [f"seed {seed}, {way}: {one}" for one in found]


def open_faults(seed: int, case: Case, folder: Path, counts: Counter[str]) -> list[str]:
    """Return what is wrong with the lives of a case at whose gates nobody is."""
    turn = counts["open trees"] % len(WAYS)
    way, other = WAYS[turn], WAYS[turn - 1]
    live = left_alone(case, way, folder / "live")
    tree, deciders = unattended(case.tree)
    case = replace(case, tree=tree)
    chance = random.Random(seed)  # noqa: S311
    lives = Lives(case, way, folder / "lives", chance, len(live.answered), deciders)
    resumed = lives.lived()
    strict = replayed(case, other, folder / "strict", of=folder / "lives")
    found = [*live.odd, *resumed.odd, *strict.odd]
    found += unlike("resumed", resumed, live)
    found += unlike("replayed", strict, live, inside=False)
    found += [f"{path} was paid again" for path in lives.again]
    decided = sorted(path for path, kind, _ in live.answered if kind == "gate")
    if sorted(lives.asked) != decided:
        found.append(f"asked at {lives.asked}, decided at {decided}")
    counts += Counter({"open trees": 1, "answers": len(decided), "open kills": lives.kills.total()})
    return [f"seed {seed}, {way}: {one}" for one in found]
