"""Trees as YAML: `to_yaml`, `from_yaml`, `load_yaml`.

A mapping with `prompt` is a Step, one with `nodes` a Block, with `nodes` and `until` a Loop, with
`node` a Gate; the keys are the names of their fields. `until` is an output's key. A prompt or
system text is text, taken literally, or a template: `{template: "About {{ topic }}", defaults:
{topic: cats}}`. An example is `[user text, assistant text]`, an input a name or `{name: likes,
default: ""}`, a policy `{retry: 3, timeout: 30}`, a budget `{usd: 0.5, calls: 20}`. A step's tool
is the name of a function or LangChain tool, `package.module:name`, which is imported when the tree
is read. Other objects (functions, schemas, model and message objects) stay in Python, and so do
Calls.

The forms below declare these keys. Reading validates the data with them, so that one error lists
all problems with their lines; writing takes the order of the keys from them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SkipValidation,
    Tag,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)

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
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.load import NotImportable, import_object, name_of
from mergepoint.tree.nodes import (
    REQUIRED,
    THREADS,
    Block,
    Gate,
    Input,
    Loop,
    Node,
    duplicate_names,
    root_path,
)
from mergepoint.tree.policy import Budget, Policy
from mergepoint.tree.prompts import Template
from mergepoint.tree.validate import check
from mergepoint.tree.yaml_keys import (
    IS_MAPPING,
    BudgetForm,
    Form,
    Location,
    PolicyForm,
    WrongType,
    known_names,
    limits_as_data,
    location_in,
    typed,
)

Anything = SkipValidation[Any]  # checked by the node alone
Text = Annotated[str, typed("text", str)]
Switch = Annotated[bool, typed("true or false", bool)]
PlainMapping = Annotated[dict[str, Any], typed("a mapping", dict)]
BudgetField = Annotated[BudgetForm, typed("a mapping of limits", dict)]


def _template(
    template: str | None = None, defaults: Mapping[str, str] | None = None
) -> Template | None:
    # Without a valid text, it isn't known which defaults it reads.
    return None if template is None else Template(template, defaults=defaults or {})


class TemplateForm(Form):
    """A prompt with places."""

    makes = staticmethod(_template)

    template: Text
    defaults: Annotated[dict[str, Text], typed("a mapping", dict)] = Field(default={})


PromptField = Annotated[
    Annotated[TemplateForm, AfterValidator(Form.made), Tag("mapping")]
    | Annotated[Text, Tag("other")],
    IS_MAPPING,
]


class InputForm(Form):
    """An input with a default or a type."""

    makes = Input
    needed: ClassVar = {"name": "-"}

    name: Text
    default: Anything = REQUIRED
    type: Text | None = None


InputField = Annotated[
    Annotated[InputForm, AfterValidator(Form.made), Tag("mapping")]
    | Annotated[Text, AfterValidator(Input), Tag("other")],
    IS_MAPPING,
]


class StepPolicyForm(PolicyForm):
    """The policy of a step, which may have a budget."""

    budget: BudgetField | None = None


@dataclass(frozen=True, slots=True)
class _Imports:
    """Whether the objects that a document names are imported, and from which folder too."""

    folder: Path | None = None
    allowed: bool = True


_NO_IMPORTS: Final = (
    "a recipe loads no Python, as somebody else may have written it; keep the tree with its tools "
    "in Python and give the block the tree itself"
)


def _import_allowed(names: Any, info: ValidationInfo) -> Any:
    imports: _Imports = info.context or _Imports()
    if names and not imports.allowed:
        raise ValueError(_NO_IMPORTS)
    return names


def _imported(name: str, info: ValidationInfo) -> Any:
    imports: _Imports = info.context or _Imports()
    try:
        tool = import_object(name, imports.folder)
    except NotImportable as error:
        raise ValueError(str(error)) from error
    Step("-", tools=(tool,))  # each on its own, so that its problems have its line
    return tool


ToolField = Annotated[
    str, AfterValidator(_imported), typed("the name of a tool, package.module:name", str)
]

PairField = Annotated[
    list[Text],
    typed("[user text, assistant text]", lambda value: isinstance(value, list) and len(value) == 2),
]


class StepForm(Form):
    """One call of a chat model."""

    makes = Step
    needed: ClassVar = {"prompt": "-"}

    name: Text | None = None
    # Before the prompt: it decides whether a blank one is valid.
    allow_empty_prompt: Switch = False
    prompt: PromptField
    system: PromptField | None = None
    examples: Annotated[list[PairField], typed("a list of [user text, assistant text]", list)] = (
        Field(default=[])
    )
    model: Text | None = None
    method: Text | None = None
    tools: Annotated[
        list[ToolField],
        # Pydantic runs these from the last to the first, so the type is checked before this.
        BeforeValidator(_import_allowed),
        typed("a list of names, package.module:name", list),
    ] = Field(default=[])
    max_tool_rounds: Anything = None
    temperature: Anything = None
    params: PlainMapping = Field(default={})
    policy: Annotated[StepPolicyForm, typed("a mapping", dict)] | None = None
    allow_empty_response: Switch = False
    merge: Anything = None
    capture_key: Text | None = None
    meta: PlainMapping = Field(default={})


class BlockForm(Form):
    """Nodes in order."""

    makes = Block
    needed: ClassVar = {"nodes": ()}

    name: Text | None = None
    merge: Anything = None
    capture_key: Text | None = None
    parallel: Annotated[
        Any, typed("true, false or threads", lambda value: type(value) is bool or value == THREADS)
    ] = False
    inputs: Annotated[list[InputField], typed("a list of names", list)] = Field(default=[])
    budget: BudgetField | None = None
    meta: PlainMapping = Field(default={})
    nodes: NodesField


class LoopForm(Form):
    """Nodes that run until a condition is met."""

    makes = Loop
    needed: ClassVar = {"nodes": (Step("-"),), "until": "-"}

    name: Text | None = None
    until: Annotated[str, typed("the key of an output", str)]
    max_iterations: Anything = None
    on_exhausted: Anything = None
    may_skip: Switch = False
    merge: Anything = None
    capture_key: Text | None = None
    budget: BudgetField | None = None
    meta: PlainMapping = Field(default={})
    nodes: NodesField


class GateForm(Form):
    """A node whose output needs approval."""

    makes = Gate
    needed: ClassVar = {"node": Step("-")}

    name: Text | None = None
    question: Text = ""
    on_reject: Anything = None
    merge: Anything = None
    capture_key: Text | None = None
    meta: PlainMapping = Field(default={})
    node: NodeField


def _refuse_call(target: Any) -> Any:
    raise ValueError("reading the file would import the function; keep a Call in Python")


class CallForm(Form):
    """A Call, which has no text form: its only key says so."""

    # Other keys are no problem of their own: no Call can be read, whatever it says.
    model_config = ConfigDict(extra="ignore")
    makes = Call

    call: Annotated[Any, BeforeValidator(_refuse_call)]


def _form_of(value: object) -> type[Form]:
    """Return the form of the node that a mapping describes, by its keys."""
    if not isinstance(value, dict):
        return StepForm
    if "until" in value or "max_iterations" in value:
        return LoopForm
    if "nodes" in value:
        return BlockForm
    if "node" in value:
        return GateForm
    return CallForm if "call" in value and "prompt" not in value else StepForm


NodeField = Annotated[
    Annotated[
        StepForm,
        AfterValidator(Form.made),
        typed("a mapping with prompt, nodes or node", dict),
        Tag("StepForm"),
    ]
    | Annotated[BlockForm, AfterValidator(Form.made), Tag("BlockForm")]
    | Annotated[LoopForm, AfterValidator(Form.made), Tag("LoopForm")]
    | Annotated[GateForm, AfterValidator(Form.made), Tag("GateForm")]
    | Annotated[CallForm, Tag("CallForm")],
    # Chosen by keys: a plain union would report the problems of every form that it tried.
    Discriminator(lambda value: _form_of(value).__name__),
]
NodesField = Annotated[list[NodeField], typed("a list of nodes", list)]
# These forms contain NodeField, which contains them, so they are completed after it.
BlockForm.model_rebuild()
LoopForm.model_rebuild()
GateForm.model_rebuild()
_TREE: Final[TypeAdapter[Any]] = TypeAdapter(NodeField)


def from_yaml(text: str, *, source: str = "<text>", imports: bool = True) -> Node:
    """Return the tree that YAML text describes, after all checks.

    Args:
        text: The YAML.
        source: The name of the text in errors.
        imports: Whether to import the tools of steps. Set False for text that you don't trust: a
            step with tools is then a problem.

    Raises:
        TreeError: The tree has problems; the error lists all with file, line and path.
    """
    return _read(lambda: load(text, source=source), _Imports(allowed=imports))


def load_yaml(path: Path, *, imports: bool = True) -> Node:
    """Return the tree that a YAML file describes; its tools may be in modules next to it.

    Raises TreeError as `from_yaml` does, and OSError.
    """
    return _read(lambda: load_file(path), _Imports(path.parent, allowed=imports))


def _read(load_document: Callable[[], YamlDocument], imports: _Imports) -> Node:
    try:
        document = load_document()
    except YamlError as error:
        raise TreeError.of(str(error)) from error
    value = document.value
    root = _name(value, "pipeline" if _form_of(value) is BlockForm else _by_position(value, 1))
    nodes: dict[Location, str] = {}
    for at, path in _nodes_in(value, root):
        # Checked before the forms are: their recursion has a limit of its own.
        if len(names := path.split(SEPARATOR)) > leaves.MAX_DEPTH:
            problem = leaves.too_deep(names, len(names))
            raise TreeError.of(f"{document.where(at)}: {problem}", path=path)
        nodes[at] = path
    try:
        tree: Node = _TREE.validate_python(value, context=imports)
    except ValidationError as error:
        raise TreeError(_faults(document, error, nodes)) from None
    places = {path: at for at, path in nodes.items()}
    if faults := check(tree):
        raise TreeError(
            Fault(fault.path, f"{document.where(places[fault.path])}: {fault.problem}")
            for fault in faults
        )
    return tree


def _nodes_in(value: Any, path: str, at: Location = ()) -> Iterator[tuple[Location, str]]:
    """Yield location and path of each node in a tree's data, valid or not, parents first."""
    yield at, path
    form = _form_of(value)
    below: list[tuple[Location, Any]] = []
    if form is GateForm:
        below = [(("node",), value["node"])]
    elif form in (BlockForm, LoopForm) and isinstance(value.get("nodes"), list):
        below = [(("nodes", number), child) for number, child in enumerate(value["nodes"])]
    around = join(path, iteration_name(1)) if form is LoopForm else path
    for position, (place, child) in enumerate(below, start=1):
        name = _name(child, _by_position(child, position))
        yield from _nodes_in(child, join(around, name), (*at, *place))


