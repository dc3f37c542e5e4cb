"""`mergepoint run`: results, files, options and their effects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.apps.command import command, only_transcript, paths, transcripts

TOPIC = ("--input", "topic=rivers")
ALL = [
    "essay/draft",
    "essay/threads/first",
    "essay/threads/second",
    "essay/consensus",
]


def test_the_result_goes_to_stdout_and_all_else_to_stderr() -> None:
    """A line a call, the saving and the files are on stderr."""
    run = command("run", "essay.py", *TOPIC, "--run-id", "r1")
    transcript = only_transcript()
    assert run.code == 0
    assert run.out == transcript["text"] + "\n"
    calls = [line for line in run.err.splitlines() if line.startswith("[")]
    assert len(calls) == 4
    assert all("mergepoint:offline" in line for line in calls)
    words = transcript["words"]
    assert f"{words['sent']:,}; a graph with one shared message list" in run.err
    assert f"sends {words['shared']:,}" in run.err
    assert "It isn't a language model" in run.err
    for file in ("transcript.json", "graph.svg"):
        assert str(Path("runs/r1") / file) in run.err
        assert (Path("runs/r1") / file).is_file()


def test_the_transcript_holds_what_was_run() -> None:
    """Every call is on record in tree order, with the inputs, defaults left to the tree."""
    command("run", "essay.py", *TOPIC, "--seed", "7", "--run-id", "mine")
    transcript = only_transcript()
    assert paths(transcript) == ALL
    assert transcript["inputs"] == {"topic": "rivers"}
    assert (transcript["run_id"], transcript["seed"]) == ("mine", 7)
    assert "Write about rivers, in a plain tone." in transcript["steps"][0]["prompt"]
    assert set(transcript["outputs"]) == {"first", "second", "essay"}


def test_json_is_all_there_is_on_stdout() -> None:
    """With --json stdout is one object with the result, the saving and the files."""
    run = command("run", "essay.py", *TOPIC, "--json")
    transcript = only_transcript()
    assert run.data["status"] == "done"
    assert run.data["calls"] == 4
    for key in ("run_id", "text", "outputs", "usage", "words"):
        assert run.data[key] == transcript[key]
    assert "not a language model" in run.data["notice"]
    assert json.loads(Path(run.data["transcript"]).read_text(encoding="utf-8")) == transcript
    assert "<svg" in Path(run.data["graph"]).read_text(encoding="utf-8")
    assert "[4/4]" in run.err


def test_quiet_leaves_the_result_alone() -> None:
    """With --quiet nothing is told on the way or at the end."""
    run = command("run", "essay.py", *TOPIC, "--quiet")
    assert run.out == only_transcript()["text"] + "\n"
    assert run.err == ""


def test_messages_open_the_conversation() -> None:
    """Each --message is a user message that stands before the first step."""
    command("run", "essay.py", *TOPIC, "-m", "Be kind.", "--message", "Be brief.")
    told = [message["data"]["content"] for message in only_transcript()["messages"]]
    assert told == ["Be kind.", "Be brief."]


def test_inputs_come_from_files(here: Path) -> None:
    """A file of inputs and a file as one input's text both arrive in the prompt."""
    (here / "inputs.yaml").write_text("tone: dry\n", encoding="utf-8")
    (here / "topic.txt").write_text("deltas", encoding="utf-8")
    run = command("run", "essay.py", "-i", "topic=@topic.txt", "--input-file", "inputs.yaml")
    assert run.code == 0
    assert only_transcript()["steps"][0]["prompt"] == "Write about deltas, in a dry tone."


def test_set_changes_the_run() -> None:
    """A field that was set is in the request of the call."""
    command(
        "run",
        "essay.py",
        *TOPIC,
        "--set",
        "draft:temperature=0.25",
        "--set",
        "draft:prompt=Only {{ topic }}.",
    )
    draft = only_transcript()["steps"][0]
    assert draft["params"] == {"temperature": 0.25}
    assert draft["prompt"] == "Only rivers."


def test_without_leaves_calls_out() -> None:
    """A node that was left out makes no call; what read it is set to do without."""
    run = command(
        "run",
        "essay.py",
        *TOPIC,
        "--without",
        "**/second",
        "--set",
        "consensus:prompt=Revise by {{ first }}.",
    )
    assert run.code == 0
    assert paths(only_transcript()) == [path for path in ALL if "second" not in path]


def test_without_a_key_that_is_read_is_refused_before_anything_runs() -> None:
    """A reader without its writer is a fault of the tree: nothing is run or written."""
    run = command("run", "essay.py", *TOPIC, "--without", "threads")
    assert run.code == 2
    assert "essay/consensus: reads 'first'" in run.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("option", "parallel"), [((), False), (("--parallel",), True), (("--sequential",), False)]
)
def test_parallel_is_in_the_tree_that_ran(option: tuple[str, ...], parallel: bool) -> None:  # noqa: FBT001
    """--parallel runs the critics side by side, and the result stays the same."""
    plain = command("run", "essay.py", *TOPIC, "--out", "plain")
    run = command("run", "essay.py", *TOPIC, *option)
    transcript = only_transcript()
    (threads,) = [node for node in transcript["tree"]["nodes"] if node["kind"] == "block"]
    assert threads.get("parallel", False) is parallel
    assert run.out == plain.out


