"""The server's store on a real PostgreSQL."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
import sqlalchemy as sa
from postgres_server import PASSWORD, PostgresServer
from store_cases import LEASE_MS, Opens, StoreCases, asks, new_job

from penstock.errors import StoreError
from penstock.server.store.database import leadership
from penstock.server.store.engine import connect
from penstock.server.store.leadership import check_leader
from penstock.server.store.store import Store
from penstock.server.store.transactions import EngineTransactions


class TestPostgresql(StoreCases):
    """All cases of the store, on a server."""

    @pytest.fixture
    def url(self, postgres: PostgresServer) -> str:
        return postgres.new_schema()

    @pytest.fixture
    def opens(self, url: str) -> Opens:
        return lambda: EngineTransactions(connect(url))

    def test_a_lease_ends_by_the_clock_of_the_database(self, url: str, store: Store, clock: object) -> None:
        """The managers' own clocks do not matter."""
        assert store.lead("a", 60_000) == 1
        clock.ms += 10**9  # type: ignore[attr-defined]
        assert store.lead("b", 60_000) is None
        clock.ms = 0  # type: ignore[attr-defined]
        with connect(url).begin() as connection:
            connection.execute(sa.update(leadership).values(expires_ms=leadership.c.expires_ms - 60_000))
        assert store.lead("b", 60_000) == 2

    def test_a_store_that_was_gone_is_used_again(
        self, url: str, store: Store, postgres: PostgresServer
    ) -> None:
        """While the server is down, each use raises an error without the password; then all continues."""
        store.submit(new_job(), asks())
        postgres.kill()
        try:
            with pytest.raises(StoreError, match=r"cannot be used: ") as error:
                store.jobs()
            assert PASSWORD not in str(error.value)
        finally:
            postgres.start()
        assert [job.id for job in store.jobs()] == ["job-one"]
        store.submit(new_job("two"), asks())

    def test_a_manager_that_stands_still_keeps_nobody_waiting(
        self, url: str, store: Store, clock: object
    ) -> None:
        """This holds within a transaction that has locked the leadership: the database ends it, and another
        manager leads.
        """
        assert store.lead("a", 1000) == 1
        stands_still = connect(url)
        with stands_still.connect() as connection:
            check_leader(connection, 1)
            deadline = time.monotonic() + 15
            led = None
            while led is None and time.monotonic() < deadline:
                with contextlib.suppress(StoreError):
                    led = store.lead("b", 1000)
            assert led == 2
            with pytest.raises(sa.exc.DBAPIError):
                connection.execute(sa.select(1))
        stands_still.dispose()

    def test_who_waited_while_the_lease_was_renewed_does_not_lead(self, url: str, store: Store) -> None:
        """The time that counts is when the lease is read, not when the wait for it began."""
        assert store.lead("a", LEASE_MS) == 1
        engine = connect(url)
        with engine.connect() as connection:
            row = connection.execute(sa.select(leadership).with_for_update()).one()
            found: list[int | None] = []
            other = threading.Thread(target=lambda: found.append(store.lead("b", LEASE_MS)))
            other.start()
            waiting = sa.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            deadline = time.monotonic() + 10
            while not connection.execute(waiting).scalar_one() and time.monotonic() < deadline:
                time.sleep(0.02)
            # The lease is extended by 400 ms, which must have passed by the database's clock. Seen from
            # before the wait it ends later than any lease may, like one from a clock that was set back.
            time.sleep(0.5)
            connection.execute(leadership.update().values(expires_ms=row.expires_ms + 400))
            connection.commit()
        other.join()
        engine.dispose()
        assert found == [None]
