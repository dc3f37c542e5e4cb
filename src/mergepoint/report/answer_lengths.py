"""Lengths of answers that aren't there yet: given, estimated, or those of an earlier run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from langchain_core.messages import BaseMessage

from mergepoint.core.paths import of_first_iterations, prefixes
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.transcript import Transcript
from mergepoint.models.budget import output_cap
from mergepoint.report.token_estimate import CHARACTERS_PER_TOKEN, TokenScale, estimate_tokens
from mergepoint.tree.leaves import Step

ANSWER_TOKENS: Final = 250
"""The length of an answer of which nothing is known: about 190 English words."""
_FILL: Final = " ..."
_FILLED = re.compile(r"(?: \.\.\.){2,}")
_ITERATION = re.compile(r"(.+)/iteration_(\d+)")


@dataclass(frozen=True, slots=True)
class Expected:
    """An answer as it is expected: a text that stands for it, and its tokens."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """Answers, iterations, decisions and token counts of an earlier run."""

    run_id: str
    finished: bool
    records: Mapping[str, CallRecord]
    alike: Mapping[str, CallRecord]
    """By path in first iterations, the last record: for iterations that the run didn't make."""
    decisions: Mapping[str, Any]
    iterations: Mapping[str, int]
    inner: Mapping[str, int]
    mean: int | None
    scale: TokenScale

    @classmethod
    def of(cls, transcript: Transcript) -> EarlierRun:
        """Return what a transcript tells."""
        answered = [one for one in transcript.records if one.kind in ("step", "call")]
        used = [tokens for one in answered if (tokens := _used(one))]
        rounds: dict[str, int] = {}
        for path in {at for one in transcript.everything for at in prefixes(one.path)}:
            if found := _ITERATION.fullmatch(path):
                rounds[found[1]] = max(rounds.get(found[1], 0), int(found[2]))
        return cls(
            run_id=transcript.run_id,
            finished=transcript.error is None,
            records={one.path: one for one in answered},
            alike={of_first_iterations(one.path): one for one in answered},
            decisions={one.path: one.value for one in transcript.records if one.kind == "gate"},
            iterations=rounds,
            inner=Counter(one.path for one in transcript.inner),
            mean=round(sum(used) / len(used)) if used else None,
            scale=TokenScale.measured(transcript.records, transcript.replay()),
        )

    def at(self, path: str) -> CallRecord | None:
        """Return the record at a path, or that of another iteration."""
        return self.records.get(path) or self.alike.get(of_first_iterations(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLengths:
    """The expected answers of a tree, by path.

    `given` are lengths in tokens by path in the tree, with "" for all other paths. `caps` are
    limits on the answers by path. They come before an earlier run, and that before the estimate.
    """

    given: Mapping[str, int] = field(default_factory=dict)
    caps: Mapping[str, int] = field(default_factory=dict)
    most: int | None = None
    like: EarlierRun | None = None

    @property
    def scale(self) -> TokenScale:
        """Return the factors from estimates to tokens."""
        return TokenScale() if self.like is None else self.like.scale

    @property
    def basis(self) -> str:
        """Return a phrase about the source of the lengths."""
        if "" in self.given:
            return f"answers of {self.given['']:,} tokens, as given"
        if self.like is not None:
            return f"answers as long as in run {self.like.run_id}"
        expected = f"answers of {ANSWER_TOKENS:,} tokens each, an estimate"
        return f"{expected} (--like RUN takes those of an earlier run)"

    def answer(self, path: str, step: Step) -> Expected:
        """Return the expected answer of a step."""
        static = of_first_iterations(path)
        given = self.given.get(static, self.given.get(""))
        record = None if self.like is None else self.like.at(path)
        if given is None and record is not None and not record.masked:
            text = record.response
            if step.schema is None or _is_json(text):
                factor = self.scale.of(record.model)
                return Expected(text, _used(record) or round(estimate_tokens(text) * factor))
        tokens = given
        if tokens is None:
            known = None if self.like is None else self.like.mean
            tokens = (record and _used(record)) or known or ANSWER_TOKENS
            limits = (output_cap(step.params), self.most)
            tokens = min([tokens, *(limit for limit in limits if limit)])
        if step.schema is not None:
            return Expected(example_json(step.schema.model_json_schema(), tokens), tokens)
        return Expected(placeholder(path, tokens, self.scale.overall), tokens)

    def result(self, path: str) -> tuple[str, Any]:
        """Return the text and the value that a Call is expected to return."""
        record = None if self.like is None else self.like.at(path)
        if record is not None:
            return record.response, record.value
        text = placeholder(path, self.given.get("", ANSWER_TOKENS), what="result")
        return text, text

    def messages(self, path: str) -> tuple[BaseMessage, ...]:
        """Return the messages of a Call or of a step with tools in the earlier run."""
        record = None if self.like is None else self.like.at(path)
        return () if record is None else record.messages

    def decision(self, path: str) -> Any:
        """Return the recorded decision at a gate, or None."""
        return None if self.like is None else self.like.decisions.get(path)

    def iterations(self, path: str, *, may_skip: bool) -> int | None:
        """Return how many iterations a loop made, or None if it isn't known."""
        if self.like is None:
            return None
        known = self.like.iterations.get(path)
        # A loop without any record in a finished run was skipped.
        return 0 if known is None and may_skip and self.like.finished else known

    def inner_calls(self, path: str) -> int:
        """Return the number of model calls inside a step with tools, or inside a Call."""
        return 0 if self.like is None else self.like.inner.get(path, 0)


def placeholder(path: str, tokens: int, factor: float = 1.0, *, what: str = "answer") -> str:
    """Return a text of a length in tokens that stands for an answer, and says which."""
    size = round(tokens / (factor or 1.0))
    head = f"[{what} of {path}, about {tokens:,} tokens]"
    own = estimate_tokens(head)
    if own > size:  # a head longer than the answer would count too much
        return (_FILL * size).strip() or "."
    return head + _FILL * ((size - own) * CHARACTERS_PER_TOKEN // len(_FILL))


def shortened(text: str) -> str:
    """Return a text without the filling of its placeholders."""
    return _FILLED.sub(_FILL, text)


def example_json(schema: Mapping[str, Any], tokens: int) -> str:
    """Return JSON that fits a schema, with its texts filled up to a length in tokens."""
    made = _example(schema, schema.get("$defs", {}), depth=0)
    bare = json.dumps(made, ensure_ascii=False)
    texts = bare.count('"..."')
    each = max(0, tokens - estimate_tokens(bare)) // texts if texts else 0
    return bare.replace('"..."', f'"...{_FILL * each}"')


def _example(schema: Mapping[str, Any], known: Mapping[str, Any], *, depth: int) -> Any:
    if reference := schema.get("$ref"):
        schema = known.get(str(reference).rpartition("/")[2], {})
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    if "enum" in schema:
        return schema["enum"][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name) and depth < _DEEPEST:
            return _example(schema[name][0], known, depth=depth + 1)
    kind = schema.get("type")
    if kind == "object" and depth < _DEEPEST:
        fields = schema.get("properties", {})
        return {name: _example(one, known, depth=depth + 1) for name, one in fields.items()}
    if kind == "array" and depth < _DEEPEST:
        return [_example(schema.get("items", {}), known, depth=depth + 1)]
    return _EXAMPLES.get(str(kind))


_DEEPEST: Final = 12  # schemas may refer to themselves
_EXAMPLES: Final = {"string": "...", "integer": 1, "number": 1, "boolean": True}


def _used(record: CallRecord) -> int:
    return int((record.usage or {}).get("output_tokens") or 0)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
