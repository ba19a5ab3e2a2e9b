"""Kafka over TLS, on its own broker: whole jobs with secrets, and the messages for connection errors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from certificates import Authority
from job_in_session import JobInSession
from job_process import cli
from pyspark.sql import SparkSession
from secured_broker import BrokerCertificates, SecuredBroker

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import check_topic
from penstock.errors import ExternalSystemError
from penstock.jobs.settings import RunSettings
from penstock.sinks.kafka_producers import PlainProducer
from penstock.sinks.message_parts import Messages
from penstock.sources.gathered_messages import WantedParts
from penstock.sources.kafka_log import KafkaLog
from penstock.sources.partition_names import PartitionNames
from penstock.sources.topic_identity import KnownTopics
from penstock.sources.topic_reader import TopicReader
from topics import produce, read_topic

JOB = Path(__file__).with_name("thermostat_job.py")
# The checkpoint has this file too, beside the code of the job.
PASSWORD, KEY_PASSWORD = ("-".join([name, "secret"]) for name in ("ann", "key"))
LOGIN = "security.protocol=SASL_SSL&sasl.mechanisms=PLAIN&sasl.username=ann"


@dataclass(frozen=True)
class Place:
    """A broker, and the files of its clients."""

    kafka: SecuredBroker
    authority: Path
    other_authority: Path
    certificate: Path
    key: Path

    @property
    def shown(self) -> str:
        """Return the parameters of a client with a certificate."""
        files = f"ssl.certificate.location={self.certificate}&ssl.key.location={self.key}"
        return f"security.protocol=SSL&ssl.ca.location={self.authority}&{files}"


MODES = {"real-time": ["--checkpoint-interval=5s"], "micro-batches": []}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("certificates")
    authority, other = Authority(folder / "one", "penstock-one"), Authority(folder / "two", "penstock-two")
    certificate, key = authority.sign("broker", "IP:127.0.0.1")
    own = folder / "broker.pem"
    own.write_text(key.read_text() + certificate.read_text() + authority.certificate.read_text())
    shown = authority.sign("job", password=KEY_PASSWORD)
    certificates = BrokerCertificates(own, authority.certificate)
    with SecuredBroker({"ann": PASSWORD}, certificates) as kafka:
        for mode in ("session", *MODES):
            for stream in ("readings", "settings", "heaters", "protocol"):
                kafka.create_topic(f"{stream}-{mode}")
        yield Place(kafka, authority.certificate, other.certificate, *shown)


def bindings(place: Place, secret: Path, password: str, mode: str) -> dict[str, str]:
    """Return streams with a login and with a certificate."""
    kafka = place.kafka
    by_login = f"{LOGIN}&sasl.password={password}&ssl.ca.location={place.authority}"
    by_certificate = f"{place.shown}&ssl.key.password=file:{secret}"
    return {
        "readings": f"kafka://{kafka.secured_encrypted}/readings-{mode}?start=earliest&{by_login}",
        "settings": f"kafka://{kafka.encrypted}/settings-{mode}?{by_certificate}",
        "heaters": f"kafka://{kafka.secured_encrypted}/heaters-{mode}?delivery=exactly-once&{by_login}",
        "protocol": f"kafka://{kafka.encrypted}/protocol-{mode}?{by_certificate}",
    }


def send(place: Place, mode: str) -> None:
    """Send a setting, and two readings that give a command each."""
    setting = {"sensor_id": 1, "desired": 20, "up_delta": 1, "down_delta": 1}
    produce(place.kafka.bootstrap, f"settings-{mode}", [(b"1", json.dumps(setting).encode())])
    readings = [{"sensor_id": 1, "temperature": temperature} for temperature in (15.0, 25.0)]
    records = [(b"1", json.dumps(reading).encode()) for reading in readings]
    produce(place.kafka.bootstrap, f"readings-{mode}", records)


def check(place: Place, folder: Path, mode: str) -> None:
    """Check that all commands are there, and no file of the job has a secret."""
    for stream in ("heaters", "protocol"):
        topic = f"{stream}-{mode}"
        found = [json.loads(one.value or b"") for one in read_topic(place.kafka.bootstrap, topic, 2)]
        assert [one["command"] for one in found] == ["ON", "OFF"], stream
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert files
    assert not [one for one in files if PASSWORD.encode() in one or KEY_PASSWORD.encode() in one]


def written(folder: Path, name: str, secret: str) -> Path:
    """Write a secret to a file; return the file."""
    file = folder / name
    file.write_text(f"{secret}\n")
    return file


def test_a_job_reads_and_writes_over_tls(place: Place, tmp_path: Path, spark: SparkSession) -> None:
    """It uses a login and a certificate, real time, and secrets from files."""
    key, login = written(tmp_path, "key", KEY_PASSWORD), written(tmp_path, "login", PASSWORD)
    send(place, "session")
    settings = RunSettings(
        bindings=bindings(place, key, f"file:{login}", "session"),
        checkpoint=str(tmp_path / "job" / "checkpoint"),
        checkpoint_interval_ms=5000,
        bounded=True,
    )
    with JobInSession(spark, JOB, settings) as job:
        assert job.wait().status == "finished"
    check(place, tmp_path / "job", "session")


@pytest.mark.chaos
@pytest.mark.parametrize("mode", MODES)
def test_secrets_come_from_the_environment_of_a_job(place: Place, tmp_path: Path, mode: str) -> None:
    """The job is a process of its own, since workers have the environment in which Spark was started."""
    key = written(tmp_path, "key", KEY_PASSWORD)
    arguments = [
        str(JOB),
        *(f"-D{name}={uri}" for name, uri in bindings(place, key, "env:KAFKA_PASSWORD", mode).items()),
        f"--checkpoint={tmp_path}/job/checkpoint",
        "--bounded",
        *MODES[mode],
    ]
    send(place, mode)
    result = cli(*arguments, folder=tmp_path / "job", environment={"KAFKA_PASSWORD": PASSWORD})
    assert result.code == 0, result.err
    check(place, tmp_path / "job", mode)


def problem(address: str, query: str) -> str:
    """Return the message for a topic at an address."""
    binding = parse_binding("readings", f"kafka://{address}/readings-session?{query}", "data")
    assert isinstance(binding, KafkaBinding)
    with pytest.raises(ExternalSystemError) as caught:
        check_topic(binding, binding.client, 4.0)
    return str(caught.value)


def test_what_is_wrong_with_a_connection_is_said(place: Place) -> None:
    """The message has the remedy, but no password."""
    kafka, key_password = place.kafka, f"ssl.key.password={KEY_PASSWORD}"
    login = f"{LOGIN}&sasl.password={PASSWORD}"
    trusting = f"ssl.ca.location={place.authority}"
    strange = f"ssl.ca.location={place.other_authority}"
    elsewhere = kafka.secured_encrypted.replace("127.0.0.1", "localhost")
    asked = {
        "untrusted": (kafka.secured_encrypted, f"{login}&{strange}"),
        "other host": (elsewhere, f"{login}&{trusting}"),
        "plain client": (kafka.encrypted, "format=json"),
        "plain login": (kafka.secured_encrypted, login.replace("SASL_SSL", "SASL_PLAINTEXT")),
        "plain port": (kafka.bootstrap, f"{place.shown}&{key_password}"),
        "no certificate": (kafka.encrypted, f"security.protocol=SSL&{trusting}"),
        "password": (kafka.secured_encrypted, f"{LOGIN}&sasl.password=wrong-secret&{trusting}"),
    }
    # All at once, since each takes its timeout.
    with ThreadPoolExecutor(len(asked)) as pool:
        said = dict(zip(asked, pool.map(lambda one: problem(*one), asked.values()), strict=True))
    expected = {
        "untrusted": "its certificate is not accepted (self-signed certificate in certificate chain). Name the file "
        "with the certificate of its authority in ssl.ca.location.",
        "other host": "its certificate is for 127.0.0.1, not for localhost. Write an address that it is for",
        "plain client": "it expects TLS, and the client speaks PLAINTEXT. Write security.protocol=SSL, or SASL_SSL",
        "plain login": "it expects TLS, and the client speaks SASL_PLAINTEXT.",
        "plain port": "it does not speak TLS at that port, but security.protocol=SSL. Correct the port, or",
        "no certificate": "it does not accept the client's certificate, or wants one",
        "password": "Invalid username or password",
    }
    for case, text in expected.items():
        assert text in said[case], case
        assert "Stream 'readings': the Kafka broker at " in said[case], case
        assert "secret" not in said[case], case


@pytest.mark.chaos  # a broker that starts again
def test_a_password_may_change_while_a_job_runs(place: Place, tmp_path: Path) -> None:
    """The clients of sources, sinks and plans connect again with what the file has then."""
    kafka, login = place.kafka, written(tmp_path, "login", PASSWORD)
    kafka.create_topic("changed")
    query = (
        f"{LOGIN}&sasl.password=file:{login}&ssl.ca.location={place.authority}&reconnect.backoff.max.ms=500"
    )
    source = parse_binding("readings", f"kafka://{kafka.secured_encrypted}/changed?{query}", "data")
    assert isinstance(source, KafkaBinding)
    names = PartitionNames("changed")
    reader = TopicReader(source, source.client, WantedParts(), names)
    reader.follow({"00000": 0})
    log = KafkaLog(source, source.client, KnownTopics(tmp_path / "topics", names))
    # The first sends in bulk.
    producers = [PlainProducer(replace(source, origin=origin)) for origin in (False, True)]

    def send_and_read(count: int) -> None:
        for producer in producers:
            producer.send(Messages(pa.array([b"{}"]), None))
            producer.flush()
        deadline_s = time.monotonic() + 60
        while reader.positions != {"00000": count} and time.monotonic() < deadline_s:
            reader.take(0.1)
        assert reader.positions == {"00000": count}
        while log.latest({"00000": 0}, limited=False) != {"00000": count}:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)

    send_and_read(2)
    kafka.stop()
    kafka._users = {"ann": "another"}
    kafka.start()
    assert reader.take(1.0) == []
    login.write_text("another\n")
    send_and_read(4)
    reader.close()
