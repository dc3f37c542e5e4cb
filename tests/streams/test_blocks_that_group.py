"""accumulate, group_by, tee, merge, route, dedupe, checkpoint: marks, groups and branches."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.streams.blocks import each
from tests.streams.laws import UNHURRIED

from mergepoint.core.errors import BlockError
from mergepoint.streams.block_context import NotesInMemory
from mergepoint.streams.registry import REGISTRY
from mergepoint.streams.thing import Thing
from mergepoint.testing.fakes import Source, run_block

EMPTY: list[tuple[str, Any]] = [
    ("accumulate", {"count": 2}),
    ("accumulate", {}),
    ("accumulate", {"seconds": 1}),
    ("annotate", {"fields": {"a": "text"}}),
    ("apply", {}),
    ("chain", {}),
    ("checkpoint", {"name": "here"}),
    ("compare", {}),
    ("compare", {"way": "pairs"}),
    ("compare", {"way": "reference"}),
    ("critique", {}),
    ("decompose", {}),
    ("dedupe", {}),
    ("filter", {"where": {"a": 1}}),
    ("generate", {}),
    ("generate", {"n": 3}),
    ("group_by", {"by": "a"}),
    ("group_by", {"lineage": "root"}),
    ("merge", {}),
    ("pipeline", {"tree": "prompt: Say it."}),
    ("reduce", {"stages": [{"type": "set", "params": {"content": "{{ content }}"}}]}),
    ("replan", {}),
    ("retrieve", {"documents": ["a"]}),
    ("route", {"cases": [{"where": {"a": 1}, "to": "b"}]}),
    ("search", {"strategy": "beam", "next": [{"type": "critique"}]}),
    ("select", {"top_k": 1}),
    ("select", {"threshold": 1}),
    ("set", {"content": "a"}),
    ("share", {}),
    ("synthesize", {"strategy": "top_k"}),
    ("synthesize", {"strategy": "majority"}),
    ("synthesize", {"strategy": "concat"}),
    ("synthesize", {"strategy": "combine"}),
    ("synthesize", {"strategy": "choose"}),
    ("tee", {"branches": ["a"]}),
    ("tool", {"tool": "mergepoint.streams.blocks.retrieve:checked_sums"}),
    ("verify", {}),
    ("vote", {}),
    ("vote", {"stop": {"lead": 1}}),
]


@pytest.mark.parametrize(("name", "params"), EMPTY)
def test_nothing_comes_out_of_nothing(name: str, params: Any) -> None:
    """An empty stream stays empty, in every block."""
    assert run_block(name, [], params) == []


def test_every_block_is_given_nothing() -> None:
    """The list of the test above holds every block that comes along."""
    along = {kind.name for kind in REGISTRY.all() if kind.origin.startswith("mergepoint.")}
    assert {name for name, _ in EMPTY} == along


@pytest.mark.parametrize(
    ("name", "params", "pulled"),
    [
        ("accumulate", {"count": 2}, 2),
        ("checkpoint", {"name": "here"}, 2),
        ("dedupe", {}, 2),
        ("filter", {"where": {"score": {"at_least": 0}}}, 2),
        ("filter", {"where": {"score": {"at_least": 5}}}, 7),
        ("retrieve", {"documents": ["a"]}, 2),
        ("route", {"cases": [{"where": {"a": 1}, "to": "b"}]}, 2),
        ("select", {"threshold": 0}, 2),
        ("select", {"take": 2}, 2),
        ("tee", {"branches": ["a"]}, 2),
        ("tee", {"branches": ["a", "b"]}, 1),
        ("group_by", {"lineage": "root"}, 3),
        ("group_by", {"lineage": "root", "size": 1}, 2),
    ],
)
def test_two_wanted_of_ten_pull_what_they_need(name: str, params: Any, pulled: int) -> None:
    """A block that need not wait pulls no more items than what was wanted is made of."""
    source = Source([Thing(str(number), {"score": number}) for number in range(10)])
    assert len(run_block(name, source, params, wanted=2)) == 2
    assert (source.pulled, source.closed) == (pulled, True)


def props_of(things: list[Thing], *names: str) -> list[Any]:
    """Return some props of each Thing."""
    return [tuple(thing.props.get(name) for name in names) for thing in things]


def test_accumulate_marks_its_groups() -> None:
    """Members leave with the id of their group, its size and its last member, in order."""
    things = run_block("accumulate", "abc", {"count": 2}, stage_id="r.gather")
    assert [thing.id for thing in things] == ["0", "1", "2"]
    assert props_of(things, "group", "group_size", "group_last") == [
        ("r.gather#0", 2, "1"),
        ("r.gather#0", 2, "1"),
        ("r.gather#1", 1, "2"),
    ]


def test_accumulate_without_rules_is_a_barrier() -> None:
    """Taking all together waits for all, and recipes are told so."""
    kind = REGISTRY.find("accumulate")
    assert kind.barrier(kind.given({}))
    assert not kind.barrier(kind.given({"count": 2}))
    source = Source(range(4))
    run_block("accumulate", source, {}, wanted=1)
    assert source.pulled == 4


def test_groups_reach_the_blocks_after() -> None:
    """What was accumulated is voted on group by group, without a look at the next group."""
    things = run_block("accumulate", ["a", "a", "b", "c", "c", "b"], {"count": 3})
    source = Source(things)
    winners = run_block("vote", source, wanted=1)
    assert ([one.content for one in winners], source.pulled) == (["a"], 3)
    assert [one.content for one in run_block("vote", things)] == ["a", "c"]


def test_children_of_a_group_are_in_it() -> None:
    """A stage that makes several of each member leaves the group whole."""
    things = run_block("accumulate", "ab", {"count": 2})
    more = run_block(each(lambda one, ctx: [ctx.child(one, n) for n in range(3)]), things)
    (joined,) = run_block("synthesize", more, {"strategy": "concat", "separator": ""})
    assert joined.content == "aaabbb"


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("children", [1, 2])
def test_what_a_group_became_is_in_the_group_around(count: int, children: int) -> None:
    """However large groups are, what they became is in the group around, and in none at last."""
    outer = run_block("accumulate", [Thing(text, {"x": 1}) for text in "abc"], stage_id="outer")
    things = run_block("accumulate", outer, {"count": count}, stage_id="inner")
    split = each(lambda one, ctx: [ctx.child(one, n) for n in range(children)])
    made = run_block("synthesize", run_block(split, things), {"strategy": "concat"}, stage_id="s")
    assert len(made) == -(-3 // count)
    assert {one.props["group"] for one in made} == {"outer#0"}
    (last,) = run_block("synthesize", made, {"strategy": "concat"})
    assert last.props.get("group") is None


def test_group_by_a_prop() -> None:
    """Things with one value come out together, groups in the order of their first ones."""
    items = [
        Thing(content, {"topic": topic})
        for content, topic in zip("abcd", [1, "1", 1, None], strict=True)
    ]
    things = run_block("group_by", items, {"by": "topic"})
    assert [thing.content for thing in things] == ["a", "c", "b", "d"]
    assert props_of(things, "group", "group_size", "group_last", "group_key") == [
        ("stage#0", 2, "2", 1),
        ("stage#0", 2, "2", 1),
        ("stage#1", 1, "1", "1"),
        ("stage#2", 1, "3", None),
    ]


def test_group_by_content() -> None:
    """The content can be what the members have in common."""
    things = run_block("group_by", [[1], [2], [1]], {"by": "content"})
    assert [thing.id for thing in things] == ["0", "2", "1"]


def test_group_by_a_prop_that_is_missing() -> None:
    """A Thing without the prop is an error; those that failed before they had it are a group."""
    with pytest.raises(
        BlockError, match=r"item 0: the Thing has no prop 'topc' \(did you mean 'topic'"
    ):
        run_block("group_by", [Thing("a", {"topic": 1})], {"by": "topc"})
    items = [Thing("a", {"topic": 1}), Thing("b", {"status": "failed"})]
    assert props_of(run_block("group_by", items, {"by": "topic"}), "group_key") == [(1,), (None,)]


def family(children: int = 2, grandchildren: int = 2) -> list[Thing]:
    """Return the grandchildren of two Things."""
    split = each(lambda one, ctx: [ctx.child(one, n) for n in range(children)])
    again = each(lambda one, ctx: [ctx.child(one, n) for n in range(grandchildren)])
    return run_block(again, run_block(split, "ab"))


@pytest.mark.parametrize(
    ("lineage", "keys"),
    [
        ("parent", ["0.0", "0.1", "1.0", "1.1"]),
        (1, ["0.0", "0.1", "1.0", "1.1"]),
        (2, ["0", "1"]),
        ("root", ["0", "1"]),
    ],
)
def test_group_by_lineage(lineage: Any, keys: list[str]) -> None:
    """Things that were made from one Thing are a group, whose key is that Thing's id."""
    things = run_block("group_by", family(), {"lineage": lineage})
    found = [thing.props["group_key"] for thing in things]
    assert [thing.id for thing in things] == [thing.id for thing in family()]
    assert list(dict.fromkeys(found)) == keys
    assert things[0].props["group_size"] == len(found) // len(keys)


