"""Random trees, and what a run of them needs, for property tests."""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from mergepoint.core.errors import MergepointError, install_command
from mergepoint.core.merge import MERGE_MODES, MergeMode
from mergepoint.core.paths import effective_name, iteration_name
from mergepoint.testing.tree_functions import (
    BROKEN_COUNTS,
    BROKEN_PARTS,
    BROKEN_RESULTS,
    BROKEN_WORDS,
    FAILURES,
    FORMS,
    SAFE_PARTS,
    SAFE_RESULTS,
    SAFE_WORDS,
    TOOLS,
    AnswerTable,
    DataFunction,
    DecisionFunction,
    EchoRunnable,
    Part,
    PartsPrompt,
    ReplySchema,
    StopRule,
)
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import REQUIRED, Block, Gate, Input, Loop, Node, Until, children, walk
from mergepoint.tree.prompts import Template
from mergepoint.tree.validate import can_respond, inputs_of

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise MergepointError(
        f"random trees need hypothesis, which is not installed: {install_command('testing')}"
    ) from error

T = TypeVar("T")


class Choice(ABC):
    """A source of decisions; the first option is the simplest, to which failures shrink."""

    @abstractmethod
    def integer(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included."""

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[self.integer(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        """Return True in about `percent` of a hundred cases."""
        # High numbers are True: hypothesis shrinks to 0, and so to False.
        return self.integer(0, 99) >= 100 - percent


class Seeded(Choice):
    """Decisions from a seed: the same in every process, and faster than hypothesis."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  (test data, no secrets)

    def integer(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included."""
        return self._random.randint(low, high)


Keys = frozenset[str]

KEYS = ("plan", "draft", "notes", "doc.title", "größe", "plan_2", "verdict", "a-b", "k9", "ü")
INPUTS = ("topic", "level", "doc.kind", "tags")
VALUES: tuple[Any, ...] = ("winter", 3, ["a", "b"], "{{ plan }}", {"deep": [1]}, 0)
WORDS = (
    "Go on.",
    "Say it again.",
    "Why? {{ not a place }} {{}}",
    "Fasse zusammen: {x}",
    "{{ k9 }",
)


@dataclass
class Sayings:
    """Random prompts, templates, and functions; with `broken`, some functions fail."""

    choice: Choice
    _: KW_ONLY
    broken: bool = False
    inputs: tuple[Input, ...] = ()

    def spoken(self) -> EchoRunnable:
        """Return a Runnable."""
        return EchoRunnable(self.choice.pick(FORMS), asks=self.choice.chance(30))

    def counted(self, there: Keys, *, plain: bool) -> DataFunction:
        """Return a function; with `plain`, one that reads nothing itself."""
        choice = self.choice
        gives = choice.pick(SAFE_RESULTS)
        if self.broken and choice.chance(15):
            gives = choice.pick(BROKEN_RESULTS)
        required, defaults = self._reads(there) if gives == "read" and not plain else ([], {})
        return DataFunction(
            gives,
            keys=tuple(required),
            defaults=defaults,
            declared=bool(defaults) or choice.chance(60),
            late=choice.chance(30),
        )

    def args(self, there: Keys) -> dict[str, Any]:
        """Return arguments: values, and templates of available keys."""
        choice = self.choice
        args: dict[str, Any] = {}
        for name in ("what", "much", "more")[: choice.integer(1, 3)]:
            kind = choice.pick(("value", "template", "whole"))
            if kind == "value":
                args[name] = choice.pick((3, "{{ plan }}", ["a", "b"], {"deep": [1]}, None))
            else:
                args[name] = self.template(there)
            keys = args[name].keys if isinstance(args[name], Template) else ()
            if kind == "whole" and keys:
                defaults = {k: v for k, v in args[name].defaults.items() if k == keys[0]}
                args[name] = Template(f"{{{{ {keys[0]} }}}}", defaults=defaults)
        return args

    def prompt(self, there: Keys) -> str | Template | PartsPrompt:
        """Return a prompt."""
        kind = self.choice.pick(("literal", "template", "told"))
        if kind == "literal":
            return self.choice.pick(WORDS)
        if kind == "template":
            return self.template(there)
        return self.told(there)

    def system(self, there: Keys) -> str | Template | None:
        """Return a system message, or None."""
        kind = self.choice.pick((None, None, None, "literal", "template"))
        if kind is None:
            return None
        return "You are terse." if kind == "literal" else self.template(there)

    def _reads(self, there: Keys) -> tuple[list[str], dict[str, str]]:
        """Return some keys that are certainly available, and optional ones with their defaults."""
        surely = sorted(there | {given.name for given in self.inputs})
        required = [self.choice.pick(surely) for _ in range(self.choice.integer(0, 2)) if surely]
        optional: dict[str, str] = {}
        if self.choice.chance(30):
            key = self.choice.pick((*KEYS, *INPUTS))
            if key not in required:
                optional[key] = self.choice.pick(("by default", "", "{{ plan }}"))
        return required, optional

    def template(self, there: Keys) -> Template:
        """Return a template with up to three placeholders."""
        required, defaults = self._reads(there)
        form = self.choice.pick(("{{ ? }}", "{{?}}", "{{{ ? }}}", "{{\n?\n}}"))
        places = [form.replace("?", key) for key in (*required, *defaults)]
        opening = self.choice.pick(("Read this:", "{{ not a place }}", "{% if %}"))
        text = " ".join(places) if places and self.choice.chance(20) else None
        return Template(text or " ".join((opening, *places)), defaults=defaults)

    def told(self, there: Keys) -> PartsPrompt:
        """Return a prompt function."""
        required, defaults = self._reads(there)
        parts: list[Part] = [("text", self.choice.pick(WORDS))]
        parts += [("read", key) for key in (*required, *defaults)]
        silent = [kind for kind in SAFE_PARTS if kind not in ("text", "read")]
        parts += [(self.choice.pick(silent),) for _ in range(self.choice.integer(0, 3))]
        if self.broken and self.choice.chance(10):
            parts.append((self.choice.pick(BROKEN_PARTS),))
        # Nothing is claimed about an undeclared function, so it must not have optional reads.
        declared = bool(defaults) or self.choice.chance(60)
        blocks = self.choice.chance(30)
        return PartsPrompt(tuple(parts), defaults=defaults, declared=declared, blocks=blocks)


NAMES = ("draft", "review", "messages", "work", "inputs", "tot enclave", "v1.2", "step_02")
KINDS = ("step", "block", "call", "gate", "loop")
WITH_TOOLS = (*KINDS, "tools")
"""The kinds including steps with tools; the seeds of KINDS keep producing the same trees."""
ROUNDS = 6
"""Maximum number of times that a leaf runs, over all loops around it."""


@dataclass
class Growth(Sayings):
    """Grows one tree; `nodes_left` is the number of nodes that may be added below the root.

    `kinds` may omit calls, gates, and loops, and may include "tools". The same code serves
    hypothesis, which shrinks failures, and seeds, which are fast.
    """

    _: KW_ONLY
    max_depth: int = 6
    nodes_left: int = 24
    parallel: bool = True
    kinds: Collection[str] = KINDS
    _unused: list[str] = field(default_factory=lambda: list(KEYS))
    _rounds: int = 1

    def tree(self) -> Node:
        """Return a tree without validation errors."""
        if self.choice.chance(10):
            kind = self.choice.pick(("step", *self._kinds(1), *self._fitting("tools")))
            return self._node(kind, None, 1, frozenset())[0]
        self.inputs = tuple(self._input(name) for name in INPUTS if self.choice.chance(25))
        return self._block(
            self.choice.pick((None, None, None, "main", "messages")), 1, frozenset(), self.inputs
        )[0]

    def _input(self, name: str) -> Input:
        if self.choice.chance(40):
            return Input(name, default=self.choice.pick(VALUES))
        return Input(name)

    def _block(
        self, name: str | None, depth: int, there: Keys, inputs: Sequence[Input] = ()
    ) -> tuple[Block, Keys]:
        """Return a block, and the keys that are available after it."""
        parallel = self.parallel and self.choice.chance(40)
        nodes, after, _ = self._nodes(depth, there, parallel=parallel)
        merge, key = self._exit(responds=any(map(self._responds, nodes)))
        # Derived from the position instead of a new decision, so that existing seeds keep their
        # trees.
        threads = self.parallel and not parallel and (depth + len(nodes)) % 2 == 0
        block = Block(
            nodes,
            name=name,
            merge=merge,
            capture_key=key,
            parallel="threads" if threads else parallel,
            inputs=tuple(inputs),
        )
        return block, after | {key} if key else after

    def _nodes(
        self, depth: int, there: Keys, *, parallel: bool = False, least: int = 0
    ) -> tuple[list[Node], Keys, set[str]]:
        """Return the children of a block, the keys available after them, and their names."""
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
            kind = self.choice.pick(self._fitting("step", "step", "step", "call", "tools"))
        name = self._name("step" if kind == "tools" else kind, len(nodes) + 1, taken)
        return self._node(kind, name, depth + 1, there)

    def _kinds(self, depth: int) -> tuple[str, ...]:
        """Return the containers that fit at a depth; a loop takes two levels."""
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
        if kind == "tools":
            return self._with_tools(name, there)
        return self._call(name, there) if kind == "call" else self._step(name, there)

    def _gate(self, name: str | None, depth: int, there: Keys) -> tuple[Gate, Keys]:
        """Return a gate; its content may be rejected, so no one may rely on its keys."""
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
            decide=DecisionFunction(tuple(words), spoils=choice.chance(20)),
            on_reject="stop" if choice.chance(20) else "continue",
        )
        return gate, there | {key} if key else there

    def _loop(self, name: str | None, depth: int, there: Keys) -> tuple[Loop, Keys]:
        # The loop's body is a block of its own.
        self.nodes_left -= 1
        most = self.choice.integer(1, min(4, max(1, ROUNDS // self._rounds)))
        self._rounds *= most
        nodes, after, taken = self._nodes(depth + 1, there, least=1)
        until, ends = self._until(nodes, taken, most)
        self._rounds //= most
        if isinstance(until, str) or (isinstance(until, StopRule) and until.of == "key"):
            # The loop's condition has captured this key by the time the loop ends.
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
        """Return the end condition of a loop, and whether it certainly ends.

        A counter needs a Call of its own.
        """
        choice = self.choice
        if self.broken and choice.chance(10):
            return StopRule(1, of=choice.pick(BROKEN_COUNTS)), False
        kind = choice.pick(("messages", "counter", "counter", "flag", "whim"))
        calls = "call" in self.kinds and self._unused and self.nodes_left > 0
        if kind in ("counter", "flag") and calls:
            key = self._key()
            counts = kind == "counter"
            count = DataFunction("next", counter=key) if counts else DataFunction("flag")
            self.nodes_left -= 1
            name = self._name("call", len(nodes) + 1, taken)
            nodes.append(Call(count, name=name, capture_key=key))
            rounds = StopRule(choice.integer(1, most), of="key", key=key)
            return (rounds, True) if counts else (key, False)
        gates = [node.capture_key for node in nodes if isinstance(node, Gate) and node.capture_key]
        if gates and choice.chance(70):
            return choice.pick(gates), False
        if kind == "whim":
            return StopRule(choice.integer(2, 3), of="whim"), False
        return StopRule(choice.integer(1, 10)), False

    def _name(self, kind: str, position: int, taken: set[str]) -> str | None:
        name = self.choice.pick((None, None, *NAMES))
        if effective_name(name, kind, position) in taken:
            name = f"{name or kind}-{position}"
        taken.add(effective_name(name, kind, position))
        return name

    def _responds(self, node: Node) -> bool:
        """Return whether a node leaves a response; unless `broken`, whether it certainly does."""
        if self.broken:
            return can_respond(node)
        if node.merge == "none" or isinstance(node, Gate):
            return False
        own = children(node, "")
        if isinstance(node, Loop) and node.may_skip:
            return False
        return not isinstance(node, Block | Gate | Loop) or any(
            self._responds(child) for _, child in own
        )

    def _exit(self, *, responds: bool, always: bool = False) -> tuple[MergeMode, str | None]:
        """Return mode and capture key; with `always`, perhaps a key even without a response."""
        # A last_response merge without a response fails at run time.
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
        schema = ReplySchema if self.choice.chance(15) else None
        step = Step(prompt, name=name, merge=merge, capture_key=key, system=system, schema=schema)
        return step, there | {key} if key else there

    def _with_tools(self, name: str | None, there: Keys) -> tuple[Step, Keys]:
        """Return a step with tools; only a `broken` one can have too few rounds."""
        prompt, system = self.prompt(there), self.system(there)
        merge, key = self._exit(responds=True)
        known = list(TOOLS)
        tools = [known.pop(self.choice.integer(0, len(known) - 1)) for _ in range(3)]
        step = Step(
            prompt,
            name=name,
            merge=merge,
            capture_key=key,
            system=system,
            tools=[TOOLS[tool] for tool in tools[: self.choice.integer(1, 3)]],
            max_tool_rounds=self.choice.integer(1 if self.broken else 2, 3),
        )
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


TEXTS = ("Hello.", "And then?", "{{ plan }}", "äöü\n\nline", "  ", "Be brief.")


@dataclass(frozen=True)
class Case:
    """A tree, and everything that a run of it needs."""

    tree: Node
    messages: Sequence[BaseMessage]
    inputs: dict[str, Any]
    answers: AnswerTable


def grow_messages(choice: Choice) -> list[BaseMessage]:
    """Return a conversation to start from, each message with an id."""
    kinds: Sequence[type[BaseMessage]] = (HumanMessage, AIMessage, SystemMessage)
    return [
        choice.pick(kinds)(choice.pick(TEXTS), id=f"given-{number}")
        for number in range(choice.integer(0, 4))
    ]


def grow_inputs(choice: Choice, tree: Node, *, faulty: bool = False) -> dict[str, Any]:
    """Return a run's inputs; with `faulty`, one is missing or blank now and then."""
    given: dict[str, Any] = {}
    for declared in inputs_of(tree):
        if declared.default is not REQUIRED and choice.chance(50):
            continue
        given[declared.name] = copy.deepcopy(choice.pick(VALUES))
        if faulty and choice.chance(4):
            given[declared.name] = choice.pick((" ", None))
        if faulty and choice.chance(2):
            del given[declared.name]
    return given


def grow_answers(choice: Choice, tree: Node, *, failing: int = 30) -> AnswerTable:
    """Return answers; in about `failing` of a hundred cases, one to four calls fail."""
    seed = choice.integer(0, 1_000_000)
    failures: dict[str, str] = {}
    paths = [path for path, node in walk(tree) if isinstance(node, Step)]
    if paths and choice.chance(failing):
        for _ in range(choice.integer(1, 4)):
            path = choice.pick(paths)
            # The failure moves to the second iteration of the enclosing loops, if any.
            if choice.chance(30):
                path = path.replace(iteration_name(1), iteration_name(2))
            failures[path] = choice.pick(tuple(FAILURES))
    return AnswerTable(seed, failures=failures)


def grow_case(choice: Choice, *, faulty: bool = True, kinds: Collection[str] = KINDS) -> Case:
    """Return a tree with messages, inputs, and answers; with `faulty`, runs may fail."""
    size = choice.pick((4, 4, 8, 16))
    broken = faulty and choice.chance(20)
    tree = Growth(choice, nodes_left=size, broken=broken, kinds=kinds).tree()
    return Case(
        tree,
        grow_messages(choice),
        grow_inputs(choice, tree, faulty=faulty),
        grow_answers(choice, tree, failing=35 if faulty else 0),
    )


def seeded_case(seed: int, *, faulty: bool = True, kinds: Collection[str] = KINDS) -> Case:
    """Return the case of a number, the same in every process."""
    return grow_case(Seeded(seed), faulty=faulty, kinds=kinds)


class _Drawn(Choice):
    """Decisions that hypothesis makes, remembers, and shrinks."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))


@st.composite
def trees(
    draw: st.DrawFn,
    *,
    max_depth: int = 6,
    max_nodes: int = 24,
    parallel: bool = True,
    broken_prompts: bool = False,
    kinds: Collection[str] = KINDS,
) -> Node:
    """Return trees without validation errors, for property tests of anything that takes a tree.

    Args:
        draw: Set by hypothesis.
        max_depth: Maximum number of names in the longest path.
        max_nodes: Maximum number of nodes below the root.
        parallel: Whether blocks may be parallel.
        broken_prompts: Whether some functions raise, or return invalid prompts, results, or
            decisions.
        kinds: The kinds of nodes; "call", "gate", and "loop" may be omitted.
    """
    return Growth(
        _Drawn(draw),
        max_depth=max_depth,
        nodes_left=max_nodes,
        parallel=parallel,
        broken=broken_prompts,
        kinds=kinds,
    ).tree()


@st.composite
def messages(draw: st.DrawFn) -> list[BaseMessage]:
    """Return conversations to start from, of up to four messages with ids."""
    return grow_messages(_Drawn(draw))


@st.composite
def inputs(draw: st.DrawFn, tree: Node, *, faulty: bool = False) -> dict[str, Any]:
    """Return inputs for a tree; with `faulty`, one is missing or blank now and then."""
    return grow_inputs(_Drawn(draw), tree, faulty=faulty)


@st.composite
def answers(draw: st.DrawFn, tree: Node, *, failing: int = 30) -> AnswerTable:
    """Return answers for a tree's calls; in `failing` of a hundred tables, some calls fail."""
    return grow_answers(_Drawn(draw), tree, failing=failing)


@st.composite
def cases(draw: st.DrawFn, *, faulty: bool = True, kinds: Collection[str] = KINDS) -> Case:
    """Return a tree with messages, inputs, and answers; with `faulty`, runs may fail."""
    return grow_case(_Drawn(draw), faulty=faulty, kinds=kinds)
