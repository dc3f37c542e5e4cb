"""Index of a transcript: what each call saw, and where its answer went."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
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
from mergepoint.report.chains import EMPTY, ChainedMessages, Chains
from mergepoint.report.drawing import unrolled
from mergepoint.report.views import (
    AnswerOutcomes,
    CallView,
    End,
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


@dataclass(frozen=True)
class RecipeCalls:
    """The calls of recipes in a run, which its outline doesn't name, with their purposes.

    `most` limits the number of stages that are listed before a call, and after it; the nearest
    count. Without a limit, these lists can be as long as the lineage, for each of its calls.
    """

    shape: Mapping[str, Any]
    end: RecipeEnd | None
    most: int | None = None

    @classmethod
    def of(cls, transcript: Transcript, *, most: int | None = None) -> RecipeCalls:
        """Return the calls of a transcript."""
        return cls(transcript.tree, recipe_end(transcript.tree, transcript.everything), most)

    def about(self, record: CallRecord) -> InRecipe:
        """Return the purpose of a call. Without the end of the run, only the Thing is known."""
        around, thing = self._place(record.path)
        number = self._by_call.get(record.key.full_path)
        if self.end is None or number is None:
            return InRecipe(around=around, thing=thing, known=self.end is not None)
        made = self._lineage[number]
        later = [self._lineage[at] for at in self._later(number)]
        ids = {made.thing, *(one.thing for one in later)}
        return InRecipe(
            around=around,
            thing=made.thing,
            known=True,
            before=tuple(_passage(self._lineage[at]) for at in self._earlier(number)),
            made=_passage(made),
            after=tuple(map(_passage, later)),
            results=tuple(one for one in self._results if one in ids),
        )

    @property
    def _lineage(self) -> tuple[Lineage, ...]:
        return () if self.end is None else self.end.lineage

    @cached_property
    def _results(self) -> tuple[str, ...]:
        return () if self.end is None else tuple(str(one["id"]) for one in self.end.things)

    @cached_property
    def _by_call(self) -> Mapping[str, int]:
        """Return the first entry of the lineage that each call is part of."""
        found: dict[str, int] = {}
        for number, one in enumerate(self._lineage):
            for call in one.calls:
                found.setdefault(call, number)
        return found

    @cached_property
    def _of_thing(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        for number, one in enumerate(self._lineage):
            found.setdefault(one.thing, []).append(number)
        return found

    @cached_property
    def _of_parent(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        for number, one in enumerate(self._lineage):
            for parent in one.parents:
                found.setdefault(parent, []).append(number)
        return found

    @cached_property
    def _nodes(self) -> frozenset[str]:
        return frozenset(path for path, _ in walk_outline(self.shape))

    def _place(self, path: str) -> tuple[str, str]:
        """Return the path of the node around a call, and its Thing if it is a recipe's."""
        around = next((at for at in ancestors(path) if at in self._nodes), "")
        if not is_recipe(self.shape):
            return around, ""
        return around, path.removeprefix(f"{around}{SEPARATOR}").partition(SEPARATOR)[0]

    def _earlier(self, number: int) -> list[int]:
        """Return the entries that led to the Thing of an entry, oldest first."""
        made = self._lineage[number]
        # Backward, because the parents of an entry are only known once it is found.
        waiting: list[int] = []
        known: set[str] = set()
        found: list[int] = []

        def follow(thing: str, below: int) -> None:
            if thing not in known:
                known.add(thing)
                for at in self._of_thing.get(thing, ()):
                    if at < below:
                        heappush(waiting, -at)

        for thing in (made.thing, *made.parents):
            follow(thing, number)
        while waiting and (self.most is None or len(found) < self.most):
            at = -heappop(waiting)
            found.append(at)
            for parent in self._lineage[at].parents:
                follow(parent, at)
        return found[::-1]

    def _later(self, number: int) -> list[int]:
        """Return the entries that continued with the Thing of an entry, in their order."""
        # Forward: an entry extends the ids for those after it.
        waiting: list[int] = []
        known: set[str] = set()
        seen: set[int] = set()
        found: list[int] = []

        def follow(thing: str, above: int) -> None:
            if thing in known:
                return
            known.add(thing)
            for at in (*self._of_thing.get(thing, ()), *self._of_parent.get(thing, ())):
                if at > above and at not in seen:
                    seen.add(at)
                    heappush(waiting, at)

        follow(self._lineage[number].thing, number)
        while waiting and (self.most is None or len(found) < self.most):
            at = heappop(waiting)
            found.append(at)
            follow(self._lineage[at].thing, at)
        return found


def _passage(made: Lineage) -> StageWrites:
    wrote = (*(("content",) if made.drafted else ()), *made.set)
    return StageWrites(stage=made.stage, thing=made.thing, wrote=wrote, calls=made.calls)


_NEAR = 5
_MOST_STAGES = 100  # that a page lists before a recipe's call, and after it


def _reads_of(transcript: Transcript) -> dict[str, Sequence[str]]:
    """Return the keys that each call of a run reads, by path."""
    tree = unrolled(transcript.tree, {record.path for record in transcript.everything})
    return {path: shape["reads"] for path, shape in walk_outline(tree) if "reads" in shape}


