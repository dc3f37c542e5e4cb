"""Contract: what code that a model writes may call, read from a file of typed functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from mergepoint.core.errors import Fault

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
        """Give the contract as Python without a body, as a prompt shows it."""
        end = "\n" if "\n" in self.doc else ""
        doc = indent(f'"""{self.doc}{end}"""', "    ")
        return f"def {self.name}{self.signature}:\n{doc}"


def contracts_in(file: Path) -> tuple[tuple[Contract, ...], list[Fault]]:
    """Give the contracts of the public functions in a file, and all that is wrong with them.

    The file is read and not run. Names that begin with `_` are the file's own.
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
            problem = f"tool {node.name} is async; code calls tools as plain functions"
            faults.append(Fault(f"{file}:{node.lineno}", problem))
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        faults += [Fault(f"{file}:{line}", problem) for line, problem in _problems(node)]
        if any(one.name == node.name for one in contracts):
            faults.append(Fault(f"{file}:{node.lineno}", f"tool {node.name} is there twice"))
        returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
        signature = f"({ast.unparse(node.args)}){returns}"
        contracts.append(Contract(node.name, signature, ast.get_docstring(node) or ""))
    if not contracts and not faults:
        faults.append(Fault(f"{file}:1", "there is no function here; write one, or take it away"))
    return tuple(contracts), faults


def _problems(node: ast.FunctionDef) -> Iterator[tuple[int, str]]:
    """Give (line, problem) for everything that keeps a function from being a tool."""
    if not (ast.get_docstring(node) or "").strip():
        yield node.lineno, f"tool {node.name} has no docstring; say what it gives"
    given = node.args
    if given.vararg is not None or given.kwarg is not None:
        yield node.lineno, f"tool {node.name} takes any arguments; name and type each"
    for one in (*given.posonlyargs, *given.args, *given.kwonlyargs):
        if one.annotation is None:
            yield one.lineno, f"tool {node.name}: {one.arg} has no type; there are {_TYPES}"
        elif not _is_data(one.annotation):
            yield one.lineno, _no_data(node.name, one.arg, one.annotation)
    if node.returns is None:
        yield node.lineno, f"tool {node.name} does not say what it gives (`-> ...`)"
    elif not _is_data(node.returns):
        yield node.returns.lineno, _no_data(node.name, "what it gives", node.returns)


def _no_data(tool: str, what: str, type_: ast.expr) -> str:
    said = ast.unparse(type_)
    return f"tool {tool}: {what} is {said!r}, which is no JSON data; there are {_TYPES}"


def _is_data(type_: ast.expr) -> bool:
    """Say whether an annotation is of JSON data."""
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
