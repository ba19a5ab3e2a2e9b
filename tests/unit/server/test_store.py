"""The store on SQLite."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest
from store_cases import Opens, StoreCases, asks, become, new_job

from penstock.errors import JobDefinitionError, StoreError
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.store.engine import connect, sqlite_url
from penstock.server.store.store import Store
from penstock.server.store.transactions import EngineTransactions


class TestSqlite(StoreCases):
    """All cases, in a file."""

    @pytest.fixture
    def opens(self, tmp_path: Path) -> Opens:
        return lambda: EngineTransactions(connect(sqlite_url(tmp_path / "manager" / "store.db")))

    def test_a_lease_from_the_future_does_not_last(self, store: Store, clock: object) -> None:
        """When the clock went back, the lease of one that is gone is over."""
        clock.ms = 10**12  # type: ignore[attr-defined]
        assert store.lead("a", 5000) == 1
        clock.ms = 1000  # type: ignore[attr-defined]
        assert store.lead("b", 5000) == 2

    def test_a_lease_ends_by_the_clock(self, store: Store, clock: object) -> None:
        """On one machine, by its own."""
        assert store.lead("a", 5000) == 1
        clock.ms += 4999  # type: ignore[attr-defined]
        assert store.lead("b", 5000) is None
        clock.ms += 1  # type: ignore[attr-defined]
        assert store.lead("b", 5000) == 2

    def test_what_the_store_holds_is_for_its_owner(self, store: Store, tmp_path: Path) -> None:
        """Bindings may hold passwords."""
        store.submit(new_job(), asks())
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "manager").iterdir()}
        assert set(modes) >= {"store.db", "store.db-wal"}
        assert set(modes.values()) == {0o600}

    def test_fifty_jobs_are_listed_quickly(self, store: Store, leader: int) -> None:
        """Also when most of them are over."""
        for number in range(50):
            store.submit(new_job(f"{number}"), asks())
            if number < 45:
                become(store, leader, f"job-{number}", JobStatus.CANCELED)
        times = []
        for _ in range(5):
            begun_s = time.process_time()
            assert len(store.jobs()) == 50
            times.append(time.process_time() - begun_s)
        assert min(times) < 0.2


@pytest.mark.parametrize("url", ["", "store.db", "mysql://h/db", "sqlite://", "postgresql://host", "://"])
def test_other_urls_are_refused(url: str) -> None:
    """With the forms there are."""
    with pytest.raises(JobDefinitionError, match="sqlite:///PATH, postgresql://"):
        connect(url)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """As a sentence."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot be opened .*Choose another place"):
        connect(sqlite_url(tmp_path / "file" / "store.db"))


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    """And left as it is."""
    path = tmp_path / "store.db"
    path.write_text("something else\n" * 100)
    with pytest.raises(StoreError, match=r"cannot be used: .*not a database"):
        connect(sqlite_url(path))
    assert path.read_text() == "something else\n" * 100


def test_a_server_that_is_not_there_is_told_without_its_password() -> None:
    """The URL is shown, the password is not."""
    with pytest.raises(StoreError, match=r"postgresql://me:\*\*\*@127.0.0.1:1/jobs cannot be used") as error:
        connect("postgresql://me:s3cret@127.0.0.1:1/jobs")
    assert "s3cret" not in str(error.value)
