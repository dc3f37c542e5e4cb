"""The command: how many kills, in which forms, with which savers; a histogram and a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from tests.crash.attended import WAYS, Kind, Way
from tests.crash.campaign import Campaign
from tests.crash.checkpoints import checkpoints_at
from tests.crash.gates import GateCampaign
from tests.crash.graphed import GraphCampaign
from tests.crash.recipes import RecipeCampaign
from tests.crash.survey import Asked, Survey

from mergepoint.engine.compiler import Form

EPILOG = """\
calls: a nested, parallel and looping tree with functions in it is killed at random moments and
resumed until it is done. gates: a tree with five gates is killed before, between and after the
answers, with a saver or with the journal alone, for each way in which answers come in. Counts are
taken at the model's server and at the person who answers, in another process than what is killed;
an answer has come in when the killed process told so, before it was written down. recipe: 40 Things
in four stages that each ask eight at once are killed in the same way: as a run that is resumed
(`run`), and compiled to a graph that is invoked again (`graph`), without a saver by its run id and
with one by its thread.

  python -m tests.crash calls --kills 200
  python -m tests.crash recipe --kills 200
  python -m tests.crash recipe --kills 200 --form graph --saver sqlite --latency 0.02
  python -m tests.crash gates --kills 50 --saver postgresql --way command --form fused

The exit code is 1 where something was wrong, lost, asked twice or swapped, or where more than
0.2 % of the answered calls were made again. PostgreSQL is the server that MERGEPOINT_TEST_POSTGRES
names."""

FORMS: tuple[Form, ...] = get_args(Form)
RECIPE_FORMS: Mapping[str, tuple[Kind, ...]] = {
    "run": ("none",),
    "graph": ("none", "sqlite", "postgresql"),
}
"""How a recipe is run, and with which savers; PostgreSQL has to be asked for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaigns that are asked for, and print what they came to."""
    parser = _parser()
    given = parser.parse_args(arguments)
    forms = tuple(RECIPE_FORMS) if given.what == "recipe" else FORMS
    if given.form not in (None, *forms):
        parser.error(f"--form of {given.what} is one of {', '.join(forms)}, not {given.form}")
    if given.what == "recipe" and not list(_recipe_ways(given)):
        parser.error("--form run has no saver; give --saver none, or --form graph")
    with _folder(given.runs) as folder:
        rows = list(_CAMPAIGNS[given.what](given, folder))
    print("", *rows, sep="\n")
    return 0 if all(row.endswith("yes |") for row in rows[2:]) else 1


def _forms(given: argparse.Namespace) -> tuple[Form, ...]:
    return (given.form,) if given.form else FORMS


def _calls(given: argparse.Namespace, folder: Path) -> Iterator[str]:
    yield "| form | kills | runs | calls | wrong | lost | answered calls made again | holds |"
    yield "|---|---|---|---|---|---|---|---|"
    for form in _forms(given):
        runs = str(folder / form)
        survey = Campaign(runs, form, given.latency, given.seed, _Progress(form)).of(given.kills)
        _show(form, survey)
        figures = (form, survey.kills, survey.runs, survey.calls, len(survey.wrong), survey.lost)
        yield _row(*figures, f"{survey.again} of {survey.came} ({survey.share:.2%})", survey.holds)


def _recipe(given: argparse.Namespace, folder: Path) -> Iterator[str]:
    yield "| form | saver | kills | runs | calls | wrong | lost | \
answered calls made again | holds |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for form, saver in _recipe_ways(given):
        name = f"{form}-{saver}"
        survey = _recipe_survey(given, folder / name, form, saver)
        _show(name, survey)
        figures = (survey.kills, survey.runs, survey.calls, len(survey.wrong), survey.lost)
        again = f"{survey.again} of {survey.came} ({survey.share:.2%})"
        yield _row(form, saver, *figures, again, survey.holds)


def _recipe_ways(given: argparse.Namespace) -> Iterator[tuple[str, Kind]]:
    wanted = (given.saver,) if given.saver else ("none", "sqlite")
    for form, savers in RECIPE_FORMS.items():
        for saver in savers:
            if given.form in (None, form) and saver in wanted:
                yield form, saver


def _recipe_survey(given: argparse.Namespace, folder: Path, form: str, saver: Kind) -> Survey:
    about: Any = (str(folder / "runs"), FORMS[0], given.latency, given.seed, _Progress(folder.name))
    if form == "run":
        return RecipeCampaign(*about).of(given.kills)
    folder.mkdir(parents=True, exist_ok=True)
    with checkpoints_at(saver, folder) as checkpoints:
        return GraphCampaign(*about, saver=saver, checkpoints=checkpoints).of(given.kills)


def _gates(given: argparse.Namespace, folder: Path) -> Iterator[str]:
    yield "| saver | answers | form | kills | questions | wrong | lost | asked twice | swapped | \
killed with an answer on its way | second questions | holds |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for saver, way in _ways(given.saver, given.way):
        for form in _forms(given):
            name = f"{saver}-{way}-{form}"
            survey = _gate_campaign(given, folder / name, saver, way, form)
            _show(name, survey)
            figures = (survey.kills, survey.questions, len(survey.wrong), survey.lost)
            asked = (survey.twice, survey.swapped, survey.on_their_way, survey.second)
            yield _row(saver, way, form, *figures, *asked, survey.holds)


_CAMPAIGNS = {"calls": _calls, "gates": _gates, "recipe": _recipe}


def _ways(saver: Kind | None, way: Way | None) -> Iterator[tuple[Kind, Way]]:
    for kind, ways in WAYS.items():
        for one in ways:
            if saver in (None, kind) and way in (None, one):
                yield kind, one


def _gate_campaign(
    given: argparse.Namespace, folder: Path, saver: Kind, way: Way, form: Form
) -> Asked:
    folder.mkdir(parents=True, exist_ok=True)
    with checkpoints_at(saver, folder) as checkpoints:
        campaign = GateCampaign(
            str(folder / "runs"),
            form,
            given.latency / 10,
            given.seed,
            _Progress(folder.name),
            saver=saver,
            checkpoints=checkpoints,
            way=way,
        )
        campaign.of(given.kills)
    return campaign.survey


class _Progress:
    """Tells after a run how far a campaign is, on a terminal in one line."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, survey: Survey) -> None:
        """Tell it."""
        if sys.stderr.isatty():
            said = f"\r{self._name}: {survey.kills} kills in {survey.runs} runs "
            print(said, end="", file=sys.stderr, flush=True)


