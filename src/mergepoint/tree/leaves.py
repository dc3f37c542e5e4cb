"""The leaves of a tree: Step, which calls a model, and Call, which calls a function."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, Protocol, get_args, runtime_checkable

from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from pydantic import BaseModel

from mergepoint.core.errors import Fault, PromptTypeError, TreeError
from mergepoint.core.lazy import Displayed
from mergepoint.core.merge import MergeMode, mode_problem
from mergepoint.core.paths import SEPARATOR, effective_name, iteration_name, name_problem, nearest
from mergepoint.tree.policy import Policy, policy_of
from mergepoint.tree.prompts import PromptContext, Reads, Template, declared_reads, key_problem


@runtime_checkable
class CallTarget(Protocol):
    """A target of a Call that has models and records of its own, such as a recipe."""

    @property
    def name_on_record(self) -> str:
        """Return the name by which records refer to the Call's target."""
        ...

    def argument_problems(self, args: Mapping[str, Any] | None) -> list[str]:
        """Return the problems of the Call's arguments, and of the target itself."""
        ...

    def fingerprint(self) -> str:
        """Return a digest of the target's behavior; two that differ have different digests."""
        ...

    def perform(self, asked: Any, context: Any, /) -> Awaitable[Any]:
        """Run it and return the Call's result.

        `asked` is the Call about to run (`mergepoint.engine.function_call.Prepared`), `context` its
        CallContext. Model calls are recorded at paths below the Call's.
        """
        ...


KINDS: Final = ("step", "call", "gate", "block", "loop")

# The limit counts names in a path. A level of subgraphs takes seven or eight of Python's 1,000
# frames, so a tree of this depth leaves a caller more than 400. Without a limit, 138 levels end in
# a RecursionError.
MAX_DEPTH: Final = 64


def is_node(value: Any) -> bool:
    """Return whether a value is a node of a tree."""
    # By `kind` and not by class: `nodes` defines the containers, and imports this module.
    return getattr(type(value), "kind", None) in KINDS


def not_a_node(value: Any) -> str:
    """Return a description of a value that should have been a node, with the fix."""
    found = type(value).__name__
    hint = "a function in Call(...)" if callable(value) else "a prompt in Step(...)"
    return f"{found}, not a Step, Call, Gate, Block or Loop; wrap {hint}"


def height_of(node: Any) -> int:
    """Return the number of names in the longest path below a node, including its own."""
    return getattr(node, "height", 1)


def depth_problem(node: Any, nodes: Any) -> str | None:
    """Return the problem of a container that is nested too deep, or None."""
    # Children that aren't nodes are reported on their own, and have no names for the path.
    if not all(map(is_node, nodes)) or node.height <= MAX_DEPTH:
        return None
    return too_deep(_longest(node), node.height)


def too_deep(names: list[str], levels: int) -> str:
    """Return the problem of a path with more names than a tree may have."""
    shown = SEPARATOR.join(names if len(names) <= 8 else [*names[:4], "...", *names[-3:]])
    return (
        f"nested {levels} deep, at {shown}; {MAX_DEPTH} names in a path are the most: "
        "move the nodes of a block that only wraps into the block around it, or run the inner "
        "part on its own, in a function with Call"
    )


def _longest(node: Any) -> list[str]:
    """Return the names on the longest path down; the root is named as if it were a child."""
    found = [effective_name(node.name, node.kind, 1)]
    while below := _nodes_in(node):
        if node.kind == "loop":
            found.append(iteration_name(1))
        position, node = max(enumerate(below, start=1), key=lambda one: height_of(one[1]))
        found.append(effective_name(node.name, node.kind, position))
    return found


def _nodes_in(node: Any) -> list[Any]:
    return [node.node] if node.kind == "gate" else list(getattr(node, "nodes", ()))


Content = str | list[str | dict[str, Any]]
Method = Literal["json_schema", "function_calling", "json_mode", "prompt"]
Prompt = str | Template | Callable[[PromptContext], Content]
Example = BaseMessage | tuple[str, str]


