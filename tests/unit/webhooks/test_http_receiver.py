"""HTTP receivers: what is answered with 202 is in the journal, and all else says why not."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import HttpListenBinding
from penstock.doctor.bindings import check_binding
from penstock.errors import BindingError, CheckpointError, ExternalSystemError
from penstock.machine.local_server import free_port
from penstock.records.cloud_events import CloudEventsFormat
from penstock.records.event_headers import event_headers_of
from penstock.records.schemas import record_type
from penstock.sources.journal import JournalLog, JournalWriter
from penstock.webhooks import http_receiver
from penstock.webhooks.http_receiver import HttpReceiver, listen
from penstock.webhooks.request_records import pack_records, split_records


def bind(query: str = "") -> HttpListenBinding:
    found = parse_binding("readings", f"http-listen://127.0.0.1:{free_port()}/hall%201{query}", "data")
    assert isinstance(found, HttpListenBinding)
    return found


READING = record_type("event STRING, level BIGINT, celsius DOUBLE")


@contextmanager
def receiving(folder: Path, binding: HttpListenBinding) -> Iterator[tuple[HttpReceiver, httpx.Client]]:
    """A receiver, and a client of it."""
    events = None if binding.events is None else event_headers_of(binding.events.attributes, READING, "ce-")
    receiver = HttpReceiver(binding, folder, JournalWriter(folder), events=events)
    base = f"http://127.0.0.1:{binding.port}"
    with receiver, httpx.Client(base_url=base, trust_env=False, timeout=20) as client:
        yield receiver, client


def journaled(folder: Path) -> list[bytes]:
    log = JournalLog(folder)
    chunks = [
        chunk
        for split in log.splits(0, log.latest(0, limited=False), 1)
        for chunk in log.read([split], None)  # type: ignore[arg-type]  # raw records have no type
    ]
    return [record for chunk in chunks for record in chunk.raw.to_pylist()]  # type: ignore[union-attr]


def test_records_are_journaled_as_they_were_sent(tmp_path: Path) -> None:
    """A value, an array, and lines; the answer says where the journal ends then."""
    bodies = [b' {"n": 1}\n', b'[{"n":\n2}, {"n": "]"}]', b'{"n": 4}\r\n\n{"n": 5}', b"[]"]
    with receiving(tmp_path, bind()) as (_, client):
        answers = [client.post("/hall 1", content=body) for body in bodies]
    assert [answer.status_code for answer in answers] == [202] * 4
    assert [answer.json()["records"] for answer in answers] == [1, 2, 2, 0]
    places = [answer.json()["position"] for answer in answers]
    assert places == sorted(places)
    assert places[-1] == JournalLog(tmp_path).latest(0, limited=False)
    assert journaled(tmp_path) == [b'{"n": 1}', b'{"n":\n2}', b'{"n": "]"}', b'{"n": 4}', b'{"n": 5}']


def test_what_arrives_at_the_same_time_is_all_there(tmp_path: Path) -> None:
    """Each request whole and in order, from many clients."""
    with receiving(tmp_path, bind()) as (_, client), ThreadPoolExecutor(8) as pool:

        def post(number: int) -> int:
            return client.post("/hall 1", json=[[number, 0], [number, 1]]).status_code

        assert set(pool.map(post, range(200))) == {202}
    rows = [json.loads(record) for record in journaled(tmp_path)]
    assert sorted(rows) == [[number, part] for number in range(200) for part in range(2)]
    assert all(rows[place][0] == rows[place + 1][0] for place in range(0, 400, 2))


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "reason"),
    [
        ("POST", "/hall", b"{}", 404, "Records are taken at /hall 1."),
        ("GET", "/hall 1", b"", 405, "by POST"),
        ("POST", "/hall 1", b"", 400, "the body is empty"),
        ("POST", "/hall 1", b"{", 400, "must be a JSON record, an array of them, or lines"),
        ("POST", "/hall 1", b"{}\nx\n", 400, "line 2"),
        ("POST", "/hall 1", b"[" * 100_000, 400, "must be a JSON record"),
        ("POST", "/hall 1", b'"' + b"1" * 200_000 + b'"', 413, "at most 150000 bytes"),
        ("POST", "/hall 1", [b'"' + b"1" * 200_000, b'"'], 413, "at most 150000 bytes"),
    ],
)
def test_what_is_not_taken_is_told(
    tmp_path: Path, method: str, path: str, content: Any, status: int, reason: str
) -> None:
    """And is not in the journal, also where only a part is wrong."""
    with receiving(tmp_path, bind("?max_request_bytes=150000")) as (_, client):
        answer = client.request(method, path, content=iter(content) if isinstance(content, list) else content)
    assert answer.status_code == status
    assert reason in answer.json()["error"]
    assert journaled(tmp_path) == []


def test_a_token_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked up when the job starts to listen, and nothing shows it."""
    monkeypatch.setenv("HALL_TOKEN", "s3same")
    binding = bind("?token=env:HALL_TOKEN")
    with receiving(tmp_path, binding) as (_, client):
        for given in (
            {},
            {"authorization": "s3same"},
            {"authorization": "Bearer s3sam\u00e9".encode("latin-1")},
        ):
            answer = client.post("/hall 1", json={}, headers=given)  # type: ignore[arg-type]
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        for scheme in ("Bearer", "bearer"):
            answer = client.post("/hall 1", json={}, headers={"authorization": f"{scheme} s3same"})
            assert answer.status_code == 202
    assert "s3same" not in repr(binding)
    assert "s3same" not in repr(bind("?token=s3same"))
    monkeypatch.delenv("HALL_TOKEN")
    receiver = HttpReceiver(binding, tmp_path, JournalWriter(tmp_path))
    with pytest.raises(BindingError, match="there is no environment variable HALL_TOKEN"):
        receiver.__enter__()


