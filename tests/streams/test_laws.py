"""The laws of Things, on random recipes."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.streams.laws import (
    UNHURRIED,
    Work,
    everything,
    inputs,
    json_values,
    props,
    recipes,
    run,
    run_lazily,
)

from mergepoint.core.frozen_json import freeze, thaw
from mergepoint.streams.thing import Made, Thing, fold

mades = st.builds(
    Made,
    id=st.sampled_from(["", "0", "0.1"]),
    parents=st.sampled_from([(), ("0",)]),
    added=props.map(freeze),
    drafts=st.lists(json_values.map(freeze), max_size=1).map(tuple),
)


@UNHURRIED
@given(mades, mades, mades)
def test_what_was_made_is_a_monoid(a: Made, b: Made, c: Made) -> None:
    """What was made is joined in any grouping with one result, and nothing made changes nothing."""
    assert (a + b) + c == a + (b + c)
    assert Made() + a == a == a + Made()


@UNHURRIED
@given(inputs, recipes)
def test_a_thing_is_the_fold_of_its_history(things: list[Thing], recipe: list[Work]) -> None:
    """Everything that leaves a stage is what its history tells, and can be made from that alone."""
    for thing in everything(things, recipe):
        assert thing == fold(thing.history) == Thing(thing.content, thing.props, thing.history)
        assert thing.made is None is thing.base


@UNHURRIED
@given(inputs, recipes)
def test_histories_grow_and_nothing_vanishes(things: list[Thing], recipe: list[Work]) -> None:
    """Each entry adds to props and drafts; a later value stands before an earlier one."""
    for thing in everything(things, recipe):
        states = [fold(thing.history[:end]) for end in range(1, len(thing.history) + 1)]
        for entry, (before, after) in zip(thing.history[1:], pairwise(states), strict=True):
            assert after.drafts[: len(before.drafts)] == before.drafts
            assert after.drafts == before.drafts + entry.drafts
            assert after.props == {**before.props, **entry.added}
        for name in thing.props:
            assert thing.why(name).values[-1] == thing.props[name]


@UNHURRIED
@given(inputs, recipes)
def test_what_an_item_had_stays_at_the_beginning(things: list[Thing], recipe: list[Work]) -> None:
    """What leaves a stage has the history of what it was made from as its beginning."""
    for before, after in pairwise(run(things, recipe)):
        known = {thing.id: thing for thing in before}
        for thing in after:
            sources = thing.parents if thing.id not in known else (thing.id,)
            shared = len(thing.history) - (thing not in before)
            for source in sources:
                assert known[source].history[:shared] == thing.history[:shared]


@UNHURRIED
@given(inputs, recipes)
def test_ids_are_keys_and_the_same_in_every_run(things: list[Thing], recipe: list[Work]) -> None:
    """No two Things of a stream share an id or are above one another, and two runs are equal."""
    streams = run(things, recipe)
    for stream in streams:
        ids = [thing.id for thing in stream]
        assert len(set(ids)) == len(ids)
        assert not any(one.startswith(f"{other}.") for one in ids for other in ids)
    assert run(things, recipe) == streams


@UNHURRIED
@given(inputs, recipes, st.integers(2, 16), st.integers(0, 9999))
def test_results_do_not_depend_on_concurrency(
    things: list[Thing], recipe: list[Work], width: int, schedule: int
) -> None:
    """However many items are worked on, in whatever order, the same Things leave in one order."""
    assert run(things, recipe, width=width, schedule=schedule) == run(things, recipe)


@UNHURRIED
@given(inputs, recipes, st.integers(1, 4), st.integers(0, 9999), st.integers(0, 12))
def test_stages_at_once_make_what_stages_in_turn_make(
    things: list[Thing], recipe: list[Work], width: int, schedule: int, wanted: int
) -> None:
    """A chain of lazy stages, stopped anywhere, gives the beginning of what it gives as a whole."""
    found = run_lazily(things, recipe, width=width, schedule=schedule, wanted=wanted)
    assert found == run(things, recipe)[-1][:wanted]


@UNHURRIED
@given(inputs, recipes)
def test_a_thing_survives_json_and_pickle(things: list[Thing], recipe: list[Work]) -> None:
    """A Thing is written as JSON, and read back it is equal, times included."""
    for thing in everything(things, recipe):
        text = json.dumps(thing.to_plain(), allow_nan=False)
        back = Thing.from_plain(json.loads(text))
        assert back == thing == pickle.loads(pickle.dumps(thing))  # noqa: S301  (our own bytes)
        assert json.dumps(back.to_plain()) == text
        assert [one.started for one in back.history] == [one.started for one in thing.history]


@UNHURRIED
@given(json_values)
def test_sealed_data_is_equal_and_cannot_be_changed(value: object) -> None:
    """Sealing keeps every value and its JSON; a plain copy of it is of the plain types again."""
    seal = freeze(value)
    assert seal == value == thaw(seal)
    assert json.dumps(seal) == json.dumps(value) == json.dumps(thaw(seal))
    assert freeze(seal) is seal
    assert type(thaw(seal)) is type(value)
    assert pickle.loads(pickle.dumps(seal)) == seal  # noqa: S301  (our own bytes)
