"""Filled: conditions and rails with knobs put into them, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from mergepoint.core.path import nearest
from mergepoint.streams.knobs import places_in, turned
from mergepoint.streams.params import ParamFault, Params, check_params
from mergepoint.streams.rails import Rails
from mergepoint.streams.where import Where, as_data

P = TypeVar("P", bound=BaseModel)


class Limits(Params):
    """What ends the work of a recipe."""

    until: Where | None = None
    rails: Rails = Rails()


def filled(
    model: type[P], given: Mapping[str, Any], knobs: Mapping[str, Any]
) -> P | tuple[ParamFault, ...]:
    """Give what was given with its knobs put in, or all that is wrong with it.

    A place that names no knob is a fault: nothing else can be meant by it here.
    """
    data = turned(as_data(given), knobs)
    unknown = tuple(
        ParamFault(at, f"there is no knob {name!r}{nearest(name, knobs)}")
        for at, name in places_in(data)
    )
    return unknown or check_params(model, data)
