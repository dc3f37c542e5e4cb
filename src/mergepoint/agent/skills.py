"""Skills: reading, validation, and the bundled ones."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from textwrap import indent
from types import MappingProxyType
from typing import Any

from mergepoint.core.errors import Fault, SkillError
from mergepoint.core.paths import nearest
from mergepoint.core.strict_yaml import YamlDocument, YamlError, load

_PLAIN = frozenset({"str", "int", "float", "bool", "None"})
_TYPES = "str, int, float, bool, None, list[...], dict[str, ...], Any, and unions of them"


@dataclass(frozen=True, slots=True)
class Contract:
    """A tool as code sees it: its name, its typed signature and its docstring."""

    name: str
    signature: str
    doc: str

    @property
    def text(self) -> str:
        """Return the contract as Python without a body, for a prompt."""
        end = "\n" if "\n" in self.doc else ""
        doc = indent(f'"""{self.doc}{end}"""', "    ")
        return f"def {self.name}{self.signature}:\n{doc}"


def contracts_in(file: Path) -> tuple[tuple[Contract, ...], list[Fault]]:
    """Return the contracts of the public functions in a file, and all its problems.

    The file is read and not run. Names that begin with `_` are private.
    """
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    except SyntaxError as error:
        return (), [Fault(f"{file}:{error.lineno or 1}", f"this is not Python: {error.msg}")]
    except (UnicodeDecodeError, ValueError) as error:
        return (), [Fault(f"{file}:1", f"this is not Python in UTF-8: {error}")]
    contracts: list[Contract] = []
    faults: list[Fault] = []
    for node in tree.body:
        if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_"):
            problem = f"tool {node.name} is async, but programs call tools as plain functions"
            faults.append(Fault(f"{file}:{node.lineno}", problem))
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        faults += [Fault(f"{file}:{line}", problem) for line, problem in _problems(node)]
        if any(one.name == node.name for one in contracts):
            faults.append(Fault(f"{file}:{node.lineno}", f"tool {node.name} is defined twice"))
        returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
        signature = f"({ast.unparse(node.args)}){returns}"
        contracts.append(Contract(node.name, signature, ast.get_docstring(node) or ""))
    if not contracts and not faults:
        problem = f"the file has no public function. Write one, or delete {TOOLS_FILE}"
        faults.append(Fault(f"{file}:1", problem))
    return tuple(contracts), faults


def _problems(node: ast.FunctionDef) -> Iterator[tuple[int, str]]:
    """Yield (line, problem) for everything that prevents a function from being a tool."""
    if not (ast.get_docstring(node) or "").strip():
        yield node.lineno, f"tool {node.name} has no docstring. Describe its result"
    given = node.args
    if given.vararg is not None or given.kwarg is not None:
        yield node.lineno, f"tool {node.name} takes any arguments. Name and type each"
    for one in (*given.posonlyargs, *given.args, *given.kwonlyargs):
        if one.annotation is None:
            yield one.lineno, f"tool {node.name}: {one.arg} has no type. Use one of {_TYPES}"
        elif not _is_data(one.annotation):
            yield one.lineno, _no_data(node.name, one.arg, one.annotation)
    if node.returns is None:
        yield node.lineno, f"tool {node.name} has no return type. Add `-> ...`"
    elif not _is_data(node.returns):
        yield node.returns.lineno, _no_data(node.name, "its return type", node.returns)


def _no_data(tool: str, what: str, type_: ast.expr) -> str:
    text = ast.unparse(type_)
    return f"tool {tool}: {what} is {text!r}, which isn't JSON data. Use one of {_TYPES}"


def _is_data(type_: ast.expr) -> bool:
    """Return whether an annotation is a JSON type."""
    match type_:
        case ast.Constant(value=None):
            return True
        case ast.Name(id="Any"):
            return True
        case ast.Name(id=name):
            return name in _PLAIN
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_data(left) and _is_data(right)
        case ast.Subscript(value=ast.Name(id="list"), slice=inner):
            return _is_data(inner)
        case ast.Subscript(
            value=ast.Name(id="dict"), slice=ast.Tuple(elts=[ast.Name(id="str"), inner])
        ):
            return _is_data(inner)
    return False


SKILL_FILE = "SKILL.md"
TOOLS_FILE = "tools.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """The content of a SKILL.md, with its tools and files.

    `name` and `description` are for choosing; `when`, `inputs` and `flow` are the texts of the
    sections "When to use", "Inputs" and "Logic Flow"; `example` is an example program. `tools` are
    the functions that its code may call, `files` the data in its work folder, by name.
    """

    name: str
    description: str
    when: str
    inputs: str
    flow: str
    folder: Path
    example: str = ""
    tools: tuple[Contract, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", MappingProxyType(dict(self.files)))

    @property
    def contracts(self) -> str:
        """Return the tools as Python without bodies, for a prompt."""
        return "\n\n".join(tool.text for tool in self.tools)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Return the tools as functions. This runs its `tools.py` here, not in a sandbox.

        Raises SkillError if it cannot be run.
        """
        if not self.tools:
            return {}
        file = self.folder / TOOLS_FILE
        # Not in sys.modules: skills of two libraries may have the same name.
        spec = importlib.util.spec_from_file_location(f"mergepoint_skill_{self.name}", file)
        if spec is None or spec.loader is None:
            raise SkillError([Fault(str(file), "this file cannot be imported")])
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            problem = f"this cannot be run: {type(error).__name__}: {error}"
            raise SkillError([Fault(str(file), problem)]) from error
        return {tool.name: getattr(module, tool.name) for tool in self.tools}


