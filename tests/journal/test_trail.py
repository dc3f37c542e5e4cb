"""Trails: a request has the digest of all its messages, and costs what is new in it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from sys import intern

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from mergepoint.journal.fingerprint import Digests, IncrementalDigest

SETTINGS = (b"one", b"two")
POOL: tuple[BaseMessage, ...] = (
    *(HumanMessage(str(number)) for number in range(3)),
    *(AIMessage(str(number)) for number in range(3)),
    SystemMessage("0"),
    HumanMessage("0"),  # says the same as the first, and is another object
)
MESSAGES = st.lists(st.sampled_from(POOL), max_size=8)


def plainly(setting: bytes, messages: Sequence[BaseMessage]) -> str:
    """Return a request's digest as it was first written: one pass over all messages."""
    whole = hashlib.blake2b(setting, digest_size=16)
    for message in messages:
        whole.update(Digests().of(message))
    return whole.hexdigest()


@given(
    asked=st.lists(
        st.tuples(st.sampled_from(SETTINGS), MESSAGES, st.integers(0, 2)), min_size=1, max_size=8
    )
)
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
def test_what_was_asked_before_changes_no_digest(
    asked: list[tuple[bytes, list[BaseMessage], int]],
) -> None:
    """Whatever conversations came before, a request's digest is that of one pass over its own."""
    digests = Digests()
    for setting, messages, lead in asked:
        found = digests.request(setting, messages, lead=lead)
        assert found == plainly(setting, messages)


def taken(trail: IncrementalDigest, messages: Sequence[str]) -> list[str]:
    """Return what a trail has to hash for a conversation, and check what it comes to."""
    hashed: list[str] = []

    def digest(message: str) -> bytes:
        hashed.append(message)
        return message.encode()

    whole = trail.follow(messages, digest)
    assert whole.digest() == hashlib.blake2b("".join(messages).encode()).digest()
    return hashed


def objects(names: str) -> list[str]:
    """Return the names in a text, each of them the same object wherever it stands."""
    return [intern(name) for name in names.split()]


def test_a_row_of_steps_hashes_each_message_once() -> None:
    """A conversation that grows costs what is new in it, at any length."""
    names = [f"m{number}" for number in range(2_000)]
    trail = IncrementalDigest(hashlib.blake2b())
    counted = Counter(
        message for end in range(0, 2_001, 2) for message in taken(trail, names[:end])
    )
    assert counted == Counter(names)


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        (["a b", "a b c d"], "a b c d", ""),
        (["a b", "a b c d"], "a b e", "e"),  # a block was left, and kept its last response
        (["a b", "a b c d"], "a b", ""),
        (["a b", "a b c d"], "a b c e", "c e"),  # none ended after c
        (["a b", "a b c d"], "x b", "x b"),
        (["a b", "a b c d"], "", ""),
        ([], "a", "a"),
    ],
)
def test_a_conversation_goes_on_from_the_last_end_that_it_shares(
    before: list[str], now: str, new: str
) -> None:
    """What an earlier request ended with is known, also behind the exit of a block."""
    trail = IncrementalDigest(hashlib.blake2b())
    for earlier in before:
        taken(trail, objects(earlier))
    assert taken(trail, objects(now)) == new.split()


def test_equal_messages_are_not_taken_for_one() -> None:
    """A message that a host has put in the place of another is hashed, however alike they are."""
    one, other = "".join(["a", "b"]), "".join(["a", "b"])
    assert one is not other
    trail = IncrementalDigest(hashlib.blake2b())
    taken(trail, [one])
    assert taken(trail, [other]) == [other]