def _show(name: str, survey: Survey) -> None:
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(f"\n{name}: {survey}\n{survey.histogram()}", *survey.wrong, sep="\n", flush=True)


def _row(*cells: object) -> str:
    told = ["yes" if cell is True else "no" if cell is False else str(cell) for cell in cells]
    return f"| {' | '.join(told)} |"


@contextmanager
def _folder(runs: str | None) -> Iterator[Path]:
    if runs is not None:
        yield Path(runs)
        return
    with TemporaryDirectory() as made:
        yield Path(made)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash",
        description="Kill runs with signal 9 at random moments, and resume them until they end.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=list(_CAMPAIGNS), help="what is looked at")
    parser.add_argument("--kills", type=int, default=200, help="of each campaign; 200")
    parser.add_argument(
        "--form",
        choices=(*FORMS, *RECIPE_FORMS),
        help="of the compiled graphs, or of a recipe: run, graph; all",
    )
    parser.add_argument(
        "--saver", choices=list(WAYS), help="of runs with gates, all; of a recipe's graph, both"
    )
    parser.add_argument("--way", choices=get_args(Way), help="in which answers come in; all")
    parser.add_argument(
        "--latency", type=float, default=0.2, help="of the model, in seconds; 0.2, gates a tenth"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments; 0")
    parser.add_argument("--runs", help="a folder that is empty and stays; by default none is kept")
    return parser
