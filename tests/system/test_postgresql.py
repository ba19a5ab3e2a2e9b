"""The store on a real PostgreSQL."""

from __future__ import annotations

import contextlib
import time

import pytest
import sqlalchemy as sa
from postgres_server import PASSWORD, PostgresServer
from store_cases import StoreCases, asks, new_job

from penstock.errors import StoreError
from penstock.server.store.connecting import connect
from penstock.server.store.leading import check_leader
from penstock.server.store.store import Store


class TestPostgresql(StoreCases):
    """All cases, on a server."""

    @pytest.fixture
    def url(self, postgres: PostgresServer) -> str:
        return postgres.new_schema()

    def test_a_lease_ends_by_the_clock_of_the_database(self, store: Store, clock: object) -> None:
        """The managers' own clocks do not matter."""
        assert store.lead("a", 1500) == 1
        clock.ms += 10**9  # type: ignore[attr-defined]
        assert store.lead("b", 1500) is None
        time.sleep(1.6)
        clock.ms = 0  # type: ignore[attr-defined]
        assert store.lead("b", 1500) == 2

    def test_a_store_that_was_gone_is_used_again(
        self, url: str, store: Store, postgres: PostgresServer
    ) -> None:
        """While the server is down, each use says so without the password; then all goes on."""
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
        """Nor in the midst of a transaction that has locked who leads: the database ends it, and another leads."""
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
