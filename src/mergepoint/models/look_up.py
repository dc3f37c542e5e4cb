"""Looking up: the answer of a call that is on record, in place of the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from langchain_core.messages import BaseMessage

from mergepoint.models.passage import ModelCall
from mergepoint.record.answers import Answers, Asked
from mergepoint.record.journal import Journal
from mergepoint.record.request import Digests


class Keeper(Protocol):
    """Who keeps a journal of a run, and may know answers that are on record: a Recorder."""

    @property
    def journal(self) -> Journal:
        """Give where records go."""
        ...

    @property
    def answers(self) -> Answers | None:
        """Give what is on record, None where every call is made."""
        ...

    @property
    def digests(self) -> Digests:
        """Give what requests are worked out with."""
        ...


def looks_up(keeper: Keeper) -> bool:
    """Say whether requests matter to a keeper: its answers, or its records, are found by them."""
    return keeper.answers is not None or keeper.journal.keyed


def look_up(call: ModelCall, messages: Sequence[BaseMessage], keeper: Keeper) -> None:
    """Put the answer on a call that a keeper has on record; the call has its request already.

    Where a keeper's own run is gone on with, the answer is in its journal and is not written to
    it again. Raises ReplayMiss in a strict replay.
    """
    if keeper.answers is None or call.answer is not None:
        return
    asked = Asked(
        path=call.key.full_path,
        request=call.request,
        prompt=messages[-1].content,
        model=call.model,
        params=call.params,
        context=len(messages) - call.lead - 1,
        lead=tuple(messages[: call.lead]),
        kind=call.kind,
        sample=call.sample,
    )
    call.answer = keeper.answers.find(asked)
    if call.answer is not None and keeper.answers.owns(call.answer):
        call.journals = [one for one in call.journals if one is not keeper.journal]
