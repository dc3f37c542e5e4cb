"""Tools of the skill order_report."""

import json
from pathlib import Path
from typing import Any

_ORDERS = Path(__file__).with_name("orders.json")


def orders(status: str | None = None) -> list[dict[str, Any]]:
    """Return orders: id, customer, ordered (YYYY-MM-DD), status, total, and their lines.

    A line has a product and units. A status is open, shipped, paid or returned.
    """
    found: list[dict[str, Any]] = json.loads(_ORDERS.read_text(encoding="utf-8"))
    return [order for order in found if status in (None, order["status"])]
