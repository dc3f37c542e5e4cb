"""Retrieval of documents: BM25, LangChain retrievers, folders of texts, and checked sums."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from langchain_core.retrievers import BaseRetriever

from mergepoint.core.errors import BlockError
from mergepoint.streams.params import named, named_problem

# score(q, d) = sum over the words of q of idf(w) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * n)),
# where tf is the word's count in the document, n the document's length over the average, and idf(w)
# = ln(1 + (N - df + 0.5) / (df + 0.5)) with N documents, df of them with the word. The added 1
# keeps the weight of frequent words above 0. Source: Robertson and Zaragoza, The Probabilistic
# Relevance Framework, Foundations and Trends in Information Retrieval 3(4), 2009,
# https://doi.org/10.1561/1500000019


K1 = 1.2
B = 0.75

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Return the words of a text, in case-folded form."""
    return _WORD.findall(text.casefold())


class BM25:
    """An index over texts for ranking by BM25.

    Args:
        texts: The documents.
        k1: Weight of repeated words, from 0.
        b: Weight of the document's length, 0 to 1.
    """

    def __init__(self, texts: Iterable[str], *, k1: float = K1, b: float = B) -> None:
        counts = [Counter(words(text)) for text in texts]
        lengths = [count.total() for count in counts]
        # Lengths are divided by the average, which is 0 if no document has a word.
        average = sum(lengths) / len(lengths) if any(lengths) else 1.0
        self._size = len(counts)
        self._k1 = k1
        self._damping = [k1 * (1 - b + b * length / average) for length in lengths]
        self._found: dict[str, list[tuple[int, int]]] = {}
        for number, count in enumerate(counts):
            for word, times in count.items():
                self._found.setdefault(word, []).append((number, times))

    def scores(self, query: str) -> dict[int, float]:
        """Return the scores of the documents that share a word with the query, by number from 0."""
        scores: dict[int, float] = {}
        for word in words(query):
            found = self._found.get(word, ())
            idf = math.log1p((self._size - len(found) + 0.5) / (len(found) + 0.5))
            for number, times in found:
                gain = idf * times * (self._k1 + 1) / (times + self._damping[number])
                scores[number] = scores.get(number, 0.0) + gain
        return scores

    def best(self, query: str, k: int) -> Sequence[tuple[int, float]]:
        """Return number and score of the k best documents; ties keep document order."""
        scores = self.scores(query)
        return sorted(scores.items(), key=lambda scored: (-scored[1], scored[0]))[:k]


def retriever_problem(given: Any) -> str:
    """Return the problem of a value for a retriever, or ""; nothing is imported."""
    if isinstance(given, BaseRetriever) or not named_problem(given):
        return ""
    return "a retriever must be a LangChain retriever, or the string 'module:name' of one"


def loaded(given: BaseRetriever | str) -> BaseRetriever:
    """Return the retriever, importing a `module:name`. Raise BlockError if it isn't one."""
    if isinstance(given, BaseRetriever):
        return given
    found = named(given)
    if not isinstance(found, BaseRetriever):
        raise BlockError(f"{given!r} is a {type(found).__name__}, not a LangChain retriever")
    return found


Split = Literal["none", "paragraphs"]

_BLANK_LINES = re.compile(r"\n\s*\n")


@dataclass(frozen=True, slots=True)
class Document:
    """A text, and the id by which it is cited."""

    id: str
    text: str


def documents_in(folder: Path, suffixes: Sequence[str]) -> Iterator[Document]:
    """Yield the files in a folder and its subfolders with one of the suffixes, by path.

    A document's id is its path relative to the folder. Raise BlockError if the folder is missing or
    has no such file, for a file that isn't UTF-8, and for a link that leaves the folder.
    """
    if not folder.is_dir():
        raise BlockError(f"the folder {str(folder)!r} doesn't exist")
    files = sorted(file for file in folder.rglob("*") if file.suffix in suffixes and file.is_file())
    if not files:
        raise BlockError(f"no file in {str(folder)!r} ends with {', '.join(suffixes)}")
    # A link could make a recipe read any file of the machine.
    inside = folder.resolve()
    for file in files:
        if not file.resolve().is_relative_to(inside):
            raise BlockError(
                f"{str(file)!r} is a link to {str(file.resolve())!r}, out of the folder; copy the "
                "file into it, or take the link away"
            )
        name = file.relative_to(folder).as_posix()
        # `utf-8-sig` removes the byte order mark with which some Windows editors begin a file.
        try:
            yield Document(name, file.read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError:
            raise BlockError(f"{str(file)!r} is not UTF-8; save it as UTF-8") from None


def split(documents: Iterable[Document], how: Split) -> Iterator[Document]:
    """Yield documents unchanged, or their paragraphs as `notes.md#0`, `notes.md#1`, and so on."""
    for document in documents:
        if how == "none":
            yield document
            continue
        parts = [part.strip() for part in _BLANK_LINES.split(document.text)]
        for number, part in enumerate(part for part in parts if part):
            yield Document(f"{document.id}#{number}", part)


_NUMBER = r"\d(?:[\d.,]*\d)?"
_CLAIM = re.compile(
    rf"((?:\(\s*)*{_NUMBER}\)*(?:\s*[-+*/x\u00d7\u00f7]\s*(?:\(\s*)*{_NUMBER}\)*)+)\s*=\s*(-?{_NUMBER})"
)
_WRITTEN = str.maketrans({"x": "*", "\u00d7": "*", "\u00f7": "/", ",": None})
_DOES: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
MOST = 50
"""Maximum number of claims checked in one text."""


def checked_sums(text: str) -> str:
    """Return a line for each claim such as `12 * 3 = 36` in a text, with its verdict.

    Numbers are exact fractions; commas within numbers are ignored. A result with decimals is right
    if it equals the exact result rounded to that many decimals. Without claims, the result is a
    sentence that says so.
    """
    found = [_told(claim[1], claim[2]) for claim in list(_CLAIM.finditer(text))[:MOST]]
    return "\n".join(found) or "There is nothing in it to calculate."


def _told(left: str, right: str) -> str:
    # Only the arithmetic nodes below are evaluated: the text comes from a model.
    try:
        value = _value(ast.parse(left.translate(_WRITTEN).strip(), mode="eval").body)
        said = Fraction(right.translate(_WRITTEN))
    except ZeroDivisionError:
        return f"{left.strip()} = {right}: nothing can be divided by 0"
    except (SyntaxError, ValueError) as error:
        return f"{left.strip()} = {right}: cannot be calculated ({error})"
    decimals = len(right.partition(".")[2])
    if value == said or (decimals and round(value, decimals) == said):
        return f"{left.strip()} = {right}: right"
    exact = value.numerator if value.denominator == 1 else f"{float(value):g}"
    claim = f"{left.strip()} = {right}"
    return f'{claim}: wrong, it is {exact}\nreplace "{claim}" with "{left.strip()} = {exact}"'


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.BinOp) and type(node.op) in _DOES:
        return _DOES[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        # By its text: the fraction of the float 0.1 isn't 1/10.
        return Fraction(str(node.value))
    raise ValueError("only + - * / and numbers")
