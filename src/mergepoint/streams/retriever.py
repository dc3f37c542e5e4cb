"""Retriever: any LangChain retriever, given itself or by the name of where it is."""

from __future__ import annotations

import importlib
import re
from typing import Any

from langchain_core.retrievers import BaseRetriever

from mergepoint.streams.block_error import BlockError

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def retriever_problem(given: Any) -> str:
    """Say what is wrong with what was given for a retriever; nothing is imported."""
    if isinstance(given, BaseRetriever) or (isinstance(given, str) and _NAME.fullmatch(given)):
        return ""
    return "a retriever is a LangChain retriever, or the text 'module:name' of one"


def loaded(given: BaseRetriever | str) -> BaseRetriever:
    """Give the retriever; a text imports its module. Raises BlockError where there is none."""
    if isinstance(given, BaseRetriever):
        return given
    module, _, name = given.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:
        problem = f"cannot be loaded: {type(error).__name__}: {error}"
        raise BlockError(f"the retriever {given!r} {problem}") from error
    if not isinstance(found, BaseRetriever):
        raise BlockError(f"{given!r} is a {type(found).__name__} and no LangChain retriever")
    return found
