"""The canonical pipeline: who sees what in 42 calls, and what comes out of them."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage
from tests.graphs.golden import Ran, case_of, ran, tree_of

from mergepoint.core.errors import TreeError
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.offline.language import content_words
from mergepoint.patterns import ARTISTS
from mergepoint.tree.nodes import walk

STAGES = (
    "initial_prompt",
    "section_2_choice",
    "section_2b_title",
    "section_3_message_focus",
    "section_4_concise_description",
    "image_prompt_creation",
)
VOICES = tuple(artist.key for artist in ARTISTS)
FORMS: tuple[Form, ...] = ("subgraphs", "fused")


@pytest.fixture(scope="module", params=FORMS)
def run(request: pytest.FixtureRequest) -> Ran:
    """Run the pipeline on its example, once for each form."""
    return ran(tree_of("image_prompt"), case_of("image_prompt"), form=request.param)


def at(stage: str, voice: str) -> str:
    """Return the path of a voice."""
    return f"pipeline/{stage}/tot_enclave/{voice}"


def test_a_run_makes_forty_two_calls(run: Ran) -> None:
    """Six stages of a draft, five artists and a consensus, each called once."""
    assert len(run.calls) == len(run.answers) == 42
    assert [path for path in run.answers if path.endswith("/draft")] == [
        f"pipeline/{stage}/draft" for stage in STAGES
    ]


@pytest.mark.parametrize("stage", STAGES)
def test_hemingway_is_sent_no_other_artist(run: Ran, stage: str) -> None:
    """In every stage, what the model is given for Hemingway holds no other artist's text."""
    sent = run.request(at(stage, "hemingway"))
    assert run.answers[f"pipeline/{stage}/draft"] in sent
    personas = [artist.persona for artist in ARTISTS if artist.key != "hemingway"]
    assert not any(persona in sent for persona in personas)
    for other in STAGES:
        for voice in VOICES:
            assert run.answers[at(other, voice)] not in sent


@pytest.mark.parametrize("stage", STAGES)
def test_no_artist_is_sent_another(run: Ran, stage: str) -> None:
    """Artist two does not see artist one, nor any other, in any stage."""
    for voice in VOICES:
        sent = run.request(at(stage, voice))
        for other in VOICES:
            assert run.answers[at(stage, other)] not in sent


@pytest.mark.parametrize("stage", STAGES)
def test_consensus_is_sent_all_five(run: Ran, stage: str) -> None:
    """In every stage, the consensus is given the draft and what each of the five artists said."""
    sent = run.request(f"pipeline/{stage}/tot_enclave/consensus")
    assert run.answers[f"pipeline/{stage}/draft"] in sent
    for voice in VOICES:
        assert run.answers[at(stage, voice)] in sent


def test_a_stage_sees_one_message_of_each_stage_before(run: Ran) -> None:
    """A draft is sent the system message, one answer for each earlier stage, and its prompt."""
    for number, stage in enumerate(STAGES):
        system, *before, _ = run.calls[f"pipeline/{stage}/draft"].messages
        assert system.type == "system"
        assert [str(message.text) for message in before] == [
            run.answers[f"pipeline/{earlier}/tot_enclave/consensus"] for earlier in STAGES[:number]
        ]


def test_the_conversation_holds_one_assistant_message_a_stage(run: Ran) -> None:
    """At the end there are six messages, the consensus of each stage, and nothing else."""
    assert all(isinstance(message, AIMessage) for message in run.messages)
    assert [str(message.text) for message in run.messages] == [
        run.answers[f"pipeline/{stage}/tot_enclave/consensus"] for stage in STAGES
    ]


def test_the_image_prompt_is_an_output(run: Ran) -> None:
    """The result is not blank, is the last message, and the voices are outputs beside it."""
    assert run.outputs["image_prompt"].strip()
    assert run.outputs["image_prompt"] == run.text
    assert set(run.outputs) == {
        "image_prompt",
        *(f"enclave.{stage}.{voice}" for stage in STAGES for voice in VOICES),
    }


def test_paths_are_distinct() -> None:
    """One enclave name in six stages: every path of the tree is there once."""
    paths = [path for path, _ in walk(tree_of("image_prompt"))]
    assert len(set(paths)) == len(paths)
    assert sum(path.endswith("/tot_enclave/consensus") for path in paths) == 6


def test_the_prompt_is_made_of_brief_likes_and_dislikes(run: Ran) -> None:
    """The offline result names subject, scene, mood and likes, and refuses the dislikes."""
    text = run.text
    assert text.startswith("Poster of the night market on the old harbour pier")
    for wanted in ("one lantern hanging over the gate", "deep blue", "warm and secret mood"):
        assert wanted in text
    assert text.endswith(", no photorealism, no crowds, no neon signs")
    assert "a little" not in text


@pytest.mark.parametrize(
    ("brief", "opening"),
    [
        ("cats", "Image of cats"),
        ("Could you design a flyer for our tool library? Show shelves.", "Flyer of our tool lib"),
        ("An ad for a bakery, aimed at commuters. No people.", "Ad for a bakery"),
        ("Ein Plakat mit einem Leuchtturm", "Image of Ein Plakat mit einem Leuchtturm"),
        ("A mural of a whale\nand a child in a rowing boat", "Mural of a whale and a child in a"),
    ],
)
def test_other_briefs_give_prompts_too(brief: str, opening: str) -> None:
    """Short, long, foreign and broken lines: the prompt opens with the subject, without echoes."""
    text = ran(tree_of("image_prompt"), {"inputs": {"brief": brief}}, form="fused").text
    assert text.startswith(opening)
    for echo in ("brief", "likes", "prompt", "none stated", "critique", "edit"):
        assert echo not in content_words(text)


def test_a_brief_is_asked_for() -> None:
    """Likes and dislikes may be left out, the brief may not."""
    graph = compile_graph(tree_of("image_prompt"), model="offline", form="fused")
    with pytest.raises(TreeError, match="'brief' is missing"):
        graph.invoke({"inputs": {"likes": "red"}})
