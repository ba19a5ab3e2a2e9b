"""The doctor on job files and bindings: each place is contacted, and nothing is created there."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from registry_server import running_registry

import penstock as ps
from penstock.bindings.parse import parse_binding
from penstock.brokers.kafka_topics import check_topic
from penstock.doctor import bindings
from penstock.doctor.bindings import check_binding, examine_bindings, try_to_load
from penstock.doctor.findings import Finding
from penstock.errors import ExternalSystemError, PlaceMissingError
from penstock.jobs.job_sinks import open_sink
from penstock.machine.local_server import free_port
from penstock.records.schemas import record_type

JOB = """
import penstock as ps

job = ps.Job("rooms")
readings = job.data_stream("readings", schema="id INT")
readings.filter(bool).sink_to("out")
"""


@pytest.fixture
def job() -> ps.Job:
    described = ps.Job("rooms")
    readings = described.data_stream("readings", schema="id INT")
    readings.sink_to("out")
    return described


def examined(job: ps.Job, **given: str) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine_bindings(job, given)}


def test_folders_that_are_right_are_told(job: ps.Job, tmp_path: Path) -> None:
    """A sink's folder need not exist, and is not created."""
    found = examined(job, readings=f"jsonl:{tmp_path}", out=f"jsonl:{tmp_path}/out")
    assert {name: finding.status for name, finding in found.items()} == {"-D readings": "ok", "-D out": "ok"}
    assert "can be read" in found["-D readings"].found
    assert list(tmp_path.iterdir()) == []


