"""Survey: what many killed runs came to, in figures and as a histogram."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

LIMIT = 0.002
"""Of the calls whose answer had come in, how many may be made again on an idle machine."""

BESIDE_OTHERS = 0.02
"""The same where other tests take the processors, so that answers wait longer to be written."""

WIDEST = 40


@dataclass
class Survey:
    """What the killed runs came to.

    `calls` are those that the trees needed, `came` those whose answer had reached the run, in any
    of its processes; `again` of them were asked for again. `in_flight` were asked for again
    because they were killed before an answer came. `lost` are records that had been told or seen
    and were gone. `wrong` says what was not as it should have been.
    """

    runs: int = 0
    kills: int = 0
    calls: int = 0
    came: int = 0
    again: int = 0
    in_flight: int = 0
    lost: int = 0
    wrong: list[str] = field(default_factory=list)
    phases: dict[int, Counter[str]] = field(default_factory=dict)

    def hit(self, records: int, last: str) -> None:
        """Count a kill by how many records there were, and by which was the last."""
        self.kills += 1
        self.phases.setdefault(records, Counter())[last] += 1

    @property
    def share(self) -> float:
        """Return the share of answered calls that were made again."""
        return self.again / self.came if self.came else 0.0

    @property
    def holds(self) -> bool:
        """Return whether all is as it should be."""
        return not self.wrong and not self.lost and self.share <= LIMIT

    def __str__(self) -> str:
        return (
            f"{self.kills} kills in {self.runs} runs of {self.calls} calls: {len(self.wrong)} wrong"
            f", {self.lost} lost; {self.again} of {self.came} answered calls made again "
            f"({self.share:.2%}), {self.in_flight} that were in flight"
        )

    def histogram(self) -> str:
        """Return how often each phase was hit: the number of records, the last of them, a bar."""
        rows = [(f"{n:>3}  {_most(last)}", last.total()) for n, last in sorted(self.phases.items())]
        return "\n".join(["records and the last of them", *bars(rows)])


@dataclass
class Asked(Survey):
    """What the killed runs with gates came to.

    `questions` is how many there were to answer, `asked` how often somebody was asked. `twice`
    counts questions after their answer had been taken; `second` those that were asked again
    because the process was killed with the answer on its way, which `on_their_way` counts.
    `swapped` are answers on record at another gate than they were for.
    """

    questions: int = 0
    asked: int = 0
    twice: int = 0
    on_their_way: int = 0
    second: int = 0
    swapped: int = 0

    @property
    def holds(self) -> bool:
        """Return whether all is as it should be; what calls cost is measured by other campaigns."""
        return not (self.wrong or self.lost or self.twice or self.swapped)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills in {self.runs} runs with {self.questions} questions: "
            f"{len(self.wrong)} wrong, {self.lost} lost, {self.twice} asked twice, {self.swapped} "
            f"swapped; {self.second} asked a second time since the answer was on its way"
        )

    def histogram(self) -> str:
        """Return how often each phase was hit: the number of answers on record, what went on."""
        rows = [
            (f"{n:>2}  {situation}", number)
            for n, situations in sorted(self.phases.items())
            for situation, number in sorted(situations.items())
        ]
        return "\n".join(["answers on record, and what was under way", *bars(rows)])


def _most(last: Counter[str]) -> str:
    """Return the most frequent, and how many others there are."""
    [(path, _)] = last.most_common(1)
    return f"{path} or {len(last) - 1} others" if len(last) > 1 else path


def bars(rows: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Give a line for each row: its label, a bar of a sign each where there is room, its number."""
    wide = max((len(label) for label, _ in rows), default=0)
    scale = max(1.0, max((number for _, number in rows), default=1) / WIDEST)
    for label, number in rows:
        yield f"{label:<{wide}}  {'#' * max(1, round(number / scale))} {number}"
