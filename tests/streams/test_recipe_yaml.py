"""Recipes as files: what is read, what is written, and every fault with its line."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from mergepoint import Policy, Retry
from mergepoint.core.errors import RecipeError
from mergepoint.streams.conditions import as_data
from mergepoint.streams.recipe import MAX_STAGES, FormError, Recipe, Stage
from mergepoint.streams.recipe_yaml import (
    Library,
    load_recipe,
    recipe_from_yaml,
    recipe_schema,
    recipe_to_yaml,
)
from mergepoint.streams.resolved_recipe import PlannedRecipe, plan, with_plan

TEXT = """
name: best_of
about: The best of some samples.
paper: https://arxiv.org/abs/2110.14168
calls: n + n
knobs: {n: 3, least: 50}
concurrency: 2
stages:
  - type: generate
    params: {n: "{{ n }}", prompt: "Say {{ content }} {{ n }} times."}
    concurrency: 4
  - type: critique
    model: offline
    budget: {calls: 9}
    policy: {retry: {attempts: 4, wait: 0.5}, timeout: 30.0}
  - type: filter
    params: {where: {score: {at_least: "{{ least }}"}}}
  - type: select
    params: {top_k: 1, by: score}
    batch: {count: 10}
"""


def test_a_recipe_comes_back_from_its_text() -> None:
    """What is written is read again as an equal recipe."""
    recipe = recipe_from_yaml(TEXT)
    assert recipe_from_yaml(recipe_to_yaml(recipe)) == recipe
    assert (recipe.name, len(recipe.stages), recipe.knobs["n"]) == ("best_of", 4, 3)


def test_knobs_are_filled_in() -> None:
    """A param that is one place gets the value itself, a text its words, other places stay."""
    stages = list(plan(recipe_from_yaml(TEXT), {"n": 5}).blocks())
    assert (stages[0].params.n, stages[0].width) == (5, 4)  # type: ignore[attr-defined]
    assert stages[0].params.prompt == "Say {{ content }} 5 times."  # type: ignore[attr-defined]
    assert [stage.stage_id for stage in stages] == [
        "best_of.stage_1.generate",
        "best_of.stage_2.critique",
        "best_of.stage_3.filter",
        "best_of.stage_4.select",
    ]
    assert (stages[1].width, stages[1].model) == (2, "offline")
    assert stages[1].policy == Policy(retry=Retry(4, wait=0.5), timeout=30.0)


ROUNDS = """
name: tries
knobs: {rounds: 4, good: 80, least: 2}
recurrent: true
until: {score: {at_least: "{{ good }}"}}
rails: {max_iterations: "{{ rounds }}", calls: 9}
stages:
  - type: critique
