"""Errors: built-in parents, all faults at once, and where an error came from."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest

from mergepoint.core.errors import (
    Fault,
    MergeError,
    MergepointError,
    MissingKey,
    RailError,
    RecipeError,
    ReplayMiss,
    SandboxMissing,
    SessionError,
    StepError,
    TreeError,
    locate,
)


@pytest.mark.parametrize(
    ("error", "parent"),
    [
        (TreeError, ValueError),
        (MergeError, ValueError),
        (StepError, ValueError),
        (MissingKey, StepError),
        (MissingKey, KeyError),
        (RailError, RuntimeError),
        (ReplayMiss, LookupError),
        (SessionError, Exception),
        (RecipeError, ValueError),
        (SandboxMissing, RuntimeError),
    ],
)
def test_errors_have_built_in_parents(error: type[Exception], parent: type[Exception]) -> None:
    """Each error can be caught as MergepointError and as the built-in it is a kind of."""
    assert issubclass(error, MergepointError)
    assert issubclass(error, parent)


def test_fault_with_path_starts_with_it() -> None:
    """A fault is shown as path and problem."""
    assert str(Fault("a/b", "wrong")) == "a/b: wrong"


def test_fault_without_path_is_its_problem() -> None:
    """A fault that has no path shows no empty one."""
    assert str(Fault("", "wrong")) == "wrong"


def test_tree_error_of_one_fault_is_that_fault() -> None:
    """One fault needs no list."""
    error = TreeError.of("wrong", path="a/b")
    assert str(error) == "a/b: wrong"
    assert error.faults == (Fault("a/b", "wrong"),)
    assert error.pipeline_path == "a/b"


def test_tree_error_lists_all_faults_in_order() -> None:
    """Several faults are all in the text, one a line, in the order they were given."""
    error = TreeError(Fault(path, "wrong") for path in ("a", "a/c", "a/b"))
    assert str(error).splitlines() == [
        "the tree has 3 problems:",
        "  a: wrong",
        "  a/c: wrong",
        "  a/b: wrong",
    ]
    assert [fault.path for fault in error.faults] == ["a", "a/c", "a/b"]


def test_tree_error_has_the_path_of_its_first_fault() -> None:
    """`pipeline_path` is where the first fault is."""
    assert TreeError([Fault("a", "x"), Fault("b", "y")]).pipeline_path == "a"


def test_missing_key_shows_its_problem_plainly() -> None:
    """The text is readable, although KeyError would show a repr; the key is at hand."""
    error = MissingKey("topic", "missing key 'topic'")
    assert str(error) == "missing key 'topic'"
    assert error.key == "topic"


def test_locate_writes_path_kind_name_and_a_note() -> None:
    """An error says which node it came from, and keeps its type and text."""
    error = KeyError("k")
    locate(error, "a/b", kind="step", name="b")
    assert vars(error)["pipeline_path"] == "a/b"
    assert vars(error)["pipeline_node_type"] == "step"
    assert vars(error)["pipeline_node_name"] == "b"
    assert error.__notes__ == ["at a/b (step)"]
    assert error.args == ("k",)


def test_locate_keeps_the_innermost_node() -> None:
    """A node further out does not overwrite what the inner one wrote."""
    error = ValueError("x")
    locate(error, "a/b", kind="step", name="b")
    locate(error, "a", kind="block", name="a")
    assert vars(error)["pipeline_path"] == "a/b"
    assert error.__notes__ == ["at a/b (step)"]


def test_locate_fills_the_empty_path_of_a_tree_error() -> None:
    """A TreeError without a path of its own gets the path of the node that raised it."""
    error = TreeError.of("wrong")
    locate(error, "a/b", kind="step", name="b")
    assert error.pipeline_path == "a/b"


class _NoPath(Exception):
    """An error with a read-only attribute of the name that `locate` writes."""

    @property
    def pipeline_path(self) -> str:
        return ""


def test_locate_leaves_the_note_where_attributes_are_refused() -> None:
    """An error that takes no attribute still says in a note where it came from."""
    error = _NoPath("x")
    locate(error, "a/b", kind="step", name="b")
    assert error.__notes__ == ["at a/b (step)"]


@dataclass(frozen=True)
class _Frozen(Exception):
    reason: str


def test_locate_never_replaces_an_error() -> None:
    """An error that takes nothing at all, not even a note, goes through as it is."""
    error = _Frozen("x")
    locate(error, "a/b", kind="step", name="b")
    assert not hasattr(error, "pipeline_path")


def test_tree_error_survives_pickling() -> None:
    """A TreeError raised in another process arrives with its faults."""
    error = TreeError([Fault("a", "x"), Fault("b", "y")])
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (again.faults, str(again)) == (error.faults, str(error))


def test_missing_key_survives_pickling() -> None:
    """A MissingKey raised in another process arrives with its key."""
    again = pickle.loads(pickle.dumps(MissingKey("k", "no k")))  # noqa: S301
    assert (again.key, str(again)) == ("k", "no k")


@pytest.mark.parametrize("error", [TreeError.of("x"), MissingKey("k", "no k")])
def test_where_an_error_came_from_survives_pickling(error: Exception) -> None:
    """An error that left a node in another process still says which node."""
    locate(error, "a/b", kind="step", name="b")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert getattr(again, "pipeline_path", None) == "a/b"
    assert again.__notes__ == ["at a/b (step)"]
