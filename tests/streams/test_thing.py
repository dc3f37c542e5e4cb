"""Thing: fresh ones, changes, children, joins, why, converters, and what is refused."""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from mergepoint.core.errors import MissingKey
from mergepoint.core.frozen_json import MAX_DEPTH, freeze
from mergepoint.streams.stage_run import entered
from mergepoint.streams.thing import (
    Candidate,
    Entry,
    ScoredCandidate,
    Thing,
    child,
    fold,
    joined,
    stamp,
)


def thing(content: Any = "text", **props: Any) -> Thing:
    """Return a Thing that is in a stream."""
    return next(entered([Thing(content, props)]))


def left(after: Thing, block: str, **facts: Any) -> Thing:
    """Return a Thing as it leaves a stage."""
    return stamp(after.base, after, block=block, stage_id=f"stage.{block}", **facts)


def test_a_fresh_thing_is_in_no_stream() -> None:
    """A fresh Thing has content and props, and neither id nor history."""
    fresh = Thing("text", {"topic": "cats"})
    assert (fresh.content, fresh.props, fresh.id, fresh.history) == (
        "text",
        {"topic": "cats"},
        "",
        (),
    )
    assert fresh.drafts == ("text",)


def test_what_enters_is_numbered() -> None:
    """Items that enter a stream have the ids 0, 1 and on, and what is no Thing is a content."""
    things = list(entered(["a", Thing("b", {"x": 1}), {"c": 2}]))
    assert [one.id for one in things] == ["0", "1", "2"]
    assert [one.content for one in things] == ["a", "b", {"c": 2}]
    assert things[1].why("x").values == (1,)


def test_a_thing_of_another_stream_does_not_enter() -> None:
    """A Thing that has a history already would get a second beginning."""
    with pytest.raises(ValueError, match="item 1 is 0 of another stream"):
        list(entered(["a", thing()]))


def test_a_change_gives_another_thing() -> None:
    """Adding and redrafting leave the Thing as it was, and its history alone until the stamp."""
    before = thing(score=1)
    after = before.plus(score=2).redrafted("new")
    assert (before.content, before.props) == ("text", {"score": 1})
    assert (after.content, after.props) == ("new", {"score": 2})
    assert after.history == before.history
    assert after.drafts == ("text", "new")
    assert after.base is before


def test_a_stamp_is_one_entry() -> None:
    """All that one stage made of a Thing is one entry, with its last draft."""
    after = thing().plus(a=1).redrafted("x").plus({"b": 2}).redrafted("y")
    done = left(after, "work", model="m", calls=["7"], started=1.0, ended=2.0)
    assert done.history[1:] == (
        Entry(
            id="0",
            added={"a": 1, "b": 2},
            drafts=("y",),
            block="work",
            stage_id="stage.work",
            model="m",
            calls=("7",),
        ),
    )
    assert (done.history[-1].started, done.history[-1].ended) == (1.0, 2.0)
    assert done.drafts == ("text", "y")


def test_the_same_value_again_is_on_record() -> None:
    """A prop that is set to what it was is told of as well: somebody said so once more."""
    done = left(thing(score=5).plus(score=5), "judge")
    assert done.why("score").values == (5, 5)


def test_what_nothing_was_made_of_leaves_as_it_came() -> None:
    """A stamp of an untouched Thing is the Thing, unless calls were made for it."""
    one = thing()
    assert stamp(one, one, block="filter", stage_id="s") is one
    asked = stamp(one, one, block="judge", stage_id="s", calls=["1"])
    assert asked.history[-1].calls == ("1",)


def test_times_are_no_part_of_what_happened() -> None:
    """Things that differ in times alone are equal."""
    changed = thing().plus(a=1)
    assert left(changed, "w", started=1.0) == left(changed, "w", started=2.0)


def test_a_child_begins_as_its_parent() -> None:
    """A child has an id below its parent's, the parent in its list, and all that the parent had."""
    parent = thing(topic="cats")
    done = left(child(parent, 2).redrafted("a cat"), "generate")
    assert (done.id, done.parents) == ("0.2", ("0",))
    assert done.props == {"topic": "cats"}
    assert left(child(done, 1), "again").id == "0.2.1"
    later = left(done.plus(score=1), "critique")
    assert (later.id, later.parents) == ("0.2", ("0",))


def test_a_child_of_what_has_not_left_has_the_item_as_parent() -> None:
    """Parents are Things that left a stage, however many steps were made inside of this one."""
    deep = child(child(thing(), 0).plus(a=1), 3)
    assert (deep.id, deep.parents) == ("0.0.3", ("0",))


