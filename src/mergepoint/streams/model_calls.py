"""Model calls and tree runs on behalf of blocks: their requests, and how they are answered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import BaseModel

from mergepoint.core.errors import (
    AnswerError,
    BudgetExceeded,
    MergepointError,
    RailError,
    StepError,
    TreeError,
)
from mergepoint.core.merge import State, last_response
from mergepoint.core.paths import SEPARATOR, join, nearest
from mergepoint.core.strict_yaml import dump
from mergepoint.engine.budgets import Spending
from mergepoint.engine.callbacks import (
    METADATA,
    Event,
    Recorder,
    recorders_of,
    traced,
    with_recorder,
    without_recorders,
)
from mergepoint.engine.run_constants import Facts
from mergepoint.journal.call_records import CallKey, is_refusal, sound_usage
from mergepoint.models.budget import BudgetSource, NestedBudget
from mergepoint.models.identity import ChatModel, composed, identity
from mergepoint.models.instrument import instrument_in_scope
from mergepoint.models.pricing import PICO, Price, Prices
from mergepoint.models.providers import NO_SETTINGS, ModelSettings
from mergepoint.models.responses import instruction_for, json_of, structured, value_of
from mergepoint.models.scope import Scope
from mergepoint.streams.conditions import canonical
from mergepoint.tree.leaves import Content, Method, Step, is_node
from mergepoint.tree.load import graph_file, graph_names, load_object
from mergepoint.tree.nodes import Gate, Node, root_path, walk
from mergepoint.tree.policy import Policy
from mergepoint.tree.semantics import Messages, evaluate
from mergepoint.tree.transform import outline, with_overrides
from mergepoint.tree.tree_yaml import from_yaml, load_yaml, to_yaml
from mergepoint.tree.validate import check, given_inputs, inputs_of

Check = Callable[[str, Any], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A model call and the Thing that it is for.

    `thing_id`, `stage_id`, `number` (from 0, of the calls for this Thing and sample at this stage),
    and `sample` identify the call: they are the same in every run, in whatever order calls are
    made. With `schema`, the model returns structured output. `check` returns the problem of a text
    and its JSON value, or None. `attempts` counts earlier attempts of this
    call.
    """

    thing_id: str
    stage_id: str
    number: int
    sample: int
    prompt: Content
    system: str | None = None
    schema: type[BaseModel] | Mapping[str, Any] | None = None
    check: Check | None = None
    attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """A model's answer: its text, JSON value with a schema, call id, and model.

    `cost` is in USD, or None if unknown.
    """

    text: str
    value: Any = None
    call: str = ""
    model: str = ""
    cost: float | None = None


class InvalidAnswer(StepError):
    """An invalid answer; a block may call the model again.

    `attempts` counts the attempts of the call so far, or is None if the model client doesn't report
    it.
    """

    def __init__(self, problem: str, *, attempts: int | None = None) -> None:
        super().__init__(problem)
        self.attempts = attempts


class ModelClient(Protocol):
    """Model client of a stage: the executor's instrumented model, or a test double."""

    async def __call__(self, ask: ModelRequest, /) -> ModelAnswer:
        """Return the answer, from the journal if the call is recorded.

        Raise InvalidAnswer if the answer is invalid, including if the check refuses it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRequest:
    """A conversation tree to run and the Thing that it is for.

    `thing_id`, `stage_id`, and `number` identify the conversation as they identify a call. It
    starts with `message`, or with no message if None. `inputs` are those that the tree declares.
    """

    thing_id: str
    stage_id: str
    number: int
    tree: Node
    message: str | None
    inputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeResult:
    """Result of a tree: its last response ("" if none), outputs, call ids, and models."""

    text: str
    outputs: Mapping[str, Any]
    calls: tuple[str, ...]
    models: tuple[str, ...]


class TreeRunner(Protocol):
    """Tree runner of a stage: the executor's, or a test double."""

    async def __call__(self, talk: TreeRequest, /) -> TreeResult:
        """Return the result of the tree.

        Raise InvalidAnswer if a step's answer, or a limit of the tree's own, ended it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnvironment:
    """Data that the calls of one run share: run id, recorders, budget, and prices.

    `config` has the recorders among its callbacks. `host` is the path prefix of an enclosing graph.
    `at` is the path of the enclosing Call, with which all paths of the run begin.
    """

    run_id: str
    config: RunnableConfig
    budget: BudgetSource | None = None
    prices: Mapping[str, Price] | None = None
    host: str = ""
    at: str = ""

    @property
    def recorders(self) -> list[Recorder]:
        """Return the run's recorders."""
        return recorders_of(self.config)

    def key(self, path: str) -> CallKey:
        """Return the key of a path within the run."""
        return CallKey(self.run_id, self.host, join(self.at, path))


