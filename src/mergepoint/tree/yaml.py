"""Trees as YAML: `to_yaml`, `from_yaml`, `load_yaml`.

A mapping with `prompt` is a Step, one with `nodes` a Block, with `nodes` and `until` a Loop, with
`node` a Gate; the keys are the names of their fields. `until` is an output's key. A prompt or
system text is text, taken literally, or a template: `{template: "About {{ topic }}", defaults:
{topic: cats}}`. An example is `[user text, assistant text]`, an input a name or `{name: likes,
default: ""}`, a policy `{retry: 3, timeout: 30}`, a budget `{usd: 0.5, calls: 20}`. A step's tool
is the name of a function or LangChain tool, `package.module:name`, which is imported when the tree
is read. Other objects (functions, schemas, model and message objects) stay in Python, and so do
Calls.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from mergepoint.core.errors import Fault, TreeError
from mergepoint.core.paths import (
    SEPARATOR,
    effective_name,
    iteration_name,
    join,
    name_problem,
    nearest,
)
from mergepoint.core.strict_yaml import (
    MAX_BYTES,
    YamlDocument,
    YamlError,
    dump,
    load,
    load_file,
    refusals,
)
from mergepoint.tree import leaves
from mergepoint.tree.importable import NotImportable, load_object, name_of
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import (
    REQUIRED,
    THREADS,
    Block,
    Gate,
    Input,
    Loop,
    Node,
    inside,
    root_path,
)
from mergepoint.tree.policy import LIMITS, Budget, Policy, Retry, as_budget
from mergepoint.tree.prompts import Template
from mergepoint.tree.validate import check

_At = tuple[str | int, ...]


def from_yaml(text: str, *, source: str = "<text>", imports: bool = True) -> Node:
    """Return the tree that YAML text describes, after all checks.

    Args:
        text: The YAML.
        source: The name of the text in errors.
        imports: Whether to import the tools of steps. Set False for text that you don't trust: a
            step
        with tools is then a problem.

    Raises:
        TreeError: The tree has problems; the error lists all with file, line and path.
    """
    return _opened(lambda: load(text, source=source), _Imports(allowed=imports))


def load_yaml(path: Path, *, imports: bool = True) -> Node:
    """Return the tree that a YAML file describes; its tools may be in modules next to it.

    Raises TreeError as `from_yaml` does, and OSError.
    """
    return _opened(lambda: load_file(path), _Imports(path.parent, allowed=imports))


def to_yaml(tree: Node) -> str:
    """Return the YAML of a tree, from which `from_yaml` makes an equal tree.

    Fields with their default value are omitted. Raises TreeError with the path of every value that
    has no text form.
    """
    root = root_path(tree)
    data = _data(tree)
    paths = {at: path for path, at in _places(tree, root, ())}
    faults = [_refusal(tuple(at), problem, paths) for at, problem in refusals(data)]
    if faults:
        raise TreeError(faults)
    text = dump(data)
    if len(text.encode()) > MAX_BYTES:
        raise TreeError.of(f"its text is larger than {MAX_BYTES:,} bytes; split it", path=root)
    return text


def _places(node: Node, path: str, at: _At) -> Iterator[tuple[str, _At]]:
    """Yield path and location in the document for a node and everything below it."""
    if isinstance(node, Loop):  # its body has no place of its own
        yield join(path, iteration_name(1)), at
    yield path, at
    for position, (child_path, child) in enumerate(inside(node, path)):
        below = ("node",) if isinstance(node, Gate) else ("nodes", position)
        yield from _places(child, child_path, (*at, *below))


@dataclass(frozen=True, slots=True)
class _Imports:
    """Whether the objects that a document names are imported, and from which folder too."""

    folder: Path | None = None
    allowed: bool = True


def _opened(read: Callable[[], YamlDocument], imports: _Imports) -> Node:
    try:
        document = read()
    except YamlError as error:
        raise TreeError.of(str(error)) from error
    value = document.value
    kind = _kind(value)
    root = _name(value, "pipeline" if kind is Block else effective_name(None, kind.kind, 1))
    tree, faults = _node(_Source(document, imports), value, (), root)
    if not faults:
        places = dict(_places(tree, root, ()))
        faults = [
            Fault(fault.path, f"{document.where(places[fault.path])}: {fault.problem}")
            for fault in check(tree)
        ]
    if faults:
        raise TreeError(faults)
    return tree


def _kind(value: object) -> type[Node]:
    """Return the kind of node that a mapping describes, by its keys."""
    if not isinstance(value, dict):
        return Step
    if "until" in value or "max_iterations" in value:
        return Loop
    if "nodes" in value:
        return Block
    return Gate if "node" in value else Step


def _name(value: object, otherwise: str) -> str:
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) and not name_problem(name) else otherwise


@dataclass(frozen=True, slots=True)
class _Source:
    """A document, and the imports that it may make."""

    document: YamlDocument
    imports: _Imports


@dataclass(frozen=True)
class _Entry:
    """The place of one node in a document, with the problems there and below."""

    source: _Source
    at: _At
    path: str
    kind: type[Node]
    faults: list[Fault] = field(default_factory=list)
    below: list[Fault] = field(default_factory=list)

    def refuse(self, place: _At, problem: str) -> None:
        where = self.source.document.where((*self.at, *place))
        self.faults.append(Fault(self.path, f"{where}: {problem}"))

    def refuse_type(self, place: _At, wanted: str, value: object) -> None:
        label = _label(place) or "a node"
        self.refuse(place, f"{label} is {wanted}, not {_shown(value, wanted)}")

    def refuse_unknown(self, place: _At, keys: Iterable[str], known: Collection[str]) -> None:
        for key in keys:
            if key not in known:
                problem = f"no key {key!r} here{nearest(key, known)}; there are: {', '.join(known)}"
                self.refuse((*place, key), problem)

    def build(self, place: _At, make: Callable[[], Any]) -> Any:
        """Return the object that `make` creates, or note its problems."""
        try:
            return make()
        except TreeError as error:
            for fault in error.faults:
                self.refuse(place, fault.problem)


def _node(source: _Source, value: object, at: _At, path: str) -> tuple[Node, list[Fault]]:
    """Return a node and the problems of it and all below it; with problems, a placeholder."""
    kind = _kind(value)
    entry = _Entry(source, at, path, kind)
    fields: dict[str, Any] = {}
    if not isinstance(value, dict):
        entry.refuse_type((), "a mapping with prompt, nodes or node", value)
    elif "call" in value and "prompt" not in value:
        entry.refuse(("call",), f"call: {_NO_CALLS}")
    else:
        fields = _fields(entry, value, kind)
        if missing := [key for key in _NEEDED[kind] if key not in value]:
            entry.refuse((), _LACKS[missing[0]])
    if entry.faults:
        return Step("-", name=path.rpartition("/")[2]), [*entry.faults, *entry.below]
    return kind(**fields), entry.below


_NO_CALLS: Final = "a text that names a function would import it when read; keep a Call in Python"
_LACKS: Final = {
    "prompt": "a step needs a prompt, a block nodes, a gate a node",
    "nodes": "a loop needs nodes",
    "until": "a loop needs until: the key of an output that says when it is good",
}


def _fields(entry: _Entry, value: dict[str, Any], kind: type[Node]) -> dict[str, Any]:
    """Read the fields of a node; each is tried on its own, so that its problems have its line."""
    known, rest = _FIELDS[kind], _NEEDED[kind]
    more = ("nodes",) if kind is Step else ()
    entry.refuse_unknown((), value, dict.fromkeys([*known, *more]))
    fields: dict[str, Any] = {}
    for name, read in known.items():
        if name not in value or (value[name] is None and name in _MAY_BE_NULL):
            continue
        before = len(entry.faults)
        given = fields[name] = read(entry, (name,), value[name])
        if len(entry.faults) == before:
            entry.build((name,), partial(kind, **{**rest, name: given}))
    return fields


def _nodes(entry: _Entry, place: _At, value: object) -> list[Node]:
    if not isinstance(value, list):
        entry.refuse_type(place, "a list of nodes", value)
        return []
    return [
        _below(entry, (*place, position), position + 1, item) for position, item in enumerate(value)
    ]


def _wrapped(entry: _Entry, place: _At, value: object) -> Node:
    return _below(entry, place, 1, value)


def _below(entry: _Entry, place: _At, position: int, value: object) -> Node:
    """Return a node inside another, and note its problems."""
    around = join(entry.path, iteration_name(1)) if entry.kind is Loop else entry.path
    path = join(around, _name(value, effective_name(None, _kind(value).kind, position)))
    names = path.split(SEPARATOR)
    if len(names) > leaves.MAX_DEPTH:
        entry.refuse(place, leaves.too_deep(names, len(names)))
        return Step("-", name=names[-1])
    node, faults = _node(entry.source, value, (*entry.at, *place), path)
    entry.below.extend(faults)
    return node


def _as_it_is(_: _Entry, __: _At, value: Any) -> Any:
    return value


def _text(entry: _Entry, place: _At, value: Any) -> Any:
    if not isinstance(value, str):
        entry.refuse_type(place, "text", value)
    return value


def _text_under(entry: _Entry, place: _At, value: dict[str, Any], key: str) -> Any:
    if key in value:
        return _text(entry, (*place, key), value[key])
    return entry.refuse(place, f"{_label(place)} lacks the key {key!r}")


def _key(entry: _Entry, place: _At, value: Any) -> Any:
    if not isinstance(value, str):
        entry.refuse_type(place, "the key of an output", value)
    return value


def _switch(entry: _Entry, place: _At, value: Any) -> Any:
    if not isinstance(value, bool):
        entry.refuse_type(place, "true or false", value)
    return value


def _parallel(entry: _Entry, place: _At, value: Any) -> Any:
    return value if value == THREADS else _switch(entry, place, value)


def _mapping(entry: _Entry, place: _At, value: Any) -> Any:
    if not isinstance(value, dict):
        entry.refuse_type(place, "a mapping", value)
    return value


def _prompt(entry: _Entry, place: _At, value: Any) -> Any:
    if not isinstance(value, dict):
        return _text(entry, place, value)
    before = len(entry.faults)
    entry.refuse_unknown(place, value, ("template", "defaults"))
    text = _text_under(entry, place, value, "template")
    defaults = _mapping(entry, (*place, "defaults"), value.get("defaults", {}))
    if isinstance(defaults, dict):
        for key, default in defaults.items():
            _text(entry, (*place, "defaults", key), default)
    if len(entry.faults) > before:
        return value
    return entry.build(place, lambda: Template(text, defaults=defaults))


def _examples(entry: _Entry, place: _At, value: Any) -> Any:
    if not isinstance(value, list):
        entry.refuse_type(place, "a list of [user text, assistant text]", value)
        return ()
    for position, pair in enumerate(value):
        if not isinstance(pair, list) or len(pair) != 2:
            entry.refuse_type((*place, position), "[user text, assistant text]", pair)
            continue
        for part, text in enumerate(pair):
            _text(entry, (*place, position, part), text)
    return [tuple(pair) if isinstance(pair, list) else pair for pair in value]


def _tools(entry: _Entry, place: _At, value: Any) -> Any:
    """Import tools; each is tried on its own, so that its problems have its line."""
    if not isinstance(value, list):
        entry.refuse_type(place, "a list of names, package.module:name", value)
        return ()
    if value and not entry.source.imports.allowed:
        entry.refuse(place, f"tools: {_NO_IMPORTS}")
        return ()
    return [_tool(entry, (*place, position), name) for position, name in enumerate(value)]


def _tool(entry: _Entry, place: _At, name: Any) -> Any:
    if not isinstance(name, str):
        return entry.refuse_type(place, "the name of a tool, package.module:name", name)
    try:
        tool = load_object(name, entry.source.imports.folder)
    except NotImportable as error:
        return entry.refuse(place, f"{_label(place)}: {error}")
    entry.build(place, partial(Step, "-", tools=(tool,)))
    return tool


_NO_IMPORTS: Final = (
    "a recipe loads no Python, as somebody else may have written it; keep the tree with its tools "
    "in Python and give the block the tree itself"
)


def _inputs(entry: _Entry, place: _At, value: Any) -> Any:
    if not isinstance(value, list):
        entry.refuse_type(place, "a list of names", value)
        return ()
    return [_input(entry, (*place, position), item) for position, item in enumerate(value)]


def _input(entry: _Entry, place: _At, value: Any) -> Any:
    before = len(entry.faults)
    if isinstance(value, dict):
        entry.refuse_unknown(place, value, ("name", "default", "type"))
        name, default = _text_under(entry, place, value, "name"), value.get("default", REQUIRED)
        kind = _text_under(entry, place, value, "type") if "type" in value else None
    else:
        name, default, kind = _text(entry, place, value), REQUIRED, None
    if len(entry.faults) > before:
        return value
    return entry.build(place, lambda: Input(name, default=default, type=kind))


def _budget(entry: _Entry, place: _At, value: Any) -> Any:
    if not isinstance(value, dict):
        entry.refuse_type(place, "a mapping of limits", value)
        return None
    entry.refuse_unknown(place, value, LIMITS)
    for limit in (limit for limit in LIMITS if limit in value):
        entry.build((*place, limit), partial(as_budget, {limit: value[limit]}))
    return value


def _policy(entry: _Entry, place: _At, value: Any) -> Any:
    """Read a policy; each field is tried on its own, so that its problems have its line."""
    before = len(entry.faults)
    if isinstance(_mapping(entry, place, value), dict):
        known = [field.name for field in dataclasses.fields(Policy)]
        entry.refuse_unknown(place, value, known)
        if isinstance(value.get("retry"), dict):
            _retry(entry, (*place, "retry"), value["retry"])
        if value.get("budget") is not None:
            _budget(entry, (*place, "budget"), value["budget"])
        if len(entry.faults) == before:
            for name, given in value.items():
                entry.build((*place, name), partial(Policy, **{name: given}))
    return value if len(entry.faults) > before else Policy(**value)


def _retry(entry: _Entry, place: _At, value: dict[str, Any]) -> None:
    known = [field.name for field in dataclasses.fields(Retry)]
    entry.refuse_unknown(place, value, known)


def _shown(value: object, wanted: str) -> str:
    """Return a description of a value, with the fix if YAML has changed its type."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return f"the text {value!r}"
    shown = json.dumps(value)
    return f"{shown}; quote it" if wanted == "text" else shown


