"""The tree of the batch benchmark: a draft, five critics, and a consensus, as YAML text."""

from __future__ import annotations

import os

from tests.benchmarks.model import EchoModel
from tests.benchmarks.work import CRITICS

from mergepoint import Block, Step, Template, with_overrides

CALLS = len(CRITICS) + 2
MODEL = EchoModel(latency=float(os.environ.get("LATENCY", "0")))

tree = Block(
    [
        Step(Template("Write about {{ topic }}."), name="draft", capture_key="draft"),
        Block(
            [
                Step(
                    Template(f"Judge the {critic} of {{{{ draft }}}}"),
                    name=critic,
                    capture_key=critic,
                    merge="none",
                )
                for critic in CRITICS
            ],
            name="critics",
            merge="none",
        ),
        Step(
            Template(" ".join(f"{{{{ {critic} }}}}" for critic in CRITICS)),
            name="consensus",
            capture_key="consensus",
        ),
    ],
    name="stage",
    inputs=("topic",),
)


def own_model() -> Block:
    """Return the tree with a model of its own, for worker processes."""
    names = ("draft", *CRITICS, "consensus")
    return with_overrides(tree, {name: {"model": MODEL} for name in names})  # type: ignore[return-value]
