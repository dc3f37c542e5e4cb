"""Rooted: a compiled graph's runs in journals, each found by its run's id or its thread's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from mergepoint.core.path import SEPARATOR, join
from mergepoint.models.inner_purse import InnerPurse
from mergepoint.record.answers import answers_of
from mergepoint.record.store import RunJournal
from mergepoint.run.facts import RUN_ID, THREAD, Facts, unused_run_id, unused_run_ids
from mergepoint.run.journaled import Given, Journaling, Origin, Other
from mergepoint.run.recorder import (
    Recorder,
    ambient,
    recorders_of,
    with_recorder,
    without_recorders,
)
from mergepoint.run.spending import Spending


@dataclass(frozen=True, slots=True)
class Rooted:
    """Where the runs of a compiled graph begin: with which id, journal and answers.

    `path` is the root's, `journaling` None where runs are not written.
    """

    path: str
    spending: Spending
    journaling: Journaling | None
    origin: Origin

    @contextmanager
    def run(
        self, facts: Facts, messages: list[BaseMessage], config: RunnableConfig
    ) -> Iterator[tuple[Facts, RunnableConfig]]:
        """Begin a run, or go on with one that is on record; give facts and config with its id.

        A journal is found by the config's run id, else by the id of its thread, where each turn
        has one of its own; within a host with the host's prefix. Inside of a Call its calls are
        in its own journal, and the Call alone in that of the run around.

        Raises what opening a journal raises.
        """
        if self.journaling is None:
            unused = unused_run_id(facts.run, join(facts.around, self.path), messages)
            answers = self.origin.answers(None)
            if answers is not None:
                config = with_recorder(config, Recorder(answers=answers))
            yield replace(facts, run=unused), config
            return
        around = recorders_of(config) if facts.within else []
        facts = replace(facts, host=facts.around, within="")
        with _journal(self.journaling, facts, messages, config) as journal:
            header, records = journal.header, journal.records
            purse = next((one.purse for one in around if one.purse is not None), None)
            if self.spending.limited:
                own = self.spending.ledger(records)
                purse = own if purse is None else InnerPurse(own, purse)
            recorder = Recorder(
                journal,
                answers=answers_of(records, self.origin.answers(self.journaling.store)),
                purse=purse,
            )
            options = {**config.get("configurable", {}), RUN_ID: header.run_id}
            config = {**without_recorders(config, around), "configurable": options}
            config = with_recorder(config, recorder)
            with ambient(config) if around else nullcontext():
                yield replace(facts, run=header.run_id), config


def _journal(
    journaling: Journaling, facts: Facts, messages: list[BaseMessage], config: RunnableConfig
) -> RunJournal:
    options: dict[str, Any] = config.get("configurable", {})
    by_thread = not options.get(RUN_ID) and bool(options.get(THREAD))
    stem = str(options[THREAD]) if by_thread else facts.run
    if facts.host:
        stem = f"{stem}.{facts.host.replace(SEPARATOR, '.')}"
    for run_id in unused_run_ids(stem, join(facts.host, journaling.path), messages):
        given = Given(
            run_id=run_id,
            created_at=datetime.now(UTC),
            seed=facts.seed,
            messages=messages,
            inputs=facts.inputs,
        )
        try:
            return journaling.either(given)
        except Other:  # an earlier turn that left no message in the thread
            if not by_thread:
                raise
    raise AssertionError("there is always another id")