SECTIONS = {"When to use": "when", "Inputs": "inputs", "Logic Flow": "flow", "Example": "example"}
REQUIRED = ("When to use", "Inputs", "Logic Flow")
FIELDS = ("name", "description", "files")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_HEADING = re.compile(r"##[ \t]+(.+?)[ \t]*#*")
_FENCE = re.compile(r"^```(?:python|py)?[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_LONGEST = 1_000_000  # bytes


def read_skill(folder: Path | str) -> Skill:
    """Read a skill. Raises SkillError that lists all problems."""
    skill, faults = skill_in(Path(folder))
    if skill is None:
        raise SkillError(faults)
    return skill


def skill_in(folder: Path) -> tuple[Skill | None, list[Fault]]:
    """Return the skill in a folder, or None and all problems."""
    file = folder / SKILL_FILE
    # Before anything is read: a link could show the model a file of another folder.
    links = [_out_of(folder, one) for one in (SKILL_FILE, TOOLS_FILE)]
    if faults := [fault for fault in links if fault is not None]:
        return None, faults
    try:
        data = file.read_bytes()
        # Editors on Windows write a byte order mark, which would hide the front matter's `---`.
        text = data.decode("utf-8-sig")
    except OSError as error:
        return None, [Fault(str(file), f"{error.strerror or error}; a skill is its {SKILL_FILE}")]
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return None, [Fault(f"{file}:{line}", "this is not UTF-8; save the file as UTF-8")]
    if len(data) > _LONGEST:
        return None, [Fault(f"{file}:1", f"larger than {_LONGEST:,} bytes")]
    reading = _SkillReader(folder, file, text.splitlines())
    fields: dict[str, Any] = reading.fields()
    sections = reading.sections()
    tools_file = folder / TOOLS_FILE
    tools, faults = contracts_in(tools_file) if tools_file.is_file() else ((), [])
    faults = [*reading.faults, *faults]
    if faults:
        return None, faults
    return Skill(**fields, **sections, folder=folder, tools=tools), []


def _out_of(folder: Path, name: str) -> Fault | None:
    """Return the problem of a file that is a link out of the skill's folder, or None."""
    target = (folder / name).resolve()
    if target.is_relative_to(folder.resolve()):
        return None
    problem = f"this is a link to {target}, out of the skill's folder; copy the file into it"
    return Fault(str(folder / name), problem)


@dataclass
class _Heading:
    line: int
    title: str


class _SkillReader:
    """The reading of one SKILL.md, with its problems."""

    def __init__(self, folder: Path, file: Path, lines: list[str]) -> None:
        self.faults: list[Fault] = []
        self._folder = folder
        self._file = file
        self._lines = lines
        self._body = 0

    def _fault(self, line: int, problem: str) -> None:
        self.faults.append(Fault(f"{self._file}:{line}", problem))

    def fields(self) -> dict[str, Any]:
        """Return the fields of the front matter."""
        lines = self._lines
        ends = [n for n, line in enumerate(lines[1:], start=1) if line.rstrip() == "---"]
        if not lines or lines[0].rstrip() != "---" or not ends:
            self._fault(1, "begin with front matter: `---`, name and description, `---`")
            return {}
        self._body = ends[0] + 1
        try:
            # The blank first line stands for `---`, so that errors have the file's line numbers.
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
                problem = f"unknown key {key!r}{near}. Use one of {', '.join(FIELDS)}"
                self._fault(found.line_of([key]), problem)
        name, said = self._name(found), found.value.get("description")
        if not isinstance(said, str) or not said.strip() or "\n" in said.strip():
            line = found.line_of(["description"])
            self._fault(line, "description must be one line of text")
        return {
            "name": name,
            "description": str(said).strip(),
            "files": self._files(found),
        }

    def _name(self, found: YamlDocument) -> str:
        name = found.value.get("name")
        line = found.line_of(["name"])
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problem = f"name must start with a letter and have only a to z, 0 to 9 and _: {name!r}"
            self._fault(line, "the name is missing" if name is None else problem)
        elif name != self._folder.resolve().name:
            problem = f"name is {name!r}, its folder {self._folder.resolve().name!r}; rename one"
            self._fault(line, problem)
        return str(name)

    def _files(self, found: YamlDocument) -> Mapping[str, Path]:
        given = found.value.get("files", [])
        if not isinstance(given, list):
            problem = "files must be a list of names in the skill's folder"
            self._fault(found.line_of(["files"]), problem)
            return {}
        files: dict[str, Path] = {}
        for number, name in enumerate(given):
            line = found.line_of(["files", number])
            parts = PurePosixPath(name).parts if isinstance(name, str) else ()
            if not parts or ".." in parts or parts[0] == "/":
                self._fault(line, f"file {name!r} isn't a name in the skill's folder")
            elif not (self._folder / name).is_file():
                self._fault(line, f"file {name!r} doesn't exist in {self._folder}")
            elif (link := _out_of(self._folder, name)) is not None:
                self._fault(line, f"file {name!r}: {link.problem}")
            else:
                files[name] = self._folder / name
        return files

    def sections(self) -> dict[str, Any]:
        """Return the texts of the sections, by field."""
        found: dict[str, str] = {}
        places = [*self._headings(), _Heading(len(self._lines) + 1, "")]
        for heading, following in itertools.pairwise(places):
            field = SECTIONS.get(heading.title)
            text = "\n".join(self._lines[heading.line : following.line - 1]).strip()
            if field is None:
                known = ", ".join(SECTIONS)
                near = nearest(heading.title, SECTIONS)
                problem = f"unknown section {heading.title!r}{near}. Use one of {known}"
                self._fault(heading.line, problem)
            elif field in found:
                self._fault(heading.line, f"section {heading.title!r} occurs twice. Join the two")
            elif not text:
                self._fault(heading.line, f"the section {heading.title!r} is blank")
            else:
                found[field] = text
        given = {heading.title for heading in places}
        for title in REQUIRED:
            if title not in given:
                self._fault(len(self._lines) or 1, f"the section `## {title}` is missing")
        if "example" in found:
            found["example"] = self._program(found["example"], places)
        return found

    def _headings(self) -> Iterator[_Heading]:
        # A `##` inside a code block is a comment of the example, not a heading.
        fenced = False
        for number, line in enumerate(self._lines[self._body :], start=self._body + 1):
            fenced ^= line.startswith("```")
            title = None if fenced else _HEADING.fullmatch(line)
            if title:
                yield _Heading(number, title[1])

    def _program(self, text: str, places: list[_Heading]) -> str:
        line = next(one.line for one in places if one.title == "Example")
        program = _FENCE.search(text)
        if program is None:
            self._fault(line, "the example must be a block of Python: ```python ... ```")
            return ""
        try:
            compile(program[1], str(self._file), "exec")
        except (SyntaxError, ValueError) as error:
            said = getattr(error, "msg", str(error))
            self._fault(line, f"the example does not compile: {said}")
        return program[1]


EXAMPLES = Path(__file__).parent / "bundled_skills"
"""The folder of the bundled skills, with their sample data."""


class SkillLibrary(Mapping[str, Skill]):
    """Skills by name, in order. Two skills with the same name raise SkillError."""

    def __init__(self, skills: Iterable[Skill] = ()) -> None:
        self._skills: dict[str, Skill] = {}
        faults = []
        for skill in skills:
            known = self._skills.setdefault(skill.name, skill)
            if known is not skill:
                problem = f"skill {skill.name!r} is in {known.folder} too; rename one"
                faults.append(Fault(str(skill.folder / SKILL_FILE), problem))
        if faults:
            raise SkillError(faults)

    @classmethod
    def at(cls, *folders: Path | str) -> SkillLibrary:
        """Read every skill in some folders, in order of their names.

        Each skill is a folder with a SKILL.md. Raises SkillError that lists all problems.
        """
        skills: list[Skill] = []
        faults: list[Fault] = []
        for folder in map(Path, folders):
            found = _folders(folder)
            if not found:
                problem = f"no skill found. A skill is a folder with a {SKILL_FILE}"
                faults.append(Fault(str(folder), problem))
            for one in found:
                skill, wrong = skill_in(one)
                faults += wrong
                skills += [] if skill is None else [skill]
        if faults:
            raise SkillError(faults)
        return cls(skills)

    @property
    def files(self) -> dict[str, Path]:
        """Return the files of all skills, by name."""
        return {name: path for skill in self.values() for name, path in skill.files.items()}

    def __getitem__(self, name: str) -> Skill:
        if name not in self._skills:
            names = ", ".join(self._skills) or "none"
            raise KeyError(f"unknown skill {name!r}{nearest(name, self._skills)}. Skills: {names}")
        return self._skills[name]

    def __contains__(self, name: object) -> bool:
        return name in self._skills

    def __iter__(self) -> Iterator[str]:
        return iter(self._skills)

    def __len__(self) -> int:
        return len(self._skills)

    def __repr__(self) -> str:
        return f"SkillLibrary({', '.join(self._skills)})"


@cache
def bundled_skills() -> SkillLibrary:
    """Return the skills of the package, which are read once per process."""
    return SkillLibrary.at(EXAMPLES)


def _folders(folder: Path) -> list[Path]:
    if (folder / SKILL_FILE).is_file():
        return [folder]
    if not folder.is_dir():
        return []
    hidden = ("_", ".")
    return sorted(
        one for one in folder.iterdir() if one.is_dir() and not one.name.startswith(hidden)
    )
