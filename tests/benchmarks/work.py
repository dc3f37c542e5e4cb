"""Work: what every contender does, as plain text and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

QUESTION = "Write a short story about a lighthouse keeper who collects unsent letters."
CRITICS = ("clarity", "pace", "voice", "structure", "originality")


@dataclass(frozen=True, slots=True)
class Enclave:
    """Stages of seven calls: a draft, five critics who see the draft only, and a consensus.

    A stage adds its consensus to the conversation and nothing else; what the critics said ends
    up in the outputs. With `parallel` the critics of a stage run side by side.
    """

    stages: int
    _: KW_ONLY
    parallel: bool = False

    @property
    def calls(self) -> int:
        """Return the number of model calls."""
        return self.stages * (len(CRITICS) + 2)


@dataclass(frozen=True, slots=True)
class Flat:
    """Steps in one row. Each sees all prompts and answers before it; without `keeps` none."""

    steps: int
    _: KW_ONLY
    keeps: bool = True

    @property
    def calls(self) -> int:
        """Return the number of model calls."""
        return self.steps


@dataclass(frozen=True, slots=True)
class Fan:
    """Branches side by side, at most `limit` at a time; all prompts and answers are kept."""

    branches: int
    _: KW_ONLY
    limit: int

    @property
    def calls(self) -> int:
        """Return the number of model calls."""
        return self.branches


@dataclass(frozen=True, slots=True)
class Parts:
    """Rows of steps, one after the other; a row leaves its last response alone."""

    rows: int
    steps: int

    @property
    def calls(self) -> int:
        """Return the number of model calls."""
        return self.rows * self.steps


Work = Enclave | Flat | Fan


def stage_name(stage: int) -> str:
    """Return the name of a stage, from 1."""
    return f"stage_{stage:03d}"


def step_name(step: int) -> str:
    """Return the name of a step or branch, from 1."""
    return f"step_{step:04d}"


def key(stage: int, critic: str) -> str:
    """Return the output under which a critique is kept."""
    return f"{stage_name(stage)}_{critic}"


def draft_prompt(stage: int) -> str:
    """Return the prompt of a stage's draft."""
    return f"This is stage {stage}. Rewrite the story as you would now tell it, in five sentences."


def critic_prompt(stage: int, critic: str) -> str:
    """Return the prompt of a stage's critic."""
    return f"As a critic of {critic}, name the weakest sentence of the draft of stage {stage}."


def consensus_prompt(stage: int, critiques: Mapping[str, str]) -> str:
    """Return the prompt of a stage's consensus; `critiques` are by critic."""
    said = "\n".join(f"- {critic}: {critiques[critic]}" for critic in CRITICS)
    return f"The critics of stage {stage} said:\n{said}\nWrite the story again with that in mind."


def step_prompt(step: int) -> str:
    """Return the prompt of a step or branch."""
    return f"Tell part {step} of the story and end it with a question."
