"""Index of a transcript: what each call saw, and where its answer went."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from mergepoint.core.errors import MergepointError
from mergepoint.core.merge import State
from mergepoint.core.paths import SEPARATOR, ancestors, nearest, select
from mergepoint.journal.call_records import TOOL, CallRecord, is_tool
from mergepoint.journal.recipe_records import (
    CallsOfItems,
    Lineage,
    RecipeEnd,
    is_recipe,
    recipe_end,
)
from mergepoint.journal.transcript import Transcript, usage_of
from mergepoint.report.views import (
    AnswerOutcomes,
    CallView,
    GateOutcome,
    InnerModelCall,
    InRecipe,
    NodeResults,
    Read,
    SeenMessage,
    StageWrites,
    ToolRound,
    calls_by_seen_message,
    in_full,
    result_of,
    role_of,
    said,
    tool_rounds,
    walk_outline,
)
from mergepoint.tree.decision import Decision
from mergepoint.tree.leaves import Call
from mergepoint.tree.nodes import Block, Gate, Loop
from mergepoint.tree.semantics import Messages


@dataclass(frozen=True, slots=True)
class RecipeCalls:
    """The calls of recipes in a run, which its outline doesn't name, with their purposes."""

    shape: Mapping[str, Any]
    end: RecipeEnd | None

    @classmethod
    def of(cls, transcript: Transcript) -> RecipeCalls:
        """Return the calls of a transcript."""
        return cls(transcript.tree, recipe_end(transcript.tree, transcript.everything))

    def about(self, record: CallRecord) -> InRecipe:
        """Return the purpose of a call. Without the end of the run, only the Thing is known."""
        around, thing = self._place(record.path)
        lineage = () if self.end is None else self.end.lineage
        number = next(
            (at for at, one in enumerate(lineage) if record.key.full_path in one.calls), None
        )
        if self.end is None or number is None:
            return InRecipe(around=around, thing=thing, known=self.end is not None)
        made = lineage[number]
        later = list(self._later(made, lineage[number + 1 :]))
        ids = {made.thing, *(one.thing for one in later)}
        return InRecipe(
            around=around,
            thing=made.thing,
            known=True,
            before=tuple(map(_passage, self._earlier(made, lineage[:number]))),
            made=_passage(made),
            after=tuple(map(_passage, later)),
            results=tuple(str(one["id"]) for one in self.end.things if one["id"] in ids),
        )

    def _place(self, path: str) -> tuple[str, str]:
        """Return the path of the node around a call, and its Thing if it is a recipe's."""
        known = {path for path, _ in walk_outline(self.shape)}
        around = next((at for at in ancestors(path) if at in known), "")
        if not is_recipe(self.shape):
            return around, ""
        return around, path.removeprefix(f"{around}{SEPARATOR}").partition(SEPARATOR)[0]

    def _earlier(self, made: Lineage, before: tuple[Lineage, ...]) -> list[Lineage]:
        """Return the entries that led to the Thing of a call, oldest first."""
        ids = {made.thing, *made.parents}
        found: list[Lineage] = []
        # Backward, because the parents of an entry are only known once it is found.
        for one in reversed(before):
            if one.thing in ids:
                ids.update(one.parents)
                found.append(one)
        return found[::-1]

    def _later(self, made: Lineage, after: tuple[Lineage, ...]) -> Iterator[Lineage]:
        # Forward: an entry extends the ids for those after it.
        ids = {made.thing}
        for one in after:
            if one.thing in ids or not ids.isdisjoint(one.parents):
                ids.add(one.thing)
                yield one


def _passage(made: Lineage) -> StageWrites:
    wrote = (*(("content",) if made.drafted else ()), *made.set)
    return StageWrites(stage=made.stage, thing=made.thing, wrote=wrote, calls=made.calls)


_NEAR = 5


