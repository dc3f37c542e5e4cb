"""The tables of runs: their headers, their records, and who may write them."""

from __future__ import annotations

from mergepoint.journal.sql_database import Schema
from mergepoint.journal.sql_engines import sql
from mergepoint.journal.table_logs import LineTables

_METADATA = sql.MetaData()
RUN_TABLES = LineTables(_METADATA, first="mergepoint_runs", rest="mergepoint_records", key="run_id")
RUNS, RECORDS = RUN_TABLES.first, RUN_TABLES.rest

# A row for each run that is being written, and for each one whose worker died. PostgreSQL counts
# the tokens of all runs in one sequence, so that no token comes twice, also after a row was
# deleted.
LEASES = sql.Table(
    "mergepoint_leases",
    _METADATA,
    sql.Column("run_id", sql.String, primary_key=True),
    sql.Column("worker", sql.String, nullable=False),
    sql.Column("token", sql.BigInteger, sql.Identity(always=True), nullable=False),
)

# A row for each process that writes runs, in PostgreSQL. SQLite has a lock file for each.
WORKERS = sql.Table(
    "mergepoint_workers",
    _METADATA,
    sql.Column("worker", sql.String, primary_key=True),
    sql.Column("host", sql.String, nullable=False),
    sql.Column("pid", sql.Integer, nullable=False),
    sql.Column("process", sql.String, nullable=False),
    sql.Column("expires_at", sql.DateTime(timezone=True), nullable=False),
)

# Version 1 had no leases: a run was locked by a session of PostgreSQL, or a file for each run.
RUN_SCHEMA = Schema(
    part="runs", version=2, tables=_METADATA, original=("mergepoint_runs", "mergepoint_records")
)
