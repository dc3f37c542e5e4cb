"""Talking: how a stage runs a tree: in the interpreter, by the stage's own door."""

from __future__ import annotations

from collections.abc import Callable

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

from mergepoint.core.errors import BudgetExceeded, RailError, StepError
from mergepoint.core.merge import last_response
from mergepoint.core.path import SEPARATOR, join
from mergepoint.core.state import State
from mergepoint.models.inner_purse import InnerPurse
from mergepoint.models.purse import Purse
from mergepoint.run.calls import Calls
from mergepoint.run.facts import Facts, given_inputs
from mergepoint.run.interpret import Live
from mergepoint.run.recorder import Event, Recorder, with_recorder, without_recorders
from mergepoint.run.spending import Spending
from mergepoint.streams.ask import Unfitting
from mergepoint.streams.door import Passing, path_of
from mergepoint.streams.talk import Talk, Talked, Talker
from mergepoint.tree.check import inputs_of
from mergepoint.tree.fold import Messages, fold
from mergepoint.tree.node import Node, root_path, walk
from mergepoint.tree.overrides import with_overrides
from mergepoint.tree.policy import Policy
from mergepoint.tree.step import Step


def talker_of(
    model: BaseChatModel | None, passing: Passing, *, seed: int = 0, policy: Policy | None = None
) -> Talker:
    """Give what runs trees for a stage; `model` and `policy` are for steps that have none.

    The path of a step is `essay/stage_1/pipeline/0/run_01/<path in the tree>`. Its calls are
    granted by the budgets of the tree's nodes and by the run's purse.
    """

    async def talked(talk: Talk, /) -> Talked:
        tree = talk.tree if policy is None else _with_policy(talk.tree, policy)
        place = f"{path_of(talk.stage_id)}/{talk.thing_id}/run_{talk.number + 1:02}"
        at = passing.key(join(place, root_path(tree))).path
        calls = Calls(model, view=None, spending=Spending(None, passing.prices))
        calls.made_for(tree, at)
        heard = _Heard()
        inputs = given_inputs(inputs_of(tree), talk.inputs, path=at)
        facts = Facts(passing.run_id, passing.host, seed, inputs)
        live = Live(calls, facts, _config(passing, calls, at, heard), sync=False)
        given = () if talk.message is None else (HumanMessage(content=talk.message),)
        base: Messages = State(given)
        try:
            end = await fold(tree, at, base, onto=base, engine=live)
        except BudgetExceeded as error:
            if f"{error.path}/".startswith(f"{at}/"):
                raise Unfitting(str(error)) from error
            raise
        except (StepError, RailError) as error:
            raise Unfitting(str(error)) from error
        response = last_response(end.messages[len(given) :])
        return Talked(
            text="" if response is None else str(response.text),
            outputs=dict(end.outputs),
            calls=tuple(heard.calls),
            models=tuple(heard.models),
        )

    return talked


def _with_policy(tree: Node, policy: Policy) -> Node:
    """Give a tree whose steps without a policy have this one."""
    if policy == Policy():
        return tree
    bare = [
        path
        for path, node in walk(tree, root_path(tree))
        if isinstance(node, Step) and node.policy == Policy()
    ]
    return with_overrides(tree, {path: {"policy": policy} for path in bare})


class _Heard:
    """The calls of one tree, in the order in which they ended."""

    def __init__(self) -> None:
        self.calls: dict[str, None] = {}
        self.models: dict[str, None] = {}

    def then(self, recorder: Recorder) -> Callable[[Event], None]:
        """Give what listens for this, and for who listens to a recorder."""

        def hear(event: Event) -> None:
            if event.kind == "end" and event.of in ("step", "call"):
                self.calls[join(event.host, event.path)] = None
                if event.of == "step":
                    self.models[event.model] = None
            recorder.tell(event)

        return hear


def _config(passing: Passing, calls: Calls, at: str, heard: _Heard) -> RunnableConfig:
    """Give the config with recorders that tell of this tree's calls, and have its purse."""
    recorders = passing.recorders
    config = without_recorders(passing.config, recorders)
    purse: Purse | None = passing.purse
    if calls.spending.limited:
        below = f"{at}{SEPARATOR}"
        known = recorders[0].journal.records
        own = calls.spending.ledger(
            one
            for one in known
            if one.key.run == passing.run_id and f"{one.path}/".startswith(below)
        )
        purse = own if purse is None else InnerPurse(own, purse)
    for one in recorders:
        inside = Recorder(one.journal, on_event=heard.then(one), answers=one.answers, purse=purse)
        inside.digests = one.digests
        config = with_recorder(config, inside)
    return config
