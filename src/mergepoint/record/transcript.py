"""Transcript: a journal seen as JSON, in the order of the tree."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage, messages_from_dict, messages_to_dict

from mergepoint.core.errors import MergepointError
from mergepoint.core.state import State
from mergepoint.record.jsonable import jsonable
from mergepoint.record.plain import RECORDS, is_offline, record_from_plain, record_to_plain
from mergepoint.record.record import CallRecord
from mergepoint.record.redact import Redact, encode_safe
from mergepoint.record.replay import Replay, replay
from mergepoint.record.sorting import Sorting
from mergepoint.record.usage import Usage, usage_by_path, usage_of
from mergepoint.record.whole import write_whole
from mergepoint.record.words import Words
from mergepoint.tree.node import Node, Order
from mergepoint.tree.outline import from_outline, outline

FORMAT = "mergepoint.transcript/1"

_ASIDE = RECORDS[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """One run of one tree: what it was given, what every call made, what came out.

    `records` holds answered steps, calls and decisions in tree order, one at each path. In order
    of time: `inner` are the models that functions called, `failures` what failed, `questions` what
    gates wait for; `others` is the rest of the record: answers that were asked for again, calls
    that were left out, questions that were answered. Words are counted by white space:
    `words_sent` over everything that was sent, `words_shared` over what would have been sent had
    every call seen all that came before it.
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
    words: Words = field(default_factory=Words)
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
        """Give the transcript of what a journal holds of one run."""
        own = [record for record in records if record.key.run == run_id]
        found = Sorting.of(own, Order(tree, at))
        seen = replay(own, tree, base=State(tuple(base)), at=at, inputs=inputs, seed=seed)
        return cls(
            run_id=run_id,
            created_at=(created_at or datetime.now(UTC)).isoformat(timespec="milliseconds"),
            seed=seed,
            tree=outline(tree, at),
            inputs=dict(inputs or {}),
            messages=tuple(base),
            records=found.answered,
            failures=found.failures,
            outputs=dict(outputs or {}),
            text=text,
            error=error,
            words=Words.of(found.answered, seen, base),
            inner=found.inner,
            questions=found.questions,
            others=found.others,
        )

    @property
    def everything(self) -> tuple[CallRecord, ...]:
        """Give all records of the run; of a path's records that which stands comes last."""
        return (*self.others, *self.questions, *self.failures, *self.inner, *self.records)

    @property
    def left_out(self) -> tuple[CallRecord, ...]:
        """Give the calls that a budget did not suffice for, where the run went on without them."""
        return tuple(record for record in self.others if record.kind == "left_out")

    @property
    def words_sent(self) -> int:
        """Give the words of everything that was sent."""
        return self.words.sent

    @property
    def words_shared(self) -> int:
        """Give the words that would have been sent without merging."""
        return self.words.shared

    @property
    def words_by_path(self) -> Mapping[str, int]:
        """Give the words that each call was sent."""
        return self.words.by_path

    @property
    def model_calls(self) -> int:
        """Give how many calls a model answered, those inside of functions too."""
        return sum(record.kind == "step" for record in self.records) + len(self.inner)

    @property
    def usage(self) -> dict[str, Any]:
        """Give the tokens that the providers counted: input, output, total; and the cost in USD.

        Failed attempts count, replayed answers do not. The cost is None where none is known.
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
        """Give what was used at each path and below it, in tree order, so that parents add up."""
        order = Order(from_outline(self.tree), str(self.tree["path"]))
        return usage_by_path(self.everything, order)

    @property
    def offline(self) -> bool:
        """Say whether any answer came from something that is not a language model."""
        return any(is_offline(record) for record in (*self.records, *self.inner))

    def replay(self) -> Replay:
        """Give every call's view and where each message came from, worked out again."""
        return replay(
            self.everything,
            from_outline(self.tree),
            base=State(self.messages),
            at=str(self.tree["path"]),
            inputs=self.inputs,
            seed=self.seed,
        )

    def to_json(self) -> dict[str, Any]:
        """Give the transcript as JSON data."""
        return {
            "format": FORMAT,
            "run_id": self.run_id,
            "created_at": self.created_at,
            "seed": self.seed,
            "notice": NOTICE if self.offline else None,
            "inputs": dict(self.inputs),
            "messages": messages_to_dict(self.messages),
            "steps": [
                _step(number, record, self.words_by_path.get(record.path, 0))
                for number, record in enumerate(self.records)
            ],
            **{key: [_step(*one, 0) for one in enumerate(getattr(self, key))] for key in _ASIDE},
            "text": self.text,
            "outputs": dict(self.outputs),
            "usage": self.usage,
            "usage_by_path": {path: used.to_json() for path, used in self.usage_by_path.items()},
            "words": {"sent": self.words_sent, "shared": self.words_shared},
            "error": None if self.error is None else dict(self.error),
            "tree": dict(self.tree),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Transcript:
        """Give a transcript back from its JSON.

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
            words=Words(
                data["words"]["sent"],
                data["words"]["shared"],
                {step["path"]: step["context"]["words"] for step in data["steps"] if _sent(step)},
            ),
            **{key: _records(data, key) for key in _ASIDE},
        )


NOTICE = "Some answers were made by the offline model, which is not a language model."


def write_transcript(transcript: Transcript, path: Path, *, redact: Redact | None = None) -> Path:
    """Write a transcript as JSON, whole or not at all, and give the path.

    Secrets are masked as in journals, and the texts go through the hook.
    """
    text = encode_safe(jsonable(transcript.to_json()), redact, _dumped)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, text)


def read_transcript(path: Path) -> Transcript:
    """Read a transcript.

    Raises MergepointError, with the path, for a file that holds none.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8", errors="surrogatepass"))
        return Transcript.from_json(data)
    except (ValueError, KeyError, TypeError, AttributeError, MergepointError) as error:
        raise MergepointError(f"{path} holds no transcript: {error}") from error


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
