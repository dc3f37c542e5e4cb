"""Explain: what every step of a tree will see, and what the run will cost, before it is paid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mergepoint.core.errors import StepError, TreeError
from mergepoint.core.paths import nearest, of_first_iterations, select
from mergepoint.journal.stores import Store
from mergepoint.journal.transcript import Transcript
from mergepoint.models.identity import ChatModel, identity
from mergepoint.models.pricing import OFFLINE, Price, Prices
from mergepoint.models.requests import sendable_messages
from mergepoint.report.answer_lengths import AnswerLengths, EarlierRun, placeholder
from mergepoint.report.dry_run import Given
from mergepoint.report.explanation import Explained, Explanation
from mergepoint.report.prediction import Prediction
from mergepoint.report.run_lookup import named_run
from mergepoint.tree.decision import Decision
from mergepoint.tree.leaves import Step, is_node
from mergepoint.tree.nodes import REQUIRED, Gate, Input, Loop, Node, root_path, walk
from mergepoint.tree.validate import as_tree, checked, given_inputs, inputs_of

_INPUT_TOKENS: Final = 100


def explain(
    workflow: Node | Explained,
    *,
    inputs: Mapping[str, Any] | None = None,
    messages: Sequence[Any] = (),
    model: str | ChatModel | None = None,
    answer_tokens: int | Mapping[str, int] | None = None,
    like: Transcript | Path | str | None = None,
    runs: Path | str | Store = "runs",
    iterations: Mapping[str, int] | None = None,
    decisions: Mapping[str, Any] | None = None,
    max_tokens: int | None = None,
    prices: Mapping[str, Price] | None = None,
    seed: int = 0,
    **options: Any,
) -> Explanation:
    """Predict a run without calling a model: what each step sees, and the calls, tokens and cost.

    The tree is evaluated with placeholders for answers. Prompt functions are called with them;
    Calls, tools, gates' functions and loops' conditions aren't. Tokens are estimates.

    Args:
        workflow: A tree or a recipe.
        inputs: The inputs of the run. One that is missing is replaced by a placeholder, and named
            in the warnings.
        messages: The messages that open the conversation.
        model: The model of steps that name none: "provider:name", "offline", or a chat model. No
            model is created or called.
        answer_tokens: Length of each answer in tokens, or lengths by path or glob. Default: those
            of `like`, or an estimate of 250 tokens.
        like: An earlier run of the tree: its transcript, its id in `runs`, or its folder. Its
            answers, iterations and decisions are expected again, and its token counts correct the
            estimate.
        runs: Where `like` is looked up: a folder, a database URL, or a store.
        iterations: How many iterations loops make, by path. Default: those of `like`, or one.
        decisions: The decisions at gates, by path. Default: those of `like`, or approval.
        max_tokens: Most tokens of an answer, for steps that set no limit.
        prices: Prices by model, in addition to the built-in ones.
        seed: Seed of random numbers in prompt functions.
        options: For a recipe: `items` (their number, default 1), `knobs`, and `library`.

    Returns:
        The prediction. Ranges cover all iterations and decisions that aren't set.

    Raises:
        TreeError: The tree or an input is invalid; all problems are named.
        StepError: An option is invalid.
        MergepointError: The earlier run can't be read.
    """
    if not is_node(workflow) and isinstance(workflow, Explained):
        known = {"model": model, "answer_tokens": answer_tokens, "max_tokens": max_tokens}
        return workflow.explained(**known, prices=prices, **options)
    if isinstance(workflow, str | Path):
        raise TreeError.of(
            f"explain takes a tree or a recipe, not the name {str(workflow)!r}: load it with "
            "mergepoint.load_yaml(path) or mergepoint.targets.find_target(name).tree"
        )
    if options:
        raise TypeError(f"explain of a tree has no option {', '.join(map(repr, options))}")
    tree = checked(as_tree(workflow))
    earlier = None if like is None else EarlierRun.of(_transcript(like, runs))
    values, missing = _inputs(tree, inputs)
    given = Given(
        tree=tree,
        messages=tuple(sendable_messages(messages)),
        inputs=values,
        seed=seed,
        lengths=_lengths(tree, answer_tokens, earlier, max_tokens),
        models=_models(tree, model),
        iterations=_iterations(tree, iterations or {}),
        decisions=_decisions(tree, decisions or {}),
    )
    return Prediction.of(given, Prices(prices), missing).explanation()


def _transcript(like: Transcript | Path | str, runs: Path | str | Store) -> Transcript:
    if isinstance(like, Transcript):
        return like
    found = named_run(like, runs)
    return found if isinstance(found, Transcript) else found.transcript


def _inputs(tree: Node, inputs: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[Input]]:
    """Return the values of all inputs, with placeholders for missing ones, and these."""
    declared = inputs_of(tree)
    given = dict(inputs) if isinstance(inputs, Mapping) else {}
    missing = [one for one in declared if one.default is REQUIRED and one.name not in given]
    stands = {one.name: _placeholder_input(one) for one in missing}
    whole = {**given, **stands} if inputs is None or isinstance(inputs, Mapping) else inputs
    return given_inputs(declared, whole, path=root_path(tree)), missing


def _placeholder_input(declared: Input) -> Any:
    if declared.json_type in ("", None, "string"):
        return placeholder(declared.name, _INPUT_TOKENS, what="input")
    return declared.example


def _lengths(
    tree: Node, tokens: Any, earlier: EarlierRun | None, most: int | None
) -> AnswerLengths:
    steps = [path for path, node in walk(tree) if isinstance(node, Step)]
    given = {"": tokens} if isinstance(tokens, int) else dict(tokens or {})
    by_path: dict[str, int] = {}
    for selector, length in given.items():
        if type(length) is not int or length < 1:
            raise StepError(f"answer_tokens is a number of tokens of at least 1, not {length!r}")
        for path in [""] if not selector else _selected(selector, steps, "answer_tokens"):
            by_path[path] = length
    return AnswerLengths(given=by_path, most=most, like=earlier)


def _selected(selector: str, paths: Sequence[str], option: str) -> list[str]:
    try:
        return select(selector, paths)
    except LookupError as error:
        raise StepError(f"{option}: {error.args[0]}") from None


def _models(tree: Node, model: str | ChatModel | None) -> dict[str, str]:
    """Return the name of each step's model, "" without one; no model is created."""
    names: dict[str, str] = {}
    for path, node in walk(tree):
        if isinstance(node, Step):
            wanted: Any = model if node.model is None else node.model
            name = wanted if isinstance(wanted, str) else ""
            if wanted is not None and not isinstance(wanted, str):
                name = identity(wanted, node.params)
            names[path] = OFFLINE if name == "offline" else name
    return names


def _iterations(tree: Node, given: Mapping[str, int]) -> dict[str, int]:
    loops = {path: node for path, node in walk(tree) if isinstance(node, Loop)}
    for path, number in given.items():
        loop = loops.get(of_first_iterations(path))
        if loop is None:
            known = ", ".join(loops) or "none"
            raise StepError(f"no loop at {path!r}{nearest(path, loops)}; the loops are: {known}")
        least = 0 if loop.may_skip else 1
        if type(number) is not int or not least <= number <= loop.max_iterations:
            raise StepError(
                f"{path}: this loop makes {least} to {loop.max_iterations} iterations, not "
                f"{number!r}"
            )
    return dict(given)


def _decisions(tree: Node, given: Mapping[str, Any]) -> dict[str, Decision]:
    gates = [path for path, node in walk(tree) if isinstance(node, Gate)]
    for path in given:
        if of_first_iterations(path) not in gates:
            known = ", ".join(gates) or "none"
            raise StepError(f"no gate at {path!r}{nearest(path, gates)}; the gates are: {known}")
    return {path: Decision.of(decision) for path, decision in given.items()}
