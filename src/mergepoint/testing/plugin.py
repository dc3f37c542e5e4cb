"""The pytest plugin: fixtures for tests of pipelines, and cassettes.

Pytest finds them once mergepoint is installed. Imports are late, so that test runs which don't use
them pay nothing.
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
    from mergepoint.testing.cassettes import Cassette, Mode

_MODES = ("once", "replay", "rewrite")
_OPTIONS = ("name", "mode", "redact", "allow_unused")
# Limit before a digest and a suffix are added; file systems allow 255 bytes.
_LONGEST = 120
_CASSETTE = pytest.StashKey["Cassette"]()


@pytest.fixture
def assert_paths() -> Callable[..., None]:
    """Assert the paths of a ScriptedModel's calls: `assert_paths(model, [path, ...])`."""
    return _late("assert_paths")


@pytest.fixture
def assert_not_in_context() -> Callable[..., None]:
    """Assert that calls didn't receive text: `assert_not_in_context(model, path, text)`."""
    return _late("assert_not_in_context")


@pytest.fixture
def assert_isolated() -> Callable[..., None]:
    """Assert that calls didn't see each other: `assert_isolated(model, run, "**/threads/*")`."""
    return _late("assert_isolated")


@pytest.fixture
def cassette_redact() -> Callable[[str], str] | None:
    """Return the redaction hook of all cassettes: none. Override it in a conftest.py."""
    return None


@pytest.fixture
def cassette(
    request: pytest.FixtureRequest, cassette_redact: Callable[[str], str] | None
) -> Cassette:
    """Record the test's model calls once, and replay them afterward: `cassette.run(tree, ...)`.

    The file is `cassettes/<module>/<test>.jsonl` in the folder of the test's module.
    """
    from mergepoint.core.errors import MergepointError
    from mergepoint.testing.cassettes import Cassette

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
    """Add the option --cassettes."""
    parser.getgroup("mergepoint").addoption(
        "--cassettes",
        choices=_MODES,
        help="When to record: missing cassettes (once, the default), never (replay, the default "
        "if CI is set), or all of the selected tests (rewrite)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "cassette(name=None, *, mode='once', redact=None, allow_unused=False): where and how the "
        "fixture `cassette` records the test's model calls",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marker without its fixture: the calls would be live."""
    fixtures = getattr(item, "fixturenames", ())
    if item.get_closest_marker("cassette") and "cassette" not in fixtures:
        pytest.fail(
            f"{item.nodeid} is marked with cassette and does not take the fixture `cassette`; "
            "nothing would be recorded or replayed",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Write or check the cassette of a passed test, as part of the test."""
    # If the test fails, this raises its error, and the cassette is not written.
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
    """Return the options of the markers on test, class, and module; the nearest wins."""
    options: dict[str, Any] = {}
    # pytest yields the nearest marker first, and the nearest must be applied last.
    for mark in reversed(list(item.iter_markers("cassette"))):
        named = dict(zip(_OPTIONS, mark.args[:1], strict=False))
        options |= {**named, **mark.kwargs}
        if len(mark.args) > 1 or not options.keys() <= set(_OPTIONS):
            raise pytest.UsageError(
                f"{item.nodeid}: the marker cassette takes a name and {', '.join(_OPTIONS[1:])}, "
                f"not {mark.args} {mark.kwargs}"
            )
    return options


def _mode(config: pytest.Config, marked: Mode) -> Mode:
    """Return the mode: the command's, otherwise replay in CI, otherwise the marker's."""
    given: Mode | None = config.getoption("--cassettes")
    if given is not None:
        return given
    # CI has no keys and must not record: a missing cassette is an error there.
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return "replay" if in_ci else marked


def _place(item: pytest.Item, name: str | Path | None) -> Path:
    """Return a cassette's file: by name in the module's folder, or by a Path relative to it."""
    folder = item.path.parent
    if isinstance(name, Path):
        return folder / name
    if name is None:
        name = ".".join(
            node.name for node in item.listchain() if node is item or isinstance(node, pytest.Class)
        )
    return folder / "cassettes" / item.path.stem / f"{_safe(name)}.jsonl"


def _safe(name: str) -> str:
    """Return a valid file name that no other test has."""
    safe = re.sub(r"[^A-Za-z0-9_.\[\]-]", "_", name)
    if safe == name and len(name) <= _LONGEST:
        return name
    # Two names can become equal by replacing or cutting characters.
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{safe[:_LONGEST]}-{digest}"


def _late(name: str) -> Callable[..., Any]:
    from mergepoint.testing import scripted_model

    found: Callable[..., Any] = getattr(scripted_model, name)
    return found