@dataclass(frozen=True)
class Step(Displayed):
    """One call of a chat model: sees the base state and its prompt, and adds [user, assistant].

    With `schema` the model returns structured output: the message is its canonical JSON, the
    captured output the plain JSON value.

    With `tools` the model may call tools before it answers. Each of its calls and each execution of
    a tool is recorded. The step adds the user message, the tool exchange and the answer. An
    exception of a tool is reported to the model as an error.

    Args:
        prompt: Text (taken literally), a Template, or a function of a PromptContext that returns
            text or content blocks.
        name: The name in paths; by default one by position, such as `step_01`.
        merge: The messages that the parent receives: "all_messages", "last_response" or "none".
        temperature: Passed to the call; None means the model's own.
        params: Other parameters of the call, passed on unchanged.
        model: Overrides the run's model: a chat model, one with fallbacks, retries, bound arguments
            or configurable fields, or "provider:name".
        system: A system message for this call only; it does not enter the state.
        examples: Few-shot messages, or pairs of user and assistant text, for this call only.
        schema: A pydantic model class for structured output.
        method: The way to structured output: json_schema, function_calling or json_mode, if the
            model's package supports it, or prompt (an instruction and a parser), which works with
            every model. None means the default of the model's package.
        tools: LangChain tools (those of an MCP server too), or functions with type hints and a
            docstring.
        max_tool_rounds: The maximum number of rounds of tool calls before the answer.
        capture_key: The output under which the response is stored.
        policy: Retries, timeout and budget of the call.
        allow_empty_prompt: Accept a blank prompt.
        allow_empty_response: Accept a blank response.
        meta: Your own data, passed on in the metadata of the call.

    Raises:
        TreeError: The step is invalid; the error lists all problems. It is a ValueError, and for a
        prompt of another type a TypeError too.
    """

    kind: ClassVar[str] = "step"

    prompt: Prompt
    _: KW_ONLY
    name: str | None = None
    merge: MergeMode = "all_messages"
    temperature: float | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    model: str | Runnable[Any, Any] | None = None
    system: str | Template | None = None
    examples: Sequence[Example] = ()
    schema: type[BaseModel] | None = None
    method: Method | None = None
    tools: Sequence[Any] = ()
    max_tool_rounds: int = 10
    capture_key: str | None = None
    policy: Policy = field(default_factory=Policy)
    allow_empty_prompt: bool = False
    allow_empty_response: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", _examples(self.examples))
        # Anything but a list stays unchanged, so that the check can name it.
        if isinstance(self.tools, list):
            object.__setattr__(self, "tools", tuple(self.tools))
        policy, problems = policy_of(self.policy)
        object.__setattr__(self, "policy", policy)
        if faults := [*self._problems(), *problems]:
            label = self.name if isinstance(self.name, str) else ""
            kind = TreeError if _is_prompt(self.prompt) else PromptTypeError
            raise kind(Fault(label, problem) for problem in faults)
        object.__setattr__(self, "params", MappingProxyType(dict(self.params)))
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))

    def _problems(self) -> list[str]:
        found = [
            _prompt_problem(self.prompt, allow_empty=self.allow_empty_prompt),
            None if self.name is None else name_problem(self.name),
            mode_problem(self.merge, self.kind),
            None if self.capture_key is None else key_problem(self.capture_key),
            _text_problem(self.system, "system"),
            _params_problem(self.params),
            _temperature_problem(self.temperature),
            _model_problem(self.model),
            _schema_problem(self.schema),
            _method_problem(self.method, self.schema),
            *(_switch_problem(self, name) for name in ("allow_empty_prompt", _EMPTY_RESPONSE)),
            *_tools_problems(self.tools, self.max_tool_rounds, structured=self.schema is not None),
            *_examples_problems(self.examples),
            None if isinstance(self.meta, Mapping) else f"meta is a mapping, not {self.meta!r}",
        ]
        return [problem for problem in found if problem]

    @cached_property
    def reads(self) -> Reads | None:
        """Return the keys that prompt and system declare to read; None if the prompt does not.

        A key is optional only if every text that reads it has a default. The keys of the system
        template are always available from `system_reads`.
        """
        declared = declared_reads(self.prompt)
        if declared is None:
            return None
        system = self.system_reads
        strict = {*declared.required, *system.required}
        defaults = {**system.defaults, **declared.defaults}
        return Reads(
            tuple(dict.fromkeys((*declared.keys, *system.keys))),
            {key: value for key, value in defaults.items() if key not in strict},
        )

    @cached_property
    def system_reads(self) -> Reads:
        """Return the keys that the system message reads."""
        return declared_reads(self.system) or Reads()


ChatStep = Step

_EMPTY_RESPONSE = "allow_empty_response"


def _is_prompt(prompt: object) -> bool:
    return isinstance(prompt, str | Template) or callable(prompt)


def _prompt_problem(prompt: object, *, allow_empty: object) -> str | None:
    if isinstance(prompt, str) and not prompt.strip() and not allow_empty:
        return "the prompt is blank; to send it, set allow_empty_prompt=True"
    if _is_prompt(prompt):
        return None
    return f"a prompt is text, a Template or a function, not {type(prompt).__name__}"


def _switch_problem(step: Step, name: str) -> str | None:
    value = getattr(step, name)
    if not isinstance(value, bool):
        return f"{name} is True or False, not {value!r}"
    if value and name == _EMPTY_RESPONSE and step.schema is not None:
        return f"{name} does not fit a schema: an empty response has no fields"
    return None


