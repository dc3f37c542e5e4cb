"""retrieve: what documents say about it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from mergepoint.streams.block import block
from mergepoint.streams.block_error import BlockError
from mergepoint.streams.bm25 import BM25, K1, B
from mergepoint.streams.context import BlockContext
from mergepoint.streams.documents import Document, Split, documents_in, split
from mergepoint.streams.named import NAMED
from mergepoint.streams.params import Params
from mergepoint.streams.reading import CONTENT, failed, value
from mergepoint.streams.retriever import loaded, retriever_problem
from mergepoint.streams.thing import Thing

Sources = list[dict[str, Any]]
Search = Callable[[str], Awaitable[Sources]]


def _retriever(given: Any) -> Any:
    if problem := retriever_problem(given):
        raise ValueError(problem)
    return given


class Retrieve(Params):
    """Where is searched, what for, and how much is taken."""

    documents: list[str] | None = Field(default=None, description="texts to search in")
    folder: str | None = Field(
        default=None, description="a folder of texts to search in, with BM25"
    )
    retriever: Annotated[
        Any, AfterValidator(_retriever), NAMED, WithJsonSchema({"type": ["string", "null"]})
    ] = Field(
        default=None, description="a LangChain retriever: in Python itself, in YAML `module:name`"
    )
    k: int = Field(default=4, ge=1, description="at most so many")
    query: str = Field(default="content", description="the prop that is looked for, or content")
    into: str = Field(default="sources", min_length=1, description="the prop that is written")
    split: Split = Field(
        default="none", description="search in whole documents, or in their paragraphs"
    )
    suffixes: list[str] = Field(
        default=[".txt", ".md"], min_length=1, description="with folder: which files are read"
    )
    k1: float = Field(default=K1, ge=0, description="BM25: how much repetition counts")
    b: float = Field(default=B, ge=0, le=1, description="BM25: how much a document's length counts")

    @model_validator(mode="after")
    def _one(self) -> Retrieve:
        places = (self.documents, self.folder, self.retriever)
        if sum(place is not None for place in places) != 1:
            raise ValueError("give exactly one of documents, folder, retriever")
        own = {"split", "suffixes", "k1", "b"} & self.model_fields_set
        if self.retriever is not None and own:
            raise ValueError(f"{', '.join(sorted(own))} belongs to documents and folder")
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
    """Add to each Thing the documents that fit it best.

    Searches a list of texts or a folder by BM25 (see `mergepoint.streams.bm25`; words are what
    stands between spaces and marks), or asks any LangChain retriever. Reads the content, or the
    prop `query` names; writes `query`, and `sources`: a list of mappings with `id`, `text` and,
    where it is known, `score`, best first. Things that failed pass as they are. What was found is
    noted, and a resumed run does not search again.
    """
    search = ctx.kept(partial(_search, params))

    async def found(thing: Thing) -> Thing:
        if failed(thing):
            return thing
        query = value(thing, params.query)
        if not isinstance(query, str):
            raise BlockError(f"{params.query} is no text to look for", item=thing.id)
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
    found = await retriever.ainvoke(query)
    return [
        {
            "id": str(one.id or one.metadata.get("source") or number),
            "text": one.page_content,
            **({"score": one.metadata["score"]} if "score" in one.metadata else {}),
        }
        for number, one in enumerate(found[:k])
    ]
