"""Recipes as Calls of a tree: one node, with a record, a budget and a resume like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from tests.engine.engines import ENGINES, Engine
from tests.engine.inner import Kept, listening, resumed

from mergepoint import (
    Block,
    BudgetExceeded,
    BudgetLedger,
    Call,
    Policy,
    Price,
    Step,
    StepError,
    Template,
    TreeError,
)
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import run_generation
from mergepoint.engine.runner import ChatRunner
from mergepoint.models.pricing import Prices
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_yaml import LIBRARY
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.testing.simulated_time import FakeClock

POLL = Recipe(
    "poll",
    (Stage("generate", params={"n": "{{ n }}", "prompt": "Vote: {{ content }}"}), Stage("vote")),
    knobs={"n": 3},
)


def tree(target: Any = POLL, **fields: Any) -> Block:
    """Return a Call between two steps; its result is captured and read."""
    call = Call(target, name="poll", capture_key="won", **fields)
    after = Step(Template("Use {{ won }}."), name="use")
    return Block([Step("Write.", name="write"), call, after], name="root")


class Says:
    """A model's answers: the prompt again, with an error for one of them."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        self.seen: list[str] = []

    def __call__(self, messages: tuple[BaseMessage, ...]) -> str | Exception:
        """Return the answer to a conversation."""
        self.seen.append(str(messages[-1].text))
        if self.broken and len(self.seen) == 3:
            return TimeoutError(self.broken)
        return f"<{messages[-1].text}>"


def model(says: Says | None = None) -> ScriptedModel:
    """Return a model of these answers."""
    return ScriptedModel(default=says or Says())


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_a_recipe_is_a_node_of_a_tree(engine: Engine) -> None:
    """It works on the last message; its calls are on record below its path, it is one itself."""
    recorder = listening()
    end = engine(tree(), model(), recorder=recorder)
    assert end.outputs == {"won": "<Vote: <Write.>>"}
    assert end.texts[-2:] == ["Use <Vote: <Write.>>.", "<Use <Vote: <Write.>>.>"]
    assert [(one.path, one.kind) for one in recorder.journal.records] == [
        ("root/write", "step"),
        ("root/poll/poll/stage_1/generate/0.0/call_01", "step"),
        ("root/poll/poll/stage_1/generate/0.1/call_01", "step"),
        ("root/poll/poll/stage_1/generate/0.2/call_01", "step"),
        ("root/poll", "call"),
        ("root/use", "step"),
    ]


@pytest.mark.parametrize("engine", ENGINES[:2], ids=str)
def test_arguments_are_items_and_knobs(engine: Engine) -> None:
    """A list gives a list, anything else one content; other names are knobs."""
    said = model()
    one = tree(args={"items": Template("{{ likes }}"), "n": 2})
    declared = Block(one.nodes, name="root", inputs=("likes",))
    assert engine(declared, said, inputs={"likes": ["a", "b"]}).outputs == {
        "won": ["<Vote: a>", "<Vote: b>"]
    }
    assert engine(declared, said, inputs={"likes": "a"}).outputs == {"won": "<Vote: a>"}
    assert len(said.calls) == 2 + 2 * 2 + 2 + 2


def test_what_is_wrong_with_a_call_of_a_recipe_is_told_when_it_is_made() -> None:
    """Unknown knobs, values that do not fit, no items, and faults of the recipe, all at once."""
    with pytest.raises(TreeError, match=r"args have no 'items'") as caught:
        Call(POLL, args={"m": 2})
    assert "m: no such knob" in str(caught.value)
    with pytest.raises(TreeError, match=r"args\['m'\] is no knob of 'poll'"):
        Call(POLL, args={"items": "a", "m": Template("{{ x }}")})
    with pytest.raises(TreeError, match="no block or recipe is named 'vot'"):
        Call(Recipe("poll", (Stage("vot"),)))
    with pytest.raises(TreeError, match="compiled graph or recipe, not 'poll'"):
        Call("poll")  # type: ignore[arg-type]


def test_its_calls_are_paid_by_the_run() -> None:
    """A budget around it ends the run by name; a rail of its own ends it alone."""
    with pytest.raises(BudgetExceeded, match="2 calls") as caught:
        run(tree(), budget={"calls": 2})
    assert caught.value.path == "root"
    railed = Recipe("poll", POLL.stages, knobs=POLL.knobs, rails={"calls": 2})
    ctx = run(tree(railed))
    assert ctx.outputs == {"won": "<Vote: <Write.>>"}
    assert ctx.usage.calls == 4