class TranscriptIndex:
    """Index of a run's calls, built once for any number of queries.

    Raise MergepointError for a transcript that lacks earlier records, so that later views are
    unknown.
    """

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._replay = transcript.replay()
        self._gates = {
            record.path: record for record in transcript.records if record.kind == "gate"
        }
        self._asked = {record.path: record for record in transcript.questions}
        self._left_out = {
            record.path: record
            for record in transcript.left_out
            if record.path in self._replay.views
        }
        failed_at = str((transcript.error or {}).get("path") or "")
        self._work = NodeResults.of(
            transcript.tree, self._settled(), self._let_on(), failed_at=failed_at
        )
        self._answered = {
            record.path: record for record in transcript.records if record.kind != "gate"
        }
        self._failed: dict[str, list[CallRecord]] = {}
        for failure in transcript.failures:
            if failure.kind != "inner":
                self._failed.setdefault(failure.path, []).append(failure)
        for path in self._tree_paths:
            # Without the records of earlier calls, the context of this one can't be computed.
            if path not in self._replay.views and path not in self._replay.held:
                raise MergepointError(f"{path}: the transcript lacks records of earlier calls")

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of all calls, made or skipped, and of gates that asked, in tree order.

        Calls of recipes, which depend on the items, come last.
        """
        return (*self._tree_paths, *self._recipe_paths)

    @cached_property
    def _tree_paths(self) -> tuple[str, ...]:
        gates = self._gates.keys() | self._asked.keys()
        known = self._answered.keys() | self._failed.keys() | self._left_out.keys() | gates
        return tuple(path for path in self._work.shapes if path in known)

    @cached_property
    def _recipe_paths(self) -> tuple[str, ...]:
        free = CallsOfItems(self._transcript.tree)
        known = dict.fromkeys([*self._answered, *self._failed, *self._refused])
        return tuple(path for path in known if path not in self._work.shapes and path in free)

    @cached_property
    def _refused(self) -> dict[str, CallRecord]:
        return {record.path: record for record in self._transcript.left_out}

    @cached_property
    def _calls(self) -> tuple[str, ...]:
        """Return the paths of the calls that were made."""
        made = self._answered.keys() | self._failed.keys()
        return tuple(path for path in self._tree_paths if path in made)

    def _settled(self) -> tuple[CallRecord, ...]:
        """Return one record per path, including waiting gates, failed calls, and skipped calls."""
        failed = [one for one in self._transcript.failures if one.kind != "inner"]
        aside = {**self._asked, **self._left_out}
        # The last record of a path counts, so answers come after failures and open questions.
        return (*failed, *aside.values(), *self._transcript.records)

    @cached_property
    def _fates(self) -> AnswerOutcomes:
        given = len(self._transcript.messages)
        seen_by = calls_by_seen_message(self._replay, self._calls, given=given)
        verdicts = {path: str(record.value["decision"]) for path, record in self._gates.items()}
        return AnswerOutcomes(self._work, self._replay, self._calls, seen_by, verdicts)

    def find(self, selector: str) -> str:
        """Return the path of the one call that a selector names: exact, or a unique suffix.

        Raise LookupError that lists the available calls, or explains why there is none.
        """
        try:
            found = select(selector, self.paths)
        except LookupError as error:
            raise LookupError(self._reason(selector) or self._guess(selector, error)) from None
        if len(found) > 1:
            raise LookupError(
                f"{selector!r} matches {len(found)} calls: {', '.join(found)}; name one"
            )
        return found[0]

    def call(self, path: str) -> CallView:
        """Return the call or decision at an exact path, one of `paths`."""
        if path in self._asked or path in self._gates:
            return self._decision(self._asked.get(path) or self._gates[path])
        failed = self._failed.get(path, [])
        record = self._answered.get(path) or self._refused.get(path) or failed[-1]
        recipes = path in self._recipe_paths
        # Calls of recipes aren't in the outline, so their views are unknown.
        view = State() if recipes else self._replay.views[path]
        kind = record.kind if recipes else self._work.shapes[path]["kind"]
        is_function = kind == Call.kind
        if is_tool(record):
            return self._tool(record)
        rounds = tuple(self._rounds(record)) if self._has_tools(path) else ()
        return CallView(
            **self._facts(record),
            model=record.model,
            params=json.loads(json.dumps(dict(record.params), default=str)),
            view=record.view,
            seen=tuple(self._seen(record, view, prompted=not is_function)),
            reads=() if recipes else tuple(self._reads(path, view)),
            answer=_answer(record),
            error=None if record.error is None else dict(record.error),
            unusable=None if record.answered or not record.message else in_full(record.message),
            earlier_errors=tuple(_error_of(one) for one in failed if one is not record),
            truncated=record.truncated,
            fate=self._fates.of(record) if record.answered and not recipes else None,
            in_recipe=self._of_recipes.about(record) if recipes else None,
            usage=self._usage(record),
            cost=usage_of(self._inner(record) if self._has_tools(path) else [record]).known_cost,
            kind="call" if is_function else "step",
            left_out=record.kind == "left_out",
            # The rounds of a step with tools show the same calls, apart from failed ones.
            inside=tuple(one for one in self._inside(path) if not rounds or one.error),
            rounds=rounds,
        )

    def _has_tools(self, path: str) -> bool:
        return bool(self._work.shapes.get(path, {}).get("tools"))

    def _inner(self, record: CallRecord) -> list[CallRecord]:
        return [one for one in self._transcript.inner if one.path == record.path]

    def _rounds(self, record: CallRecord) -> Iterator[ToolRound]:
        inner = self._inner(record)
        failed = {path: records[-1] for path, records in self._failed.items()}
        return tool_rounds(record, inner, {**failed, **self._answered})

    def _usage(self, record: CallRecord) -> Mapping[str, Any] | None:
        """Return the tokens of a call; for a step with tools, of all calls of its model."""
        if not self._has_tools(record.path):
            return record.usage
        used = usage_of(one for one in self._inner(record) if one.usage)
        return {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens}

    def _tool(self, record: CallRecord) -> CallView:
        """Return the execution of a tool, as the model read it."""
        text, failed = result_of(record)
        error = {"type": "told to the model", "message": text} if failed else None
        return CallView(
            **self._facts(record),
            model=record.model.removeprefix(TOOL),
            params=json.loads(json.dumps(dict(record.params).get("args", {}), default=str)),
            view=record.view,
            answer=None if failed else text,
            error=record.error or error,
            kind="tool",
            inside=tuple(self._inside(record.path)),
        )

    @cached_property
    def _of_recipes(self) -> RecipeCalls:
        return RecipeCalls.of(self._transcript)

    def _let_on(self) -> dict[str, Messages]:
        return {
            path: question.settled(Decision.of(self._gates[path].value))
            for path, question in self._replay.held.items()
            if path in self._gates
        }

    def _inside(self, path: str) -> Iterator[InnerModelCall]:
        for record in (*self._transcript.inner, *self._transcript.failures):
            if record.path == path and record.kind == "inner":
                yield InnerModelCall(
                    model=record.model,
                    prompt=said(HumanMessage(record.prompt)),
                    answer=record.response if record.message is None else said(record.message),
                    error=None if record.error is None else dict(record.error),
                )

    def _decision(self, record: CallRecord) -> CallView:
        held = self._replay.held[record.path].kept
        kept = State() if record.asks else self._let_on()[record.path]
        said = {"decision": "", "feedback": ""} if record.asks else record.value
        decided = GateOutcome(
            question=str(record.prompt),
            held=tuple(self._let_through(record.path, held)),
            held_outputs=dict(held.outputs),
            decision=said["decision"],
            feedback=said["feedback"],
            kept=tuple(self._let_through(record.path, kept)),
            kept_outputs=dict(kept.outputs),
        )
        facts = self._facts(record)
        return CallView(**facts, model="", params={}, view="as_is", kind="gate", decided=decided)

    def _facts(self, record: CallRecord) -> dict[str, Any]:
        """Return the fields that every view takes from its record."""
        return {
            "run_id": self._transcript.run_id,
            "path": record.path,
            "started": record.started,
            "seconds": round(max(0.0, record.ended - record.started), 6),
            "attempt": record.attempt,
            "source": record.source,
            "value": record.value,
        }

    def _let_through(self, gate: str, state: Messages) -> Iterator[SeenMessage]:
        """Yield the messages at a gate, each with the merges that kept it up to there."""
        outside = {gate, *ancestors(gate)}
        for message in state.messages:
            yield self._made(message, outside)

    def _made(self, message: BaseMessage, outside: Collection[str]) -> SeenMessage:
        path = self._work.origins[str(message.id)]
        through = (self._work.exit(at) for at in self._work.way_up(path) if at not in outside)
        return SeenMessage(
            role=role_of(message),
            text=said(message),
            origin="call",
            path=path,
            through=tuple(through),
        )

    def _reason(self, selector: str) -> str | None:
        """Return why a node of the tree has no call of its own, or None."""
        try:
            path, *others = select(selector, list(self._work.shapes))
        except LookupError:
            return None
        if others:
            return None
        kind = self._work.shapes[path]["kind"]
        if kind == Gate.kind:
            return f"{path} is a gate to which nothing has come yet"
        if kind in (Block.kind, Loop.kind):
            inside = [call for call in self.paths if path in ancestors(call)]
            return f"{path} is a {kind}, no call; calls in it: {', '.join(inside) or 'none'}"
        error = self._transcript.error
        because = f"; the run failed at {error['path']}: {error['message']}" if error else ""
        return f"{path} made no call{because}"

    def _guess(self, selector: str, error: LookupError) -> str:
        """Return the error with paths whose last names are similar, if no whole path is."""
        name = selector.rpartition("/")[2]
        names = {path.rpartition("/")[2] for path in self.paths} - {name}
        near = difflib.get_close_matches(name, sorted(names))
        found = [path for path in self.paths if path.rpartition("/")[2] in near]
        if not found or nearest(selector, self.paths):
            return str(error.args[0])
        return f"did you mean {' or '.join(found[:_NEAR])}? {error.args[0]}"

    def _seen(self, record: CallRecord, view: Messages, *, prompted: bool) -> Iterator[SeenMessage]:
        for message in record.lead:
            text = said(message)
            if isinstance(message, SystemMessage):
                yield SeenMessage(role="system", text=text, origin="system")
            else:
                yield SeenMessage(role=role_of(message), text=text, origin="example")
        given = len(self._transcript.messages)
        for message in view.messages[:given]:
            yield SeenMessage(role=role_of(message), text=said(message), origin="given")
        above = set(ancestors(record.path))
        for message in view.messages[given:]:
            yield self._made(message, above)
        if prompted:
            yield SeenMessage(role="user", text=said(self._prompt(record)), origin="prompt")

    def _prompt(self, record: CallRecord) -> BaseMessage:
        """Return a call's prompt; for a step with tools, from its messages or first request."""
        if record.messages:
            return record.messages[0]
        first = min(self._inner(record), key=lambda one: one.started, default=record)
        return HumanMessage(first.prompt if self._has_tools(record.path) else record.prompt)

    def _reads(self, path: str, view: Messages) -> Iterator[Read]:
        inputs = self._transcript.inputs
        for key in self._work.shapes[path].get("reads", ()):
            if key in inputs and not _blank(inputs[key]):
                yield Read(key=key, source="input", value=inputs[key])
            elif not _blank(view.outputs.get(key)):
                writer = self._work.writer(key, path)
                # A gate captures its decision, which no call made.
                is_gate = writer is None or self._work.shapes[writer]["kind"] == Gate.kind
                yield Read(
                    key=key,
                    source="capture",
                    path=writer,
                    made_by=None if is_gate else self._work.answerer(str(writer)),
                    value=view.outputs[key],
                )
            else:
                yield Read(key=key, source="default")


def _answer(record: CallRecord) -> str | None:
    """Return the answer of a call, or None for a Call without a message."""
    if not record.answered or (record.kind == "call" and not record.messages):
        return None
    if not record.response and record.message is not None:
        return in_full(record.message)
    return record.response


def _error_of(failed: CallRecord) -> dict[str, Any]:
    """Return the error of a failed attempt, with the refused answer."""
    answer = "" if failed.message is None else in_full(failed.message)
    return {**(failed.error or {}), **({"answer": answer} if answer else {})}


def _blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())
