"""Static checks of a whole tree, which find every problem before the first call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mergepoint.core.errors import Fault, TreeError, locate
from mergepoint.core.merge import NO_RESPONSE
from mergepoint.core.paths import nearest
from mergepoint.core.text import clean
from mergepoint.tree.leaves import Call, Step, is_node
from mergepoint.tree.nodes import (
    REQUIRED,
    Block,
    Gate,
    Input,
    Loop,
    Node,
    children,
    find,
    root_path,
    walk,
)
from mergepoint.tree.prompts import Reads, copied, keys_in
from mergepoint.tree.transform import stack_problem


def check(tree: Node, *, given: Iterable[str] = ()) -> list[Fault]:
    """Return all problems of a tree, in tree order; an empty list means that it can run.

    The checks find: inputs below the root or declared twice; a key captured twice or under an
    input's name; places (`{{ key }}`) in text that is not a Template; `last_response` and captures
    of nodes that can never have an assistant message; loops that wait for a key that nothing in
    them captures; reads of keys that are never written, written only later, or dropped by a
    rejection at a gate; and a caller's stack that is too full for the tree.

    Args:
        tree: The tree.
        given: Names of values that the run has in addition to the declared inputs.
    """
    root = root_path(tree)
    # The other checks recurse too, and would end in a RecursionError.
    if problem := stack_problem(tree):
        return [Fault(root, problem)]
    path_of, twice = _writers(tree, root)
    faults = [*_input_faults(tree, root), *twice, *_response_faults(tree, root)]
    known = frozenset((*(declared.name for declared in inputs_of(tree)), *given))
    faults += _ReadCheck(known, path_of).visit(tree, root, known)
    faults += _until_faults(tree, root)
    faults += _place_faults(tree, root)
    order = {path: number for number, (path, _) in enumerate(walk(tree))}
    return sorted(faults, key=lambda fault: order[fault.path])


def checked(tree: Node, *, given: Iterable[str] = ()) -> Node:
    """Return the tree unchanged. Raises TreeError that lists all its problems."""
    if faults := check(as_tree(tree), given=given):
        raise TreeError(faults)
    return tree


def as_tree(tree: Any) -> Node:
    """Return a tree unchanged. Raises TreeError for any other value."""
    if is_node(tree):
        return tree  # type: ignore[no-any-return]
    raise TreeError.of(
        f"a tree is a node, such as a Step or a Block, not {type(tree).__name__}; wrap nodes in "
        "Block([...])"
    )


def declared_inputs(tree: Node) -> tuple[Input, ...]:
    """Return the inputs that the root declares."""
    return tree.declared_inputs if isinstance(tree, Block) else ()


def inputs_of(tree: Node) -> tuple[Input, ...]:
    """Return the inputs of a run of the tree.

    They are the declared inputs of the root. A Step or Call alone can't declare any, so its inputs
    are the keys that it reads.
    """
    if not isinstance(tree, Step | Call):
        return declared_inputs(tree)
    reads = _known_reads(tree)
    return tuple(Input(key, default=reads.defaults.get(key, REQUIRED)) for key in reads.keys)


def given_inputs(declared: Sequence[Input], given: Any, *, path: str) -> dict[str, Any]:
    """Return the inputs of a run with defaults filled in.

    Raises TreeError that lists every input that is missing, unknown or of another type.
    """
    if given is not None and not isinstance(given, Mapping):
        raise TreeError.of(f"inputs is a mapping of names to values, not {given!r}", path=path)
    given = dict(given or {})
    known = {known.name: known for known in declared}
    faults = [
        Fault(path, f"input {name!r} is missing; pass inputs={{{name!r}: ...}}")
        for name, wanted in known.items()
        if name not in given and wanted.default is REQUIRED
    ]
    faults += [
        Fault(
            path,
            f"input {name!r} is not declared{nearest(name, known)}; the tree takes: "
            f"{', '.join(known) or 'none'}",
        )
        for name in given
        if name not in known
    ]
    faults += [
        Fault(path, f"{problem}; pass one such as inputs={{{name!r}: {known[name].example!r}}}")
        for name, value in given.items()
        if name in known and (problem := known[name].problem(value))
    ]
    if faults:
        error = TreeError(faults)
        locate(error, path, kind="root", name=path.rpartition("/")[2], innermost=True)
        raise error
    defaults = {name: wanted.default for name, wanted in known.items() if name not in given}
    return {name: copied(value) for name, value in clean({**defaults, **given}).items()}


def needs_of(tree: Node, path: str) -> tuple[Input, ...]:
    """Return the inputs that the part at `path` needs to run on its own.

    These are the root's inputs and, as inputs without a default, the keys that the part reads and
    that only the rest of the tree writes.
    """
    if path == root_path(tree):
        return inputs_of(tree)
    part = find(tree, path)
    own = {key for _, node in walk(part, path) if (key := node.capture_key)}
    declared = {given.name: given for given in inputs_of(tree)}
    wanted: dict[str, Input] = {}
    for _, node in walk(part, path):
        for key in _required(node):
            if key not in own and key not in declared:
                wanted.setdefault(key, Input(key))
    return (*declared.values(), *wanted.values())


def can_respond(node: Node) -> bool:
    """Return whether a node's merge can pass on an assistant message."""
    if node.merge == "none":
        return False
    return _makes_response(node)


