"""The calls of a run as the data of a page: what each saw, its answer, and where that went."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import BaseMessage

from mergepoint.core.merge import last_response
from mergepoint.core.paths import ancestors
from mergepoint.journal.call_records import SHOWN_SOURCES, CallRecord
from mergepoint.journal.recipe_records import NOTE
from mergepoint.report.chains import Chains
from mergepoint.report.transcript_index import TranscriptIndex
from mergepoint.report.views import (
    AnswerOutcome,
    CallView,
    GateOutcome,
    InRecipe,
    SeenMessage,
    StageWrites,
    role_of,
    said,
)
from mergepoint.tree.leaves import Call, Step
from mergepoint.view.node_data import PageNodes
from mergepoint.view.run_usage import PathUsage, UsageOf
from mergepoint.view.texts import Texts, plain

NONE: Final = -1

Data = dict[str, Any]


class CallData:
    """The calls, messages and states of one run.

    Args:
        index: The index of the run's calls, with chains.
        texts: The texts of the page.
        nodes: The index of each node of the page, by path.
        usage: The usage at each path.
        start: The time to which the times of calls are relative, in seconds since the epoch.
    """

    def __init__(
        self,
        index: TranscriptIndex,
        texts: Texts,
        nodes: Mapping[str, int],
        *,
        usage: UsageOf,
        start: float,
    ) -> None:
        self._index = index
        self._texts = texts
        self._nodes = nodes
        self._usage = usage
        self._start = start
        self._chains = index.chains or Chains({})
        self._own: dict[tuple[str, str, int], int] = {}
        origins = index.results.origins
        self.messages: list[Data] = [
            self._message(role_of(one), said(one), self._node(origins.get(str(one.id), "")))
            for one in self._chains.messages
        ]

    @property
    def states(self) -> list[tuple[int, int]]:
        """Return the states of the run's conversations."""
        return self._chains.states

    def of(self, path: str) -> Data:
        """Return the call at a path that the index knows."""
        view, record = self._index.call(path), self._index.record(path)
        refused = view.unusable
        return {
            **self._place(path),
            "kind": view.kind,
            "status": _status(view, record),
            "model": view.model,
            "source": SHOWN_SOURCES[record.source],
            "start": round(view.started - self._start, 6),
            "seconds": view.seconds,
            "waited": 0,
            "attempts": view.attempt,
            "view": view.view,
            "params": plain(view.params),
            "lead": [self._own_message(one) for one in record.lead],
            "state": self._index.state(path),
            "prompt": self._prompt(view, record),
            "reads": [
                {
                    "key": read.key,
                    "source": read.source,
                    "path": read.path or "",
                    "made_by": read.made_by or "",
                    "text": None if read.source == "default" else self._texts.value(read.value),
                }
                for read in view.reads
            ],
            "answer": self._answer(view),
            "message": self._made(record),
            "refused": self._texts.add_if(refused),
            "position": _position(refused, (view.error or {}).get("position")),
            "error": self._failure(view.path, view.error),
            "earlier_errors": [self._failure(view.path, one) for one in view.earlier_errors],
            "fate": None if view.fate is None else self._fate(view.fate),
            "usage": self._usage(path).to_page(),
            "rounds": self._rounds(view),
            "inside": self._inside(view),
            "decision": None if view.decided is None else self._decision(view.decided, record),
            "in_recipe": None if view.in_recipe is None else _in_recipe(view.in_recipe),
            "planned": None,
        }

    def running(self, path: str, kind: str) -> Data:
        """Return a call that the run has reached, and that has no answer yet."""
        return {
            **self._place(path),
            "kind": kind,
            "status": "running",
            "model": "",
            "source": "live",
            "start": None,
            "seconds": 0,
            "waited": 0,
            "attempts": 1,
            "view": "as_is",
            "params": {},
            "lead": [],
            "state": self._index.state(path),
            "prompt": NONE,
            "reads": [],
            "answer": None,
            "message": NONE,
            "refused": None,
            "position": None,
            "error": None,
            "earlier_errors": [],
            "fate": None,
            "usage": PathUsage().to_page(),
            "rounds": [],
            "inside": [],
            "decision": None,
            "in_recipe": None,
            "planned": None,
        }

    def _place(self, path: str) -> Data:
        around = next(at for at in (path, *ancestors(path), "") if at in self._nodes or not at)
        return {"path": path, "node": self._node(around)}

    def _node(self, path: str) -> int:
        return self._nodes.get(path, NONE)

    def _message(self, role: str, text: str, by: int) -> Data:
        return {"role": role, "text": self._texts.add(text), "by": by}

    def _own_message(self, message: BaseMessage) -> int:
        """Return the index of a message of one request only."""
        return self._numbered(role_of(message), said(message), NONE)

    def _numbered(self, role: str, text: str, by: int) -> int:
        key = (role, text, by)
        if key not in self._own:
            self._own[key] = len(self.messages)
            self.messages.append(self._message(role, text, by))
        return self._own[key]

    def _prompt(self, view: CallView, record: CallRecord) -> int:
        if view.kind != Step.kind:
            return NONE
        known = self._chains.of_id(record.key.message_id(0)) if record.answered else NONE
        if known != NONE:
            return known
        asked = self._index.prompt(record)
        return self._numbered(role_of(asked), said(asked), self._node(view.path))

    def _made(self, record: CallRecord) -> int:
        """Return the answer as a message of the conversation, or -1."""
        if not record.answered or record.kind == "gate" or record.path not in self._nodes:
            return NONE
        if record.kind == "step":
            return self._chains.of_id(record.key.message_id(1))
        response = last_response(record.made().messages)
        return NONE if response is None else self._chains.of_id(str(response.id))

    def _answer(self, view: CallView) -> int | None:
        if view.answer is None and view.kind == Call.kind and not view.error and not view.left_out:
            return None if view.value is None else self._texts.value(view.value)
        return self._texts.add_if(view.answer)

    def _failure(self, path: str, error: Mapping[str, Any] | None) -> Data | None:
        if error is None:
            return None
        # The error of a skipped call names the node whose budget was exceeded.
        where = str(error.get("path") or path)
        found = {"path": where, "type": str(error["type"]), "message": str(error["message"])}
        answer = error.get("answer")
        return found if not answer else {**found, "answer": self._texts.add(str(answer))}

    def _fate(self, fate: AnswerOutcome) -> Data:
        return {
            "end": fate.end,
            "passed": [self._node(one.path) for one in fate.passed],
            "at": NONE if fate.at is None else self._node(fate.at.path),
            "by": fate.by or "",
            "captured": [
                {"key": one.key, "path": one.path, "read_by": list(one.read_by)}
                for one in fate.captured
            ],
            "edited": list(fate.edited),
        }

    def _rounds(self, view: CallView) -> list[Data]:
        return [
            {
                "said": self._texts.add(one.said),
                "calls": [
                    {
                        "name": call.name,
                        "args": self._texts.value(call.args),
                        "path": call.path or "",
                        "result": self._texts.add_if(call.result),
                        "failed": call.failed,
                    }
                    for call in one.calls
                ],
            }
            for one in view.rounds
        ]

    def _inside(self, view: CallView) -> list[Data]:
        return [
            {
                "model": one.model,
                "prompt": self._texts.add(one.prompt),
                "answer": self._texts.add(one.answer),
                "error": ""
                if one.error is None
                else f"{one.error['type']}: {one.error['message']}",
            }
            for one in view.inside
        ]

    def _decision(self, decided: GateOutcome, record: CallRecord) -> Data:
        made = bool(decided.decision)
        found = {
            "question": self._texts.add(decided.question),
            "decision": decided.decision,
            "feedback": self._texts.add(decided.feedback) if decided.feedback else None,
            "who": "",
            "at": record.ended if made else None,
            "held": self._held(decided.held, decided.held_outputs),
            "kept": self._held(decided.kept, decided.kept_outputs),
        }
        if made:
            return found
        texts = [one.text for one in decided.held if one.role == "assistant"]
        outputs = dict(decided.held_outputs)
        editable = {
            "text": self._texts.add(texts[-1]) if texts else None,
            "outputs": self._texts.value(outputs) if outputs else None,
        }
        return {**found, "editable": editable}

    def _held(self, messages: Sequence[SeenMessage], outputs: Mapping[str, Any]) -> list[int]:
        texts = [self._texts.add(one.text) for one in messages]
        # An output that is a message too isn't shown twice.
        return list(dict.fromkeys([*texts, *map(self._texts.value, outputs.values())]))


