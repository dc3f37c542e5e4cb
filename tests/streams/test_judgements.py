"""Judgements: a score, a verdict and what wrote a content hold for that content alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from mergepoint.core.errors import BlockError, RecipeError
from mergepoint.models.pricing import Price
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import holds
from mergepoint.streams.params import Params
from mergepoint.streams.provenance import VocabularyWarning, add_words, vocabulary
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.streams.recipe_yaml import recipe_from_yaml, recipe_to_yaml
from mergepoint.streams.registry import Registry, block
from mergepoint.streams.resolved_recipe import plan
from mergepoint.streams.thing import Thing, fold
from mergepoint.testing.fakes import run_block
from mergepoint.testing.scripted_model import ScriptedModel

REGISTRY = Registry(package="mergepoint.streams.blocks")
ASKED = "Judge"


class Nothing(Params):
    """No params."""


class Written(Params):
    """Which props are written."""

    props: dict[str, Any]


@block("write", params=Written, adds=lambda params: list(params.props), registry=REGISTRY)
async def write(
    items: AsyncIterator[Thing], params: Written, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Write props as they are."""
    async for thing in items:
        yield thing.plus(params.props)


@block("rewrite", params=Nothing, registry=REGISTRY)
async def rewrite(
    items: AsyncIterator[Thing], params: Nothing, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Write a new content."""
    async for thing in items:
        yield thing.redrafted(f"{thing.content}!")


def judge(messages: Any) -> Any:
    """Judge where a judgement is asked for, by the number of marks; else answer."""
    text = messages[-1].text
    if text.startswith(ASKED):
        return {"score": 10.0 * text.count("!"), "feedback": "more marks"}
    return f"answer to {len(text)}"


def run(*stages: Stage, items: Any = ("a",), **options: Any) -> list[Thing]:
    """Run stages on items in memory."""
    done = run_recipe(
        Recipe("r", stages, needs=options.pop("needs", ())),
        list(items),
        **{"registry": REGISTRY, "runs": None, "model": ScriptedModel(default=judge), **options},
    )
    return list(done.things)


def judged(**props: Any) -> Stage:
    """Return the stage that writes props."""
    return Stage("write", params={"props": props})


@pytest.mark.parametrize(
    "word", ["score", "verified", "reason", "rubric", "feedback", "confidence", "rank", "winner"]
)
@pytest.mark.parametrize("way", [Stage("rewrite"), Stage("set", params={"content": "b"})])
def test_a_judgement_is_dropped_when_the_content_changes(word: str, way: Stage) -> None:
    """It becomes None and is not there for conditions; the history has the value, and folds."""
    (thing,) = run(judged(**{word: 5}), way)
    assert thing.props[word] is None
    assert not holds({word: {"exists": True}}, thing)
    assert thing.why(word).values == (5, None)
    assert thing == fold(thing.history) == Thing.from_plain(thing.to_plain())


def test_what_is_no_judgement_stays() -> None:
    """Kinds, questions, groups and words of nobody stay when the content changes."""
    props = {"kind": "plan", "question": "q", "lessons": "l", "my_own": 1, "status": "active"}
    (thing,) = run(judged(**props), Stage("rewrite"))
    assert {name: thing.props[name] for name in props} == props


def test_a_judgement_stays_where_the_content_stays() -> None:
    """Other props, and the same content written again, change nothing that was judged."""
    same = Stage("set", params={"content": "{{ content }}"})
    (thing,) = run(judged(score=5), judged(kind="plan"), same)
    assert thing.props["score"] == 5


def test_a_judgement_that_came_with_the_content_is_about_it() -> None:
    """What a block writes together with the content is about the new one."""
    things = run(judged(score=5), Stage("synthesize", params={"strategy": "top_k"}))
    assert [thing.props["score"] for thing in things] == [5]


def test_children_do_not_have_the_judgement_of_their_parent() -> None:
    """Samples of a question that was scored have no score."""
    generate = Stage("generate", params={"n": 2, "prompt": "Say {{ content }}"})
    things = run(judged(score=5), generate)
    assert [thing.props["score"] for thing in things] == [None, None]


def test_a_dropped_judgement_is_an_error_where_it_is_read() -> None:
    """The error names the prop, the stage that changed the content, and the fix."""
    stages = (judged(score=5), Stage("rewrite"), Stage("select", params={"top_k": 1}))
    with pytest.raises(BlockError, match=r"score was dropped when rewrite at r.stage_2.rewrite"):
        run(*stages)


def test_a_plan_finds_a_judgement_that_will_be_dropped() -> None:
    """Before the first call: stage, prop, and the stage that changes the content."""
    stages = (Stage("critique"), Stage("apply"), Stage("select", params={"top_k": 1}))
    with pytest.raises(RecipeError) as raised:
        plan(Recipe("r", stages))
    assert "r.stage_3.select: needs the prop 'score', which r.stage_2.apply drops" in str(
        raised.value
    )
    some = Stage("apply", where={"score": {"below": 5}})
    plan(Recipe("r", (Stage("critique"), some, Stage("select", params={"top_k": 1}))))
    inner = Recipe("inner", (Stage("critique"), Stage("apply")))
    with pytest.raises(RecipeError, match="'score'"):
        plan(Recipe("r", (Stage(inner), Stage("select", params={"top_k": 1}))))


def test_why_tells_that_a_judgement_was_dropped() -> None:
    """A line for the value with its call, and one for the stage that dropped it."""
    (thing,) = run(Stage("critique", params={"prompt": "Judge {{ content }}"}), Stage("rewrite"))
    call = "r/stage_1/critique/0/call_01"
    assert str(thing.why("score")).splitlines() == [
        "score of 0",
        f"  0.0  critique at r.stage_1.critique (scripted:scripted), calls {call}, as 0",
        "  dropped  rewrite at r.stage_2.rewrite, as 0: it changed the content",
    ]


@pytest.mark.parametrize(
    ("last", "name", "origins"),
    [
        ({"strategy": "top_k", "by": "score"}, "score", ["r/stage_2/critique/0.0/call_01"]),
        ({"strategy": "top_k", "by": "score"}, "content", ["r/stage_1/generate/0.0/call_01"]),
        (
            {"strategy": "concat", "collect": ["score"]},
            "content",
            ["r/stage_1/generate/0.0/call_01", "r/stage_1/generate/0.1/call_01.sample_02"],
        ),
        (
            {"strategy": "concat", "collect": ["score"]},
            "score",
            ["r/stage_2/critique/0.0/call_01", "r/stage_2/critique/0.1/call_01"],
        ),
        ({"strategy": "majority"}, "content", ["r/stage_1/generate/0.0/call_01"]),
    ],
)
def test_why_follows_a_value_to_the_call_that_set_it(
    last: Mapping[str, Any], name: str, origins: list[str]
) -> None:
    """What was taken from other Things leads to their stages and calls, through several stages."""
    stages = (
        Stage("generate", params={"n": 2, "prompt": "Say {{ content }}"}),
        Stage("critique", params={"prompt": "Judge {{ content }}"}),
        Stage("synthesize", params=last),
    )
    (thing,) = run(*stages)
    told = str(thing.why(name))
    found = [line for line in told.splitlines() if line.startswith("    from ")]
    assert len(found) == len(origins)
    for line, call in zip(found, origins, strict=True):
        assert call.replace(".sample_02", "") in line
        assert "(scripted:scripted)" in line
    again = Stage("synthesize", params={"strategy": "top_k", "by": "score"})
    if name == "score" and last["strategy"] == "top_k":
        (thing,) = run(*stages, again)
        assert origins[0] in str(thing.why("score")).splitlines()[-1]
    assert Thing.from_plain(thing.to_plain()) == thing


@pytest.mark.parametrize(
    ("block_name", "params", "kept"),
    [
        ("generate", {"prompt": "Say {{ content }}"}, {"kind": "answer"}),
        ("apply", {"prompt": "Say {{ content }}"}, {}),
        ("chain", {"prompt": "Say {{ content }}"}, {}),
        ("synthesize", {"strategy": "combine", "prompt": "Say"}, {}),
    ],
)
def test_a_content_says_what_wrote_it(
    block_name: str, params: dict[str, Any], kept: dict[str, Any]
) -> None:
    """Model, call on record, stage and cost in USD; a new content by rules drops them."""
    price = {"scripted:scripted": Price(1_000_000, 0)}
    (thing,) = run(Stage(block_name, params=params), prices=price)
    (call,) = thing.history[-1].calls
    cost = thing.props["cost"]
    assert isinstance(cost, float)
    assert cost > 0
    told = {"model": "scripted:scripted", "source": call, "stage_id": f"r.stage_1.{block_name}"}
    assert {name: thing.props[name] for name in (*told, *kept)} == {**told, **kept}
    (changed,) = run(Stage(block_name, params=params), Stage("rewrite"), prices=price)
    assert [changed.props[name] for name in (*told, "cost")] == [None] * 4


def test_a_cost_that_nobody_knows_is_none() -> None:
    """A model without a price has a cost of None, and no zero."""
    (thing,) = run(Stage("generate", params={"prompt": "Say {{ content }}"}))
    assert thing.props["cost"] is None


def test_a_critique_says_by_what_it_judged() -> None:
    """The rubric is asked for in the prompt, or below it; without one it is the prompt's start."""
    model = ScriptedModel(default=judge)
    params = {"prompt": "Judge {{ content }}", "rubric": "short and true"}
    (thing,) = run(Stage("critique", params=params), model=model)
    assert (thing.props["rubric"], thing.props["reason"]) == ("short and true", "more marks")
    assert model.calls[-1].messages[-1].text == ("Judge a\n\n<rubric>\nshort and true\n</rubric>")
    params = {"prompt": "Judge by {{ rubric }}: {{ content }}", "rubric": "short"}
    run(Stage("critique", params=params), model=model)
    assert model.calls[-1].messages[-1].text == "Judge by short: a"
    params = {"prompt": "Judge it.\n\n{{ content }}"}
    (thing,) = run(Stage("critique", params=params), model=model)
    assert thing.props["rubric"] == "Judge it."


def test_verify_says_whether_it_is_verified() -> None:
    """A verdict becomes the prop `verified`, with the reason."""
    model = ScriptedModel(default=lambda _: {"verdict": "fail", "reason": "no"})
    (thing,) = run(Stage("verify"), model=model)
    assert (thing.props["verified"], thing.props["reason"]) == (False, "no")


@pytest.mark.parametrize(
    ("props", "rounds", "stopped"),
    [
        ({"converged": True}, 1, "converged"),
        ({"status": "converged"}, 1, "converged"),
        ({"status": "done"}, 1, "done"),
        ({"converged": False}, 3, "max_iterations"),
        ({"converged": "true"}, 3, "max_iterations"),
        ({"status": "active"}, 3, "max_iterations"),
    ],
)
def test_converged_or_done_ends_a_loop(props: dict[str, Any], rounds: int, stopped: str) -> None:
    """`converged: true` or `status: done` ends the rounds, and is the reason that is told."""
    loop = Recipe(
        "loop",
        (Stage("rewrite"), judged(**props)),
        recurrent=True,
        rails={"max_iterations": 3, "patience": 3},
    )
    (thing,) = run(Stage(loop))
    assert (thing.props["iteration"], thing.props["stopped"]) == (rounds, stopped)


def test_patience_counts_scores_that_were_dropped_since() -> None:
    """A round that ends with a revision has the score of the draft before."""
    loop = Recipe(
        "loop",
        (judged(score=5), Stage("rewrite")),
        recurrent=True,
        rails={"max_iterations": 9, "patience": 2},
    )
    (thing,) = run(Stage(loop))
    assert (thing.props["iteration"], thing.props["stopped"]) == (3, "patience")


WORDED = """
name: worded
words:
  kinds: {poem: a text in lines}
  assessment: {rhyme: how well it rhymes}
stages:
  - type: write
    params: {props: {rhyme: 3, kind: poem}}
  - type: rewrite
"""


def test_a_recipe_adds_words_of_its_own() -> None:
    """Its judgements are dropped like others, a slip of its words is told, and it is as written."""
    recipe = recipe_from_yaml(WORDED)
    done = run_recipe(recipe, ["a"], registry=REGISTRY, runs=None)
    assert done.things[0].props == {"rhyme": None, "kind": "poem"}
    assert recipe_from_yaml(recipe_to_yaml(recipe)) == recipe
    slip = recipe_from_yaml(WORDED.replace("rhyme: 3", "ryhme: 3"))
    with pytest.warns(VocabularyWarning, match="did you mean 'rhyme'"):
        run_recipe(Recipe("around", (Stage(slip),)), ["a"], registry=REGISTRY, runs=None)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"kind": {"poem": "x"}}, "no section is named 'kind'.*did you mean 'kinds'"),
        ({"kinds": ["poem"]}, "write each word with its meaning"),
        ({"kinds": {"poem": ""}}, "must be non-blank strings"),
        (["poem"], "words must be a mapping"),
    ],
)
def test_words_that_are_none_are_refused(words: Any, problem: str) -> None:
    """In a recipe and in `add_words`, with the section and what is wrong."""
    with pytest.raises(RecipeError, match=problem):
        Recipe("r", (Stage("dedupe"),), words=words)
    with pytest.raises(RecipeError, match=problem):
        add_words(words)


