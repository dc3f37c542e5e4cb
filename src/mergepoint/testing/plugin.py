"""The pytest plugin: fixtures that say what a test of a pipeline wants to say, and cassettes.

They are found by pytest as soon as mergepoint is installed. Imports are late, so that a test run
which uses none of them pays nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mergepoint.testing.cassette import Cassette, Mode

_MODES = ("once", "replay", "rewrite")
_OPTIONS = ("name", "mode", "redact", "allow_unused")
_LONGEST = 120  # a name with its digest and suffix; file systems take 255 bytes
_CASSETTE = pytest.StashKey["Cassette"]()


@pytest.fixture
def assert_paths() -> Callable[..., None]:
    """Assert at which paths a ScriptedModel was called: `assert_paths(model, [path, ...])`."""
    return _late("assert_paths")


@pytest.fixture
def assert_not_in_context() -> Callable[..., None]:
    """Assert that calls were not given a text: `assert_not_in_context(model, path, text)`."""
    return _late("assert_not_in_context")


@pytest.fixture
def assert_isolated() -> Callable[..., None]:
    """Assert that calls did not see each other: `assert_isolated(model, run, "**/threads/*")`."""
    return _late("assert_isolated")


@pytest.fixture
def cassette_redact() -> Callable[[str], str] | None:
    """Give the redaction of all cassettes: none. Override it in a conftest.py."""
    return None


@pytest.fixture
def cassette(
    request: pytest.FixtureRequest, cassette_redact: Callable[[str], str] | None
) -> Cassette:
    """Record the calls of the test once and answer them from then on: `cassette.run(tree, ...)`.

    The file is `cassettes/<module>/<test>.jsonl` beside the test's module.
    """
    from mergepoint.core.errors import MergepointError
    from mergepoint.testing.cassette import Cassette

    item: pytest.Item = request.node
    options = _options(item)
    again = shlex.join(["pytest", "--cassettes=rewrite", item.nodeid])
    try:
        made = Cassette(
            _place(item, options.get("name")),
            mode=_mode(item.config, options.get("mode", "once")),
            redact=options.get("redact", cassette_redact),
            allow_unused=options.get("allow_unused", False),
            way_out=f"to record it: {again}",
        )
    except MergepointError as error:
        pytest.fail(str(error), pytrace=False)
    item.stash[_CASSETTE] = made
    return made


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the option --cassettes."""
    parser.getgroup("mergepoint").addoption(
        "--cassettes",
        choices=_MODES,
        help="record cassettes that are missing (once, the default), never (replay, the default "
        "where CI is set), or all of the selected tests anew (rewrite)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "cassette(name=None, *, mode='once', redact=None, allow_unused=False): where and how the "
        "fixture `cassette` records the test's model calls",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marker without its fixture: the calls would be live ones."""
    fixtures = getattr(item, "fixturenames", ())
    if item.get_closest_marker("cassette") and "cassette" not in fixtures:
        pytest.fail(
            f"{item.nodeid} is marked with cassette and does not take the fixture `cassette`; "
            "nothing would be recorded or replayed",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Write or check the cassette of a test that passed, as a part of the test."""
    result = yield
    made = pyfuncitem.stash.get(_CASSETTE, None)
    if made is not None:
        from mergepoint.core.errors import MergepointError

        try:
            made.finish()
        except MergepointError as error:
            pytest.fail(str(error), pytrace=False)
    return result


def _options(item: pytest.Item) -> dict[str, Any]:
    """Give what the marks of a test, its class and its module say; the nearest wins."""
    options: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers("cassette"))):
        named = dict(zip(_OPTIONS, mark.args[:1], strict=False))
        options |= {**named, **mark.kwargs}
        if len(mark.args) > 1 or not options.keys() <= set(_OPTIONS):
            raise pytest.UsageError(
                f"{item.nodeid}: mark cassette takes a name and {', '.join(_OPTIONS[1:])}, "
                f"not {mark.args} {mark.kwargs}"
            )
    return options


def _mode(config: pytest.Config, marked: Mode) -> Mode:
    """Give the mode: that of the command, else in CI replay, else what the mark says."""
    given: Mode | None = config.getoption("--cassettes")
    if given is not None:
        return given
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return "replay" if in_ci else marked


def _place(item: pytest.Item, name: str | Path | None) -> Path:
    """Give a cassette's file: for a name beside those of the module, a Path from its folder."""
    folder = item.path.parent
    if isinstance(name, Path):
        return folder / name
    if name is None:
        name = ".".join(
            node.name for node in item.listchain() if node is item or isinstance(node, pytest.Class)
        )
    return folder / "cassettes" / item.path.stem / f"{_safe(name)}.jsonl"


def _safe(name: str) -> str:
    """Give a name that is a file's name everywhere, and that no other test has."""
    safe = re.sub(r"[^A-Za-z0-9_.\[\]-]", "_", name)
    if safe == name and len(name) <= _LONGEST:
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{safe[:_LONGEST]}-{digest}"


def _late(name: str) -> Callable[..., Any]:
    from mergepoint.testing import evidence

    found: Callable[..., Any] = getattr(evidence, name)
    return found
