"""vote, select and synthesize: who wins, what a tie means, when it is enough."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.streams.laws import UNHURRIED

from mergepoint.core.errors import BlockError
from mergepoint.streams.blocks.vote import beta_above_half
from mergepoint.streams.stage_run import entered
from mergepoint.streams.thing import Thing, fold
from mergepoint.testing.fakes import Source, run_block


def test_the_most_frequent_answer_wins() -> None:
    """The winner has the content of the first that gave the answer, and all voters as parents."""
    (winner,) = run_block("vote", ["Rome", " paris ", "Paris.", "PARIS"], stage_id="r.vote")
    assert (winner.id, winner.content) == ("r.vote#0", " paris ")
    assert winner.parents == ("0", "1", "2", "3")
    assert winner.props == {
        "votes": {"Rome": 1, " paris ": 3},
        "agreement": 0.75,
        "lead": 2,
        "tie": False,
    }
    assert winner == fold(winner.history)


def test_a_vote_by_a_prop() -> None:
    """Answers are read from a prop, and the winning content is the whole of the first voter."""
    items = [Thing(f"because {n}", {"answer": answer}) for n, answer in enumerate([7, 8, 8])]
    (winner,) = run_block("vote", items, {"by": "answer"})
    assert (winner.content, winner.props["votes"]) == ("because 1", {"7": 1, "8": 2})


def test_exact_votes_differ_in_case() -> None:
    """With `exact` each spelling is an answer of its own."""
    assert run_block("vote", ["a", "B", "b"])[0].content == "B"
    assert run_block("vote", ["a", "B", "b"], {"exact": True})[0].props["tie"]


def test_votes_have_weights() -> None:
    """With a weight each vote counts as much as its prop says; a weight below zero is refused."""
    items = [Thing("a", {"score": 1.5}), Thing("b", {"score": 1}), Thing("b", {"score": 0.25})]
    (winner,) = run_block("vote", items, {"weight": "score"})
    assert (winner.content, winner.props["votes"]) == ("a", {"a": 1.5, "b": 1.25})
    with pytest.raises(
        BlockError, match="item 0: score is -1; the weight of a vote must be at least 0"
    ):
        run_block("vote", [Thing("a", {"score": -1})], {"weight": "score"})
    assert (
        run_block("vote", [Thing("a", {"score": 0})], {"weight": "score"})[0].props["agreement"]
        == 0
    )


TIED = [
    Thing("b", {"score": 1}),
    Thing("a", {"score": 3}),
    Thing("a", {"score": 0}),
    Thing("b", {"score": 2}),
]


def test_a_tie_is_won_by_the_first() -> None:
    """Unless it is said otherwise the answer that was given first wins, however they came."""
    assert run_block("vote", TIED)[0].content == "b"
    shuffled = random.Random(3).sample(list(entered(TIED)), 4)  # noqa: S311  (no secrets)
    assert run_block("vote", shuffled)[0].content == "b"


def test_a_tie_is_won_by_the_best() -> None:
    """With `best` the answer with the best single vote wins."""
    (winner,) = run_block("vote", TIED, {"ties": "best", "best_by": "score"})
    assert (winner.content, winner.props["tie"], winner.props["lead"]) == ("a", True, 0)


def test_a_tie_is_drawn_by_lot() -> None:
    """With `random` every tied answer wins under some seed, the same one under the same seed."""
    params = {"ties": "random"}
    found = [run_block("vote", TIED, params, seed=seed)[0].content for seed in range(20)]
    assert set(found) == {"a", "b"}
    assert [run_block("vote", TIED, params, seed=seed)[0].content for seed in range(20)] == found


def test_a_tie_can_be_undecided() -> None:
    """With `undecided` nobody wins: the content is what all began with, and the status stuck."""
    (thing,) = run_block("vote", TIED, {"ties": "undecided"})
    assert (thing.content, thing.props["status"]) == (None, "stuck")
    assert thing.props["reason"] == "several answers have equally many votes"
    assert run_block("vote", ["a"], {"ties": "undecided"})[0].content == "a"


def test_failed_things_do_not_vote() -> None:
    """A Thing that failed has no vote; where all failed, the result has failed."""
    bad = Thing("x", {"status": "failed"})
    (winner,) = run_block("vote", [bad, bad, "y"])
    assert (winner.content, winner.props["votes"]) == ("y", {"y": 1})
    assert winner.parents == ("0", "1", "2")
    (lost,) = run_block("vote", [bad, bad])
    assert lost.props["status"] == "failed"
    assert lost.props["reason"] == "all 2 members of the group failed"


def test_a_vote_without_the_prop_is_an_error() -> None:
    """A voter that lacks the prop is named, with the names that it has."""
    with pytest.raises(
        BlockError, match=r"stage \(vote\), item 0: the Thing has no prop 'answr' .*'answer'"
    ):
        run_block("vote", [Thing("a", {"answer": 1})], {"by": "answr"})


def votes_needed(answers: list[Any], stop: dict[str, Any]) -> int:
    """Return how many items a vote pulled."""
    source = Source(answers)
    run_block("vote", source, {"stop": stop})
    return source.pulled


@pytest.mark.parametrize(
    ("answers", "stop", "needed"),
    [
        ("aaaaaaaa", {"confidence": 0.95}, 4),
        ("baaaaaaaaa", {"confidence": 0.95}, 7),
        ("bbaaaaaaaaaa", {"confidence": 0.95}, 10),
        ("bbbaaaaaaaaaa", {"confidence": 0.95}, 12),
        ("abababab" + "a" * 9, {"confidence": 0.95}, 15),
        ("ababababab" + "a" * 9, {"confidence": 0.95}, 17),
        ("abaaab", {"lead": 3}, 5),
        ("ababab", {"lead": 3}, 6),
        ("aabbbcc", {"window": 2}, 2),
        ("abbaa", {"window": 2}, 5),
        ("abaa", {"window": 2}, 4),
        ("abaaab", {"window": 3}, 6),
        ("aaaaa", {"voters": 5}, 3),
        ("aabaa", {"voters": 5}, 4),
        ("abab", {"voters": 4}, 4),
    ],
)
def test_a_vote_ends_when_it_is_enough(answers: str, stop: dict[str, Any], needed: int) -> None:
    """No more is pulled after the rule is fulfilled, as the published rules say."""
    assert votes_needed(list(answers), stop) == needed


def test_failed_samples_do_not_end_a_vote() -> None:
    """A failed sample counts neither for a lead nor for a window, but it is one of the voters."""
    bad = Thing("x", {"status": "failed"})
    assert votes_needed(["a", bad, "a", "a"], {"window": 2}) == 3
    assert votes_needed([bad, bad, "a", "b", "b"], {"lead": 1}) == 3
    assert votes_needed(["a", "a", bad, "b"], {"voters": 4}) == 3


def test_a_stop_counts_each_group_by_itself() -> None:
    """The rule begins anew in each group, and what is left of a decided group is passed over."""
    things = run_block("accumulate", "aaabbb", {"count": 3})
    source = Source(things)
    winners = run_block("vote", source, {"stop": {"lead": 2}})
    assert [(one.content, one.parents) for one in winners] == [("a", ("0", "1")), ("b", ("3", "4"))]
    assert source.pulled == 6


@pytest.mark.parametrize(("first", "second"), [(4, 0), (6, 1), (8, 2), (9, 3), (11, 4), (12, 5)])
def test_the_confidence_is_that_of_adaptive_consistency(first: int, second: int) -> None:
    """The mass above one half passes 0.95 at the published counts, and not a vote before."""
    assert beta_above_half(first, second) >= 0.95 > beta_above_half(first - 1, second)
    assert beta_above_half(first, second) + beta_above_half(second, first) == pytest.approx(1)


def scored(*scores: float | None) -> list[Thing]:
    """Give Things with scores; None is one that failed."""
    return [
        Thing(number, {"status": "failed"} if score is None else {"score": score})
        for number, score in enumerate(scores)
    ]


def selected(items: list[Thing], **params: Any) -> list[tuple[Any, Any]]:
    """Return content and rank of what was selected."""
    return [(one.content, one.props.get("rank")) for one in run_block("select", items, params)]


def test_the_best_are_selected() -> None:
    """The k best come out best first with their rank, equal ones in the order of lineage."""
    items = scored(5, 9, None, 9, 1)
    assert selected(items, top_k=3) == [(1, 1), (3, 2), (0, 3)]
    assert selected(items, top_k=1, lowest=True) == [(4, 1)]
    assert selected(items, top_k=9) == [(1, 1), (3, 2), (0, 3), (4, 4)]
    shuffled = random.Random(1).sample(list(entered(items)), 5)  # noqa: S311  (no secrets)
    assert selected(shuffled, top_k=3) == [(1, 1), (3, 2), (0, 3)]


def test_those_that_are_good_enough_are_selected() -> None:
    """A threshold lets pass what reaches it, as it came and without waiting."""
    assert selected(scored(5, 9, None, 7), threshold=7) == [(1, None), (3, None)]
    assert selected(scored(5, 9, None, 7), threshold=7, lowest=True) == [(0, None), (3, None)]
    assert selected(scored(5, 9, 8, 7), threshold=7, top_k=2) == [(1, 1), (2, 2)]
    assert selected(scored(1, 2), threshold=7, top_k=2) == []


def test_the_stream_ends_after_so_many() -> None:
    """With a threshold and `take` the first that is good enough ends the stream."""
    source = Source(scored(5, 9, 8, 7))
    assert len(run_block("select", source, {"threshold": 7, "take": 1})) == 1
    assert (source.pulled, source.closed) == (2, True)
    assert selected(scored(5, 9, None), take=2) == [(0, None), (1, None)]


def test_selection_is_per_group() -> None:
    """The best of each group come out, or the best of all."""
    things = run_block("accumulate", scored(1, 2, 3, 4), {"count": 2})
    assert selected(things, top_k=1) == [(1, 1), (3, 1)]
    assert selected(things, top_k=1, per="all") == [(3, 1)]
    assert selected(things, top_k=1, take=1) == [(1, 1)]


@pytest.mark.parametrize("params", [{"top_k": 1}, {"threshold": 1}])
def test_a_selection_needs_a_number(params: dict[str, Any]) -> None:
    """A Thing without the number, or with something else, is an error that names it."""
    with pytest.raises(BlockError, match="item 1: the Thing has no prop 'score'"):
        run_block("select", [Thing("a", {"score": 1}), Thing("b")], params)
    with pytest.raises(BlockError, match='item 0: score must be a number, not "high"'):
        run_block("select", [Thing("a", {"score": "high"})], params)
    with pytest.raises(BlockError, match="item 0: score must be a number, not true"):
        run_block("select", [Thing("a", {"score": True})], params)


def test_the_best_is_synthesized() -> None:
    """`top_k` takes the best content, or the list of the best, and says whose it is."""
    (best,) = run_block("synthesize", scored(5, 9, None, 7), {"strategy": "top_k"})
    assert (best.content, best.parents) == (1, ("0", "1", "2", "3"))
    assert best.props == {"strategy": "top_k", "winner": "1", "score": 9}
    (two,) = run_block("synthesize", scored(5, 9, 7), {"strategy": "top_k", "k": 2, "lowest": True})
    assert (two.content, two.props["winner"]) == ([0, 2], "0")


def test_the_majority_is_synthesized() -> None:
    """`majority` decides as a vote does, ties included."""
    (made,) = run_block("synthesize", ["a", "b", "B"], {"strategy": "majority"})
    (voted,) = run_block("vote", ["a", "b", "B"])
    assert made.content == voted.content == "b"
    assert made.props == {"strategy": "majority", **voted.props}
    (stuck,) = run_block("synthesize", "ab", {"strategy": "majority", "ties": "undecided"})
    assert stuck.props["status"] == "stuck"


def test_texts_are_put_together() -> None:
    """`concat` writes all contents into one text, what is no text as JSON, in the wanted order."""
    params: dict[str, Any] = {"strategy": "concat", "separator": "|"}
    items = [Thing("b", {"rank": 2}), Thing({"x": [1]}, {"rank": 1}), Thing("", {"rank": 3})]
    assert run_block("synthesize", items, params)[0].content == 'b|{"x":[1]}|'
    ordered = run_block("synthesize", items, params | {"order_by": "rank"})
    assert ordered[0].content == '{"x":[1]}|b|'


@pytest.mark.parametrize("strategy", ["top_k", "majority", "concat"])
def test_a_synthesis_of_failures_has_failed(strategy: str) -> None:
    """Members that failed are left out; where all did, the result has failed and says so."""
    (made,) = run_block("synthesize", scored(None, None), {"strategy": strategy})
    assert made.props["status"] == "failed"
    (made,) = run_block("synthesize", scored(None, 3), {"strategy": strategy})
    assert made.content in (1, "1")


def test_a_synthesis_is_per_group() -> None:
    """One Thing leaves for each group, or one for all."""
    things = run_block("accumulate", "abcd", {"count": 2})
    made = run_block("synthesize", things, {"strategy": "concat", "separator": ""})
    assert [one.content for one in made] == ["ab", "cd"]
    (made_of_all,) = run_block(
        "synthesize", things, {"strategy": "concat", "separator": "", "per": "all"}
    )
    assert made_of_all.content == "abcd"


@UNHURRIED
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_a_vote_is_a_count(answers: list[str], rng: random.Random) -> None:
    """Whatever the order of arrival, the winner is the most frequent and earliest answer."""
    things = list(entered(answers))
    counts = Counter(answers)
    expected = max(counts, key=lambda answer: (counts[answer], -answers.index(answer)))
    (winner,) = run_block("vote", rng.sample(things, len(things)))
    assert winner.content == expected
    assert winner.props["votes"] == counts
    assert winner.props["agreement"] == counts[expected] / len(answers)


@UNHURRIED
@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 4))
def test_a_selection_is_a_sort(scores: list[int], k: int) -> None:
    """The k best are those that a stable sort puts first."""
    expected = sorted(range(len(scores)), key=lambda number: -scores[number])[:k]
    assert [content for content, _ in selected(scored(*scores), top_k=k)] == expected


@UNHURRIED
@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=16))
def test_the_votes_that_are_not_asked_for_change_nothing(answers: list[str]) -> None:
    """A vote that ends when the rest cannot matter has the winner of the whole vote."""
    (whole,) = run_block("vote", answers)
    (early,) = run_block("vote", answers, {"stop": {"voters": len(answers)}})
    assert early.content == whole.content


def test_props_of_all_members_are_collected() -> None:
    """What a text made of several rests on is what they rested on, in order, each once."""
    sources = [{"id": "b"}, {"id": "a", "score": 1.5}, {"id": "c"}]
    again = {"id": "a", "score": 0.5}
    items = [
        Thing("one", {"sources": sources[:2], "mood": "calm"}),
        Thing("two", {"sources": [again, *sources[1:]], "mood": "wild"}),
        Thing("three", {"status": "failed", "sources": [{"id": "z"}]}),
    ]
    params = {"strategy": "concat", "collect": ["sources", "mood"]}
    (made,) = run_block("synthesize", items, params)
    assert list(made.props["sources"]) == sources
    assert list(made.props["mood"]) == ["calm", "wild"]
