"""The transcript of a run: its calls in order, their token usage and cost, and its export."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage, messages_from_dict, messages_to_dict

from mergepoint.core.errors import MergepointError
from mergepoint.core.lazy import Displayed
from mergepoint.core.merge import State, last_response
from mergepoint.core.paths import ancestors, of_first_iterations, prefixes
from mergepoint.journal.call_records import (
    RECORDS,
    CallRecord,
    is_offline,
    record_from_plain,
    record_to_plain,
    sound_usage,
    to_json_value,
)
from mergepoint.journal.checked_lines import JournalFileError, open_regular, write_whole
from mergepoint.journal.recipe_records import error_of_end, is_recipe, recipe_end
from mergepoint.journal.recorded_answers import effective_records, full_path_of, pending
from mergepoint.journal.redact import Redact, encode_safe
from mergepoint.journal.replay import Replay, ViewStore, replay
from mergepoint.journal.rows import dataframe, row_of
from mergepoint.journal.stores import RunHeader
from mergepoint.tree.leaves import Content
from mergepoint.tree.nodes import Loop, Node, Order, walk
from mergepoint.tree.prompts import as_text
from mergepoint.tree.semantics import Messages
from mergepoint.tree.transform import from_outline, outline


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Model calls, their tokens and their cost in USD; `+` adds two.

    `cost` is the sum of the known costs. `estimated` counts calls without usage from the provider,
    whose cost is an upper bound. `unknown_cost_calls` counts those without any cost, because they
    failed or have no price.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cost: float = 0.0
    estimated: int = 0
    unknown_cost_calls: int = 0

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return _sums({"": (self, other)})[""]

    @staticmethod
    def of(record: CallRecord) -> Usage:
        """Return the usage of a call; zero for a replayed answer, or if no model was called."""
        return usage_of((record,))

    @property
    def known_cost(self) -> float | None:
        """Return the cost in USD, or None if no call's cost is known."""
        return None if self.calls == self.unknown_cost_calls else self.cost

    def to_json(self) -> dict[str, Any]:
        """Return the usage as JSON data."""
        return dict(zip(_NAMES, _VALUES(self), strict=True))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Usage:
        """Return the usage stored in a transcript's JSON."""
        return cls(**{name: data[name] for name in _NAMES})


_NAMES = tuple(known.name for known in fields(Usage))
_VALUES = attrgetter(*_NAMES)


def usage_of(records: Iterable[CallRecord]) -> Usage:
    """Return what all calls used together."""
    return _sums({"": [Usage(), *[used for _, used in _used(records)]]})[""]


def _used(records: Iterable[CallRecord]) -> list[tuple[str, Usage]]:
    """Return path and usage of each call of a model; a replayed answer used nothing."""
    found = []
    for record in records:
        if record.source == "live" and record.kind in ("step", "inner"):
            usage = None if record.message is None else sound_usage(record.message.usage_metadata)
            told = usage or {}
            used = Usage(
                calls=1,
                input_tokens=int(told.get("input_tokens") or 0),
                output_tokens=int(told.get("output_tokens") or 0),
                total_tokens=int(told.get("total_tokens") or 0),
                cost=record.cost or 0.0,
                estimated=int(record.error is None and usage is None),
                unknown_cost_calls=int(record.cost is None),
            )
            found.append((record.key.path, used))
    return found


def _sums(used: Mapping[str, Sequence[Usage]]) -> dict[str, Usage]:
    sums = {}
    for path, each in used.items():
        total = dict(zip(_NAMES, map(sum, zip(*map(_VALUES, each), strict=True)), strict=True))
        # Costs are whole picodollars, so this removes the error of adding floats.
        sums[path] = Usage(**{**total, "cost": round(total["cost"], 12)})
    return sums


def usage_by_path(records: Iterable[CallRecord], order: Callable[[str], Any]) -> dict[str, Usage]:
    """Return the usage at each path of a call and each path above, including everything below.

    So parents add up. Failed attempts count. `order` returns a key to sort the paths by.
    """
    found: dict[str, list[Usage]] = {}
    for at, used in _used(records):
        for path in prefixes(at):
            found.setdefault(path, []).append(used)
    return _sums({path: found[path] for path in sorted(found, key=order)})


