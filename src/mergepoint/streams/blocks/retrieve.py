"""retrieve: add matching documents to each Thing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from mergepoint.core.errors import BlockError
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import CONTENT, failed, value
from mergepoint.streams.params import NAMED, Params
from mergepoint.streams.registry import block
from mergepoint.streams.retrieval import (
    BM25,
    K1,
    B,
    Document,
    Split,
    documents_in,
    loaded,
    retriever_problem,
    split,
)
from mergepoint.streams.thing import Thing

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

    Searches a list of texts or a folder with BM25 (see `mergepoint.streams.retrieval`; words are
    sequences of letters and digits), or calls any LangChain retriever. Reads the content, or the
    prop named by `query`. Writes `query` and `sources`: a list of mappings with `id`, `text`, and
    `score` if known, best first. Failed Things pass unchanged. The results are noted: a resumed run
    doesn't search again.
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
