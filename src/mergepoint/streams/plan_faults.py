"""PlanFaults: what is wrong with a recipe and those inside of it, in the order of their files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from mergepoint.streams.form_error import FormError
from mergepoint.streams.knobs import Location
from mergepoint.streams.recipe import Recipe
from mergepoint.tree.strict_yaml import Document


class PlanFaults:
    """The faults that were found on the way through a recipe, each told once.

    They stand by the line, in the file of the outermost recipe, of the stage that they are in. One
    of a file that several stages name is told at the first of them.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[tuple[int, ...], str]] = {}
        self._way: list[int] = []

    @property
    def lines(self) -> list[str]:
        """Give what is wrong, in order."""
        return [text for _, text in sorted(self._found.values(), key=lambda found: found[0])]

    def add(self, recipe: Recipe, at: Location, stage_id: str, problem: str) -> None:
        """Take down what is wrong at a place in a recipe."""
        place = "" if recipe.document is None else recipe.document.where(at)
        text = f"{stage_id}: {problem}"
        self._note(
            (place or stage_id, problem), _line(recipe, at), f"{place}: {text}" if place else text
        )

    def take(self, error: FormError) -> None:
        """Take over what is wrong with the form of a file."""
        for fault in error.faults:
            self._note((fault.text, ""), fault.line, fault.text)

    @contextmanager
    def inside(self, recipe: Recipe, at: Location) -> Iterator[None]:
        """Say that what is found now is inside of a stage of a recipe, in a file of its own."""
        self._way.append(_line(recipe, at))
        try:
            yield
        finally:
            self._way.pop()

    def _note(self, key: tuple[str, str], line: int, text: str) -> None:
        self._found.setdefault(key, ((*self._way, line), text))


def _line(recipe: Recipe, at: Location) -> int:
    """Give the line of a place; of a recipe that is in no file, the number of the stage."""
    if recipe.document is not None:
        return recipe.document.line_of(at)
    return int(at[1]) + 1 if at[:1] == ("stages",) else 0


@dataclass(frozen=True)
class _Part:
    """A list of stages inside of a document."""

    document: Document
    place: Location

    def where(self, location: Location) -> str:
        """Give file and line of a place in it; its first word, stages, is the part itself."""
        return self.document.where((*self.place, *location[1:]))

    def line_of(self, location: Location) -> int:
        """Give the line of a place in it."""
        return self.document.line_of((*self.place, *location[1:]))


def part(document: Document | None, place: Location) -> Document | None:
    """Give the stages at a place in a document, as if they were a recipe's."""
    return None if document is None else cast("Document", _Part(document, place))
