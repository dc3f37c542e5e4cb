"""Pages from Python: of results in memory and on disk, transcripts, and folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mergepoint import Block, Step, run
from mergepoint.core.errors import MergepointError
from mergepoint.testing import ScriptedModel
from mergepoint.view import write_page
from mergepoint.view.page import ISLAND

TREE = Block([Step("Draft.", name="draft"), Step("Judge.", name="judge")], name="work")


def run_of(file: Path) -> dict[str, Any]:
    """Return the run of a page."""
    html = file.read_text(encoding="utf-8")
    page = json.loads(html.partition(f'id="{ISLAND}">')[2].partition("</script>")[0])
    (found,) = page["runs"]
    assert isinstance(found, dict)
    return found


def model() -> ScriptedModel:
    """Return a model that answers both steps."""
    return ScriptedModel(["A draft.", "Good."])


def test_a_result_writes_its_page_into_its_folder(tmp_path: Path) -> None:
    """The page is beside the journal, with the commands that show the run."""
    result = run(TREE, model=model(), runs=tmp_path, run_id="one")
    file = result.view(open_in_browser=False)
    assert file == tmp_path / "one" / "view.html"
    found = run_of(file)
    assert len(found["calls"]) == 2
    assert found["commands"]["show"] == f"mergepoint show {tmp_path / 'one'}"


def test_a_result_in_memory_has_a_page_without_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that no command can find has a page in the current directory, and offers none."""
    monkeypatch.chdir(tmp_path)
    result = run(TREE, model=model(), run_id="mine")
    assert result.view(open_in_browser=False) == Path("mine.html")
    found = run_of(tmp_path / "mine.html")
    assert (found["id"], found["status"], found["commands"]) == ("mine", "done", {})
    assert run_of(write_page(result.transcript, tmp_path / "same.html")) == found


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    """A page of nothing isn't written."""
    with pytest.raises(MergepointError):
        write_page(tmp_path / "none")
    assert not list(tmp_path.iterdir())
