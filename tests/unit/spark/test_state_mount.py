"""The settings of a session whose tasks keep the state on an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.objects.object_stores import Place
from penstock.spark import session, state_mount
from penstock.spark.session import SessionSettings
from penstock.spark.state_mount import StateMount, store_settings

MOUNT = StateMount("penstock-x1", Place("s3", "bucket", "rooms/state/x1"), Path("/tmp/rooms"))


@pytest.fixture(autouse=True)
def jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_mount, "s3_jars", lambda: [Path("/jars/a.jar"), Path("/jars/b.jar")])


class KnownSettings(dict[str, str]):
    """What a session is told while it runs."""

    @property
    def conf(self) -> KnownSettings:
        return self

    def set(self, name: str, value: str) -> None:
        self[name] = value


def told(mount: StateMount) -> KnownSettings:
    session = KnownSettings()
    assert mount.apply(session) == mount.location  # type: ignore[arg-type]
    return session


def test_the_state_is_mounted_from_the_store_and_the_rest_from_the_folder() -> None:
    found = told(MOUNT)
    table = "fs.viewfs.mounttable.penstock-x1"
    assert MOUNT.location == "viewfs://penstock-x1/"
    assert found[f"{table}.link./state"] == "s3a://bucket/rooms/state/x1"
    assert found[f"{table}.linkFallback"] == "file:///tmp/rooms"
    found = store_settings("s3", {})
    assert found["spark.hadoop.fs.s3a.path.style.access"] == "false"
    assert not any(name.startswith("spark.hadoop.fs.s3a.endpoint") for name in found)


def test_a_prefix_may_have_what_is_no_part_of_an_address() -> None:
    """Hadoop takes the place for a URI, whose path it decodes."""
    mount = StateMount("x1", Place("s3", "bucket", "a b/50%?#/state"), Path("/tmp/a b"))
    found = told(mount)
    assert found["fs.viewfs.mounttable.x1.link./state"] == "s3a://bucket/a%20b/50%25%3F%23/state"
    assert found["fs.viewfs.mounttable.x1.linkFallback"] == "file:///tmp/a%20b"


def test_the_endpoint_is_that_of_the_environment_and_no_secret_is_passed_on() -> None:
    environ = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
        "AWS_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "who",
        "AWS_SECRET_ACCESS_KEY": "s3cr3t",
    }
    found = store_settings("s3", environ)
    assert found["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == "eu-west-1"
    assert found["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert not {"who", "s3cr3t"} & set(found.values())


def test_hdfs_needs_no_jars_and_tasks_act_as_the_same_user() -> None:
    found = told(StateMount("x1", Place("hdfs", "namenode:8020", "a b/state"), Path("/tmp/rooms")))
    assert found["fs.viewfs.mounttable.x1.link./state"] == "hdfs://namenode:8020/a%20b/state"
    settings = store_settings("hdfs", {"HADOOP_USER_NAME": "plant", "AWS_REGION": "x"})
    assert settings["spark.executorEnv.HADOOP_USER_NAME"] == "plant"
    assert "spark.jars" not in settings
    assert not any(".s3a." in name for name in settings)
    assert "spark.executorEnv.HADOOP_USER_NAME" not in store_settings("hdfs", {})


def test_jars_of_the_user_come_with_those_of_the_store() -> None:
    settings = SessionSettings(
        "job", "spark://host:7077", 1, Path("log"), store="s3", more={"spark.jars": "/mine.jar"}
    )
    assert session._all_settings(settings)["spark.jars"] == "/jars/a.jar,/jars/b.jar,/mine.jar"