@dataclass(frozen=True, slots=True)
class ContextSaving:
    """Words by white space: `sent` in all, `by_path` for each call, `shared` in one list.

    `shared` is what a careful LangGraph graph with one list of messages would have sent: each node
    sees the list and returns only its answer, without its prompt; parallel nodes do not see each
    other; a node with `merge="none"` writes its answer to a key of its own.
    """

    sent: int = 0
    shared: int = 0
    by_path: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        records: Iterable[CallRecord],
        seen: Replay,
        base: Sequence[BaseMessage],
        tree: Node,
        at: str,
    ) -> ContextSaving:
        """Count the words of answered steps in tree order; `at` is the path of the tree.

        Calls and gates send nothing; the messages that a Call made count where they are seen.
        """
        counted: dict[int, int] = {}

        def count(messages: Iterable[BaseMessage]) -> int:
            total = 0
            for message in messages:
                key = id(message)
                if key not in counted:
                    counted[key] = count_words(message.content)
                total += counted[key]
            return total

        by_path: dict[str, int] = {}
        shared, listed = 0, _List(tree, at, count(base))
        for record in records:
            if record.kind == "step":
                own = count(record.lead) + count_words(record.prompt)
                view = seen.views.get(record.key.path)
                by_path[record.key.path] = own + (count(view.messages) if view is not None else 0)
                shared += own + listed.seen_at(record.key.path)
                listed.add(record.key.path, count_words(record.response))
            listed.add(record.key.path, count(record.messages))
        return cls(sum(by_path.values()), shared, by_path)


class _List:
    """The number of words that a node sees in a list of messages that all nodes share."""

    def __init__(self, tree: Node, at: str, base: int) -> None:
        nodes = dict(walk(tree, at))
        self._parallel = {at for at, node in nodes.items() if getattr(node, "parallel", False)}
        self._apart = {at for at, node in nodes.items() if node.merge == "none"}
        self._loops = any(node.kind == Loop.kind for node in nodes.values())
        self._static = Order(tree, at).static if self._loops else str
        self._base = base
        self._below: dict[str, int] = {}  # words from below a path that are seen there

    def add(self, path: str, words: int) -> None:
        """Add an answer, up to the first node around it that does not share its messages."""
        for at in (path, *ancestors(path)):
            self._below[at] = self._below.get(at, 0) + words
            if at in self._apart or (self._loops and self._static(at) in self._apart):
                return
        self._base += words

    def seen_at(self, path: str) -> int:
        """Return the number of words that a node sees, not those of isolated or parallel nodes."""
        words, child = self._base, path
        for at in ancestors(path):
            static = self._static(at) if self._loops else at
            if static in self._parallel:
                words -= self._below.get(at, 0) - self._below.get(child, 0)
            if static in self._apart:
                words += self._below.get(at, 0)
            child = at
        return words


def count_words(content: Content | list[str | dict[str, object]]) -> int:
    """Count the words of a message's content; blocks other than text have none."""
    if isinstance(content, str):
        return len(content.split())
    texts = (block if isinstance(block, str) else block.get("text", "") for block in content)
    return sum(len(text.split()) for text in texts if isinstance(text, str))


def _sorted_records(records: Sequence[CallRecord], order: Callable[[str], Any]) -> dict[str, Any]:
    """Return the fields of a transcript that contain records; `order` is the sort key of a path."""
    # Models inside a Call have its path, and would count instead of it.
    stands = effective_records([one for one in records if one.kind != "inner"], full_path_of)
    answered = [record for record in stands.values() if record.error is None]
    found = {
        "records": sorted(answered, key=lambda record: order(record.key.path)),
        "inner": [one for one in records if one.kind == "inner" and one.error is None],
        "failures": [record for record in records if record.failed],
        "questions": pending(records),
    }
    # By identity: records contain mappings, which have no hash.
    known = set(map(id, chain.from_iterable(found.values())))
    found["others"] = [record for record in records if id(record) not in known]
    return dict(zip(found, map(tuple, found.values()), strict=True))


FORMAT = "mergepoint.transcript/1"

