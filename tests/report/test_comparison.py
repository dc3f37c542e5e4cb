"""Compare: what differs between two runs, first and after that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from tests.report.runs import Placard

from mergepoint import Result, Template, compare, run_generation, run_recipe
from mergepoint.core.errors import GateOpen, MergepointError
from mergepoint.journal.file_journal import FileStore
from mergepoint.report.call_differences import RunToCompare
from mergepoint.report.comparison import Comparison
from mergepoint.report.comparison_text import comparison_text
from mergepoint.testing import ScriptedModel
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Loop, Node
from mergepoint.tree.transform import with_overrides, without


def essay(**fields: Mapping[str, Any]) -> Node:
    """Return a tree of four calls; `fields` overrides nodes by the last name of their path."""
    tree = Block(
        [
            Step(Template("Write about {{ topic }}."), name="draft"),
            Step("Criticise.", name="critic", merge="none", capture_key="critique"),
            Step(Template("Revise by {{ critique }}."), name="revise", merge="last_response"),
            Step("Give it a title.", name="title"),
        ],
        name="essay",
        inputs=("topic",),
    )
    return with_overrides(tree, dict(fields))


def ran(tree: Node, folder: Path | None, name: str = "one", **options: Any) -> Result[Any]:
    """Run a tree with a model that answers with the path and, if it saw that word, `Loud`."""
    options = {"inputs": {"topic": "rivers"}, "model": Placard(), **options}
    return run_generation(tree, runs=folder, run_id=name, **options)


def kinds(found: Comparison) -> dict[str, str]:
    """Return the kinds of rows by the last name of their path."""
    return {row.path.rpartition("/")[2]: row.kind for row in found.calls}


def why(found: Comparison) -> dict[str, tuple[str, ...]]:
    """Return the reasons of rows that differ, by the last name of their path."""
    return {row.path.rpartition("/")[2]: row.why for row in found.calls if row.why}


def test_equal_runs_have_no_divergence(tmp_path: Path) -> None:
    """Two runs of the same with the same answers are equal."""
    found = compare(ran(essay(), tmp_path), ran(essay(), tmp_path, "two"))
    assert found.equal
    assert found.first_divergence is None
    assert set(kinds(found).values()) == {"same"}
    assert found.sentence == "No call differs."
    assert found.same_result


def test_a_changed_prompt_frees_what_saw_it(tmp_path: Path) -> None:
    """A changed critic is the first divergence; who read its critique is freed, the draft isn't."""
    first = ran(essay(), tmp_path)
    second = ran(
        essay(critic={"prompt": "Criticise it harshly."}),
        tmp_path,
        "two",
        model=Placard(says={"essay/critic": "Bad."}),
    )
    found = compare(first, second)
    assert found.first_divergence == "essay/critic"
    assert found.reason == "prompt"
    assert found.changed == ("essay/critic",)
    assert found.freed == ("essay/revise",)
    assert why(found)["revise"] == ("captures",)
    assert found.calls[2].because == "essay/critic"
    assert found.sentence == "essay/critic has another prompt."
    data = json.loads(json.dumps(found.to_json()))
    assert data["first_divergence"] == "essay/critic"
    assert (data["changed"], data["freed"]) == (["essay/critic"], ["essay/revise"])
    assert data["first"]["prompt"] == {"a": "Criticise.", "b": "Criticise it harshly."}
    assert repr(found) == (
        "Comparison('one', 'two', first_divergence='essay/critic', 1 changed, 1 freed)"
    )


def test_without_journals_the_texts_tell_the_same() -> None:
    """Of runs in memory, a value that a template read explains its other text."""
    first = ran(essay(), None)
    second = ran(
        essay(critic={"prompt": "Criticise it harshly."}),
        None,
        model=Placard(says={"essay/critic": "Bad."}),
    )
    found = compare(first, second)
    assert (found.changed, found.freed) == (("essay/critic",), ("essay/revise",))
    assert why(found) == {"critic": ("prompt",), "revise": ("captures",)}


@pytest.mark.parametrize("stored", [True, False])
def test_another_input_changes_the_calls_that_read_it(tmp_path: Path, *, stored: bool) -> None:
    """The draft reads the topic itself; the others only see the draft."""
    folder = tmp_path if stored else None
    found = compare(ran(essay(), folder), ran(essay(), folder, "two", inputs={"topic": "seas"}))
    assert found.changed == ("essay/draft",)
    assert found.reason == "inputs"
    assert found.freed == ("essay/critic", "essay/revise", "essay/title")
    assert found.settings == {"input topic": ("rivers", "seas")}