def _label(place: _At) -> str:
    return ".".join(map(str, place)).encode("utf-8", "backslashreplace").decode()


_Read = Callable[[_Entry, _At, Any], Any]
# In the order of writing. Fields that are read as they are get checked by the node itself.
_FIELDS: Final[Mapping[type[Node], Mapping[str, _Read]]] = {
    Step: {
        "name": _text,
        "prompt": _prompt,
        "system": _prompt,
        "examples": _examples,
        "model": _text,
        "method": _text,
        "tools": _tools,
        "max_tool_rounds": _as_it_is,
        "temperature": _as_it_is,
        "params": _mapping,
        "policy": _policy,
        "allow_empty_prompt": _switch,
        "allow_empty_response": _switch,
        "merge": _as_it_is,
        "capture_key": _text,
        "meta": _mapping,
    },
    Block: {
        "name": _text,
        "merge": _as_it_is,
        "capture_key": _text,
        "parallel": _parallel,
        "inputs": _inputs,
        "budget": _budget,
        "meta": _mapping,
        "nodes": _nodes,
    },
    Loop: {
        "name": _text,
        "until": _key,
        "max_iterations": _as_it_is,
        "on_exhausted": _as_it_is,
        "may_skip": _switch,
        "merge": _as_it_is,
        "capture_key": _text,
        "budget": _budget,
        "meta": _mapping,
        "nodes": _nodes,
    },
    Gate: {
        "name": _text,
        "question": _text,
        "on_reject": _as_it_is,
        "merge": _as_it_is,
        "capture_key": _text,
        "meta": _mapping,
        "node": _wrapped,
    },
}
# The fields that a node requires, with values that let the other fields be tried.
_NEEDED: Final[Mapping[type[Node], Mapping[str, Any]]] = {
    Step: {"prompt": "-"},
    Block: {"nodes": ()},
    Loop: {"nodes": (Step("-"),), "until": "-"},
    Gate: {"node": Step("-")},
}
_MAY_BE_NULL = frozenset({"name", "system", "model", "temperature", "capture_key", "budget"})
_NO_LIMITS: Final = {limit: getattr(Budget(), limit) for limit in LIMITS}


