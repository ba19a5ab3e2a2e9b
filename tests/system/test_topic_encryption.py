"""Kafka over TLS, on a broker of its own: whole jobs with secrets, and what is said when it does not work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from certificates import Authority
from job_process import cli

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import check_topic
from penstock.errors import ExternalSystemError
from penstock.machine.kafka_broker import BrokerCertificates, KafkaBroker
from topics import produce, read_topic

JOB = Path(__file__).with_name("thermostat_job.py")
# The checkpoint has this file too, beside the code of the job.
PASSWORD, KEY_PASSWORD = ("-".join([name, "secret"]) for name in ("ann", "key"))
LOGIN = "security.protocol=SASL_SSL&sasl.mechanisms=PLAIN&sasl.username=ann"


@dataclass(frozen=True)
class Place:
    """A broker, and the files that its clients have."""

    kafka: KafkaBroker
    authority: Path
    other_authority: Path
    certificate: Path
    key: Path

    @property
    def shown(self) -> str:
        """The parameters of a client that shows its certificate."""
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
    with KafkaBroker(users={"ann": PASSWORD}, certificates=certificates) as kafka:
        for mode in MODES:
            for stream in ("readings", "settings", "heaters", "protocol"):
                kafka.create_topic(f"{stream}-{mode}")
        yield Place(kafka, authority.certificate, other.certificate, *shown)


@pytest.mark.parametrize("mode", ["real-time", pytest.param("micro-batches", marks=pytest.mark.chaos)])
def test_a_job_reads_and_writes_over_tls(place: Place, tmp_path: Path, mode: str) -> None:
    """With a login and with a certificate, and with secrets from its environment and from a file.

    The job is a process of its own, since workers have the environment in which Spark was started.
    """
    kafka = place.kafka
    secret = tmp_path / "key-password"
    secret.write_text(f"{KEY_PASSWORD}\n")
    by_login = f"{LOGIN}&sasl.password=env:KAFKA_PASSWORD&ssl.ca.location={place.authority}"
    by_certificate = f"{place.shown}&ssl.key.password=file:{secret}"
    arguments = [
        str(JOB),
        f"-Dreadings=kafka://{kafka.secured_encrypted}/readings-{mode}?start=earliest&{by_login}",
        f"-Dsettings=kafka://{kafka.encrypted}/settings-{mode}?{by_certificate}",
        f"-Dheaters=kafka://{kafka.secured_encrypted}/heaters-{mode}?delivery=exactly-once&{by_login}",
        f"-Dprotocol=kafka://{kafka.encrypted}/protocol-{mode}?{by_certificate}",
        f"--checkpoint={tmp_path}/checkpoint",
        "--bounded",
        *MODES[mode],
    ]
    setting = {"sensor_id": 1, "desired": 20, "up_delta": 1, "down_delta": 1}
    produce(kafka.bootstrap, f"settings-{mode}", [(b"1", json.dumps(setting).encode())])
    readings = [{"sensor_id": 1, "temperature": temperature} for temperature in (15.0, 25.0)]
    produce(
        kafka.bootstrap, f"readings-{mode}", [(b"1", json.dumps(reading).encode()) for reading in readings]
    )
    result = cli(*arguments, folder=tmp_path, environment={"KAFKA_PASSWORD": PASSWORD})
    assert result.code == 0, result.err
    for stream in ("heaters", "protocol"):
        found = [json.loads(one.value or b"") for one in read_topic(kafka.bootstrap, f"{stream}-{mode}", 2)]
        assert [one["command"] for one in found] == ["ON", "OFF"], stream
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != secret]
    assert not [one for one in files if PASSWORD.encode() in one or KEY_PASSWORD.encode() in one]


def problem(address: str, query: str) -> str:
    """What is said of a topic at an address."""
    binding = parse_binding("readings", f"kafka://{address}/readings-real-time?{query}", "data")
    assert isinstance(binding, KafkaBinding)
    with pytest.raises(ExternalSystemError) as caught:
        check_topic(binding, binding.client, 2.0)
    return str(caught.value)


def test_what_is_wrong_with_a_connection_is_said(place: Place) -> None:
    """With the remedy, and without a password."""
    kafka, key_password = place.kafka, f"ssl.key.password={KEY_PASSWORD}"
    login = f"{LOGIN}&sasl.password={PASSWORD}"
    trusting = f"ssl.ca.location={place.authority}"
    strange = f"ssl.ca.location={place.other_authority}"
    elsewhere = kafka.secured_encrypted.replace("127.0.0.1", "localhost")
    said = {
        "untrusted": problem(kafka.secured_encrypted, f"{login}&{strange}"),
        "other host": problem(elsewhere, f"{login}&{trusting}"),
        "plain client": problem(kafka.encrypted, "format=json"),
        "plain login": problem(kafka.secured_encrypted, login.replace("SASL_SSL", "SASL_PLAINTEXT")),
        "plain port": problem(kafka.bootstrap, f"{place.shown}&{key_password}"),
        "no certificate": problem(kafka.encrypted, f"security.protocol=SSL&{trusting}"),
        "password": problem(kafka.secured_encrypted, f"{LOGIN}&sasl.password=wrong-secret&{trusting}"),
    }
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