def test_another_answer_to_an_equal_request_is_a_change(tmp_path: Path) -> None:
    """A model that answers differently is where the runs diverge."""
    says = Placard(says={"essay/draft": "Another."})
    found = compare(ran(essay(), tmp_path), ran(essay(), tmp_path, "two", model=says))
    assert found.first_divergence == "essay/draft"
    assert found.reason == "answer"
    assert found.sentence == "essay/draft was asked the same and answered differently."
    assert kinds(found) == {
        "draft": "changed",
        "critic": "freed",
        "revise": "freed",
        "title": "freed",
    }


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"critic": {"system": "Be brief."}}, "system"),
        ({"critic": {"examples": [("Hi", "Ho")]}}, "examples"),
        ({"critic": {"temperature": 0.5}}, "params"),
        ({"critic": {"model": ScriptedModel(["Bad."])}}, "model"),
        ({"critic": {"merge": "all_messages"}}, "merge"),
        ({"essay": {"merge": "last_response"}}, "merge"),
    ],
)
def test_every_part_of_a_request_is_named(
    tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    """The reason of the first divergence is the part that was changed."""
    found = compare(ran(essay(), tmp_path), ran(essay(**fields), tmp_path, "two"))
    assert found.reason == reason
    assert found.first_divergence == ("essay" if "essay" in fields else "essay/critic")


def test_a_removed_node_is_only_in_one_run(tmp_path: Path) -> None:
    """A call that was taken out is the first divergence, and those after it are freed."""
    found = compare(ran(essay(), tmp_path), ran(without(essay(), "draft"), tmp_path, "two"))
    assert found.first_divergence == "essay/draft"
    assert found.reason == "only_a"
    assert "the tree of B does not have it" in found.sentence
    assert kinds(found)["critic"] == "freed"


def test_an_unfinished_run_did_not_get_to_the_rest(tmp_path: Path) -> None:
    """A run that failed has an outcome of its own there, and lacks what would follow."""
    first = ran(essay(), tmp_path)
    with pytest.raises(ValueError, match="blank"):
        ran(essay(), tmp_path, "two", model=Placard(says={"essay/revise": " "}))
    found = compare(first, tmp_path / "two")
    assert found.first_divergence == "essay/revise"
    assert found.reason == "outcome"
    assert kinds(found)["title"] == "only_a"
    assert why(found)["title"] == ("not_reached",)
    assert "failed at essay/revise" in found.b.ending


def test_runs_of_different_trees_have_nothing_in_common(tmp_path: Path) -> None:
    """Runs of different trees are compared without an error, and said to be that."""
    other = Block([Step("Hello.", name="hello")], name="greeting")
    found = compare(ran(essay(), tmp_path), ran(other, tmp_path, "two", inputs={}))
    assert set(kinds(found).values()) == {"only_a", "only_b"}
    assert found.first_divergence == "essay/draft"
    assert "no path in common" in found.sentence
    assert found.settings["tree"] == ("essay", "greeting")


def test_loops_are_aligned_by_iteration(tmp_path: Path) -> None:
    """A loop that went on longer has further iterations in one run only."""

    def rounds(most: int) -> Node:
        nodes = [Step("Again.", name="again")]
        loop = Loop(nodes, until=lambda ctx: False, max_iterations=most, name="rounds")
        return Block([with_overrides(loop, {"rounds": {"on_exhausted": "keep"}})], name="work")

    found = compare(ran(rounds(2), tmp_path, inputs={}), ran(rounds(3), tmp_path, "two", inputs={}))
    assert [row.kind for row in found.calls] == ["changed", "same", "same", "only_b"]
    assert found.calls[0].path == "work/rounds"
    assert found.calls[0].why == ("max_iterations",)
    assert found.calls[3].path == "work/rounds/iteration_03/again"


def test_decisions_are_compared(tmp_path: Path) -> None:
    """Of two runs with one question, the decision is what differs; waiting is another one."""
    tree = Block(
        [Gate(Step("Plan.", name="plan"), name="gate"), Step("Do it.", name="do")], name="work"
    )
    runs = [
        ran(tree, tmp_path, said, inputs={}, answerer={"work/gate": said})
        for said in ("approve", "reject")
    ]
    found = compare(*runs)
    assert found.first_divergence == "work/gate"
    assert found.reason == "decision"
    assert kinds(found) == {"plan": "same", "gate": "changed", "do": "freed"}
    with pytest.raises(GateOpen):
        ran(tree, tmp_path, "open", inputs={})
    found = compare(tmp_path / "approve", tmp_path / "open")
    assert found.reason == "decision"
    assert kinds(found)["do"] == "only_a"


def test_a_function_is_compared_by_its_input(tmp_path: Path) -> None:
    """A function with arguments is freed by a capture that it reads, and not by what it ignores."""

    def tree(text: str) -> Node:
        count = Call(lambda text: len(text), args={"text": Template("{{ a }}")}, name="count")
        return Block(
            [
                Step(text, name="ask", capture_key="a"),
                count,
                Call(lambda: 7, args={}, name="seven"),
            ],
            name="work",
        )

    loud = Placard(says={"work/ask": "Loud."})
    found = compare(
        ran(tree("One."), tmp_path, inputs={}),
        ran(tree("Two."), tmp_path, "two", inputs={}, model=loud),
    )
    assert kinds(found) == {"ask": "changed", "count": "freed", "seven": "same"}
    assert why(found)["count"] == ("captures",)


def test_other_opening_messages_free_all_that_saw_them(tmp_path: Path) -> None:
    """The conversation that a run began with belongs to its settings."""
    runs = [
        ran(essay(), tmp_path, said, messages=[HumanMessage(said)]) for said in ("hello", "bye")
    ]
    found = compare(*runs)
    assert found.reason == "messages"
    assert found.changed == ()
    assert len(found.freed) == 4
    assert found.settings == {"messages": (["hello"], ["bye"])}


def test_reused_answers_are_the_same_calls(tmp_path: Path) -> None:
    """A run that reuses another one differs in nothing but where its answers came from."""
    first = ran(essay(), tmp_path)
    again = ran(essay(), tmp_path, "two", reuse=first.path_of_run)
    found = compare(first, again)
    assert found.equal
    assert found.b.reused == 4
    assert all(row.b is not None and row.b.reused for row in found.calls)


def test_unknown_prices_stay_unknown(tmp_path: Path) -> None:
    """Without a price there is no cost, neither of a call nor of a run."""
    found = compare(ran(essay(), tmp_path), ran(essay(), tmp_path, "two"))
    assert found.a.cost is None
    assert found.calls[0].a is not None
    assert found.calls[0].a.cost is None
    assert found.calls[0].a.input_tokens == 1_200


def test_recipes_are_compared_by_the_paths_of_their_things(tmp_path: Path) -> None:
    """A changed parameter changes the calls of its stage and frees those of later stages."""
    for name, prompt in (("one", "{{ content }}"), ("two", "Be brief. {{ content }}")):
        run_recipe(
            "best_of_n", ["Name a color."], knobs={"prompt": prompt, "n": 2}, model="offline",
            runs=tmp_path, run_id=name,
        )  # fmt: skip
    found = compare(tmp_path / "one", tmp_path / "two")
    assert {path.split("/")[1] for path in found.changed} == {"stage_1"}
    assert found.reason == "settings"
    assert found.settings == {"knob prompt": ("{{ content }}", "Be brief. {{ content }}")}


def test_journals_of_older_versions_are_compared_by_their_texts(tmp_path: Path) -> None:
    """Digests of whole steps, as old journals have them, say nothing of the parts."""
    first = ran(essay(), tmp_path)
    second = ran(essay(critic={"prompt": "Harshly."}), tmp_path, "two")
    old = dict.fromkeys(("essay/critic", "essay/revise"), "0123456789abcdef")
    found = compare(RunToCompare(first.transcript, old), RunToCompare(second.transcript, old))
    assert found.changed == ("essay/critic",)


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    """A place without a run is named."""
    with pytest.raises(MergepointError, match="nowhere"):
        compare(tmp_path / "nowhere", tmp_path / "nowhere")


def test_ids_are_looked_up_in_a_folder_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id is that of a run in `runs`, by default the folder of that name, or in a store."""
    monkeypatch.chdir(tmp_path)
    ran(essay(), Path("runs"), "first")
    ran(essay(), Path("runs"), "second")
    assert compare("first", "second").equal
    assert compare("first", "second", runs=FileStore(tmp_path / "runs")).equal
    assert compare("runs/first", "second", runs=tmp_path / "runs").equal
    with pytest.raises(MergepointError, match="third"):
        compare("first", "third")


def test_a_comparison_is_printed_as_the_command_prints_it(tmp_path: Path) -> None:
    """The text has the runs, the words that differ, the calls and totals, and no control codes."""
    first = ran(essay(), tmp_path)
    second = ran(essay(critic={"prompt": "Criticise \x1b[31mharshly."}), tmp_path, "two")
    text = comparison_text(compare(first, second))
    assert "First divergence: essay/critic has another prompt." in text
    assert "[-Criticise.-]" in text
    assert "Changed: 1" in text
    assert "Totals:" in text
    assert "\x1b" not in text
