"""CallView: one call of a run as it stood: what it saw, what it answered, what became of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mergepoint.core.merge import MergeMode

Origin = Literal["given", "call", "system", "example", "prompt"]
Source = Literal["input", "capture", "default"]
End = Literal["kept", "dropped", "superseded", "rejected", "unfinished", "left_out", "value"]
Kind = Literal["step", "call", "gate"]


@dataclass(frozen=True, slots=True)
class Exit:
    """A merge point: the path of a node and the merge mode at its exit."""

    path: str
    mode: MergeMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A message that a call saw.

    `origin` is "given" (to the run), "call" (made by the step or call at `path`, let out by the
    exits in `through`, the innermost first), "system" and "example" (of this call only), or
    "prompt".
    """

    role: str
    text: str
    origin: Origin
    path: str | None = None
    through: tuple[Exit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A key that a prompt reads: an input, a capture, or neither, so that a default stood.

    For a capture, `path` is the node that captured it and `made_by` the step whose answer it is,
    None for a gate's decision.
    """

    key: str
    source: Source
    path: str | None = None
    made_by: str | None = None
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A key under which a value was captured, the node that did, and the calls that read it."""

    key: str
    path: str
    read_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of an answer.

    It `passed` these exits, the innermost first, and ended: "kept" in the conversation, "dropped"
    `at` a merge mode none, "superseded" at a last_response by the answer of the call `by`,
    "rejected" at a gate, "unfinished" where the run ended before that exit, or "left_out" with a
    node that a budget did not suffice for. A Call's result that is no message is a "value". At the
    gates in `edited` another text took its place. `seen_by` are the calls that saw it as a message.
    """

    passed: tuple[Exit, ...]
    end: End
    at: Exit | None = None
    by: str | None = None
    captured: tuple[Captured, ...] = ()
    seen_by: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """A model that a function called: what it was asked last, and what it answered."""

    model: str
    prompt: str
    answer: str
    error: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What a gate held back, what was decided about it, and what it let on.

    The `decision` is empty where nobody has decided yet. `kept` and `kept_outputs` differ from what
    was `held` after an edit, and are empty after a rejection; the gate's own capture is not among
    them.
    """

    question: str
    held: tuple[Seen, ...]
    held_outputs: Mapping[str, Any]
    decision: str
    feedback: str
    kept: tuple[Seen, ...]
    kept_outputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """One call of a model or function, or one decision at a gate, seen whole.

    `seen` is in the order of the conversation: messages of this call only, the state, the prompt.
    With the view "alternate" the provider was sent the same with neighbours of one role joined.
    A call that failed has an `error`, no `answer` and no `fate`; one that was `left_out` was not
    made, and its `error` says which budget did not suffice. `unusable` holds the text of an answer
    that was refused. `earlier_errors` are failed attempts before this one. `started` is
    in seconds since the epoch.

    A Call has its arguments in `params`, its result in `value`, the text of its message (if it
    made one) in `answer`, and the models it called `inside`. A gate has what was `decided`.
    """

    run_id: str
    path: str
    model: str
    params: Mapping[str, Any]
    view: str
    seen: tuple[Seen, ...]
    reads: tuple[Read, ...]
    answer: str | None
    error: Mapping[str, str] | None
    unusable: str | None
    earlier_errors: tuple[Mapping[str, str], ...]
    fate: Fate | None
    usage: Mapping[str, Any] | None
    started: float
    seconds: float
    attempt: int
    source: str
    kind: Kind = "step"
    value: Any = None
    inside: tuple[Inside, ...] = ()
    decided: Decided | None = None
    left_out: bool = False