def test_a_delta_table_is_opened_and_not_made(job: ps.Job, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    given = {"readings": f"jsonl:{tmp_path}/in", "out": f"delta:{tmp_path}/table"}
    assert examined(job, **given)["-D out"].found.endswith("does not exist yet; the job creates it")
    refused = examined(job, **{**given, "out": f"{given['out']}?create_table=false"})["-D out"]
    assert (refused.status, refused.remedy) == (
        "failed",
        "Create it, or leave create_table=false out of the URI.",
    )
    assert not (tmp_path / "table").exists()
    DeltaTable.create(tmp_path / "table", pa.schema([("id", pa.int32())]))
    assert examined(job, **given)["-D out"].found == f"{tmp_path}/table has the Delta table, in version 0"


def test_an_iceberg_table_is_opened_and_not_made(job: ps.Job, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    uri = f"iceberg:plant.seen?catalog={tmp_path}/catalog.db&warehouse={tmp_path}"
    given = {"readings": f"jsonl:{tmp_path}/in", "out": uri}
    assert examined(job, **given)["-D out"].found.endswith(
        f"does not exist yet; the job creates it, and a new catalog {tmp_path}/catalog.db"
    )
    wrong = uri.replace("/catalog.db", "/wrong/catalog.db")
    assert "/wrong is no folder" in examined(job, **{**given, "out": wrong})["-D out"].found
    assert not (tmp_path / "catalog.db").exists()
    binding = parse_binding("out", uri, "sink")
    open_sink(binding, record_type("id INT"), None).prepare("line", "")
    assert examined(job, **given)["-D out"].found == (
        "the catalog has the Iceberg table plant.seen, with no snapshot yet"
    )


def test_a_folder_that_is_missing_is_told(job: ps.Job, tmp_path: Path) -> None:
    """The message is that of the start."""
    found = examined(job, readings=f"jsonl:{tmp_path}/no", out="console:")
    assert found["-D readings"].status == "failed"
    assert f"{tmp_path}/no" in found["-D readings"].found
    assert found["-D readings"].remedy.startswith("Create it")
    assert found["-D out"].found == "standard output"


def test_a_stream_without_a_binding_is_told(job: ps.Job) -> None:
    """No place is contacted then."""
    (finding,) = examined(job, out="console:").values()
    assert (finding.check, finding.status) == ("bindings", "failed")
    assert finding.found == "Data stream 'readings' has no binding."
    assert finding.remedy.startswith("Add -D readings=URI.")


def test_a_broker_that_does_not_answer_is_told(job: ps.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """This goes for sources and sinks."""
    monkeypatch.setattr(check_topic, "__defaults__", (0.5,))
    place = f"kafka://127.0.0.1:{free_port()}/topic"
    for name, finding in examined(job, readings=place, out=place).items():
        assert (name, finding.status) == (name, "failed")
        assert "no Kafka broker answers" in finding.found
        assert finding.remedy.startswith("Start the broker")


@pytest.mark.parametrize(
    ("uri", "is_source", "probe"),
    [
        ("kafka://h:1/t?create_topic=true", True, "kafka_source.preflight"),
        ("kafka://h:1/t?create_topic=true", False, "check_topic"),
        ("amqp://u:p@h:1/%2F/q?create=true", True, "penstock.rabbitmq.rabbitmq_queue.check_queue"),
        ("amqp://u:p@h:1/%2F/q?create=true", False, "penstock.rabbitmq.rabbitmq_publisher.check_exchange"),
        (
            "rabbitmq-stream://u:p@h:1/%2F/s?create=true",
            True,
            "penstock.rabbitmq.rabbitmq_stream.check_stream",
        ),
    ],
)
def test_what_a_job_would_create_is_not_created(
    uri: str, is_source: bool, probe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing place is ok only where the job creates it."""

    def missing(binding: Any, *settings: Any) -> None:
        assert not getattr(binding, "create_topic", False)
        assert not getattr(binding, "create", False)
        raise PlaceMissingError("It does not exist. Create it.")

    monkeypatch.setattr(probe if "penstock" in probe else f"penstock.doctor.bindings.{probe}", missing)
    binding = parse_binding("readings", uri, "data" if is_source else "sink")
    finding = check_binding("readings", binding, is_source=is_source)
    assert finding.status == "ok"
    assert "the job creates it" in finding.found
    assert "u:p@" not in finding.found, "no password"
    binding = parse_binding("readings", uri.partition("?")[0], "data" if is_source else "sink")
    finding = check_binding("readings", binding, is_source=is_source)
    assert (finding.status, finding.found, finding.remedy) == ("failed", "It does not exist.", "Create it.")


def test_a_place_that_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name."""
    monkeypatch.setattr(bindings.kafka_source, "preflight", lambda binding: ("00000",))
    finding = check_binding("readings", parse_binding("readings", "kafka://h:1/t", "data"), is_source=True)
    assert (finding.status, finding.found) == ("ok", "h:1 has the topic t")


def test_a_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds also where the job would create a missing place."""

    def refuse(binding: Any) -> None:
        raise ExternalSystemError("The broker refuses. Ask its owner.")

    monkeypatch.setattr(bindings.kafka_source, "preflight", refuse)
    binding = parse_binding("readings", "kafka://h:1/t?create_topic=true", "data")
    finding = check_binding("readings", binding, is_source=True)
    assert (finding.status, finding.remedy) == ("failed", "Ask its owner.")


def test_a_socket_is_not_connected_to() -> None:
    """The server would send it lines meant for the job."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        binding = parse_binding("lines", f"socket://127.0.0.1:{server.getsockname()[1]}", "data")
        assert check_binding("lines", binding, is_source=True).status == "ok"
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_host_without_an_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt host has none."""

    def lost(host: str, port: int) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", lost)
    finding = check_binding("lines", parse_binding("lines", "socket://nowhere:1", "data"), is_source=True)
    assert (finding.status, "nowhere has no address" in finding.found) == ("failed", True)


@pytest.fixture
def job_file(tmp_path: Path) -> Iterator[Path]:
    """Return a path for a job file; unload its module afterwards."""
    import sys

    modules = set(sys.modules)
    yield tmp_path / "doctored_job.py"
    for name in set(sys.modules) - modules:
        if name == "doctored_job":
            del sys.modules[name]


def test_a_job_file_is_loaded(job_file: Path) -> None:
    """And its streams and sinks are listed."""
    job_file.write_text(JOB)
    job, finding = try_to_load(str(job_file))
    assert job is not None
    assert finding.found == f"'rooms' in {job_file}, with the streams and sinks readings, out"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "defines no job"),
        ("1 / 0\n", "line 1: ZeroDivisionError"),
        ("import penstock as ps\njob = ps.Job('rooms')\n", "has no data stream"),
        (
            "import threading\n" + JOB.replace("bool", "threading.Lock().acquire"),
            "cannot be sent to the workers",
        ),
    ],
)
def test_a_job_that_cannot_run_is_told(job_file: Path, text: str, said: str) -> None:
    """The message is that of its start."""
    job_file.write_text(text)
    job, finding = try_to_load(str(job_file))
    assert (job, finding.status) == (None, "failed")
    assert said in finding.found
    assert finding.remedy


@pytest.mark.parametrize(
    ("form", "module", "extra"), [("avro", "fastavro", "avro"), ("json", "jsonschema_rs", "json-schema")]
)
def test_a_registry_is_asked_and_its_library_looked_for(
    form: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages are those of the start."""
    monkeypatch.setattr(bindings, "_answer", lambda binding, *, is_source: "the topic is there")
    with running_registry() as registry:
        uri = f"kafka://h:1/t?format={form}&registry={registry.url}"
        finding = check_binding("readings", parse_binding("readings", uri, "data"), is_source=True)
        assert finding.status == "ok"
        assert finding.found == f"the topic is there; the schema registry {registry.url} answers"
        monkeypatch.setitem(sys.modules, module, None)
        finding = check_binding("readings", parse_binding("readings", uri, "data"), is_source=True)
        assert finding.status == "failed"
        assert finding.remedy == f"Install it with: pip install 'penstock[{extra}]'"
        monkeypatch.undo()
        monkeypatch.setattr(bindings, "_answer", lambda binding, *, is_source: "the topic is there")
    finding = check_binding("readings", parse_binding("readings", uri, "data"), is_source=True)
    assert finding.status == "failed"
    assert "cannot be reached" in finding.found
    assert finding.remedy.startswith("Check that it runs")
