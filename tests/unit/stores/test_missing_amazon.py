"""Jobs that are bound to Kinesis or DynamoDB without the extra, a region, or credentials."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.amazon.service_clients import get_client
from penstock.bindings.amazon_types import AmazonPlace, KinesisBinding
from penstock.bindings.parse import parse_binding
from penstock.errors import BindingError, ExternalSystemError
from penstock.jobs.job_sinks import open_sink
from penstock.kinesis.kinesis_stream import check_stream
from penstock.records.schemas import record_type


@pytest.fixture(autouse=True)
def no_identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_PROFILE",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


@pytest.mark.parametrize("scheme", ["kinesis", "dynamodb"])
def test_a_missing_client_is_one_sentence_with_the_command(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """At the start of the job, before anything is written."""
    monkeypatch.setitem(sys.modules, "botocore", None)
    sink = open_sink(
        parse_binding("latest", f"{scheme}://table-of-none", "sink"), record_type("n BIGINT"), None
    )
    with pytest.raises(BindingError, match=rf"Install it: pip install 'penstock\[{scheme}\]'"):
        sink.prepare("line", "")


def test_a_missing_region_is_named() -> None:
    with pytest.raises(BindingError, match=r"no region is known for Kinesis. Add region=NAME"):
        get_client(KinesisBinding("s", "kinesis://n", "n"))


def test_missing_credentials_are_named() -> None:
    place = AmazonPlace("eu-central-1", "http://127.0.0.1:9")
    with pytest.raises(BindingError, match=r"there are no credentials .* access_key_id=env:NAME"):
        check_stream(KinesisBinding("s", "kinesis://n", "n", place))


def test_a_server_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hush")
    login = {"access_key_id": "a", "secret_access_key": "env:SECRET"}
    place = AmazonPlace("eu-central-1", "http://127.0.0.1:9", login)
    with pytest.raises(
        ExternalSystemError, match=r"at http://127.0.0.1:9 does not answer .* Start the job again"
    ):
        check_stream(KinesisBinding("s", "kinesis://n", "n", place))


def test_a_reference_to_nothing_is_named() -> None:
    place = AmazonPlace(
        "eu-central-1", None, {"access_key_id": "a", "secret_access_key": "env:NO_SUCH_SECRET"}
    )
    with pytest.raises(BindingError, match=r"secret_access_key=env:NO_SUCH_SECRET"):
        get_client(KinesisBinding("s", "kinesis://n", "n", place))
