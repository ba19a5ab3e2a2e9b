"""Objects are read from a real S3 server; errors are reported in time, and without secrets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pytest
from answering_server import Answer, answering
from s3_server import DOMAIN, KEY, SECRET, STRANGER, STRANGER_SECRET, S3Server
from threads_at_once import call_at_once

import penstock as ps
from penstock.checkpoints.stored_home import place_of_home
from penstock.objects.object_folder import IN_HASTE, ObjectFolder
from penstock.objects.objects import ObjectError, read_object
from penstock.server.store.change_log import ChangeLog
from penstock.server.store.logged_transactions import LoggedTransactions
from penstock.server.store.store import Store
from penstock.testing.batch_runner import BatchRunner

MAX_BYTES = 1000
IN_TIME_S = 15.0
HEAD = b'HTTP/1.1 200 OK\r\nContent-Length: 900\r\nETag: "1"\r\nLast-Modified: Tue, 15 Nov 1994 12:45:26 GMT\r\n\r\n'


def address_of(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def refusal(uri: str) -> str:
    """Return why an object cannot be read; the error must come in time and have no secret."""
    begun = time.monotonic()
    with pytest.raises(ObjectError) as caught:
        read_object(uri, MAX_BYTES)
    assert time.monotonic() - begun < IN_TIME_S
    reason = str(caught.value)
    assert "\n" not in reason
    for secret in (SECRET, STRANGER_SECRET, "Signature=", "sesame"):
        assert secret not in repr(caught.value)
    return reason


def test_an_object_is_read(s3: S3Server, s3_environment: pytest.MonkeyPatch) -> None:
    """This holds for any name, up to the allowed size."""
    for name in ("a.json", "deep/er/b.json", "with space/ü?&#%25+.json", "full", "empty"):
        content = {"full": b"x" * MAX_BYTES, "empty": b""}.get(name, name.encode())
        assert read_object(s3.put("names", name, content), MAX_BYTES) == content


def test_what_is_not_there_is_named(s3: S3Server, s3_environment: pytest.MonkeyPatch) -> None:
    """Either the object or the bucket may be missing."""
    s3.put("here", "it", b"{}")
    assert refusal("s3://here/not") == "'s3://here/not' cannot be read: the object does not exist"
    assert (
        refusal("s3://not-here/it")
        == "'s3://not-here/it' cannot be read: the bucket 'not-here' does not exist"
    )
    assert "a/../b" in refusal("s3://here/a/../b")


def test_a_larger_object_is_refused_before_it_is_read(
    s3: S3Server, s3_environment: pytest.MonkeyPatch
) -> None:
    """The store reports its size first."""
    uri = s3.put("sizes", "large", b"x" * (MAX_BYTES + 1))
    assert refusal(uri) == f"'{uri}' is larger than {MAX_BYTES} bytes"


def test_no_more_is_read_than_allowed(s3_environment: pytest.MonkeyPatch) -> None:
    """Only what is in the connection's buffers is sent of a huge object."""
    sent: list[int] = []

    def answer(connection: socket.socket, _: bytes) -> None:
        connection.sendall(HEAD.replace(b"900", b"%d" % (1 << 30)))
        with suppress(OSError):
            for _ in range(1 << 14):
                connection.sendall(bytes(1 << 16))
                sent.append(1 << 16)

    with answering(answer) as port:
        s3_environment.setenv("AWS_ENDPOINT_URL", address_of(port))
        assert "'s3://any/thing' is larger than" in refusal("s3://any/thing")
    assert sum(sent) < 1 << 26


