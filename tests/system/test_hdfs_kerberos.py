"""HDFS with Kerberos: jobs need a ticket, and a job continues from an empty disk."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from file_feed import COUNTING_JOB
from hdfs_feed import HdfsFeed
from hdfs_server import HdfsServer
from job_process import JobProcess, run_arguments
from kdc_server import KdcServer
from sink_kills import BUSY_S

from penstock.checkpoints.stored_checkpoint import working_folder
from penstock.errors import BindingError, ExternalSystemError
from penstock.objects import hdfs_connections
from penstock.objects.object_folder import AT_WORK, IN_HASTE, ObjectFolder
from penstock.objects.object_stores import Patience, Place

# Servers and Debian's packages.
pytestmark = pytest.mark.chaos

LIFE_S = 70


@dataclass(frozen=True)
class Secured:
    """HDFS, and the KDC that authenticates its users."""

    hdfs: HdfsServer
    kdc: KdcServer

    def files(self, patience: Patience = IN_HASTE) -> ObjectFolder:
        """Return the file system, for a user who logs in anew."""
        place = Place("hdfs", f"127.0.0.1:{self.hdfs.port}", "secured")
        hdfs_connections.forget_client(place)
        return ObjectFolder(place, {}, patience)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Start the servers; the environment has a ticket of the superuser."""
    folder = tmp_path_factory.mktemp("kerberos")
    with pytest.MonkeyPatch.context() as patch, KdcServer(folder) as kdc:
        for name, value in kdc.environment.items():
            patch.setenv(name, value)
        patch.setenv("KRB5CCNAME", f"FILE:{kdc.tickets('hdfs')}")
        patch.setenv("HADOOP_CONF_DIR", str(folder))
        # Elsewhere Java finds it in /etc.
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={kdc.settings}")
        with HdfsServer(folder, kdc) as hdfs:
            yield Secured(hdfs, kdc)


@pytest.fixture
def secured(servers: Secured) -> Iterator[Secured]:
    """Return the servers; later tests log in anew."""
    yield servers
    servers.files()


def test_who_has_a_ticket_is_let_in(secured: Secured) -> None:
    """Traffic is encrypted, and files belong to the principal."""
    files, content = secured.files(AT_WORK), os.urandom(3 << 20)
    assert files.create("a", content)
    assert not files.create("a", b"late")
    assert files.read("a") == content
    assert [one.owner for one in secured.hdfs.client().list_status("/secured")] == ["hdfs"]


def test_a_keytab_is_as_good_as_a_ticket(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/tickets")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(secured.kdc.keytab("hdfs")))
    assert secured.files(AT_WORK).create("by-keytab", b"x")


def test_who_is_not_let_in_is_told_why(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused: no ticket, one of a user without rights, an expired one, and no KDC."""

    def reason(tickets: Path) -> str:
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{tickets}")
        with pytest.raises((BindingError, ExternalSystemError)) as caught:
            secured.files().create("b", b"x")
        return str(caught.value)

    assert "access is denied (there is no ticket of Kerberos: run kinit" in reason(tmp_path / "none")
    assert "access is denied (Permission denied: user=ann, access=WRITE" in reason(secured.kdc.tickets("ann"))
    old, other = secured.kdc.tickets("old", "-l", f"{LIFE_S}s"), secured.kdc.tickets("other")
    begun = time.monotonic()
    secured.kdc.end()
    try:
        assert reason(other).endswith("no KDC of Kerberos answers.")
    finally:
        secured.kdc.start()
    time.sleep(max(0.0, begun + LIFE_S + 2 - time.monotonic()))
    assert "access is denied (the ticket of Kerberos has expired: run kinit" in reason(old)


def test_a_job_goes_on_from_an_empty_disk(tmp_path: Path, secured: Secured) -> None:
    """Its checkpoint, inputs and outputs are on HDFS. Its own JVM logs in as well."""
    feed = HdfsFeed(tmp_path, secured.hdfs)
    for _ in range(2):
        feed.write()
        settings = feed.settings(tmp_path, bounded=True)
        with JobProcess(run_arguments(COUNTING_JOB, settings), tmp_path) as job:
            assert job.wait(BUSY_S).code == 0, job.err
        shutil.rmtree(working_folder(feed.checkpoint))
    feed.assert_exactly_once()
