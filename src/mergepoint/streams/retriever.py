"""Retriever: any LangChain retriever, given itself or by the name of where it is."""

from __future__ import annotations

from typing import Any

from langchain_core.retrievers import BaseRetriever

from mergepoint.streams.block_error import BlockError
from mergepoint.streams.named import named, named_problem


def retriever_problem(given: Any) -> str:
    """Say what is wrong with what was given for a retriever; nothing is imported."""
    if isinstance(given, BaseRetriever) or not named_problem(given):
        return ""
    return "a retriever is a LangChain retriever, or the text 'module:name' of one"


def loaded(given: BaseRetriever | str) -> BaseRetriever:
    """Give the retriever; a text imports its module. Raises BlockError where there is none."""
    if isinstance(given, BaseRetriever):
        return given
    found = named(given)
    if not isinstance(found, BaseRetriever):
        raise BlockError(f"{given!r} is a {type(found).__name__} and no LangChain retriever")
    return found
