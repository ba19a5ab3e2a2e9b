"""HTTP receivers: records acknowledged with 202 survive kills, and a job reads them."""

from __future__ import annotations

import json
import random
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import Authority
from conformance_page import note_conformance
from conforming_sources import journaling
from file_feed import COUNTING_JOB, SENSORS
from http_sender import Sender
from job_in_session import JobInSession
from journaled_records import journaled
from pyspark.sql import SparkSession
from receiving_process import receiver

from penstock.jobs.settings import RunSettings
from penstock.machine.local_server import free_port
from penstock.testing.connectors import SourceUnderTest, check_source
from penstock.webhooks import server_certificate

RECEIVING = Path(__file__).with_name("receiving_process.py")


def test_what_was_answered_is_there_after_kills(tmp_path: Path) -> None:
    """Kill -9 at random moments under load: each record is there once, since senders repeat with the same key."""
    chance = random.Random(3)
    uri = f"http-listen://127.0.0.1:{free_port()}/readings"
    senders = [Sender(uri.replace("http-listen", "http"), name) for name in range(4)]
    command = [sys.executable, str(RECEIVING), str(tmp_path), uri, "goes"]
    for sender in senders:
        sender.start()
    try:
        for _ in range(3):
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == b"connected\n"
                for _ in range(10):
                    assert process.stdout.readline(), "the receiver has ended"
                time.sleep(chance.uniform(0, 0.1))
                process.kill()
        with receiver(tmp_path, uri) as receiving:
            wanted = [len(sender.taken) + 1 for sender in senders]
            while not all(sender.has_taken(count) for sender, count in zip(senders, wanted, strict=True)):
                assert receiving.error is None
                time.sleep(0.01)
            for sender in senders:
                sender.stop()
    finally:
        for sender in senders:
            sender.stop()
    taken = [record for sender in senders for record in sender.taken]
    assert len(taken) > 30
    assert sorted(map(json.loads, journaled(tmp_path))) == sorted(taken)


def test_requests_come_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients verify the certificate, which another one may replace while the job listens."""
    monkeypatch.setattr(server_certificate, "_LOOK_S", 0.0)
    authority = Authority(tmp_path / "certificates", "plant")
    certificate, key = authority.sign("localhost", "DNS:localhost")
    uri = f"http-listen://127.0.0.1:{free_port()}/readings?certfile={certificate}&keyfile={key}"
    context = ssl.create_default_context(cafile=authority.certificate)
    url = uri.partition("?")[0].replace("http-listen://127.0.0.1", "https://localhost")
    later = Authority(tmp_path / "later", "later")
    files = later.sign("localhost", "DNS:localhost")
    with receiver(tmp_path / "journal", uri):
        with httpx.Client(verify=context, trust_env=False) as client:
            assert client.post(url, json=1).status_code == 202
        certificate.write_bytes(files[0].read_bytes())
        # It does not fit the key that is there still.
        await_true(lambda: "the last certificate counts" in caplog.text)
        with httpx.Client(verify=context, trust_env=False) as client:
            assert client.post(url, json=2).status_code == 202
        key.write_bytes(files[1].read_bytes())
        context.load_verify_locations(later.certificate)
        await_true(lambda: is_trusted(url, later.certificate))
        with httpx.Client(verify=context, trust_env=False) as client:
            assert client.post(url, json=3).status_code == 202
    assert journaled(tmp_path / "journal") == [b"1", b"2", b"3"]


def await_true(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def is_trusted(url: str, authority: Path) -> bool:
    """Whether the certificate of a server is of an authority."""
    address, context = httpx.URL(url), ssl.create_default_context(cafile=authority)
    with (
        suppress(ssl.SSLError),
        socket.create_connection((address.host, address.port or 443), 5) as plain,
        context.wrap_socket(plain, server_hostname=address.host),
    ):
        return True
    return False


def test_a_job_reads_what_is_sent_to_it(tmp_path: Path, spark: SparkSession) -> None:
    """It reads while it runs; records that do not fit the stream's schema are dead letters."""
    port = free_port()
    sink, dead = tmp_path / "seen", tmp_path / "checkpoint" / "dead-letters"
    bindings = {"readings": f"http-listen://127.0.0.1:{port}/readings", "seen": f"jsonl:{sink}"}
    run = RunSettings(bindings=bindings, checkpoint=str(tmp_path / "checkpoint"), parallelism=2)
    with JobInSession(spark, COUNTING_JOB, run) as job:
        url = f"http://127.0.0.1:{port}/readings"
        records = [{"sensor": sensor, "number": 1} for sensor in range(SENSORS)]
        job.await_true(lambda: is_taken(url, [*records, {"sensor": "x"}]))
        job.await_true(lambda: len(rows(sink)) == SENSORS and len(rows(dead)) == 1)
    assert Counter((row["sensor"], row["count"]) for row in rows(sink)) == Counter(
        (sensor, 1) for sensor in range(SENSORS)
    )


def is_taken(url: str, records: list[dict[str, Any]]) -> bool:
    """Return whether a server listens already, and has accepted records."""
    with suppress(httpx.ConnectError):
        return httpx.post(url, json=records, trust_env=False, timeout=20).status_code == 202
    return False


def rows(folder: Path) -> list[dict[str, int]]:
    return [
        json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]


def test_the_source_is_held_to_the_conformance_kit(tmp_path: Path) -> None:
    """Each record is a line of a request without keys."""
    url = f"127.0.0.1:{free_port()}/kit"

    def put(records: Sequence[bytes]) -> None:
        answer = httpx.post(f"http://{url}", content=b"\n".join(records), trust_env=False, timeout=20)
        assert answer.status_code == 202

    note_conformance(
        check_source(
            SourceUnderTest(
                "requests (HTTP)",
                "at least once",
                journaling(tmp_path / "journal", f"http-listen://{url}"),
                put,
                without={
                    "while closed": "nobody listens, which a sender notices",
                    "bad record": "a request that is not JSON is refused, and its sender is told",
                    "credentials": "it listens itself, and has no login elsewhere",
                    "slow server": "it listens itself, without another server",
                },
            )
        )
    )
