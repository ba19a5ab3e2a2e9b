"""HDFS with Kerberos: who has a ticket works there, who has none is told, and a job goes on from an empty disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_feed import COUNTING_JOB
from hdfs_feed import HdfsFeed
from hdfs_server import HdfsServer
from job_in_session import JobInSession
from kdc_server import KdcServer
from pyspark.sql import SparkSession

from penstock.checkpoints.stored_checkpoint import working_folder
from penstock.errors import BindingError
from penstock.objects import hdfs_connections
from penstock.objects.object_folder import IN_HASTE, ObjectFolder
from penstock.objects.object_stores import Place

# Servers and Debian's packages.
pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """The servers, and the environment of a user with a ticket, who has all rights."""
    folder = tmp_path_factory.mktemp("kerberos")
    with pytest.MonkeyPatch.context() as patch, KdcServer(folder) as kdc:
        for name, value in kdc.environment.items():
            patch.setenv(name, value)
        patch.setenv("KRB5CCNAME", f"FILE:{kdc.tickets('hdfs')}")
        patch.setenv("HADOOP_CONF_DIR", str(folder))
        with HdfsServer(folder, kdc) as server:
            yield server


def test_who_has_a_ticket_is_let_in(
    hdfs: HdfsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ObjectFolder(Place("hdfs", f"127.0.0.1:{hdfs.port}", "secured"), {}, IN_HASTE)
    assert files.create("a", b"x" * 100_000)
    assert not files.create("a", b"late")
    assert files.read("a") == b"x" * 100_000
    assert [one.owner for one in hdfs.client().list_status("/secured")] == ["hdfs"]
    hdfs_connections.forget_client(files.place)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
    try:
        with pytest.raises(BindingError, match="xx"):
            files.create("b", b"x")
    finally:
        hdfs_connections.forget_client(files.place)


def test_a_job_goes_on_from_an_empty_disk(tmp_path: Path, spark: SparkSession, hdfs: HdfsServer) -> None:
    """Its checkpoint, inputs and outputs are there."""
    feed = HdfsFeed(tmp_path, hdfs)
    for must_continue in (False, True):
        feed.write()
        settings = feed.settings(tmp_path, bounded=True, must_continue=must_continue)
        with JobInSession(spark, COUNTING_JOB, settings) as job:
            job.wait()
        shutil.rmtree(working_folder(feed.checkpoint))
    feed.assert_exactly_once()
