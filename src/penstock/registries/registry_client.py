"""Registry client: schemas by their ids, and their registration, in a registry with Confluent's API."""

from __future__ import annotations

import functools
import logging
import math
import ssl
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.bindings.secrets import has_files, refused_login, resolve_setting
from penstock.bindings.types import RegistryBinding
from penstock.errors import BindingError, ExternalSystemError

if TYPE_CHECKING:
    import httpx

__all__ = ["RegisteredSchema", "RegistryClient", "UnknownSchemaError", "get_client"]

_TIMEOUT_S: Final = 10.0
# For how long a schema is asked for while messages wait, and the pauses.
_PATIENCE_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.4
_LONGEST_PAUSE_S: Final = 5.0
_DOUBT_EVERY_S: Final = 60.0
_SHOWN: Final = 200
_MAX_REFERENCES: Final = 100
# Confluent's codes for a subject, a version and a schema that do not exist.
_NOT_THERE: Final = (40401, 40402, 40403)
# It has no handler: what is logged in a worker goes to standard error, and so to the output of the run.
_log: Final = logging.getLogger("penstock.registries")
_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"


class UnknownSchemaError(Exception):
    """The registry has no schema of that id; the message says so. Only formats see it."""


class _Reference(msgspec.Struct, frozen=True):
    name: str
    subject: str
    version: int


class _Schema(msgspec.Struct, frozen=True):
    schema: str
    schemaType: str = "AVRO"  # noqa: N815  # the name in the registry's API
    references: tuple[_Reference, ...] = ()


class _Id(msgspec.Struct, frozen=True):
    id: int


class _Version(msgspec.Struct, frozen=True):
    version: int


