"""The sink of webhooks beside a real server: what it sends, repeats, rejects and gives up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hook_server import Asked, HookServer, Reply

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import WebhookBinding
from penstock.doctor.bindings import check_binding
from penstock.errors import BindingError, ExternalSystemError
from penstock.records.schemas import record_type
from penstock.records.wire_formats import format_of
from penstock.sinks.base import RecordOrigin, RejectingTask, Rejection, TaskContext
from penstock.webhooks.webhook_requests import Sender, check_server
from penstock.webhooks.webhook_sink import WebhookSink

ALERT = record_type("n BIGINT")


@pytest.fixture
def server() -> Iterator[HookServer]:
    with HookServer() as started:
        yield started


def bind(server: HookServer, query: str = "") -> WebhookBinding:
    found = parse_binding("alerts", f"{server.url}?origin=true{query}", "sink")
    assert isinstance(found, WebhookBinding)
    return found


def write(server: HookServer, numbers: range, query: str = "", batch: int = 0) -> list[Rejection]:
    """Write one block of a micro-batch."""
    sink = WebhookSink(bind(server, query), format_of("json", ALERT))
    sink.prepare("line", "")
    task = sink.task(TaskContext(batch, 0, 0, "line"), ALERT)
    assert isinstance(task, RejectingTask)
    task.come_from(RecordOrigin("", "step", "0", pa.array(numbers, pa.int64()), is_source=False))
    task.write(pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=ALERT.schema), None)
    rejected = task.rejections()
    task.finish()
    return rejected


def test_each_record_is_a_request_in_order(server: HookServer) -> None:
    """With an id of its own, which is the same when the micro-batch is written again."""
    write(server, range(20))
    assert [one.content for one in server.taken] == [{"n": n} for n in range(20)]
    assert {one.path for one in server.taken} == {"/hook"}
    assert {one.headers["Content-Type"] for one in server.taken} == {"application/json"}
    ids = [one.id for one in server.taken]
    assert len(set(ids)) == 20
    write(server, range(20))
    write(server, range(20), batch=1)
    assert [one.id for one in server.taken[20:40]] == ids
    assert not set(ids) & {one.id for one in server.taken[40:]}


def test_records_may_share_a_request(server: HookServer) -> None:
    """As an array, also if one is left."""
    write(server, range(7), "&records_per_request=3")
    assert [one.content for one in server.taken] == [
        [{"n": 0}, {"n": 1}, {"n": 2}],
        [{"n": 3}, {"n": 4}, {"n": 5}],
        [{"n": 6}],
    ]
    assert len({one.id for one in server.taken}) == 3


def test_headers_and_parameters_are_those_of_the_uri(
    server: HookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their values may be references, and nothing that is shown has them."""
    monkeypatch.setenv("HOOK_TOKEN", "Bearer s3cr3t")
    query = "&header.Authorization=env:HOOK_TOKEN&query.room=a%20b&query.key=pl41n"
    write(server, range(1), query)
    assert server.taken[0].headers["Authorization"] == "Bearer s3cr3t"
    assert server.taken[0].path == "/hook?room=a+b&key=pl41n"
    assert "pl41n" not in repr(bind(server, query))
    monkeypatch.delenv("HOOK_TOKEN")
    with pytest.raises(BindingError, match="there is no environment variable HOOK_TOKEN"):
        write(server, range(1), query)


