"""Prices: the cost of a model's tokens, declared by the user or from the package genai-prices.

Money is counted in whole picodollars (1e-12 USD): sums are exact in any order, so that a budget of
0.3 USD is enough for three calls of 0.1.
"""

from __future__ import annotations

import asyncio
import fnmatch
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mergepoint.core.errors import Fault, TreeError

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

PICO = 10**12
OFFLINE = "mergepoint:offline"  # plain rules, which cost nothing
_PER_MILLION = 10**6  # picodollars per token for one dollar per million tokens


@dataclass(frozen=True, slots=True)
class Price:
    """The prices of a model, in USD per million tokens.

    A price that is not set is that of the next simpler kind: cached input and cache writes cost as
    much as input, one-hour cache writes as cache writes, audio as text. `per_call` is in USD, and
    added to each call. `above` maps a number of input tokens to other prices, which apply to the
    whole of a call with more input tokens.

    Raises TreeError (a ValueError) that lists all problems.
    """

    input_per_million: float
    output_per_million: float
    _: KW_ONLY
    cached_input_per_million: float | None = None
    cache_write_per_million: float | None = None
    cache_write_1h_per_million: float | None = None
    audio_input_per_million: float | None = None
    audio_output_per_million: float | None = None
    per_call: float = 0.0
    above: Mapping[int, Price] = field(default_factory=dict)
    _rates: Mapping[str, int] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        if problems := [*_amount_problems(self), *_above_problems(self.above)]:
            raise TreeError(Fault("", problem) for problem in problems)
        tiers = dict(sorted(self.above.items()))
        object.__setattr__(self, "above", MappingProxyType(tiers))
        object.__setattr__(self, "_rates", _rates(self))

    def cost(self, usage: Mapping[str, Any]) -> int:
        """Return the cost of a call in picodollars, from LangChain's usage metadata."""
        total = int(usage.get("input_tokens") or 0)
        if self.above and (tier := self._tier(total)):
            return tier.cost(usage)
        rates = self._rates
        details = usage.get("input_token_details") or {}
        made = usage.get("output_token_details") or {}
        # The details are parts of the totals: subtract them, or they would be charged twice.
        cached, audio = int(details.get("cache_read") or 0), int(details.get("audio") or 0)
        hour = int(details.get("ephemeral_1h_input_tokens") or 0)
        five = int(details.get("ephemeral_5m_input_tokens") or 0)
        written = max(int(details.get("cache_creation") or 0) - hour, five)
        plain = max(0, total - cached - audio - hour - written)
        spoken = int(made.get("audio") or 0)
        said = max(0, int(usage.get("output_tokens") or 0) - spoken)
        return (
            plain * rates["input"]
            + cached * rates["cached"]
            + written * rates["write"]
            + hour * rates["write_1h"]
            + audio * rates["audio"]
            + said * rates["output"]
            + spoken * rates["audio_output"]
            + rates["call"]
        )

    def at_most(self, input_tokens: int, output_tokens: int) -> int:
        """Return the most that a call with at most these tokens can cost, in picodollars."""
        own = (
            input_tokens * self._rates["input_at_most"]
            + output_tokens * self._rates["output_at_most"]
            + self._rates["call"]
        )
        tiers = [tier for start, tier in self.above.items() if input_tokens > start]
        return max([own, *(tier.at_most(input_tokens, output_tokens) for tier in tiers)])

    def _tier(self, input_tokens: int) -> Price | None:
        fitting = [tier for start, tier in self.above.items() if input_tokens > start]
        return fitting[-1] if fitting else None


class Prices:
    """Prices by model: declared ones, then those in the bundled data of genai-prices.

    Nothing is ever downloaded. The offline model is free. Lookups are cached.

    Args:
        declared: Prices by `provider:name`, or by a glob such as `openai:*`. An exact name has
            precedence over a glob, and an earlier glob over a later one.

    Raises:
        TreeError: A declared price is invalid; the error lists all problems.
    """

    def __init__(self, declared: Mapping[str, Price] | None = None) -> None:
        self.declared: Mapping[str, Price] = MappingProxyType(dict(_declared(declared)))
        self.fixed: dict[str, Price | None] = {}
        """Prices that were looked up and are the same at any time of the day, by model."""
        self._changing: dict[str, Callable[[], Price | None]] = {}

    def of(self, model: str) -> Price | None:
        """Return the price of `provider:name`, or None if it is unknown."""
        if model in self.fixed:
            return self.fixed[model]
        now = self._changing.get(model)
        if now is None:
            price = self._declared_for(model)
            now = _catalogued(model) if price is None else None
            if now is None:
                self.fixed[model] = price
                return price
            self._changing[model] = now
        return now()

    def _declared_for(self, model: str) -> Price | None:
        price = self.declared.get(model)
        if price is None:
            globs = (name for name in self.declared if fnmatch.fnmatchcase(model, name))
            price = self.declared.get(next(globs, ""))
        return _FREE if price is None and model == OFFLINE else price


def prepare_prices(models: Iterable[str]) -> None:
    """Load the bundled price data for models that need it, unless an event loop runs."""
    if asyncio._get_running_loop() is None and any(map(needs_catalogue, models)):
        read_catalogue()


_READ = threading.Event()


def needs_catalogue(model: str) -> bool:
    """Return whether the bundled price data must be loaded first; it is so once per process."""
    return not _READ.is_set() and model != OFFLINE and bool(model.partition(":")[2])