class TranscriptIndex:
    """Index of a run's calls, built once for any number of queries.

    With `chained`, the messages that a call saw are a state of `chains`, and its view has no `seen`
    and no `seen_by`: these lists of all calls together grow with the square of their number.

    Raise MergepointError for a transcript that lacks earlier records, so that later views are
    unknown.
    """

    def __init__(self, transcript: Transcript, *, chained: bool = False) -> None:
        self._transcript = transcript
        self.chains = Chains(_reads_of(transcript)) if chained else None
        self._replay = transcript.replay(self.chains)
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
            transcript.tree, self._settled(), self._let_on, failed_at=failed_at
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
    def _in_recipes(self) -> frozenset[str]:
        return frozenset(self._recipe_paths)

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
        seen_by: Mapping[str, Sequence[str]] = {}
        if self.chains is None:
            seen_by = calls_by_seen_message(self._replay, self._calls, given=given)
        return self._outcomes(seen_by)

    def _outcomes(self, seen_by: Mapping[str, Sequence[str]]) -> AnswerOutcomes:
        verdicts = {path: str(record.value["decision"]) for path, record in self._gates.items()}
        return AnswerOutcomes(self._work, self._replay, self._calls, seen_by, verdicts)

    def ends(self) -> dict[str, End]:
        """Return where the answer of each call of the tree ended, by path."""
        # Without the calls that saw an answer, which take quadratic time to find.
        outcomes = self._outcomes({})
        return {
            path: outcomes.of(self._answered[path]).end
            for path in self._tree_paths
            if path in self._answered
        }

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

    def record(self, path: str) -> CallRecord:
        """Return the record of the call or decision at an exact path that counts, as in `call`."""
        if path in self._asked or path in self._gates:
            return self._asked.get(path) or self._gates[path]
        found = self._answered.get(path) or self._refused.get(path)
        return found or self._failed[path][-1]

    @property
    def results(self) -> NodeResults:
        """Return the messages of every node, before and after its merge."""
        return self._work

    @property
    def unanswered(self) -> Sequence[str]:
        """Return the paths that the run reached and that have no answer, in tree order."""
        return self._replay.missing

    def state(self, path: str) -> int:
        """Return the state of `chains` that the call at a path saw before its prompt, or -1."""
        view = self._replay.views.get(path)
        messages: object = () if view is None else view.messages
        return messages.state if isinstance(messages, ChainedMessages) else EMPTY

    def call(self, path: str) -> CallView:
        """Return the call or decision at an exact path, one of `paths`."""
        if path in self._asked or path in self._gates:
            return self._decision(self._asked.get(path) or self._gates[path])
        failed = self._failed.get(path, [])
        record = self.record(path)
        recipes = path in self._in_recipes
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
            seen=() if self.chains else tuple(self._seen(record, view, prompted=not is_function)),
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
        return [one for one in self._inside_of.get(record.path, ()) if not one.failed]

    @cached_property
    def _inside_of(self) -> Mapping[str, Sequence[CallRecord]]:
        """Return the calls of models by functions and steps with tools, by path, failed ones last.

        A call of a path has many others around it: looking for its own among all takes too long.
        """
        found: dict[str, list[CallRecord]] = {}
        for record in (*self._transcript.inner, *self._transcript.failures):
            if record.kind == "inner":
                found.setdefault(record.path, []).append(record)
        return found

    def _rounds(self, record: CallRecord) -> Iterator[ToolRound]:
        inner = self._inner(record)
        return tool_rounds(record, inner, self._executed)

    @cached_property
    def _executed(self) -> Mapping[str, CallRecord]:
        failed = {path: records[-1] for path, records in self._failed.items()}
        return {**failed, **self._answered}

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
        return RecipeCalls.of(self._transcript, most=_MOST_STAGES if self.chains else None)

    @cached_property
    def _let_on(self) -> Mapping[str, Messages]:
        return {
            path: question.settled(Decision.of(self._gates[path].value))
            for path, question in self._replay.held.items()
            if path in self._gates
        }

    def _inside(self, path: str) -> Iterator[InnerModelCall]:
        for record in self._inside_of.get(path, ()):
            yield InnerModelCall(
                model=record.model,
                prompt=said(HumanMessage(record.prompt)),
                answer=record.response if record.message is None else said(record.message),
                error=None if record.error is None else dict(record.error),
            )

    def _decision(self, record: CallRecord) -> CallView:
        held = self._replay.held[record.path].kept
        kept = State() if record.asks else self._let_on[record.path]
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
            yield SeenMessage(role="user", text=said(self.prompt(record)), origin="prompt")

    def prompt(self, record: CallRecord) -> BaseMessage:
        """Return a call's prompt; for a step with tools, from its messages or first request."""
        if record.messages:
            return record.messages[0]
        if not self._has_tools(record.path):
            return HumanMessage(record.prompt)
        # Failed requests too: if the first one failed, no other has the prompt.
        asked = self._inside_of.get(record.path, ())
        return HumanMessage(min(asked, key=lambda one: one.started, default=record).prompt)

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
