"""The journal of a real run, cut and with flipped bits: what is resumed of it is never wrong.

The run has parallel children, a structured answer, functions of which one asks the model, a loop
with a gate in it, and it failed once before its end. What is checked is the run that went on, and
not only what was read.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from langchain_core.messages import HumanMessage
from tests.equivalence.engines import RUN
from tests.equivalence.lives import WAYS, Left, NoAnswers, gone_on, left_alone

from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.file_journal import JOURNAL, read_journal
from mergepoint.testing.random_trees import Case
from mergepoint.testing.tree_functions import (
    AnswerTable,
    DataFunction,
    DecisionFunction,
    EchoRunnable,
    PartsPrompt,
    ReplySchema,
    StopRule,
    TableModel,
)
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Loop, Node
from mergepoint.tree.prompts import Template

FLIPS = 2_000
SHARDS = 4
STRIDE = 29  # prime, so that cuts fall at every place of a line; all of them take half an hour
FEW_CUTS = 30
FEW_FLIPS = 100


def tree() -> Node:
    """Return a tree with a node of every kind."""
    drawn = PartsPrompt([("text", "See."), ("count",), ("draw",)])
    sides: list[Node] = [
        Step(drawn, name="draws", system="Be brief."),
        Call(DataFunction("ask", late=True), name="ask", capture_key="found"),
        Step("Fill in.", name="form", schema=ReplySchema, merge="none", capture_key="form"),
    ]
    review = Gate(
        Step(Template("Write of {{ found }}."), name="write", merge="last_response"),
        name="review",
        capture_key="verdict",
        decide=DecisionFunction(["reject", "edit", "approve"]),
    )
    again = Call(DataFunction("next", counter="round"), name="again", capture_key="round")
    rounds = StopRule(3, of="key", key="round")
    return Block(
        [
            Step(Template("Plan {{ topic }}."), name="plan", capture_key="plan"),
            Block(sides, name="sides", parallel=True),
            Loop([review, again], name="loop", until=rounds, merge="last_response"),
            Call(EchoRunnable("whole", asks=True), name="said", merge="all_messages"),
            Step(Template("End with {{ form }}."), name="end"),
        ],
        name="real",
        inputs=["topic"],
    )


@dataclass(frozen=True)
class Real:
    """A run that failed before its last call and went on: its journal's bytes, what it left."""

    case: Case
    whole: bytes
    records: Sequence[CallRecord]
    left: Left

    def there(self, cut: int) -> int:
        """Return how many lines are whole before a cut."""
        return self.whole.count(b"\n", 0, cut)

    def unpaid(self, lines: int) -> list[str]:
        """Return where models are to be asked, with so many lines on record."""
        missing = self.records[max(0, lines - 1) :]
        return sorted(
            record.path
            for record in missing
            if record.answered and record.kind in ("step", "inner")
        )


@cache
def real() -> Real:
    """Return the run, and assert that it is one."""
    case = Case(tree(), [HumanMessage("Hello.", id="g0")], {"topic": "äther"}, AnswerTable())
    failing = replace(case, answers=AnswerTable(failures={"real/end": "timeout"}))
    with TemporaryDirectory() as folder:
        failed = left_alone(failing, WAYS[0], Path(folder))
        assert failed.end.error == ("TimeoutError", "real/end")
        left = gone_on(case, WAYS[0], Path(folder))
        journal = Path(folder) / RUN / JOURNAL
        found = Real(case, journal.read_bytes(), read_journal(journal)[1], left)
    assert left.end.error is None
    assert {record.kind for record in found.records} == {"step", "call", "gate", "inner"}
    assert [record.answered for record in found.records].count(False) == 1
    assert "real/loop/iteration_03/review/write" in {record.path for record in found.records}
    assert len({record.value["decision"] for record in found.records if record.kind == "gate"}) > 1
    return found


def damaged(folder: Path, journal: bytes) -> Path:
    """Return the folder of runs in which the run has this journal and nothing else."""
    shutil.rmtree(folder / RUN, ignore_errors=True)
    (folder / RUN).mkdir(parents=True)
    (folder / RUN / JOURNAL).write_bytes(journal)
    return folder


