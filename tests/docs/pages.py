"""Pages: the Markdown files of the project, their fenced blocks, headings and links.

What a comment in the line before a fence means:

    <!-- output -->           what the block before it prints; `...` stands for anything
    <!-- not run: reason -->  a python block that cannot run here
    <!-- runs -->             shell commands that run here and succeed
    <!-- tree -->             YAML that is a tree without faults
    <!-- file: NAME -->       the block is also a file of that name for the blocks after it

Blocks of shell commands without a mark are run by `tests/acceptance`, each command on its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    path.relative_to(ROOT).as_posix()
    for path in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    )
)

SHELLS = ("sh", "bash", "console", "shell")

_FENCE = re.compile(r"(?P<ticks>`{3,})(?P<language>\w*)")
_MARK = re.compile(r"<!-- (?P<mark>[^:]+?)(?:: (?P<value>.*?))? ?-->")
_LINK = re.compile(r"""\]\((?P<text>[^)\s]+)\)|\b(?:src|href)="(?P<attribute>[^"]+)\"""")
_CODE = re.compile(r"`[^`]*`")
_COMMAND = re.compile(r"`((?:mergepoint|chainlit run|langgraph) [^`]+)`")


@dataclass(frozen=True)
class Fence:
    """A fenced block: its text, the 1-based number of its first line, and the marks before it."""

    language: str
    text: str
    line: int
    marks: dict[str, str]

    def commands(self) -> list[str]:
        """Return the scripts of a block: the whole of one that runs, else each of its commands.

        A command goes on in the next line where a line ends with a backslash. Blocks of another
        language have none.
        """
        if self.language not in SHELLS:
            return []
        if "runs" in self.marks:
            return [self.text]
        joined = self.text.replace("\\\n", "\0")
        lines = [line.replace("\0", "\\\n") for line in joined.splitlines()]
        return [line for line in lines if line.strip() and not line.startswith("#")]


@dataclass(frozen=True)
class Page:
    """A Markdown text; `name` is its path from the project's root."""

    name: str
    text: str

    @classmethod
    def read(cls, name: str) -> Page:
        """Return a page of the project."""
        return cls(name, (ROOT / name).read_text(encoding="utf-8"))

    def fences(self) -> list[Fence]:
        """Return the fenced blocks in order. Raises ValueError for one that is not closed."""
        found: list[Fence] = []
        lines = iter(enumerate(self.text.splitlines(), start=1))
        marks: dict[str, str] = {}
        for number, line in lines:
            if mark := _MARK.fullmatch(line):
                marks[mark["mark"]] = mark["value"] or ""
            elif fence := _FENCE.fullmatch(line):
                text = _until(fence["ticks"], lines, f"{self.name}:{number}")
                found.append(Fence(fence["language"], text, number + 1, marks))
                marks = {}
            else:
                marks = {}
        return found

    def prose(self) -> list[tuple[int, str]]:
        """Return the lines outside of fenced blocks, with their numbers."""
        kept: list[tuple[int, str]] = []
        inside = False
        for number, line in enumerate(self.text.splitlines(), start=1):
            if _FENCE.match(line):
                inside = not inside
            elif not inside:
                kept.append((number, line))
        return kept

    def commands(self) -> list[tuple[int, str]]:
        """Return the commands in the sentences, with their lines."""
        return [
            (number, found) for number, line in self.prose() for found in _COMMAND.findall(line)
        ]

    def links(self) -> list[tuple[int, str]]:
        """Return the targets of links and images, with their lines."""
        return [
            (number, found["text"] or found["attribute"])
            for number, line in self.prose()
            for found in _LINK.finditer(_CODE.sub("", line))
        ]

    def anchors(self) -> set[str]:
        """Return the anchors of the headings, as GitHub makes them."""
        return {_anchor(line) for _, line in self.prose() if line.startswith("#")}


def _until(ticks: str, lines: Iterator[tuple[int, str]], where: str) -> str:
    text: list[str] = []
    for _, line in lines:
        if line == ticks:
            return "".join(f"{kept}\n" for kept in text)
        text.append(line)
    raise ValueError(f"{where}: the block is not closed")


def _anchor(heading: str) -> str:
    plain = re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower())
    return plain.replace(" ", "-")


def broken_links(page: Page) -> list[str]:
    """Return which links of a page lead to no file, or to no heading, of the project."""
    faults: list[str] = []
    for number, target in page.links():
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page.name).parent / path
        if path and not file.exists():
            faults.append(f"{page.name}:{number}: there is no {target}")
            continue
        there = Page(path, file.read_text(encoding="utf-8")) if path and anchor else page
        if anchor and anchor not in there.anchors():
            faults.append(f"{page.name}:{number}: there is no heading for {target}")
    return faults