@pytest.mark.parametrize(
    ("variables", "reason"),
    {
        "unknown key": ({"AWS_ACCESS_KEY_ID": "nobody"}, "access is denied (InvalidAccessKeyId)"),
        "wrong secret": ({"AWS_SECRET_ACCESS_KEY": "sesame"}, "access is denied (SignatureDoesNotMatch)"),
        "no permission": (
            {"AWS_ACCESS_KEY_ID": STRANGER, "AWS_SECRET_ACCESS_KEY": STRANGER_SECRET},
            "access is denied (AccessDenied)",
        ),
        "anonymous": ({"AWS_SKIP_SIGNATURE": "true"}, "access is denied (AccessDenied)"),
        "a line break": ({"AWS_ACCESS_KEY_ID": "tester\n"}, "look for line breaks in AWS_ACCESS_KEY_ID"),
        "no endpoint": ({"AWS_ENDPOINT_URL": ""}, "AWS_ENDPOINT_URL of the job is not an address"),
        "an odd endpoint": (
            {"AWS_ENDPOINT_URL": "http://me:sesame@host"},
            "AWS_ENDPOINT_URL of the job is not an address",
        ),
    }.values(),
)
def test_a_wrong_environment_is_told(
    s3: S3Server, s3_environment: pytest.MonkeyPatch, variables: dict[str, str], reason: str
) -> None:
    """The error says what to check, and has the store's own error name."""
    uri = s3.put("secured", "it", b"{}")
    for name, value in variables.items():
        s3_environment.setenv(name, value)
    assert reason in refusal(uri)


def test_the_service_has_its_own_endpoint(s3: S3Server, s3_environment: pytest.MonkeyPatch) -> None:
    """AWS_ENDPOINT_URL_S3 overrides AWS_ENDPOINT_URL, which overrides AWS_ENDPOINT."""
    uri = s3.put("endpoints", "it", b"{}")
    right = s3.environment["AWS_ENDPOINT_URL"]
    s3_environment.setenv("AWS_ENDPOINT_URL_S3", right)
    s3_environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert read_object(uri, MAX_BYTES) == b"{}"
    s3_environment.delenv("AWS_ENDPOINT_URL_S3")
    assert "127.0.0.1:1 does not answer: connection refused" in refusal(uri)
    s3_environment.delenv("AWS_ENDPOINT_URL")
    s3_environment.setenv("AWS_ENDPOINT", right)
    assert read_object(uri, MAX_BYTES) == b"{}"


def test_the_bucket_stands_in_the_host_where_the_endpoint_needs_it(
    s3: S3Server, s3_environment: pytest.MonkeyPatch
) -> None:
    """One endpoint serves all buckets. The server acts as a proxy, so that its domain need not resolve."""
    uris = [s3.put(bucket, "it", bucket.encode()) for bucket in ("host-one", "host-two")]
    s3_environment.setenv("http_proxy", s3.environment["AWS_ENDPOINT_URL"])
    s3_environment.setenv("NO_PROXY", "")
    s3_environment.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    s3_environment.setenv("AWS_ENDPOINT_URL", f"http://{DOMAIN}")
    assert [read_object(uri, MAX_BYTES) for uri in uris] == [b"host-one", b"host-two"]
    s3_environment.setenv("AWS_ENDPOINT_URL", f"http://host-one.{DOMAIN}")
    assert read_object(uris[0], MAX_BYTES) == b"host-one"


def test_a_profile_gives_the_keys(s3: S3Server, s3_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """AWS_PROFILE is used unless there are keys in the environment."""
    uri = s3.put("profiles", "it", b"{}")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        f"[work]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
        f"[other]\naws_access_key_id = {STRANGER}\naws_secret_access_key = {STRANGER_SECRET}\n"
    )
    (tmp_path / ".aws" / "config").write_text(
        "[profile work]\nregion = eu-west-1\n[profile role]\nrole_arn = x\n"
    )
    s3_environment.setenv("AWS_PROFILE", "other")
    assert read_object(uri, MAX_BYTES) == b"{}"
    s3_environment.delenv("AWS_ACCESS_KEY_ID")
    s3_environment.delenv("AWS_SECRET_ACCESS_KEY")
    assert "access is denied" in refusal(uri)
    s3_environment.delenv("AWS_REGION")
    s3_environment.setenv("AWS_PROFILE", "work")
    assert read_object(uri, MAX_BYTES) == b"{}"
    s3_environment.setenv("AWS_PROFILE", "role")
    assert "the profile 'role', which AWS_PROFILE names, has no keys" in refusal(uri)
    s3_environment.setenv("AWS_PROFILE", "none")
    assert "the profile 'none', which AWS_PROFILE names, does not exist" in refusal(uri)


