"""Growth: random trees that can run, from a source of decisions.

The same code serves property tests, which shrink what fails, and seeds, which are fast.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import cast

from mergepoint.core.merge import MERGE_MODES, MergeMode
from mergepoint.core.path import effective_name
from mergepoint.testing.answers import Filled
from mergepoint.testing.counted import Counted
from mergepoint.testing.rounds import BROKEN_COUNTS, Rounds
from mergepoint.testing.sayings import INPUTS, KEYS, VALUES, Keys, Sayings
from mergepoint.testing.verdicts import BROKEN_WORDS, SAFE_WORDS, Verdicts
from mergepoint.tree.block import Block, Input
from mergepoint.tree.call import Call
from mergepoint.tree.check import can_respond
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop, Until
from mergepoint.tree.node import Node, children
from mergepoint.tree.step import Step

NAMES = ("draft", "review", "messages", "work", "inputs", "tot enclave", "v1.2", "step_02")
KINDS = ("step", "block", "call", "gate", "loop")
ROUNDS = 6
"""How often at most a leaf is run, in all the loops around it."""


@dataclass
class Growth(Sayings):
    """Grows one tree; `nodes_left` is what may still be added below the root.

    Of `kinds` calls, gates and loops may be left out.
    """

    _: KW_ONLY
    max_depth: int = 6
    nodes_left: int = 24
    parallel: bool = True
    kinds: Collection[str] = KINDS
    _unused: list[str] = field(default_factory=lambda: list(KEYS))
    _rounds: int = 1

    def tree(self) -> Node:
        """Give a tree for which `check` finds no fault."""
        if self.choice.chance(10):
            kind = self.choice.pick(("step", *self._kinds(1)))
            return self._node(kind, None, 1, frozenset())[0]
        self.inputs = tuple(self._input(name) for name in INPUTS if self.choice.chance(25))
        return self._block(self._root_name(), 1, frozenset(), self.inputs)[0]

    def _root_name(self) -> str | None:
        return self.choice.pick((None, None, None, "main", "messages"))

    def _input(self, name: str) -> Input:
        if self.choice.chance(40):
            return Input(name, default=self.choice.pick(VALUES))
        return Input(name)

    def _block(
        self, name: str | None, depth: int, there: Keys, inputs: Sequence[Input] = ()
    ) -> tuple[Block, Keys]:
        """Give a block and the keys that are there after it, of those there at its entry."""
        parallel = self.parallel and self.choice.chance(40)
        nodes, after, _ = self._nodes(depth, there, parallel=parallel)
        merge, key = self._exit(responds=any(map(self._responds, nodes)))
        block = Block(
            nodes, name=name, merge=merge, capture_key=key, parallel=parallel, inputs=tuple(inputs)
        )
        return block, after | {key} if key else after

    def _nodes(
        self, depth: int, there: Keys, *, parallel: bool = False, least: int = 0
    ) -> tuple[list[Node], Keys, set[str]]:
        """Give the children of a block, the keys there after them, and their names."""
        nodes: list[Node] = []
        taken: set[str] = set()
        after = there
        more = least > 0 or not self.choice.chance(3)
        while more and self.nodes_left > 0:
            node, kept = self._child(nodes, taken, depth, there if parallel else after)
            nodes.append(node)
            after |= kept
            more = len(nodes) < 4 and self.choice.chance(66)
        return nodes, after, taken

    def _child(
        self, nodes: Sequence[Node], taken: set[str], depth: int, there: Keys
    ) -> tuple[Node, Keys]:
        self.nodes_left -= 1
        kinds = self._kinds(depth + 1)
        if kinds and self.choice.chance(55):
            kind = self.choice.pick(kinds)
        else:
            kind = self.choice.pick(self._fitting("step", "step", "step", "call"))
        name = self._name(kind, len(nodes) + 1, taken)
        return self._node(kind, name, depth + 1, there)

    def _kinds(self, depth: int) -> tuple[str, ...]:
        """Give what fits at a depth besides leaves; a loop takes up two levels."""
        below = self.max_depth - depth
        if below < 1 or self.nodes_left < 1:
            return ()
        loop = ("loop",) if below > 1 and self.nodes_left > 1 else ()
        return self._fitting("block", "block", "gate", *loop)

    def _fitting(self, *kinds: str) -> tuple[str, ...]:
        return tuple(kind for kind in kinds if kind in self.kinds)

    def _node(self, kind: str, name: str | None, depth: int, there: Keys) -> tuple[Node, Keys]:
        if kind == "block":
            return self._block(name, depth, there)
        if kind == "gate":
            return self._gate(name, depth, there)
        if kind == "loop":
            return self._loop(name, depth, there)
        return self._call(name, there) if kind == "call" else self._step(name, there)

    def _gate(self, name: str | None, depth: int, there: Keys) -> tuple[Gate, Keys]:
        """Give a gate; what it holds back may be rejected, so nobody may rely on its keys."""
        choice = self.choice
        node, _ = self._child((), set(), depth, there)
        words = [choice.pick(SAFE_WORDS) for _ in range(choice.integer(1, 3))]
        if self.broken and choice.chance(20):
            words.append(choice.pick(BROKEN_WORDS))
        merge, key = self._exit(responds=self._responds(node), always=True)
        gate = Gate(
            node,
            name=name,
            merge=merge,
            capture_key=key,
            question=choice.pick(("", "Good?", "{{ plan }}?")),
            decide=Verdicts(tuple(words), spoils=choice.chance(20)),
        )
        return gate, there | {key} if key else there

    def _loop(self, name: str | None, depth: int, there: Keys) -> tuple[Loop, Keys]:
        self.nodes_left -= 1  # the body is a block
        most = self.choice.integer(1, min(4, max(1, ROUNDS // self._rounds)))
        self._rounds *= most
        nodes, after, taken = self._nodes(depth + 1, there, least=1)
        until, ends = self._until(nodes, taken, most)
        self._rounds //= most
        if isinstance(until, str) or (isinstance(until, Rounds) and until.of == "key"):
            after |= {until if isinstance(until, str) else until.key}
        skips = self.choice.chance(20)
        merge, key = self._exit(responds=not skips and any(map(self._responds, nodes)))
        raises = (ends or self.broken) and self.choice.chance(60)
        loop = Loop(
            nodes,
            until=until,
            may_skip=skips,
            max_iterations=most,
            on_exhausted="raise" if raises else "keep",
            name=name,
            merge=merge,
            capture_key=key,
        )
        after = there if skips else after
        return loop, after | {key} if key else after

    def _until(self, nodes: list[Node], taken: set[str], most: int) -> tuple[Until, bool]:
        """Give when a loop ends, and whether it surely does; a count needs a Call of its own."""
        choice = self.choice
        if self.broken and choice.chance(10):
            return Rounds(1, of=choice.pick(BROKEN_COUNTS)), False
        kind = choice.pick(("messages", "counter", "counter", "flag", "whim"))
        calls = "call" in self.kinds and self._unused and self.nodes_left > 0
        if kind in ("counter", "flag") and calls:
            key = self._key()
            counts = kind == "counter"
            count = Counted("next", counter=key) if counts else Counted("flag")
            self._add_call(nodes, taken, count, key)
            rounds = Rounds(choice.integer(1, most), of="key", key=key)
            return (rounds, True) if counts else (key, False)
        gates = [node.capture_key for node in nodes if isinstance(node, Gate) and node.capture_key]
        if gates and choice.chance(70):
            return choice.pick(gates), False
        if kind == "whim":
            return Rounds(choice.integer(2, 3), of="whim"), False
        return Rounds(choice.integer(1, 10)), False

    def _add_call(self, nodes: list[Node], taken: set[str], target: Counted, key: str) -> None:
        self.nodes_left -= 1
        name = self._name("call", len(nodes) + 1, taken)
        nodes.append(Call(target, name=name, capture_key=key))

    def _name(self, kind: str, position: int, taken: set[str]) -> str | None:
        name = self.choice.pick((None, None, *NAMES))
        if effective_name(name, kind, position) in taken:
            name = f"{name or kind}-{position}"
        taken.add(effective_name(name, kind, position))
        return name

    def _responds(self, node: Node) -> bool:
        """Say whether a node leaves a response: surely, in a tree whose runs are not to fail."""
        if self.broken:
            return can_respond(node)
        if node.merge == "none" or isinstance(node, Gate):
            return False
        own = children(node, "")
        if isinstance(node, Loop) and node.may_skip:
            return False
        return not _is_container(node) or any(self._responds(child) for _, child in own)

    def _exit(self, *, responds: bool, always: bool = False) -> tuple[MergeMode, str | None]:
        """Give mode and capture; with `always` something is captured also without a response."""
        modes = MERGE_MODES if responds else ("all_messages", "none")
        merge = cast("MergeMode", self.choice.pick(modes))
        capture = (responds or always) and bool(self._unused) and self.choice.chance(35)
        return merge, self._key() if capture else None

    def _key(self) -> str:
        return self._unused.pop(self.choice.integer(0, len(self._unused) - 1))

    def _step(self, name: str | None, there: Keys) -> tuple[Step, Keys]:
        prompt = self.prompt(there)
        system = self.system(there)
        merge, key = self._exit(responds=True)
        schema = Filled if self.choice.chance(15) else None
        step = Step(prompt, name=name, merge=merge, capture_key=key, system=system, schema=schema)
        return step, there | {key} if key else there

    def _call(self, name: str | None, there: Keys) -> tuple[Call, Keys]:
        args = self.args(there) if self.choice.chance(40) else None
        merge, key = self._exit(responds=True)
        if self.choice.chance(50):
            merge = "none"
        runnable = args is None and self.choice.chance(30)
        target = self.spoken() if runnable else self.counted(there, plain=args is not None)
        call = Call(target, name=name, merge=merge, capture_key=key, args=args)
        return call, there | {key} if key else there


def _is_container(node: Node) -> bool:
    return isinstance(node, Block | Gate | Loop)