def _text_problem(text: object, field_name: str) -> str | None:
    if text is None or isinstance(text, Template):
        return None
    if isinstance(text, str) and text.strip():
        return None
    return f"{field_name} is text that is not blank, or a Template"


def _params_problem(params: object) -> str | None:
    if not isinstance(params, Mapping):
        return f"params is a mapping, not {type(params).__name__}"
    if "temperature" in params:
        return "params must not hold 'temperature': give it as Step(temperature=...)"
    return None


def _temperature_problem(temperature: object) -> str | None:
    if temperature is None:
        return None
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        return f"temperature is a number, not {temperature!r}"
    if not math.isfinite(temperature):
        return f"temperature is a finite number, not {temperature!r}"
    return None


def _model_problem(model: object) -> str | None:
    if model is None or isinstance(model, Runnable):
        return None
    if isinstance(model, str) and model.strip():
        return None
    return f"model is a chat model, a Runnable of chat models, or 'provider:name', not {model!r}"


def _schema_problem(schema: object) -> str | None:
    if schema is None or (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return None
    return f"schema is a pydantic model class, not {schema!r}"


def _tools_problems(tools: Any, rounds: Any, *, structured: bool) -> list[str]:
    if not isinstance(tools, tuple):
        return [f"tools is a list of LangChain tools and functions, not {tools!r}"]
    found = [
        f"a tool is a LangChain tool or a function, not {one!r}"
        for one in tools
        # A class is callable too, but calling it makes an instance and no result.
        if not isinstance(one, BaseTool) and (isinstance(one, type) or not callable(one))
    ]
    found += [
        f"the function {tool_name(one)!r} has no docstring; the model reads it to know the tool"
        for one in tools
        if not isinstance(one, BaseTool) and callable(one) and not one.__doc__
    ]
    names = [tool_name(one) for one in tools]
    twice = {name for name in names if names.count(name) > 1}
    found += [f"two tools are called {name!r}; rename one" for name in sorted(twice)]
    if type(rounds) is not int or rounds < 1:
        found.append(f"max_tool_rounds is an integer of at least 1, not {rounds!r}")
    if tools and structured:
        found.append("a step has tools or a schema; let a later step answer with the schema")
    return found


def tool_name(tool: Any) -> str:
    """Return the name by which a model calls a tool or a function."""
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", tool))


def method_problem(method: object) -> str | None:
    """Return the problem of a method of structured output, or None."""
    if method is None or method in get_args(Method):
        return None
    known = ", ".join(get_args(Method))
    return f"method is one of {known}, not {method!r}{nearest(str(method), get_args(Method))}"


def _method_problem(method: object, schema: object) -> str | None:
    if method is None or (problem := method_problem(method)):
        return None if method is None else problem
    if schema is None:
        return f"method {method!r} needs a schema; give one, or leave method out"
    return None


def _examples(given: Any) -> Any:
    if isinstance(given, str) or not isinstance(given, Iterable):
        return given
    # In YAML and JSON a pair is a list.
    return tuple(tuple(item) if isinstance(item, list) else item for item in given)


def _examples_problems(examples: Any) -> list[str]:
    if not isinstance(examples, tuple):
        return [f"examples is a list of messages or pairs, not {examples!r}"]
    return [
        f"an example is a message or a pair (user text, assistant text), not {example!r}"
        for example in examples
        if not isinstance(example, BaseMessage) and not _is_pair(example)
    ]


def _is_pair(example: Any) -> bool:
    pair = isinstance(example, tuple) and len(example) == 2
    return pair and all(isinstance(part, str) and part.strip() for part in example)


Target = Callable[..., Any] | Runnable[Any, Any] | CallTarget


@dataclass(frozen=True)
class Call(Displayed):
    """One call of a function, tool, Runnable, graph or recipe: its result is an output.

    A function gets a CallContext, or `args` if they are set. A Runnable gets `args`, or the
    messages that the call sees; a graph gets them as `{"messages": [...]}`.

    A recipe processes `args["items"]`, by default the text of the last message; its other `args`
    are knobs. For a list of items the result is the list of the resulting contents, with null for a
    Thing that failed. Any other value is one item, and the result is its content.

    The result must be plain JSON data. With `merge` other than "none", the call also adds one
    assistant message with its text. Messages that a Runnable returns are added as they are, without
    a leading copy of its input.

    A function runs at least once. It may run again after a crash, or if its `policy` has retries;
    `ctx.call_id` is the same then.

    Args:
        target: A function (sync or async), a LangChain tool, any Runnable, a compiled graph, or a
            recipe.
        name: The name in paths; by default one by position, such as `call_01`.
        merge: The messages that the parent receives; "none" by default.
        capture_key: The output under which the result is stored.
        args: Arguments by name. A Template is filled in; one that is a single place,
            `Template("{{ key }}")`, passes the value unchanged.
        version: Part of the call's identity in records, with its name and its input. Raise it when
            the meaning of the function changes, so that old results are not reused.
        policy: Retries, timeout and budget of the call.
        meta: Your own data.

    Raises:
        TreeError: The call is invalid; the error (a ValueError) lists all problems.
    """

    kind: ClassVar[str] = "call"

    target: Target
    _: KW_ONLY
    name: str | None = None
    merge: MergeMode = "none"
    capture_key: str | None = None
    args: Mapping[str, Any] | None = None
    version: str = ""
    policy: Policy = field(default_factory=Policy)
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        policy, problems = policy_of(self.policy)
        object.__setattr__(self, "policy", policy)
        found = [
            _target_problem(self.target),
            None if self.name is None else name_problem(self.name),
            mode_problem(self.merge, self.kind),
            None if self.capture_key is None else key_problem(self.capture_key),
            _args_problem(self.args),
            None if isinstance(self.version, str) else f"version is text, not {self.version!r}",
            None if isinstance(self.meta, Mapping) else f"meta is a mapping, not {self.meta!r}",
            *problems,
        ]
        # found[4] is the problem of `args`; these checks need valid ones. Keep the order of
        # `found`.
        if isinstance(self.target, BaseTool) and not found[4]:
            found.append(_missing_problem(self.target, self.args))
        if isinstance(self.target, CallTarget) and not found[4]:
            found += self.target.argument_problems(self.args)
        if faults := [problem for problem in found if problem]:
            label = self.name if isinstance(self.name, str) else ""
            raise TreeError(Fault(label, problem) for problem in faults)
        if self.args is not None:
            object.__setattr__(self, "args", MappingProxyType(dict(self.args)))
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))
        if isinstance(self.target, CallTarget) and not self.version:
            # Part of the request fingerprint: a changed recipe must not be answered from old
            # records.
            object.__setattr__(self, "version", self.target.fingerprint())

    @cached_property
    def reads(self) -> Reads | None:
        """Return the keys that it declares to read; None for a function without a declaration."""
        found = [declared_reads(value) for value in (self.args or {}).values()]
        if self.args is None and not isinstance(self.target, Runnable):
            found.append(declared_reads(self.target))
        if None in found:
            return None
        keys = dict.fromkeys(key for one in found if one for key in one.keys)
        strict = {key for one in found if one for key in one.required}
        defaults = {key: one.defaults[key] for one in found if one for key in one.defaults}
        return Reads(
            tuple(keys), {key: value for key, value in defaults.items() if key not in strict}
        )

    @property
    def label(self) -> str:
        """Return the qualified name by which records refer to the target."""
        target: Any = self.target
        if isinstance(target, CallTarget):
            return target.name_on_record
        if isinstance(target, Runnable):
            kind = type(target)
            return f"{kind.__module__}.{kind.__qualname__}:{target.get_name()}"
        # A partial or another callable object has no name of its own, only its class has.
        named = target if hasattr(target, "__qualname__") else type(target)
        return f"{named.__module__}.{named.__qualname__}"


