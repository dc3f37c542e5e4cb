"""Explanations as plain text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mergepoint.core.paths import SEPARATOR, ancestors, select
from mergepoint.core.text import cells, clip, money, shown
from mergepoint.report.explanation import (
    CostRange,
    Explanation,
    PlannedMessage,
    PlannedStep,
    Range,
)

_BAR = 24
_LEAST = 60
_NUMBERS = 36  # cells of all columns but the name and the bar
_MOST_NAME = 48
_UNREAD_SHOWN = 8


def explanation_text(explained: Explanation, *, width: int = 100) -> str:
    """Return an explanation as lines of at most `width` cells (60 or more).

    Each step has its number of messages, its prompt in tokens as a bar, and its cost. The last line
    is `summary_line`. Characters that could control a terminal are written as escapes.
    """
    width = max(width, _LEAST)
    lines = [*_table(explained, width), ""]
    lines += _captures(explained)
    for warning in explained.warnings:
        where = f"{warning.path}: " if warning.path else ""
        lines += _wrapped(f"{where}{warning.message}", "! ", width)
    if explained.warnings:
        lines.append("")
    lines.append(f"Basis: {explained.basis}; retries aren't counted.")
    return "\n".join(shown(line) for line in [*lines, summary_line(explained)]) + "\n"


def summary_line(explained: Explanation) -> str:
    """Return calls, tokens and cost in one line, with ranges where they aren't certain."""
    calls = _range(explained.calls)
    noun = "model call" if explained.calls == (1, 1) else "model calls"
    into, out = _range(explained.input_tokens), _range(explained.output_tokens)
    cost = "cost unknown" if explained.cost is None else f"about {_costs(explained.cost)}"
    cost = "no cost" if explained.cost == (0, 0) else cost
    return f"Predicted: {calls} {noun}, about {into} tokens in and {out} out, {cost}."


def step_text(explained: Explanation, selector: str, *, width: int = 100) -> str:
    """Return one step with the messages that it will see, each with the path that makes it.

    Raises LookupError for a path that names no step, or several.
    """
    paths = [one.path for one in explained.steps]
    found = select(selector, paths)
    if len(found) > 1:
        raise LookupError(f"{selector!r} matches {len(found)} steps: {', '.join(found)}; name one")
    step = explained.steps[paths.index(found[0])]
    lines = [step.path, f"  model   {step.model or 'none given'}"]
    lines.append(f"  prompt  {_tokens(step)} tokens{_of_window(step)}")
    calls = "1 call" if step.calls == (1, 1) else f"{_range(step.calls)} calls"
    lines.append(f"  answer  about {_range(step.output_tokens)} tokens, {calls}")
    lines += [f"  reads   {one.key} ({_source(one.source, one.path)})" for one in step.reads]
    lines += [f"  captures {step.capture_key}"] if step.capture_key else []
    lines += [f"  ! {step.problem}"] if step.problem else []
    lines.append(f"It will see {len(step.sees)} messages:" if step.sees else "It sees no message.")
    for message in step.sees:
        lines.append(f"  {message.role:<9} {message.tokens:>7,}  {origin_of(message)}")
        if message.origin not in ("given", "call"):
            lines += _wrapped(" ".join(message.text.split()), " " * 20, max(width, _LEAST))[:4]
    return "\n".join(shown(line) for line in lines) + "\n"


def origin_of(message: PlannedMessage) -> str:
    """Return who makes a message, and the merges that bring it."""
    own = {
        "given": "given to the run",
        "system": "system message, this call only",
        "example": "example, this call only",
        "prompt": "its own prompt",
    }
    if message.origin != "call":
        return own[message.origin]
    kind = "prompt of " if message.role == "user" else ""
    through = ", ".join(f"{one.path} ({one.mode})" for one in message.through[1:])
    return f"{kind}{message.path}{f', through {through}' if through else ''}"