def is_note(record: CallRecord) -> bool:
    """Return whether a record is a note of a recipe's block, and no call."""
    return record.model == NOTE


def _status(view: CallView, record: CallRecord) -> str:
    if view.decided is not None:
        if not view.decided.decision:
            return "waiting"
        return "rejected" if view.decided.decision == "reject" else "answered"
    if view.left_out:
        return "left_out"
    return "answered" if record.answered else "failed"


def _position(answer: str | None, position: object) -> int | None:
    """Return the character at which an answer did not parse, from its line and column."""
    if answer is None or not isinstance(position, Mapping):
        return None
    line, column = position.get("line"), position.get("column")
    if not isinstance(line, int) or not isinstance(column, int) or line < 1 or column < 1:
        return None
    before = answer.split("\n")[: line - 1]
    return min(len(answer), sum(len(one) + 1 for one in before) + column - 1)


def _in_recipe(purpose: InRecipe) -> Data:
    return {
        "stage": purpose.around,
        "thing": purpose.thing,
        "before": [*map(_wrote, purpose.before)],
        "made": None if purpose.made is None else _wrote(purpose.made),
        "after": [*map(_wrote, purpose.after)],
        "results": list(purpose.results),
    }


def _wrote(one: StageWrites) -> Data:
    return {
        "stage": one.stage,
        "thing": one.thing,
        "wrote": list(one.wrote),
        "calls": list(one.calls),
    }


def in_order(own: Collection[str], more: Iterable[str], nodes: PageNodes) -> Iterator[str]:
    """Yield the paths of calls, each followed by those below it.

    Args:
        own: The paths of calls that are nodes.
        more: The paths of calls that the tree doesn't name, in order.
        nodes: The nodes.
    """
    below: dict[str, list[str]] = {}
    for path in more:
        around = nodes.around(path)
        below.setdefault("" if around is None else around.path, []).append(path)
    for path in nodes.number:
        if path in own:
            yield path
        yield from below.pop(path, ())
    for rest in below.values():
        yield from rest
