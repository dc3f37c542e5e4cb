"""retrieve: add matching documents to each Thing, found by BM25 or by a LangChain retriever."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from langchain_core.retrievers import BaseRetriever
from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from mergepoint.core.errors import BlockError
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import CONTENT, failed, value
from mergepoint.streams.params import NAMED, Params, named, named_problem
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing

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


Sources = list[dict[str, Any]]
Search = Callable[[str], Awaitable[Sources]]


def _retriever(given: Any) -> Any:
    if problem := retriever_problem(given):
        raise ValueError(problem)
    return given


class Retrieve(Params):
    """The documents, the query, and the number of results."""

    documents: list[str] | None = Field(default=None, description="texts to search in")
    folder: str | None = Field(
        default=None, description="a folder of texts to search in, with BM25"
    )
    retriever: Annotated[
        Any, AfterValidator(_retriever), NAMED, WithJsonSchema({"type": ["string", "null"]})
    ] = Field(default=None, description="a LangChain retriever; in YAML, `module:name`")
    k: int = Field(default=4, ge=1, description="maximum number of results")
    query: str = Field(default="content", description="the prop that is searched for, or content")
    into: str = Field(default="sources", min_length=1, description="the prop that is written")
    split: Split = Field(
        default="none", description="search in whole documents, or in their paragraphs"
    )
    suffixes: list[str] = Field(
        default=[".txt", ".md"], min_length=1, description="with folder: which files are read"
    )
    k1: float = Field(default=K1, ge=0, description="BM25: weight of repeated words")
    b: float = Field(default=B, ge=0, le=1, description="BM25: weight of a document's length")

    @model_validator(mode="after")
    def _one(self) -> Retrieve:
        places = (self.documents, self.folder, self.retriever)
        if sum(place is not None for place in places) != 1:
            raise ValueError("set exactly one of documents, folder, retriever")
        own = {"split", "suffixes", "k1", "b"} & self.model_fields_set
        if self.retriever is not None and own:
            raise ValueError(f"{', '.join(sorted(own))} requires documents or folder")
        return self


@block(
    "retrieve",
    params=Retrieve,
    needs=lambda params: () if params.query == CONTENT else (params.query,),
    adds=lambda params: ("query", params.into),
    reaches_out=True,
)
async def retrieve(
    items: AsyncIterator[Thing], params: Retrieve, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Add to each Thing the documents that match it best.

    Searches a list of texts or a folder with BM25 (words are sequences of letters and digits), or
    calls any LangChain retriever. Reads the content, or the prop named by `query`. Writes `query`
    and `sources`: a list of mappings with `id`, `text`, and `score` if known, best first. Failed
    Things pass unchanged. The results are noted: a resumed run doesn't search again.
    """
    # The index is built once per stage and run, not once per batch.
    search = ctx.kept(partial(_search, params))

    async def found(thing: Thing) -> Thing:
        if failed(thing):
            return thing
        query = value(thing, params.query)
        if not isinstance(query, str):
            raise BlockError(f"{params.query} must be a string to search for", item=thing.id)
        key = f"sources of {thing.id} after {len(thing.history)}"
        sources = await ctx.once(key, partial(search, query))
        return thing.plus({"query": query, params.into: sources})

    async with aclosing(ctx.map(items, found)) as results:
        async for thing in results:
            yield thing


def _search(params: Retrieve) -> Search:
    if params.retriever is not None:
        return partial(_asked, loaded(params.retriever), params.k)
    if params.folder is not None:
        documents = documents_in(Path(params.folder), params.suffixes)
    else:
        texts = params.documents or []
        documents = (Document(str(number), text) for number, text in enumerate(texts))
    parts = list(split(documents, params.split))
    index = BM25((part.text for part in parts), k1=params.k1, b=params.b)
    return partial(_ranked, index, parts, params.k)


async def _ranked(index: BM25, parts: Sequence[Document], k: int, query: str) -> Sources:
    return [
        {"id": parts[number].id, "text": parts[number].text, "score": round(score, 6)}
        for number, score in index.best(query, k)
    ]


async def _asked(retriever: Any, k: int, query: str) -> Sources:
    # A retriever has a `k` of its own and may return more.
    found = await retriever.ainvoke(query)
    return [
        {
            "id": str(one.id or one.metadata.get("source") or number),
            "text": one.page_content,
            **({"score": one.metadata["score"]} if "score" in one.metadata else {}),
        }
        for number, one in enumerate(found[:k])
    ]