def _table(explained: Explanation, width: int) -> Iterator[str]:
    steps = explained.steps
    room = min(_MOST_NAME, width - _NUMBERS - _BAR // 2)
    names = dict(_outline(steps))
    widest = max([len("step"), *(cells(name) for name in names.values())])
    room = min(room, widest)
    bar = max(6, min(_BAR, width - room - _NUMBERS))
    longest = max((step.input_tokens[1] or 0 for step in steps), default=0) or 1
    head = f"{'step':<{room}}  sees   tokens  {'prompt':<{bar}}    calls     cost"
    yield head.rstrip()
    for path, name in names.items():
        step = next((one for one in steps if one.path == path), None)
        label = clip(name, room)
        label += " " * (room - cells(label))
        if step is None:
            yield label.rstrip()
            continue
        bars = _bar(step, longest, bar)
        asks = step.kind == "step" or (step.kind == "stage" and step.calls != (0, 0))
        times = _range(step.calls) if asks or step.calls != (0, 0) else ""
        cost = "" if not asks else "?" if step.cost is None else money(step.cost)
        tokens = _tokens(step) if asks else ""
        # What a stage sees depends on its Things.
        sees = "" if step.kind == "stage" else len(step.sees)
        row = f"{label}  {sees:>4}  {tokens:>7}  {bars}  {times:>7}  {cost:>7}"
        yield row.rstrip()


def _outline(steps: Sequence[PlannedStep]) -> Iterator[tuple[str, str]]:
    """Yield path and indented name of each container and step, in order."""
    seen: set[str] = set()
    for step in steps:
        for path in [*ancestors(step.path)[::-1], step.path]:
            if path not in seen:
                seen.add(path)
                yield path, "  " * path.count(SEPARATOR) + path.rpartition(SEPARATOR)[2]


def _bar(step: PlannedStep, longest: int, width: int) -> str:
    """Return a bar: full up to the least tokens, light up to the most."""
    least, most = step.input_tokens
    full = round(width * least / longest)
    whole = max(full, round(width * (most or 0) / longest), 1 if most else 0)
    full = max(full, 1) if least else full
    return "█" * full + "░" * max(0, whole - full) + " " * (width - max(full, whole))


def _tokens(step: PlannedStep) -> str:
    return "unknown" if step.tokens is None else f"{step.tokens:,}"


def _of_window(step: PlannedStep) -> str:
    if step.window is None or step.tokens is None:
        return ""
    return f", {100 * step.tokens / step.window:.1f} % of the context window of {step.window:,}"


def _captures(explained: Explanation) -> Iterator[str]:
    if not explained.captures:
        return
    unread = explained.unread
    yield captures_line(len(explained.captures), len(unread))
    for one in unread[:_UNREAD_SHOWN]:
        yield f"  {one.key}  written by {one.path}"
    if len(unread) > _UNREAD_SHOWN:
        yield f"  and {len(unread) - _UNREAD_SHOWN:,} more"
    yield ""


def captures_line(captures: int, unread: int) -> str:
    """Return how many captures there are, and how many of them are never read."""
    if not unread:
        return f"Captures: {captures:,}, {'read' if captures == 1 else 'all read'}."
    return f"Captures: {captures:,}; {unread:,} {'is' if unread == 1 else 'are'} never read:"


def _source(source: str, path: str | None) -> str:
    return f"captured by {path}" if source == "capture" else source


def _range(numbers: Range) -> str:
    least, most = numbers
    if most is None:
        return f"{least:,} or more"
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _costs(costs: CostRange) -> str:
    least, most = costs
    if most is None:
        return f"{money(least)} or more"
    return money(least) if money(least) == money(most) else f"{money(least)} to {money(most)}"


def _wrapped(text: str, mark: str, width: int) -> list[str]:
    import textwrap

    lines = textwrap.wrap(shown(text), width - len(mark)) or [""]
    return [f"{mark if not number else ' ' * len(mark)}{line}" for number, line in enumerate(lines)]
