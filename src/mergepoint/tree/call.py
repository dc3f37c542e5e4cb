"""Call: one call of a function, tool, Runnable or compiled graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from langchain_core.runnables import Runnable

from mergepoint.core.errors import Fault, TreeError
from mergepoint.core.merge import MergeMode, mode_problem
from mergepoint.core.path import name_problem
from mergepoint.tree.performed import Performed
from mergepoint.tree.policy import Policy, policy_of
from mergepoint.tree.template import Reads, Template, declared_reads, key_problem

Target = Callable[..., Any] | Runnable[Any, Any] | Performed


@dataclass(frozen=True)
class Call:
    """One call of something that is no chat model: its result is a value for outputs.

    `target` is a function (sync or async), a LangChain tool, any Runnable, a compiled graph, or a
    recipe. A function is given a CallContext, or the `args` if there are any; a Runnable is given
    the `args`, else the messages it sees, a graph as `{"messages": [...]}`. In `args` a Template is
    filled in; one that is a single place, `Template("{{ key }}")`, passes the value as it is.

    A recipe works on `args["items"]`, by default on the text of the last message; its other `args`
    are knobs. Of a list of items the result is the list of the contents that came out, null for a
    Thing that failed; of anything else, which is one item, it is the one content.

    The result must be plain data, as JSON holds it. With `merge` other than "none" it also makes
    one assistant message of its text; messages that a Runnable returns are made as they are, less
    a leading copy of what it was given. On record it is found again by its name, `version` and
    what it was given: raise `version` when the function means something else. A function runs at
    least once, and may run again after a crash, or where its `policy` says that it is tried again:
    `ctx.call_id` is the same then.

    Raises TreeError (a ValueError) that lists everything that is wrong with the call.
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
            mode_problem(self.merge),
            None if self.capture_key is None else key_problem(self.capture_key),
            _args_problem(self.args),
            None if isinstance(self.version, str) else f"version is text, not {self.version!r}",
            None if isinstance(self.meta, Mapping) else f"meta is a mapping, not {self.meta!r}",
            *problems,
        ]
        if isinstance(self.target, Performed) and not found[4]:
            found += self.target.argument_problems(self.args)
        if faults := [problem for problem in found if problem]:
            label = self.name if isinstance(self.name, str) else ""
            raise TreeError(Fault(label, problem) for problem in faults)
        if self.args is not None:
            object.__setattr__(self, "args", MappingProxyType(dict(self.args)))
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))
        if isinstance(self.target, Performed) and not self.version:
            object.__setattr__(self, "version", self.target.fingerprint())

    @property
    def reads(self) -> Reads | None:
        """Give the keys that it declares to read; None for a function that does not say."""
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
        """Give the qualified name by which the target is known on record."""
        target: Any = self.target
        if isinstance(target, Performed):
            return target.name_on_record
        if isinstance(target, Runnable):
            kind = type(target)
            return f"{kind.__module__}.{kind.__qualname__}:{target.get_name()}"
        named = target if hasattr(target, "__qualname__") else type(target)
        return f"{named.__module__}.{named.__qualname__}"


def short_label(label: str) -> str:
    """Give the last name in the label of a Call: that of the function, tool or graph."""
    return label.rpartition(":")[2].rpartition(".")[2]


def _target_problem(target: object) -> str | None:
    fits = callable(target) or isinstance(target, Runnable | Performed)
    if isinstance(target, type) or not fits:
        kinds = "a function, tool, Runnable, compiled graph or recipe"
        return f"a Call's target is {kinds}, not {target!r}"
    return None


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