def test_group_by_lineage_with_a_size_does_not_look_ahead() -> None:
    """A group whose size is known comes out with its last member."""
    source = Source(family())
    run_block("group_by", source, {"lineage": "parent", "size": 2}, wanted=2)
    assert source.pulled == 2


def test_group_by_lineage_of_an_unordered_stream_is_an_error() -> None:
    """Members that come after their group was let out are not made a second group."""
    mixed = family()[::2] + family()[1::2]
    with pytest.raises(BlockError, match=r"group 0\.0 continues after it ended"):
        run_block("group_by", mixed, {"lineage": "parent"})
    with pytest.raises(BlockError, match=r"group 0\.0 continues"):
        run_block("group_by", family(grandchildren=3), {"lineage": "parent", "size": 2})


def test_route_takes_the_first_case_that_holds() -> None:
    """Each Thing gets the branch of the first case that fits, or the other one."""
    items = [Thing("x", {"score": score}) for score in (90, 60, 10)]
    cases = [
        {"where": {"score": {"at_least": 80}}, "to": "good"},
        {"where": {"score": {"at_least": 50}}, "to": "fair"},
    ]
    things = run_block("route", items, {"cases": cases})
    assert props_of(things, "branch") == [("good",), ("fair",), ("otherwise",)]
    assert [thing.id for thing in things] == ["0", "1", "2"]
    last = run_block("route", items, {"cases": cases, "otherwise": "bad"})[-1]
    assert last.props["branch"] == "bad"


