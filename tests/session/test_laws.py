"""Laws: a session is the fold of its journal, it only grows, and steps are never context."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergepoint import SessionMemory
from mergepoint.core.merge import MergeMode, State, merge
from mergepoint.session.entries import Role, entry_from_plain, entry_to_plain
from mergepoint.session.history import SessionState, view_of
from mergepoint.session.session_memory import Snapshot
from mergepoint.session.session_store import FileSessions
from mergepoint.session.yaml_import import import_session

Act = Callable[[SessionMemory], object]

SECRET = "(never context)"
texts = st.text(st.characters(exclude_categories=()), max_size=20).map("t{}".format)
ids = st.none() | st.sampled_from(["a", "b", "c"])
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  (a test's own folder)


def said(role: Role) -> st.SearchStrategy[Act]:
    """Return messages of a role, now and then one that was said before."""
    return st.builds(
        lambda text, name: (
            lambda memory: memory.add_response(
                role, name or text, message_id=name and f"{role}-{name}"
            )
        ),
        texts,
        ids,
    )


steps: st.SearchStrategy[Act] = st.builds(
    lambda kind, text, code, name: (
        lambda memory: memory.add_working_step(
            kind,
            SECRET + (name or text),
            exit_code=code,
            intent=SECRET,
            step_id=name and f"{kind}-{name}",
        )
    ),
    st.sampled_from(["plan", "codegen", "execute"]),
    texts,
    st.none() | st.integers(-9, 255),
    ids,
)
facts: st.SearchStrategy[Act] = st.builds(
    lambda found: lambda memory: memory.add_facts(found), st.lists(texts, min_size=1, max_size=3)
)
clears: st.SearchStrategy[Act] = st.just(lambda memory: memory.clear())
acts = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.one_of(said("user"), said("assistant"), said("system"), steps, facts),
    ),
    max_size=25,
)
acts_and_clears = st.lists(
    st.tuples(st.integers(0, 1), st.one_of(said("user"), said("assistant"), steps, facts, clears)),
    max_size=25,
)

ALL = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def held(memory: SessionMemory | SessionState) -> tuple[Any, ...]:
    """Return all that a session holds."""
    past = memory if isinstance(memory, SessionState) else memory.past
    return past.state, past.facts, past.steps, past.turn, past.updated_at


def two(folder: str) -> list[SessionMemory]:
    """Return two views of one new session."""
    return [FileSessions(folder).create("s"), FileSessions(folder).open("s")]


@ALL
@given(acts=acts_and_clears)
def test_a_session_is_the_fold_of_its_journal(acts: list[tuple[int, Act]]) -> None:
    """Whoever writes what, memory is what a replay of the journal gives."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        writers = two(folder)
        for who, act in acts:
            act(writers[who])
            assert held(FileSessions(folder).open("s")) == held(writers[who])
        for one in writers:
            one.refresh()
        assert held(writers[0]) == held(writers[1])


@ALL
@given(acts=acts)
def test_a_conversation_only_grows(acts: list[tuple[int, Act]]) -> None:
    """The old messages, facts and steps are a prefix of the new ones."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        writers = two(folder)
        for who, act in acts:
            memory = writers[who]
            memory.refresh()
            before = memory.get_messages(), memory.get_facts(), memory.get_steps()
            act(memory)
            after = memory.get_messages(), memory.get_facts(), memory.get_steps()
            assert [new[: len(old)] for old, new in zip(before, after, strict=True)] == [*before]


@ALL
@given(acts=acts)
def test_a_session_changes_by_the_merge(acts: list[tuple[int, Act]]) -> None:
    """Each message is what the merge of a turn lets out onto its parent."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        memory, _ = two(folder)
        for _, act in acts:
            before = memory.past.state
            act(memory)
            for message in memory.get_messages()[len(before.messages) :]:
                mode: MergeMode = "last_response" if message.role == "assistant" else "all_messages"
                before = merge(before, mode, State((message,)))
            assert memory.past.state == before


@ALL
@given(acts=acts_and_clears)
def test_doing_it_again_changes_nothing(acts: list[tuple[int, Act]]) -> None:
    """Entries that are taken in twice under their ids are there once."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        memory, other = two(folder)
        for _, act in acts:
            act(memory)
        other.refresh()
        before = memory.export()
        for step in memory.get_steps():
            if not step.message:
                other.add_working_step(step.type, step.content, step_id=step.id)
        for message in memory.get_messages():
            other.add_response(message.role, message.content, message_id=message.id)
        other.add_facts(fact.content for fact in memory.get_facts())
        assert other.export() == FileSessions(folder).open("s").export() == before


@ALL
@given(acts=acts_and_clears, last=st.integers(1, 3), facts=st.integers(0, 3))
def test_steps_are_never_context(acts: list[tuple[int, Act]], last: int, facts: int) -> None:
    """No step stands in what a model is given, and looking changes nothing."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        memory, _ = two(folder)
        for _, act in acts:
            act(memory)
        before = held(memory)
        seen = view_of(memory.past, last=last, facts=facts)
        text = "".join(str(one.content) for one in seen) + memory.get_context_summary()
        assert SECRET not in text
        assert held(memory) == before
        messages = memory.get_messages(last=last)
        added = ("/facts", "/unanswered")
        said = [str(one.id) for one in seen if not str(one.id).endswith(added)]
        assert said == [one.id for one in messages]
        assert messages == memory.get_messages()[len(memory.get_messages()) - len(messages) :]
        assert sum(one.role == "user" for one in messages) <= last


@ALL
@given(acts=acts)
def test_an_export_comes_back(acts: list[tuple[int, Act]]) -> None:
    """A session that is exported and imported holds the same, and exports the same."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        memory, _ = two(folder)
        for _, act in acts:
            act(memory)
        path = Path(folder) / "s.yaml"
        path.write_text(memory.export(), encoding="utf-8")
        again = import_session(path, sessions=Path(folder) / "again")
        assert again.export() == memory.export()
        assert again.past.state == memory.past.state


@ALL
@given(acts=acts_and_clears)
def test_entries_come_back_from_plain_data(acts: list[tuple[int, Act]]) -> None:
    """An entry that goes through JSON data is equal, and rows that were written before as well."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        memory, _ = two(folder)
        for _, act in acts:
            act(memory)
        entries = list(memory.past.by_id.values())
        assert [entry_from_plain(entry_to_plain(entry)) for entry in entries] == entries
        assert Snapshot().whole(memory.past) == memory.export()