"""


def test_knobs_are_filled_in_where_rounds_end() -> None:
    """`until` and rails take knobs, with the value itself; the text comes back as it was."""
    recipe = recipe_from_yaml(ROUNDS)
    assert recipe_from_yaml(recipe_to_yaml(recipe)) == recipe
    planned = plan(recipe, {"rounds": 7})
    assert (planned.rails.max_iterations, planned.rails.calls) == (7, 9)
    assert as_data(planned.until) == {"score": {"at_least": 80}}
    assert plan(recipe).rails.max_iterations == 4


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "{{ good }}",
            "{{ god }}",
            "f.yaml:5: tries: until.score.at_least: no knob is named 'god'",
        ),
        ("{{ rounds }}", "{{ round }}", "no knob is named 'round' (did you mean 'rounds'?)"),
        (
            "rounds: 4",
            "rounds: 0",
            "f.yaml:6: tries: rails.max_iterations: input should be greater",
        ),
        ("rounds: 4", "rounds: much", "f.yaml:6: tries: rails.max_iterations: "),
        ("good: 80", "good: much", "f.yaml:5: tries: until.score.at_least: "),
        ("max_iterations:", "max_iteration:", "no such param (did you mean 'max_iterations'?)"),
        ("calls: 9", "calls: -9", "f.yaml:6: rails.calls: "),
    ],
)
def test_knobs_that_end_no_rounds_are_told(old: str, new: str, problem: str) -> None:
    """Places without a knob and values that do not fit are told with file and line."""
    with pytest.raises(RecipeError) as told:
        plan(recipe_from_yaml(ROUNDS.replace(old, new), source="f.yaml"))
    assert problem in str(told.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: x\nstages: []", "f.yaml:2: x: the recipe has no stages"),
        ("name: X\nstages:\n  - type: dedupe\n", "f.yaml:1: X: 'X' isn't a valid name"),
        ("name: x\nstages:\n  - type: dedupe\nstagez: 1", "f.yaml:4: stagez: no such"),
        (
            "name: x\nstages:\n  - type: dedupe\n    concurrency: 0",
            "f.yaml:4: concurrency must be an integer",
        ),
        ("name: x\nstages:\n  - type: dedupe\n    budget: {cals: 3}", "did you mean 'calls'?"),
        ("name: x\nname: y\nstages: [{type: dedupe}]", "f.yaml:2"),
        ("name: &a x\nstages: [{type: dedupe}]", "f.yaml:1"),
        ("name: x\nrails: {max_iterations: 0}\nstages: [{type: dedupe}]", "f.yaml:2: rails.max_it"),
        ("name: x\nuntil: {score: 1}\nstages: [{type: dedupe}]", "until requires a recurrent"),
        ("- a", "f.yaml:1: params are a mapping"),
    ],
)
def test_a_file_that_is_no_recipe_is_told(text: str, problem: str) -> None:
    """Each fault has file and line."""
    with pytest.raises(RecipeError) as raised:
        recipe_from_yaml(text, source="f.yaml")
    assert problem in str(raised.value)


def test_all_faults_of_a_recipe_are_found_at_once() -> None:
    """Unknown types, params, knobs and props that nothing adds come in one error, with lines."""
    text = (
        "name: x\nstages:\n  - type: filte\n  - type: vote\n    params: {stop: {lead: x}}\n"
        "  - type: filter\n    params: {where: {score: 1}}\n  - type: dedupe\n    params: {n: 1}\n"
    )
    with pytest.raises(RecipeError) as raised:
        plan(recipe_from_yaml(text, source="f.yaml"), {"m": 1})
    told = str(raised.value).splitlines()
    assert len(told) == 5
    assert told[0].startswith("f.yaml:1: x: m: no such knob")
    assert "f.yaml:3: x.stage_1.filte: no block or recipe is named 'filte' (did you mean" in told[1]
    assert told[2].startswith("f.yaml:5: x.stage_2.vote: stop.lead: input should be")
    assert told[3].startswith(
        "f.yaml:6: x.stage_3.filter: needs the prop 'score', which no earlier stage"
    )
    assert told[4].startswith("f.yaml:9: x.stage_4.dedupe: n: no such param")


FAULTY = """
name: faulty
concurrency: 0
until: {score: 1}
rails: {calls: -9}
colour: red
stages:
  - type: generat
    concurrency: 0
  - type: critique
    params: {promt: "Judge it."}
    budget: {cals: 3}
  - params: {n: 1}
  - type: vote
    concurrency: much
    params: {stop: {lead: x}, by: 5}
  - type: filter
    where: {feedback: "", flavour: sweet}
    params: {where: {score: 1, sound: loud}}
  - type: dedupe
    policy: {retry: 0}
  - type: inner
    params: {m: 3}
