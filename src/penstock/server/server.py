"""Server: one process with the manager's loop and the web server, and their graceful shutdown."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import uvicorn

from penstock.base.durable import write_atomically
from penstock.base.version import __version__
from penstock.checkpoints.stored_checkpoint import is_stored
from penstock.checkpoints.stored_home import place_of_home
from penstock.errors import ExternalSystemError, StoreError
from penstock.metrics.addresses import is_loopback
from penstock.server.api.access import (
    AccessError,
    Grant,
    Principal,
    Role,
    TokenBook,
    bind_address,
    check_bind,
    grants_of,
    hash_of,
    new_token,
)
from penstock.server.api.app import create_app
from penstock.server.api.context import Context
from penstock.server.api.guard import Authenticator
from penstock.server.api.models import ServerConfig
from penstock.server.connection_limits import Bounded, CrowdLimits, protocol_for
from penstock.server.dashboard.mount import DashboardMount, dashboard_lifespan
from penstock.server.demo_job import demo_definition, pause_demo, start_or_resume
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.manager.manager import Manager, ManagerSettings
from penstock.server.runs.definitions import Catalog
from penstock.server.runs.directory import ADDRESS_FILE, ServerDirectory, make_private
from penstock.server.runs.processes import process_of
from penstock.server.service.job_resources import Job
from penstock.server.service.service import JobService
from penstock.server.store.engine import sqlite_url
from penstock.server.store.store import Store

__all__ = ["TOKENS_VARIABLE", "Announcement", "ServeSettings", "Started", "serve"]

TOKENS_VARIABLE: Final = "PENSTOCK_SERVER_TOKENS"
"""The environment variable with lines NAME ROLE TOKEN, like the token file. Drivers do not inherit it."""

_REQUESTS_TIMEOUT_S: Final = 5
_WAITING_PER_ADDRESS: Final = 50
_MANAGER_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True)
class ServeSettings:
    """The settings with which the server starts.

    Args:
        bind: HOST:PORT; port 0 chooses a free port.
        jobs: the folders with job definitions.
        home: the folder of the manager.
        shared: the folder of checkpoints and savepoints, or their prefix on an object store, for managers on several
            machines; default: in the home.
        store: the URL of the store, or its prefix on an object store; default: a file in the home.
        tokens: a file with lines NAME ROLE TOKEN.
        hosts: additional names of the server that requests may use.
        tls_certificate: a PEM file with the certificate; requires its key.
        tls_key: a PEM file with the key.
        tls_proxy: a proxy in front of the server terminates TLS, so browsers use https.
        insecure_bind: allow an address that other machines can reach, without tokens or TLS.
        demo: offer the demo job, and submit it in an empty home; default: only without folders of job definitions.
        manager: the settings of the manager.

    """

    bind: str = "127.0.0.1:8081"
    jobs: Sequence[Path] = ()
    home: Path = Path("~/.penstock")
    shared: str | None = None
    store: str | None = None
    tokens: Path | None = None
    hosts: Sequence[str] = ()
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_proxy: bool = False
    insecure_bind: bool = False
    demo: bool | None = None
    manager: ManagerSettings = field(default_factory=ManagerSettings)


class Started(msgspec.Struct, frozen=True):
    """A started server: its URL, the login URL for a browser, and a token for programs of the same user.

    `demo` is the id of the demo job, if it was just submitted or resumed.
    """

    url: str
    login: str
    token: str
    pid: int
    demo: str | None = None


class _Server(uvicorn.Server):
    """A uvicorn server that ends event streams first, since uvicorn waits for open requests."""

    def __init__(self, config: uvicorn.Config, stopping: threading.Event) -> None:
        super().__init__(config)
        self._stopping: Final = stopping

    def handle_exit(self, sig: int, frame: Any) -> None:
        """End event streams, and then the server, on a signal."""
        self._stopping.set()
        super().handle_exit(sig, frame)


def serve(
    settings: ServeSettings,
    environment: Mapping[str, str],
    on_start: Callable[[Started], None],
    on_end: Callable[[Sequence[Job]], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. Jobs continue, and the next server finds them.

    A demo job that a server submitted by itself is paused. `on_start` is called with the started server, `on_end` with
    the jobs that continue.

    Raises AccessError for an unprotected address, HomeError for an unprotected home, ExternalSystemError for an address
    that is not available, StoreError for an unusable store, and JobDefinitionError for missing folders.
    """
    host, port = bind_address(settings.bind)
    tls = _check_tls(settings)
    token = new_token()
    given = _read_grants(settings, environment)
    check_bind(host, tls=tls, tokens=bool(given), insecure=settings.insecure_bind)
    shared = None if settings.shared is None else _shared_place(settings.shared)
    home = ServerDirectory(settings.home.expanduser().absolute(), shared)
    offers_demo = not settings.jobs if settings.demo is None else settings.demo
    catalog = Catalog(settings.jobs, [demo_definition()] if offers_demo else [])
    with contextlib.ExitStack() as stack:
        job_umask = stack.enter_context(_private_umask())
        make_private(home.root)
        listening = stack.enter_context(_listen(host, port))
        store = Store.open(settings.store or sqlite_url(home.store))
        stack.callback(store.close)
        service = JobService(store, catalog, home)
        started = _describe_start(host, listening.getsockname()[1], token, tls=tls)
        if offers_demo:
            started = msgspec.structs.replace(started, demo=start_or_resume(service))
        door = Authenticator(
            TokenBook([*given, Grant(Principal("owner", Role.ADMIN), hash_of(token))]),
            _hosts(host, settings),
            tls or settings.tls_proxy,
            port=listening.getsockname()[1],
        )
        announcement = Announcement(home, started)
        managing = dataclasses.replace(settings.manager, job_umask=job_umask)
        manager = Manager(store, catalog, home, managing, on_lead=announcement.write)
        context = Context(
            service=service,
            door=door,
            config=_config(settings, started, door),
            wake=manager.wake,
        )
        server = _Server(_uvicorn_config(context, settings), context.stopping)
        stack.enter_context(_ignore_signals_again())
        announcement.write_if_alone()
        stack.callback(announcement.remove)
        on_start(started)
        _serve(server, listening, manager, lambda: pause_demo(service, manager.wake))
        if on_end is not None:
            # An unusable store may be why the server ends.
            with contextlib.suppress(StoreError):
                on_end(service.list_jobs([JobStatus.STARTING, JobStatus.RUNNING, JobStatus.RESTARTING]))


