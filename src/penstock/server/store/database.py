"""Database: the tables of the store. Times are milliseconds since 1970, in UTC."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from penstock.server.lifecycle.statuses import ENDED

__all__ = ["METADATA", "events", "jobs", "leadership", "operations", "runs"]

METADATA: Final = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_LIVE: Final = sa.text(f"status NOT IN {tuple(sorted(status.value for status in ENDED))}")

jobs: Final = sa.Table(
    "jobs",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("definition", sa.Text, nullable=False),
    sa.Column("settings", sa.JSON, nullable=False),
    sa.Column("checkpoint", sa.Text, nullable=False),
    sa.Column("restart", sa.Text, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    # The wishes of users. `stop` says how to stop the job.
    sa.Column("desired", sa.Text, nullable=False),
    sa.Column("stop", sa.JSON(none_as_null=True)),
    # The decisions of the leader.
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("since_ms", sa.BigInteger, nullable=False),
    sa.Column("delay_ms", sa.BigInteger, nullable=False),
    sa.Column("signalled_ms", sa.BigInteger),
    sa.Column("history", sa.JSON, nullable=False),
    # The number of the newest run, and the number of changes to the row.
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    # Two unfinished jobs never share a checkpoint.
    sa.Index(
        "ix_jobs_live_checkpoint", "checkpoint", unique=True, sqlite_where=_LIVE, postgresql_where=_LIVE
    ),
    sa.Index(None, "status"),
)

runs: Final = sa.Table(
    "runs",
    METADATA,
    sa.Column("job_id", sa.Text, sa.ForeignKey(jobs.c.id), primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    # The process, once known: its id, and its start in ticks since the boot with the id `boot`.
    sa.Column("pid", sa.BigInteger),
    sa.Column("started_ticks", sa.BigInteger),
    sa.Column("boot", sa.Text),
    sa.Column("ended_ms", sa.BigInteger),
    sa.Column("end_kind", sa.Text),
    sa.Column("exit_code", sa.Integer),
    sa.Column("why", sa.Text),
)

operations: Final = sa.Table(
    "operations",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("job_id", sa.Text, sa.ForeignKey(jobs.c.id), nullable=False),
    sa.Column("arguments", sa.JSON, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("result", sa.JSON(none_as_null=True)),
    sa.Column("error", sa.Text),
    # A request repeated with its key returns the same operation; another request with that key is an error.
    sa.Column("idempotency_key", sa.Text),
    sa.Column("request_digest", sa.Text, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("ended_ms", sa.BigInteger),
    sa.UniqueConstraint("created_by", "idempotency_key"),
    sa.Index(None, "job_id", "state"),
)

events: Final = sa.Table(
    "events",
    METADATA,
    # SQLite assigns row numbers only to an INTEGER column.
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    # Not a foreign key: an event outlives its job.
    sa.Column("job_id", sa.Text),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("detail", sa.JSON, nullable=False),
    sa.Index(None, "job_id", "id"),
)

leadership: Final = sa.Table(
    "leadership",
    METADATA,
    # The table has only one row.
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("expires_ms", sa.BigInteger, nullable=False),
)
