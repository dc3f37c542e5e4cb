"""Names, paths, and how a selector finds them."""

from __future__ import annotations

import pytest

from mergepoint.core.paths import ancestors, effective_name, join, name_problem, nearest, select

PATHS = [
    "run",
    "run/draft",
    "run/draft/write",
    "run/draft/check",
    "run/final",
    "run/final/write",
    "run/final/deep/a[1]",
]


@pytest.mark.parametrize(
    "name",
    ["a", "Two words", "ä", "step_01", "a.b", "a-b", "_a", "a__b", "x__", " a", "*", "日本", "👍"],
)
def test_ordinary_names_are_allowed(name: str) -> None:
    """Names are free text within the rules."""
    assert name_problem(name) is None


@pytest.mark.parametrize("name", ["", " ", "\t\n", "\u2003"])
def test_blank_names_are_refused(name: str) -> None:
    """A blank name is refused, and the way to get one by position is told."""
    assert name_problem(name) == "a name must not be blank; omit it to get one by position"


@pytest.mark.parametrize("character", ["/", "|", ":"])
def test_separators_are_refused(character: str) -> None:
    """Characters that separate paths and namespaces cannot be in a name."""
    problem = name_problem(f"a{character}b")
    assert problem is not None
    assert f"holds {character!r}" in problem


@pytest.mark.parametrize(
    ("name", "code"),
    [("a\nb", "U+000A"), ("a\x00", "U+0000"), ("\x7fa", "U+007F"), ("a\x85b", "U+0085")],
)
def test_control_characters_are_refused(name: str, code: str) -> None:
    """Control characters are refused and named by their code."""
    problem = name_problem(name)
    assert problem is not None
    assert code in problem


def test_lone_surrogates_are_refused() -> None:
    """Half of a surrogate pair could not be written to any file."""
    problem = name_problem("a\ud800")
    assert problem is not None
    assert "U+D800" in problem


@pytest.mark.parametrize("name", ["__exit", "__"])
def test_leading_double_underscore_is_refused(name: str) -> None:
    """Names of that kind belong to the exits of blocks."""
    problem = name_problem(name)
    assert problem is not None
    assert "starts with '__'" in problem


@pytest.mark.parametrize("name", [1, None, b"a", ["a"]])
def test_names_are_text(name: object) -> None:
    """Anything but text is refused by its type."""
    assert name_problem(name) == f"a name must be text, not {type(name).__name__}"


@pytest.mark.parametrize(
    ("name", "position", "expected"),
    [("draft", 3, "draft"), (None, 1, "step_01"), (None, 12, "step_12"), (None, 123, "step_123")],
)
def test_effective_name(name: str | None, position: int, expected: str) -> None:
    """An explicit name stands; else kind and position make one."""
    assert effective_name(name, "step", position) == expected


def test_join_gives_a_childs_path() -> None:
    """A path is joined with a slash; the root has none before it."""
    assert join("a/b", "c") == "a/b/c"
    assert join("", "a") == "a"


def test_ancestors_are_nearest_first() -> None:
    """The paths above one are given from the inside out."""
    assert ancestors("a/b/c") == ["a/b", "a"]
    assert ancestors("a") == []


def test_nearest_suggests_what_is_close() -> None:
    """A misspelt word brings the near ones."""
    assert nearest("promt", ["prompt", "model"]) == " (did you mean 'prompt'?)"


def test_nearest_says_nothing_where_nothing_is_close() -> None:
    """No suggestion is better than a wild one."""
    assert nearest("zzz", ["prompt", "model"]) == ""


def test_select_exact() -> None:
    """A whole path selects itself alone."""
    assert select("run/draft", PATHS) == ["run/draft"]


def test_select_exact_wins_over_suffix() -> None:
    """A path that is whole is not taken for the end of a longer one."""
    assert select("b", ["b", "a/b", "c/b"]) == ["b"]


def test_select_unique_suffix() -> None:
    """The end of one path alone, in whole names, selects it."""
    assert select("draft/write", PATHS) == ["run/draft/write"]


def test_select_suffix_of_whole_names_only() -> None:
    """Half a name is no suffix."""
    with pytest.raises(LookupError, match="no path matches 'rite'"):
        select("rite", PATHS)


def test_select_ambiguous_suffix() -> None:
    """A suffix of several paths is refused with all of them and the way to mean them all."""
    with pytest.raises(LookupError) as caught:
        select("write", PATHS)
    assert "matches 2 paths: run/draft/write, run/final/write" in str(caught.value)
    assert "'**/write'" in str(caught.value)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("run/*", ["run/draft", "run/final"]),
        ("run/*/write", ["run/draft/write", "run/final/write"]),
        ("run/d*/*", ["run/draft/write", "run/draft/check"]),
        ("run/?raft", ["run/draft"]),
        ("run/[df]*", ["run/draft", "run/final"]),
        ("**/write", ["run/draft/write", "run/final/write"]),
        ("**", PATHS),
        ("run/**", PATHS),
        ("run/**/write", ["run/draft/write", "run/final/write"]),
        ("**/final/**", ["run/final", "run/final/write", "run/final/deep/a[1]"]),
        ("*", ["run"]),
    ],
)
def test_select_glob(selector: str, expected: list[str]) -> None:
    """`*` stands within one name, `**` for any number of names; the order is the tree's."""
    assert select(selector, PATHS) == expected


def test_select_glob_is_case_sensitive() -> None:
    """Names differ by case on every platform."""
    with pytest.raises(LookupError):
        select("run/D*", PATHS)


def test_select_name_with_glob_characters() -> None:
    """A name that looks like a glob can be given whole, or as a suffix."""
    assert select("run/final/deep/a[1]", PATHS) == ["run/final/deep/a[1]"]
    assert select("a[1]", PATHS) == ["run/final/deep/a[1]"]


@pytest.mark.parametrize("selector", ["nothing", "**/nothing", "run/*/*/*/*", "", "run/"])
def test_select_nothing_found(selector: str) -> None:
    """What fits nothing is an error that lists what there is."""
    with pytest.raises(LookupError) as caught:
        select(selector, PATHS)
    assert f"no path matches {selector!r}" in str(caught.value)
    for path in PATHS:
        assert f"\n  {path}" in str(caught.value)


def test_select_nothing_found_suggests_a_near_path() -> None:
    """A misspelt path brings the near one."""
    with pytest.raises(LookupError, match="did you mean 'run/draft'"):
        select("run/drafft", PATHS)