class _Problem(msgspec.Struct, frozen=True):
    error_code: int = 0
    message: str = ""


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema of the registry: its text and type (AVRO, JSON or PROTOBUF), and those it refers to, the first first.

    Each of these has its text under the name by which it is referred to.
    """

    text: str
    kind: str
    references: tuple[tuple[str, str], ...] = ()


class RegistryClient:
    """A client of one registry. It keeps every schema that it has read, since ids never change their meaning."""

    def __init__(self, stream: str, registry: RegistryBinding) -> None:
        self._stream: Final = stream
        self._registry: Final = registry
        self._known: dict[int, RegisteredSchema] = {}
        self._lock = threading.Lock()
        self._doubted_s = -math.inf

    def __reduce__(self) -> tuple[Any, ...]:
        return get_client, (self._stream, self._registry)

    def check(self) -> None:
        """Raise ExternalSystemError or BindingError when the registry does not answer as one."""
        self._answer("GET", "/subjects")

    def schema(self, schema_id: int, form: str = "") -> RegisteredSchema:
        """Return the schema of an id, with its texts in a form that the registry has besides the registered one.

        While the registry does not answer, or has trouble, it is asked again for a while. Raises UnknownSchemaError
        when it has no such schema, and ExternalSystemError when it does not come back.
        """
        with self._lock:
            if schema_id not in self._known:
                self._known[schema_id] = self._read_patiently(schema_id, f"?format={form}" if form else "")
            return self._known[schema_id]

    def _read_patiently(self, schema_id: int, query: str) -> RegisteredSchema:
        until_s, pause_s, is_warned = time.monotonic() + _PATIENCE_S, _FIRST_PAUSE_S, False
        while True:
            try:
                return self._read(schema_id, query)
            except UnknownSchemaError:
                # A registry of several servers, or one that was just started, may learn of it a moment later. But
                # messages that name nothing at all must not cost a moment each.
                if time.monotonic() < self._doubted_s + _DOUBT_EVERY_S:
                    raise
                self._doubted_s = time.monotonic()
            except (ExternalSystemError, BindingError) as e:
                # A login that is refused may be one that is being replaced.
                is_passing = isinstance(e, ExternalSystemError) or has_files({"": self._registry.password})
                if not is_passing or time.monotonic() + pause_s > until_s:
                    raise
                if not is_warned:
                    _log.warning(
                        "%s It is asked again for %g s.", e, _PATIENCE_S, extra={"stream": self._stream}
                    )
                is_warned = True
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _read(self, schema_id: int, query: str) -> RegisteredSchema:
        answer = self._answer("GET", f"/schemas/ids/{schema_id}{query}")
        if self._is_unknown(answer):
            raise UnknownSchemaError(f"the registry {self._registry.url} has no schema {schema_id}")
        found = self._parsed(answer, _Schema)
        texts: dict[tuple[str, str, int], str] = {}
        self._add_references(found, query, texts)
        named = tuple((name, text) for (name, _, _), text in texts.items())
        return RegisteredSchema(found.schema, found.schemaType, named)

    def _add_references(self, schema: _Schema, query: str, texts: dict[tuple[str, str, int], str]) -> None:
        """Add the schemas that one refers to, each behind those that it refers to itself."""
        for reference in schema.references:
            place = (reference.name, reference.subject, reference.version)
            if place in texts:
                continue
            if len(texts) >= _MAX_REFERENCES:
                raise UnknownSchemaError(f"the schema refers to more than {_MAX_REFERENCES} others")
            subject = urllib.parse.quote(reference.subject, safe="")
            answer = self._answer("GET", f"/subjects/{subject}/versions/{reference.version}{query}")
            if self._is_unknown(answer):
                raise UnknownSchemaError(
                    f"the registry {self._registry.url} has no version {reference.version} of {reference.subject!r}, "
                    "which the schema refers to"
                )
            found = self._parsed(answer, _Schema)
            self._add_references(found, query, texts)
            texts[place] = found.schema

    def register(
        self, subject: str, text: str, kind: str = "AVRO", references: Sequence[Mapping[str, Any]] = ()
    ) -> int:
        """Register a schema of a type under a subject, unless it is there, and return its id.

        Raises BindingError when the registry refuses it, for example since it is not compatible with an earlier one.
        """
        place = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
        answer = self._answer("POST", place, _posted(text, kind, references))
        if answer.is_success:
            found: _Id = self._parsed(answer, _Id)
            return found.id
        raise BindingError(
            f"Sink {self._stream!r}: the registry {self._registry.url} refuses the schema for the subject {subject!r} "
            f"({_why(answer)}). Change the record so that it is compatible with the subject's schemas, or name "
            "another subject with subject=."
        )

    def register_version(
        self, subject: str, text: str, kind: str, references: Sequence[Mapping[str, Any]]
    ) -> int:
        """Register a schema likewise, and return its version under the subject."""
        self.register(subject, text, kind, references)
        place = f"/subjects/{urllib.parse.quote(subject, safe='')}"
        found: _Version = self._parsed(self._answer("POST", place, _posted(text, kind, references)), _Version)
        return found.version

    def _answer(self, method: str, path: str, body: bytes | None = None) -> httpx.Response:
        """Return an answer that is about the request. Raises for those about the place, the login or the server."""
        # It takes a tenth of a second to load.
        import httpx

        where = f"Stream {self._stream!r}: the schema registry {self._registry.url}"
        again = "when the job is started again, it continues where it was"
        try:
            with httpx.stream(
                method,
                self._registry.url + path,
                content=body,
                headers={"Accept": _CONTENT_TYPE, "Content-Type": _CONTENT_TYPE},
                auth=self._login(),
                timeout=_TIMEOUT_S,
                verify=_tls_context(),
            ) as coming:
                answer = httpx.Response(coming.status_code, content=_content(coming))
        except httpx.TransportError as e:
            raise ExternalSystemError(
                f"{where} cannot be reached ({type(e).__name__}: {e}). Check that it runs, and the address in "
                f"registry=; {again}."
            ) from e
        if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            secrets = {"registry_password": self._registry.password}
            raise (refused_login(secrets) if answer.status_code == HTTPStatus.UNAUTHORIZED else BindingError)(
                f"{where} refuses the login ({answer.status_code}). Set registry_user=USER and "
                "registry_password=env:NAME, and give that user access."
            )
        is_of_request = answer.is_success or answer.is_client_error
        if not is_of_request or answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            raise ExternalSystemError(
                f"{where} answers {answer.status_code} ({_why(answer)}) to {method} {path}. Repair it; {again}."
            )
        return answer

    def _is_unknown(self, answer: httpx.Response) -> bool:
        """Return whether the registry says that it does not have what was asked for.

        Raises ExternalSystemError when a 404 is not the registry's: that of a proxy whose registry is away must not
        make dead letters of all messages.
        """
        if answer.status_code != HTTPStatus.NOT_FOUND:
            return False
        if _problem(answer).error_code in _NOT_THERE:
            return True
        raise ExternalSystemError(
            f"Stream {self._stream!r}: what answers at {self._registry.url} is no schema registry, or not at this path "
            f"(404: {_why(answer)}). Correct registry= in the URI, or wait until the registry is back; when the job is "
            "started again, it continues where it was."
        )

    def _login(self) -> tuple[str, str] | None:
        if self._registry.user is None:
            return None
        secrets = {"registry_password": self._registry.password}
        return self._registry.user, resolve_setting(self._stream, secrets, "registry_password") or ""

    def _parsed(self, answer: httpx.Response, kind: type[Any]) -> Any:
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.MsgspecError as e:
            raise ExternalSystemError(
                f"Stream {self._stream!r}: the server at {self._registry.url} is not a schema registry with "
                f"Confluent's API ({e}). Correct registry= in the URI."
            ) from e


_clients: Final[dict[tuple[str, RegistryBinding], RegistryClient]] = {}


def get_client(stream: str, registry: RegistryBinding) -> RegistryClient:
    """Return the client of this process, which tasks of all micro-batches share."""
    return _clients.setdefault((stream, registry), RegistryClient(stream, registry))


def _posted(text: str, kind: str, references: Sequence[Mapping[str, Any]]) -> bytes:
    body: dict[str, Any] = {"schema": text}
    # Registries without types are those of Avro alone, so that type is not sent.
    if kind != "AVRO":
        body["schemaType"] = kind
    if references:
        body["references"] = references
    return msgspec.json.encode(body)


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """Return the certificates to trust; to load them takes longer than a request."""
    import httpx

    return httpx.create_ssl_context()


def _content(coming: httpx.Response) -> bytes:
    """Return the body of an answer. Raises httpx.ReadTimeout when it takes too long as a whole."""
    import httpx

    until_s, parts = time.monotonic() + _TIMEOUT_S, []
    for part in coming.iter_bytes():
        parts.append(part)
        if time.monotonic() > until_s:
            raise httpx.ReadTimeout(f"the answer has not ended after {_TIMEOUT_S:g} s")
    return b"".join(parts)


def _problem(answer: httpx.Response) -> _Problem:
    try:
        return msgspec.json.decode(answer.content, type=_Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Problem()


def _why(answer: httpx.Response) -> str:
    return (_problem(answer).message or answer.text)[:_SHOWN].strip() or answer.reason_phrase