def place_of(ask: ModelRequest) -> str:
    """Return the path of a call: stage, Thing, and number of the call.

    `best/stage_2/verify/0.3/call_01` is the first call for the Thing `0.3`. Samples after the first
    have a suffix: `call_01.sample_02`.
    """
    call = f"call_{ask.number + 1:02}"
    if ask.sample:
        call += f".sample_{ask.sample + 1:02}"
    return f"{ask.stage_id.replace('.', '/')}/{ask.thing_id}/{call}"


def path_of(stage_id: str) -> str:
    """Return a stage's id as a path, the form that journal records use."""
    return stage_id.replace(".", "/")


class StageModel:
    """Model client of a stage of a run.

    Each call is one record at its own path. The run's budget must allow it, the policy decides
    about retries, and a recorded answer replaces it.
    """

    def __init__(
        self,
        model: ChatModel,
        environment: CallEnvironment,
        policy: Policy,
        method: Method | None = None,
    ) -> None:
        self._model, self._method = model, method
        self._environment = environment
        self._name = identity(model, {})
        self._prices = Prices(environment.prices)
        common: dict[str, Any] = {"budget": environment.budget, "policy": policy, "kind": "step"}
        self._common = {**common, "keepers": environment.recorders}
        self._metadata = environment.config.get("metadata", {})
        self._outer = Scope(environment.key(""))
        self._plain = _Shape(instrument_in_scope(self._outer, model))
        # Models with structured output, by schema: each is wrapped once, not per call.
        self._shapes: dict[Any, _Shape] = {}

    async def __call__(self, ask: ModelRequest, /) -> ModelAnswer:
        """Return the answer. Raise InvalidAnswer if it is invalid, or the check refuses it."""
        environment = self._environment
        key = environment.key(place_of(ask))
        shape = self._plain if ask.schema is None else self._shape_of(ask.schema)
        value: Any = None

        def accept(message: AIMessage) -> str:
            # Every answer comes here, recorded ones too, and the last one is the result.
            nonlocal value
            text = str(message.text)
            value = None if shape.value_in is None else shape.value_in(message)
            if shape.value_in is None and not text.strip():
                raise AnswerError("the model's answer is blank")
            if ask.check is not None and (problem := ask.check(text, value)) is not None:
                raise AnswerError(problem)
            return text

        scope = Scope(key, **self._common, accept=accept, attempts=ask.attempts)
        about = {"run": environment.run_id, "host": environment.host, "path": key.path}
        metadata = {**self._metadata, METADATA: about}
        config: RunnableConfig = {
            **traced(environment.config, key.full_path),
            "metadata": metadata,
        }
        try:
            async with scope:
                found = await shape.model.ainvoke(_messages(ask, shape.instruction), config)
        except AnswerError as error:
            # An invalid answer fails only its Thing. Truncated answers and other errors of the
            # call still end the run.
            if not is_refusal(error):
                raise
            raise InvalidAnswer(str(error), attempts=scope.attempts) from error
        raw = found if isinstance(found, AIMessage) else found["raw"]
        # With fallbacks, another model than the first one may have answered, at another price.
        by = scope.answered_by or self._name
        price, usage = self._prices.of(by), sound_usage(raw.usage_metadata)
        cost = None if price is None or usage is None else price.cost(usage) / PICO
        return ModelAnswer(text=str(raw.text), value=value, call=key.full_path, model=by, cost=cost)

    def _shape_of(self, schema: type[BaseModel] | Mapping[str, Any]) -> _Shape:
        key = schema if isinstance(schema, type) else canonical(schema)
        if key not in self._shapes:
            self._shapes[key] = _Shape(
                _structured(self._outer, self._model, schema, self._method),
                instruction_for(schema, self._method),
                _value_in(schema, self._method),
            )
        return self._shapes[key]


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a stage's model is asked for one form of answers, and how their values are read."""

    model: Runnable[Any, Any]
    instruction: str = ""
    value_in: Callable[[AIMessage], Any] | None = None