def _data(node: Node) -> dict[str, Any]:
    """Return the mapping of a node; values without a text form stay in it unchanged."""
    if isinstance(node, Call):
        return {"call": node.target}
    needed = _NEEDED[type(node)]
    defaults = type(node)(**needed)
    names = dict.fromkeys([*_FIELDS[type(node)], *(f.name for f in dataclasses.fields(node))])
    values = {name: getattr(node, name) for name in names}
    return {
        name: _form(name, value)
        for name, value in values.items()
        if name in needed or value != getattr(defaults, name)
    }


def _form(name: str, value: Any) -> Any:
    if isinstance(value, Template):
        text = {"template": value.text}
        return {**text, "defaults": dict(value.defaults)} if value.defaults else text
    if name in ("params", "meta"):
        return dict(value)
    if name == "tools":
        return [name_of(tool) or tool for tool in value]
    if name == "examples":
        return [list(pair) if isinstance(pair, tuple) else pair for pair in value]
    if isinstance(value, Budget):
        limits = {limit: getattr(value, limit) for limit in LIMITS}
        return {limit: given for limit, given in limits.items() if given != _NO_LIMITS[limit]}
    if name == "inputs":
        return [_input_form(given) for given in value]
    if name == "policy":
        return _policy_form(value)
    if name == "node":
        return _data(value)
    if name == "nodes":
        return [_data(node) for node in value]
    return value


