"""Door: how a stage asks its model, by the door that every model call passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from pydantic import BaseModel

from mergepoint.core.path import join
from mergepoint.models.door import given_by
from mergepoint.models.identity import identity
from mergepoint.models.prices import Price
from mergepoint.models.purse import Purse
from mergepoint.models.scope import Scope
from mergepoint.record.record import CallKey
from mergepoint.run.recorder import METADATA, Recorder, recorders_of
from mergepoint.streams.ask import Answer, Ask, Asker, Unfitting
from mergepoint.streams.reading import canonical
from mergepoint.tree.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """What the calls of one run have in common: its id, who keeps records, who grants them.

    `config` has the recorders among its callbacks. `host` is the prefix of a graph around the run;
    `at` the path of a Call that it is inside of: all of its paths begin with that.
    """

    run_id: str
    config: RunnableConfig
    purse: Purse | None = None
    prices: Mapping[str, Price] | None = None
    host: str = ""
    at: str = ""

    @property
    def recorders(self) -> list[Recorder]:
        """Give who keeps records."""
        return recorders_of(self.config)

    def key(self, path: str) -> CallKey:
        """Give the key of what is at a path within the run."""
        return CallKey(self.run_id, self.host, join(self.at, path))


def place_of(ask: Ask) -> str:
    """Give the path of a call: stage, Thing, and which call of it.

    `best/stage_2/verify/0.3/call_01` is the first for the Thing `0.3`; of another sample than the
    first `call_01.sample_02`.
    """
    call = f"call_{ask.number + 1:02}"
    if ask.sample:
        call += f".sample_{ask.sample + 1:02}"
    return f"{path_of(ask.stage_id)}/{ask.thing_id}/{call}"


def path_of(stage_id: str) -> str:
    """Give a stage's id as a path, so that what is known by path is known of it."""
    return stage_id.replace(".", "/")


def asker_of(model: BaseChatModel, passing: Passing, policy: Policy) -> Asker:
    """Give what asks a model behind the door.

    Each call is one record, at its own path; it is granted by the run's purse, tried as the policy
    says, and not made where it is on record.
    """
    name = identity(model, {})
    about = {"run": passing.run_id, "host": passing.host}
    base, recorders = passing.config, passing.recorders
    structured: dict[Any, Any] = {}
    behind = given_by(Scope(passing.key("")), model)

    async def asked(ask: Ask, /) -> Answer:
        key = passing.key(place_of(ask))
        scope = Scope(key, keepers=recorders, purse=passing.purse, policy=policy, kind="step")
        metadata = {**base.get("metadata", {}), METADATA: {**about, "path": key.path}}
        config: RunnableConfig = {**base, "metadata": metadata}
        async with scope:
            if ask.schema is None:
                message: Any = await behind.ainvoke(_messages(ask), config)
                return Answer(text=_text(message), call=key.full_path, model=name)
            schema = ask.schema if isinstance(ask.schema, type) else dict(ask.schema)
            shape = schema if isinstance(schema, type) else canonical(schema)
            if shape not in structured:
                structured[shape] = behind.with_structured_output(schema, include_raw=True)
            found: Any = await structured[shape].ainvoke(_messages(ask), config)
        value = found["parsed"]
        if value is None:
            raise Unfitting(f"the answer does not fit: {found['parsing_error'] or 'it is blank'}")
        value = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
        text = str(found["raw"].text)
        return Answer(text=text, value=value, call=key.full_path, model=name)

    return asked


def _messages(ask: Ask) -> Sequence[BaseMessage]:
    lead = [] if ask.system is None else [SystemMessage(content=ask.system)]
    return [*lead, HumanMessage(content=ask.prompt)]


def _text(message: AIMessage) -> str:
    text = str(message.text)
    if not text.strip():
        raise Unfitting("the model's answer is blank")
    return text