@pytest.mark.parametrize("number", [-1, True, 1.0, "1"])
def test_the_number_of_a_child_is_a_whole_number(number: Any) -> None:
    """What cannot be part of an id is refused."""
    with pytest.raises(ValueError, match="integer of at least 0"):
        child(thing(), number)


def test_a_fresh_thing_has_no_children() -> None:
    """Without an id there is none to put a child below."""
    with pytest.raises(ValueError, match="outside a stream has no id"):
        child(Thing("x"), 0)


def test_a_join_begins_with_what_all_have_in_common() -> None:
    """A joined Thing has the props of the common ancestor, and no member's own."""
    parent = thing(topic="cats")
    members = [left(child(parent, n).plus(score=n), "generate") for n in range(3)]
    done = left(joined(members, "stage.vote#0").redrafted("best"), "vote")
    assert (done.id, done.parents) == ("stage.vote#0", ("0.0", "0.1", "0.2"))
    assert done.props == {"topic": "cats"}
    assert done.drafts == ("text", "best")
    assert done.history[:-1] == parent.history


def test_a_join_of_strangers_begins_with_nothing() -> None:
    """Things with no common ancestor share nothing, and the joined one has its own entry alone."""
    done = left(joined(list(entered("ab")), "s#0").redrafted("ab"), "concat")
    assert (done.props, done.drafts, len(done.history)) == ({}, ("ab",), 1)
    assert done == fold(done.history)


def test_a_join_of_one_begins_as_a_join_of_several() -> None:
    """What a single member added itself is as little in a joined Thing as what one of many did."""
    parent = thing(topic="cats")
    member = left(child(parent, 0).plus(score=1), "generate")
    assert joined([member], "s#0").props == {"topic": "cats"}
    assert joined([parent], "s#0").props == {}


def test_a_join_of_unfinished_members_names_the_items() -> None:
    """Members that were changed in the same stage count as the items that they were."""
    a, b = entered("ab")
    assert joined([a.plus(x=1), b], "s#0").parents == ("0", "1")


def test_a_join_of_nothing_is_refused() -> None:
    """Nothing can be made of no Things."""
    with pytest.raises(ValueError, match="s#0 must be made of at least one Thing"):
        joined([], "s#0")


def test_why_tells_who_set_a_prop() -> None:
    """Each setting of a prop is told, with value, block, stage, model and calls."""
    first = left(thing().plus(score=62), "critique", model="m", calls=["7"])
    second = left(first.plus(score=80), "judge")
    why = second.why("score")
    assert why.values == (62, 80)
    assert [entry.block for entry in why] == ["critique", "judge"]
    assert len(why) == 2
    assert str(why) == (
        "score of 0\n"
        "  62  critique at stage.critique (m), calls 7, as 0\n"
        "  80  judge at stage.judge, as 0"
    )


def test_why_content_tells_who_wrote_the_drafts() -> None:
    """The content has a history like any prop, printed so that a terminal is safe."""
    why = left(thing().redrafted("new\x1b[31m"), "apply").why("content")
    assert why.values == ("text", "new\x1b[31m")
    assert '"new\\u001b[31m"  apply at stage.apply' in str(why)


def test_why_of_an_unknown_prop_names_near_ones() -> None:
    """A prop that was never set is an error with the names there are."""
    with pytest.raises(MissingKey, match=r"0 has no prop 'scroe' \(did you mean 'score'\?\)"):
        thing(score=1).why("scroe")


def test_a_thing_is_frozen() -> None:
    """Neither fields nor props nor the data in them can be changed."""
    one = thing([1], tags=["x"], more={"a": 1})
    written: Any = one
    with pytest.raises(FrozenInstanceError):
        written.content = "other"
    changes: list[Callable[[], Any]] = [
        lambda: written.props.update({"a": 1}),
        lambda: written.props["tags"].append("y"),
        lambda: written.content.pop(),
        lambda: written.props["more"].clear(),
        lambda: written.history[0].added.pop("tags"),
    ]
    for change in changes:
        with pytest.raises(TypeError, match="frozen"):
            change()


def test_what_a_thing_was_made_of_is_not_shared() -> None:
    """A later change of the data that a Thing was made of does not reach it."""
    tags = ["x"]
    one = thing(tags=tags)
    tags.append("y")
    assert one.props["tags"] == ["x"]
    free = copy.deepcopy(one.props["tags"])
    free.append("z")
    assert one.props["tags"] == ["x"]


def test_a_constructor_takes_a_history_that_tells_the_same() -> None:
    """Content and props that are not what a history tells are refused, a removed prop as well."""
    one = left(thing(a=1).plus(b=2), "w")
    assert Thing(one.content, one.props, one.history) == one
    for content, props in (("other", one.props), (one.content, {"a": 1}), (one.content, {})):
        with pytest.raises(ValueError, match="differ from the history of 0"):
            Thing(content, props, one.history)
    with pytest.raises(ValueError, match="differ from the history of 0"):
        replace(one, props={})


