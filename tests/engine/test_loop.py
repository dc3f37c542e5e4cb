"""Loops, on every engine: what each iteration sees, when they end, what is kept, their paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.engines import Engine, texts

from mergepoint import (
    Block,
    Loop,
    PromptContext,
    RailError,
    RunContext,
    Step,
    StepError,
    Template,
    check,
    read_transcript,
    run_generation,
)
from mergepoint.core.merge import State
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form
from mergepoint.engine.interpreter import interpret
from mergepoint.engine.run_tree import TRANSCRIPT
from mergepoint.journal.replay import replay
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Call
from mergepoint.tree.nodes import Order
from mergepoint.tree.transform import from_outline, outline


def refine(**fields: object) -> Loop:
    """Return a loop that drafts until the judge says good, its judge's pair dropped."""
    about = {"name": "refine", "max_iterations": 4, **fields}
    return Loop(
        [
            Step("Draft.", name="draft", capture_key="draft"),
            Step("Good?", name="judge", merge="none", capture_key="verdict"),
        ],
        until=lambda ctx: ctx.outputs["verdict"] == "yes",
        **about,  # type: ignore[arg-type]
    )


def model() -> ScriptedModel:
    """Return a model whose second draft is good."""
    return ScriptedModel(
        by_path={
            "refine/iteration_01/draft": "one",
            "refine/iteration_01/judge": "no",
            "refine/iteration_02/draft": "two",
            "refine/iteration_02/judge": "yes",
        }
    )


@pytest.mark.parametrize("given", ["yes", "no"])
def test_a_loop_that_may_be_skipped_is_looked_at_first(engine: Engine, given: str) -> None:
    """Where `until` holds before the first iteration nothing is run and nothing is kept."""
    skipping = Loop(
        [Step("Draft.", name="draft", capture_key="draft")],
        until=lambda ctx: ctx.outputs["wanted"] == "yes" or "draft" in ctx.outputs,
        may_skip=True,
        name="refine",
    )
    wanted = Step("Is it good?", name="wanted", merge="none", capture_key="wanted")
    end = engine(Block([wanted, skipping], name="work"), ScriptedModel([given, "one"]))
    assert end.texts == ([] if given == "yes" else ["Draft.", "one"])
    assert ("draft" in end.outputs) == (given == "no")


def test_what_a_skipped_loop_would_have_written_is_read_with_a_default() -> None:
    """A read of its captures behind it that has no default is a fault before any call."""
    skipping = Loop([Step("Draft.", capture_key="draft")], until=bool, may_skip=True)
    tree = Block([skipping, Step(Template("On {{ draft }}"))])
    (fault,) = check(tree)
    assert "reads 'draft', which is written in a loop that may be skipped" in fault.problem
    assert not check(Block([skipping, Step(Template("On {{ draft }}", defaults={"draft": ""}))]))


def test_a_skipped_loop_replays_from_an_outline() -> None:
    """From the journal alone a loop without any iteration on record was skipped."""
    loop = Loop([Step("Draft.", name="draft")], until=lambda _: True, may_skip=True, name="refine")
    tree = Block([loop, Step("Go.", name="go")], name="work")
    recorder = Recorder()
    interpret(tree, model=ScriptedModel(["gone"]), recorder=recorder)
    seen = replay(recorder.journal.records, from_outline(outline(tree)), base=State())
    assert seen.state is not None
    assert texts(seen.state.messages) == ["Go.", "gone"]


def test_a_loop_goes_on_until_it_holds(engine: Engine) -> None:
    """The second iteration is the last, and everything that was kept is there once, in order."""
    end = engine(refine(), model())
    assert end.texts == ["Draft.", "one", "Draft.", "two"]
    assert end.outputs == {"draft": "two", "verdict": "yes"}


def test_an_iteration_sees_what_those_before_it_made(engine: Engine) -> None:
    """The second draft sees the first, and no verdict."""
    said = model()
    engine(refine(), said)
    [second] = [call for call in said.calls if call.path == "refine/iteration_02/draft"]
    assert texts(second.messages) == ["Draft.", "one", "Draft."]


def test_a_loop_merges_once_at_its_exit(engine: Engine) -> None:
    """With last_response one message leaves four iterations' worth of them."""
    end = engine(refine(merge="last_response", capture_key="text"), model())
    assert end.texts == ["two"]
    assert end.outputs["text"] == "two"


def test_records_have_the_iteration_in_their_path(engine: Engine) -> None:
    """Each call is on record under a path of its own, and replays to the same state."""
    recorder = Recorder()
    tree = refine()
    end = engine(tree, model(), recorder=recorder)
    records = recorder.journal.records
    assert [record.path for record in records] == [
        "refine/iteration_01/draft",
        "refine/iteration_01/judge",
        "refine/iteration_02/draft",
        "refine/iteration_02/judge",
    ]
    again = replay(records, tree, base=State())
    assert again.state is not None
    assert [m.id for m in again.state.messages] == [m.id for m in end.messages]
    assert dict(again.state.outputs) == end.outputs


def test_a_loop_that_never_holds_raises_with_its_path(engine: Engine) -> None:
    """After max_iterations the loop says so, and no further call is made."""
    said = ScriptedModel(["no"] * 4)
    with pytest.raises(RailError, match="wasn't met after 2 iterations") as caught:
        engine(refine(max_iterations=2), said)
    assert getattr(caught.value, "pipeline_path", "") == "refine"
    assert len(said.calls) == 4


