"""`mergepoint batch`: results, what is left after a kill, and what the command says."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.apps.command import Outcome, command, completions, line, on_terminal, plain

# Each run appends a line to a file. It fails for inputs that the file `broken` names.
COUNTED = '''\
"""A tree that counts its runs."""

import os
import time
from pathlib import Path

from mergepoint import Block, Call, Input, Step, Template


def count(ctx):
    topic = ctx.inputs["topic"]
    if topic in Path("broken").read_text().split() if Path("broken").exists() else ():
        raise ValueError(f"no {topic} today")
    time.sleep(float(os.environ.get("SECONDS_PER_RUN", 0)))
    with open("calls.log", "a") as log:
        log.write(f"{topic}\\n")
    return topic


tree = Block(
    [Call(count, name="count"), Step(Template("On {{ topic }}."), name="draft")],
    name="counted",
    inputs=(Input("topic", type=str), Input("words", type=int, default=10)),
)
'''

TOPICS = ("rain", "sun", "fog", "snow")


@pytest.fixture(autouse=True)
def counted(here: Path) -> None:
    """Write the tree and its inputs."""
    (here / "counted.py").write_text(COUNTED, encoding="utf-8")
    write(*({"id": topic, "topic": topic} for topic in TOPICS))


def write(*inputs: Any, name: str = "in.jsonl") -> None:
    """Write a file of inputs."""
    Path(name).write_text("".join(f"{json.dumps(one)}\n" for one in inputs), encoding="utf-8")


def batch(*more: str, given: str | None = None) -> Outcome:
    """Run the batch in this process."""
    return command("batch", "counted.py:tree", *more, given=given)


def results(name: str = "results.jsonl") -> dict[str, Any]:
    """Return the results by id; there is one line for each."""
    lines = [json.loads(one) for one in Path(name).read_text(encoding="utf-8").splitlines()]
    found = {one["id"]: one for one in lines}
    assert len(found) == len(lines)
    return found


def ran() -> Counter[str]:
    """Return how often the function of each input has ended."""
    log = Path("calls.log")
    return Counter(log.read_text(encoding="utf-8").split() if log.exists() else ())


def test_each_input_has_a_line_and_the_same_command_runs_nothing() -> None:
    """All inputs run once, and the summary counts them; a second call finds everything done."""
    done = batch("in.jsonl", "--json")
    assert done.code == 0
    summary = done.data
    assert (summary["status"], summary["done"], summary["failed"]) == ("done", 4, 0)
    assert (summary["calls"], summary["left"], summary["resume"]) == (4, 0, None)
    assert {one["status"] for one in results().values()} == {"done"}
    again = batch("in.jsonl", "--json").data
    assert (again["done"], again["now"]["done"], again["now"]["calls"]) == (4, 0, 0)
    assert ran() == Counter(TOPICS)


def test_the_commands_of_the_summary_work_as_printed() -> None:
    """Failures are grouped with their inputs; one can be looked at, and all can be retried."""
    Path("broken").write_text("sun snow", encoding="utf-8")
    failed = batch("in.jsonl", "--out", "my results.jsonl")
    assert failed.code == 1
    assert "2 done, 2 failed in my results.jsonl" in failed.err
    assert "2 ValueError at counted/count: snow, sun" in failed.err.replace(
        "sun, snow", "snow, sun"
    )
    printed = {
        row.partition("mergepoint ")[0].strip(): shlex.split(row.partition("mergepoint ")[2])
        for row in failed.err.splitlines()
        if "mergepoint " in row
    }
    page = command(*printed["page"])
    assert (page.code, page.out) == (0, "my results.html\n")
    look = command(*printed["look inside"])
    assert look.code == 0
    assert "counted" in look.out
    Path("broken").unlink()
    retried = command(*printed["retry"], "--json")
    assert (retried.code, retried.data["done"], retried.data["now"]["done"]) == (0, 4, 2)
    assert len(results("my results.jsonl")) == 4
    assert ran() == Counter(TOPICS)


def test_failures_are_retried_on_demand_only() -> None:
    """Without --resume, a failed input stays failed."""
    Path("broken").write_text("sun", encoding="utf-8")
    batch("in.jsonl")
    Path("broken").unlink()
    again = batch("in.jsonl", "--json")
    assert (again.code, again.data["failed"], again.data["now"]["done"]) == (1, 1, 0)


def test_invalid_inputs_are_refused_before_anything_runs() -> None:
    """All problems are reported together, with exit code 2, and no file is left."""
    write({"topic": 1}, {"topci": "rain"}, name="bad.jsonl")
    refused = batch("bad.jsonl")
    assert refused.code == 2
    assert "the inputs have 3 problems" in refused.err
    assert "bad.jsonl:2: input 'topci' is not declared (did you mean 'topic'?)" in refused.err
    assert not [*Path().glob("results.jsonl*")]
    missing = batch("int.jsonl", "--json")
    assert (missing.code, missing.data["status"]) == (2, "refused")
    assert "did you mean 'in.jsonl'" in missing.data["message"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.campaign
def test_a_declined_batch_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a no at the question, another model can be taken for the same results file."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    words = ("batch", "counted.py:tree", "in.jsonl", "--model", "openai:gpt-5-mini")
    code, shown = on_terminal(*words, then=[("Continue?", "n\n")])
    assert code == 130
    assert "4 inputs: 4 to run." in plain(shown)
    assert not [*Path().glob("results.jsonl*")]
    assert batch("in.jsonl", "--json").data["done"] == 4


def test_options_of_the_other_kind_are_refused() -> None:
    """Options of recipes are refused for trees, and the other way round."""
    assert "only for recipes" in batch("in.jsonl", "--knob", "n=2").err
    questions = command("batch", "best_of_n", "in.jsonl", "--without", "draft")
    assert (questions.code, "only for trees" in questions.err) == (2, True)
    both = batch("in.jsonl", "--json", "--out", "-")
    assert (both.code, "both write to stdout" in both.out) == (2, True)
    local = batch("in.jsonl", "--ray-address", "auto")
    assert (local.code, "only for --engine ray, not local" in local.err) == (2, True)


def test_an_input_that_changed_is_refused() -> None:
    """An id that has a result of other inputs is an error with its line."""
    batch("in.jsonl")
    write({"id": "rain", "topic": "drizzle"}, {"id": "sun", "topic": "sun"})
    refused = batch("in.jsonl")
    assert (refused.code, ran()) == (2, Counter(TOPICS))
    assert "in.jsonl:1: the id 'rain' has a result of other inputs" in refused.err


def test_a_dry_run_checks_and_predicts() -> None:
    """Inputs are checked and counted, calls are predicted, and nothing is written."""
    plan = batch("in.jsonl", "--dry-run", "--json").data
    assert {key: plan[key] for key in ("total", "done", "failed", "to_run")} == {
        "total": 4,
        "done": 0,
        "failed": 0,
        "to_run": 4,
    }
    assert plan["predicted"]["calls"] == [4, 4]
    assert not Path("results.jsonl").exists()
    Path("broken").write_text("sun", encoding="utf-8")
    batch("in.jsonl", "--limit", "2")
    said = batch("in.jsonl", "--dry-run", "--resume").out
    assert said.startswith("4 inputs; 1 done and 1 failed before: 3 to run.")
    assert "Predicted: 3 model calls" in said
    write({"topic": 1})
    assert batch("in.jsonl", "--dry-run").code == 2


def test_results_can_go_to_stdout_in_order() -> None:
    """With `--out -`, stdout has the results and nothing else, from stdin's lines."""
    lines = Path("in.jsonl").read_text(encoding="utf-8")
    done = batch("-", "--out", "-", "--in-order", given=lines)
    assert done.code == 0
    assert [json.loads(one)["id"] for one in done.out.splitlines()] == list(TOPICS)


