"""Person: who answers at the gates of a run, and notices being asked again."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

from tests.crash.survey import Asked


def decision_at(path: str) -> dict[str, Any]:
    """Return what is decided at a gate; it says which gate it is for."""
    about = {"feedback": f"for {path}"}
    if path.endswith("iteration_01/short"):
        return {"decision": "reject", **about}
    if path.endswith(("/plan", "/left", "/right")):
        return {"decision": "edit", **about, "text": f"edited at {path}"}
    return {"decision": "approve", **about}


class Person:
    """Knows which answers were taken, and which only went off.

    Where `all_listed` holds, each news of open questions names all of them; else one at a time.
    """

    def __init__(self, chance: random.Random, survey: Asked, *, all_listed: bool) -> None:
        self._chance = chance
        self._survey = survey
        self._all_listed = all_listed
        self.begin()

    def begin(self) -> None:
        """Turn to another run."""
        self._taken: set[str] = set()
        self._sent: set[str] = set()
        self.goes_on(())

    def goes_on(self, answered: Collection[str]) -> None:
        """Turn to the next process of the run; what is on record was taken."""
        self._heard = 0
        self._going: set[str] = set()
        self.knows(answered)
        self.open: list[str] = []

    def hear(self, told: Sequence[tuple[str, Any]]) -> bool:
        """Take in the news, in their order; say whether a question is open."""
        for what, about in told[self._heard :]:
            if what == "kept":
                self._taken.add(about)
                self.open = [path for path in self.open if path != about]
            elif what == "open":
                self._asked(about)
        self._heard = len(told)
        return bool(self.open)

    def answers(self) -> dict[str, Any]:
        """Answer one of the open questions, or all of them."""
        self._chance.shuffle(self.open)
        some = self.open[: self._chance.choice((1, len(self.open)))]
        self._sent |= set(some)
        self._going |= set(some)
        self.open = [] if self._all_listed else [path for path in self.open if path not in some]
        return {path: decision_at(path) for path in some}

    def knows(self, answered: Collection[str]) -> None:
        """Learn that answers were taken."""
        self._taken |= set(answered)
        self._going -= set(answered)

    def situation(self, answered: Collection[str]) -> str:
        """Return what was under way when the process was killed, and count answers that were."""
        if going := self._going - set(answered):
            self._survey.on_their_way += len(going)
            return "an answer on its way"
        return "asked" if self.open else "calls under way"

    def _asked(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._survey.asked += 1
            self._survey.twice += path in self._taken
            if path in self._sent - self._taken:
                self._sent.discard(path)
                self._survey.second += 1
            if path not in self.open:
                self.open.append(path)
