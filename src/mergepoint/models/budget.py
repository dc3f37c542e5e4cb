"""Budgets of calls, tokens and cost: the ledger of a run, and nested budgets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache, partial
from operator import attrgetter
from time import monotonic
from typing import Any, Protocol

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage

from mergepoint.core.errors import Fault, TreeError
from mergepoint.core.paths import ancestors, prefixes
from mergepoint.journal.call_records import CallKey, CallRecord, sound_usage
from mergepoint.models.budget_account import (
    Amount,
    BudgetAccount,
    CallEstimate,
    LedgerReservation,
    PriorCall,
    below,
    by_path,
    charge_prior_calls,
    tokens_of,
)
from mergepoint.models.pricing import PICO, Price, Prices
from mergepoint.models.timeouts import Stopwatch
from mergepoint.tree.policy import Budget

# The most tokens that a call can use must be known before it is made. A prompt is bounded by its
# bytes: in byte-level tokenizers, and those that fall back to bytes, a token is at least one byte.
# The provider's own tokenizer would be closer, but needs its package; a guess of three or four
# characters per token is not a bound. An answer is bounded by the limit that the call or its model
# sets. Images, audio and files are estimates.


OUTPUT_ESTIMATE = 1_024  # tokens of an answer without a limit
MEDIA_ESTIMATE = 4_096  # tokens of an image, an audio clip or a file in a prompt

_REQUEST = 64  # tokens that a chat format adds to a request
_MESSAGE = 16  # tokens that it adds to each message
_TOOLS = 1_024  # tokens of a provider's own instructions for tools
_CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict")
_NESTED = ("options", "generation_config", "model_kwargs")
_TOOL_PARAMS = ("tools", "functions", "response_format")


@dataclass(frozen=True, slots=True)
class CallShape:
    """The data known about a step's calls in advance: model, output limit, size of the schema."""

    model: str
    _: KW_ONLY
    output: int | None = None
    schema: int = 0
    others: tuple[str, ...] = ()  # models that may answer instead of the first


def prompt_at_most(
    messages: Sequence[BaseMessage], params: Mapping[str, Any], *, schema: int = 0
) -> int:
    """Return the most tokens that a prompt can have, tools and schema included."""
    tools = sum(_json_bytes(params[name]) for name in _TOOL_PARAMS if name in params) + schema
    around = _REQUEST + _MESSAGE * len(messages) + (_TOOLS if tools else 0)
    return around + tools + sum(_message_bytes(message) for message in messages)


def output_at_most(params: Mapping[str, Any], shape: CallShape | None, *, estimate: int) -> int:
    """Return the most tokens that an answer can have; the estimate if it has no limit.

    With `n` answers for one prompt, the limit is multiplied by n.
    """
    cap = output_cap(params) or (shape.output if shape is not None else None) or estimate
    answers = params.get("n")
    return cap * answers if isinstance(answers, int) and answers > 1 else cap


def shape_of(
    models: Sequence[tuple[str, BaseChatModel]], schema: Mapping[str, Any] | None
) -> CallShape:
    """Return the shape of calls with a schema that one of several models answers.

    The output limit is the largest of theirs, or None if one has none.
    """
    size = 0 if schema is None else _json_bytes(schema)
    caps = [output_cap_of(model) for _, model in models]
    most = None if None in caps else max((cap for cap in caps if cap is not None), default=None)
    (name, _), *others = models
    return CallShape(name, output=most, schema=size, others=tuple(one for one, _ in others))


def output_cap(params: Mapping[str, Any]) -> int | None:
    """Return the limit that parameters set on an answer's tokens, the largest of several."""
    most = 0
    for name in _CAPS:
        if type(cap := params.get(name)) is int and cap > most:
            most = cap
    for name in _NESTED:
        if isinstance(inner := params.get(name), Mapping):
            most = max(most, output_cap(inner) or 0)
    return most or None


