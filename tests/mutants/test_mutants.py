"""Faults put into the library on purpose are detected by small trees and the reference."""

from __future__ import annotations

import asyncio

import pytest
from tests.equivalence.engines import Observed, observe, referred
from tests.mutants.killers import killers
from tests.mutants.mutate import Mutant, apply

from mergepoint.testing.case import Case

GRAPH = frozenset({"subgraphs"})
FOLD = frozenset({"interpreter", "fused"})
ALL = GRAPH | FOLD

MERGE = "mergepoint.core.merge"
FOLDED = "mergepoint.tree.fold"
CALL = "mergepoint.run.call"
INTERPRET = "mergepoint.run.interpret"
CHANNELS = "mergepoint.run.channels"
EXITS = "mergepoint.run.exits"

MUTANTS = (
    Mutant(
        "none keeps messages",
        MERGE,
        "return State((), made.outputs)",
        "return made",
        "modes",
        ALL,
    ),
    Mutant(
        "none drops captures",
        MERGE,
        "return State((), made.outputs)",
        "return State()",
        "captures",
        ALL,
    ),
    Mutant(
        "last_response drops captures",
        MERGE,
        "return State((response,), made.outputs)",
        "return State((response,))",
        "a squashed block",
        ALL,
    ),
    Mutant(
        "last_response keeps the prompt",
        MERGE,
        "return State((response,), made.outputs)",
        "return State(made.messages[-2:], made.outputs)",
        "modes",
        ALL,
    ),
    Mutant(
        "the first response is the last",
        MERGE,
        "in reversed(messages):",
        "in messages:",
        "a squashed block",
        ALL,
    ),
    Mutant(
        "a merge goes before its parent",
        MERGE,
        "return parent + keep(mode, made)",
        "return keep(mode, made) + parent",
        "a row",
        FOLD,
    ),
    Mutant(
        "earlier captures are lost",
        "mergepoint.core.state",
        "MappingProxyType({**self.outputs, **made.outputs})",
        "made.outputs",
        "captures",
        FOLD,
    ),
    Mutant(
        "positions count from zero",
        "mergepoint.core.path",
        "{position:02d}",
        "{position - 1:02d}",
        "a row",
        ALL,
    ),
    Mutant(
        "the outermost path wins",
        "mergepoint.core.errors",
        'if getattr(error, "pipeline_path", None) and not innermost:',
        "if False:",
        "a failure inside",
        ALL,
    ),
    Mutant(
        "later children see the base",
        FOLDED,
        "fold(child, at, base + made, onto=made, engine=engine)",
        "fold(child, at, base, onto=made, engine=engine)",
        "a row",
        FOLD,
    ),
    Mutant(
        "a capture is lost",
        FOLDED,
        "return merge(onto, mode_of(node, made), captured(node, made))",
        "return merge(onto, mode_of(node, made), made)",
        "captures",
        FOLD,
    ),
    Mutant(
        "a capture is taken from the base",
        FOLDED,
        "return merge(onto, mode_of(node, made), captured(node, made))",
        "return merge(onto, mode_of(node, made), made + State((), captured(node, base).outputs))",
        "captures",
        FOLD,
    ),
    Mutant(
        "siblings fold in alphabetical order",
        FOLDED,
        "own = children(node, path)",
        "own = sorted(children(node, path), key=lambda pair: pair[0])",
        "side by side",
        FOLD,
    ),
    Mutant(
        "siblings see each other",
        FOLDED,
        "if node.parallel:",
        "if None:",
        "side by side",
        FOLD,
    ),
    Mutant(
        "siblings see nothing",
        FOLDED,
        "return await fold(child, at, base, onto=State(), engine=engine)",
        "return await fold(child, at, State(), onto=State(), engine=engine)",
        "side by side",
        FOLD,
    ),
    Mutant(
        "an optional read has no default",
        "mergepoint.tree.context",
        "optional = key in self.reads.defaults",
        "optional = False",
        "optional reads",
        ALL,
    ),
    Mutant(
        "a blank value is read",
        "mergepoint.tree.context",
        'raise MissingKey(key, f"{key!r} is there but blank")',
        "return value",
        "a blank input",
        ALL,
    ),
    Mutant(
        "random numbers forget the path",
        "mergepoint.tree.context",
        'f"{self.seed}/{self.path}"',
        'f"{self.seed}"',
        "draws",
        ALL,
    ),
    Mutant(
        "prompts are given the state itself",
        "mergepoint.tree.context",
        "return self._messages[index].model_copy(deep=True)",
        "return self._messages[index]",
        "spoilers",
        ALL,
    ),
    Mutant(
        "prompts are given the inputs themselves",
        "mergepoint.tree.context",
        "copy.deepcopy(value)",
        "value",
        "spoilers",
        ALL,
    ),
    Mutant(
        "the seed is not handed down",
        "mergepoint.run.facts",
        "seed=facts.seed",
        "seed=0",
        "draws",
        ALL,
    ),
    Mutant(
        "a value is no JSON",
        "mergepoint.tree.template",
        "json.dumps(value, ensure_ascii=False)",
        "str(value)",
        "inputs",
        ALL,
    ),
    Mutant(
        "the parent's path is recorded",
        CALL,
        "key = CallKey(facts.run, facts.host, path)",
        'key = CallKey(facts.run, facts.host, path.rpartition("/")[0])',
        "a row",
        ALL,
    ),
    Mutant(
        "the system message enters the state",
        CALL,
        "State((request.prompt, ",
        "State((*request.lead, request.prompt, ",
        "inputs",
        ALL,
    ),
    Mutant(
        "the prompt goes before the base",
        CALL,
        "[*self.lead, *self.base.messages, self.prompt]",
        "[*self.lead, self.prompt, *self.base.messages]",
        "a row",
        ALL,
    ),
    Mutant(
        "literal text is filled",
        CALL,
        "if isinstance(text, str):\n        return text",
        "if isinstance(text, str):\n        text = Template(text)",
        "a literal text",
        ALL,
    ),
    Mutant(
        "a blank answer is an answer", CALL, "if text.strip():", "if True:", "a blank answer", ALL
    ),
    Mutant(
        "an answer is stripped",
        CALL,
        "        return text\n    if",
        "        return text.strip()\n    if",
        "many forms",
        ALL,
    ),
    Mutant(
        "a default input is not filled in",
        "mergepoint.run.facts",
        "return {**defaults, **given}",
        "return given",
        "inputs",
        ALL,
    ),
    Mutant(
        "none starts after a failure, without a limit",
        INTERPRET,
        "limited=self._limit is not None",
        "limited=True",
        "a prompt fails side by side",
        FOLD,
    ),
    Mutant(
        "other failures are not noted",
        "mergepoint.run.siblings",
        "first, *others = failures",
        "first, others = failures[0], failures[1:1]",
        "two fail side by side",
        ALL,
    ),
    Mutant(
        "a sibling's failure is swallowed",
        INTERPRET,
        "if siblings.failures:",
        "if None:",
        "two fail side by side",
        FOLD,
    ),
    Mutant(
        "the last failure is raised",
        INTERPRET,
        "for i in sorted(siblings.failures)]",
        "for i in sorted(siblings.failures, reverse=True)]",
        "two fail side by side",
        FOLD,
    ),
    Mutant(
        "the last failure is raised at the exit",
        EXITS,
        "for number in sorted(failures)]",
        "for number in sorted(failures, reverse=True)]",
        "two fail side by side",
        GRAPH,
    ),
    Mutant(
        "an exit folds in alphabetical order",
        EXITS,
        "for number in range(len(self._own)):",
        "for number in sorted(range(len(self._own)), key=self._own.__getitem__):",
        "side by side",
        GRAPH,
    ),
    Mutant(
        "an exit captures nothing",
        EXITS,
        "merge(State(), mode_of(self._block, made), captured(self._block, made))",
        "merge(State(), mode_of(self._block, made), made)",
        "a squashed block",
        GRAPH,
    ),
    Mutant(
        "an exit leaves the work beside what it keeps",
        EXITS,
        "Overwrite(list(kept.messages))",
        "list(kept.messages)",
        "a squashed block",
        GRAPH,
    ),
    Mutant(
        "an exit keeps everything",
        EXITS,
        "merge(State(), mode_of(self._block, made), captured(self._block, made))",
        'merge(State(), "all_messages", captured(self._block, made))',
        "a squashed block",
        GRAPH,
    ),
    Mutant(
        "a block inside does not see the work",
        CHANNELS,
        "[*messages, *work] if work else messages,",
        "messages,",
        "a block inside",
        GRAPH,
    ),
    Mutant(
        "a block inside does not see captures",
        CHANNELS,
        "{**outputs, **captures} if captures else outputs,",
        "outputs,",
        "a block inside",
        GRAPH,
    ),
    Mutant(
        "a node sees the work before the base",
        CHANNELS,
        "[*messages, *work]",
        "[*work, *messages]",
        "a row",
        GRAPH,
    ),
    Mutant(
        "a node's captures are not written",
        CHANNELS,
        "if kept.outputs:",
        "if None:",
        "captures",
        GRAPH,
    ),
    Mutant(
        "siblings' captures are not folded",
        CHANNELS,
        'return State.of(written.get("work") or (), written.get("captures") or {})',
        'return State.of(written.get("work") or ())',
        "side by side",
        GRAPH,
    ),
)

# What a mutant that cannot even run would raise: that would prove nothing.
_BROKEN = {"NameError", "TypeError", "AttributeError", "UnboundLocalError", "ImportError"}


def disagreeing(case: Case, expected: Observed) -> frozenset[str]:
    """Give the forms that disagree with what the reference says, sync or async."""
    with asyncio.Runner() as loop:
        observed = observe(case, loop)
    errors = {found.error.kind for found in observed.values() if found.error is not None}
    assert not errors & _BROKEN, f"the mutant does not run: {errors}"
    return frozenset(
        name.partition(",")[0] for name, found in observed.items() if found.claimed() != expected
    )


@pytest.mark.parametrize("name", killers())
def test_cases_agree_without_a_mutant(name: str) -> None:
    """The library as it is agrees with the reference on every case that kills mutants."""
    case = killers()[name]
    assert disagreeing(case, referred(case)) == frozenset()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_detected(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault shows in exactly the engines that run the changed code."""
    case = killers()[mutant.case]
    expected = referred(case)
    apply(mutant, monkeypatch)
    assert disagreeing(case, expected) == mutant.seen_in