"""

TOLD = [
    "3: faulty: concurrency must be an integer of at least 1, not 0",
    "4: faulty: until requires a recurrent recipe",
    "5: rails.calls: input should be greater",
    "6: colour: no such param",
    "8: faulty.stage_1.generat: no block or recipe is named 'generat' (did you mean 'generate'",
    "9: concurrency must be an integer of at least 1, not 0",
    "11: faulty.stage_2.critique: promt: no such param (did you mean 'prompt'?)",
    "12: stages.1.budget.cals: no such param (did you mean 'calls'?)",
    "13: stages.2.type: is missing",
    "15: stages.3.concurrency: input should be a valid integer",
    "16: faulty.stage_4.vote: by: input should be a valid string",
    "16: faulty.stage_4.vote: stop.lead: input should be",
    "17: faulty.stage_5.filter: needs the prop 'score', which faulty.stage_4.vote drops because it",
    "17: faulty.stage_5.filter: needs the prop 'sound', which no earlier stage adds",
    "18: faulty.stage_5.filter: needs the prop 'feedback', which faulty.stage_4.vote drops because",
    "18: faulty.stage_5.filter: needs the prop 'flavour', which no earlier stage adds",
    "21: retry",
    "23: faulty.stage_7.inner: m: no such knob; available: n",
]


def told(error: RecipeError) -> list[tuple[int, str]]:
    """Return line and text of each fault of `f.yaml`."""
    lines = [line.removeprefix("f.yaml:").partition(": ") for line in str(error).splitlines()]
    return [(int(number), text) for number, _, text in lines]


def test_faults_of_form_and_plan_are_told_at_once(tmp_path: Path) -> None:
    """Each with its line, in the order of the file, nothing twice, and nothing that follows."""
    with pytest.raises(FormError) as raised:
        recipe_from_yaml(FAULTY, source="f.yaml")
    form = told(raised.value)
    assert [number for number, _ in form] == [3, 4, 5, 6, 9, 12, 13, 15, 21]
    known = in_folder(tmp_path, inner="  - type: dedupe\nknobs: {n: 1}\n")
    (tmp_path / "faulty.yaml").write_text(FAULTY, encoding="utf-8")
    whole = told(with_plan(raised.value, library=known))
    assert len(whole) == len(TOLD)
    for (number, text), expected in zip(whole, TOLD, strict=True):
        assert f"{number}: {text}".startswith(expected)
    assert set(form) < set(whole)
    with pytest.raises(RecipeError) as by_name:
        plan("faulty", library=known)
    lines = str(by_name.value).replace(str(tmp_path / "faulty.yaml"), "f.yaml").splitlines()
    assert lines == str(with_plan(raised.value, library=known)).splitlines()


def test_faults_of_a_recipe_inside_are_told_where_they_are(tmp_path: Path) -> None:
    """A file that two stages name is told once, at the first of them, form and plan."""
    known = in_folder(
        tmp_path,
        inner="  - {type: dedupe, concurrency: 0}\n  - type: filtr\n",
        outer="  - {type: votte}\n  - {type: inner}\n  - {type: inner}\n  - {type: dedup}\n",
    )
    with pytest.raises(RecipeError) as raised:
        plan("outer", library=known)
    places = [Path(line.partition(": ")[0]).name for line in str(raised.value).splitlines()]
    assert places == ["outer.yaml:3", "inner.yaml:3", "inner.yaml:4", "outer.yaml:6"]


DEEP = """\
  - type: search
    params: {strategy: beam, next: [{type: critique, concurrency: 0}]}
