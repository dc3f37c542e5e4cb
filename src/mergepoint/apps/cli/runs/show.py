"""`mergepoint runs show`: what a run began with, and how far it came, path by path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mergepoint.apps.cli.arguments import JournalArgument
from mergepoint.apps.cli.options import JsonOption, OutOption, StoreOption, TracebackOption

if TYPE_CHECKING:
    from mergepoint.apps.cli.kept import Kept
    from mergepoint.record.record import CallRecord

EXAMPLES = ("mergepoint runs show last", "mergepoint runs show last --json | jq -r .missing[]")

_BRIEF = 300


@dataclass(frozen=True, slots=True)
class At:
    """A path and the calls at it, in the order in which they were written.

    Those that a function made of models are `inside`: they may be answered where it is not.
    """

    path: str
    calls: tuple[CallRecord, ...]
    inside: tuple[CallRecord, ...]
    called: bool  # whether the tree calls something here; a block does not
    open: bool = False  # whether a gate waits here
    over: bool = False  # whether the run is done

    @property
    def state(self) -> str:
        """Give `answered`, `waiting`, `left out`, `failed`, or nothing for a block.

        What has no record is `missing`, in a run that is done `not made`.
        """
        if self.open:
            return "waiting"
        if any(call.answered for call in self.calls):
            return "answered"
        if any(call.kind == "left_out" for call in self.calls):
            return "left out"
        if self.calls:
            return "failed"
        return ("not made" if self.over else "missing") if self.called else ""

    @property
    def last(self) -> CallRecord | None:
        """Give the answer or decision that came last."""
        return next((call for call in reversed(self.calls) if call.answered), None)

    @property
    def failures(self) -> list[CallRecord]:
        """Give the attempts that failed."""
        return [call for call in self.calls if call.failed]

    @property
    def tokens(self) -> int:
        """Give the tokens of all calls."""
        from mergepoint.apps.cli.kept import tokens_of

        return sum(map(tokens_of, (*self.calls, *self.inside)))

    @property
    def cost(self) -> float | None:
        """Give the cost in USD of the last answer, or of the models inside."""
        known = [call.cost for call in self.inside if call.cost is not None]
        return sum(known) if known else None if self.last is None else self.last.cost


def show(
    run: JournalArgument,
    *,
    out: OutOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Show what a run began with and how far it came: every path, answered or not.

    Of a gate that waits for a decision it shows exactly what would be kept, and how to answer.
    What a single call saw is shown by `mergepoint show`.
    """
    from mergepoint.apps.cli.homes import Homes
    from mergepoint.apps.cli.kept import read_kept
    from mergepoint.apps.cli.output import put, put_json

    kept = read_kept(Homes.at(out, store).find(run))
    if json:
        put_json(_facts(kept))
        return
    for label, text in _head(kept):
        put(f"{label:<9} {text}".rstrip())
    put("")
    for line in (*_tree(kept), *_questions(kept)):
        put(line)


def _facts(kept: Kept) -> dict[str, Any]:
    from mergepoint.apps.cli.gates import asked

    transcript = kept.transcript
    return {
        "run_id": kept.run_id,
        "folder": None if kept.home.folder is None else str(kept.home.folder),
        "store": str(kept.home.store),
        "state": kept.stage,
        "created_at": transcript.created_at,
        "seed": transcript.seed,
        "inputs": transcript.inputs,
        "messages": len(transcript.messages),
        "tokens": kept.tokens,
        "cost": kept.cost,
        "error": transcript.error if kept.stage != "running" else None,
        "calls": [_call(at) for at in _paths(kept) if at.state],
        "missing": kept.missing,
        "questions": [asked(one).to_plain() for one in kept.transcript.questions],
        "resume": kept.way_on,
    }


def _call(at: At) -> dict[str, Any]:
    last, failed = at.last, at.failures
    return {
        "path": at.path,
        "state": at.state,
        "kind": at.calls[-1].kind if at.calls else None,
        "failed_attempts": len(failed),
        "last_error": failed[-1].error if failed else None,
        "source": None if last is None else last.source,
        "model": at.calls[-1].model if at.calls else None,
        "seconds": None if last is None else round(max(0.0, last.ended - last.started), 6),
        "tokens": at.tokens,
        "cost": at.cost,
    }