def test_a_loop_that_keeps_goes_on_with_what_there_is(engine: Engine) -> None:
    """With on_exhausted="keep" the last iteration's work is merged."""
    tree = Block([refine(max_iterations=2, on_exhausted="keep"), Step("Next.", name="next")])
    end = engine(tree, ScriptedModel(["one", "no", "two", "no", "done"]))
    assert end.texts == ["Draft.", "one", "Draft.", "two", "Next.", "done"]


def test_until_may_name_a_key(engine: Engine) -> None:
    """A loop until a key ends when the key holds True."""
    rounds = Call(lambda ctx: len(ctx.messages) >= 4, name="enough", capture_key="enough")
    tree = Loop([Step("More.", name="more"), rounds], until="enough", name="loop")
    assert engine(tree, ScriptedModel(["a", "b"])).texts == ["More.", "a", "More.", "b"]


def test_until_of_a_text_is_refused(engine: Engine) -> None:
    """A key that holds text would hold always, so it is an error that says what to do."""
    tree = Loop([Step("Good?", capture_key="good")], until="good", name="loop")
    with pytest.raises(StepError, match="neither a bool nor a gate's decision") as caught:
        engine(tree, ScriptedModel(["no"]))
    assert getattr(caught.value, "pipeline_path", "") == "loop"


def test_an_until_that_raises_is_told_with_the_loops_path(engine: Engine) -> None:
    """The error keeps its type, and nothing is merged."""

    def until(ctx: PromptContext) -> bool:
        raise ZeroDivisionError("odd")

    with pytest.raises(ZeroDivisionError) as caught:
        engine(Loop([Step("Hi.")], until=until, name="loop"), ScriptedModel(["a"]))
    assert getattr(caught.value, "pipeline_path", "") == "loop"


def test_a_run_whose_until_raises_is_written_down(tmp_path: Path, form: Form) -> None:
    """Its transcript holds the calls that were answered, and the error."""

    def until(ctx: PromptContext) -> bool:
        raise ZeroDivisionError("odd")

    tree = Loop([Step("Hi.", name="hi")], until=until, name="loop")
    ctx = RunContext(run_id="r1")
    with pytest.raises(ZeroDivisionError):
        run_generation(tree, model=ScriptedModel(["a"]), ctx=ctx, runs=tmp_path, form=form)
    transcript = read_transcript(tmp_path / "r1" / TRANSCRIPT)
    assert [record.path for record in transcript.records] == ["loop/iteration_01/hi"]
    assert transcript.error is not None
    assert transcript.error["type"] == "ZeroDivisionError"


def test_loops_in_loops_count_their_own_rounds(engine: Engine) -> None:
    """The inner loop starts over in each outer iteration, under paths that differ."""
    inner = Loop(
        [Step("In.", name="in")],
        until=lambda ctx: len(ctx.messages) % 4 == 0,
        name="inner",
    )
    outer = Loop([inner], until=lambda ctx: len(ctx.messages) >= 8, name="outer")
    recorder = Recorder()
    engine(outer, ScriptedModel(["a", "b", "c", "d"]), recorder=recorder)
    assert [record.path for record in recorder.journal.records] == [
        "outer/iteration_01/inner/iteration_01/in",
        "outer/iteration_01/inner/iteration_02/in",
        "outer/iteration_02/inner/iteration_01/in",
        "outer/iteration_02/inner/iteration_02/in",
    ]


def test_loops_side_by_side_do_not_share_rounds(engine: Engine) -> None:
    """Two loops in a parallel block count for themselves, and merge in declared order."""

    def until(most: int) -> object:
        return lambda ctx: len(ctx.messages) >= 2 * most

    loops = [
        Loop([Step(f"{name}.", name="s")], until=until(most), name=name)  # type: ignore[arg-type]
        for name, most in (("z", 1), ("a", 3))
    ]
    tree = Block(loops, name="both", parallel=True)
    end = engine(tree, ScriptedModel(["x"] * 4))
    assert end.texts == ["z.", "x", "a.", "x", "a.", "x", "a.", "x"]


def test_an_error_inside_names_the_iteration(engine: Engine) -> None:
    """A failing call in the second iteration is told with that iteration in its path."""
    said = ScriptedModel(["one", "no", ValueError("down")])
    with pytest.raises(ValueError, match="down") as caught:
        engine(refine(), said)
    assert getattr(caught.value, "pipeline_path", "") == "refine/iteration_02/draft"


def test_optional_reads_see_the_iteration_before(engine: Engine) -> None:
    """A reader with a default gets it first, and then the newest version of the key."""
    tree = Loop(
        [
            Step(
                Template("Better than {{ draft }}.", defaults={"draft": "nothing"}),
                name="draft",
                capture_key="draft",
            )
        ],
        until=lambda ctx: ctx.outputs["draft"] == "two",
        name="loop",
    )
    end = engine(tree, ScriptedModel(["one", "two"]))
    assert end.texts == ["Better than nothing.", "one", "Better than one.", "two"]


def test_the_order_of_a_tree_knows_every_iteration() -> None:
    """Paths of later iterations sort behind earlier ones, and before what follows the loop."""
    tree = Block([refine(), Step("Next.", name="next")], name="root")
    order = Order(tree, "root")
    paths = [
        "root/refine/iteration_01/draft",
        "root/refine/iteration_02/draft",
        "root/refine/iteration_02/judge",
        "root/refine/iteration_10/draft",
        "root/next",
    ]
    assert sorted({*paths}, key=order) == paths
    assert order.static("root/refine/iteration_10/draft") == "root/refine/iteration_01/draft"
