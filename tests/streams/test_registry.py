"""Registry: blocks by name, from decorators, from here and from other packages."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from mergepoint.core.errors import RecipeError
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.registry import PACKAGE, REGISTRY, BlockType, Registry, block
from mergepoint.streams.thing import Thing


async def passing(
    items: AsyncIterator[Thing], params: Params, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Let all pass."""
    async for thing in items:
        yield thing


async def other(
    items: AsyncIterator[Thing], params: Params, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Let all pass, too."""
    async for thing in items:
        yield thing


def point(name: str, value: str) -> EntryPoint:
    """Return an entry point as a package would have it."""
    return EntryPoint(name, value, "mergepoint.blocks")


MODULE = '''
from mergepoint.streams.registry import block
from mergepoint.streams.params import Params

class Shout(Params):
    times: int = 1

@block("shout", params=Shout)
async def shout(items, params, ctx):
    """Write in capitals."""
    async for thing in items:
        yield thing.redrafted(thing.content.upper() + "!" * params.times)

number = 3
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module that defines a block."""
    (tmp_path / "loud_blocks.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "loud_blocks", raising=False)
    monkeypatch.setattr(REGISTRY, "_found", dict(REGISTRY._found))
    return "loud_blocks"


def test_the_blocks_that_come_along_are_found() -> None:
    """Each module of the package of blocks gives the block of its name."""
    names = [kind.name for kind in REGISTRY.all()]
    assert names == REGISTRY.names()
    assert {"vote", "select", "retrieve"} <= set(names)
    assert all(kind.origin.startswith(f"{PACKAGE}.{kind.name}.") for kind in REGISTRY.all())


def test_names_are_given_without_loading() -> None:
    """A registry knows its names before a module of theirs is imported."""
    registry = Registry(package=PACKAGE, points=[point("broken", "nowhere:x")])
    assert {"broken", "vote"} <= set(registry.names())


def test_a_decorated_function_is_found_by_its_name() -> None:
    """The decorator gives the block type, and the registry gives the same one."""
    registry = Registry()
    kind = block("pass", params=Params, registry=registry)(passing)
    assert registry.find("pass") is kind
    assert (kind.name, kind.doc, kind.params) == ("pass", "Let all pass.", Params)
    assert registry.all() == [kind]


def test_an_unknown_name_is_told_with_near_ones() -> None:
    """A name that there is not is an error with near names and all names."""
    with pytest.raises(
        RecipeError, match=r"no block is named 'vot' \(did you mean 'vote'\?\); available: "
    ):
        REGISTRY.find("vot")


def test_a_name_is_taken_once() -> None:
    """A second block of a name is refused, also where the first comes along and is not loaded."""
    registry = Registry(package=PACKAGE)
    block("mine", params=Params, registry=registry)(passing)
    with pytest.raises(RecipeError, match=r"'mine' .*passing already has that name"):
        block("mine", params=Params, registry=registry)(other)
    with pytest.raises(RecipeError, match=r"'vote' .*mergepoint\.streams\.blocks"):
        block("vote", params=Params, registry=registry)(other)


def test_a_function_can_be_defined_again() -> None:
    """The same function run once more, as in a notebook, takes the place of its first form."""
    registry = Registry()
    block("mine", params=Params, registry=registry)(passing)
    again = block("mine", params=Params, registry=registry, in_order=True)(passing)
    assert registry.find("mine") is again


def test_an_entry_point_is_loaded_when_it_is_used(package: str) -> None:
    """A block of another package is found by the name of its entry point."""
    registry = Registry(points=[point("shout", f"{package}:shout")])
    assert package not in sys.modules
    kind = registry.find("shout")
    assert kind is registry.find("shout") is sys.modules[package].shout
    assert kind.given({"times": 2}).times == 2


def test_entry_points_of_the_group_are_read() -> None:
    """The registry for everybody looks at what is installed, which need not be anything."""
    assert Registry(points=None).names() == []


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("shout", "nowhere_to_be_found:shout", "can't be loaded: ModuleNotFoundError"),
        ("shout", "loud_blocks:missing", "can't be loaded: AttributeError"),
        ("shout", "loud_blocks:number", "which is a int, not a block; use @block"),
        ("loud", "loud_blocks:shout", "which is named 'shout'; use one name for both"),
    ],
)
def test_a_broken_entry_point_is_an_error_when_it_is_used(
    package: str, name: str, value: str, problem: str
) -> None:
    """It is named with where it comes from, by its own name and in a list, and no earlier."""
    registry = Registry(package=PACKAGE, points=[point(name, value)])
    assert registry.find("vote").name == "vote"
    for use in (lambda: registry.find(name), registry.all):
        with pytest.raises(
            RecipeError, match=f"{name!r} comes from the entry point {value}.*{problem}"
        ):
            use()


def test_a_list_tells_of_all_that_is_broken(package: str) -> None:
    """Every broken entry point is in the error."""
    registry = Registry(points=[point("a", "nowhere:a"), point("b", "nowhere:b")])
    with pytest.raises(RecipeError, match=r"(?s)'a' comes from .*'b' comes from "):
        registry.all()


@pytest.mark.parametrize(
    "points",
    [
        [point("shout", "loud_blocks:shout"), point("shout", "others:shout")],
        [point("vote", "loud_blocks:shout")],
    ],
)
def test_two_packages_with_one_name_are_told(package: str, points: list[EntryPoint]) -> None:
    """A name that several give is an error that names them all."""
    with pytest.raises(RecipeError, match=r"several packages define a block .*: .*, .*; keep one"):
        Registry(package=PACKAGE, points=points).find(points[0].name)


def test_a_decorated_block_and_an_entry_point_of_its_name_are_told(package: str) -> None:
    """A name that this process and a package give is an error that names both."""
    registry = Registry(points=[point("shout", f"{package}:shout")])
    block("shout", params=Params, registry=registry)(passing)
    with pytest.raises(
        RecipeError, match=r"several packages define a block .*passing, loud_blocks:shout"
    ):
        registry.find("shout")


@pytest.mark.parametrize("name", ["", "Vote", "two words", "a.b", "1st", "a#b", None])
def test_names_that_a_recipe_cannot_write(name: Any) -> None:
    """The name of a block is part of ids, so it is a plain word."""
    with pytest.raises(ValueError, match="use lower-case letters"):
        BlockType(name, passing, params=Params)


def test_functions_that_are_no_blocks() -> None:
    """A function that never yields, and one that does not say what it does, are refused."""

    async def silent(items: Any, params: Any, ctx: Any) -> Any:
        """Yield nothing."""

    async def wordless(items: Any, params: Any, ctx: Any) -> Any:
        async for thing in items:
            yield thing

    with pytest.raises(TypeError, match="silent never yields"):
        BlockType("silent", silent, params=Params)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="wordless has no docstring"):
        BlockType("wordless", wordless, params=Params)


def test_needs_and_adds_may_depend_on_params() -> None:
    """What a block reads and writes is asked for with the params of a stage."""
    select = REGISTRY.find("select")
    best = select.given({"top_k": 1, "by": "likes"})
    assert (select.needs_of(best), select.adds_of(best)) == (("likes",), ("rank",))
    first = select.given({"take": 1})
    assert (select.needs_of(first), select.adds_of(first)) == ((), ())


def test_params_have_a_json_schema() -> None:
    """Editors are told the params of every block, and what they mean."""
    for kind in REGISTRY.all():
        assert kind.schema()["title"]
    assert REGISTRY.find("select").schema()["properties"]["top_k"]["description"]
