"""The measures: each is a function of sizes and repetitions that adds to the results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.benchmarks.bare import bare, calls_alone
from tests.benchmarks.by_hand import by_hand
from tests.benchmarks.contender import Contender, Mode
from tests.benchmarks.equality import check_equal
from tests.benchmarks.executor import above_the_door
from tests.benchmarks.isolation import isolation
from tests.benchmarks.model import EchoModel
from tests.benchmarks.ours import fused, journaled_fused, journaled_subgraphs, subgraphs
from tests.benchmarks.result import Group, Results, growth
from tests.benchmarks.sandbox import one_run_of_code
from tests.benchmarks.session import one_more_turn
from tests.benchmarks.steps import Lengths, measure
from tests.benchmarks.streams import beside_asyncio, first_result, made_for_two, memory
from tests.benchmarks.timing import Clock, in_turn
from tests.benchmarks.work import Enclave, Fan, Flat, Work

MODES: tuple[Mode, ...] = ("sync", "async")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the work is; `latency` in seconds is that of the slow model."""

    stages: tuple[int, ...] = (10, 100, 500)
    steps: tuple[int, int] = (100, 3_000)
    journaled: tuple[int, int] = (100, 300)
    slow_stages: int = 10
    branches: int = 1_000
    limit: int = 50
    latency: float = 0.02
    turns: tuple[int, ...] = (100, 1_000, 10_000)
    items: int = 10_000
    many: int = 1_000_000
    conversations: tuple[int, ...] = (10, 100, 1_000)
    rounds: int = 20
    lengths: Lengths = field(default_factory=Lengths)


QUICK = Sizes(
    stages=(5, 20),
    steps=(30, 300),
    slow_stages=3,
    branches=100,
    turns=(100, 1_000),
    items=2_000,
    many=100_000,
    conversations=(10, 100),
    rounds=5,
    journaled=(10, 100),
    lengths=Lengths(rows=(50, 500), growing=(50, 500), saved=(50, 100), part=10),
)

Measure = Callable[[Sizes, int, Results], None]
Make = Callable[[Work, EchoModel], Contender]


def enclave(sizes: Sizes, repetitions: int, results: Results) -> None:
    """CPU a call: stages of a draft, five critics in a row, a consensus."""
    for stages in sizes.stages:
        for mode in MODES:
            group = _group(
                f"enclave, {stages} stages",
                Enclave(stages),
                (by_hand, bare, subgraphs, fused),
                mode,
                repetitions=repetitions,
            )
            group.told(results, {"s/h": 1.4, "f/h": 0.45, "b/h": None})


def flat(sizes: Sizes, repetitions: int, results: Results) -> None:
    """CPU a call: one row of steps that keep everything; and what a step costs in a longer row."""
    for mode in MODES:
        small, large = (
            _group(
                f"flat, {steps:,} steps",
                Flat(steps),
                (by_hand, subgraphs, fused, calls_alone),
                mode,
                repetitions=repetitions,
            )
            for steps in sizes.steps
        )
        small.told(results, {"s/h": None, "f/h": 0.45, "m/h": None})
        large.told(results, {"s/h": 0.7, "f/h": 0.45, "m/h": None})
        results.ratios += [growth(large, small, letter, goal=1.15) for letter in "sf"]


def journal(sizes: Sizes, repetitions: int, results: Results) -> None:
    """CPU a call with the journal in a file: stages with critics in a row, and one row of steps."""
    for mode in MODES:
        for label, work in (
            (f"enclave, {sizes.journaled[0]} stages", Enclave(sizes.journaled[0])),
            (f"flat, {sizes.journaled[1]:,} steps", Flat(sizes.journaled[1])),
        ):
            group = _group(
                label,
                work,
                (by_hand, subgraphs, journaled_subgraphs, fused, journaled_fused),
                mode,
                repetitions=repetitions,
            )
            group.told(results, {"sj/h": 1.55, "fj/h": 0.6, "sj/s": None, "fj/f": None})


def isolated(sizes: Sizes, repetitions: int, results: Results) -> None:
    """CPU a call over conversations of 10, 100 and 1,000 messages, of which each has its copy."""
    isolation(sizes.conversations, repetitions, results)


def wall(sizes: Sizes, repetitions: int, results: Results) -> None:
    """Wall time on a slow model, async: stages, critics in parallel or in a row; and a wide fan."""
    for parallel in (True, False):
        how = "in parallel" if parallel else "in a row"
        group = _group(
            f"{sizes.slow_stages} stages, critics {how}",
            Enclave(sizes.slow_stages, parallel=parallel),
            (bare, subgraphs, fused, by_hand),
            "async",
            repetitions=repetitions,
            latency=sizes.latency,
        )
        group.told(results, {"f/b": 1.03, "s/b": 1.12, "h/b": None})
    fan = _group(
        f"{sizes.branches:,} branches, {sizes.limit} at a time",
        Fan(sizes.branches, limit=sizes.limit),
        (bare, subgraphs, fused, by_hand),
        "async",
        repetitions=repetitions,
        latency=sizes.latency,
    )
    fan.told(results, {"f/b": 1.05, "s/b": None, "h/b": None})


def session(sizes: Sizes, repetitions: int, results: Results) -> None:
    """CPU and wall time of one more turn: in a short session, and in a long one."""
    print(f"sessions of {sizes.turns} turns", file=sys.stderr, flush=True)
    one_more_turn(sizes.turns, repetitions, results)


def streams(sizes: Sizes, repetitions: int, results: Results) -> None:
    """CPU an item, first result, what is made in vain, memory of streams; CPU a call of recipes."""
    print(f"streams of {sizes.items:,} and {sizes.many:,}", file=sys.stderr, flush=True)
    beside_asyncio(sizes.items, repetitions, results)
    first_result(sizes.latency, repetitions, results)
    above_the_door(max(1, sizes.items // 10), repetitions, results)
    made_for_two(results)
    memory(sizes.many, results)


def steps(sizes: Sizes, repetitions: int, results: Results) -> None:
    """Bytes and CPU a step in rows of up to 10,000, with a journal in a file and a checkpointer."""
    measure(sizes.lengths, repetitions, results)


def sandbox(sizes: Sizes, repetitions: int, results: Results) -> None:
    """Wall time of a run of code in each backend that works here, against `python -c pass`."""
    print("runs of code", file=sys.stderr, flush=True)
    one_run_of_code(sizes.rounds, repetitions, results)


MEASURES: dict[str, Measure] = {
    "enclave": enclave,
    "flat": flat,
    "journal": journal,
    "steps": steps,
    "isolation": isolated,
    "wall": wall,
    "session": session,
    "streams": streams,
    "sandbox": sandbox,
}


def _group(
    label: str,
    work: Work,
    makers: Sequence[Make],
    mode: Mode,
    *,
    repetitions: int,
    latency: float | None = None,
) -> Group:
    clock: Clock = "cpu" if latency is None else "wall"
    model = EchoModel(latency=latency or 0.0)
    contenders = [make(work, model) for make in makers]
    check_equal(contenders, model, mode)
    print(f"{label}, {mode}", file=sys.stderr, flush=True)
    times = in_turn(contenders, mode, clock, calls=work.calls, repetitions=repetitions)
    return Group(clock, label, mode, clock, work.calls, times)