_ASIDE = RECORDS[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript(Displayed):
    """One run of one tree: its input, the result of every call, and its output.

    `records` contains answered steps, calls and decisions in tree order, one per path. The others
    are in order of time: `inner` are the calls of models by functions, `failures` failed attempts,
    `questions` those that gates wait for, and `others` the rest: answers of repeated calls, skipped
    calls, answered questions. Words are separated by white space: `words_sent` counts everything
    that was sent, `words_shared` what a careful graph with one list of messages would have sent
    (see ContextSaving).
    """

    run_id: str
    created_at: str
    seed: int
    tree: Mapping[str, Any]
    inputs: Mapping[str, Any]
    messages: tuple[BaseMessage, ...]
    records: tuple[CallRecord, ...]
    failures: tuple[CallRecord, ...]
    outputs: Mapping[str, Any]
    text: str
    error: Mapping[str, Any] | None
    words: ContextSaving = field(default_factory=ContextSaving)
    inner: tuple[CallRecord, ...] = ()
    questions: tuple[CallRecord, ...] = ()
    others: tuple[CallRecord, ...] = ()

    @classmethod
    def of(
        cls,
        records: Iterable[CallRecord],
        tree: Node,
        *,
        run_id: str,
        at: str,
        base: Sequence[BaseMessage] = (),
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        text: str = "",
        error: Mapping[str, Any] | None = None,
        created_at: datetime | None = None,
        seed: int = 0,
    ) -> Transcript:
        """Return the transcript of one run from its records."""
        own = [record for record in records if record.key.run == run_id]
        found = _sorted_records(own, Order(tree, at))
        seen = replay(own, tree, base=State(tuple(base)), at=at, inputs=inputs, seed=seed)
        return cls(
            run_id=run_id,
            created_at=(created_at or datetime.now(UTC)).isoformat(timespec="milliseconds"),
            seed=seed,
            tree=outline(tree, at),
            inputs=dict(inputs or {}),
            messages=tuple(base),
            outputs=dict(outputs or {}),
            text=text,
            error=error,
            words=ContextSaving.of(found["records"], seen, base, tree, at),
            **found,
        )

    @property
    def everything(self) -> tuple[CallRecord, ...]:
        """Return all records of the run; of a path's records, the effective one comes last."""
        return (*self.others, *self.questions, *self.failures, *self.inner, *self.records)

    @property
    def left_out(self) -> tuple[CallRecord, ...]:
        """Return the calls that were skipped because a budget was too small."""
        return tuple(record for record in self.others if record.kind == "left_out")

    @property
    def rejected(self) -> tuple[CallRecord, ...]:
        """Return the decisions that ended the run: rejections at gates with on_reject="stop"."""
        nodes = _nodes(self.tree)
        stopping = {one["path"] for one in nodes if one.get("on_reject") == "stop"}
        return tuple(
            record
            for record in self.records
            if record.kind == "gate"
            and of_first_iterations(record.path) in stopping
            and (record.value or {}).get("decision") == "reject"
        )

    @property
    def steps_with_tools(self) -> tuple[CallRecord, ...]:
        """Return the records of steps with tools."""
        steps = {one["path"] for one in _nodes(self.tree) if one.get("tools")}
        return tuple(one for one in self.records if of_first_iterations(one.path) in steps)

    @property
    def words_sent(self) -> int:
        """Return the number of words that were sent."""
        return self.words.sent

    @property
    def words_shared(self) -> int:
        """Return the number of words that a careful graph with one list would have sent."""
        return self.words.shared

    @property
    def words_by_path(self) -> Mapping[str, int]:
        """Return the number of words that were sent per call."""
        return self.words.by_path

    @property
    def model_calls(self) -> int:
        """Return the number of calls that a model answered, including those inside functions."""
        return sum(record.kind == "step" for record in self.records) + len(self.inner)

    @property
    def usage(self) -> dict[str, Any]:
        """Return the tokens that the providers counted (input, output, total) and the cost in USD.

        Failed attempts count, replayed answers do not. The cost is None if no call's cost is known.
        """
        used = usage_of(self.everything)
        return {
            "input_tokens": used.input_tokens,
            "output_tokens": used.output_tokens,
            "total_tokens": used.total_tokens,
            "cost": used.known_cost,
        }

    @property
    def usage_by_path(self) -> dict[str, Usage]:
        """Return the usage at each path and below it, in tree order, so that parents add up."""
        order = Order(from_outline(self.tree), str(self.tree["path"]))
        return usage_by_path(self.everything, order)

    @property
    def offline(self) -> bool:
        """Return whether any answer came from something that is not a language model."""
        return any(is_offline(record) for record in (*self.records, *self.inner))

    def replay(self, stored: ViewStore | None = None) -> Replay:
        """Return every call's view, in a form (see `replay`), and each message's origin."""
        base = State(self.messages)
        return replay(
            self.everything,
            from_outline(self.tree),
            base=base if stored is None else stored.made(base),
            at=str(self.tree["path"]),
            inputs=self.inputs,
            seed=self.seed,
            stored=stored,
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return every call, also a failed one, as a flat dict, in order of time."""
        return [row_of(one) for one in sorted(self.everything, key=attrgetter("started"))]

    def to_dataframe(self) -> Any:
        """Return `rows` as a data frame. Raises MergepointError if pandas isn't installed."""
        return dataframe(self.rows())

    def to_json(self) -> dict[str, Any]:
        """Return the transcript as JSON data."""
        return {
            "format": FORMAT,
            "run_id": self.run_id,
            "created_at": self.created_at,
            "seed": self.seed,
            "notice": NOTICE if self.offline else None,
            "inputs": dict(self.inputs),
            "messages": messages_to_dict(self.messages),
            "steps": [
                _step(number, record, self.words.by_path.get(record.key.path, 0))
                for number, record in enumerate(self.records)
            ],
            **{key: [_step(*one, 0) for one in enumerate(getattr(self, key))] for key in _ASIDE},
            "text": self.text,
            "outputs": dict(self.outputs),
            "usage": self.usage,
            "usage_by_path": {path: used.to_json() for path, used in self.usage_by_path.items()},
            "words": {"sent": self.words.sent, "shared": self.words.shared},
            "error": None if self.error is None else dict(self.error),
            "tree": dict(self.tree),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Transcript:
        """Return a transcript from its JSON.

        Raises MergepointError for data of another format.
        """
        if data.get("format") != FORMAT:
            raise MergepointError(f"not a {FORMAT}: its format is {data.get('format')!r}")
        return cls(
            run_id=data["run_id"],
            created_at=data["created_at"],
            seed=data["seed"],
            tree=data["tree"],
            inputs=data["inputs"],
            messages=tuple(messages_from_dict(data["messages"])),
            records=_records(data, "steps"),
            outputs=data["outputs"],
            text=data["text"],
            error=data["error"],
            words=ContextSaving(
                data["words"]["sent"],
                data["words"]["shared"],
                {step["path"]: step["context"]["words"] for step in data["steps"] if _sent(step)},
            ),
            **{key: _records(data, key) for key in _ASIDE},
        )


NOTICE = "Some answers were made by the offline model, which is not a language model."


def write_transcript(transcript: Transcript, path: Path, *, redact: Redact | None = None) -> Path:
    """Write a transcript as JSON atomically, and return the path.

    Secrets are masked as in journals, and the texts go through the hook. Raises JournalError if
    writing fails.
    """
    text = encode_safe(to_json_value(transcript.to_json()), redact, _dumped)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_whole(path, text)
    except OSError as error:
        raise JournalFileError(
            f"cannot write {path}: {error.strerror or error}", error, path
        ) from error


def read_transcript(path: Path) -> Transcript:
    """Read a transcript.

    Raises MergepointError, with the path, for a file that does not contain one.
    """
    try:
        with open(path, "rb", opener=open_regular) as file:
            data = json.loads(file.read().decode("utf-8", "surrogatepass"))
        return Transcript.from_json(data)
    except (
        *(OSError, ValueError, LookupError, TypeError, AttributeError),
        *(RecursionError, MergepointError),
    ) as error:
        raise MergepointError(f"{path} holds no transcript: {error}") from error


def _nodes(shape: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield an outline and those of all nodes below it."""
    yield shape
    for inner in shape.get("nodes", ()):
        yield from _nodes(inner)


def _dumped(plain: Mapping[str, Any]) -> bytes:
    text = json.dumps(plain, ensure_ascii=False, indent=2) + "\n"
    return text.encode("utf-8", "surrogatepass")


def _step(index: int, record: CallRecord, words: int) -> dict[str, Any]:
    plain = record_to_plain(record)
    return {"index": index, **plain, "context": {**plain["context"], "words": words}}


def _records(data: Mapping[str, Any], key: str) -> tuple[CallRecord, ...]:
    return tuple(record_from_plain(step, data["run_id"]) for step in data.get(key, ()))


def _sent(step: Mapping[str, Any]) -> bool:
    return bool(step.get("kind", "step") == "step")


UNFINISHED = "Unfinished"
WAITING = "GateOpen"

NOT_IN_JOURNAL = ("error",)
"""Fields of a transcript that a journal lacks: an error may come from between the calls."""


def transcript_of(header: RunHeader, records: Iterable[CallRecord]) -> Transcript:
    """Return the transcript of a run from its journal, even if the run was killed.

    If every call that the tree needs is recorded, text and outputs are those at the end of the run.
    Otherwise they are empty, and `error` says why: a merge or a loop failed; "GateOpen" if only
    decisions are missing; or "Unfinished", with the first call without an answer.
    """
    own = [record for record in records if record.key.run == header.run_id]
    tree, at = from_outline(header.shape), str(header.shape["path"])
    found = _sorted_records(own, Order(tree, at))
    of_kind = _of_recipe if is_recipe(header.tree) else _of_tree
    return Transcript(
        run_id=header.run_id,
        created_at=header.created_at.isoformat(timespec="milliseconds"),
        seed=header.seed,
        tree=header.tree,
        inputs=dict(header.inputs),
        messages=header.messages,
        **of_kind(header, own, found["records"]),
        **found,
    )


def _of_tree(
    header: RunHeader, records: Sequence[CallRecord], answered: Sequence[CallRecord]
) -> dict[str, Any]:
    """Return the end of a tree's run, and the words that its calls sent."""
    at, tree = str(header.tree["path"]), from_outline(header.tree)
    seen = replay(records, tree, base=State(header.messages), at=at)
    return {
        "outputs": {} if seen.state is None else dict(seen.state.outputs),
        "text": _text(seen.state, given=len(header.messages)),
        "error": _why(seen, records) if seen.state is None else None,
        "words": ContextSaving.of(answered, seen, header.messages, tree, at),
    }


def _of_recipe(
    header: RunHeader, records: Sequence[CallRecord], answered: Sequence[CallRecord]
) -> dict[str, Any]:
    """Return the end of a recipe's run: its text is the output that did not fail."""
    end = recipe_end(header.tree, records)
    good = () if end is None else end.good
    # Every call sees only its own prompt: nothing is shared.
    words = {
        one.key.path: sum(map(count_words, (one.prompt, *map(attrgetter("content"), one.lead))))
        for one in answered
        if one.kind == "step"
    }
    sent = sum(words.values())
    return {
        "outputs": {str(one["id"]): one["content"] for one in good},
        "text": "\n\n".join(as_text(one["content"]) for one in good),
        "error": error_of_end(header.tree, end),
        "words": ContextSaving(sent, sent, words),
    }


def agrees(transcript: Transcript, records: Iterable[CallRecord]) -> bool:
    """Return whether a transcript has as many calls as the journal; a killed run leaves fewer."""
    return len(transcript.everything) == len(tuple(records))


def _text(state: Messages | None, *, given: int) -> str:
    response = last_response(state.messages[given:]) if state is not None else None
    return str(response.text) if response is not None else ""


def _why(found: Replay, records: Sequence[CallRecord]) -> dict[str, str]:
    """Return why a run has no end, as far as its records show."""
    if found.error is not None:
        path = str(getattr(found.error, "pipeline_path", ""))
        return _error(type(found.error).__name__, str(found.error), path)
    gates = [record.path for record in pending(records)]
    calls = [path for path in found.missing if path not in gates]
    if not calls:
        return _error(WAITING, f"waiting for a decision at {', '.join(gates)}", gates[0])
    path = calls[0]
    failed = [record.error for record in records if record.error and record.path == path]
    last = f"; tried, {failed[-1]['type']}: {failed[-1]['message']}" if failed else ""
    return _error(UNFINISHED, f"unfinished: no answer at {path} is on record{last}", path)


def _error(kind: str, message: str, path: str) -> dict[str, str]:
    return {"type": kind, "message": message, "path": path, "node": path.rpartition("/")[2]}