def _makes_response(node: Node) -> bool:
    """Return whether a node can produce an assistant message; a Call always may."""
    if isinstance(node, Step | Call):
        return True
    return any(can_respond(child) for _, child in children(node, ""))


def feedback_read(tree: Node, key: str) -> bool:
    """Return whether anything in a tree may read a gate's capture under a key.

    A loop's `until` reads only the decision. A function without declared reads may read anything.
    """
    for _, node in walk(tree):
        if isinstance(node, Step | Call):
            reads = node.reads
            if reads is None or key in reads.keys or key in keys_read(node):
                return True
    return False


def readable(tree: Node, keys: Iterable[str]) -> tuple[str, ...]:
    """Return those of some keys that a tree can read and that no other source provides.

    A function that declares no reads can read all of them.
    """
    nodes = [node for _, node in walk(tree)]
    own = {one.name for one in declared_inputs(tree)} | {node.capture_key for node in nodes}
    named = {key for node in nodes for key in keys_read(node)}
    anything = any(
        (isinstance(node, Step | Call) and node.reads is None)
        or (isinstance(node, Loop) and not isinstance(node.until, str))
        for node in nodes
    )
    return tuple(key for key in keys if key not in own and (anything or key in named))


def keys_read(node: Node) -> tuple[str, ...]:
    """Return the keys that a node is known to read: declared ones, and a loop's condition."""
    if isinstance(node, Loop) and isinstance(node.until, str):
        return (node.until,)
    return _known_reads(node).keys


def _required(node: Node) -> tuple[str, ...]:
    return _known_reads(node).required


def _known_reads(node: Node) -> Reads:
    # A prompt function that declares no reads may read anything; the system text is still known.
    if isinstance(node, Step):
        return node.reads or node.system_reads
    return (node.reads if isinstance(node, Call) else None) or Reads()


def _input_faults(tree: Node, root: str) -> Iterator[Fault]:
    for path, node in walk(tree, root):
        if not isinstance(node, Block) or not node.inputs:
            continue
        if node is not tree or path != root:
            yield Fault(path, "inputs belong on the root; move them there")
        seen: set[str] = set()
        for given in node.declared_inputs:
            if given.name in seen:
                yield Fault(path, f"input {given.name!r} is declared twice")
            seen.add(given.name)


def _until_faults(tree: Node, root: str) -> Iterator[Fault]:
    for path, node in walk(tree, root):
        if not isinstance(node, Loop) or not isinstance(node.until, str):
            continue
        own = {below.capture_key for _, below in walk(node.body, path) if below.capture_key}
        if node.until not in own:
            yield Fault(
                path,
                f"until={node.until!r}, which nothing in the loop captures"
                f"{nearest(node.until, own)}; its captures are: {', '.join(sorted(own)) or 'none'}",
            )


def _place_faults(tree: Node, root: str) -> Iterator[Fault]:
    for path, node in walk(tree, root):
        if not isinstance(node, Step):
            continue
        for name in ("prompt", "system"):
            text = getattr(node, name)
            if isinstance(text, str) and (keys := keys_in(text)):
                yield Fault(
                    path,
                    f"the {name} is plain text, but contains {_places(keys)}: make it a Template "
                    f"(Template(...); in YAML {name}: {{template: ...}}), or, to send the braces, "
                    f"{_LITERAL[name]}",
                )
        shown = [text for one in node.examples if isinstance(one, tuple) for text in one]
        if keys := tuple(dict.fromkeys(key for text in shown for key in keys_in(text))):
            yield Fault(
                path,
                f"the examples contain {_places(keys)}, and examples are sent as they are: write "
                "the text out, or, to send the braces, use messages instead of pairs",
            )


_LITERAL = {
    "prompt": "return the text from a prompt function",
    "system": "fill them in: Template('{{ text }}', defaults={'text': ...})",
}


def _places(keys: Iterable[str]) -> str:
    return ", ".join(f"{{{{ {key} }}}}" for key in keys)


