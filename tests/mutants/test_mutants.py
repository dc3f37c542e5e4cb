"""Faults put into the library on purpose are detected by small trees and the reference."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from tests.equivalence.engines import Observed, observe, referred
from tests.mutants.killers import killers
from tests.mutants.mutate import BROKEN, Mutant, apply

from mergepoint.testing.random_trees import Case

pytestmark = pytest.mark.campaign


@dataclass(frozen=True)
class Seen(Mutant):
    """A fault that a case shows; `seen_in` are the forms that then disagree with the reference."""

    case: str
    seen_in: frozenset[str]


GRAPH = frozenset({"subgraphs"})
FOLD = frozenset({"interpreter", "fused"})
ALL = GRAPH | FOLD

MERGE = "mergepoint.core.merge"
FOLDED = "mergepoint.tree.semantics"
CALL = "mergepoint.engine.step_call"
INTERPRET = "mergepoint.engine.interpreter"
CHANNELS = "mergepoint.engine.channels"
EXITS = "mergepoint.engine.graph_nodes"
DECISION = "mergepoint.tree.decision"
TOOLS = "mergepoint.engine.leaf_calls"

MUTANTS = (
    Seen(
        "none keeps messages",
        MERGE,
        "return State((), made.outputs)",
        "return made",
        "modes",
        ALL,
    ),
    Seen(
        "none drops captures",
        MERGE,
        "return State((), made.outputs)",
        "return State()",
        "captures",
        ALL,
    ),
    Seen(
        "last_response drops captures",
        MERGE,
        "return State(alone, made.outputs)",
        "return State(alone)",
        "a squashed block",
        ALL,
    ),
    Seen(
        "last_response keeps the prompt",
        MERGE,
        "return State(alone, made.outputs)",
        "return State(made.messages[-2:], made.outputs)",
        "modes",
        ALL,
    ),
    Seen(
        "the first response is the last",
        MERGE,
        "in reversed(messages):",
        "in messages:",
        "a squashed block",
        ALL,
    ),
    Seen(
        "a merge goes before its parent",
        MERGE,
        "return parent + kept if",
        "return kept + parent if",
        "a row",
        FOLD,
    ),
    Seen(
        "earlier captures are lost",
        "mergepoint.core.merge",
        "both = _copy(self.outputs)",
        "both: dict[str, Any] = {}",
        "captures",
        FOLD,
    ),
    Seen(
        "positions count from zero",
        "mergepoint.core.paths",
        "{position:02d}",
        "{position - 1:02d}",
        "a row",
        ALL,
    ),
    Seen(
        "the outermost path wins",
        "mergepoint.core.errors",
        'if getattr(error, "pipeline_path", None) and not innermost:',
        "if False:",
        "a failure inside",
        ALL,
    ),
    Seen(
        "later children see the base",
        FOLDED,
        "fold(child, at, base + made, onto=made, engine=engine)",
        "fold(child, at, base, onto=made, engine=engine)",
        "a row",
        FOLD,
    ),
    Seen(
        "a capture is lost",
        FOLDED,
        "whole = captured(node, made, stopped=stopped)",
        "whole = made",
        "captures",
        FOLD,
    ),
    Seen(
        "a capture is taken from the base",
        FOLDED,
        "whole = captured(node, made, stopped=stopped)",
        "whole = made + State((), captured(node, base, stopped=stopped).outputs)",
        "captures",
        FOLD,
    ),
    Seen(
        "siblings fold in alphabetical order",
        FOLDED,
        "own = children(node, path)",
        "own = sorted(children(node, path), key=lambda pair: pair[0])",
        "side by side",
        FOLD,
    ),
    Seen(
        "siblings see each other",
        FOLDED,
        "if node.side_by_side:",
        "if None:",
        "side by side",
        FOLD,
    ),
    Seen(
        "siblings see nothing",
        FOLDED,
        "return await _fold(child, at, base, onto=State(), engine=engine)",
        "return await _fold(child, at, State(), onto=State(), engine=engine)",
        "side by side",
        FOLD,
    ),
    Seen(
        "an optional read has no default",
        "mergepoint.tree.prompts",
        "optional = key in self.reads.defaults",
        "optional = False",
        "optional reads",
        ALL,
    ),
    Seen(
        "a blank value is read",
        "mergepoint.tree.prompts",
        'raise MissingKey(key, f"{key!r} is there but blank")',
        "return value",
        "a blank input",
        ALL,
    ),
    Seen(
        "random numbers forget the path",
        "mergepoint.tree.prompts",
        'f"{self.seed}/{self.path}"',
        'f"{self.seed}"',
        "draws",
        ALL,
    ),
    Seen(
        "prompts are given the state itself",
        "mergepoint.tree.prompts",
        "return copied_message(self._messages[index])",
        "return self._messages[index]",
        "spoilers",
        ALL,
    ),
    Seen(
        "prompts are given the inputs themselves",
        "mergepoint.tree.prompts",
        "return copied(self._values[key])",
        "return self._values[key]",
        "spoilers",
        ALL,
    ),
    Seen(
        "the seed is not handed down",
        "mergepoint.engine.run_constants",
        "seed=facts.seed",
        "seed=0",
        "draws",
        ALL,
    ),
    Seen(
        "a value is no JSON",
        "mergepoint.tree.prompts",
        "json.dumps(value, ensure_ascii=False)",
        "str(value)",
        "inputs",
        ALL,
    ),
    Seen(
        "the parent's path is recorded",
        CALL,
        "key = CallKey(facts.run, facts.host, path)",
        'key = CallKey(facts.run, facts.host, path.rpartition("/")[0])',
        "a row",
        ALL,
    ),
    Seen(
        "the system message enters the state",
        CALL,
        "State((request.prompt, ",
        "State((*request.lead, request.prompt, ",
        "inputs",
        ALL,
    ),
    Seen(
        "the prompt goes before the base",
        CALL,
        "[*lead, *base.messages, prompt]",
        "[*lead, prompt, *base.messages]",
        "a row",
        ALL,
    ),
    Seen(
        "a blank answer is an answer", CALL, "if text.strip():", "if True:", "a blank answer", ALL
    ),
    Seen(
        "an answer is stripped",
        CALL,
        "        return text\n    if",
        "        return text.strip()\n    if",
        "many forms",
        ALL,
    ),
    Seen(
        "a default input is not filled in",
        "mergepoint.tree.validate",
        "clean({**defaults, **given}).items()",
        "clean(given).items()",
        "inputs",
        ALL,
    ),
    Seen(
        "none starts after a failure, without a limit",
        INTERPRET,
        "limited=self._limit is not None",
        "limited=True",
        "a prompt fails side by side",
        FOLD,
    ),
    Seen(
        "other failures are not noted",
        "mergepoint.engine.interpreter",
        "first, *others = failures",
        "first, others = failures[0], failures[1:1]",
        "two fail side by side",
        ALL,
    ),
    Seen(
        "a sibling's failure is swallowed",
        INTERPRET,
        "if siblings.failures:",
        "if None:",
        "two fail side by side",
        FOLD,
    ),
    Seen(
        "the last failure is raised",
        INTERPRET,
        "for i in sorted(siblings.failures)]",
        "for i in sorted(siblings.failures, reverse=True)]",
        "two fail side by side",
        FOLD,
    ),
    Seen(
        "the last failure is raised at the exit",
        EXITS,
        "for number in sorted(failures)]",
        "for number in sorted(failures, reverse=True)]",
        "two fail side by side",
        GRAPH,
    ),
    Seen(
        "an exit folds in alphabetical order",
        EXITS,
        "for number in range(len(self._own)):",
        "for number in sorted(range(len(self._own)), key=self._own.__getitem__):",
        "side by side",
        GRAPH,
    ),
    Seen(
        "an exit captures nothing",
        EXITS,
        "merge(State(), mode, captured(self._block, made, stopped=rejected))",
        "merge(State(), mode, made)",
        "a squashed block",
        GRAPH,
    ),
    Seen(
        "an exit leaves the work beside what it keeps",
        EXITS,
        "Overwrite(list(kept.messages))",
        "list(kept.messages)",
        "a squashed block",
        GRAPH,
    ),
    Seen(
        "an exit keeps everything",
        EXITS,
        "merge(State(), mode, captured(self._block, made, stopped=rejected))",
        'merge(State(), "all_messages", captured(self._block, made, stopped=rejected))',
        "a squashed block",
        GRAPH,
    ),
    Seen(
        "a block inside does not see the work",
        CHANNELS,
        """(*state["messages"], *(state.get("work") or ())),""",
        """(*state["messages"],),""",
        "a block inside",
        GRAPH,
    ),
    Seen(
        "a block inside does not see captures",
        CHANNELS,
        "MappingProxyType({**outputs, **captures} if captures else outputs)",
        "MappingProxyType(outputs)",
        "a block inside",
        GRAPH,
    ),
    Seen(
        "a node sees the work before the base",
        CHANNELS,
        """*state["messages"], *(state.get("work") or ())""",
        """*(state.get("work") or ()), *state["messages"]""",
        "a row",
        GRAPH,
    ),
    Seen(
        "a node's captures are not written",
        CHANNELS,
        "if kept.outputs:",
        "if None:",
        "captures",
        GRAPH,
    ),
    Seen(
        "siblings' captures are not folded",
        CHANNELS,
        'return State.of(written.get("work") or (), written.get("captures") or {})',
        'return State.of(written.get("work") or ())',
        "side by side",
        GRAPH,
    ),
    Seen(
        "until is looked at before the iteration",
        FOLDED,
        "        at = join(path, iteration_name(number))\n        try:",
        "        at = join(path, iteration_name(number))\n"
        "        if await engine.holds(loop, path, base + made, number):\n"
        "            return made\n"
        "        try:",
        "a loop that holds at once",
        FOLD,
    ),
    Seen(
        "until does not see the iteration",
        FOLDED,
        "if await engine.holds(loop, path, base + made, number):",
        "if await engine.holds(loop, path, base, number):",
        "a loop",
        FOLD,
    ),
    Seen(
        "iterations count from zero",
        FOLDED,
        "at = join(path, iteration_name(number))",
        "at = join(path, iteration_name(number - 1))",
        "a loop",
        FOLD,
    ),
    Seen(
        "a loop has one iteration less",
        FOLDED,
        "range(1, loop.max_iterations + 1)",
        "range(1, loop.max_iterations)",
        "a loop that is spent",
        FOLD,
    ),
    Seen(
        "a loop merges each iteration",
        FOLDED,
        "made = await _fold(loop.body, at, base + made, onto=made, engine=engine)",
        "made = merge(State(), loop.merge, await _fold("
        "loop.body, at, base + made, onto=made, engine=engine))",
        "a squashed loop",
        FOLD,
    ),
    Seen(
        "a spent loop is kept",
        FOLDED,
        'if loop.on_exhausted == "raise":',
        "if None:",
        "a loop that never holds",
        FOLD,
    ),
    Seen(
        "until at a node does not see the iteration",
        EXITS,
        "context_of(path, view_in(input), facts, None)",
        'context_of(path, view_in({**input, "work": [], "captures": {}}), facts, None)',
        "a loop",
        GRAPH,
    ),
    Seen(
        "iterations at a node count from zero",
        "mergepoint.engine.graph_nodes",
        'state.get("round") or 1]',
        '(state.get("round") or 1) - 1]',
        "a loop",
        GRAPH,
    ),
    Seen(
        "a loop at a node has one iteration more",
        EXITS,
        "if number < self._loop.max_iterations:",
        "if number <= self._loop.max_iterations:",
        "a loop that is spent",
        GRAPH,
    ),
    Seen(
        "a loop at a node merges each iteration",
        "mergepoint.engine.compiler",
        "body = loop.body\n",
        "body = Block(loop.nodes, merge=loop.merge)\n",
        "a squashed loop",
        GRAPH,
    ),
    Seen(
        "a reject keeps captures",
        DECISION,
        "            return State()\n",
        "            return State((), self.kept.outputs)\n",
        "a gate that says no",
        ALL,
    ),
    Seen(
        "an edit leaves the capture as it was",
        DECISION,
        "outputs[self.capture_key] = value",
        "pass",
        "an edited answer",
        ALL,
    ),
    Seen(
        "an edited structure is captured as text",
        DECISION,
        "if captured and self.structured:",
        "if None:",
        "an edited structure",
        ALL,
    ),
    Seen(
        "who decides is given what is held back itself",
        "mergepoint.engine.gates",
        "copies = [copied_message(message) for message in kept.messages]",
        "copies = list(kept.messages)",
        "who decides spoils",
        ALL,
    ),
    Seen(
        "a refused gate asks for a response",
        FOLDED,
        "if isinstance(node, Gate) and not made.messages:",
        "if None:",
        "a gate that says no",
        ALL,
    ),
    Seen(
        "a gate drops what it decided",
        FOLDED,
        "return made + State.of((), {gate.capture_key: said})",
        "return made",
        "a gate that says no",
        ALL,
    ),
    Seen(
        "a call's result is merged twice",
        "mergepoint.journal.call_records",
        "call_messages(self.key, self.messages), captured",
        "call_messages(self.key, (*self.messages, *self.messages)), captured",
        "a call that speaks",
        ALL,
    ),
    Seen(
        "a call's result is not captured",
        "mergepoint.journal.call_records",
        "captured = {} if capture_key is None else {capture_key: self.value}",
        "captured = {}",
        "a call that speaks",
        ALL,
    ),
    Seen(
        "a silent call has to say something",
        "mergepoint.engine.function_call",
        "if not speaks:",
        "if None:",
        "a silent call",
        ALL,
    ),
    Seen(
        "the conversation comes back from a runnable",
        "mergepoint.engine.function_call",
        "new = messages[len(base) :] if copied else messages",
        "new = messages",
        "a runnable",
        ALL,
    ),
    Seen(
        "an argument becomes text",
        "mergepoint.engine.function_call",
        "value.render(read) if value.whole is None else read(value.whole)",
        "value.render(read)",
        "arguments",
        ALL,
    ),
    Seen(
        "a function is given the arguments on record",
        "mergepoint.engine.function_call",
        "return target(**_copied(asked.args), **extra)",
        "return target(**asked.args, **extra)",
        "spoiled arguments",
        ALL,
    ),
    Seen(
        "a structured capture is text",
        FOLDED,
        "value = json.loads(text) if isinstance(node, Step) and node.schema is not None else text",
        "value = text",
        "a structure",
        ALL,
    ),
    Seen(
        "a structured answer is as it was said",
        "mergepoint.models.responses",
        "sort_keys=True, ensure_ascii=False",
        "sort_keys=False, ensure_ascii=False",
        "a structure",
        ALL,
    ),
    Seen(
        "the model is not shown what tools gave",
        TOOLS,
        "seen = [*request.messages, *made[1:]]",
        "seen = [*request.messages]",
        "tools",
        ALL,
    ),
    Seen(
        "a step with tools has a round less",
        TOOLS,
        "if number == self._step.max_tool_rounds:",
        "if number + 1 == self._step.max_tool_rounds:",
        "tools",
        ALL,
    ),
    Seen(
        "tools are executed once more in each round",
        TOOLS,
        "for call in calls]",
        "for call in (*calls, *calls[:1])]",
        "tools",
        ALL,
    ),
    Seen(
        "an error of a tool is told without its type",
        TOOLS,
        'return {"content": f"{type(error).__name__}: {error}", "status": "error"}',
        'return {"content": str(error), "status": "error"}',
        "tools",
        ALL,
    ),
)


def disagreeing(case: Case, expected: Observed) -> frozenset[str]:
    """Return the forms that disagree with what the reference says, sync or async."""
    with asyncio.Runner() as loop:
        observed = observe(case, loop)
    errors = {found.error.kind for found in observed.values() if found.error is not None}
    assert not errors & BROKEN, f"the mutant does not run: {errors}"
    return frozenset(
        name.partition(",")[0] for name, found in observed.items() if found.claimed() != expected
    )


@pytest.mark.parametrize("name", killers())
def test_cases_agree_without_a_mutant(name: str) -> None:
    """The library as it is agrees with the reference on every case that kills mutants."""
    case = killers()[name]
    assert disagreeing(case, referred(case)) == frozenset()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_detected(mutant: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault shows in exactly the engines that run the changed code."""
    case = killers()[mutant.case]
    expected = referred(case)
    apply(mutant, monkeypatch)
    assert disagreeing(case, expected) == mutant.seen_in