@pytest.mark.parametrize("value", ["Bearer s3cr3t\n", "Bearer s3cr3t\u00e9"])
def test_a_header_that_cannot_be_sent_is_refused_at_the_start(
    server: HookServer, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """The message does not show it, as that of the client would."""
    monkeypatch.setenv("HOOK_TOKEN", value)
    for start in (
        lambda: write(server, range(1), "&header.Authorization=env:HOOK_TOKEN"),
        lambda: check_server(bind(server, "&header.Authorization=env:HOOK_TOKEN")),
    ):
        with pytest.raises(BindingError, match=r"header\.Authorization cannot be sent in a header") as raised:
            start()
        assert "s3cr3t" not in str(raised.value)
    assert server.taken == []


@pytest.mark.parametrize("size", [1, 16])
def test_what_the_server_refuses_is_rejected(server: HookServer, size: int) -> None:
    """Record by record; the others of its request are sent."""

    def reply(asked: Asked) -> Reply:
        records = asked.content if isinstance(asked.content, list) else [asked.content]
        return Reply(422, text="odd  one") if any(one["n"] in (3, 4, 11) for one in records) else Reply(202)

    server.reply = reply
    rejected = write(server, range(16), f"&records_per_request={size}")
    assert [one.row for one in rejected] == [3, 4, 11]
    assert rejected[0].reason == f"{server.url} refuses the record (422 Unprocessable Entity: odd one)."
    assert rejected[0].raw == b'{"n":3}'
    taken: list[Any] = []
    for one in server.taken:
        taken += one.content if isinstance(one.content, list) else [one.content]
    assert taken == [{"n": n} for n in range(16) if n not in (3, 4, 11)]


@pytest.mark.parametrize("trouble", [Reply(503), Reply(429, {"Retry-After": "0"}), Reply(408), Reply(0)])
def test_a_request_is_repeated_while_the_server_has_trouble(server: HookServer, trouble: Reply) -> None:
    """With the same id, and nothing overtakes it."""
    server.reply = lambda asked: trouble if len(server.asked) in (2, 3) else Reply()
    assert write(server, range(4)) == []
    assert [one.content["n"] for one in server.taken] == [0, 1, 2, 3]
    assert len({one.id for one in server.asked}) == 4


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def test_pauses_grow_or_are_those_that_the_server_asks_for(server: HookServer) -> None:
    """It gives up before a pause that ends after retry_s."""
    clock = Clock()
    sender = Sender(bind(server, "&retry_s=20"), clock, clock.sleep)
    server.reply = lambda asked: Reply(503, {"Retry-After": "7"} if len(server.asked) == 3 else {}, "full")
    with pytest.raises(
        ExternalSystemError, match=r"takes no records: 503 Service Unavailable: full, for 20 s\."
    ):
        sender.send(b"{}", None)
    assert clock.slept == pytest.approx([0.2, 0.4, 7.0, 1.6, 3.2, 5.0])
    sender.close()


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405])
def test_a_wrong_place_or_login_ends_the_run(server: HookServer, status: int) -> None:
    """It would reject every record otherwise."""
    server.reply = lambda asked: Reply(status)
    with pytest.raises(
        ExternalSystemError, match=rf"takes no records: {status} .*Correct the URI or the login"
    ):
        write(server, range(3))
    assert len(server.asked) == 1


def test_a_token_may_change_while_the_job_runs(server: HookServer, tmp_path: Path) -> None:
    """The server refuses the old one: the file is read again, and waited for if it has the old one still."""
    file, valid = tmp_path / "token", "Bearer 1"
    query = f"&retry_s=1&header.Authorization=file:{file}&query.key=file:{file}"
    file.write_text("Bearer 1\n")

    def reply(asked: Asked) -> Reply:
        is_known = asked.headers["Authorization"] == valid and valid.replace(" ", "+") in asked.path
        if valid == "Bearer 3" and not is_known:
            file.write_text("Bearer 3")
        return Reply(200 if is_known else 401)

    server.reply = reply
    write(server, range(2), query)
    file.write_text("Bearer 2\n")
    valid = "Bearer 2"
    write(server, range(2), query)
    assert len(server.asked) == 5
    valid = "Bearer 3"
    write(server, range(2), query)
    assert [one.content["n"] for one in server.taken] == [0, 1] * 3
    valid = "Bearer 4"
    with pytest.raises(ExternalSystemError, match=r"takes no records: 401 Unauthorized, for 1 s\."):
        write(server, range(2), query)


def test_a_server_that_is_away_is_awaited(server: HookServer) -> None:
    """And named when it does not come back."""
    write(server, range(2))
    server.stop()
    with pytest.raises(ExternalSystemError, match=r"takes no records: ConnectError.*, for 1 s"):
        write(server, range(2), "&retry_s=1")
    server.start()
    write(server, range(2), "&retry_s=1")
    assert [one.content["n"] for one in server.taken] == [0, 1, 0, 1]


def test_several_requests_may_be_on_their_way(server: HookServer) -> None:
    """No more than the URI says; what is refused is told in order."""

    def reply(asked: Asked) -> Reply:
        time.sleep(0.02)
        return Reply(400 if asked.content["n"] % 10 == 9 else 200)

    server.reply = reply
    rejected = write(server, range(40), "&requests_at_once=4")
    assert [one.row for one in rejected] == [9, 19, 29, 39]
    assert 1 < server.at_once <= 4
    assert sorted(one.content["n"] for one in server.taken) == [n for n in range(40) if n % 10 != 9]


def test_doctor_connects_and_sends_nothing(server: HookServer) -> None:
    """It says what is wrong with a server that is away."""
    assert check_binding("alerts", bind(server), is_source=False).status == "ok"
    assert server.asked == []
    server.stop()
    found = check_binding("alerts", bind(server), is_source=False)
    assert found.status == "failed"
    assert "does not answer" in found.found
