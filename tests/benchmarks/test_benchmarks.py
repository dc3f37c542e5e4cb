"""The benchmarks do what they say; how fast anything is, no test asserts."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Iterator

import pytest
from tests.benchmarks.bare import bare, calls_alone
from tests.benchmarks.batch import main as batches
from tests.benchmarks.by_hand import by_hand, saved_by_hand
from tests.benchmarks.command import main
from tests.benchmarks.contender import Contender, Mode
from tests.benchmarks.equality import UnequalError, check_equal
from tests.benchmarks.journals import measured
from tests.benchmarks.measures import MODES, Sizes
from tests.benchmarks.model import EchoModel
from tests.benchmarks.ours import fused, journaled_fused, journaled_subgraphs, subgraphs
from tests.benchmarks.steps import Lengths
from tests.benchmarks.work import Enclave, Fan, Flat, Parts, Work

SMALLEST = Sizes(
    stages=(1, 2),
    steps=(2, 5),
    journaled=(1, 2),
    slow_stages=1,
    branches=3,
    limit=2,
    latency=0.001,
    turns=(1, 3),
    items=40,
    many=1_000,
    conversations=(2, 4),
    rounds=1,
    lengths=Lengths(rows=(4, 8), growing=(4, 8), saved=(4, 6), part=2),
)
WORKS: tuple[Work, ...] = (
    Enclave(2),
    Enclave(2, parallel=True),
    Flat(5),
    Flat(5, keeps=False),
    Fan(5, limit=2),
)


@pytest.fixture(autouse=True)
def collected_at_once() -> Iterator[None]:
    """Keep what other tests left out of the collections before each time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.first_case
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("work", WORKS, ids=str)
def test_contenders_do_the_same_work(work: Work, mode: Mode) -> None:
    """Every contender sends, keeps and records the same, with one path a call."""
    model = EchoModel()
    makers = (by_hand, bare, subgraphs, fused, journaled_subgraphs, journaled_fused)
    check_equal([make(work, model) for make in makers], model, mode)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_checkpointer_saves_the_same_work(*, keeps: bool) -> None:
    """The graph whose state SqliteSaver keeps does what ours do, and leaves a file."""
    model = EchoModel()
    saved = saved_by_hand(Flat(5, keeps=keeps), model)
    check_equal([saved, journaled_fused(Flat(5, keeps=keeps), model)], model, "sync")
    assert saved.disk is not None
    assert saved.disk.written() > 10_000


def test_parts_are_the_same_in_both_forms() -> None:
    """Rows that leave their last response alone send and record the same, fused or not."""
    model = EchoModel()
    makers = (journaled_subgraphs, journaled_fused)
    check_equal([make(Parts(2, 3), model) for make in makers], model, "sync")


def test_only_the_last_run_counts_on_disk() -> None:
    """What a contender wrote is the journal of its last run, and clearing takes all of them."""
    contender = journaled_fused(Flat(3), EchoModel())
    assert contender.disk is not None
    contender.run()
    once = contender.disk.written()
    contender.run()
    assert 0 < contender.disk.written() < 1.5 * once
    contender.disk.clear()
    contender.run()
    assert contender.disk.written() > 0


@pytest.mark.parametrize("mode", MODES)
def test_calls_alone_are_those_of_a_flat_row(mode: Mode) -> None:
    """The model calls whose cost is taken off are sent what the steps of a row are sent."""
    model = EchoModel()
    check_equal([bare(Flat(5), model), calls_alone(Flat(5), model)], model, mode)


@pytest.mark.parametrize(
    ("one", "other", "field"),
    [
        (Flat(2), Flat(3), "conversation"),
        (Enclave(1), Flat(1), "conversation"),
    ],
)
def test_other_work_is_noticed(one: Work, other: Work, field: str) -> None:
    """Contenders whose results differ are never timed against each other."""
    model = EchoModel()
    with pytest.raises(UnequalError, match=f"b and f differ .sync. in {field}"):
        check_equal([bare(one, model), fused(other, model)], model, "sync")


def test_calls_that_saw_something_else_are_noticed() -> None:
    """Equal results are not enough: what each call was sent must be equal too."""
    model = EchoModel()
    straight = bare(Flat(2), model)

    def strays() -> object:
        ran = straight.run()
        model.invoke("a call that nobody else makes")
        return ran

    stray = Contender("x", strays, straight.arun)  # type: ignore[arg-type]
    with pytest.raises(UnequalError, match="in seen"):
        check_equal([straight, stray], model, "sync")