def test_a_job_without_credentials_says_so(s3: S3Server, s3_environment: pytest.MonkeyPatch) -> None:
    """The cloud's metadata service is asked last, and its absence is handled too."""
    uri = s3.put("secured", "it", b"{}")
    s3_environment.delenv("AWS_ACCESS_KEY_ID")
    s3_environment.delenv("AWS_SECRET_ACCESS_KEY")
    with unreachable_server() as address:
        s3_environment.setenv("AWS_METADATA_ENDPOINT", address)
        assert "the job has no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in refusal(uri)


def test_a_stopped_server_is_told_and_the_next_start_is_fine(
    s3: S3Server, s3_environment: pytest.MonkeyPatch
) -> None:
    """The error comes within a second, since the connection is refused."""
    uri = s3.put("stops", "it", b"{}")
    assert read_object(uri, MAX_BYTES) == b"{}"
    s3.kill()
    try:
        assert f"127.0.0.1:{s3.port} does not answer: connection refused" in refusal(uri)
    finally:
        s3.start()
    assert read_object(uri, MAX_BYTES) == b"{}"


@contextmanager
def unreachable_server() -> Iterator[str]:
    """Return a host that does not even accept connections."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = server.getsockname()
        for _ in range(3):
            # Connections beyond a full backlog wait for ever.
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        yield address_of(address[1])


def _drips(connection: socket.socket, _: bytes) -> None:
    connection.sendall(HEAD)
    for _ in range(900):
        connection.sendall(b"x")
        time.sleep(0.5)


def _stalls(connection: socket.socket, _: bytes) -> None:
    connection.sendall(HEAD + b"xx")
    time.sleep(30)


SLOW: dict[str, tuple[Answer, str]] = {
    "mute": (lambda *_: time.sleep(30), "does not answer in time"),
    "drips": (_drips, "does not answer in time"),
    "stalls": (_stalls, "closed the connection early"),
    "busy": (
        lambda it, _: it.sendall(b"HTTP/1.1 503 sesame\r\nRetry-After: 100\r\nContent-Length: 0\r\n\r\n"),
        "answered 503",
    ),
}


def test_a_slow_host_is_given_up(s3_environment: pytest.MonkeyPatch) -> None:
    """The timeout is a few seconds, however slowly it answers. All are asked at once, so that this takes the
    time only once.
    """
    reasons = {kind: reason for kind, (_, reason) in SLOW.items()} | {
        "unreachable": "does not answer in time"
    }
    with ExitStack() as servers, ThreadPoolExecutor(len(reasons)) as pool:
        told: dict[str, Future[str]] = {}
        for kind, (answer, _) in SLOW.items():
            asked = threading.Event()

            def tell_and_answer(
                connection: socket.socket,
                request: bytes,
                asked: threading.Event = asked,
                answer: Answer = answer,
            ) -> None:
                asked.set()
                answer(connection, request)

            s3_environment.setenv(
                "AWS_ENDPOINT_URL", address_of(servers.enter_context(answering(tell_and_answer)))
            )
            told[kind] = pool.submit(refusal, "s3://any/thing")
            # From then on the client does not read the environment.
            assert asked.wait(IN_TIME_S)
        s3_environment.setenv("AWS_ENDPOINT_URL", servers.enter_context(unreachable_server()))
        told["unreachable"] = pool.submit(refusal, "s3://any/thing")
        assert {kind: reason for kind, reason in reasons.items() if reason not in told[kind].result()} == {}


ANSWERS: dict[str, tuple[Answer, str]] = {
    "breaks off": (lambda it, _: it.sendall(HEAD + b"xx"), "closed the connection early"),
    "another region": (
        lambda it, _: it.sendall(b"HTTP/1.1 301 Moved\r\nContent-Length: 0\r\n\r\n"),
        "the bucket is in another region; set AWS_REGION",
    ),
    "no HTTP": (lambda it, _: it.sendall(b"sesame\r\n\r\n"), "127.0.0.1"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_odd_answer_is_told(s3_environment: pytest.MonkeyPatch, kind: str) -> None:
    """The error has the answer's text."""
    answer, reason = ANSWERS[kind]
    with answering(answer) as port:
        s3_environment.setenv("AWS_ENDPOINT_URL", address_of(port))
        assert reason in refusal("s3://any/thing")


