"""The modules of the page are checked against the types of their data."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import mergepoint.view

pytestmark = pytest.mark.browser

ASSETS = Path(mergepoint.view.__file__).parent / "assets"
CHECK = (
    *("--noEmit", "--checkJs", "--allowJs", "--strict"),
    *("--target", "es2022", "--module", "es2022", "--moduleResolution", "bundler"),
    *("--lib", "es2022,dom,dom.iterable"),
)


def test_modules_fit_their_types(tmp_path: Path) -> None:
    """TypeScript's compiler finds nothing wrong in the modules, by their JSDoc types."""
    npx = shutil.which("npx")
    if npx is None:
        pytest.skip("there is no npx: install Node.js to check the types of the page's modules")
    files = sorted(str(file) for suffix in ("js", "d.ts") for file in ASSETS.glob(f"*.{suffix}"))
    done = subprocess.run(  # noqa: S603  (a fixed command)
        [npx, "-y", "-p", "typescript@5.9", "tsc", *CHECK, *files],
        cwd=tmp_path,
        env={**os.environ, "npm_config_update_notifier": "false"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if "npm error" in done.stderr:
        pytest.skip(f"npm can't get TypeScript here: {done.stderr[-200:]}")
    assert done.stdout == ""
    assert done.returncode == 0