def merged(params: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters overridden by others; an output limit replaces one of any name."""
    if output_cap(over):
        params = {name: value for name, value in params.items() if not output_cap({name: value})}
    return {**params, **over}


def cap_name(kind: type[BaseChatModel]) -> str:
    """Return the parameter by which models of a class limit an answer's tokens."""
    return next((name for name in _cap_names(kind) if name in _CAPS), _CAPS[0])


def output_cap_of(model: BaseChatModel) -> int | None:
    """Return the output limit that a model sets on its answers, or None."""
    names = _cap_names(type(model))
    return output_cap({name: getattr(model, name, None) for name in names}) if names else None


@lru_cache(maxsize=256)
def _cap_names(kind: type[BaseChatModel]) -> tuple[str, ...]:
    """Return the limits that a class has; cached, as pydantic is slow on missing attributes."""
    return tuple(
        name for name in (*_CAPS, *_NESTED) if name in kind.model_fields or hasattr(kind, name)
    )


def _message_bytes(message: BaseMessage) -> int:
    content = message.content
    size = _bytes(content) if isinstance(content, str) else sum(map(_block_bytes, content))
    if isinstance(message, AIMessage) and message.tool_calls:
        size += _json_bytes(message.tool_calls)
    return size + (_bytes(message.name) if message.name else 0)


def _block_bytes(block: str | dict[str, Any]) -> int:
    if isinstance(block, str):
        return _bytes(block)
    text = block.get("text")
    if isinstance(text, str):
        return _bytes(text) + _MESSAGE
    media = str(block.get("type", "")) in _MEDIA
    return MEDIA_ESTIMATE if media else _json_bytes(block)


_MEDIA = frozenset(
    {"image", "image_url", "input_image", "audio", "input_audio", "video", "file", "document"}
)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _json_bytes(value: Any) -> int:
    return _bytes(json.dumps(value, ensure_ascii=False, default=str))


# A call is granted only if every budget above it has room for the most that it may use. All of that
# is reserved at once, under one lock, until the call is settled. So concurrent calls never spend
# the same money twice.


class BudgetLedger:
    """Grants and charges the calls of one run. A BudgetSource.

    Without any budget it grants every call, and computes its cost.

    Args:
        budgets: The budget of a node by its path.
        run: The budget of the whole run.
        root: The path that errors use for the run's budget.
        prices: The prices of models.
        shape_at: Returns the data known about a step's calls by path, so that a model's own
            max_tokens counts.
        output_estimate: Tokens of an answer without a limit.
        clock: Returns seconds that never decrease.
    """

    def __init__(
        self,
        budgets: Mapping[str, Budget] | Callable[[str], Budget | None] | None = None,
        *,
        run: Budget | None = None,
        root: str = "",
        prices: Prices | None = None,
        shape_at: Callable[[str], CallShape | None] | None = None,
        output_estimate: int = OUTPUT_ESTIMATE,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._budget_at = budgets if callable(budgets) else dict(budgets or {}).get
        self._run = None if run is None else BudgetAccount(root, run)
        self.prices = prices or Prices()
        self._shape_at = shape_at or (lambda path: None)
        self._estimate = output_estimate
        self._stopwatch = Stopwatch(clock or monotonic)
        self._lock = threading.Lock()
        self._accounts: dict[str, BudgetAccount | None] = {}
        self._chains: dict[str, tuple[BudgetAccount, ...]] = {}
        self._before: list[PriorCall] = []

    def reserve(
        self, key: CallKey, model: str, messages: Sequence[BaseMessage], params: Mapping[str, Any]
    ) -> LedgerReservation | None:
        """Reserve the most that one attempt can use; return None if no budget and no price apply.

        Raises BudgetExceeded, which names the innermost budget without room, and TreeError if a
        budget is in USD and the model has no price.
        """
        prices = self.prices
        price = prices.fixed[model] if model in prices.fixed else prices.of(model)
        chain = self._chain(key.path)
        if not chain and price is None:
            return None
        most = partial(self._need, key.path, price, messages, params)
        if not chain:
            return LedgerReservation(self.settled, chain, price, None, most)
        if price is None and (fault := _unpriced(chain, key.path, model)):
            raise TreeError([fault])
        counted = any(map(attrgetter("counts_tokens"), chain))
        need = most() if counted else CallEstimate(key.path, Amount(calls=1))
        with self._lock:
            now = self._stopwatch.start()
            # Check all budgets before reserving in any: a refused call must leave no reservation
            # behind.
            for account in chain:
                account.check(need, now)
            for account in chain:
                account.held = account.held.plus(need.amount)
                account.started = now if account.started is None else account.started
        return LedgerReservation(self.settled, chain, price, need.amount, most)

    def charge(self, key: CallKey, model: str, message: AIMessage | None) -> float | None:
        """Charge a call that was made without a reservation; return its cost in USD, or None.

        It may overdraw a budget; the next call is then refused.
        """
        price = self.prices.of(model)
        usage = sound_usage(message.usage_metadata) if message is not None else None
        known = price is not None and bool(usage)
        pico = price.cost(usage) if price is not None and usage else 0
        used = Amount(1, tokens_of(usage) if usage else 0, pico)
        self.settled(self._chain(key.path), Amount(), used)
        return pico / PICO if known else None

    def prime(self, records: Iterable[CallRecord]) -> BudgetLedger:
        """Count recorded calls, such as those of a run that is resumed.

        An answer that was replayed from another run costs nothing. A failed call without a recorded
        cost counts as a call.
        """
        self._before = by_path(
            PriorCall(record.path, self._recorded(record), (record.started, record.ended))
            for record in records
            if record.source == "live" and record.kind in ("step", "inner")
        )
        counted: dict[int, tuple[BudgetAccount, list[PriorCall]]] = {}
        for one in self._before:
            for account in self._above(one.path):
                counted.setdefault(id(account), (account, []))[1].append(one)
        for account, calls in counted.values():
            charge_prior_calls(account, calls)
        return self

    def govern(self, budgets: Mapping[str, Budget]) -> None:
        """Add budgets, by path, that were not known when the run began.

        Call this before the first call below one of the paths. Recorded calls count; a path that
        already has a budget keeps it.
        """
        with self._lock:
            for path, budget in budgets.items():
                if self._accounts.get(path) is None:
                    account = self._accounts[path] = BudgetAccount(path, budget)
                    charge_prior_calls(account, below(self._before, path))

    def unpriced(
        self, path: str, model: str, budgets: Mapping[str, Budget] | None = None
    ) -> Fault | None:
        """Return the problem of calls below a budget in USD whose model has no price, or None.

        `budgets` are additional ones, by path, that would apply to the calls.
        """
        if self.prices.of(model) is not None:
            return None
        more = budgets or {}
        own = [BudgetAccount(at, more[at]) for at in (path, *ancestors(path)) if at in more]
        with self._lock:
            return _unpriced([*own, *self._above(path)], path, model)

    def pause(self) -> AbstractContextManager[None]:
        """Stop the clock of all budgets while a person is asked."""
        return self._stopwatch.pause()

    def rest(self) -> None:
        """Stop the clock of all budgets until the next call is reserved."""
        self._stopwatch.stop()

    def spent(self, path: str | None = None) -> Amount:
        """Return the amount spent of the budget at a path; None means the run's.

        Raises LookupError if there is no such budget.
        """
        account = self._run if path is None else self._account(path)
        if account is None:
            raise LookupError(f"no budget at {path or 'the run'}")
        with self._lock:
            return account.spent

    def settled(self, chain: tuple[BudgetAccount, ...], held: Amount, used: Amount) -> None:
        """Replace a reservation by the actual usage."""
        if chain:
            with self._lock:
                for account in chain:
                    account.held = account.held.minus(held)
                    account.spent = account.spent.plus(used)

    def at_most(
        self, path: str, model: str, messages: Sequence[BaseMessage], params: Mapping[str, Any]
    ) -> tuple[CallEstimate, Price | None]:
        """Return the most that one attempt can use, and the price of its model or None."""
        price = self.prices.of(model)
        return self._need(path, price, messages, params), price

    def _need(
        self,
        path: str,
        price: Price | None,
        messages: Sequence[BaseMessage],
        params: Mapping[str, Any],
    ) -> CallEstimate:
        shape = self._shape_at(path)
        prompt = prompt_at_most(messages, params, schema=shape.schema if shape else 0)
        output = output_at_most(params, shape, estimate=self._estimate)
        pico = 0 if price is None else price.at_most(prompt, output)
        return CallEstimate(path, Amount(1, prompt + output, pico), output)

    def _recorded(self, record: CallRecord) -> Amount:
        usage = record.usage
        cost = None if record.cost is None else max(0, round(record.cost * PICO))
        if usage is None:
            if not record.answered:
                return Amount(1, 0, cost or 0)
            shown = [*record.lead, *filter(None, [record.message])]
            need = self._need(record.path, self.prices.of(record.model), shown, record.params)
            return Amount(1, need.amount.tokens, need.amount.pico if cost is None else cost)
        price = self.prices.of(record.model)
        if cost is None:
            cost = 0 if price is None else price.cost(usage)
        return Amount(1, tokens_of(usage), cost)

    def _chain(self, path: str) -> tuple[BudgetAccount, ...]:
        """Return the accounts above a call, the innermost first."""
        chain = self._chains.get(path)
        if chain is None:
            with self._lock:
                chain = self._chains[path] = self._above(path)
        return chain

    def _above(self, path: str) -> tuple[BudgetAccount, ...]:
        chain: list[BudgetAccount] = []
        for at in reversed(prefixes(path)):
            if at not in self._accounts:
                budget = self._budget_at(at)
                self._accounts[at] = None if budget is None else BudgetAccount(at, budget)
            if (account := self._accounts[at]) is not None:
                chain.append(account)
        return (*chain, self._run) if self._run is not None else tuple(chain)

    def _account(self, path: str) -> BudgetAccount | None:
        if path not in self._accounts:
            budget = self._budget_at(path)
            self._accounts[path] = None if budget is None else BudgetAccount(path, budget)
        return self._accounts[path]


def unpriced(path: str, model: str, budget: str) -> Fault:
    """Return the problem of a step under a budget in USD whose model has no price."""
    return Fault(
        path,
        f"the budget of {budget or 'the run'} is in USD, and no price of {model!r} is known; "
        f"declare it, in USD per million tokens: prices={{{model!r}: Price(input, output)}}",
    )


def _unpriced(chain: Iterable[BudgetAccount], path: str, model: str) -> Fault | None:
    bound = next((account.path for account in chain if account.budget.usd is not None), None)
    return None if bound is None else unpriced(path, model, bound)


class Reservation(Protocol):
    """The amount reserved for one attempt of a call, until its actual cost is known."""

    @property
    def counts_calls(self) -> bool:
        """Return whether a budget counts calls: then a call's start is recorded before it."""
        ...

    def release(self) -> None:
        """Release the reservation of an attempt that did not start; nothing is charged."""
        ...

    def settle(self, message: AIMessage | None, error: BaseException | None = None) -> float | None:
        """Charge the actual usage of the attempt; return its cost in USD, or None if unknown.

        Call this once per reservation, in every case.

        Args:
            message: The answer; None if the attempt failed, and its usage is unknown.
            error: The failure. If it shows that the provider refused the request, it costs nothing.
        """
        ...


class BudgetSource(Protocol):
    """A source of reservations for calls, safe to use from several threads and tasks."""

    def reserve(
        self, key: CallKey, model: str, messages: Sequence[BaseMessage], params: Mapping[str, Any]
    ) -> Reservation | None:
        """Reserve the most that one attempt can use; return None if nothing has to be settled.

        Raises BudgetExceeded, before anything is sent, if that is more than the available amount.
        """
        ...


class NestedBudget:
    """Grants a call if both its run and the run around it have room. A BudgetSource."""

    def __init__(self, own: BudgetLedger, around: BudgetSource) -> None:
        self._own = own
        self._around = around

    @property
    def prices(self) -> Prices:
        """Return the prices of the inner run."""
        return self._own.prices

    def reserve(
        self, key: CallKey, model: str, messages: Sequence[BaseMessage], params: Mapping[str, Any]
    ) -> Reservation | None:
        """Reserve the most that one attempt can use, from both.

        Raises BudgetExceeded, which names the budget without room, the inner one first.
        """
        own = self._own.reserve(key, model, messages, params)
        try:
            around = self._around.reserve(key, model, messages, params)
        except BaseException:
            # A call that the outer budget refuses must not stay reserved in the inner one.
            if own is not None:
                own.release()
            raise
        return _Both(own, around) if own is not None and around is not None else own or around

    def at_most(
        self, path: str, model: str, messages: Sequence[BaseMessage], params: Mapping[str, Any]
    ) -> tuple[CallEstimate, Price | None]:
        """Return the most that one attempt can use, as the inner run knows it."""
        return self._own.at_most(path, model, messages, params)

    def charge(self, key: CallKey, model: str, message: AIMessage | None) -> float | None:
        """Charge both for a call that was made without a reservation; return its cost in USD."""
        cost = self._own.charge(key, model, message)
        if isinstance(self._around, BudgetLedger | NestedBudget):
            return self._around.charge(key, model, message)
        return cost

    def pause(self) -> AbstractContextManager[object]:
        """Stop the clocks of both while a person is asked."""
        both = ExitStack()
        for source in self._clocks():
            both.enter_context(source.pause())
        return both

    def rest(self) -> None:
        """Stop the clocks of both until the next call is reserved."""
        for source in self._clocks():
            source.rest()

    def _clocks(self) -> list[BudgetLedger | NestedBudget]:
        around = self._around
        return [self._own, *([around] if isinstance(around, BudgetLedger | NestedBudget) else [])]


class _Both:
    """A reservation in two runs. A Reservation."""

    def __init__(self, own: LedgerReservation, around: Reservation) -> None:
        self._own = own
        self._around = around

    @property
    def counts_calls(self) -> bool:
        """Return whether a budget of calls is among those that grant it."""
        return self._own.counts_calls or self._around.counts_calls

    def release(self) -> None:
        """Release both reservations."""
        self._own.release()
        self._around.release()

    def settle(self, message: AIMessage | None, error: BaseException | None = None) -> float | None:
        """Charge both for the attempt's usage; return its cost in USD, or None if unknown."""
        self._own.settle(message, error)
        return self._around.settle(message, error)
