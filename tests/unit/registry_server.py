"""A schema registry for tests, which keeps the contract of Confluent's API as far as clients use it."""

from __future__ import annotations

import base64
import json
import re
import tempfile
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

__all__ = ["RegistryServer", "descriptor_of", "running_registry"]


class RegistryServer:
    """Schemas by id and by subject. `asked` has the method and the path of each request."""

    def __init__(self, url: str, login: tuple[str, str] | None) -> None:
        self.url = url
        self.login = login
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self._lock = threading.Lock()

    def register(self, subject: str, schema: Any, **more: Any) -> int:
        """Register a schema as the API does, and return its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        with self._lock:
            found = {"schema": text, **more}
            known = next((number for number, one in self.schemas.items() if one == found), None)
            number = known or len(self.schemas) + 1
            self.schemas[number] = found
            versions = self.subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
            return number

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return the status and the body of an answer."""
        path, _, query = path.partition("?")
        status, found = self._answer(method, path, body)
        if query == "format=serialized" and "schema" in found and found.get("schemaType") == "PROTOBUF":
            found = {**found, "schema": self.serialized(found)}
        return status, found

    def _answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if found := re.fullmatch(r"/schemas/ids/([0-9]+)", path):
            schema = self.schemas.get(int(found[1]))
            return (200, schema) if schema else (404, {"error_code": 40403, "message": "Schema not found"})
        if (found := re.fullmatch(r"/subjects/([^/]+)", path)) and method == "POST":
            subject = urllib.parse.unquote(found[1])
            for version, number in enumerate(self.subjects.get(subject, []), 1):
                if self.schemas[number]["schema"] == body["schema"]:
                    return 200, {"subject": subject, "version": version, "id": number}
            return 404, {"error_code": 40403, "message": "Schema not found"}
        if path == "/subjects":
            return 200, list(self.subjects)
        if found := re.fullmatch(r"/subjects/([^/]+)/versions(?:/([0-9]+))?", path):
            subject = urllib.parse.unquote(found[1])
            if method == "POST":
                return self._posted(subject, body)
            versions = self.subjects.get(subject, [])
            version = int(found[2] or 0)
            if not 1 <= version <= len(versions):
                return 404, {"error_code": 40402, "message": "Version not found"}
            number = versions[version - 1]
            return 200, {"subject": subject, "version": version, "id": number, **self.schemas[number]}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _posted(self, subject: str, body: Any) -> tuple[int, Any]:
        kind = body.get("schemaType", "AVRO")
        typed = {name: body[name] for name in ("schemaType", "references") if name in body}
        if kind == "AVRO" and not self._grows(subject, body["schema"]):
            return 409, {"error_code": 409, "message": "Schema is incompatible with an earlier one"}
        if kind == "JSON" and not self._stays_closed(subject, body["schema"]):
            return 409, {"error_code": 409, "message": "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"}
        return 200, {"id": self.register(subject, body["schema"], **typed)}

    def serialized(self, found: dict[str, Any]) -> str:
        """Return a protobuf schema as the descriptor of its file, in base64, as Confluent's registry does."""
        if "{" not in found["schema"]:
            return str(found["schema"])
        files: dict[str, str] = {}

        def add(references: list[dict[str, Any]]) -> None:
            for one in references:
                inner = self.schemas[self.subjects[one["subject"]][one["version"] - 1]]
                files[one["name"]] = inner["schema"]
                add(inner.get("references", []))

        add(found.get("references", []))
        return base64.b64encode(descriptor_of(found["schema"], files)).decode()

    def _grows(self, subject: str, text: str) -> bool:
        """Whether an Avro schema can read what the subject's earlier ones wrote."""
        fields = json.loads(text)["fields"]
        for number in self.subjects.get(subject, []):
            old = {field["name"]: field for field in json.loads(self.schemas[number]["schema"])["fields"]}
            if any(field["name"] not in old and "default" not in field for field in fields):
                return False
        return True

    def _stays_closed(self, subject: str, text: str) -> bool:
        """Whether a JSON Schema requires no more than the subject's earlier ones."""
        required = set(json.loads(text).get("required", ()))
        earlier = [json.loads(self.schemas[number]["schema"]) for number in self.subjects.get(subject, [])]
        return all(required <= set(old["properties"]) for old in earlier)


def descriptor_of(text: str, imported: dict[str, str]) -> bytes:
    """Return the descriptor of a .proto file, compiled by protoc with the files that it imports."""
    with tempfile.TemporaryDirectory() as folder:
        for name, one in {"default.proto": text, **imported}.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(one)
        well_known = Path(grpc_tools.__file__).with_name("_proto")
        arguments = [f"-I{folder}", f"-I{well_known}", f"--descriptor_set_out={folder}/set", "default.proto"]
        assert protoc.main(["protoc", *arguments]) == 0
        [file] = FileDescriptorSet.FromString(Path(folder, "set").read_bytes()).file
        return bytes(file.SerializeToString())


@contextmanager
def running_registry(login: tuple[str, str] | None = None) -> Iterator[RegistryServer]:
    """Run a registry on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            registry.asked.append(f"{self.command} {self.path}")
            status, found = registry.answer(self.command, self.path, body)
            if registry.login is not None:
                expected = base64.b64encode(":".join(registry.login).encode()).decode()
                if self.headers.get("Authorization") != f"Basic {expected}":
                    status, found = 401, {"error_code": 401, "message": "Unauthorized"}
            content = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET: Callable[..., None] = _answer
        do_POST: Callable[..., None] = _answer

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry = RegistryServer(f"http://127.0.0.1:{server.server_port}", login)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield registry
        server.shutdown()
