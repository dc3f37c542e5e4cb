"""Served: the log of the model's server, which runs in another process than what is killed."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.crash.doomed import key_of
from tests.crash.trees import Said, content


def answer_to(said: Said) -> str:
    """Return the one answer to what was said, so that a wrong context gives a wrong answer."""
    *_, last = said
    asked = str(last["content"])
    word = ("good" if content(str(said)) else "poor") if asked.startswith("Judge") else "so"
    return f"answer {key_of(said)} {word}"


@dataclass
class Served:
    """What the server was asked: by the key of what was said, in which attempts."""

    latency: float
    """Seconds that an answer takes, give or take a half."""

    asked: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    chance: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, body: dict[str, Any]) -> str:
        """Note a request when it comes in, and answer in time."""
        said = body["messages"]
        with self.lock:
            self.asked[key_of(said)].append(int(body["user"]))
            takes = self.latency * self.chance.uniform(0.5, 1.5)
        time.sleep(takes)
        return answer_to(said)
