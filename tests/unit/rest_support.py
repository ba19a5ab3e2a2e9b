"""The REST app in this process, over a service on SQLite, with a token for each role."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from empty_stores import open_store
from fastapi import FastAPI
from fastapi.testclient import TestClient
from rooms_job import rooms

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.described_graph import GRAPH_FILE
from penstock.checkpoints.described_state import STATE_FILE
from penstock.commands.command_catalog import CONTROL_FILE
from penstock.jobs.compile import compile_job
from penstock.jobs.requests import Answer, Request
from penstock.jobs.restore import declared_state
from penstock.jobs.settings import RunSettings
from penstock.server.api.access import Grant, Principal, Role, TokenBook, hash_of
from penstock.server.api.app import create_app
from penstock.server.api.context import Context
from penstock.server.api.guard import Authenticator
from penstock.server.api.models import ServerConfig
from penstock.server.manager.operations import OperationWorker
from penstock.server.runs.definitions import Catalog
from penstock.server.runs.directory import ServerDirectory
from penstock.server.runs.processes import Processes
from penstock.server.service.service import JobService
from penstock.server.store.row_types import JobRow

HOST = "127.0.0.1:8081"
TOKENS = {role: f"{role}-token-0123456789-0123456789-abcdef" for role in Role}


class RestPlace:
    """A home with a definition `small`, a service, and the app."""

    def __init__(self, root: Path, max_body_bytes: int = 1 << 16) -> None:
        self.root = root
        self.definitions = root / "definitions"
        self.definitions.mkdir()
        self.define("small", "restart: none")
        self.home = ServerDirectory(root / "home")
        self.store = open_store(self.home.store)
        self.catalog = Catalog([self.definitions])
        self.service = JobService(self.store, self.catalog, self.home)
        self.wakes = 0
        grants = [Grant(Principal(f"{role}-person", role), hash_of(token)) for role, token in TOKENS.items()]
        self.door = Authenticator(
            TokenBook(grants), frozenset({"127.0.0.1", "localhost", "[::1]"}), max_body_bytes=max_body_bytes
        )
        config = ServerConfig(
            version="0",
            url=f"http://{HOST}",
            tls=False,
            hosts=sorted(self.door.hosts),
            store="sqlite",
            poll_s=0.5,
            max_body_bytes=max_body_bytes,
        )
        self.context = Context(self.service, self.door, config, self.wake)
        self.serve(create_app(self.context))

    def operator(self) -> OperationWorker:
        """What carries out operations for a manager. Here none is sent to a run."""

        def send(job: JobRow, request: Request) -> None:
            raise AssertionError(f"{request} was sent to {job.id}")

        def answer_of(job: JobRow, request: str) -> Answer | None:
            raise AssertionError(f"an answer of {job.id} to {request} was wanted")

        return OperationWorker(self.store, self.home, send, answer_of, Processes(-1))

    def serve(self, app: FastAPI) -> None:
        """Let an app answer, in one loop with what runs while a server runs; each request would have a loop else."""
        self.app = app
        self.client = TestClient(app, f"http://{HOST}", follow_redirects=False, raise_server_exceptions=False)
        self.client.__enter__()

    def wake(self) -> None:
        self.wakes += 1

    def define(self, name: str, more: str) -> None:
        (self.definitions / f"{name}.py").write_text("works")
        (self.definitions / f"{name}.yaml").write_text(f"job: {name}.py\n{more}\n")

    def ask(
        self,
        method: str,
        path: str,
        role: Role | None = Role.ADMIN,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Any:
        known = {} if role is None else {"Authorization": f"Bearer {TOKENS[role]}"}
        return self.client.request(method, path, headers={**known, **(headers or {})}, **more)

    def submit(self, definition: str = "small", **more: Any) -> str:
        answer = self.ask("POST", "/v1/jobs", json={"definition": definition, **more})
        assert answer.status_code == 201, answer.text
        job_id: str = answer.json()["job"]
        return job_id

    def begin(self, job_id: str, **bindings: str) -> Checkpoint:
        """Write what a driver writes at its start, of a job with one step, into the checkpoint of a job."""
        checkpoint = Checkpoint.open(str(self.service.checkpoint(job_id)))
        source = self.root / "in"
        source.mkdir(exist_ok=True)
        given = {"readings-0": f"jsonl:{source}", **bindings}
        bound = compile_job(rooms(), RunSettings(bindings=given, parallelism=2), checkpoint)
        checkpoint.save(CONTROL_FILE, bound.control)
        checkpoint.save(GRAPH_FILE, bound.graph)
        checkpoint.save(STATE_FILE, declared_state(rooms()))
        return checkpoint

    def close(self) -> None:
        self.client.__exit__()
        self.store.close()
