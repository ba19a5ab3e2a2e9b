"""The first tables: jobs, runs, operations, events, leadership."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_LIVE = sa.text("status NOT IN ('CANCELED', 'FAILED', 'FINISHED')")

# Events are the audit log: to change one, this protection must first be removed from the database.
_SQLITE_GUARDS = (
    """
    CREATE TRIGGER events_are_not_changed BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'events are only added'); END
    """,
    """
    CREATE TRIGGER events_are_not_deleted BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'events are only added'); END
    """,
)
_POSTGRESQL_GUARDS = (
    """
    CREATE FUNCTION penstock_events_are_only_added() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'events are only added'; END $$
    """,
    """
    CREATE TRIGGER events_are_only_added BEFORE UPDATE OR DELETE OR TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION penstock_events_are_only_added()
    """,
)


def upgrade() -> None:
    """Make the tables."""
    _jobs()
    op.create_table(
        "runs",
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id", name="fk_runs_job_id")),
        sa.Column("epoch", sa.BigInteger, autoincrement=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("pid", sa.BigInteger),
        sa.Column("started_ticks", sa.BigInteger),
        sa.Column("boot", sa.Text),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("end_kind", sa.Text),
        sa.Column("exit_code", sa.Integer),
        sa.Column("why", sa.Text),
        sa.PrimaryKeyConstraint("job_id", "epoch", name="pk_runs"),
    )
    op.create_table(
        "operations",
        sa.Column("id", sa.Text),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id", name="fk_operations_job_id"), nullable=False),
        sa.Column("arguments", sa.JSON, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("result", sa.JSON),
        sa.Column("error", sa.Text),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("request_digest", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("ended_ms", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_operations"),
        sa.UniqueConstraint("created_by", "idempotency_key", name="uq_operations_created_by_idempotency_key"),
    )
    op.create_index("ix_operations_job_id_state", "operations", ["job_id", "state"])
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), autoincrement=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("job_id", sa.Text),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_job_id_id", "events", ["job_id", "id"])
    op.create_table(
        "leadership",
        sa.Column("id", sa.Integer, autoincrement=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_leadership"),
    )
    guards = _SQLITE_GUARDS if op.get_bind().dialect.name == "sqlite" else _POSTGRESQL_GUARDS
    for guard in guards:
        op.execute(guard)


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("definition", sa.Text, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("checkpoint", sa.Text, nullable=False),
        sa.Column("restart", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("desired", sa.Text, nullable=False),
        sa.Column("stop", sa.JSON),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.Column("delay_ms", sa.BigInteger, nullable=False),
        sa.Column("signalled_ms", sa.BigInteger),
        sa.Column("history", sa.JSON, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index(
        "ix_jobs_live_checkpoint",
        "jobs",
        ["checkpoint"],
        unique=True,
        sqlite_where=_LIVE,
        postgresql_where=_LIVE,
    )
    op.create_index("ix_jobs_status", "jobs", ["status"])
