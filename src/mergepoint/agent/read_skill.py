"""Reading a skill from its folder: strictly, with every fault at its file and line."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mergepoint.agent.contract import contracts_in
from mergepoint.agent.skill import SKILL_FILE, TOOLS_FILE, Skill
from mergepoint.core.errors import Fault, SkillError
from mergepoint.core.path import nearest
from mergepoint.tree.strict_yaml import Document, YamlError, load

SECTIONS = {"When to use": "when", "Inputs": "inputs", "Logic Flow": "flow", "Example": "example"}
REQUIRED = ("When to use", "Inputs", "Logic Flow")
FIELDS = ("name", "description", "files")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_HEADING = re.compile(r"##[ \t]+(.+?)[ \t]*#*")
_FENCE = re.compile(r"^```(?:python|py)?[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_LONGEST = 1_000_000  # bytes


def read_skill(folder: Path | str) -> Skill:
    """Read a skill. Raises SkillError that lists everything that is wrong with it."""
    skill, faults = skill_in(Path(folder))
    if skill is None:
        raise SkillError(faults)
    return skill


def skill_in(folder: Path) -> tuple[Skill | None, list[Fault]]:
    """Give the skill in a folder, or None and everything that is wrong with it."""
    file = folder / SKILL_FILE
    try:
        data = file.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        return None, [Fault(str(file), f"{error.strerror or error}; a skill is its {SKILL_FILE}")]
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return None, [Fault(f"{file}:{line}", "this is not UTF-8; save the file as UTF-8")]
    if len(data) > _LONGEST:
        return None, [Fault(f"{file}:1", f"larger than {_LONGEST:,} bytes")]
    reading = _Reading(folder, file, text.splitlines())
    fields: dict[str, Any] = reading.fields()
    sections = reading.sections()
    tools_file = folder / TOOLS_FILE
    tools, faults = contracts_in(tools_file) if tools_file.is_file() else ((), [])
    faults = [*reading.faults, *faults]
    if faults:
        return None, faults
    return Skill(**fields, **sections, folder=folder, tools=tools), []


@dataclass
class _Heading:
    line: int
    title: str


class _Reading:
    """One SKILL.md, and what is wrong with it."""

    def __init__(self, folder: Path, file: Path, lines: list[str]) -> None:
        self.faults: list[Fault] = []
        self._folder = folder
        self._file = file
        self._lines = lines
        self._body = 0

    def _fault(self, line: int, problem: str) -> None:
        self.faults.append(Fault(f"{self._file}:{line}", problem))

    def fields(self) -> dict[str, Any]:
        """Give what the front matter says."""
        lines = self._lines
        ends = [n for n, line in enumerate(lines[1:], start=1) if line.rstrip() == "---"]
        if not lines or lines[0].rstrip() != "---" or not ends:
            self._fault(1, "begin with front matter: `---`, name and description, `---`")
            return {}
        self._body = ends[0] + 1
        try:
            found = load("\n" + "\n".join(lines[1 : ends[0]]) + "\n", source=str(self._file))
        except YamlError as error:
            self._fault(error.line, error.problem)
            return {}
        if not isinstance(found.value, dict):
            self._fault(2, "front matter is a mapping, such as `name: sales_report`")
            return {}
        for key in found.value:
            if key not in FIELDS:
                near = nearest(key, FIELDS)
                problem = f"no key {key!r} here{near}; there are: {', '.join(FIELDS)}"
                self._fault(found.line_of([key]), problem)
        return {
            "name": self._name(found),
            "description": self._description(found),
            "files": self._files(found),
        }

    def _name(self, found: Document) -> str:
        name = found.value.get("name")
        line = found.line_of(["name"])
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problem = f"name is a to z, 0 to 9 and _, from a letter on, not {name!r}"
            self._fault(line, "there is no name" if name is None else problem)
        elif name != self._folder.resolve().name:
            problem = f"name is {name!r}, its folder {self._folder.resolve().name!r}; rename one"
            self._fault(line, problem)
        return str(name)

    def _description(self, found: Document) -> str:
        said = found.value.get("description")
        if not isinstance(said, str) or not said.strip() or "\n" in said.strip():
            line = found.line_of(["description"])
            self._fault(line, "description is one line that says what the skill does")
        return str(said).strip()

    def _files(self, found: Document) -> Mapping[str, Path]:
        given = found.value.get("files", [])
        if not isinstance(given, list):
            self._fault(found.line_of(["files"]), "files is a list of names in the skill's folder")
            return {}
        files: dict[str, Path] = {}
        for number, name in enumerate(given):
            line = found.line_of(["files", number])
            parts = PurePosixPath(name).parts if isinstance(name, str) else ()
            if not parts or ".." in parts or parts[0] == "/":
                self._fault(line, f"file {name!r} is no name in the skill's folder")
            elif not (self._folder / name).is_file():
                self._fault(line, f"there is no file {name!r} in {self._folder}")
            else:
                files[name] = self._folder / name
        return files

    def sections(self) -> dict[str, Any]:
        """Give the texts of the sections, by field."""
        found: dict[str, str] = {}
        places = [*self._headings(), _Heading(len(self._lines) + 1, "")]
        for heading, following in itertools.pairwise(places):
            field = SECTIONS.get(heading.title)
            text = "\n".join(self._lines[heading.line : following.line - 1]).strip()
            if field is None:
                known = ", ".join(SECTIONS)
                near = nearest(heading.title, SECTIONS)
                self._fault(heading.line, f"no section {heading.title!r}{near}; there are: {known}")
            elif field in found:
                self._fault(heading.line, f"a second section {heading.title!r}; join the two")
            elif not text:
                self._fault(heading.line, f"the section {heading.title!r} is blank")
            else:
                found[field] = text
        given = {heading.title for heading in places}
        for title in REQUIRED:
            if title not in given:
                self._fault(len(self._lines) or 1, f"there is no section `## {title}`")
        if "example" in found:
            found["example"] = self._program(found["example"], places)
        return found

    def _headings(self) -> Iterator[_Heading]:
        fenced = False
        for number, line in enumerate(self._lines[self._body :], start=self._body + 1):
            fenced ^= line.startswith("```")
            title = None if fenced else _HEADING.fullmatch(line)
            if title:
                yield _Heading(number, title[1])

    def _program(self, text: str, places: list[_Heading]) -> str:
        """Give the program in the example."""
        line = next(one.line for one in places if one.title == "Example")
        program = _FENCE.search(text)
        if program is None:
            self._fault(line, "an example is a block of Python: ```python ... ```")
            return ""
        try:
            compile(program[1], str(self._file), "exec")
        except (SyntaxError, ValueError) as error:
            said = getattr(error, "msg", str(error))
            self._fault(line, f"the example does not compile: {said}")
        return program[1]
