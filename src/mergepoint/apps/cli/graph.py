"""`mergepoint graph`: draw a tree or a recipe, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from mergepoint.apps.cli.option_binding import option
from mergepoint.apps.cli.options import Blocks, TargetArgument, Traceback

EXAMPLES = (
    "mergepoint graph image_prompt",
    "mergepoint graph image_prompt -o image_prompt.svg",
    "mergepoint graph image_prompt --depth 1 --dark -o overview.svg",
    "mergepoint graph my.py:tree --format mermaid > tree.mmd",
    "mergepoint graph tree_of_thoughts -o tree_of_thoughts.svg",
)

Format = Literal["mermaid", "svg"]


def graph(
    target: TargetArgument,
    *,
    format_: Annotated[
        Format | None,
        option("--format", "-f", help="Format.", default="by the suffix of FILE, or mermaid"),
    ] = None,
    output: Annotated[
        Path | None,
        option("--output", "-o", metavar="FILE", help="File to write.", default="stdout"),
    ] = None,
    depth: Annotated[
        int | None,
        option(
            "--depth", metavar="N", min=1, help="Levels of a tree below its root.", default="all"
        ),
    ] = None,
    no_fold: Annotated[
        bool,
        option(
            "--no-fold",
            help="Draw each block of a tree, even if three or more in a row have the same "
            "structure.",
        ),
    ] = False,
    dark: Annotated[bool, option("--dark", help="Use dark colors (SVG).")] = False,
    blocks: Blocks = (),
    traceback: Traceback = False,
) -> None:
    """Draw a tree with its merge points, or a recipe. Nothing is run."""
    from mergepoint.apps.cli.errors import CommandError
    from mergepoint.apps.cli.inputs import load_blocks
    from mergepoint.targets import find_target

    load_blocks(blocks)
    found = find_target(target)
    svg = _format(format_, output, dark=dark) == "svg"
    theme: Literal["light", "dark"] = "dark" if dark else "light"
    if found.recipe is not None:
        from mergepoint.streams import describe
        from mergepoint.streams.planning import plan

        if depth is not None or no_fold:
            raise CommandError(f"--depth and --no-fold are only for trees; {target!r} is a recipe.")
        planned = plan(found.recipe, library=found.library)
        text = describe.to_svg(planned, theme=theme) if svg else describe.to_mermaid(planned)
    else:
        from mergepoint.report.svg import to_mermaid, to_svg

        assert found.tree is not None  # noqa: S101  (a target is one of both)
        tree, fold = found.tree, not no_fold
        if svg:
            text = to_svg(tree, depth=depth, fold=fold, theme=theme)
        else:
            text = to_mermaid(tree, depth=depth, fold=fold)
    _write(text, output)


def _format(wanted: Format | None, output: Path | None, *, dark: bool) -> Format:
    """Return the format that is set, or that of the file's name, or Mermaid.

    Raises BadParameter for a dark drawing in Mermaid.
    """
    by_name: Format = "svg" if output and output.suffix.lower() == ".svg" else "mermaid"
    if dark and (wanted or by_name) != "svg":
        raise typer.BadParameter("Mermaid takes its colors from its page. Add --format svg.")
    return wanted or by_name


def _write(text: str, output: Path | None) -> None:
    """Write a drawing to stdout, or to a file whose name is then reported."""
    from mergepoint.apps.cli.output import put, tell

    if output is None:
        put(text.rstrip("\n"))
        return
    output.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    tell(str(output))