def _by_position(value: Any, position: int) -> str:
    kind: Any = _form_of(value).makes
    return effective_name(None, kind.kind, position)


def _name(value: Any, otherwise: str) -> str:
    name = value.get("name") if isinstance(value, dict) else None
    # A form reports an invalid name; until then the node's errors need some path.
    return name if isinstance(name, str) and not name_problem(name) else otherwise


def _faults(
    document: YamlDocument, error: ValidationError, nodes: Mapping[Location, str]
) -> list[Fault]:
    """Return the problems of a document, in tree order."""
    # Unknown keys come first: a misspelled one is the reason why another is missing.
    errors = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    found = [problem for one in errors for problem in _problems(document, one, nodes)]
    found += _duplicates(nodes)
    order = {at: number for number, at in enumerate(nodes)}
    located = [(_node_of(at, nodes), document.where(at), problem) for at, problem in found]
    faults = [
        Fault(nodes[node], f"{where}: {problem}")
        for node, where, problem in sorted(located, key=lambda one: order[one[0]])
    ]
    return list(dict.fromkeys(faults))


def _node_of(at: Location, nodes: Mapping[Location, str]) -> Location:
    """Return the location of the node that a location is in."""
    return next(at[:end] for end in range(len(at), -1, -1) if at[:end] in nodes)


