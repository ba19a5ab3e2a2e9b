"""Leadership: one manager leads at a time, by a lease. The epoch of the lease fences off all earlier leaders."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from penstock.errors import LeadershipLostError
from penstock.server.store.database import leadership

__all__ = ["check_leader", "resign", "try_to_lead"]

_ROW: Final = 1
_RESIGNED: Final = 0


def try_to_lead(
    connection: sa.Connection, holder: str, lease_ms: int, now_ms: int, unchanged_ms: int | None = None
) -> int | None:
    """Take or renew the lease. Returns the epoch with which the manager leads, or None while another manager leads.

    On PostgreSQL, the clock of the database counts, so that managers on several machines agree. On an object store,
    clocks of different machines are not compared: it counts for how long this one has seen the lease unchanged.
    """
    row = connection.execute(sa.select(leadership).with_for_update()).one_or_none()
    # Read the clock after locking: another manager may have renewed the lease while this one waited.
    now_ms = _database_now_ms(connection, now_ms)
    if row is None:
        connection.execute(
            leadership.insert().values(id=_ROW, holder=holder, epoch=1, expires_ms=now_ms + lease_ms)
        )
        return 1
    if unchanged_ms is None:
        # A lease that ends too late was taken before the clock went back.
        holds = now_ms < row.expires_ms <= now_ms + lease_ms
    else:
        holds = row.expires_ms > _RESIGNED and unchanged_ms < lease_ms
    if row.holder != holder and holds:
        return None
    epoch: int = row.epoch if row.holder == holder else row.epoch + 1
    connection.execute(leadership.update().values(holder=holder, epoch=epoch, expires_ms=now_ms + lease_ms))
    return epoch


def resign(connection: sa.Connection, holder: str) -> None:
    """End the lease if the manager holds it, so that another manager does not have to wait."""
    connection.execute(leadership.update().where(leadership.c.holder == holder).values(expires_ms=_RESIGNED))


def check_leader(connection: sa.Connection, epoch: int) -> None:
    """Raise LeadershipLostError unless the epoch leads. Until the transaction ends, no other manager can take over."""
    query = sa.select(leadership.c.epoch).with_for_update(read=True)
    found = connection.execute(query).scalar_one_or_none()
    if found != epoch:
        raise LeadershipLostError(
            f"Another manager leads (its epoch is {found}, this one's {epoch}). This one has changed nothing, and "
            "leads again when the other ends."
        )


def _database_now_ms(connection: sa.Connection, now_ms: int) -> int:
    if connection.dialect.name != "postgresql":
        return now_ms
    seconds = sa.extract("epoch", sa.func.clock_timestamp())
    return int(connection.execute(sa.select(sa.cast(seconds * 1000, sa.BigInteger))).scalar_one())