"""


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("- a", [1]),
        ("name: x\nconcurrency: 0\nstages: [{type: a", [4]),
        ("name: x\nconcurrency: zero\nstages: []", [2, 3]),
        ("name: 3\nstages:\n  - dedupe\n  - type: filtr", [1, 3, 4]),
        ("stages:\n  - {type: dedupe, params: 3}\n  - type: filtr", [1, 2, 3]),
        ("name: x\nknobs: {A: 1, n: 2}\nstages:\n  - type: filtr", [2, 4]),
        ("name: x\nstages:\n  - type: ''\n  - type: filtr", [3, 4]),
        ("name: x\nrecurrent: yes\nuntil: {score: 1}\nstages:\n  - type: filtr", [2, 5]),
        ("name: x\nstages:\n  - type: best_of_n\n    params: {n: lots}\n  - type: filtr", [4, 5]),
        ("name: x\nknobs: 3\nstages:\n  - type: filtr", [2]),
        ("name: x\nneeds: score\nstages:\n  - {type: select, params: {by: score}}", [2]),
        ("name: x\nstages:\n  - type: filter\n    params: {were: 1, where: {a: 1}}", [3, 4]),
        ("name: x\nstages:\n  - type: vote\n    params: {by: 1}\n  - type: filtr", [4, 5]),
        (f"name: x\nstages:\n{DEEP}  - type: filtr", [4, 5]),
    ],
)
def test_as_much_is_told_as_can_be_known(text: str, lines: list[int]) -> None:
    """Where a name, a stage or all of it cannot be read, the rest is told of all the same."""
    with pytest.raises(RecipeError) as raised:
        plan(recipe_from_yaml(text, source="f.yaml"))
    error = raised.value
    whole = with_plan(error) if isinstance(error, FormError) else error
    assert [number for number, _ in told(whole)] == lines


def test_what_cannot_be_read_survives_a_process() -> None:
    """The error says the same in another process."""
    with pytest.raises(FormError) as raised:
        recipe_from_yaml("name: x\nconcurrency: 0\nstages: [{type: dedupe}]", source="f.yaml")
    back = pickle.loads(pickle.dumps(raised.value))  # noqa: S301  (our own bytes)
    assert (str(back), back.faults) == (str(raised.value), raised.value.faults)


def test_a_knob_of_another_type_is_refused() -> None:
    """A knob is given values like its default."""
    for given in ("3", True, [3]):
        with pytest.raises(RecipeError, match="n: must have the type of its default 3, not"):
            plan(recipe_from_yaml(TEXT), {"n": given})


def in_folder(folder: Path, **texts: str) -> Library:
    """Return a library of recipes whose stages are given as lines."""
    for name, stages in texts.items():
        (folder / f"{name}.yaml").write_text(f"name: {name}\nstages:\n{stages}", encoding="utf-8")
    return Library([folder], shipped=False)


def test_a_recipe_is_a_block_at_any_depth(tmp_path: Path) -> None:
    """Stage ids tell the way through the recipes around."""
    library = in_folder(
        tmp_path, inner="  - type: dedupe\n", outer="  - type: dedupe\n  - type: inner\n"
    )
    whole = Recipe("whole", (Stage("outer"), Stage(library.find("inner"))))
    planned = plan(whole, library=library)
    assert [stage.stage_id for stage in planned.walk()] == [
        "whole.stage_1.outer",
        "whole.stage_1.outer.stage_1.dedupe",
        "whole.stage_1.outer.stage_2.inner",
        "whole.stage_1.outer.stage_2.inner.stage_1.dedupe",
        "whole.stage_2.inner",
        "whole.stage_2.inner.stage_1.dedupe",
    ]
    assert isinstance(planned.stages[0], PlannedRecipe)


def test_a_recipe_that_comes_to_hold_itself_is_refused(tmp_path: Path) -> None:
    """At any distance, with the way that it takes and the line where it closes."""
    library = in_folder(tmp_path, a="  - type: b\n", b="  - type: c\n", c="  - type: a\n")
    with pytest.raises(RecipeError, match=r"c.yaml:3: .*contains itself: a -> b -> c -> a"):
        plan(library.find("a"), library=library)
    with pytest.raises(RecipeError, match="contains itself: a -> a"):
        plan(
            recipe_from_yaml("name: a\nstages: [{type: a}]"),
            library=in_folder(tmp_path, a="  - type: a\n"),
        )


def test_too_many_stages_are_refused() -> None:
    """10,000 stages are told to be too many before any is looked up."""
    lines = "".join("  - type: dedupe\n" for _ in range(10_000))
    with pytest.raises(
        RecipeError, match=f"10,000 stages; a recipe can have at most {MAX_STAGES:,}"
    ):
        recipe_from_yaml(f"name: x\nstages:\n{lines}")


def test_a_library_tells_what_is_wrong_with_a_name(tmp_path: Path) -> None:
    """A name of two files, and a file that is called otherwise, are errors that name them."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    in_folder(one, a="  - type: dedupe\n")
    in_folder(two, a="  - type: dedupe\n")
    with pytest.raises(RecipeError, match="several files define the recipe 'a'"):
        Library([one, two]).find("a")
    (one / "b.yaml").write_text("name: c\nstages: [{type: dedupe}]", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"b.yaml: the recipe is named 'c'"):
        Library([one]).find("b")
    assert load_recipe(one / "a.yaml").name == "a"


def test_what_has_no_text_is_told() -> None:
    """A recipe whose stages are objects cannot be written."""
    recipe = Recipe("x", (Stage(Recipe("y", (Stage("dedupe"),))),))
    with pytest.raises(RecipeError, match=r"x.stage_1.y: its type is an object"):
        recipe_to_yaml(recipe)


def test_editors_get_the_params_of_every_block() -> None:
    """The JSON Schema tells for each type which params there are."""
    schema = recipe_schema()
    stage = schema["$defs"]["StageForm"]
    assert {"generate", "vote"} <= set(stage["properties"]["type"]["examples"])
    cases = {case["if"]["properties"]["type"]["const"] for case in stage["allOf"]}
    assert "critique" in cases
    assert "top_k" in schema["$defs"]["block_select"]["properties"]


def test_editors_accept_places_for_knobs() -> None:
    """In limits and conditions too; what is asked of a prop is a mapping of tests, or a value."""
    definitions = recipe_schema()["$defs"]
    place = {"type": "string", "pattern": r"^\{\{.*\}\}$"}
    for name, field in (("Rails", "max_iterations"), ("Check", "at_least"), ("Uct", "moves")):
        assert place in definitions[name]["properties"][field]["anyOf"]
    asked = definitions["block_filter"]["properties"]["where"]["anyOf"][0]["oneOf"][0]
    assert asked["additionalProperties"] == {
        "if": {"type": "object"},
        "then": {"$ref": "#/$defs/Check"},
    }