def test_a_limit_is_lifted_later() -> None:
    """The first inputs run alone, and the whole file goes on with the others, in order."""
    assert batch("in.jsonl", "--limit", "2", "--json").data["done"] == 2
    assert batch("in.jsonl", "--in-order", "--json").data["now"]["done"] == 2
    assert list(results()) == list(TOPICS)
    assert ran() == Counter(TOPICS)


def test_a_used_up_budget_ends_the_batch_and_the_printed_command_continues_it() -> None:
    """Inputs without room in the budget are left, and the command that is printed has room."""
    stopped = batch("in.jsonl", "--budget", "calls=2", "--concurrency", "1", "--json")
    assert (stopped.code, stopped.data["status"], stopped.data["done"]) == (1, "stopped", 2)
    assert "--budget calls=4" in stopped.data["resume"]
    more = command(*shlex.split(stopped.data["resume"])[1:])
    assert (more.code, len(Path("results.jsonl").read_text().splitlines())) == (0, 4)


FULL = """
import resource, sys
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), hard))
from mergepoint.apps.cli import main
main()
"""


@pytest.mark.campaign
@pytest.mark.parametrize("store", [(), ("--store", "sqlite:///full.db")])
@pytest.mark.parametrize("room", [20_000, 120_000])
def test_a_full_disk_ends_the_batch_and_the_printed_command_continues_it(
    room: int, store: tuple[str, ...]
) -> None:
    """The error of the disk isn't one of the inputs, and with room again all inputs are done."""
    lines = [json.dumps({"id": str(number), "topic": f"t{number}"}) for number in range(300)]
    Path("many.jsonl").write_text("\n".join(lines))
    words = ["batch", "counted.py:tree", "many.jsonl", *store]
    full = subprocess.run(  # noqa: S603  (this interpreter, on this package)
        [sys.executable, "-c", FULL, str(room), *words], capture_output=True, text=True, check=False
    )
    assert full.returncode == 1, full.stderr
    assert "failed" not in full.stderr
    (again,) = re.findall(r"^go on +mergepoint (.*)$", full.stderr, re.MULTILINE)
    assert re.search("(?m)^error: .*disk|^error: .*too large", full.stderr)
    assert command(*shlex.split(again)).code == 0
    found = results()
    assert {one["status"] for one in found.values()} == {"done"}
    assert len(found) == len(lines)


