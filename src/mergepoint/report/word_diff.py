"""The words that differ between two texts, with a few of those around them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Change = Literal["same", "removed", "added"]

# A word with the spaces behind it; spaces at the start are a piece of their own.
_WORD: Final = re.compile(r"\S+\s*|\s+")
# Pairs of words beyond which a whole passage counts as replaced: matching takes their product.
_MOST_PAIRS: Final = 2_000_000
_FEW: Final = 4
_FAR: Final = 6


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text that is the same in both, or only in the first or in the second."""

    change: Change
    text: str


def word_diff(before: str, after: str) -> list[Piece]:
    """Return the pieces of both texts in order; removed words come before added ones."""
    one, other = _WORD.findall(before), _WORD.findall(after)
    start = _shared(one, other)
    end = _shared(one[start:][::-1], other[start:][::-1])
    middle = one[start : len(one) - end], other[start : len(other) - end]
    pieces = [Piece("same", "".join(one[:start])), *_pieces(*middle)]
    pieces.append(Piece("same", "".join(one[len(one) - end :])))
    return [piece for piece in pieces if piece.text]


def shortened(pieces: Sequence[Piece], *, around: int = 6, most: int = 60) -> list[Piece]:
    """Return pieces with an ellipsis in place of what is far from a difference.

    Args:
        pieces: The pieces of a word diff.
        around: The number of equal words that are left beside a difference.
        most: The number of words that are left of a removed or added piece.
    """
    found = []
    for number, piece in enumerate(pieces):
        words = _WORD.findall(piece.text)
        first, last = number == 0, number == len(pieces) - 1
        if piece.change != "same":
            kept = words if len(words) <= most else [*words[:most], "…"]
        elif len(words) <= (1 if first or last else 2) * around + 1:
            kept = words
        else:
            head = [] if first else words[:around]
            tail = [] if last else words[-around:]
            kept = [*head, "… ", *tail]
        found.append(Piece(piece.change, "".join(kept)))
    return found


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _pieces(one: Sequence[str], other: Sequence[str]) -> Iterator[Piece]:
    if len(one) * len(other) > _MOST_PAIRS:
        yield Piece("removed", "".join(one))
        yield Piece("added", "".join(other))
        return
    # By the word alone: a word at the end of a line is the same word.
    keys = [word.strip() for word in one], [word.strip() for word in other]
    matcher = difflib.SequenceMatcher(None, *keys, autojunk=False)
    # A few equal words between large changes are a coincidence, which nobody can read.
    blocks = _large(matcher.get_matching_blocks())
    at, on = 0, 0
    for block in blocks:
        yield Piece("removed", "".join(one[at : block.a]))
        yield Piece("added", "".join(other[on : block.b]))
        at, on = block.a + block.size, block.b + block.size
        same = one[block.a : at], other[block.b : on]
        # The last word of a text has no space behind it, which what follows would lack.
        spaced = same[0] and same[0][-1][-1:].isspace()
        yield Piece("same", "".join(same[0] if spaced else same[1]))


def _large(blocks: Sequence[difflib.Match]) -> Iterator[difflib.Match]:
    """Yield the matches that are long compared to the changes around them, and the last one."""
    for before, block, after in zip(
        [difflib.Match(0, 0, 0), *blocks], blocks, blocks[1:], strict=False
    ):
        gap = block.a - before.a - before.size + block.b - before.b - before.size
        gap += after.a - block.a - block.size + after.b - block.b - block.size
        if block.size >= _FEW or gap <= _FAR * block.size:
            yield block
    yield blocks[-1]