def _value_in(
    schema: type[BaseModel] | Mapping[str, Any], method: Method | None
) -> Callable[[AIMessage], Any]:
    """Return a function that returns an answer's JSON value, or raises AnswerError."""
    if not isinstance(schema, type):
        return lambda message: value_of(message, schema)
    read = json_of(schema, method)
    return lambda message: json.loads(read(message))


def _structured(
    scope: Scope, model: ChatModel, schema: Any, method: Method | None
) -> Runnable[Any, Any]:
    """Return a model with structured output; in a composed Runnable, every model has it."""

    def change(one: BaseChatModel) -> Runnable[Any, Any]:
        return structured(instrument_in_scope(scope, one), schema, method)

    return change(model) if isinstance(model, BaseChatModel) else composed(model, change)


def _messages(ask: ModelRequest, instruction: str) -> Sequence[BaseMessage]:
    prompt = HumanMessage(content=ask.prompt)
    if not (ask.system or instruction):
        return [prompt]
    system = "\n\n".join(filter(None, (ask.system, instruction)))
    return [SystemMessage(content=system), prompt]


def tree_runner_of(
    model: ChatModel | None,
    environment: CallEnvironment,
    *,
    seed: int = 0,
    policy: Policy | None = None,
    settings: ModelSettings = NO_SETTINGS,
) -> TreeRunner:
    """Return a tree runner for a stage; the arguments are defaults for steps without their own.

    The path of a step is `essay/stage_1/pipeline/0/run_01/<path in the tree>`. The budgets of the
    tree's nodes and the run's budget both apply to its calls.
    """

    async def talked(talk: TreeRequest, /) -> TreeResult:
        tree = talk.tree if policy is None else _with_policy(talk.tree, policy)
        place = f"{path_of(talk.stage_id)}/{talk.thing_id}/run_{talk.number + 1:02}"
        at = environment.key(join(place, root_path(tree))).path
        # Imported late: they load LangGraph, which checking a recipe does without.
        from mergepoint.engine.interpreter import Live
        from mergepoint.engine.leaf_calls import TreeCalls

        spending = Spending(None, environment.prices)
        calls = TreeCalls(model, view=None, spending=spending, settings=settings)
        calls.made_for(tree, at)
        heard = _Heard()
        inputs = given_inputs(inputs_of(tree), talk.inputs, path=at)
        facts = Facts(environment.run_id, environment.host, seed, inputs)
        live = Live(calls, facts, _config(environment, spending, at, heard), sync=False)
        given = () if talk.message is None else (HumanMessage(content=talk.message),)
        base: Messages = State(given)
        try:
            end = await evaluate(tree, at, base, onto=base, engine=live)
        except BudgetExceeded as error:
            # A budget of the tree itself fails only this Thing; the run's budget ends the stage.
            if f"{error.path}/".startswith(f"{at}/"):
                raise InvalidAnswer(str(error)) from error
            raise
        except (StepError, RailError) as error:
            raise InvalidAnswer(str(error)) from error
        return heard.talked(end, after=len(given))

    return talked


def _with_policy(tree: Node, policy: Policy) -> Node:
    """Return a tree in which a policy applies to the steps without one."""
    if policy == Policy():
        return tree
    bare = [
        path
        for path, node in walk(tree, root_path(tree))
        if isinstance(node, Step) and node.policy == Policy()
    ]
    return with_overrides(tree, {path: {"policy": policy} for path in bare})