def _serve(server: _Server, listening: socket.socket, manager: Manager, last: Callable[[], None]) -> None:
    """Serve, and call `last` after the last request, while the manager is still running."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def manage() -> None:
        try:
            manager.run(stop)
        except BaseException as e:
            # Without its manager, the server would accept requests but never act on them.
            failed.append(e)
            server.should_exit = True

    thread = threading.Thread(target=manage, name="penstock-manager", daemon=True)
    thread.start()
    try:
        server.run(sockets=[listening])
        with contextlib.suppress(StoreError):
            last()
    finally:
        stop.set()
        manager.wake()
        thread.join(_MANAGER_TIMEOUT_S)
    if failed:
        raise failed[0]


class Announcement:
    """The file by which programs of the same user find the server, or the leader if several share a folder."""

    def __init__(self, home: ServerDirectory, started: Started) -> None:
        self._path: Final = home.root / ADDRESS_FILE
        self._content: Final = msgspec.json.encode(started)

    def write_if_alone(self) -> None:
        """Announce this server, unless the announced server is alive."""
        try:
            announced = msgspec.json.decode(self._path.read_bytes(), type=Started)
        except (FileNotFoundError, msgspec.MsgspecError):
            self.write()
            return
        if process_of(announced.pid) is None:
            self.write()

    def write(self) -> None:
        """Announce this server."""
        # Replaced atomically, so that the server can always be found. Because of the umask, only its owner can read it.
        write_atomically(self._path, self._content, durable=False)

    def remove(self) -> None:
        """Withdraw the announcement of this server."""
        # Another server may have replaced it since.
        if self._path.exists() and self._path.read_bytes() == self._content:
            self._path.unlink()


@contextlib.contextmanager
def _private_umask() -> Iterator[int]:
    """Make new files of this process readable only by its user. Yields the previous umask."""
    before = os.umask(0o077)
    try:
        yield before
    finally:
        os.umask(before)


@contextlib.contextmanager
def _ignore_signals_again() -> Iterator[None]:
    """Ignore SIGTERM and SIGINT, which uvicorn raises again after its shutdown, when they have been handled."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _uvicorn_config(context: Context, settings: ServeSettings) -> uvicorn.Config:
    shared = settings.tls_proxy or is_loopback(bind_address(settings.bind)[0])
    limits = CrowdLimits(waiting_of_one=None if shared else _WAITING_PER_ADDRESS)
    return uvicorn.Config(
        Bounded(create_app(context, [DashboardMount(context)], dashboard_lifespan), limits.working),
        log_config=None,
        http=protocol_for(limits),
        # Access logs would contain the token of the login URL.
        access_log=False,
        log_level="warning",
        server_header=False,
        # Any client can forge the headers of proxies.
        proxy_headers=False,
        timeout_graceful_shutdown=_REQUESTS_TIMEOUT_S,
        ssl_certfile=None if settings.tls_certificate is None else str(settings.tls_certificate),
        ssl_keyfile=None if settings.tls_key is None else str(settings.tls_key),
    )