class Colour(enum.StrEnum):
    """A text of a class of its own."""

    RED = "red"


class Code(enum.IntEnum):
    """A number of a class of its own."""

    ONE = 1


def test_texts_and_numbers_of_other_classes_become_plain() -> None:
    """A member of an enumeration is kept as its value, and a tuple as a list."""
    kept = freeze({"colour": Colour.RED, "code": Code.ONE, "pair": (1, 2)})
    assert kept == {"colour": "red", "code": 1, "pair": [1, 2]}
    assert type(kept["colour"]) is str
    assert type(kept["code"]) is int


@pytest.mark.parametrize(
    ("value", "error", "problem"),
    [
        ({"a": [1, {2}]}, TypeError, r"set isn't JSON data at \['a'\]\[1\]"),
        (object(), TypeError, "object isn't JSON data"),
        ({1: "x"}, TypeError, "the key 1 isn't text"),
        ([math.nan], ValueError, r"nan isn't a JSON number at \[0\]"),
        (math.inf, ValueError, "inf isn't a JSON number"),
    ],
)
def test_what_json_does_not_hold_is_refused(
    value: Any, error: type[Exception], problem: str
) -> None:
    """Content and props that are no JSON data are an error that says where in them."""
    with pytest.raises(error, match=problem):
        thing().redrafted(value)
    with pytest.raises(error, match=f"props: .*{problem.partition(' at ')[0]}"):
        thing().plus(prop=value)


def test_deep_data_is_refused() -> None:
    """Data that holds itself, or is nested too deep, is refused and no recursion error."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match=f"more than {MAX_DEPTH} deep"):
        Thing(endless)


@pytest.mark.parametrize("name", ["", "  ", "content", "id", "history"])
def test_names_that_no_prop_can_have(name: str) -> None:
    """Blank names, and those of a Thing's own fields, are refused."""
    with pytest.raises(ValueError, match=r"name .* prop"):
        thing().plus({name: 1})


def test_a_changed_thing_is_not_written() -> None:
    """What has not left its stage has no JSON form, since its history is not whole."""
    with pytest.raises(ValueError, match="0 has unrecorded changes"):
        thing().plus(a=1).to_plain()


def test_a_fresh_thing_is_written() -> None:
    """A Thing that is in no stream yet can be kept as JSON."""
    fresh = Thing("x", {"a": 1})
    assert Thing.from_plain(fresh.to_plain()) == fresh


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"content": "forged"}, "differ from the history of 0"),
        ({"props": {}}, "differ from the history of 0"),
        ({"id": "7"}, "the id '7' differs"),
        ({"history": [{"id": "0"}]}, "block is missing; stage_id is missing"),
        ({"history": [3]}, "an entry must be a mapping"),
    ],
)
def test_json_that_is_no_thing_is_refused(change: dict[str, Any], problem: str) -> None:
    """What was changed outside is noticed when it is read."""
    data = thing(a=1).to_plain() | change
    with pytest.raises(ValueError, match=problem):
        Thing.from_plain(data)


@pytest.mark.parametrize("data", [None, [], {}, {"content": 1}])
def test_other_json_is_refused(data: Any) -> None:
    """Something else than a Thing is said to be none."""
    with pytest.raises(ValueError, match="a Thing must be a mapping with"):
        Thing.from_plain(data)


def test_entries_with_other_fields_are_refused() -> None:
    """An unknown field, and parents that are no texts, are named together."""
    plain = thing().history[0].to_plain() | {"paernts": [], "calls": [1]}
    with pytest.raises(
        ValueError, match="'paernts' isn't a field; calls must be a list of strings"
    ):
        Entry.from_plain(plain)


def test_a_candidate_becomes_a_thing() -> None:
    """Content and facts of a candidate are kept, and its status says what it is."""
    made = Thing.from_candidate(Candidate("a poem", facts={"persona": "poet"}))
    assert (made.content, made.props) == ("a poem", {"status": "candidate", "persona": "poet"})


def test_a_scored_candidate_becomes_a_thing() -> None:
    """Score and reason are props beside the candidate's facts; a blank reason is left out."""
    found = Candidate("a poem")
    assert Thing.from_scored(ScoredCandidate(found, 71.5, reason="it scans")).props == {
        "status": "candidate",
        "score": 71.5,
        "reason": "it scans",
    }
    assert "reason" not in Thing.from_scored(ScoredCandidate(found, 1)).props


def test_things_can_be_members_of_sets() -> None:
    """Equal Things have one hash, so they are found in sets and mappings."""
    assert {thing(a=[1])} == {thing(a=[1])}