def test_a_token_may_change_while_the_job_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the one that the file has counts; while the file is not there, the last that it had."""
    monkeypatch.setattr(http_receiver, "_TOKEN_S", 0.0)
    file = tmp_path / "token"
    file.write_text("first\n")
    with receiving(tmp_path / "journal", bind(f"?token=file:{file}")) as (_, client):

        def answers(*tokens: str) -> list[int]:
            headers = [{"authorization": f"Bearer {token}"} for token in tokens]
            return [client.post("/hall 1", json={}, headers=one).status_code for one in headers]

        assert answers("first", "second", "x") == [202, 401, 401]
        file.write_text("second\n")
        assert answers("first", "second") == [401, 202]
        file.write_text("")
        assert answers("first", "second", "x") == [401, 202, 401]
        assert [text.count("that file is empty") for text in caplog.messages] == [1]
        file.unlink()
        assert answers("second", "x") == [202, 401]


def test_a_request_with_the_same_key_is_taken_once(tmp_path: Path) -> None:
    """Also after a restart; another body is another request."""
    for _ in range(2):
        with receiving(tmp_path, bind()) as (_, client), ThreadPoolExecutor(4) as pool:

            def post(number: int, client: httpx.Client = client) -> bool:
                headers = {"idempotency-key": f"k{number % 2}"}
                answer = client.post("/hall 1", json={"n": number % 3}, headers=headers)
                return bool(answer.json().get("repeated"))

            repeated = list(pool.map(post, range(24)))
    assert all(repeated)
    assert len(journaled(tmp_path)) == 6


def test_a_job_that_is_behind_takes_nothing(tmp_path: Path) -> None:
    """Until it has read and forgotten what the journal has."""
    binding = dataclasses.replace(bind(), max_journal_bytes=100)
    with receiving(tmp_path, binding) as (_, client):
        assert client.post("/hall 1", json="x" * 100).status_code == 202
        answer = client.post("/hall 1", json="x")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
        assert "The job is behind" in answer.json()["error"]
        # As when the job has read it: the journal begins behind it.
        (segment,) = tmp_path.glob("*.blocks")
        segment.rename(tmp_path / f"{segment.stat().st_size:020d}.blocks")
        assert client.post("/hall 1", json="x").status_code == 202


def test_a_journal_that_cannot_be_written_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is answered with 503, and so is sent again."""

    def append(self: JournalWriter, records: object, note: bytes = b"") -> int:
        raise CheckpointError("The journal cannot be written (No space left on device).")

    with receiving(tmp_path, bind()) as (receiver, client):
        monkeypatch.setattr(JournalWriter, "append", append)
        assert client.post("/hall 1", json=1).status_code == 503
        receiver._thread.join(20)
        assert "No space left" in str(receiver.error)


