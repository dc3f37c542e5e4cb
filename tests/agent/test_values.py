"""Limits, jobs and runs: what they hold, and what they refuse."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mergepoint.sandbox.job import CodeJob, CodeRun, Limits, Stop


@pytest.mark.parametrize("name", [one.name for one in fields(Limits)])
@pytest.mark.parametrize("value", [0, -1, True, None, "1", float("nan"), float("inf")])
def test_a_limit_is_a_number_above_zero(name: str, value: Any) -> None:
    """Anything else is an error with the limit's name."""
    with pytest.raises(ValueError, match=f"limit {name}="):
        replace(Limits(), **{name: value})


@settings(max_examples=50)
@given(st.text(max_size=20) | st.lists(st.sampled_from(["..", ".", "a", "", "b c"])).map("/".join))
def test_a_file_stays_in_the_work_folder(name: str) -> None:
    """A name that is taken is relative, has no way up and can be read; others are refused."""
    try:
        job = CodeJob(code="", files={name: Path("x")})
    except ValueError:
        return
    (taken,) = job.files
    path = PurePosixPath(taken)
    assert str(path) == taken
    assert taken.isprintable()
    assert not path.is_absolute()
    assert ".." not in path.parts
    assert path.parts


@pytest.mark.parametrize("name", ["data.csv", "in/data.csv", "a b.txt", ".hidden", "über.txt"])
def test_plain_names_are_taken(name: str) -> None:
    """Names that people give to files are no trouble."""
    assert set(CodeJob(code="", files={name: Path("x")}).files) == {name}


@pytest.mark.parametrize("name", ["", "a b", "class", "1a", "a.b", "__import__", "a\n"])
def test_a_tool_has_the_name_of_a_function(name: str) -> None:
    """A name that code could not call is refused."""
    with pytest.raises(ValueError, match="cannot be the name of a function"):
        CodeJob(code="", tools={name: print})


def test_code_is_text() -> None:
    """Bytes are refused before anything starts."""
    given_code: Any = b"print()"
    with pytest.raises(ValueError, match="code is text, not bytes"):
        CodeJob(code=given_code)


@pytest.mark.parametrize(
    ("code", "stopped", "ok"), [(0, None, True), (1, None, False), (None, "wall", False)]
)
def test_a_run_is_ok_when_it_came_to_its_end(
    code: int | None, stopped: Stop | None, *, ok: bool
) -> None:
    """An exit code of zero and no limit: nothing else is ok."""
    assert CodeRun(backend="x", exit_code=code, output="", stopped=stopped).ok is ok
