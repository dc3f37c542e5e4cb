"""Every test of the command stands in a folder of its own, with three tree files in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.apps.command import BREAKING, ESSAY, INTERRUPTING


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that the test stands in."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "ANTHROPIC_API_KEY",
        "FORCE_COLOR",
        "MERGEPOINT_STORE",
    ):
        monkeypatch.delenv(name, raising=False)
    texts = {"essay.py": ESSAY, "breaking.py": BREAKING, "stopping.py": INTERRUPTING}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path
