"""Faults in resume, reuse, replay, retries and budgets are each detected by a test that is there.

For some it is a test of one rule, for others that the lives of random trees are the same.
"""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.engine.engines import ENGINES
from tests.equivalence.lives import faults, leaves
from tests.models.test_attempts import Refusal, invoked
from tests.mutants.mutate import BROKEN, Mutant, apply

from mergepoint.testing.random_trees import seeded_case
from mergepoint.testing.simulated_time import FakeClock

pytestmark = pytest.mark.campaign

MOST_SEEDS = 60

ANSWERS = "mergepoint.journal.recorded_answers"
ATTEMPTS = "mergepoint.models.retry"
BEFORE = "mergepoint.models.budget_account"
LEDGER = "mergepoint.models.budget"
DECIDING = "mergepoint.engine.gates"
FUNCTION = "mergepoint.engine.function_call"
JOURNALED = "mergepoint.engine.start_and_resume"
FILE = "mergepoint.journal.file_journal"
PLAIN = "mergepoint.journal.call_records"
REPLAY = "mergepoint.journal.replay"
STANDING = "mergepoint.journal.recorded_answers"


@dataclass(frozen=True)
class Guarded(Mutant):
    """A fault and the test that detects it, as `module:function`; `given` are its arguments."""

    test: str
    given: Mapping[str, Any] = field(default_factory=dict)


GUARDED = (
    Guarded(
        "a resumed answer is found by its path alone",
        ANSWERS,
        "return self._found.get(_key_of(asked))",
        "return next((r for r in self._found.values() if r.path == asked.path), None)",
        "tests.journal.test_answers:test_a_resumed_call_is_found_by_path_and_request",
    ),
    Guarded(
        "a failed call is an answer",
        STANDING,
        "if not record.settled:",
        "if not record.path:",
        "tests.journal.test_answers:test_a_failed_call_answers_nothing",
    ),
    Guarded(
        "a hidden answer stands against a whole one",
        STANDING,
        "if known is None or known.masked or not record.masked:",
        "if record.path:",
        "tests.engine.test_asked_again:test_what_stands_is_the_newest_whole_one",
    ),
    Guarded(
        "what was left out is missing in a replay",
        REPLAY,
        'if record.kind == "left_out":',
        'if record.kind == "inner":',
        "tests.engine.test_left_out:test_the_state_of_random_trees_follows_from_their_records",
    ),
    Guarded(
        "a question is written each time that it is asked",
        DECIDING,
        "for one in known]:",
        "for one in known[:0]]:",
        "tests.engine.test_open_gates:test_the_same_question_is_not_written_again",
    ),
    Guarded(
        "one reused answer is given to n samples",
        ANSWERS,
        "[one for one in unused if one is not record]",
        "unused",
        "tests.journal.test_answers:test_samples_of_one_prompt_stay_samples",
    ),
    Guarded(
        "reused answers are given in the order of the record",
        ANSWERS,
        "record = self._exact.get(_key_of(asked)) or self._refusal(asked, moved=False)",
        "record = self._refusal(asked, moved=False)",
        "tests.journal.test_answers:test_a_record_of_the_same_path_comes_first",
    ),
    Guarded(
        "a miss in a strict replay goes live",
        ANSWERS,
        "raise ReplayMiss(self._miss(asked))",
        "return None",
        "tests.journal.test_answers:test_a_strict_miss_shows_the_nearest_request",
    ),
    Guarded(
        "a request is its last message alone",
        "mergepoint.journal.fingerprint",
        "behind = messages[lead:]",
        "behind = messages[-1:]",
        "tests.journal.test_answers:test_a_digest_is_of_what_is_said",
    ),
    Guarded(
        "a decision is found by its path alone",
        DECIDING,
        "key = digests.state(question.kept.messages, question.kept.outputs)",
        "key = digests.state((), {})",
        "tests.engine.test_gate:test_a_decision_is_for_what_it_was_about",
        {"engine": ENGINES[0]},
    ),
    Guarded(
        "a decision is not written down",
        DECIDING,
        "            append_record(recorder.journal, record)\n        self._report_end(decision)",
        "            recorder.journal\n        self._report_end(decision)",
        "tests.engine.test_gate:test_a_decision_is_on_record_and_replays",
        {"engine": ENGINES[0]},
    ),
    Guarded(
        "a call is tried once more than it may be",
        ATTEMPTS,
        "stop_after_attempt(retry.attempts)",
        "stop_after_attempt(retry.attempts + 1)",
        "tests.models.test_attempts:test_the_last_failure_is_raised",
        {"ask": invoked},
    ),
    Guarded(
        "a refusal is tried again",
        ATTEMPTS,
        "status >= 500",
        "status >= 400",
        "tests.models.test_attempts:test_what_stays_is_not_tried_again",
        {"error": Refusal(401)},
    ),
    Guarded(
        "the provider's wait is not heard",
        ATTEMPTS,
        "if asked is not None:",
        "if None:",
        "tests.models.test_attempts:test_the_providers_wait_is_obeyed",
        {"ask": invoked},
    ),
    Guarded(
        "nothing is held for a call in flight",
        LEDGER,
        "account.held = account.held.plus(need.amount)",
        "account.held",
        "tests.models.test_ledger:test_a_budget_of_calls_lets_that_many_through",
    ),
    Guarded(
        "what was held stays held",
        LEDGER,
        "account.held = account.held.minus(held)",
        "account.held",
        "tests.models.test_ledger:test_the_most_is_held_and_what_was_used_is_charged",
    ),
    Guarded(
        "what a call used is not charged",
        LEDGER,
        "account.spent = account.spent.plus(used)",
        "account.spent",
        "tests.models.test_ledger:test_a_budget_of_calls_lets_that_many_through",
    ),
    Guarded(
        "a resumed run has its whole budget again",
        BEFORE,
        "account.spent = account.spent.plus(one.amount)",
        "account.spent",
        "tests.models.test_ledger:test_what_is_on_record_of_the_run_counts",
    ),
    Guarded(
        "answers that were taken over are charged",
        LEDGER,
        'if record.source == "live" and record.kind in ("step", "inner")',
        'if record.kind in ("step", "inner")',
        "tests.models.test_ledger:test_what_is_on_record_of_the_run_counts",
    ),
    Guarded(
        "a budget that comes later forgets what is on record",
        LEDGER,
        "charge_prior_calls(account, below(self._before, path))",
        "charge_prior_calls(account, [])",
        "tests.models.test_ledger:test_budgets_that_come_later_count_what_was_primed",
    ),
    Guarded(
        "a line is read whatever its checksum",
        "mergepoint.journal.checked_lines",
        'if line[:_START] != b"%08x " % crc32(body):',
        "if None:",
        "tests.journal.test_lines:test_a_whole_line_that_is_wrong_is_never_left_out",
        {"bad": b"\n", "told": "its checksum does not fit", "after": b""},
    ),
)