def test_tee_makes_a_child_for_each_branch() -> None:
    """A Thing goes into every branch as a child with its content and props."""
    things = run_block("tee", [Thing("x", {"a": 1}), "y"], {"branches": ["one", "two"]})
    assert [thing.id for thing in things] == ["0.0", "0.1", "1.0", "1.1"]
    assert props_of(things, "a", "branch", "group", "group_last", "group_key") == [
        (1, "one", "0", "0.1", "0"),
        (1, "two", "0", "0.1", "0"),
        (None, "one", "1", "1.1", "1"),
        (None, "two", "1", "1.1", "1"),
    ]
    assert len(run_block("merge", things, wanted=1)) == 1


def teed(make: Any) -> list[Thing]:
    """Return what branches made of two Things that were in a group before."""
    things = run_block(
        "accumulate", [Thing("x", {"a": 1}), Thing("y", {"a": 1})], {"count": 2}, stage_id="g"
    )
    branches = run_block("tee", things, {"branches": ["one", "two"]}, stage_id="t")
    return run_block(each(make), branches, stage_id="b")


def test_merge_makes_one_of_branches() -> None:
    """A merged Thing has the props that its branches added, and their contents by branch."""
    branches = teed(
        lambda one, ctx: one.redrafted(one.props["branch"]).plus({one.props["branch"]: one.id})
    )
    things = run_block("merge", branches, stage_id="m")
    assert [thing.id for thing in things] == ["m#0", "m#1"]
    assert [thing.parents for thing in things] == [("0.0", "0.1"), ("1.0", "1.1")]
    assert things[0].content == {"one": "one", "two": "two"}
    assert props_of(things, "one", "two", "a", "branch") == [
        ("0.0", "0.1", 1, None),
        ("1.0", "1.1", 1, None),
    ]


def test_merge_gives_back_the_group_of_before() -> None:
    """A group inside of a group is gone after the merge, and the one around it is there again."""
    things = run_block("merge", teed(lambda one, ctx: one), stage_id="m")
    assert props_of(things, "group", "group_size") == [("g#0", 2), ("g#0", 2)]
    assert len(run_block("synthesize", things, {"strategy": "concat"})) == 1


def test_merge_takes_the_content_of_a_branch() -> None:
    """The content of the named branch is the merged one's; several of a branch are a list."""
    branches = teed(lambda one, ctx: one.redrafted(one.props["branch"]))
    assert run_block("merge", branches, {"content": "two"})[0].content == "two"
    several = teed(lambda one, ctx: [ctx.child(one, n) for n in range(2)])
    assert run_block("merge", several, {"content": "two"})[0].content == ["x", "x"]


def test_merge_without_the_wanted_branch_has_failed() -> None:
    """Where nothing came out of the branch, the merged Thing says so and the stream goes on."""
    branches = teed(lambda one, ctx: [] if one.id == "0.1" else one)
    things = run_block("merge", branches, {"content": "two"})
    assert props_of(things, "status", "reason") == [
        ("failed", "the branch 'two' has no result"),
        (None, None),
    ]


@pytest.mark.parametrize(("conflicts", "kept"), [("first", "0.0"), ("last", "0.1")])
def test_merge_decides_between_values(conflicts: str, kept: str) -> None:
    """A prop that branches set to different values is the first's, the last's, or an error."""
    branches = teed(lambda one, ctx: one.plus(score=one.id))
    things = run_block("merge", branches, {"conflicts": conflicts})
    assert things[0].props["score"] == kept
    with pytest.raises(
        BlockError, match=r'item 0\.1: branches set score to both "0\.0" and "0\.1"'
    ):
        run_block("merge", branches)