def _response_faults(tree: Node, root: str) -> Iterator[Fault]:
    for path, node in walk(tree, root):
        if _makes_response(node):
            continue
        if node.merge == "last_response":
            yield Fault(
                path, f"{NO_RESPONSE}: no child keeps one; let one merge, or use merge='none'"
            )
        # A gate captures its decision, which needs no response.
        if node.capture_key is not None and not isinstance(node, Gate):
            yield Fault(
                path,
                f"capture_key={node.capture_key!r} asks for a last response, but no assistant "
                "output exists: no child keeps one",
            )


def _writers(tree: Node, root: str) -> tuple[dict[str, str], list[Fault]]:
    """Return the writer of each key, and the problems of keys with two writers."""
    path_of: dict[str, str] = {}
    faults = []
    given = {declared.name for declared in inputs_of(tree)}
    for path, node in walk(tree, root):
        key = node.capture_key
        if key is None:
            continue
        if key in given:
            faults.append(Fault(path, f"capture_key {key!r} is an input's name; rename one"))
        if key in path_of:
            faults.append(
                Fault(
                    path,
                    f"capture_key {key!r} is written by {path_of[key]} too; a key has one "
                    "writer: build the part with a factory that scopes its keys",
                )
            )
        path_of.setdefault(key, path)
    return path_of, faults


@dataclass
class _ReadCheck:
    """A walk in order of execution with the keys that are surely written."""

    inputs: frozenset[str]
    path_of: dict[str, str]
    faults: list[Fault] = field(default_factory=list)
    unsure: frozenset[str] = frozenset()
    gate_of: dict[str, str] = field(default_factory=dict)  # key to the gate that may drop it
    approved_by: dict[str, frozenset[str]] = field(default_factory=dict)  # a gate's capture to keys

    def visit(self, node: Node, path: str, there: frozenset[str]) -> list[Fault]:
        self._visit(node, path, there)
        return self.faults

    def _visit(self, node: Node, path: str, there: frozenset[str]) -> frozenset[str]:
        """Return the keys that are written after the node."""
        self._read(path, _required(node), there)
        before = there
        if isinstance(node, Loop) and node.may_skip and callable(node.until):
            there |= frozenset(self.gate_of)  # a function may skip the loop where they are missing
        after = there
        # Children of a parallel block see only the keys that were written before the block.
        # Not with "threads": there `thread_groups` starts a reader after the child that it reads.
        beside = isinstance(node, Block) and node.side_by_side
        for child_path, child in children(node, path):
            after |= self._visit(child, child_path, there if beside else after)
        if isinstance(node, Gate) and node.on_reject == "continue":
            # The keys in it are written only if the gate doesn't reject its node's output.
            held, after = after - there, there
            self.gate_of |= dict.fromkeys(held, path)
            if node.capture_key is not None:
                self.approved_by[node.capture_key] = held
        if isinstance(node, Loop):
            after |= self._approved(node)
        # A loop that is skipped writes nothing, so later nodes can't rely on its keys.
        if isinstance(node, Loop) and node.may_skip:
            self.unsure |= after - there
            after = before
        return after | {node.capture_key} if node.capture_key is not None else after

    def _approved(self, loop: Loop) -> frozenset[str]:
        """Return the keys that an approval guarantees after a loop, which otherwise raises.

        A function in `until` may check any decision, so all gates in the loop count as approved.
        """
        if loop.on_exhausted == "keep":
            return frozenset()
        if isinstance(loop.until, str):
            return self.approved_by.get(loop.until, frozenset())
        own = {below.capture_key for _, below in walk(loop.body, "") if below.capture_key}
        return frozenset(own & self.gate_of.keys())

    def _read(self, path: str, keys: Iterable[str], there: frozenset[str]) -> None:
        for key in keys:
            if key in there:
                continue
            if key in self.path_of:
                when = "only later or in parallel"
                if key in self.unsure:
                    when = "in a loop that may be skipped"
                if key in self.gate_of:
                    problem = (
                        f"reads {key!r}, written at {self.path_of[key]}, which a rejection at "
                        f"{self.gate_of[key]} drops; give a default, let a rejection end the run "
                        "(on_reject='stop'), or try again in a Loop until the gate approves"
                    )
                    self.faults.append(Fault(path, problem))
                    continue
                problem = (
                    f"reads {key!r}, which is written {when}, at {self.path_of[key]}; "
                    "move the reader after it, or give a default"
                )
            else:
                known = [*sorted(self.inputs), *self.path_of]
                problem = (
                    f"reads {key!r}, which no input and no capture_key provides"
                    f"{nearest(key, known)}; known are: {', '.join(known) or 'none'}"
                )
            self.faults.append(Fault(path, problem))