@pytest.mark.campaign
def test_all_ratios_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    """The command gives every ratio that it promises, sync and async, with its goal."""
    main(["--reps", "1", "--json"], sizes=SMALLEST)
    told = json.loads(capsys.readouterr().out)
    assert set(told["machine"]) >= {"cores", "memory", "python", "langgraph", "langchain-core"}
    ratios = told["ratios"]
    goals = {(row["work"], row["mode"], row["over"]) for row in ratios if row["goal"] is not None}
    enclaves = {
        (f"enclave, {stages} stages", mode, over)
        for stages in SMALLEST.stages
        for mode in MODES
        for over in ("s/h", "f/h")
    }
    flats = {("flat, 5 steps", mode, over) for mode in MODES for over in ("s/h", "f/h")}
    flats |= {("flat, 2 steps", mode, "f/h") for mode in MODES}
    flats |= {("flat, 5 steps against 2", mode, f"{letter}-m") for mode in MODES for letter in "sf"}
    walls = {
        (f"1 stages, critics {how}", "async", over)
        for how in ("in parallel", "in a row")
        for over in ("s/b", "f/b")
    }
    sessions = {
        (f"one more {what} after 3 against 1", "sync", "s/s") for what in ("turn", "answer")
    }
    flows = {
        (f"40 items x 4 stages, {how}, at once", "async", "p/w")
        for how in ("one by one", "16 wide")
    }
    flows |= {(f"4 calls of a recipe, {width} wide", "async", "x/60 us") for width in (1, 16)}
    flows |= {("first of 4 stages of 1 ms, 16 wide", "async", "p/ideal")}
    for width, prefetch, made in ((1, 0, 2), (2, 0, 4), (2, 3, 7)):
        what = f"2 wanted of 10, width {width}, prefetch {prefetch}"
        flows |= {(f"{what}: {made} made, {made} allowed", "async", "p/most")}
        flows |= {(f"{what}: 0 tasks left", "async", "p")}
    flows |= {
        (work, "async", "p") for work, _, _ in goals if work.startswith("1,000 items through")
    }
    walls |= {("3 branches, 2 at a time", "async", "f/b")}
    journals = {
        (work, mode, over)
        for work in ("enclave, 1 stages", "flat, 2 steps")
        for mode in MODES
        for over in ("sj/h", "fj/h")
    }
    steps = _goals_of_steps()
    runs = {one for one in goals if one[0].startswith("a run in ")}
    assert ("a run in monty against python -c pass", "async", "r/p") in runs
    assert goals == enclaves | flats | walls | sessions | flows | journals | steps | runs
    for row in ratios:
        assert row["reached"] == (None if row["goal"] is None else row["median"] <= row["goal"])


def _goals_of_steps() -> set[tuple[str, str, str]]:
    kinds = ("keep nothing", "keep everything", "parts of 2")
    letters = ("sj", "fj")
    bytes_and_time = {
        (f"{kind}, 8 steps against 4", "sync", letter) for kind in kinds for letter in letters
    }
    beside = {
        (f"{kind}, beside the text, of 1,500", "sync", letter)
        for kind in kinds
        for letter in letters
    }
    beyond = {("keep everything, 8 steps against 4", "sync", f"{letter}-m") for letter in letters}
    return bytes_and_time | beside | beyond


def test_bytes_are_told_beside_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Each step's bytes are counted on disk, and less the text they are those of all journals."""
    main(["steps", "--reps", "1", "--json"], sizes=SMALLEST)
    written = json.loads(capsys.readouterr().out)["written"]
    assert {row["contender"] for row in written} == {"sj", "fj", "hq"}
    for row in written:
        assert row["bytes"] > row["beside"] > 0
        if row["contender"] != "hq":
            assert row["beside"] < 1_500


def test_one_measure_alone_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A measure runs alone, and the table shows the machine, the goal and the ratio."""
    main(["wall", "--reps", "1"], sizes=SMALLEST)
    told = capsys.readouterr().out
    assert "cores" in told
    assert "f/b" in told
    assert "1.03" in told
    assert "enclave" not in told


def test_the_model_answers_from_what_it_is_sent() -> None:
    """An answer tells prompt and number of messages, so equal answers need equal calls."""
    model = EchoModel()
    assert model.invoke("hello").text == "After 1 messages: hello"


def test_journals_of_each_store_are_measured() -> None:
    """A few runs in files and segments give a line each, beside memory."""
    memory, *found = measured(["files", "segments"], 3, None)
    assert [one.name.partition(",")[0] for one in found] == ["files"] * 3 + ["segments"] * 3
    for one in found:
        assert one.kilobytes > 1
        assert one.watched.elapsed > 0
        assert "runs/s" in one.told(memory)


@pytest.mark.campaign
def test_calls_of_a_client_in_a_batch_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """A batch whose calls go to a server costs more than one with a model in the process."""
    asyncio.run(batches(["client"], whole=False))
    found = re.findall(r"([\d.]+) (?:ms/run|with OpenAI)", capsys.readouterr().out)
    own, whole = map(float, found)
    assert 0 < own < whole
