"""Prices: what a model's tokens cost, declared by the user or from the package genai-prices.

Money is counted in whole picodollars (1e-12 USD): sums are exact, in any order, so that a budget
of 0.3 USD takes three calls of 0.1.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from mergepoint.core.errors import Fault, TreeError

PICO = 10**12
OFFLINE = "mergepoint:offline"  # plain rules, which cost nothing
_PER_MILLION = 10**6  # picodollars a token for one dollar a million tokens


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs, in USD a million tokens.

    What is left out costs what the plainer kind does: cached input and cache writes as input,
    one-hour cache writes as cache writes, audio as text. `per_call` is in USD, added to each
    call. `above` gives other prices for the whole of a call with more input tokens than its key.

    Raises TreeError (a ValueError) that lists everything that is wrong with it.
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
        """Give what a call cost, in picodollars, from LangChain's usage metadata."""
        total = int(usage.get("input_tokens") or 0)
        if tier := self._tier(total):
            return tier.cost(usage)
        rates = self._rates
        details = usage.get("input_token_details") or {}
        made = usage.get("output_token_details") or {}
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
        """Give the most that a call of at most that many tokens can cost, in picodollars."""
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
    """Prices by model: those declared, then those of genai-prices, from its bundled data.

    `declared` goes by `provider:name` or a glob such as `openai:*`; an exact name wins over a
    glob, an earlier glob over a later one. Nothing is ever fetched. The offline model is free.
    What a look-up gave is kept.

    Raises TreeError that lists everything that is wrong with what is declared.
    """

    def __init__(self, declared: Mapping[str, Price] | None = None) -> None:
        self.declared: Mapping[str, Price] = MappingProxyType(dict(_declared(declared)))
        self._found: dict[str, Callable[[], Price | None]] = {}

    def of(self, model: str) -> Price | None:
        """Give the price of `provider:name`, None where none is known."""
        found = self._found.get(model)
        if found is None:
            found = self._found[model] = self._look_up(model)
        return found()

    def _look_up(self, model: str) -> Callable[[], Price | None]:
        price = self.declared.get(model)
        if price is None:
            globs = (name for name in self.declared if fnmatch.fnmatchcase(model, name))
            price = self.declared.get(next(globs, ""))
        if price is None and model == OFFLINE:
            price = Price(0, 0)
        return _catalogued(model) if price is None else lambda: price


def _catalogued(model: str) -> Callable[[], Price | None]:
    """Give the look-up of a model in genai-prices; some prices change with the time of day."""
    provider, _, name = model.partition(":")
    if not name:
        return lambda: None
    from genai_prices.data_snapshot import get_snapshot  # a third of a second; only when needed

    try:
        _, known = get_snapshot().find_provider_model(name, None, provider, None)
    except LookupError:
        return lambda: None
    made: dict[int, Price | None] = {}

    def now() -> Price | None:
        rates = known.get_prices(datetime.now(UTC))
        if id(rates) not in made:
            made[id(rates)] = _converted(vars(rates))
        return made[id(rates)]

    return now


# What genai-prices calls it: our field. Searches are services beside the tokens of a call.
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
_BESIDE = {"web_searches_kcount", "storage_searches_kcount"}


def _converted(known: Mapping[str, Any]) -> Price | None:
    """Give the price; None where a model is not, or not only, paid by tokens that we count."""
    rates = {name: rate for name, rate in known.items() if rate is not None}
    counted = {name: rate for name, rate in rates.items() if name not in _BESIDE}
    if not {"input_mtok", "output_mtok"} <= counted.keys() or counted.keys() - _OURS.keys():
        return None
    starts = sorted({tier.start for rate in rates.values() for tier in getattr(rate, "tiers", ())})
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
    """Give picodollars a token of each kind, and the most that a token can cost."""

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
        f"{name} is a finite number of USD from 0 on, not {amount!r}"
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
        f"above holds {start!r}: {price!r}; it is a count of tokens, and a Price"
        for start, price in above.items()
        if isinstance(start, bool) or not isinstance(start, int) or not isinstance(price, Price)
    ]


def _declared(prices: Any) -> Mapping[str, Price]:
    if prices is None:
        return {}
    way_out = "; write prices={'provider:name': Price(input, output)}"
    if not isinstance(prices, Mapping):
        raise TreeError.of(f"prices is a mapping, not {prices!r}{way_out}")
    faults = [
        Fault("", f"prices: {model!r}: {price!r} is no price of a model{way_out}")
        for model, price in prices.items()
        if not isinstance(model, str) or not model.strip() or not isinstance(price, Price)
    ]
    if faults:
        raise TreeError(faults)
    return prices