def _duplicates(nodes: Mapping[Location, str]) -> Iterator[tuple[Location, str]]:
    # A block finds equal names itself, but isn't made if one of its children is invalid.
    names: dict[Location, dict[int, str]] = {}
    for at, path in nodes.items():
        if at and isinstance(at[-1], int):
            names.setdefault(at[:-1], {})[at[-1] + 1] = path.rpartition(SEPARATOR)[2]
    for at, children in names.items():
        for problem in duplicate_names(children):
            yield at, problem


def _problems(
    document: YamlDocument, error: Mapping[str, Any], nodes: Mapping[Location, str]
) -> Iterator[tuple[Location, str]]:
    """Yield the location and the message of each problem in an error of pydantic."""
    kind, raw = error["type"], error["loc"]
    at = location_in(document.value, raw, missing=kind == "missing")
    label = _label(at[len(_node_of(at, nodes)) :])
    if kind == "extra_forbidden":
        known = known_names(NodeField, raw[:-1])
        # Who misspells `nodes` has written a step, as far as the keys tell.
        near = nearest(str(at[-1]), [*known, "nodes"])
        yield at, f"no key {at[-1]!r} here{near}; the keys are: {', '.join(known)}"
    elif kind == "missing":
        inside, _, key = label.rpartition(".")
        yield at[:-1], f"{inside} lacks the key {key!r}" if inside else _LACKS[key]
    elif isinstance(problem := error["ctx"]["error"], TreeError):
        for fault in problem.faults:
            yield at, fault.problem
    elif isinstance(problem, WrongType):
        wanted = str(problem)
        yield at, f"{label or 'a node'} is {wanted}, not {_shown(error['input'], wanted)}"
    else:
        yield at, f"{label}: {problem}"