def test_both_forms_give_the_same_run() -> None:
    """--form fused answers the same as subgraphs, with the same record."""
    one = command("run", "essay.py", *TOPIC, "--out", "one", "--form", "subgraphs")
    two = command(
        "run", "essay.py", *TOPIC, "--out", "two", "--form", "fused", "--max-concurrency", "2"
    )
    assert (one.code, two.code) == (0, 0)
    assert one.out == two.out
    assert only_transcript("one")["words"] == only_transcript("two")["words"]


def test_a_view_is_in_the_record() -> None:
    """--view is how each call was sent."""
    command("run", "essay.py", *TOPIC, "--view", "alternate")
    assert {step["view"] for step in only_transcript()["steps"]} == {"alternate"}


def test_a_tree_that_keeps_nothing_gives_its_outputs(here: Path) -> None:
    """Where there is no last response, stdout holds what was captured and nobody reads."""
    text = "merge: none\nnodes:\n- prompt: Say a.\n  capture_key: a\n- prompt: Say b.\n"
    (here / "none.yaml").write_text(text + "  capture_key: b\n", encoding="utf-8")
    run = command("run", "none.yaml")
    outputs = only_transcript()["outputs"]
    assert run.out == f"a: {outputs['a']}\nb: {outputs['b']}\n"
    command("run", "none.yaml", "--set", "step_02:capture_key=null", "--out", "one")
    one = only_transcript("one")
    assert one["outputs"] == {"a": outputs["a"]}


def test_a_tree_without_any_result_says_so(here: Path) -> None:
    """An empty stdout is explained."""
    (here / "void.yaml").write_text("merge: none\nprompt: Say a.\n", encoding="utf-8")
    run = command("run", "void.yaml")
    assert (run.code, run.out) == (0, "")
    assert "There is no result" in run.err


def test_what_prompts_print_does_not_reach_stdout(here: Path) -> None:
    """A prompt function that prints does not spoil the JSON."""
    text = (
        "from mergepoint import Step\n\n\ndef say(ctx):\n    print('loud')\n    return 'Hi'\n\n\n"
    )
    (here / "loud.py").write_text(text + "tree = Step(say)\n", encoding="utf-8")
    run = command("run", "loud.py", "--json")
    assert run.data["status"] == "done"
    assert "loud" in run.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nowhere"], "there is no graph or recipe 'nowhere'"),
        (["essay.py:number"], "is a int, not a tree"),
        (["essay.py"], "Input 'topic' is missing. Add --input topic=TEXT"),
        (["essay.py", *TOPIC, "-i", "ton=x"], "Unknown input 'ton' (did you mean 'tone'"),
        (["essay.py", *TOPIC, "--set", "x"], "Use path:field=value"),
        (["essay.py", *TOPIC, "--set", "draft:merge=some"], "allowed are"),
        (["essay.py", *TOPIC, "--without", "nobody"], "no path matches 'nobody'"),
        (["essay.py", *TOPIC, "--without", "essay"], "the root cannot be taken out"),
        (["essay.py", *TOPIC, "--model", "gpt"], "names no provider (did you mean 'openai:gpt'?)"),
        (["essay.py", *TOPIC, "--base-url", "http://x"], "--base-url needs a model"),
        (["essay.py", *TOPIC, "--form", "flat"], "--form"),
        (["essay.py", *TOPIC, "--max-concurrency", "0"], "--max-concurrency"),
        (["essay.py", *TOPIC, "--run-id", "a/b"], "--run-id: name 'a/b' holds '/'"),
        (["essay.py", *TOPIC, "--run-id", ".."], "can't be the ID of a run"),
        (["essay.py", *TOPIC, "--run-id", "last"], "can't be the ID of a run"),
        (["essay.py", *TOPIC, "--out", "essay.py"], "--out essay.py: the folder isn't writable"),
        (["essay.py", *TOPIC, "--set", "draft:model=x"], "essay/draft: model 'x' names no prov"),
        (["essay.py", "--nothing"], "No such option"),
        ([], "Missing argument 'TARGET'"),
    ],
)
@pytest.mark.parametrize("json_too", [False, True])
def test_what_cannot_be_done_is_refused_with_2(
    args: list[str],
    said: str,
    json_too: bool,  # noqa: FBT001
) -> None:
    """One message, on stderr or as JSON on stdout, and nothing is written."""
    run = command("run", *args, *(["--json"] if json_too else []))
    assert run.code == 2
    assert "Traceback" not in run.out + run.err
    assert not transcripts()
    if not json_too:
        assert run.out == ""
        assert said in run.err
        assert run.err.startswith("error: ")
        return
    assert said in run.data["message"]
    assert run.data["status"] == "refused"
    assert run.data["transcript"] is None
    assert set(run.data) == {"status", "type", "message", "path", "transcript"}


def test_a_run_id_is_taken_once() -> None:
    """A second run under one id would overwrite the first; it is refused."""
    assert command("run", "essay.py", *TOPIC, "--run-id", "x").code == 0
    again = command("run", "essay.py", *TOPIC, "--run-id", "x")
    assert again.code == 2
    assert "Choose another --run-id" in again.err


def test_an_example_of_a_graphs_inputs_is_named() -> None:
    """Who forgets the inputs of a graph that comes along is shown a file of them."""
    run = command("run", "flat_chat")
    assert run.code == 2
    _, _, file = run.err.strip().rpartition("--input-file ")
    assert command("run", "flat_chat", "--input-file", file).code == 0
