"""Candidate and ScoredCandidate: what a search proposes, and what a judge made of it.

The pair that best-of-n needs: a generator samples, a verifier ranks (Cobbe et al. 2021,
https://arxiv.org/abs/2110.14168). `Thing.from_candidate` and `Thing.from_scored` bring what other
code found into streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from mergepoint.streams.sealed import NOTHING


@dataclass(frozen=True, slots=True)
class Candidate:
    """What might be an answer: JSON content, and facts about it by name."""

    content: Any
    _: KW_ONLY
    facts: Mapping[str, Any] = NOTHING


@dataclass(frozen=True, slots=True)
class ScoredCandidate:
    """A candidate, its score (higher is better) and why; the reason may be blank."""

    candidate: Candidate
    score: float
    _: KW_ONLY
    reason: str = ""