def _head(kept: Kept) -> Iterator[tuple[str, str]]:
    from mergepoint.apps.cli.kept import ending, local_time
    from mergepoint.apps.cli.output import brief, count, money

    transcript = kept.transcript
    offline = " (offline)" if transcript.offline else ""
    yield "run", kept.run_id
    yield "tree", f"{transcript.tree['path']}{offline}"
    yield "started", local_time(transcript.created_at)
    said = kept.stage if kept.stage == "running" else brief(ending(transcript.error), _BRIEF)
    yield "state", said
    tried = len(transcript.failures)
    of = "" if kept.total is None else f" of {kept.total:,}"
    decided = sum(record.kind == "gate" for record in transcript.records)
    facts = [f"{kept.answered:,}{of} answered"]
    facts += [count(decided, "decision")] if decided else []
    facts += [f"{len(left_out):,} left out"] if (left_out := transcript.left_out) else []
    facts += [count(tried, "failed attempt")] if tried else []
    facts += [f"{kept.tokens:,} tokens"]
    facts += [] if kept.cost is None else [money(kept.cost)]
    yield "calls", ", ".join(facts)
    label = "inputs"
    for name, value in transcript.inputs.items():
        yield label, brief(f"{name}: {value}", _BRIEF)
        label = ""
    if transcript.messages:
        yield "opened by", count(len(transcript.messages), "message")
    if kept.home.folder is None:
        yield "kept in", str(kept.home.store)
    else:
        files = sorted(file.name for file in kept.home.folder.iterdir() if file.is_file())
        yield "files", f"{kept.home.folder}: {', '.join(files)}"
    if way_on := kept.way_on:
        yield "go on", way_on


def _paths(kept: Kept) -> list[At]:
    """Give blocks and calls in the order of the tree; what is not in the tree stands at its end."""
    leaves = dict.fromkeys(kept.paths)
    calls: dict[str, list[CallRecord]] = {}
    for record in kept.records:
        calls.setdefault(record.path, []).append(record)
    inner: dict[str, Any] = {}
    for path in [*leaves, *(path for path in calls if path not in leaves)]:
        level = inner
        for name in path.split("/"):
            level = level.setdefault(name, {})
    waiting, over = kept.open_gates, kept.stage == "done"
    return [
        At(
            path,
            tuple(call for call in calls.get(path, ()) if call.kind != "inner"),
            tuple(call for call in calls.get(path, ()) if call.kind == "inner"),
            called=path in leaves or path in calls,
            open=path in waiting,
            over=over,
        )
        for path in _walk(inner, "")
    ]


def _walk(level: dict[str, Any], above: str) -> Iterator[str]:
    for name, inner in level.items():
        yield f"{above}{name}"
        yield from _walk(inner, f"{above}{name}/")


def _tree(kept: Kept) -> Iterator[str]:
    paths = _paths(kept)
    names = ["  " * at.path.count("/") + at.path.rpartition("/")[2] for at in paths]
    width = max(map(len, names))
    for at, name in zip(paths, names, strict=True):
        yield f"{name:<{width}}  {_said(at)}".rstrip()


def _said(at: At) -> str:
    from mergepoint.apps.cli.output import brief, clock, count

    if at.state in ("", "waiting"):
        return "" if not at.state else "waits for a decision"
    if at.state == "left out":
        return _left_out(at.calls[-1].error or {})
    tries = count(len(at.failures), "failed attempt") if at.failures else ""
    if at.last is not None:
        tokens = at.tokens
        seconds = clock(max(0.0, at.last.ended - at.last.started))
        kind = at.last.kind if at.last.kind != "step" else ""
        if kind == "gate":
            return f"decided   {at.last.value['decision']}  {at.last.source}".rstrip()
        facts = ["answered", kind, at.last.source, seconds, f"{tokens:,} tokens" if tokens else ""]
        return "  ".join(fact for fact in (*facts, tries) if fact)
    if at.failures:
        error = at.failures[-1].error or {}
        said = brief(f"{error['type']}: {error['message']}", _BRIEF)
        return f"failed    {tries}, {said}"
    return "not made" if at.state == "not made" else "no answer"


def _left_out(error: Mapping[str, Any]) -> str:
    from mergepoint.models.account import shown

    return f"left out  the budget of {error['path']}, {shown(error['kind'], error['limit'])}"


def _questions(kept: Kept) -> Iterator[str]:
    """Give what the open gates ask: exactly what would be kept."""
    from mergepoint.apps.cli.gates import asked, told_question

    for record in kept.transcript.questions:
        yield from told_question(asked(record))
