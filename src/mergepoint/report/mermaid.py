"""Mermaid flowcharts of trees, for READMEs and issues.

Labels use Mermaid's entity codes for every character that could mean something to its parser or to
the Markdown in labels. Ids are numbers in tree order, never names.
"""

from __future__ import annotations

import re
from itertools import pairwise

from mergepoint.core.text import clip
from mergepoint.report.drawing import Omitted, Sketch, abridged, limits_of, sketch
from mergepoint.tree.nodes import Node
from mergepoint.tree.validate import inputs_of

# Mermaid refuses larger drawings unless its host configures it otherwise: maxTextSize and maxEdges
# in https://mermaid.js.org/config/schema-docs/config.html
MOST_CHARACTERS = 50_000
MOST_EDGES = 500

_INK = {
    "all_messages": "fill:#0f766e,stroke:#0f766e,color:#ffffff",
    "last_response": "fill:#4338ca,stroke:#4338ca,color:#ffffff",
    "none": "fill:#be3455,stroke:#be3455,color:#ffffff",
}
# Everything except words, `, `, `: `, and `_` or `-` inside a word.
_MARK = re.compile(
    r"[^\w ,:\-\u00a1-\U0010ffff]|(?<![A-Za-z0-9])[_-]|[_-](?![A-Za-z0-9])", re.ASCII
)
# Mermaid treats a backslash followed by n as a line break; a word joiner between them prevents
# that.
_NO_BREAK = "\\\u2060n"


def to_mermaid(
    tree: Node, *, path: str | None = None, depth: int | None = None, fold: bool = True
) -> str:
    """Return a tree, or its part at `path`, as the text of a Mermaid flowchart.

    A block is a subgraph, and its merge point a node of its own, where the messages of the block
    arrive. A dotted arrow leaves a node that adds no message. Drawings beyond Mermaid's default
    limits are cut, and the first line says so. `depth` and `fold` have the same meaning as in
    `to_svg`.

    Raise ValueError for a depth below 1, and LookupError if the path names no node, or several.
    """
    text = ""
    # The length of names decides how many nodes fit, so try until the text is short enough.
    for nodes in (160, 80, 40, 20, 10, 5):
        wide = min(20, nodes // 2)
        drawn = sketch(
            tree, path=path, limits=limits_of(depth=depth, fold=fold, wide=wide, nodes=nodes)
        )
        chart = _Chart(drawn)
        text = chart.text()
        if len(text) <= MOST_CHARACTERS and len(chart.edges) <= MOST_EDGES:
            break
    return text


class _Chart:
    """The lines of a flowchart, collected in one walk."""

    def __init__(self, drawn: Sketch) -> None:
        self._drawn = drawn
        self._shapes: list[str] = []
        self._exits: dict[str, list[str]] = {}
        self.edges: list[str] = []
        self._add(drawn, 1)
        if given := ", ".join(known.name for known in inputs_of(drawn.node)):
            self._shapes.insert(0, f"  inputs[/{label('inputs', clip(given, 80))}/]")
            self.edges.insert(0, f"inputs --> {_entry(drawn)}")

    def text(self) -> str:
        """Return the flowchart."""
        said = abridged(self._drawn)
        lines = [f"%% {said}"] if said else []
        lines += ["flowchart TB", *self._shapes, *(f"  {edge}" for edge in self.edges)]
        for mode, ids in self._exits.items():
            lines.append(f"  classDef keeps_{mode} {_INK[mode]}")
            lines.append(f"  class {','.join(ids)} keeps_{mode}")
        return "\n".join(lines) + "\n"

    def _add(self, part: Sketch | Omitted, depth: int) -> None:
        indent = "  " * depth
        if isinstance(part, Omitted):
            self._shapes.append(f"{indent}n{part.number}([{label(part.text)}])")
        elif part.holds:
            self._add_block(part, depth)
        else:
            left, right = ("[", "]") if part.function is None else ("[[", "]]")
            lines = label(*_step_lines(part))
            self._shapes.append(f"{indent}n{part.number}{left}{lines}{right}")

    def _add_block(self, block: Sketch, depth: int) -> None:
        indent = "  " * depth
        title = block.name if block.times is None else f"{block.name} {block.times}"
        self._shapes.append(f"{indent}subgraph n{block.number}[{label(title)}]")
        # Otherwise, Mermaid rotates a subgraph that nothing outside leads to.
        if depth == 1:
            self._shapes.append(f"{indent}  direction TB")
        if _forks(block):
            self._shapes.append(f"{indent}  f{block.number}([{label('in parallel')}])")
        for part in block.parts:
            self._add(part, depth + 1)
        if block.question is not None:
            self._shapes.append(f"{indent}  d{block.number}{{{label(block.question)}}}")
        lines = [f"merge: {block.node.merge}"]
        if block.capture is not None:
            lines.append(f"captures {block.capture}")
        exit_id = f"m{block.number}"
        self._shapes.append(f"{indent}  {exit_id}{{{{{label(*lines)}}}}}")
        self._shapes.append(f"{indent}end")
        self._exits.setdefault(block.node.merge, []).append(exit_id)
        self._join(block)

    def _join(self, block: Sketch) -> None:
        exit_id = f"m{block.number}"
        if block.parallel:
            for part in block.parts:
                self.edges.append(f"f{block.number} --> {_entry(part)}")
                self.edges.append(f"{_exit(part)} {_arrow(part)} {exit_id}")
            return
        for part, following in pairwise(block.parts):
            self.edges.append(f"{_exit(part)} {_arrow(part)} {_entry(following)}")
        # A slice, because a block can have no parts.
        for last in block.parts[-1:]:
            if block.question is not None:
                self.edges.append(f"{_exit(last)} {_arrow(last)} d{block.number}")
                self.edges.append(f"d{block.number} {_arrow(last)} {exit_id}")
                continue
            if block.turns is not None:
                first, again = _entry(block.parts[0]), label(f"again {block.turns}")
                self.edges.append(f"{_exit(last)} {_arrow(last)}|{again}| {first}")
            self.edges.append(f"{_exit(last)} {_arrow(last)} {exit_id}")


def _forks(block: Sketch) -> bool:
    return block.parallel and bool(block.parts)


def _entry(part: Sketch | Omitted) -> str:
    """Return the id at which a node is entered."""
    if isinstance(part, Omitted) or not part.holds:
        return f"n{part.number}"
    if _forks(part):
        return f"f{part.number}"
    return _entry(part.parts[0]) if part.parts else f"m{part.number}"


def _exit(part: Sketch | Omitted) -> str:
    """Return the id at which a node is left: a block's merge point."""
    holds = isinstance(part, Sketch) and part.holds
    return f"m{part.number}" if holds else f"n{part.number}"


def _arrow(part: Sketch | Omitted) -> str:
    return "-->" if part.adds else "-.->"


def _step_lines(step: Sketch) -> list[str]:
    lines = [step.name]
    if step.function is not None:
        lines.append(step.function)
    if step.reads is not None:
        lines.append(step.reads)
    if step.node.merge != "all_messages":
        lines.append(f"merge: {step.node.merge}")
    if step.capture is not None:
        lines.append(f"captures {step.capture}")
    return lines


def label(*lines: str) -> str:
    """Return lines as a quoted label, with characters escaped that mean something to Mermaid."""
    escaped = (
        # Every special character becomes an entity code.
        _MARK.sub(lambda mark: f"#{ord(mark[0])};", line.replace("\\n", _NO_BREAK))
        for line in lines
    )
    return f'"{"<br/>".join(escaped)}"'
