"""The server in this process, with a real socket: how it starts, whom it lets in, and how it ends."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import small_driver
from audited_opens import opened
from left_drivers import kill_left_drivers

from penstock.client.discovery import Address
from penstock.client.http import Server
from penstock.errors import ExternalSystemError, JobDefinitionError
from penstock.server import demo_job
from penstock.server.api.access import AccessError, hash_of, new_token
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.manager import manager as manager_module
from penstock.server.manager.manager import Manager
from penstock.server.runs.directory import ADDRESS_FILE, HomeError, ServerDirectory, make_private
from penstock.server.server import Announcement, ServeSettings, Started, serve
from penstock.server.unserved import open_unserved_home


@pytest.fixture
def settings(tmp_path: Path) -> ServeSettings:
    (tmp_path / "jobs").mkdir()
    return ServeSettings(bind="127.0.0.1:0", jobs=[tmp_path / "jobs"], home=tmp_path / "home")


def served(
    settings: ServeSettings,
    ask: Callable[[Started], Any],
    environment: Mapping[str, str] | None = None,
    ends_by: int = signal.SIGTERM,
    on_end: Callable[[Any], None] | None = None,
) -> Any:
    """Serve until a question is answered; gives the answer."""
    answers: list[Any] = []

    def asking(started: Started) -> None:
        try:
            answers.append(ask(started))
        except BaseException as e:
            answers.append(e)
        finally:
            os.kill(os.getpid(), ends_by)

    threads: list[threading.Thread] = []

    def on_start(started: Started) -> None:
        threads.append(threading.Thread(target=asking, args=[started]))
        threads[0].start()

    serve(settings, environment or {}, on_start, on_end)
    threads[0].join()
    if isinstance(answers[0], BaseException):
        raise answers[0]
    return answers[0]


def get(started: Started, token: str, path: str = "/v1/me", **more: Any) -> httpx.Response:
    return httpx.get(started.url + path, headers={"Authorization": f"Bearer {token}"}, timeout=30, **more)


@pytest.mark.parametrize("ends_by", [signal.SIGTERM, signal.SIGINT])
def test_it_starts_lets_in_and_ends(settings: ServeSettings, ends_by: int) -> None:
    """By its own token and those that it is given; programs of the same user find it; signals end it in order."""
    one, two = new_token(), new_token()
    file = settings.home.parent / "tokens"
    file.write_text(f"ann operator {hash_of(one)}\n")
    before = signal.getsignal(signal.SIGTERM)

    def ask(started: Started) -> list[Any]:
        path = settings.home / ADDRESS_FILE
        assert msgspec.json.decode(path.read_bytes(), type=Started) == started
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(settings.home.stat().st_mode) == 0o700
        names = [get(started, token).json()["name"] for token in (started.token, one, two)]
        with httpx.Client(timeout=30) as browser:
            assert browser.get(started.login).status_code == 303
            names.append(browser.get(f"{started.url}/v1/me").json()["name"])
        return [*names, get(started, new_token()).status_code]

    found = served(
        dataclasses.replace(settings, tokens=file),
        ask,
        {"PENSTOCK_SERVER_TOKENS": f"bob viewer {two}"},
        ends_by,
    )
    assert found == ["owner", "ann", "bob", "owner", 401]
    assert not (settings.home / ADDRESS_FILE).exists()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("ends_by", [signal.SIGTERM, signal.SIGINT])
def test_the_demo_ends_with_its_server_and_other_jobs_are_named(
    settings: ServeSettings, monkeypatch: pytest.MonkeyPatch, ends_by: int
) -> None:
    """Nobody has asked for the demo; it continues with the next server."""
    monkeypatch.setattr(manager_module, "_DRIVER", (sys.executable, small_driver.__file__))
    monkeypatch.setattr(demo_job, "_FILE", settings.home.parent / "jobs" / "warm_rooms.py")
    for name in ("warm_rooms", "rooms"):
        (settings.home.parent / "jobs" / f"{name}.py").write_text("works")
    (settings.home.parent / "jobs" / "rooms.yaml").write_text("job: rooms.py\n")
    settings = dataclasses.replace(settings, demo=True)
    goes_on: list[list[str]] = []

    def status(started: Started, job: str) -> str:
        found: str = get(started, started.token, f"/v1/jobs/{job}").json()["status"]
        return found

    def ask(started: Started) -> tuple[str, str]:
        assert started.demo is not None
        header = {"Authorization": f"Bearer {started.token}"}
        given = {"definition": "rooms"}
        jobs = httpx.get(f"{started.url}/v1/jobs", headers=header).json()["items"]
        rooms = next((job["id"] for job in jobs if job["definition"] == "rooms"), None)
        rooms = rooms or httpx.post(f"{started.url}/v1/jobs", json=given, headers=header).json()["job"]
        deadline_s = time.monotonic() + 30
        while {status(started, job) for job in (started.demo, rooms)} != {"RUNNING"}:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        return started.demo, rooms

    try:
        first = served(
            settings, ask, ends_by=ends_by, on_end=lambda jobs: goes_on.append([j.id for j in jobs])
        )
        with open_unserved_home(settings.home) as home:
            assert {job.id: job.status for job in home.jobs(tuple(JobStatus))} == {
                first[0]: JobStatus.PAUSED,
                first[1]: JobStatus.RUNNING,
            }
        assert goes_on == [[first[1]]]
        assert served(settings, ask, ends_by=ends_by) == first
    finally:
        kill_left_drivers(settings.home)


def test_a_home_that_was_there_becomes_private(settings: ServeSettings) -> None:
    """So do all files that the server writes; what jobs write is as it would be without a server."""
    settings.home.mkdir(mode=0o755)
    settings.home.chmod(0o755)
    before = os.umask(0o022)
    try:

        def ask(started: Started) -> list[int]:
            assert get(started, started.token).status_code == 200
            modes = [stat.S_IMODE(path.stat().st_mode) for path in settings.home.rglob("*")]
            return [stat.S_IMODE(settings.home.stat().st_mode), *modes]

        root, *inside = served(settings, ask)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert root == 0o700
    assert inside
    assert not [oct(mode) for mode in inside if mode & 0o077]


def test_a_home_of_somebody_else_must_be_closed_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody but its owner can close it; a volume that belongs to the group of the server may stay as it is."""

    def refuse(self: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    for mode, is_closed in ((0o755, False), (0o777, False), (0o770, True), (0o700, True)):
        home = tmp_path / str(mode)
        home.mkdir()
        os.chmod(home, mode)  # noqa: PTH101  # the method refuses here
        if is_closed:
            make_private(home)
        else:
            with pytest.raises(HomeError, match=r"belongs to another user.*--home .*/server"):
                make_private(home)


def test_of_two_servers_the_one_that_leads_is_found(settings: ServeSettings) -> None:
    """The second leaves the announcement of the first alone until it leads."""
    path = settings.home / ADDRESS_FILE

    def announced() -> Started:
        return msgspec.json.decode(path.read_bytes(), type=Started)

    settings.home.mkdir()
    # One that has died has left it.
    path.write_bytes(msgspec.json.encode(Started("http://127.0.0.1:1", "", "", 2**22 + 1)))

    first_home = ServerDirectory(settings.home)
    first, second = (
        Announcement(first_home, Started(f"http://127.0.0.1:{port}", "", "", os.getpid())) for port in (2, 3)
    )
    first.write_if_alone()
    assert announced().url.endswith(":2")
    second.write_if_alone()
    assert announced().url.endswith(":2")
    second.write()
    first.remove()
    assert announced().url.endswith(":3")
    second.remove()
    assert not path.exists()


def test_a_server_that_announces_itself_again_can_be_found_meanwhile(settings: ServeSettings) -> None:
    """It does when it starts and when its manager begins to lead; the file is replaced and never written in place."""
    settings.home.mkdir()
    path = settings.home / ADDRESS_FILE
    announcement = Announcement(
        ServerDirectory(settings.home), Started("http://127.0.0.1:2", "", "", os.getpid())
    )
    announcement.write()
    with opened() as names:
        announcement.write()
    assert names
    assert str(path) not in names
    assert msgspec.json.decode(path.read_bytes(), type=Started).url.endswith(":2")
    announcement.remove()
    assert list(settings.home.iterdir()) == []


def test_a_stream_does_not_hold_up_the_end(settings: ServeSettings) -> None:
    """It ends with the server, in order."""
    read: list[str] = []

    def ask(started: Started) -> threading.Thread:
        begun = threading.Event()

        def follow() -> None:
            header = {"Authorization": f"Bearer {started.token}"}
            with httpx.stream("GET", f"{started.url}/v1/events/stream", headers=header, timeout=60) as events:
                for text in events.iter_text():
                    read.append(text)
                    begun.set()
            read.append("the end")

        thread = threading.Thread(target=follow)
        thread.start()
        assert begun.wait(30)
        return thread

    served(settings, ask).join(30)
    assert read[-1] == "the end"


def test_it_speaks_tls(settings: ServeSettings, tmp_path: Path) -> None:
    """Then cookies are for https only, and so is the server; the command line asks one whose certificate it trusts."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate, and is not there")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *files], check=True, capture_output=True)
    secure = dataclasses.replace(settings, tls_certificate=certificate, tls_key=key)

    def ask(started: Started) -> httpx.Response:
        assert started.url.startswith("https://")
        with Server(Address(started.url, started.token, certificate)) as trusting:
            assert trusting.get("/v1/me") == {"name": "owner", "role": "admin"}
        with (
            Server(Address(started.url, started.token)) as wary,
            pytest.raises(ExternalSystemError, match="certificate"),
        ):
            wary.get("/v1/me")
        return httpx.get(started.login, verify=False, timeout=30)

    answer = served(secure, ask)
    assert "Secure" in answer.headers["Set-Cookie"]
    assert "Strict-Transport-Security" in answer.headers


def test_behind_a_proxy_pages_come_by_https(settings: ServeSettings) -> None:
    """From the host that is named."""
    proxied = dataclasses.replace(settings, hosts=["penstock.example.org"], tls_proxy=True)

    def ask(started: Started) -> list[int]:
        return [
            httpx.delete(
                f"{started.url}/v1/session",
                headers={
                    "Authorization": f"Bearer {started.token}",
                    "Host": "penstock.example.org",
                    "Origin": f"{scheme}://penstock.example.org",
                },
                timeout=30,
            ).status_code
            for scheme in ("https", "http")
        ]

    assert served(proxied, ask) == [204, 403]


def test_a_manager_that_fails_ends_the_server(
    settings: ServeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its error: a server alone would take wishes that nobody grants."""

    def run(self: Manager, stop: threading.Event) -> None:
        raise RuntimeError("the manager is broken")

    monkeypatch.setattr(Manager, "run", run)
    with pytest.raises(RuntimeError, match="the manager is broken"):
        serve(settings, {}, lambda _: None)


def test_what_is_wrong_is_told_before_anything_begins(settings: ServeSettings, tmp_path: Path) -> None:
    """Addresses, folders, tokens, certificates."""

    def start(environment: Mapping[str, str] | None = None, **changes: Any) -> None:
        serve(
            dataclasses.replace(settings, **changes), environment or {}, lambda _: pytest.fail("it started")
        )

    with pytest.raises(AccessError, match="no tokens"):
        start(bind="0.0.0.0:0")
    with pytest.raises(AccessError, match="no TLS"):
        start({"PENSTOCK_SERVER_TOKENS": f"ann admin {new_token()}"}, bind="0.0.0.0:0")
    with pytest.raises(AccessError, match="Line 1 of PENSTOCK_SERVER_TOKENS"):
        start({"PENSTOCK_SERVER_TOKENS": "ann king x"})
    with pytest.raises(AccessError, match="cannot be read"):
        start(tokens=tmp_path / "none")
    with pytest.raises(AccessError, match="Pass both"):
        start(tls_key=tmp_path / "none")
    with pytest.raises(AccessError, match=r"The TLS file .* does not exist"):
        start(tls_key=tmp_path / "none", tls_certificate=tmp_path / "none")
    with pytest.raises(JobDefinitionError, match=r"The folder .* does not exist"):
        start(jobs=[tmp_path / "none"])
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ExternalSystemError, match="is not available"),
    ):
        start(bind=f"127.0.0.1:{taken.getsockname()[1]}")
    assert not (settings.home / "store.db").exists()