def _shared_place(shared: str) -> Path | str:
    """Return a folder, or the URI of a prefix on an object store. Raises CheckpointError if that names none."""
    return place_of_home(shared).shown if is_stored(shared) else Path(shared).expanduser().absolute()


def _check_tls(settings: ServeSettings) -> bool:
    files = (settings.tls_certificate, settings.tls_key)
    if (files[0] is None) != (files[1] is None):
        raise AccessError("TLS needs a certificate and its key. Pass both --tls-cert and --tls-key.")
    for file in files:
        if file is not None and not file.is_file():
            raise AccessError(f"The TLS file {file} does not exist. Correct its path.")
    return files[0] is not None


def _read_grants(settings: ServeSettings, environment: Mapping[str, str]) -> list[Grant]:
    grants: list[Grant] = []
    if settings.tokens is not None:
        try:
            lines = settings.tokens.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as e:
            raise AccessError(
                f"The token file {settings.tokens} cannot be read: {e}. Correct its path or its permissions."
            ) from None
        grants += grants_of(lines, str(settings.tokens))
    grants += grants_of(environment.get(TOKENS_VARIABLE, "").splitlines(), TOKENS_VARIABLE)
    return grants


def _hosts(host: str, settings: ServeSettings) -> frozenset[str]:
    names = {_bracketed(host), *settings.hosts}
    if is_loopback(host):
        names |= {"localhost", "127.0.0.1", "[::1]"}
    return frozenset(name.lower() for name in names)


def _describe_start(host: str, port: int, token: str, *, tls: bool) -> Started:
    # Browsers cannot open the wildcard address.
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # it is not bound here
    url = f"{'https' if tls else 'http'}://{_bracketed(shown)}:{port}"
    return Started(url, f"{url}/login?token={token}", token, os.getpid())


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _config(settings: ServeSettings, started: Started, door: Authenticator) -> ServerConfig:
    return ServerConfig(
        version=__version__,
        url=started.url,
        tls=door.tls,
        hosts=sorted(door.hosts),
        store=_kind_of_store(settings.store or ""),
        poll_s=settings.manager.poll_s,
        max_body_bytes=door.max_body_bytes,
    )


def _kind_of_store(url: str) -> Literal["sqlite", "postgresql", "object store"]:
    if is_stored(url):
        return "object store"
    return "postgresql" if url.startswith("postgresql") else "sqlite"


@contextlib.contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as e:
        raise ExternalSystemError(
            f"The address {host}:{port} is not available: {e.strerror or e}. Choose another one with --bind, or end "
            "the program that uses it."
        ) from None
    with listening:
        yield listening
