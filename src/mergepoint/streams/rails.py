"""Rails: the limits of a recipe's work, always on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from mergepoint.streams.knobs import read_knobs
from mergepoint.streams.params import Params
from mergepoint.tree.budget import Budget


class Rails(Params):
    """What ends the work of a recipe whatever its blocks say; null takes a limit away.

    Calls, usd, tokens and deadline hold for all of it together: a call that no longer fits is not
    made, what is finished comes out, and the prop `stopped` says why. The defaults of calls and
    deadlock are the run's: in a recipe in a recipe they hold where it sets them. Limits that were
    set bound all that is inside; a default of deadlock gives way to what is set inside.
    """

    max_iterations: int = Field(
        default=10, ge=1, description="rounds of a recurrent recipe for one Thing, at most"
    )
    calls: int | None = Field(default=1_000, ge=0, description="calls of models, at most")
    usd: float | None = Field(default=None, ge=0, description="cost in USD, at most")
    tokens: int | None = Field(default=None, ge=0, description="tokens of prompts and answers")
    deadline: float | None = Field(
        default=None, gt=0, description="seconds from the first item (depends on time)"
    )
    patience: int | None = Field(
        default=None, ge=1, description="rounds without a better score, or with the same props"
    )
    deadlock: float | None = Field(
        default=60.0, gt=0, description="seconds in which no call is in flight and nothing moves"
    )

    @property
    def inside(self) -> Rails:
        """Give them as they hold for a recipe in another, whose defaults bound the run."""
        own = self.model_fields_set
        limits = {name: getattr(self, name) for name in type(self).model_fields}
        limits |= {name: None for name in ("calls", "deadlock") if name not in own}
        return self.model_construct(own, **limits)  # what was set is still known

    @property
    def budget(self) -> Budget | None:
        """Give what bounds the calls, as a budget; None where nothing does."""
        if self.calls is None and self.usd is None and self.tokens is None:
            return None
        return Budget(self.usd, tokens=self.tokens, calls=self.calls)


def _or_open(given: Any, check: ValidatorFunctionWrapHandler) -> Any:
    if not isinstance(given, Mapping) or not any(read_knobs(given)):
        return check(given)
    check({name: value for name, value in given.items() if not any(read_knobs(value))})
    return given


OpenRails = Annotated[Rails, WrapValidator(_or_open)]
"""Rails, or ones with places for knobs, which stay as they were given."""
