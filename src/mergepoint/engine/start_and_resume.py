"""The start of a run: its journal, reused answers, and checks that a resumed run is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from mergepoint.core.errors import Fault, StepError, TreeError
from mergepoint.core.paths import SEPARATOR, is_file, join
from mergepoint.core.text import clean
from mergepoint.engine.budgets import Spending
from mergepoint.engine.callbacks import (
    Recorder,
    ambient,
    recorders_of,
    with_recorder,
    without_recorders,
)
from mergepoint.engine.context import RunContext
from mergepoint.engine.leaf_calls import TreeCalls
from mergepoint.engine.run_constants import RUN_ID, THREAD, Facts, unused_run_id, unused_run_ids
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.file_journal import JOURNAL, FileStore
from mergepoint.journal.fingerprint import Digests, differing_fields, field_digests
from mergepoint.journal.recorded_answers import (
    RecordedAnswers,
    ReplaySource,
    ReuseSource,
    answers_of,
)
from mergepoint.journal.stores import (
    MemoryJournal,
    RunHeader,
    RunJournal,
    Store,
    with_hidden_digests,
)
from mergepoint.models.budget import NestedBudget
from mergepoint.models.requests import sendable_messages, whole_messages
from mergepoint.models.responses import cleaned
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Node, walk
from mergepoint.tree.prompts import Template
from mergepoint.tree.transform import outline


def changes(
    header: RunHeader, requests: Mapping[str, str], outlined: Mapping[str, Any]
) -> list[Fault]:
    """Return the differences between a tree and the tree of a recorded run, by path."""
    path, now, before = str(outlined["path"]), requests, header.requests
    fix = _FIX
    faults = [
        Fault(path, f"is another step than the run began with{_named(before[path], now[path])}")
        for path in now
        if path in before and now[path] != before[path]
    ]
    faults += [Fault(path, f"is new since the run began{fix}") for path in now.keys() - before]
    faults += [Fault(path, f"is gone since the run began{fix}") for path in before - now.keys()]
    if not faults and outlined != header.tree:
        faults.append(Fault(path, f"merges or captures differ{fix}"))
    return faults


_FIX = "; start a new run that reuses the answers that still match (--reuse)"


def _named(before: str, now: str) -> str:
    """Return the fields of a step that differ, and how to continue."""
    names = differing_fields(before, now)
    said = f": its {' and '.join(names)} {'differs' if len(names) == 1 else 'differ'}"
    back = ", or pass the model that the run began with (--model)" if names == ["model"] else ""
    return f"{said if names else ''}{_FIX}{back}"


def statics(tree: Node, path: str, calls: TreeCalls) -> dict[str, str]:
    """Return the digests of each step's texts and model settings, by path.

    A prompt function counts by its qualified name, because its text is known only when it runs.
    """
    return {
        at: _digest(node, calls.fields(node, at))
        if isinstance(node, Step)
        else field_digests({"target": [node.label, node.version], "args": _args(node)})
        for at, node in walk(tree, path)
        if isinstance(node, Step | Call)
    }


def _args(call: Call) -> Any:
    return None if call.args is None else {name: _value(arg) for name, arg in call.args.items()}


def _value(arg: Any) -> Any:
    return _source(arg) if isinstance(arg, Template) else arg


def _digest(step: Step, fields: Mapping[str, Any]) -> str:
    examples = [
        [example.type, example.content] if isinstance(example, BaseMessage) else list(example)
        for example in step.examples
    ]
    texts = {"prompt": _source(step.prompt), "system": _source(step.system), "examples": examples}
    return field_digests({**fields, **texts})


def _source(text: str | Template | Callable[..., Any] | None) -> Any:
    if isinstance(text, Template):
        return {"template": text.text, "defaults": dict(text.defaults)}
    if text is None or isinstance(text, str):
        return text
    kind: Any = text if hasattr(text, "__qualname__") else type(text)
    return {"function": f"{kind.__module__}.{kind.__qualname__}"}


EXCLUSIVE = "resume, reuse and replay exclude each other; give one"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """The inputs of a run."""

    run_id: str
    created_at: datetime
    seed: int
    messages: Sequence[BaseMessage]
    inputs: Mapping[str, Any]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def differs(self, header: RunHeader) -> list[str]:
        """Return the names of inputs that differ from those of a recorded run.

        Masked inputs are compared by their digest. Ids of messages don't count, because a graph
        sets new ids on messages without one.
        """
        said = Digests()
        asked, known = (
            [said.of(message) for message in messages]
            for messages in (sendable_messages(self.messages), header.messages)
        )
        same = {
            "inputs": said.state((), clean(dict(self.inputs))) == said.state((), header.inputs),
            "messages": asked == known,
            "seed": self.seed == header.seed,
        }
        hidden = header.differing(self.inputs, self.messages) if header.hidden else []
        return [
            name
            for name, same_there in same.items()
            if name in hidden or (not same_there and name not in header.masked)
        ]


@dataclass(frozen=True, slots=True)
class Origin:
    """The run whose answers another run reuses, by folder or by id in the same store."""

    reuse: Path | str | None = None
    replay: Path | str | None = None

    def __post_init__(self) -> None:
        if self.reuse is not None and self.replay is not None:
            raise StepError(EXCLUSIVE)

    def __bool__(self) -> bool:
        return self.reuse is not None or self.replay is not None

    def answers(self, store: Store | None) -> RecordedAnswers | None:
        """Return the recorded answers. Raises JournalError if there is no such run."""
        named = self.replay if self.replay is not None else self.reuse
        if named is None:
            return None
        store, run_id = named_run(store, named)
        records = store.read(run_id)[1]
        return ReuseSource(records) if self.replay is None else ReplaySource(records)


@dataclass(frozen=True)
class Journaling:
    """The store for the journals of one tree's runs, with the tree and its compiled calls."""

    store: Store
    tree: Node
    path: str
    calls: TreeCalls

    @cached_property
    def outlined(self) -> Mapping[str, Any]:
        """Return the outline of the tree, which is the same in all of its runs."""
        return outline(self.tree, self.path)

    @cached_property
    def requests(self) -> Mapping[str, str]:
        """Return the digests of the static parts of each step, which are the same in all runs."""
        return statics(self.tree, self.path, self.calls)

    def stored_in(self, store: Store) -> Journaling:
        """Return the same journals in another store, with what is computed for the tree."""
        other = replace(self, store=store)
        # `replace` makes a new instance without cached properties: they depend on the tree only.
        vars(other).update(outlined=self.outlined, requests=self.requests)
        return other

    def begin(self, given: RunInputs) -> RunJournal:
        """Create the journal of a new run. Raises JournalError if its id was used before."""
        messages = whole_messages(given.messages)
        sendable = [cleaned(message) for message in messages]
        inputs = clean(dict(given.inputs))
        changed = {
            "inputs": inputs != given.inputs,
            "messages": any(names for _, names in sendable),
        }
        header = RunHeader(
            run_id=given.run_id,
            created_at=given.created_at,
            seed=given.seed,
            inputs=inputs,
            messages=tuple(message for message, _ in sendable),
            cleaned=tuple(name for name, is_changed in changed.items() if is_changed),
            tree=self.outlined,
            requests=self.requests,
            meta=dict(given.meta),
        )
        return self.store.create(with_hidden_digests(header, self.store.redact))

    def resume(self, run_id: str, given: RunInputs | None = None) -> RunJournal:
        """Open the journal of a run to resume it.

        Raises:
            TreeError: The tree differs from the one of the run; the error lists the paths.
            OtherInputsError: The inputs differ.
            JournalError: The recorded inputs are masked and were not passed again.
        """
        journal = self.store.open(run_id)
        header = journal.header
        try:
            if given is not None:
                self._check_same(given, header)
            if header.masked and given is None:
                raise JournalError(self._needed(header))
            if faults := changes(header, self.requests, self.outlined):
                raise TreeError(faults)
        # A refused resume must not keep the journal locked.
        except BaseException:
            journal.close()
            raise
        return journal

    def _needed(self, header: RunHeader) -> str:
        names = header.hidden.get("names", ())
        options = " ".join(f"--input {name}=VALUE" for name in names)
        return (
            f"run {header.run_id!r} in {self.store} cannot be resumed without its "
            f"{' and '.join(header.masked)}, which were masked before they were written (they "
            "contained text that looks like a key, or that the redact hook changed); pass the "
            f"same again ({options or 'inputs=, messages='}); they are checked by a digest"
        )

    def begin_or_resume(self, given: RunInputs) -> RunJournal:
        """Start a run, or resume the run of its id if that had the same inputs.

        Raises the errors of `begin` and `resume`, and OtherInputsError also while another process
        writes that run.
        """
        # Tried first, and not only if the store has no such run: a new run is the usual case, and
        # another task or process may begin it between a look and this.
        try:
            return self.begin(given)
        except JournalError:
            if not self.store.has(given.run_id):
                raise
        # Tasks of one host may run the graph at once, each with messages of its own.
        if self.store.held(given.run_id):
            self._check_same(given, self.store.read(given.run_id)[0])
        return self.resume(given.run_id, given)

    def _check_same(self, given: RunInputs, header: RunHeader) -> None:
        if names := given.differs(header):
            raise OtherInputsError(
                f"run {header.run_id!r} in {self.store} began with other {' and '.join(names)}; "
                "pass the same to resume it, or give the new run another id"
            )


