"""`mergepoint runs show`: what a run began with, and how far it came, path by path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mergepoint.apps.cli.options import JournalArgument, JsonOption, OutOption, TracebackOption

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

    @property
    def state(self) -> str:
        """Give `answered`, `failed`, or `missing`; nothing for a block."""
        if any(call.answered for call in self.calls):
            return "answered"
        return ("failed" if self.calls else "missing") if self.called else ""

    @property
    def tokens(self) -> int:
        """Give the tokens of all calls."""
        from mergepoint.apps.cli.kept import tokens_of

        return sum(map(tokens_of, (*self.calls, *self.inside)))

    @property
    def cost(self) -> float | None:
        """Give the cost in USD of the last answer, or of the models inside."""
        known = [call.cost for call in self.inside if call.cost is not None]
        last = next((call for call in reversed(self.calls) if call.answered), None)
        return sum(known) if known else None if last is None else last.cost


def show(
    run: JournalArgument,
    *,
    out: OutOption = Path("runs"),
    json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Show what a run began with and how far it came: every path, answered or not.

    What a single call saw is shown by `mergepoint show`.
    """
    from mergepoint.apps.cli.folders import find_run
    from mergepoint.apps.cli.kept import read_kept
    from mergepoint.apps.cli.output import put, put_json

    kept = read_kept(find_run(run, out))
    if json:
        put_json(_facts(kept))
        return
    for label, text in _head(kept):
        put(f"{label:<9} {text}".rstrip())
    put("")
    for line in _tree(kept):
        put(line)


def _facts(kept: Kept) -> dict[str, Any]:
    transcript = kept.transcript
    return {
        "run_id": kept.run_id,
        "folder": str(kept.folder),
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
    }


def _call(at: At) -> dict[str, Any]:
    last = next((call for call in reversed(at.calls) if call.answered), None)
    failed = [call.error for call in at.calls if call.error]
    return {
        "path": at.path,
        "state": at.state,
        "kind": at.calls[-1].kind if at.calls else None,
        "failed_attempts": len(failed),
        "last_error": failed[-1] if failed else None,
        "source": None if last is None else last.source,
        "model": at.calls[-1].model if at.calls else None,
        "seconds": None if last is None else round(max(0.0, last.ended - last.started), 6),
        "tokens": at.tokens,
        "cost": at.cost,
    }


def _head(kept: Kept) -> Iterator[tuple[str, str]]:
    from mergepoint.apps.cli.folders import how_to_resume
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
    facts = [f"{len(transcript.records):,} of {len(kept.paths):,} answered"]
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
    files = sorted(file.name for file in kept.folder.iterdir() if file.is_file())
    yield "files", f"{kept.folder}: {', '.join(files)}"
    if kept.goes_on:
        for line in how_to_resume(kept.folder):
            yield "go on", line


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
    return [
        At(
            path,
            tuple(call for call in calls.get(path, ()) if call.kind != "inner"),
            tuple(call for call in calls.get(path, ()) if call.kind == "inner"),
            path in leaves or path in calls,
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

    if not at.state:
        return ""
    failed = [call.error for call in at.calls if call.error]
    tries = count(len(failed), "failed attempt") if failed else ""
    if at.state == "answered":
        last = next(call for call in reversed(at.calls) if call.answered)
        tokens = at.tokens
        seconds = clock(max(0.0, last.ended - last.started))
        kind = last.kind if last.kind != "step" else ""
        facts = ["answered", kind, last.source, seconds, f"{tokens:,} tokens" if tokens else ""]
        return "  ".join(fact for fact in (*facts, tries) if fact)
    if failed:
        said = brief(f"{failed[-1]['type']}: {failed[-1]['message']}", _BRIEF)
        return f"failed    {tries}, {said}"
    return "no answer"
