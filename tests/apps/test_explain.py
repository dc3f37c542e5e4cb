"""`mergepoint explain`: the prediction as text, JSON, and a page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.apps.command import command

TOPIC = ("-i", "topic=rivers")


def test_every_step_has_a_row_and_the_last_line_sums_up() -> None:
    """The text names each step, and ends with calls, tokens and cost."""
    shown = command("explain", "essay.py", *TOPIC, "--model", "openai:gpt-5-mini")
    assert shown.code == 0, shown.err
    for name in ("draft", "first", "second", "consensus"):
        assert re.search(rf"^ *{name} .*█.* \$0\.00", shown.out, re.MULTILINE)
    last = shown.out.splitlines()[-1]
    assert re.fullmatch(r"Predicted: 4 model calls, about .* tokens in and .* out, .*\.", last)


def test_json_has_calls_and_steps() -> None:
    """Each step has its path, what it will see by path, and its tokens."""
    data = command("explain", "essay.py", *TOPIC, "--json").data
    assert data["calls"] == [4, 4]
    assert data["workflow"] == "essay.py"
    paths = [one["path"] for one in data["steps"]]
    assert paths == [
        "essay/draft",
        "essay/threads/first",
        "essay/threads/second",
        "essay/consensus",
    ]
    consensus = data["steps"][-1]
    assert [one["path"] for one in consensus["sees"]] == ["essay/draft", "essay/draft", None]
    assert consensus["tokens"] == sum(one["tokens"] for one in consensus["sees"])
    assert data["unread"] == ["essay"]


def test_one_step_is_shown_with_its_messages() -> None:
    """With a path, each message has its role, its tokens and its maker."""
    shown = command("explain", "essay.py", "consensus", *TOPIC)
    assert shown.code == 0
    assert "It will see 3 messages:" in shown.out
    assert re.search(r"assistant +\d+ +essay/draft$", shown.out, re.MULTILINE)
    assert "first (captured by essay/threads/first)" in shown.out
    assert command("explain", "essay.py", "nowhere").code == 2


def test_an_earlier_run_gives_the_lengths() -> None:
    """--like takes the answers of a run, and tokens as the model counted them."""
    assert command("run", "essay.py", *TOPIC, "--run-id", "one").code == 0
    used = command("show", "one", "consensus", "--json").data["usage"]["input_tokens"]
    data = command("explain", "essay.py", *TOPIC, "--like", "one", "--json").data
    assert data["basis"] == "answers as long as in run one"
    assert data["steps"][-1]["tokens"] == pytest.approx(used, rel=0.15)
    missing = command("explain", "essay.py", "--like", "none")
    assert missing.code == 2
    assert "Run 'none' not found" in missing.err


def test_changes_lengths_and_iterations_are_options() -> None:
    """Options change the tree as for run, and set lengths and iterations by path."""
    lengths = ("--answer-tokens", "100", "--answer-tokens", "**/draft=900")
    data = command(
        "explain", "essay.py", *TOPIC, *lengths, "--without", "**/consensus", "--json"
    ).data
    assert data["calls"] == [3, 3]
    assert [one["output_tokens"][0] for one in data["steps"]] == [900, 100, 100]
    looped = command("explain", "plan_approve", "--iterations", "planning=2", "--json")
    assert looped.code == 2
    looped = command("explain", "plan_approve", "--iterations", "pipeline/planning=2", "--json")
    assert looped.data["calls"] == [3, 3]
    assert command("explain", "essay.py", "--answer-tokens", "many").code == 2


def test_a_recipe_is_explained_by_its_stages() -> None:
    """Stages have ranges of calls; options of trees are refused."""
    data = command("explain", "best_of_n", "--knob", "n=8", "--json").data
    assert data["kind"] == "recipe"
    assert data["calls"] == [1, 16]
    assert [one["path"].rpartition(".")[2] for one in data["steps"]] == [
        "generate",
        "critique",
        "synthesize",
    ]
    refused = command("explain", "best_of_n", *TOPIC)
    assert refused.code == 2
    assert "--input" in refused.err


@pytest.mark.parametrize("target", ["essay.py", "best_of_n"])
def test_the_page_is_one_file(target: str, here: Path) -> None:
    """-o writes a page with the planned run, whose data have the plan."""
    written = command("explain", target, "-o", "plan.html")
    assert (written.code, written.err.strip()) == (0, "plan.html")
    text = (here / "plan.html").read_text(encoding="utf-8")
    island = re.search(r'id="mergepoint-page">(.*?)</script>', text, re.DOTALL)
    assert island is not None
    page = json.loads(island[1])
    [run] = page["runs"]
    assert (page["screen"], run["status"]) == ("explain", "planned")
    assert {one["status"] for one in run["nodes"]} == {"planned"}
    assert all(one["planned"]["times"] for one in run["calls"])
    assert run["plan"]["calls"][1] is not None


def test_prints_of_prompt_functions_stay_off_stdout(here: Path) -> None:
    """A prompt function that prints doesn't spoil the JSON."""
    text = 'from mergepoint import Step\n\ndef say(ctx):\n    print("loud")\n    return "Hello."\n'
    (here / "loud.py").write_text(f'{text}\ntree = Step(say, name="s")\n', encoding="utf-8")
    shown = command("explain", "loud.py", "--json")
    assert shown.data["steps"][0]["tokens"] > 0
    assert "loud" in shown.err


@pytest.mark.campaign
def test_nothing_loads_langgraph(here: Path) -> None:
    """A YAML tree is explained without the engine, which takes a quarter of a second to load."""
    (here / "tree.yaml").write_text("name: t\nnodes:\n  - prompt: Hello.\n", encoding="utf-8")
    code = (
        "import sys\nfrom mergepoint.apps.cli.app import app\n"
        "try:\n    app(['explain', 'tree.yaml'])\nexcept SystemExit:\n    pass\n"
        "assert 'langgraph' not in sys.modules\n"
    )
    done = subprocess.run(  # noqa: S603  (our own interpreter)
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Predicted: 1 model call, " in done.stdout
