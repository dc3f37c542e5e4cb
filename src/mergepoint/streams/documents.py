"""Documents: texts in which is searched, from a list or a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mergepoint.streams.block_error import BlockError

Split = Literal["none", "paragraphs"]

_BLANK_LINES = re.compile(r"\n\s*\n")


@dataclass(frozen=True, slots=True)
class Document:
    """A text, and the name by which it is cited."""

    id: str
    text: str


def documents_in(folder: Path, suffixes: Sequence[str]) -> Iterator[Document]:
    """Give the files of a folder and those below it with one of the suffixes, by path.

    The id of a document is its path from the folder on. Raises BlockError where the folder is
    missing or holds no such file, and for a file that is not UTF-8.
    """
    if not folder.is_dir():
        raise BlockError(f"there is no folder {str(folder)!r}")
    files = sorted(file for file in folder.rglob("*") if file.suffix in suffixes and file.is_file())
    if not files:
        raise BlockError(f"no file in {str(folder)!r} ends with {', '.join(suffixes)}")
    for file in files:
        name = file.relative_to(folder).as_posix()
        try:
            yield Document(name, file.read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError:
            raise BlockError(f"{str(file)!r} is not UTF-8; save it as UTF-8") from None


def split(documents: Iterable[Document], how: Split) -> Iterator[Document]:
    """Give documents as they are, or their paragraphs: `notes.md#0`, `notes.md#1` and on."""
    for document in documents:
        if how == "none":
            yield document
            continue
        parts = [part.strip() for part in _BLANK_LINES.split(document.text)]
        for number, part in enumerate(part for part in parts if part):
            yield Document(f"{document.id}#{number}", part)