class OtherInputsError(StepError):
    """An error: a run of the same id had other inputs."""


def named_run(store: Store | None, run: Path | str) -> tuple[Store, str]:
    """Return the store and the id of a run, from its folder or its id.

    Raises JournalError for a folder without a journal.
    """
    if not isinstance(run, Path | str):
        raise StepError(f"a run is named by its id or its folder, not by {run!r}")
    folder = Path(run)
    if is_file(folder / JOURNAL):
        folder = folder if folder.name not in ("", "..") else folder.resolve()
        if store is None:
            return FileStore(folder.parent), folder.name
        return FileStore(folder.parent, sync=store.sync, redact=store.redact), folder.name
    if store is None:
        raise JournalError(
            f"{folder} is not a folder with a {JOURNAL}; "
            "pass a run's folder, or pass journal= as well as its id"
        )
    if len(folder.parts) > 1:
        raise JournalError(
            f"{folder} is not a folder with a {JOURNAL}; pass a run's folder, or its id in {store}"
        )
    return store, str(run)


def attach_journal(ctx: RunContext, journal: RunJournal, answers: RecordedAnswers | None) -> None:
    """Set a run's journal on a context's recorder.

    Recorded answers replace calls: first those of the journal, then `answers`.
    """
    header, records = journal.header, journal.records
    ctx.seed, ctx.created_at = header.seed, header.created_at
    ctx.earlier = ctx.recorder.journal.records
    ctx.recorder.journal = journal
    ctx.recorder.answers = answers_of(records, answers)


