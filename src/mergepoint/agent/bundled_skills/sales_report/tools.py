"""Tools of the skill sales_report."""

import csv
from pathlib import Path
from typing import Any

_SALES = Path(__file__).with_name("sales.csv")


def sales(region: str = "", product: str = "", month: str = "") -> list[dict[str, Any]]:
    """Return single sales: date, month (YYYY-MM), region, product, units and price of one unit.

    What is given narrows them, such as month="2025-03".
    """
    wanted = {"region": region.lower(), "product": product.lower(), "month": month}
    found: list[dict[str, Any]] = []
    with _SALES.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            sale: dict[str, Any] = {**row, "month": row["date"][:7]}
            if all(not value or sale[key] == value for key, value in wanted.items()):
                found.append({**sale, "units": int(row["units"]), "price": float(row["price"])})
    return found