def test_streams_of_clients_that_are_gone_are_closed(settings: ServeSettings) -> None:
    """More may come and go than may be open at once."""

    def ask(started: Started) -> list[int]:
        statuses = []
        header = {"Authorization": f"Bearer {started.token}"}
        with httpx.Client(base_url=started.url, headers=header, timeout=30) as client:
            for _ in range(60):
                with client.stream("GET", "/v1/events/stream") as events:
                    statuses.append(events.status_code)
                time.sleep(0.02)
        return statuses

    assert served(settings, ask) == [200] * 60


def test_a_server_without_folders_offers_a_demo(
    settings: ServeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And submits it in an empty home; not with folders, nor if an option forbids it."""
    # The job itself is not to be started.
    monkeypatch.setattr(Manager, "run", lambda _, stop: stop.wait())

    def ask(started: Started) -> tuple[Started, list[str], int]:
        definitions = get(started, started.token, "/v1/definitions").json()["items"]
        jobs = get(started, started.token, "/v1/jobs").json()["items"]
        return started, [one["id"] for one in definitions], len(jobs)

    for more, offered, submitted in (
        ({}, [], 0),
        ({"jobs": (), "demo": False}, [], 0),
        ({"demo": True}, ["demo"], 1),
        ({"jobs": ()}, ["demo"], 1),
    ):
        started, definitions, jobs = served(dataclasses.replace(settings, **more), ask)
        assert (definitions, jobs) == (offered, submitted)
        assert (started.demo is not None) == bool(offered)