def test_calls_of_runs_that_a_budget_stopped_are_counted() -> None:
    """They are paid now, and stay in the total when the runs are resumed."""
    Path("two.yaml").write_text(
        "name: two\ninputs: [topic]\nnodes:\n"
        "  - {name: a, prompt: {template: 'A {{ topic }}'}}\n  - {name: b, prompt: B}\n"
    )
    lines = [json.dumps({"id": str(number), "topic": f"t{number}"}) for number in range(10)]
    Path("ten.jsonl").write_text("\n".join(lines))
    words = ("batch", "two.yaml", "ten.jsonl", "--json")
    stopped = command(*words, "--budget", "calls=7").data
    # One call of seven runs each.
    assert (stopped["done"], stopped["now"]["calls"], stopped["calls"]) == (0, 7, 7)
    assert "--budget calls=20" in stopped["resume"]
    more = command(*shlex.split(stopped["resume"])[1:], "--json")
    assert (more.code, more.data["done"]) == (0, 10)
    assert (more.data["now"]["calls"], more.data["calls"]) == (13, 20)


def test_a_recipe_takes_items() -> None:
    """An object is one item, or has a list of them."""
    write(
        {"id": "a", "content": "A title for a poster?"},
        {"id": "b", "items": ["A name for a cat?", "A name for a dog?"]},
    )
    done = command("batch", "best_of_n", "in.jsonl", "--knob", "n=2", "--json")
    assert (done.code, done.data["done"]) == (0, 2)
    assert results()["a"]["text"]


def test_tables_and_folders_are_inputs() -> None:
    """CSV has typed cells, and a folder has a text for each input."""
    Path("in.csv").write_text("id,topic,words\na,rain,3\n", encoding="utf-8")
    assert batch("in.csv", "--out", "a.jsonl", "--json").data["done"] == 1
    Path("texts").mkdir()
    Path("texts", "b.txt").write_text("fog", encoding="utf-8")
    assert batch("texts", "--out", "b.jsonl", "--json").data["done"] == 1
    assert list(results("b.jsonl")) == ["b.txt"]


def test_a_changed_tree_runs_in_the_batch() -> None:
    """Options that change the tree change the runs of all inputs."""
    summary = batch("in.jsonl", "--without", "draft", "--json").data
    assert (summary["done"], summary["calls"]) == (4, 0)


@pytest.mark.campaign
def test_targets_are_completed() -> None:
    """The first argument completes as that of `run`."""
    assert completions("mergepoint batch flat_") == ["flat_chat"]


@pytest.mark.campaign
def test_a_terminal_shows_a_bar_and_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view counts inputs, and the summary stays."""
    monkeypatch.setenv("SECONDS_PER_RUN", "0.5")
    code, shown = on_terminal("batch", "counted.py:tree", "in.jsonl", "--concurrency", "1")
    assert code == 0
    assert "/4 inputs" in plain(shown)
    assert "4 done in results.jsonl" in plain(shown)


def started(seconds: str) -> subprocess.Popen[str]:
    """Start the batch as a process, and return once some of its inputs have run."""
    words = ["batch", "counted.py:tree", "in.jsonl", "--concurrency", "4"]
    child = subprocess.Popen(  # noqa: S603  (this interpreter, on this package)
        line(*words),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SECONDS_PER_RUN": seconds},
    )
    wanted = ran().total() + 10
    while ran().total() < wanted and child.poll() is None:
        time.sleep(0.05)
    return child


def many(number: int) -> None:
    """Write a file of inputs."""
    write(*({"id": f"t{one}", "topic": f"t{one}"} for one in range(number)))


@pytest.mark.campaign
def test_an_interrupted_batch_says_how_to_go_on() -> None:
    """Ctrl-C lets runs in progress end, exits with 130, and the same command does the rest."""
    many(60)
    child = started("0.2")
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "go on        mergepoint batch counted.py:tree in.jsonl --concurrency 4" in said
    before = len(results())
    assert 10 <= before < 60
    assert before == ran().total()
    assert batch("in.jsonl", "--concurrency", "4", "--json").data["done"] == 60
    assert set(ran().values()) == {1}


@pytest.mark.campaign
@pytest.mark.parametrize("kills", [3])
def test_a_killed_batch_goes_on_and_pays_nothing_twice(kills: int) -> None:
    """After kills, the same command ends with one line per input, and repeats no ended call."""
    many(60)
    for _ in range(kills):
        child = started("0.1")
        child.kill()
        child.communicate(timeout=60)
        assert child.returncode == -signal.SIGKILL
    done = batch("in.jsonl", "--concurrency", "4", "--json")
    assert (done.code, done.data["done"]) == (0, 60)
    assert set(results()) == {f"t{number}" for number in range(60)}
    assert ran().total() <= 60 + 4 * kills
