"""`mergepoint demo`: from a brief to an image prompt, without a key."""

from __future__ import annotations

from pathlib import Path

from tests.apps.command import command, only_transcript


def test_the_demo_ends_with_an_image_prompt_and_its_transcript() -> None:
    """It says that the model is no language model, and shows the brief, the prompt, the saving."""
    run = command("demo")
    transcript = only_transcript()
    assert run.code == 0
    assert run.out.strip() == transcript["outputs"]["image_prompt"]
    assert len(transcript["steps"]) >= 42
    assert "not a language model" in run.err
    assert " ".join(transcript["inputs"]["brief"].split()) in run.err
    words = transcript["words"]
    assert words["shared"] > words["sent"]
    assert f"{words['sent']:,}; a graph with one shared message list" in run.err
    assert f"sends {words['shared']:,}" in run.err
    assert "graph.svg" in run.err
    assert Path(run.err.split("transcript   ")[1].split()[0]).is_file()


def test_the_demo_as_json() -> None:
    """With --json the prompt is in the outputs, and the notice with it."""
    run = command("demo", "--json", "--quiet", "--out", "elsewhere")
    assert run.err == ""
    assert run.data["outputs"]["image_prompt"] == run.data["text"]
    assert "not a language model" in run.data["notice"]
    assert run.data["transcript"].startswith("elsewhere")


def test_the_demo_takes_a_model() -> None:
    """A model that cannot be had is refused before anything is written."""
    run = command("demo", "--model", "nonsense")
    assert run.code == 2
    assert not Path("runs").exists()