_LACKS: Final = {
    "prompt": "a step needs a prompt, a block nodes, a gate a node",
    "nodes": "a loop needs nodes",
    "until": "a loop needs until: the key of an output that says when it is good",
}


def _shown(value: object, wanted: str) -> str:
    """Return a description of a value, with the fix if YAML has changed its type."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return f"the text {value!r}"
    shown = json.dumps(value)
    return f"{shown}; quote it" if wanted == "text" else shown


def _label(place: Location) -> str:
    return ".".join(map(str, place)).encode("utf-8", "backslashreplace").decode()


def to_yaml(tree: Node) -> str:
    """Return the YAML of a tree, from which `from_yaml` makes an equal tree.

    Fields with their default value are omitted. Raises TreeError with the path of every value that
    has no text form.
    """
    root = root_path(tree)
    data = _data(tree)
    nodes = dict(_nodes_in(data, root))
    if faults := [_refusal(tuple(at), problem, nodes) for at, problem in refusals(data)]:
        raise TreeError(faults)
    text = dump(data)
    # `from_yaml` refuses a larger text, and every tree that is written must be readable.
    if len(text.encode()) > MAX_BYTES:
        raise TreeError.of(f"its text is larger than {MAX_BYTES:,} bytes; split it", path=root)
    return text


NODE_FORMS: Final[Mapping[type[Node], type[Form]]] = {
    Step: StepForm,
    Block: BlockForm,
    Loop: LoopForm,
    Gate: GateForm,
}


def _data(node: Node) -> dict[str, Any]:
    """Return the mapping of a node; values that YAML can't hold stay in it unchanged."""
    if isinstance(node, Call):
        return {"name": node.name, "call": node.target}
    form = NODE_FORMS[type(node)]
    default = type(node)(**form.needed)
    # Fields without a key are written too: to be refused, with the way to keep them in Python.
    names = dict.fromkeys([*form.model_fields, *(f.name for f in dataclasses.fields(node))])
    values = {name: getattr(node, name) for name in names}
    return {
        name: _plain(name, value)
        for name, value in values.items()
        if name in form.needed or value != getattr(default, name)
    }


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Template):
        text = {"template": value.text}
        return {**text, "defaults": dict(value.defaults)} if value.defaults else text
    if isinstance(value, Budget | Policy):
        return limits_as_data(value)
    if isinstance(value, Input):
        more = {} if value.default is REQUIRED else {"default": value.default}
        more |= {"type": value.json_type} if value.type is not None else {}
        return {"name": value.name, **more} if more else value.name
    if name in ("params", "meta"):
        return dict(value)
    if name == "tools":
        # A tool without a name stays an object, which `refusals` then reports with its place.
        return [name_of(tool) or tool for tool in value]
    if name == "examples":
        return [list(pair) if isinstance(pair, tuple) else pair for pair in value]
    if name == "inputs":
        return [_plain("", one) for one in value]
    if name == "node":
        return _data(value)
    return [_data(node) for node in value] if name == "nodes" else value


def _refusal(at: Location, problem: str, nodes: Mapping[Location, str]) -> Fault:
    node = _node_of(at, nodes)
    place = at[len(node) :]
    label = _label(place)
    fix = _FIXES.get(str(place[0]) if place else "", "")
    return Fault(nodes[node], f"{label}: {problem}{fix}" if label else problem)


_FIXES: Final = {
    "prompt": "; give text or a Template",
    "system": "; give text or a Template",
    "examples": "; give pairs (user text, assistant text)",
    "model": "; give 'provider:name'",
    "schema": "; keep a step with a schema in Python",
    "tools": "; use tools that a module defines under their own name, or keep the step in Python",
    "call": "; keep a Call in Python",
    "until": "; give the key of an output, or keep the loop in Python",
    "decide": "; keep a gate with a function of its own in Python",
}