def run(node: Block, **options: Any) -> RunContext:
    """Run a tree in memory, and give its context."""
    ctx = RunContext(recorder=Recorder(Kept()))
    ChatRunner(model(), **options).run(ctx, node)
    return ctx


def test_a_budget_that_is_kept_leaves_the_recipe_out(tmp_path: Path) -> None:
    """A block that goes on without what its budget does not suffice for goes on without it."""
    around = Block(
        [Block([Call(POLL, name="poll")], name="in", budget={"calls": 2, "on_exhausted": "keep"})],
        name="root",
    )
    first = Block([Step("Write.", name="write"), around, Step("End.", name="end")], name="top")
    done = run_generation(first, model=model(), runs=tmp_path)
    assert done.text == "<End.>"


@pytest.mark.parametrize("form", ["subgraphs", "fused"])
def test_a_run_goes_on_inside_of_a_recipe(form: Any, tmp_path: Path) -> None:
    """Calls that were answered before a failure are not made again; a replay makes none."""
    broken = Says("slow")
    ctx = RunContext(run_id="r1")
    with pytest.raises(TimeoutError):
        run_generation(tree(), model=model(broken), ctx=ctx, runs=tmp_path, form=form)
    rest = Says()
    done = run_generation(tree(), model=model(rest), runs=tmp_path, resume="r1", form=form)
    assert done.text == "<Use <Vote: <Write.>>.>"
    assert len(rest.seen) == 3
    silent = ScriptedModel([])
    again = run_generation(tree(), model=silent, runs=tmp_path, replay="r1", form=form)
    assert again.text == done.text
    assert all(one.source == "replayed" for one in again.steps)


def test_a_call_that_is_tried_again_pays_only_what_failed() -> None:
    """Its policy begins the recipe again, with what was answered at hand."""
    says = Says("slow")
    recorder = listening()
    node = tree(policy=Policy(retry=2))
    engine = ENGINES[0]
    with FakeClock():
        end = engine(node, model(says), recorder=recorder)
    assert end.outputs == {"won": "<Vote: <Write.>>"}
    assert len(says.seen) == 6


def test_another_recipe_of_the_same_name_is_another_call() -> None:
    """A resumed run performs a changed recipe again."""
    recorder = listening()
    ENGINES[0](tree(), model(), recorder=recorder)
    other = Recipe("poll", POLL.stages, knobs={"n": 4})
    says = Says()
    ENGINES[0](tree(other), model(says), recorder=resumed(recorder))
    assert len(says.seen) == 1


def test_one_item_gives_one_content_or_an_error() -> None:
    """Several Things of one item, and one that failed, are told with the way out."""
    many = Recipe("many", (Stage("generate", params={"n": 2}),))
    with pytest.raises(StepError, match="2 Things came out of the recipe 'many' for one item"):
        ENGINES[0](tree(many), model())
    judged = Recipe("judged", (Stage("critique"),))
    with pytest.raises(StepError, match="the recipe 'judged' failed: no answer that fits"):
        ENGINES[0](tree(judged), model())
    with pytest.raises(StepError, match="works on the last message, and there is none"):
        ENGINES[0](Block([Call(POLL)]), model())


def test_recipes_of_the_library_are_calls(tmp_path: Path) -> None:
    """best_of_n in the midst of a conversation, on the offline model."""
    node = tree(LIBRARY.find("best_of_n"), args={"items": "A title for a night market", "n": 2})
    done = run_generation(node, model="offline", runs=tmp_path)
    assert done.outputs["won"]
    paths = [one.path for one in done.steps]
    assert any(path.startswith("root/poll/best_of_n/stage_1/generate/0.0") for path in paths)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_prices_of_the_run_count_in_its_recipes(engine: Engine) -> None:
    """A recipe with a limit in USD has the prices that its run declares, or is refused whole."""
    says, cents = Says(), {"usd": 0.02}
    more = (*POLL.stages, Stage("generate", params={"prompt": "Say {{ content }}"}))
    with pytest.raises(TreeError) as told:
        engine(tree(Recipe("poll", more, knobs=POLL.knobs, rails=cents)), model(says))
    paths = [fault.path for fault in told.value.faults]
    assert paths == [f"root/poll/poll/stage_{at}/generate" for at in (1, 3)]
    assert says.seen == ["Write."]
    cent = Prices({"scripted:scripted": Price(0, 0, per_call=0.01)})
    dear = tree(Recipe("poll", POLL.stages, knobs=POLL.knobs, rails=cents))
    says = Says()
    engine(dear, model(says), recorder=Recorder(budget=BudgetLedger(prices=cent)))
    assert says.seen == ["Write.", *["Vote: <Write.>"] * 2, "Use <Vote: <Write.>>."]