def test_a_package_adds_words_for_all_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `add_words` adds holds in each recipe that runs from then on."""
    monkeypatch.setattr("mergepoint.streams.provenance._added", [])
    add_words({"assessment": {"rhyme": "how well it rhymes"}})
    try:
        (thing,) = run(judged(rhyme=3), Stage("rewrite"))
    finally:
        monkeypatch.undo()
        add_words({})
    assert thing.props["rhyme"] is None
    assert "rhyme" not in vocabulary().assessment


def test_params_of_a_block_are_a_model() -> None:
    """`params=dict` is refused where the block is written, with what to write."""
    with pytest.raises(TypeError, match=r"block 'loose': params=<class 'dict'> isn't a pydantic"):

        @block("loose", params=dict, registry=Registry())  # type: ignore[type-var]
        async def loose(
            items: AsyncIterator[Thing], params: Any, ctx: BlockContext
        ) -> AsyncIterator[Thing]:
            """Let all pass."""
            async for thing in items:
                yield thing


def test_branches_that_models_wrote_are_merged() -> None:
    """Each branch has its own model and call; the whole has those of the branch that is taken."""
    stages = (
        Stage("tee", params={"branches": ["x", "y"]}),
        Stage("apply", params={"prompt": "Say {{ content }}"}),
    )
    (whole,) = run(*stages, Stage("merge"))
    assert set(whole.content) == {"x", "y"}
    assert "source" not in whole.props
    (one,) = run(*stages, Stage("merge", params={"content": "y"}))
    assert one.props["source"] == "r/stage_2/apply/0.1/call_01"


def test_a_judgement_of_an_item_is_about_its_content() -> None:
    """A score that came with an item is dropped as well."""
    (thing,) = run_block("set", [Thing("a", {"score": 5})], {"content": "b"})
    assert thing.props["score"] is None
