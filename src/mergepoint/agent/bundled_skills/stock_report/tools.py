"""Tools of the skill stock_report."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

_STOCK = Path(__file__).with_name("stock.db")


def query(sql: str) -> list[dict[str, Any]]:
    """Return the rows of one SELECT; the database cannot be changed.

    Tables: items (name, price, reorder_at), stock (item, warehouse, units).
    """
    with closing(sqlite3.connect(f"{_STOCK.as_uri()}?mode=ro", uri=True)) as database:
        found = database.execute(sql)
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchmany(1000)]