def _input_form(given: Input) -> Any:
    more = {} if given.default is REQUIRED else {"default": given.default}
    more |= {"type": given.json_type} if given.type is not None else {}
    return {"name": given.name, **more} if more else given.name


def _policy_form(value: Any) -> Any:
    """Return the fields that differ from their default; a Retry with only attempts as a number."""
    if not dataclasses.is_dataclass(value):
        return value
    if isinstance(value, Retry) and value == Retry(value.attempts):
        return value.attempts
    return {
        field.name: _policy_form(getattr(value, field.name))
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != field.default
    }


def _refusal(at: _At, problem: str, paths: Mapping[_At, str]) -> Fault:
    node = next(at[:end] for end in range(len(at), -1, -1) if at[:end] in paths)
    place = at[len(node) :]
    label = _label(place)
    hint = _WAY_OUT.get(str(place[0]) if place else "", "")
    return Fault(paths[node], f"{label}: {problem}{hint}" if label else problem)


_WAY_OUT: Final = {
    "prompt": "; give text or a Template",
    "system": "; give text or a Template",
    "examples": "; give pairs (user text, assistant text)",
    "model": "; give 'provider:name'",
    "schema": "; keep a step with a schema in Python",
    "tools": "; give tools that stand in a module under their own name, or keep the step in Python",
    "call": "; keep a Call in Python",
    "until": "; give the key of an output, or keep the loop in Python",
    "decide": "; keep a gate with a function of its own in Python",
}