LIVES = (
    Mutant(
        "a resumed answer is written once more",
        "mergepoint.models.call",
        "if call.answer is None or not keeper.answers.owns(call.answer):",
        "if call is not None:",
    ),
    Mutant(
        "a resumed run finds nothing",
        ANSWERS,
        "return self._found.get(_key_of(asked))",
        "return None",
    ),
    Mutant(
        "a function on record is called again",
        FUNCTION,
        "record.response, recorded=True))\n            return record",
        "record.response, recorded=True))\n            return None",
    ),
    Mutant(
        "a resumed run has another seed",
        JOURNALED,
        "ctx.seed, ctx.created_at = header.seed, header.created_at",
        "ctx.seed, ctx.created_at = 0, header.created_at",
    ),
    Mutant("the torn tail stays", FILE, "if lines.torn:", "if None:"),
    Mutant(
        "messages of a Call are not read back",
        PLAIN,
        'messages=tuple(restore_message(made, response) for made in data.get("messages", ())),',
        "messages=(),",
    ),
    Mutant(
        "results are not read back",
        PLAIN,
        'value=data.get("value", response if data.get("kind") == "call" else None),',
        "value=None,",
    ),
    Mutant(
        "a replay forgets what a Call captured",
        REPLAY,
        "made = self._found(path).made(capture_key)",
        "made = self._found(path).made()",
    ),
)


def run_test(mutant: Guarded, folder: Path) -> None:
    """Run the test of a mutant, with a folder or a clock where it takes one."""
    folder.mkdir()
    module, _, name = mutant.test.partition(":")
    test: Callable[..., None] = getattr(importlib.import_module(module), name)
    wanted = inspect.signature(test).parameters
    with FakeClock() as clock:
        there = {"tmp_path": folder, "clock": clock, **mutant.given}
        test(**{key: value for key, value in there.items() if key in wanted})


@pytest.mark.parametrize("mutant", GUARDED, ids=lambda mutant: mutant.name)
def test_mutant_fails_its_test(
    mutant: Guarded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The test that is there for a rule passes, and fails when the rule is broken."""
    run_test(mutant, tmp_path / "right")
    apply(mutant, monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        run_test(mutant, tmp_path / "wrong")
    assert caught.type.__name__ not in BROKEN, "the mutant does not run"


def lives_differ(folder: Path) -> bool:
    """Return whether the lives of some random tree are not the same."""
    counts: Counter[str] = Counter()
    for seed in range(MOST_SEEDS):
        case = seeded_case(seed, faulty=False)
        try:
            if leaves(case) > 2 and faults(seed, case, folder / str(seed), counts):
                return True
        except Exception as error:  # noqa: BLE001  (a life that cannot go on is not the same)
            assert type(error).__name__ not in BROKEN, f"the mutant does not run: {error}"  # noqa: PT017
            return True
    return False


@pytest.mark.campaign
@pytest.mark.parametrize("mutant", LIVES, ids=lambda mutant: mutant.name)
def test_mutant_shows_in_the_lives_of_trees(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run that was killed, or its replay, is then another than the one left alone."""
    apply(mutant, monkeypatch)
    assert lives_differ(tmp_path)
