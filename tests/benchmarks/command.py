"""The command: which measures, how often, how large; a table or JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from tests.benchmarks.machine import machine
from tests.benchmarks.measures import MEASURES, QUICK, Sizes
from tests.benchmarks.result import Results
from tests.benchmarks.table import as_json, as_text


def main(arguments: Sequence[str] | None = None, *, sizes: Sizes | None = None) -> int:
    """Run the measures that are named, by default all, and print what they found."""
    given = _parser().parse_args(arguments)
    results = Results()
    for name in given.measures or MEASURES:
        MEASURES[name](sizes or (QUICK if given.quick else Sizes()), given.reps, results)
    about = machine()
    if given.json:
        print(json.dumps(as_json(about, given.reps, results), indent=2))
    else:
        print(as_text(about, given.reps, results))
    return 0


def _parser() -> argparse.ArgumentParser:
    about = "; ".join(f"{name}: {measure.__doc__}" for name, measure in MEASURES.items())
    parser = argparse.ArgumentParser(prog="tests/benchmarks/run.py", epilog=about)
    parser.add_argument("measures", nargs="*", metavar="measure", help=", ".join(MEASURES))
    parser.add_argument("--reps", type=_positive, default=7, help="repetitions, 7 by default")
    parser.add_argument("--quick", action="store_true", help="small sizes, for a first look")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number
