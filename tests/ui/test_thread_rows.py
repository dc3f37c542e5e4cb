"""Rows beside a session: what they come to does not depend on the order in which calls came."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mergepoint.apps.chainlit.shown_step import parse_timestamp, shown_id
from mergepoint.apps.chainlit.threads import ThreadRows, deleted_row, step_row, whole_row

OWN = "22222222-2222-4222-8222-222222222222"
WORDS = st.sampled_from(["", "a", "b", "c"])


def step(key: str = OWN, **fields: Any) -> dict[str, Any]:
    """Return a step as Chainlit hands it over."""
    return {"id": key, "type": "assistant_message", "output": "", "metadata": {}, **fields}


def kept(*rows: Any) -> ThreadRows:
    """Return what rows come to, less those that are none."""
    return ThreadRows.of(row for row in rows if row is not None)


@given(st.lists(WORDS, min_size=1, max_size=4), st.lists(WORDS, max_size=3), st.data())
def test_creates_never_win_over_updates(
    updates: list[str], creates: list[str], data: st.DataObject
) -> None:
    """Wherever the creates come among the updates, the last update with a text stands."""
    rows: list[Any] = [step_row(step(output=text), fills=False) for text in updates]
    for text in creates:
        at = data.draw(st.integers(0, len(rows)))
        rows.insert(at, step_row(step(output=text), fills=True))
    alone = kept(*[row for row in rows if not row.get("fills")]).steps[OWN]["output"]
    found = kept(*rows).steps[OWN]["output"]
    assert found == alone or alone == ""


@given(st.permutations(range(4)))
def test_a_deleted_step_stays_gone(order: list[int]) -> None:
    """A create or update that comes after the delete does not bring a step back."""
    rows = [
        step_row(step(output="a"), fills=True),
        step_row(step(output="b"), fills=False),
        deleted_row("step", OWN),
        step_row(step(output="c"), fills=True),
    ]
    assert kept(*[rows[at] for at in order]).steps == {}


def test_what_the_session_holds_has_no_row() -> None:
    """Messages of the user and what is worked out are not stored, but for what is marked."""
    assert step_row(step(type="user_message", output="Hi."), fills=True) is None
    assert step_row(step(shown_id("s.1/x/1"), output="Hello."), fills=False) is None
    marked = step_row(step(shown_id("s.1/x/1"), metadata={"favorite": True}), fills=False)
    assert marked is not None
    assert marked["data"] == {"metadata": {"favorite": True}}


def test_the_step_around_a_turn_repeats_no_message() -> None:
    """Of a run its id and its place are kept, and neither input nor output."""
    row = step_row(step(type="run", name="on_message", parentId="m", input="Hi."), fills=True)
    assert row is not None
    assert row["data"] == {"id": OWN, "type": "run", "name": "on_message", "parentId": "m"}
    assert kept(row).runs == {"m": OWN}
    assert kept(row).own_steps() == []


def test_what_a_session_refused_is_kept_whole() -> None:
    """A message that was not taken is the page's own, with its text."""
    found = kept(whole_row(step(type="user_message", output="Hi."))).own_steps()
    assert [one["output"] for one in found] == ["Hi."]


def test_times_that_are_none_come_first() -> None:
    """Something without a time is in the order too."""
    assert (
        parse_timestamp(None)
        < parse_timestamp("2026-01-31T09:30:00Z")
        < parse_timestamp("2026-01-31T09:30:01")
    )