def test_merge_knows_what_a_branch_left_alone() -> None:
    """A prop that one branch changed and another did not is no conflict, and told of once."""
    branches = teed(lambda one, ctx: one.plus(a=2) if one.props["branch"] == "one" else one)
    (first, _) = run_block("merge", branches)
    assert first.why("a").values == (1, 2)
    (same, _) = run_block("merge", teed(lambda one, ctx: one))
    assert same.why("a").values == (1,)


def test_merge_wants_branches() -> None:
    """Things that no tee made cannot be merged."""
    with pytest.raises(BlockError, match="item 0: the Thing has no prop 'branch'"):
        run_block("merge", "ab")


def test_dedupe_lets_the_first_pass() -> None:
    """Of texts that differ in case, spaces and marks at the ends the first one passes."""
    things = run_block("dedupe", ["Paris", " paris. ", "Rome", "PARIS!", "rome", "!", "?"])
    assert [thing.id for thing in things] == ["0", "2", "5", "6"]


def test_dedupe_can_be_exact() -> None:
    """With `exact` every difference counts, and by a prop the content does not."""
    assert len(run_block("dedupe", ["a", "A", "a"], {"exact": True})) == 2
    items = [Thing(number, {"key": [1, {"x": number // 2}]}) for number in range(4)]
    assert [one.id for one in run_block("dedupe", items, {"by": "key"})] == ["0", "2"]


def test_dedupe_works_group_by_group() -> None:
    """What was in another group may come again, unless all count as one."""
    things = run_block("accumulate", "aaaa", {"count": 2})
    assert [one.id for one in run_block("dedupe", things)] == ["0", "2"]
    assert [one.id for one in run_block("dedupe", things, {"per": "all"})] == ["0"]
    with pytest.raises(BlockError, match="continues after it ended"):
        run_block("dedupe", [things[0], things[2], things[1]])


def test_dedupe_lets_failed_ones_pass() -> None:
    """A Thing that failed has no answer that could be a second one."""
    items = [Thing("a"), Thing("a", {"status": "failed"}), Thing("a")]
    assert [one.id for one in run_block("dedupe", items)] == ["0", "1"]
    assert len(run_block("dedupe", [Thing("a", {"status": "failed"})], {"by": "answer"})) == 1


def test_dedupe_takes_any_text() -> None:
    """Half of a surrogate pair, which no file could hold, is compared like any text."""
    assert len(run_block("dedupe", ["\ud800", "\ud800", "x"])) == 2


def test_checkpoint_writes_things_down() -> None:
    """Each Thing is noted with its history under name and id, and carries the name on."""
    notes = NotesInMemory()
    items = [Thing("a", {"x": 1}), "b"]
    things = run_block("checkpoint", items, {"name": "half way"}, notes=notes, stage_id="r.cp")
    assert props_of(things, "checkpoint") == [("half way",), ("half way",)]
    kept = notes.kept["r.cp", "half way/0/1"]
    assert Thing.from_plain(kept).history == things[0].history[:1]
    assert (
        run_block("checkpoint", items, {"name": "half way"}, notes=notes, stage_id="r.cp") == things
    )


def test_checkpoints_are_remembered() -> None:
    """The prop names the last point, the history all of them."""
    things = run_block("checkpoint", "a", {"name": "one"})
    (thing,) = run_block("checkpoint", things, {"name": "two"}, stage_id="later")
    assert thing.why("checkpoint").values == ("one", "two")
    kind = REGISTRY.find("checkpoint")
    assert kind.barrier(kind.given({"name": "x"}))


@UNHURRIED
@given(st.lists(st.sampled_from("abAB "), max_size=12), st.integers(1, 4), st.integers(0, 9))
def test_groups_hold_the_stream(contents: list[str], count: int, seed: int) -> None:
    """Grouped by any rule a stream has the same Things, and their groups are as large as told."""
    rng = random.Random(seed)  # noqa: S311  (no secrets)
    items = [Thing(content, {"topic": rng.choice("xy")}) for content in contents]
    for name, params in (
        ("accumulate", {"count": count}),
        ("group_by", {"by": "topic"}),
        ("group_by", {"by": "content"}),
        ("group_by", {"lineage": "root"}),
    ):
        things = run_block(name, items, params)
        assert sorted(int(one.id) for one in things) == list(range(len(items)))
        sizes: dict[str, int] = {}
        for one in things:
            sizes[one.props["group"]] = sizes.get(one.props["group"], 0) + 1
        assert all(one.props["group_size"] == sizes[one.props["group"]] for one in things)


def test_dedupe_begins_with_any_group() -> None:
    """A stream whose first Things are a group may go on with Things of none."""
    things = run_block("dedupe", [Thing("a", {"group": "g"}), "b", "b"])
    assert [thing.content for thing in things] == ["a", "b"]