def test_all_that_wait_are_refused_whatever_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that come while the receiver ends: none waits for an answer that nobody gives."""
    begun, failing = threading.Event(), threading.Event()

    def append(self: JournalWriter, records: object, note: bytes = b"") -> int:
        begun.set()
        failing.wait(20)
        raise RuntimeError("no more threads")

    with receiving(tmp_path, bind()) as (receiver, client), ThreadPoolExecutor(8) as threads:
        monkeypatch.setattr(JournalWriter, "append", append)
        first = threads.submit(client.post, "/hall 1", json=0)
        assert begun.wait(20)
        others = [threads.submit(client.post, "/hall 1", json=number) for number in range(1, 8)]
        failing.set()
        statuses = []
        for answer in [first, *others]:
            # Nobody listens any more.
            with suppress(httpx.TransportError):
                statuses.append(answer.result().status_code)
        assert set(statuses) == {503}
        receiver._thread.join(20)
        assert "no more threads" in str(receiver.error)


def test_a_bounded_run_does_not_listen(tmp_path: Path) -> None:
    """It has what the journal has."""
    binding = bind()
    with HttpReceiver(binding, tmp_path, JournalWriter(tmp_path), bounded=True) as receiver:
        receiver.wait_for_end(threading.Event())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((binding.host, binding.port))


def test_an_address_that_is_taken_is_told_before_the_start(tmp_path: Path) -> None:
    """By a job, and by doctor."""
    binding = bind()
    assert check_binding("readings", binding, is_source=True).status == "ok"
    with receiving(tmp_path, binding):
        finding = check_binding("readings", binding, is_source=True)
        assert (finding.status, finding.remedy.partition(",")[0]) == ("failed", "Stop what listens there")
        receiver = HttpReceiver(binding, tmp_path, JournalWriter(tmp_path / "other"))
        with pytest.raises(ExternalSystemError, match=r"cannot listen at .*Address already in use"):
            receiver.__enter__()


@pytest.mark.parametrize("token", ["s3same\n", "two words", "s\u00e9same"])
def test_a_token_that_no_request_can_have_is_told(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """Without showing it, by the doctor too."""
    monkeypatch.setenv("HALL_TOKEN", token)
    found = check_binding("readings", bind("?token=env:HALL_TOKEN"), is_source=True)
    assert found.status == "failed"
    assert "no request can have the token" in found.found
    assert token not in repr(found)


def test_a_certificate_that_is_missing_is_told(tmp_path: Path) -> None:
    """With the paths."""
    binding = bind(f"?certfile={tmp_path}/a&keyfile={tmp_path}/b")
    receiver = HttpReceiver(binding, tmp_path, JournalWriter(tmp_path))
    with pytest.raises(ExternalSystemError, match=r"the certificate .*/a with the key"):
        receiver.__enter__()


def test_a_body_is_split_without_touching_its_records() -> None:
    """Spaces within a record stay."""
    assert split_records(b'[ {"a" : 1} , 2 ]') == [b'{"a" : 1}', b"2"]
    assert split_records(b"[1]\n[2]") == [b"[1]", b"[2]"]
    assert split_records(b'{"a" : 1}\r\n\n {"b" : 2} \n') == [b'{"a" : 1}', b'{"b" : 2}']


@pytest.mark.parametrize(
    "body", [b"1 2\n3", b'1 2\n{\n"a": 1}', b'{\n"a": 1}\n2', b"1 2\n\n3", b"1,\n2", b"1\n[2"]
)
def test_each_line_is_one_value(body: bytes) -> None:
    """Not two, nor a part of one, although the whole body would be values one after the other."""
    with pytest.raises(ValueError, match="nor is line"):
        pack_records(body)


VALUES = [b'{"n": 1}', b"2", b'"a b"', b"[3]", b'{"n":\n4}', b'{"n": 1}\n', b"2\n", b'"\xff"\n']
PIECES = [*VALUES, b"\n", b"\n", b" ", b"\r", b"{", b"}", b'"', b"[", b"]", b","]


@given(st.lists(st.sampled_from(PIECES)).map(b"".join))
@examples(200)
def test_lines_are_the_same_together_and_one_by_one(body: bytes) -> None:
    """Whatever is between them, within them, or wrong with them."""
    try:
        expected = split_records(body)
    except ValueError as e:
        with pytest.raises(ValueError, match=re.escape(str(e))):
            pack_records(body)
        return
    found = pack_records(body)
    assert found.lengths.tolist() == [len(record) for record in expected]
    assert found.content == b"".join(expected)


def test_an_answer_does_not_wait_for_the_receipt_of_its_head() -> None:
    """Which takes a client's system 40 ms: the sockets of connections have the setting of the one that listens."""
    with listen(bind()) as listening:
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


EVENT = {
    "ce-specversion": "1.0",
    "ce-id": "caf%C3%A9",
    "ce-source": "/x",
    "ce-type": "reading",
    "ce-level": "3",
}


def test_requests_may_be_cloud_events(tmp_path: Path) -> None:
    """With the attributes in headers, in JSON, or many in an array; repetitions of an event are known by its key."""
    binding = bind("?format=cloudevents&attributes=event:id,level")
    whole = {"specversion": "1.0", "id": "8", "source": "/x", "type": "r", "level": 4, "data": {"celsius": 1}}
    json_type, batch_type = (f"application/cloudevents{part}+json" for part in ("", "-batch"))
    with receiving(tmp_path, binding) as (_, client):

        def post(headers: dict[str, str], **content: Any) -> httpx.Response:
            return client.post("/hall 1", headers=headers, **content)

        keyed = {**EVENT, "idempotency-key": "k"}
        for _ in range(2):
            assert post(keyed, json={"celsius": 21.5}).json()["records"] == 1
        other = post({**keyed, "ce-id": "9"}, json={"celsius": 21.5})
        assert "repeated" not in other.json()
        assert post({"content-type": json_type}, json=whole).status_code == 202
        assert post({"content-type": batch_type}, json=[whole, whole]).json()["records"] == 2
        for headers, body in (({"content-type": "text/xml"}, b"<x/>"), ({}, b"{"), ({}, b'{}, "id": "x"')):
            answer = post({**EVENT, **headers}, content=body)
            assert answer.status_code == 400
            assert "the data of the event is not" in answer.json()["error"]
    assert binding.events is not None
    records = pa.array(journaled(tmp_path), pa.binary())
    found = CloudEventsFormat(READING, binding.events.attributes).decode(records)
    assert found.bad == []
    plain = {"event": "8", "level": 4, "celsius": 1.0}
    first = {"event": "caf\u00e9", "level": 3, "celsius": 21.5}
    assert found.batch.to_pylist() == [first, {**first, "event": "9"}, plain, plain, plain]