class _Heard:
    """Recorder of one tree's calls, in the order in which they end."""

    def __init__(self) -> None:
        # Ordered sets: each of the recorders reports the same calls.
        self.calls: dict[str, None] = {}
        self.models: dict[str, None] = {}

    def talked(self, end: Messages, *, after: int) -> TreeResult:
        """Return the tree's result, without the messages that it received."""
        response = last_response(end.messages[after:])
        return TreeResult(
            text="" if response is None else str(response.text),
            outputs=dict(end.outputs),
            calls=tuple(self.calls),
            models=tuple(self.models),
        )

    def then(self, recorder: Recorder) -> Callable[[Event], None]:
        """Return an event listener that also passes each event on to a recorder."""

        def hear(event: Event) -> None:
            if event.kind == "end" and event.of in ("step", "call"):
                self.calls[join(event.host, event.path)] = None
                if event.of == "step":
                    self.models[event.model] = None
            recorder.tell(event)

        return hear


def _config(
    environment: CallEnvironment, spending: Spending, at: str, heard: _Heard
) -> RunnableConfig:
    """Return a config whose recorders also report this tree's calls and apply its budgets."""
    recorders = environment.recorders
    config = without_recorders(environment.config, recorders)
    source: BudgetSource | None = environment.budget
    if spending.limited:
        below = f"{at}{SEPARATOR}"
        # A resumed tree has spent money already: its ledger starts from the recorded calls.
        known = recorders[0].journal.records
        own = spending.ledger(
            one
            for one in known
            if one.key.run == environment.run_id and f"{one.path}/".startswith(below)
        )
        source = own if source is None else NestedBudget(own, source)
    for one in recorders:
        inside = Recorder(one.journal, on_event=heard.then(one), answers=one.answers, budget=source)
        inside.digests = one.digests
        config = with_recorder(config, inside)
    return config


_FILE = re.compile(r"[^\n]+\.ya?ml")
_CODE = re.compile(r"[^\n]+\.py(:\w*)?|[\w.]+:\w+")
_NAME = re.compile(r"[A-Za-z]\w*")
_FORMS = "the name of a bundled graph (mergepoint list), a .yaml file, or YAML as text or data"


def tree_of(given: Any) -> Node:
    """Return the tree for a param: a node, a bundled graph, a YAML file, or YAML as text or data.

    No Python code is imported, because a recipe may come from someone else. Raise ValueError that
    lists the tree's problems. Gates are problems: no one can answer them in a stream.
    """
    try:
        tree = _found(given)
    except MergepointError as error:
        raise ValueError(str(error)) from error
    except OSError as error:
        raise ValueError(f"the file {given!r} can't be read: {error}") from error
    if faults := [*map(str, check(tree)), *_gates(tree)]:
        raise ValueError("; ".join(faults))
    return tree


def tree_on_wire(tree: Node) -> Any:
    """Return a tree as YAML, or as its outline if it has no YAML form or imports tools."""
    if any(isinstance(node, Step) and node.tools for _, node in walk(tree, root_path(tree))):
        return outline(tree)
    try:
        return to_yaml(tree)
    except TreeError:
        return outline(tree)


def captures(tree: Node) -> list[str]:
    """Return the capture keys that a tree writes, in order."""
    found = (node.capture_key for _, node in walk(tree, root_path(tree)))
    return list(dict.fromkeys(key for key in found if key is not None))


def _found(given: Any) -> Node:
    if is_node(given):
        tree: Node = given
        return tree
    if isinstance(given, Mapping):
        return from_yaml(dump(dict(given)), imports=False)
    if not isinstance(given, str):
        raise ValueError(f"a tree is a node, or {_FORMS}")
    text = given.strip()
    if _FILE.fullmatch(text):
        return load_yaml(Path(text), imports=False)
    if _CODE.fullmatch(text):
        raise ValueError(f"{text!r}: a recipe can't load Python code; in YAML, a tree is {_FORMS}")
    return _graph(text) if _NAME.fullmatch(text) else from_yaml(given, imports=False)


def _graph(name: str) -> Node:
    known = graph_names()
    if name not in known:
        raise ValueError(f"no graph is named {name!r}{nearest(name, known)}; a tree is {_FORMS}")
    file = graph_file(name)
    # Python is allowed here: the file comes with the package, not with the recipe.
    return load_object(file) if file.suffix == ".py" else load_yaml(file)


def _gates(tree: Node) -> Iterator[str]:
    for path, node in walk(tree, root_path(tree)):
        if isinstance(node, Gate):
            yield f"{path}: a gate can't be answered in a stream; remove it"