def read_catalogue() -> None:
    """Load the bundled price data, so that later lookups don't wait for a file."""
    from genai_prices.data_snapshot import get_snapshot  # a third of a second; only when needed

    get_snapshot()
    _READ.set()


def _catalogued(model: str) -> Callable[[], Price | None] | None:
    """Return the lookup of a model in genai-prices, or None for an unknown model.

    Some prices change with the time of day.
    """
    known = _known_model(model)
    if known is None:
        return None
    made: dict[int, Price | None] = {}

    def now() -> Price | None:
        rates = known.get_prices(datetime.now(UTC))
        # Without a price context, genai-prices returns objects of its snapshot: ids stay unique.
        if id(rates) not in made:
            made[id(rates)] = _converted(vars(rates))
        return made[id(rates)]

    return now


def context_window(model: str) -> int | None:
    """Return the most tokens of a request and its answer for `provider:name`, None if unknown."""
    known = None if model == OFFLINE else _known_model(model)
    return None if known is None else known.context_window


def _known_model(model: str) -> ModelInfo | None:
    """Return a model in the bundled data of genai-prices, or None."""
    provider, _, name = model.partition(":")
    if not name:
        return None
    from genai_prices.data_snapshot import get_snapshot  # a third of a second; only when needed

    try:
        return get_snapshot().find_provider_model(name, None, provider, None)[1]
    except LookupError:
        return None


# Names of genai-prices, and our fields. Searches are services that are not billed by tokens.
_OURS = {
    "input_mtok": "input_per_million",
    "output_mtok": "output_per_million",
    "cache_read_mtok": "cached_input_per_million",
    "cache_write_mtok": "cache_write_per_million",
    "cache_write_1h_mtok": "cache_write_1h_per_million",
    "input_audio_mtok": "audio_input_per_million",
    "output_audio_mtok": "audio_output_per_million",
    "requests_kcount": "per_call",
}
_NOT_BY_TOKEN = {"web_searches_kcount", "storage_searches_kcount"}


def _converted(known: Mapping[str, Any]) -> Price | None:
    """Return the price, or None if a model is not billed only by tokens that we count."""
    rates = {name: rate for name, rate in known.items() if rate is not None}
    counted = {name: rate for name, rate in rates.items() if name not in _NOT_BY_TOKEN}
    if not {"input_mtok", "output_mtok"} <= counted.keys() or counted.keys() - _OURS.keys():
        return None
    starts = sorted({tier.start for rate in rates.values() for tier in getattr(rate, "tiers", ())})
    # One token above the start, since a tier applies only to more input than that.
    above = {start: _price(counted, start + 1, {}) for start in starts}
    return _price(counted, 0, above)


def _price(rates: Mapping[str, Any], tokens: int, above: Mapping[int, Price]) -> Price:
    given: dict[str, Any] = {}
    for name, rate in rates.items():
        amount = getattr(rate, "base", rate)
        for tier in getattr(rate, "tiers", ()):
            if tokens > tier.start:
                amount = tier.price
        given[_OURS[name]] = float(amount) / (1000 if name == "requests_kcount" else 1)
    return Price(**given, above=above)


def _rates(price: Price) -> Mapping[str, int]:
    """Return picodollars per token of each kind, and the most that a token can cost."""

    def rate(*amounts: float | None) -> int:
        return round(next(amount for amount in amounts if amount is not None) * _PER_MILLION)

    plain, write = price.input_per_million, price.cache_write_per_million
    rates = {
        "input": rate(plain),
        "cached": rate(price.cached_input_per_million, plain),
        "write": rate(write, plain),
        "write_1h": rate(price.cache_write_1h_per_million, write, plain),
        "audio": rate(price.audio_input_per_million, plain),
    }
    output = rate(price.output_per_million)
    spoken = rate(price.audio_output_per_million, price.output_per_million)
    rates |= {"input_at_most": max(rates.values()), "output": output, "audio_output": spoken}
    return rates | {"output_at_most": max(output, spoken), "call": round(price.per_call * PICO)}


def _amount_problems(price: Price) -> list[str]:
    amounts = {
        known.name: getattr(price, known.name)
        for known in fields(price)
        if known.name.endswith("_per_million") or known.name == "per_call"
    }
    needed = ("input_per_million", "output_per_million", "per_call")
    return [
        f"{name} must be a finite number of USD, at least 0, not {amount!r}"
        for name, amount in amounts.items()
        if (amount is None and name in needed) or (amount is not None and not _is_amount(amount))
    ]


def _is_amount(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0  # type: ignore[arg-type,operator]


def _above_problems(above: Any) -> list[str]:
    if not isinstance(above, Mapping):
        return [f"above is a mapping of input tokens to a Price, not {above!r}"]
    return [
        f"above has {start!r}: {price!r}; use a number of tokens, and a Price"
        for start, price in above.items()
        if isinstance(start, bool) or not isinstance(start, int) or not isinstance(price, Price)
    ]


def _declared(prices: Any) -> Mapping[str, Price]:
    if prices is None:
        return {}
    fix = "; write prices={'provider:name': Price(input, output)}"
    if not isinstance(prices, Mapping):
        raise TreeError.of(f"prices is a mapping, not {prices!r}{fix}")
    faults = [
        Fault("", f"prices: {model!r}: {price!r} is not a Price of a model{fix}")
        for model, price in prices.items()
        if not isinstance(model, str) or not model.strip() or not isinstance(price, Price)
    ]
    if faults:
        raise TreeError(faults)
    return prices


_FREE = Price(0, 0)
