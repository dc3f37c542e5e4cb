"""Patterns: voices share a base and see no other voice, one answer is kept, keys stay apart."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from mergepoint.core.errors import MissingKey, TreeError
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.engine.interpreter import interpret
from mergepoint.patterns import (
    ARTISTS,
    Artist,
    enclave,
    generate_then_select,
    refined_stage,
    threads,
)
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node, walk
from mergepoint.tree.prompts import Template
from mergepoint.tree.transform import with_overrides, without
from mergepoint.tree.validate import check

FORMS: tuple[Form, ...] = ("subgraphs", "fused")
KEYS = ("hemingway", "munch", "da_vinci", "representative", "chameleon")


def told(seen: tuple[BaseMessage, ...]) -> str:
    """Return all that a call was sent, as one text."""
    return "\n".join(str(message.text) for message in seen)


def saying(path: str) -> str:
    """Return an answer that can be told apart from every other."""
    return f"<said at {path}>"


def run(tree: Node, *, form: Form = "subgraphs", **inputs: str) -> tuple[dict[str, Any], Any]:
    """Run a tree in which every step says where it is; give what each path saw, and the result."""
    steps = [path for path, node in walk(tree) if isinstance(node, Step)]
    model = ScriptedModel(by_path={path: [saying(path)] for path in steps})
    result = compile_graph(tree, model=model, form=form).invoke({"inputs": inputs})
    model.assert_used_up()
    return {seen.path: told(seen.messages) for seen in model.calls}, result


def test_the_artists_are_five_single_voices() -> None:
    """There is one source of the artists: five distinct keys, labels and personas."""
    assert tuple(artist.key for artist in ARTISTS) == KEYS
    assert len({artist.label for artist in ARTISTS}) == len({a.persona for a in ARTISTS}) == 5
    for artist in ARTISTS:
        assert artist.label in artist.persona
        others = {other.label for other in ARTISTS} - {artist.label}
        assert not any(other in artist.persona for other in others)


@pytest.mark.parametrize(
    ("key", "label", "persona"),
    [("a/b", "A", "p"), ("a b", "A", "p"), ("a", " ", "p"), ("a", "A", ""), ("a", 'A "x"', "p")],
)
def test_an_artist_that_cannot_be_named_or_told_is_refused(
    key: str, label: str, persona: str
) -> None:
    """A key must do as name and key; label and persona must say something; a label is a name."""
    with pytest.raises(TreeError):
        Artist(key, label, persona)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parallel", [True, False])
def test_no_artist_sees_another(form: Form, *, parallel: bool) -> None:
    """Side by side or in turn, artist two is sent the draft and nothing that artist one said."""
    tree = Block([refined_stage("stage", "Write a line.", parallel=parallel)])
    saw, _ = run(tree, form=form)
    for key in KEYS:
        sent = saw[f"pipeline/stage/tot_enclave/{key}"]
        assert saying("pipeline/stage/draft") in sent
        for other in KEYS:
            assert saying(f"pipeline/stage/tot_enclave/{other}") not in sent


@pytest.mark.parametrize("form", FORMS)
def test_the_consensus_sees_all_voices_and_is_what_remains(form: Form) -> None:
    """Consensus is sent the draft and five voices; its answer alone is in the conversation."""
    tree = Block([refined_stage("stage", "Write a line.", capture_key="line")])
    saw, result = run(tree, form=form)
    sent = saw["pipeline/stage/tot_enclave/consensus"]
    assert saying("pipeline/stage/draft") in sent
    for key in KEYS:
        assert saying(f"pipeline/stage/tot_enclave/{key}") in sent
    final = saying("pipeline/stage/tot_enclave/consensus")
    assert [str(message.text) for message in result["messages"]] == [final]
    assert result["outputs"]["line"] == final
    assert set(result["outputs"]) == {"line", *(f"enclave.stage.{key}" for key in KEYS)}


def test_voices_share_every_message_but_the_last() -> None:
    """What siblings are sent is equal up to the prompt, so that a provider can cache it."""
    tree = Block([refined_stage("stage", "Write a line.", system="You write lines.")])
    model = ScriptedModel(default="said")
    interpret(tree, model=model)
    sent = [call.messages for call in model.calls if call.path.rpartition("/")[2] in KEYS]
    fronts = [[(message.type, message.text) for message in seen[:-1]] for seen in sent]
    assert len(fronts) == 5
    assert all(front == fronts[0] for front in fronts)
    assert fronts[0][0] == ("system", "You write lines.")
    assert len({str(seen[-1].text) for seen in sent}) == 5


def test_each_prompt_is_its_own_artists() -> None:
    """No prompt was bound late: each voice is told its own persona, label and solitude."""
    tree = Block([refined_stage("stage", "Write a line.")])
    saw, _ = run(tree)
    for artist in ARTISTS:
        sent = saw[f"pipeline/stage/tot_enclave/{artist.key}"]
        assert artist.persona in sent
        assert f"as {artist.label}." in sent
        assert "You see no other voice" in sent
        assert "{label}" not in sent


def test_voices_run_side_by_side_unless_told_otherwise() -> None:
    """With parallel voices five calls are under way at once; with parallel=False one is."""
    meeting = threading.Barrier(len(ARTISTS), timeout=10)

    def meet(_: object) -> str:
        meeting.wait()
        return "said"

    together: dict[str, Callable[[Any], str]] = {
        f"pipeline/stage/tot_enclave/{key}": meet for key in KEYS
    }
    tree = Block([refined_stage("stage", "Write a line.")])
    model = ScriptedModel(by_path=together, default="said")
    compile_graph(tree, model=model).invoke({})
    assert len(model.calls) == 7

    under_way: list[int] = []
    running = threading.Semaphore(1)

    def alone(_: object) -> str:
        assert running.acquire(blocking=False)
        under_way.append(1)
        running.release()
        return "said"

    tree = Block([refined_stage("stage", "Write a line.", parallel=False)])
    compile_graph(tree, model=ScriptedModel(default=alone)).invoke({})
    assert len(under_way) == 7


@pytest.mark.parametrize("form", FORMS)
def test_a_consensus_without_one_of_its_voices_fails_with_the_key(form: Form) -> None:
    """A voice that nobody wrote is refused before a call is paid; MissingKey names it in a part."""
    tree = Block([refined_stage("stage", "Write a line.")])
    torn = without(tree, "**/tot_enclave/munch")
    with pytest.raises(TreeError, match=r"stage\.munch"):
        compile_graph(torn, model="offline", form=form)
    part = compile_graph(
        tree, model="offline", form=form, at="pipeline/stage/tot_enclave/consensus"
    )
    voices = {f"enclave.stage.{key}": "- cut it" for key in KEYS}
    with pytest.raises(MissingKey, match=r"stage\.munch") as raised:
        part.invoke({"inputs": {**voices, "enclave.stage.munch": " "}})
    assert raised.value.key == "enclave.stage.munch"


def test_repeated_enclaves_have_paths_and_keys_of_their_own() -> None:
    """Two stages with an enclave of one name: every path and key is there once."""
    tree = Block([refined_stage("one", "Write."), refined_stage("two", "Write again.")])
    assert not check(tree)
    paths = [path for path, _ in walk(tree)]
    assert len(set(paths)) == len(paths)
    assert "pipeline/one/tot_enclave/munch" in paths
    assert "pipeline/two/tot_enclave/munch" in paths
    keys = [node.capture_key for _, node in walk(tree) if node.capture_key]
    assert len(set(keys)) == len(keys) == 10


def test_two_stages_of_one_name_need_a_scope() -> None:
    """Stages of one name in different blocks write one key twice; `scope` is the way out."""
    first = Block([refined_stage("stage", "Write.")], name="a")
    again = Block([refined_stage("stage", "Write.")], name="b")
    assert any("enclave.stage.munch" in fault.problem for fault in check(Block([first, again])))
    scoped = Block([refined_stage("stage", "Write.", scope="b.stage")], name="b")
    assert not check(Block([first, scoped]))


def test_a_draft_may_be_text_a_template_or_a_node() -> None:
    """What has no name is called draft; a node keeps its own name, and a block is a draft too."""
    text = refined_stage("s", "Write.")
    template = refined_stage("s", Template("Write of {{ topic }}."), system="Be brief.")
    own = refined_stage("s", Step("Write.", name="sketch"))
    block = refined_stage("s", Block([Step("Think."), Step("Write.")]))
    assert [stage.nodes[0].name for stage in (text, template, own, block)] == [
        "draft",
        "draft",
        "sketch",
        "draft",
    ]
    drafted = template.nodes[0]
    assert isinstance(drafted, Step)
    assert drafted.system == "Be brief."


def test_own_voices_and_own_words() -> None:
    """Artists, critique and consensus can be given; templates in them read inputs and outputs."""
    critic = Artist("critic", "the Critic", "You are strict.")
    tree = Block(
        [
            refined_stage(
                "stage",
                "Write.",
                artists=[critic],
                critique="Judge as {label} for {{ audience }}.",
                consensus="Revise for {{ audience }}.",
                enclave_name="jury",
            )
        ],
        inputs=("audience",),
    )
    saw, _ = run(tree, audience="sailors")
    assert saw["pipeline/stage/jury/critic"].endswith(
        "You are strict.\n\nJudge as the Critic for sailors."
    )
    assert "Revise for sailors." in saw["pipeline/stage/jury/consensus"]
    assert '<voice name="the Critic">' in saw["pipeline/stage/jury/consensus"]


def test_an_enclave_is_a_block_like_any_other() -> None:
    """Overrides by glob reach every voice; whatever its merge, no critique leaves an enclave."""
    tree = Block([refined_stage("one", "Write."), refined_stage("two", "Write.")])
    warm = with_overrides(tree, {"**/tot_enclave/*": {"temperature": 0.9}})
    voices = [node for path, node in walk(warm) if path.rpartition("/")[2] in KEYS]
    assert [node.temperature for node in voices if isinstance(node, Step)] == [0.9] * 10
    assert sum(isinstance(node, Step) for _, node in walk(without(tree, "**/tot_enclave"))) == 2
    open_ = Block([enclave("e", merge="all_messages")])
    _, result = run(open_)
    assert [str(message.text) for message in result["messages"]] == [
        saying("pipeline/tot_enclave/consensus")
    ]
    loose = Block([Step("Write."), enclave("e", merge="none", capture_key="kept")])
    _, result = run(loose)
    assert result["outputs"]["kept"] == saying("pipeline/tot_enclave/consensus")
    assert len(result["messages"]) == 2


@pytest.mark.parametrize(
    ("scope", "artists", "said"),
    [
        ("s", (), "no artists"),
        ("s", (ARTISTS[0], ARTISTS[0]), "two artists"),
        ("a b", ARTISTS, "without spaces"),
    ],
)
def test_threads_without_voices_or_keys_are_refused(
    scope: str, artists: tuple[Artist, ...], said: str
) -> None:
    """No artists, two with one key, and a scope that is no key each say what is wrong."""
    with pytest.raises(TreeError, match=said):
        threads(scope, artists)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parallel", [True, False])
def test_generations_are_independent_and_the_choice_is_kept(form: Form, *, parallel: bool) -> None:
    """No generation sees another, the selector sees all of them, its answer alone is kept."""
    tree = Block([generate_then_select("name", "Name a ship.", n=3, parallel=parallel)])
    saw, result = run(tree, form=form)
    made = [f"pipeline/name/generations/generation_{number:02d}" for number in (1, 2, 3)]
    for path in made:
        assert "<said at" not in saw[path]
    for path in made:
        assert saying(path) in saw["pipeline/name/select"]
    assert [str(message.text) for message in result["messages"]] == [saying("pipeline/name/select")]
    assert result["outputs"] == {
        f"name.{number}": saying(path) for number, path in enumerate(made, start=1)
    }


def test_different_generations_can_be_given() -> None:
    """A list of steps is asked once each, and keeps what its steps say of themselves."""
    steps = [Step("Name a ship.", temperature=0.1), Step("Name a boat.", temperature=0.9)]
    block = generate_then_select("name", steps, scope="ship", capture_key="best")
    generations = block.nodes[0]
    assert isinstance(generations, Block)
    kept = [node for node in generations.nodes if isinstance(node, Step)]
    assert [(step.temperature, step.capture_key) for step in kept] == [
        (0.1, "ship.1"),
        (0.9, "ship.2"),
    ]
    assert not check(Block([block]))


def test_a_selection_needs_steps() -> None:
    """No generation at all, a node that is no step, and a scope that is no key are refused."""
    with pytest.raises(TreeError, match="at least one"):
        generate_then_select("name", "Name a ship.", n=0)
    with pytest.raises(TreeError, match="not Block"):
        generate_then_select("name", [Block([])])  # type: ignore[list-item]
    with pytest.raises(TreeError, match="without spaces"):
        generate_then_select("a name", "Name a ship.")


def test_the_offline_model_plays_every_part() -> None:
    """Without a key a stage ends in a revised text, and a selection in one of its options."""
    stage = refined_stage("stage", "Describe a poster of a very old ship.")
    text = str(interpret(Block([stage]), model="offline").messages[-1].text)
    assert "old ship" in text
    assert "very" not in text
    names = [Step("Write a title for a book about otters."), Step("Write a title about rain.")]
    state = interpret(Block([generate_then_select("name", names)]), model="offline")
    assert str(state.messages[-1].text) in {state.outputs["name.1"], state.outputs["name.2"]}