def check_recovery(folder: Path, journal: bytes, number: int) -> None:
    """Resume what is left of the run; it comes to the same end, and pays what is not on record."""
    run = real()
    left = gone_on(run.case, WAYS[number % len(WAYS)], damaged(folder, journal))
    assert left.end == run.left.end
    assert left.answered == run.left.answered
    assert left.odd == ()
    assert sorted(left.called) == run.unpaid(journal.count(b"\n"))


def check_cuts(folder: Path, cuts: Iterable[int]) -> None:
    """Cut the journal, and resume it; one without a whole header is told, and can be begun anew."""
    run = real()
    for cut in cuts:
        if run.there(cut):
            check_recovery(folder, run.whole[:cut], cut)
            continue
        damaged(folder, run.whole[:cut])
        refused(folder, "resume", "does not hold a whole header", cut)
        assert (folder / RUN / JOURNAL).read_bytes() == run.whole[:cut]
        anew = left_alone(run.case, WAYS[cut % len(WAYS)], folder)
        assert (anew.end, anew.odd) == (run.left.end, ())


def check_flips(folder: Path, flips: Iterable[tuple[int, int]]) -> None:
    """Flip a bit; the line is told and nothing is changed, or the last record is unfinished."""
    run = real()
    for number, (place, bit) in enumerate(flips):
        changed = bytearray(run.whole)
        changed[place] ^= 1 << bit
        if place == len(run.whole) - 1:  # the newline of the last record: the write did not end
            check_recovery(folder, bytes(changed), number)
            continue
        line = run.there(place) + 1
        damaged(folder, bytes(changed))
        for way in ("resume", "reuse", "replay")[: 3 if number % 10 == 0 else 1]:
            refused(folder, way, f"line {line}: its checksum", number)
        assert (folder / RUN / JOURNAL).read_bytes() == changed
        assert [file.name for file in (folder / RUN).iterdir()] == [JOURNAL]


def refused(folder: Path, way: str, told: str, number: int) -> None:
    """Assert that the run is not gone on with, and that no model is called."""
    case = real().case
    given = {} if way == "resume" else {"inputs": case.inputs, "messages": case.messages}
    model = TableModel(table=NoAnswers())
    with pytest.raises(JournalError, match=told):
        WAYS[number % len(WAYS)].generate(
            case.tree, model=model, runs=folder, **{way: RUN}, **given
        )
    assert model.saw == []


def some_flips(number: int, seed: int) -> list[tuple[int, int]]:
    """Return places and bits, the newline at the end among them."""
    draws = random.Random(seed)  # noqa: S311
    last = len(real().whole) - 1
    flips = [(draws.randrange(last), draws.randrange(8)) for _ in range(number - 8)]
    return [*flips, *((last, bit) for bit in range(8))]


@pytest.mark.campaign
def test_a_cut_journal_is_gone_on_with(memory: Path) -> None:
    """Cut at 30 random bytes and around each end of a line, it is resumed to the same end."""
    whole = real().whole
    draws = random.Random(3)  # noqa: S311
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    cuts = {cut for end in ends for cut in (end - 1, end, end + 1) if cut <= len(whole)}
    check_cuts(memory, sorted({0, *cuts, *(draws.randrange(len(whole)) for _ in range(FEW_CUTS))}))


def test_a_flipped_bit_is_refused(memory: Path) -> None:
    """With one of 100 flips nothing is called and nothing is changed, whatever way is taken."""
    check_flips(memory, some_flips(FEW_FLIPS, 1))


@pytest.mark.campaign
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_journal_cut_at_many_bytes_is_gone_on_with(shard: int, memory: Path) -> None:
    """Cut at every eleventh of its bytes, it is resumed to the same end, and no call paid twice."""
    # Forms go by the number of the cut: neighbours in a shard have different ones.
    size = len(real().whole) + 1
    check_cuts(memory, range(shard * size // SHARDS, (shard + 1) * size // SHARDS, STRIDE))


@pytest.mark.campaign
@pytest.mark.parametrize("shard", range(SHARDS))
def test_two_thousand_flipped_bits_are_refused(shard: int, memory: Path) -> None:
    """None of 2,000 flipped bits leads to a run that goes on from something wrong."""
    check_flips(memory, some_flips(FLIPS // SHARDS, 10 + shard))