def detach_journal(ctx: RunContext, journal: RunJournal) -> None:
    """Close a journal. The context keeps its records and starts the next turn without answers."""
    journal.close()
    ctx.recorder.journal = MemoryJournal([*ctx.earlier, *journal.records])
    ctx.earlier = ()
    ctx.recorder.answers = None


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """The journal of a new run and the reused answers, each None if there is none."""

    journal: RunJournal | None
    answers: RecordedAnswers | None

    def close(self) -> None:
        """Close the journal."""
        if self.journal is not None:
            self.journal.close()


@dataclass(frozen=True, slots=True)
class RunStarter:
    """Start of a compiled graph's runs: their ids, journals and reused answers.

    `path` is the path of the root. `journaling` is None if runs are not recorded.
    """

    path: str
    spending: Spending
    journaling: Journaling | None
    origin: Origin

    @property
    def waits(self) -> bool:
        """Return whether a run opens files or a database when it starts."""
        return self.journaling is not None or bool(self.origin)

    def opened(
        self, facts: Facts, messages: list[BaseMessage], config: RunnableConfig
    ) -> OpenedRun:
        """Open the journal of a new or a recorded run. The caller closes it.

        The journal's id is the run id of the config. Without one it derives from the thread id,
        with one journal for each turn. In a host it has the host's prefix. A run inside a Call has
        its own journal, and the journal of the outer run contains only the Call.

        This blocks on files or a database. Raises the errors of opening a journal.
        """
        if self.journaling is None:
            return OpenedRun(None, self.origin.answers(None))
        # Read the answers first: if the named run does not exist, no journal is created.
        answers = self.origin.answers(self.journaling.store)
        facts = replace(facts, host=facts.around, within="")
        return OpenedRun(_journal(self.journaling, facts, messages, config), answers)

    @contextmanager
    def run(
        self,
        opened: OpenedRun,
        facts: Facts,
        messages: list[BaseMessage],
        config: RunnableConfig,
    ) -> Iterator[tuple[Facts, RunnableConfig]]:
        """Yield the facts and the config of a run, with its id and the recorder of its journal."""
        journal = opened.journal
        if journal is None:
            unused = unused_run_id(facts.run, join(facts.around, self.path), messages)
            if opened.answers is not None:
                config = with_recorder(config, Recorder(answers=opened.answers))
            yield replace(facts, run=unused), config
            return
        # A run inside a Call records into its own journal. The recorders of the outer run must not
        # see its calls: they would be recorded and charged twice.
        around = recorders_of(config) if facts.within else []
        header, records = journal.header, journal.records
        source = next((one.budget for one in around if one.budget is not None), None)
        if self.spending.limited:
            own = self.spending.ledger(records)
            source = own if source is None else NestedBudget(own, source)
        recorder = Recorder(journal, answers=answers_of(records, opened.answers), budget=source)
        options = {**config.get("configurable", {}), RUN_ID: header.run_id}
        config = {**without_recorders(config, around), "configurable": options}
        config = with_recorder(config, recorder)
        with ambient(config) if around else nullcontext():
            yield replace(facts, run=header.run_id, host=facts.around, within=""), config


def _journal(
    journaling: Journaling, facts: Facts, messages: list[BaseMessage], config: RunnableConfig
) -> RunJournal:
    options: dict[str, Any] = config.get("configurable", {})
    by_thread = not options.get(RUN_ID) and bool(options.get(THREAD))
    stem = str(options[THREAD]) if by_thread else facts.run
    if facts.host:
        stem = f"{stem}.{facts.host.replace(SEPARATOR, '.')}"
    for run_id in unused_run_ids(stem, join(facts.host, journaling.path), messages):
        given = RunInputs(
            run_id=run_id,
            created_at=datetime.now(UTC),
            seed=facts.seed,
            messages=messages,
            inputs=facts.inputs,
        )
        try:
            return journaling.begin_or_resume(given)
        except OtherInputsError:  # an earlier turn that left no message in the thread
            if not by_thread:
                raise
    raise AssertionError("there is always another id")