def short_label(label: str) -> str:
    """Return the last name in the label of a Call: that of the function, tool or graph."""
    return label.rpartition(":")[2].rpartition(".")[2]


def _target_problem(target: object) -> str | None:
    fits = callable(target) or isinstance(target, Runnable | CallTarget)
    if isinstance(target, type) or not fits:
        kinds = "a function, tool, Runnable, compiled graph or recipe"
        return f"a Call's target is {kinds}, not {target!r}"
    return None


def _missing_problem(tool: BaseTool, args: Mapping[str, Any] | None) -> str | None:
    """Return the problem of arguments that a tool requires and that are missing, or None."""
    # Not `args_schema`, which also has the arguments that LangChain injects itself. It is a class,
    # or a JSON schema as MCP tools have.
    schema: Any = tool.tool_call_schema
    shape = schema if isinstance(schema, dict) else schema.model_json_schema()
    missing = [name for name in shape.get("required", ()) if name not in (args or {})]
    if not missing:
        return None
    listed = ", ".join(f"{name!r}: ..." for name in missing)
    return (
        f"the tool {tool.name!r} needs {' and '.join(map(repr, missing))}; give args={{{listed}}} "
        "(a value, or a Template)"
    )


def _args_problem(args: object) -> str | None:
    if args is None:
        return None
    if not isinstance(args, Mapping):
        return f"args is a mapping of parameters to values, not {args!r}"
    odd = [name for name in args if not isinstance(name, str)]
    if odd:
        return f"a parameter's name is text, not {odd[0]!r}"
    functions = [
        name for name, value in args.items() if callable(value) and not isinstance(value, Template)
    ]
    if functions:
        return f"args[{functions[0]!r}] is a function; give its result, or a Template"
    return None
