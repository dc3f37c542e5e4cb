"""Prices: declared, looked up, and what a call costs by them."""

from __future__ import annotations

from typing import Any

import pytest
from genai_prices import Usage as Used
from genai_prices import calc_price

from mergepoint import Price, TreeError
from mergepoint.models.pricing import PICO, Prices


def usage(given: int, made: int, **details: int) -> dict[str, Any]:
    """Return usage metadata as LangChain does."""
    return {"input_tokens": given, "output_tokens": made, "input_token_details": details}


def test_a_price_is_counted_in_whole_picodollars() -> None:
    """Input, cached input, cache writes and answers cost what is declared; sums are exact."""
    price = Price(2.5, 10, cached_input_per_million=0.25, cache_write_per_million=3, per_call=0.001)
    used = usage(1_000, 100, cache_read=600, cache_creation=300)
    expected = 100 * 2.5 + 600 * 0.25 + 300 * 3 + 100 * 10
    assert price.cost(used) == round(expected * 10**6) + 10**9
    assert 3 * Price(0.1, 0).cost(usage(10**6, 0)) == round(0.3 * PICO)


def test_what_is_not_declared_costs_what_the_plainer_kind_does() -> None:
    """Cached and written input and audio count as input where they have no price."""
    used = usage(100, 10, cache_read=40, cache_creation=20, audio=10)
    assert Price(3, 5).cost(used) == Price(3, 5).cost(usage(100, 10))


def test_a_longer_prompt_may_cost_more() -> None:
    """Above a number of input tokens the whole call is at the other price."""
    price = Price(1, 2, above={1_000: Price(2, 4), 5_000: Price(3, 6)})
    assert price.cost(usage(1_000, 10)) == Price(1, 2).cost(usage(1_000, 10))
    assert price.cost(usage(1_001, 10)) == Price(2, 4).cost(usage(1_001, 10))
    assert price.cost(usage(9_000, 10)) == Price(3, 6).cost(usage(9_000, 10))


@pytest.mark.parametrize("details", [{}, {"cache_read": 40}, {"cache_creation": 90}, {"audio": 7}])
@pytest.mark.parametrize("given", [1, 99, 100, 101, 5_000])
def test_the_most_that_a_call_can_cost_is_never_less(given: int, details: dict[str, int]) -> None:
    """Whatever part of a prompt is cached, written or audio, the bound holds."""
    price = Price(
        1,
        2,
        cached_input_per_million=0.1,
        cache_write_per_million=1.25,
        audio_input_per_million=9,
        above={100: Price(2, 1)},
    )
    kept = {kind: min(count, given) for kind, count in details.items()}
    assert price.cost(usage(given, 50, **kept)) <= price.at_most(given, 50)


def test_all_faults_of_a_price_are_listed_at_once() -> None:
    """A price takes finite numbers from 0 on, and tiers of prices."""
    with pytest.raises(TreeError) as caught:
        Price(-1, True, per_call=None, above={1: 2})  # type: ignore[arg-type,dict-item]
    assert len(caught.value.faults) == 4


@pytest.mark.parametrize("prices", [["x"], {"openai:x": 0.5}, {"": Price(1, 1)}])
def test_prices_that_are_none_are_refused(prices: Any) -> None:
    """What is declared is a mapping of models to Price values."""
    with pytest.raises(TreeError, match="prices"):
        Prices(prices)


def test_declared_prices_stand_over_all_others() -> None:
    """An exact name wins over a glob, the first glob over the next, all over genai-prices."""
    exact, first, second = Price(1, 1), Price(2, 2), Price(3, 3)
    prices = Prices({"openai:*": first, "*:gpt-5-mini": second, "openai:gpt-5": exact})
    assert prices.of("openai:gpt-5") is exact
    assert prices.of("openai:gpt-5-mini") is first
    assert prices.of("azure:gpt-5-mini") is second


def test_the_offline_model_is_free_and_others_are_unknown() -> None:
    """No price is guessed for a model or provider that nobody knows."""
    prices = Prices()
    assert prices.of("mergepoint:offline") == Price(0, 0)
    for model in ("openai:no-such-model", "ollama:llama3.2", "scripted", "scripted:scripted"):
        assert prices.of(model) is None


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("openai:gpt-5-mini", "openai"),
        ("anthropic:claude-sonnet-4-5", "anthropic"),
        ("google_genai:gemini-2.5-pro", "google"),
    ],
)
@pytest.mark.parametrize("given", [1_000, 250_000])
def test_known_models_cost_what_genai_prices_says(model: str, provider: str, given: int) -> None:
    """With cached input, and above the start of a dearer tier, both agree to the picodollar."""
    price = Prices().of(model)
    assert price is not None
    cost = price.cost(usage(given, 300, cache_read=400))
    wanted = calc_price(
        Used(input_tokens=given, output_tokens=300, cache_read_tokens=400),
        model.partition(":")[2],
        provider_id=provider,
    )
    assert cost == round(wanted.total_price * PICO)