@dataclass
class Reading:
    sensor: int


@dataclass
class Seen:
    offset: int


class Offsets(ps.ProcessFunction):
    """Emits for each reading the current setting."""

    offset = ps.Setting(int, 0)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Seen]:
        yield Seen(self.offset.get())


def offsets_job() -> ps.Job:
    job = ps.Job("job", key_groups=8)
    readings = job.data_stream("readings", schema=Reading)
    readings.key_by("sensor").process("offsets", Offsets()).sink_to("seen")
    return job


def test_settings_come_from_an_object(
    s3: S3Server, s3_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They take effect at the cut; a replay sees the same after the object has changed or is out of reach."""
    uri = s3.put("settings", "limits.yaml", b"offset: 11\n")
    job = BatchRunner(offsets_job(), parallelism=3)
    job.fetched_folder = str(tmp_path / "kept")
    job.allow_read = ["s3://settings"]
    before = job.copy()
    commands = [
        {"id": name, "kind": "reload-config", "target": {"step": "offsets"}, "payload": {"from": place}}
        for name, place in (("there", uri), ("missing", "s3://settings/none.json"))
    ]
    inputs = {
        "commands": [("c", [msgspec.json.encode(command) for command in commands])],
        "readings": [("a", [Reading(1)])],
    }
    result = job.run(inputs)
    assert {receipt.id: receipt.status for receipt in result.receipts} == {
        "there": "APPLIED",
        "missing": "REJECTED",
    }
    (reason,) = (receipt.reason for receipt in result.receipts if receipt.status == "REJECTED")
    assert reason == "'s3://settings/none.json' cannot be read: the object does not exist"
    assert [seen.offset for seen in result.output("seen")] == [11]
    s3.put("settings", "limits.yaml", b"offset: 12\n")
    s3.put("settings", "none.json", b'{"offset": 13}')
    s3_environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    replay = before.run(inputs)
    assert (replay.data, replay.receipts) == (result.data, result.receipts)


def test_servers_that_share_a_bucket_have_one_order_of_transactions(
    s3: S3Server, s3_environment: pytest.MonkeyPatch
) -> None:
    """However they start, only one leads, and a server that missed removed changes continues after the newest
    one.
    """
    s3.put("servers", "there", b"")
    place = place_of_home("s3://servers/one")

    def open_store() -> Store:
        return Store(LoggedTransactions(ChangeLog(ObjectFolder(place, {}, IN_HASTE), place.shown, 4)))

    stores = [open_store() for _ in range(3)]
    *working, asleep = stores
    assert [store.lead(f"{number}", 60_000) for number, store in enumerate(stores)] == [1, None, None]

    def write(store: Store, number: int) -> None:
        for event in range(5):
            store.add_event(None, f"{number}-{event}")

    call_at_once([partial(write, store, number) for number, store in enumerate(working)])
    assert f"one/changes/{2:010}" not in s3.tags("servers", "one/changes")
    asleep.add_event(None, "awake")
    told = [event.what for event in asleep.events()]
    assert sorted(told) == sorted(["awake", *(f"{n}-{event}" for n in range(2) for event in range(5))])
    assert told[-1] == "awake"
    fresh = Store.open("s3://servers/one")
    assert all(store.events() == asleep.events() for store in (*working, fresh))
    for store in (*stores, fresh):
        store.close()
