"""`mergepoint graph`: draw a tree, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mergepoint.apps.cli.arguments import TargetArgument
from mergepoint.apps.cli.options import Drawing, TracebackOption

EXAMPLES = (
    "mergepoint graph image_prompt",
    "mergepoint graph image_prompt -o image_prompt.svg",
    "mergepoint graph my.py:tree --format mermaid > tree.mmd",
)


def graph(
    target: TargetArgument,
    *,
    format_: Annotated[
        Drawing | None,
        typer.Option(
            "--format",
            "-f",
            help="Left out: by the end of FILE, else mermaid.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write it. Left out: stdout.",
            show_default=False,
        ),
    ] = None,
    traceback: TracebackOption = False,
) -> None:
    """Draw a tree as Mermaid text or SVG, with its merge points. Nothing is run."""
    from mergepoint.apps.cli.output import put, tell
    from mergepoint.report.draw import to_mermaid, to_svg
    from mergepoint.tree.target import resolve_target

    tree = resolve_target(target).tree
    by_name = Drawing.SVG if output and output.suffix.lower() == ".svg" else Drawing.MERMAID
    text = (to_svg if (format_ or by_name) == Drawing.SVG else to_mermaid)(tree)
    if output is None:
        put(text.rstrip("\n"))
        return
    output.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    tell(str(output))
