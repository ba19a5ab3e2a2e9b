"""Objects: one object of an object store or a web server, read whole, within bounds of size and time.

Endpoint and credentials come from the environment of the process, never from the URI (docs/object_stores.md).
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from penstock.errors import ExternalSystemError
from penstock.sources.aws_profile import ProfileError, aws_profile

if TYPE_CHECKING:
    from obstore.store import (
        ClientConfig,
        ObjectStore,
        RetryConfig,
        S3Config,
    )

__all__ = ["OBJECT_SCHEMES", "ObjectError", "read_object"]

OBJECT_SCHEMES: Final = ("s3", "s3a", "gs", "az", "abfs", "http", "https")
"""What the URI of an object begins with."""

_S3: Final = ("s3", "s3a")
_WEB: Final = ("http", "https")

# With these a host that never answers is given up in 6 to 7 s, and no request begins later than 5 s.
_CONNECT_TIMEOUT: Final = dt.timedelta(seconds=3)
_READ_TIMEOUT: Final = dt.timedelta(seconds=3)
_RETRY: Final[RetryConfig] = {
    "max_retries": 2,
    "retry_timeout": dt.timedelta(seconds=4),
    "backoff": {
        "init_backoff": dt.timedelta(milliseconds=200),
        "max_backoff": dt.timedelta(seconds=1),
        "base": 2,
    },
}
_CHUNK_BYTES: Final = 256 * 1024

_S3_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_AZURE_ENDPOINTS: Final = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_BUCKET: Final = re.compile(r"[\w.-]+")
_HOST: Final = re.compile(r"([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?")
_ENDPOINT: Final = re.compile(rf"https?://{_HOST.pattern}(/[^\s?#@]*)?")
_TRUE: Final = ("1", "true", "yes", "on", "y", "t")

_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


class ObjectError(ExternalSystemError):
    """An object cannot be read. The message names it and the reason, and has no secret."""


def read_object(uri: str, most_bytes: int, *, timeout_ms: int = 10_000) -> bytes:
    """The content of an object, such as `s3://bucket/path/name`, `gs://`, `az://container/name` or `https://`.

    Args:
        uri: where it is.
        most_bytes: the largest size that is taken; a larger object is refused before its content is read.
        timeout_ms: how long one request may take, content included. An unreachable host takes less; all together
            is at most 5 s longer.

    Raises:
        ObjectError: there is no such bucket or object, access is denied, the host does not answer, the object is
            too large, or the URI or the environment is malformed.

    """
    place = _place_of(uri)
    try:
        store = _store_of(place, os.environ, timeout_ms)
        return _content(store, place, most_bytes)
    except ObjectError:
        raise
    except (_UnreadableError, ProfileError) as e:
        raise ObjectError(f"{place.shown!r} cannot be read: {e}") from None
    except BaseException as e:
        # A panic of obstore is no Exception; a line break in a credential is enough for one.
        if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
            raise
        # The cause is left out, since it may hold what the message must not.
        raise ObjectError(f"{place.shown!r} cannot be read: {_reason(e, place)}") from None


class _UnreadableError(Exception):
    """Why an object cannot be read, as the end of a sentence."""


@dataclass(frozen=True)
class _Place:
    """Where an object is: `host` is the bucket, the container, or the web server with its port."""

    scheme: str
    host: str
    name: str

    @property
    def shown(self) -> str:
        """The URI for messages."""
        return f"{self.scheme}://{self.host}/{self.name}"

    @property
    def family(self) -> str:
        """The kind of store: s3, gs, az or https."""
        if self.scheme in _S3:
            return "s3"
        if self.scheme in _WEB:
            return "https"
        return "gs" if self.scheme == "gs" else "az"


def _place_of(uri: str) -> _Place:
    scheme, _, rest = uri.partition("://")
    host, _, name = rest.partition("/")
    web = scheme in _WEB
    if "@" in host:
        shown = f"{scheme}://***@{host.rpartition('@')[2]}/..."
        raise ObjectError(f"{shown!r} has a user or account; these belong into the environment of the job")
    if web and "?" in rest:
        shown = f"{scheme}://{rest.partition('?')[0]}"
        raise ObjectError(f"{shown!r} has a query, which would end up in logs; give an address without one")
    # obstore would leave out a slash at either end, and read something else.
    whole = name and name.strip("/") == name and (_HOST if web else _BUCKET).fullmatch(host)
    if scheme not in OBJECT_SCHEMES or not whole:
        raise ObjectError(f"{uri!r} names no object; it must be like s3://BUCKET/NAME or https://HOST/NAME")
    return _Place(scheme, host, unquote(name) if web else name)


def _store_of(place: _Place, environ: Mapping[str, str], timeout_ms: int) -> ObjectStore:
    # Jobs without object stores need not load it.
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    client: ClientConfig = {
        "allow_http": _plain_http(place, environ),
        "connect_timeout": _CONNECT_TIMEOUT,
        "read_timeout": _READ_TIMEOUT,
        "timeout": dt.timedelta(milliseconds=timeout_ms),
    }
    more: dict[str, Any] = {"client_options": client, "retry_config": _RETRY}
    match place.family:
        case "s3":
            return S3Store(place.host, config=_s3_config(place.host, environ), **more)
        case "gs":
            return GCSStore(place.host, **more)
        case "az":
            return AzureStore(place.host, **more)
        case _:
            return HTTPStore.from_url(f"{place.scheme}://{place.host}", **more)


def _plain_http(place: _Place, environ: Mapping[str, str]) -> bool:
    """Whether the endpoint says http; everything else is encrypted."""
    if place.family == "s3":
        return _endpoint(_S3_ENDPOINTS, environ).startswith("http:")
    if place.family == "gs":
        return _endpoint(("GOOGLE_BASE_URL",), environ).startswith("http:")
    if place.family == "az":
        emulator = environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in _TRUE
        return emulator or _endpoint(_AZURE_ENDPOINTS, environ).startswith("http:")
    return place.scheme == "http"


def _endpoint(variables: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """The endpoint that the first of these variables gives, "" for the provider's own."""
    for variable in variables:
        if variable in environ:
            if not _ENDPOINT.fullmatch(environ[variable]):
                raise _UnreadableError(f"{variable} of the job is no address like https://HOST:PORT")
            return environ[variable]
    return ""


def _s3_config(bucket: str, environ: Mapping[str, str]) -> S3Config:
    """What obstore does not take from the environment as users of other tools expect."""
    config: S3Config = {}
    if environ.get("AWS_PROFILE") and not environ.get("AWS_ACCESS_KEY_ID"):
        profile = aws_profile(environ)
        config = {
            "access_key_id": profile.access_key_id,
            "secret_access_key": profile.secret_access_key,
        }
        if profile.session_token:
            config["session_token"] = profile.session_token
        if profile.region and not environ.get("AWS_REGION"):
            config["region"] = profile.region
    if endpoint := _endpoint(_S3_ENDPOINTS, environ):
        scheme, _, host = endpoint.partition("://")
        hosted = environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in _TRUE
        if hosted and not host.startswith(f"{bucket}."):
            # obstore wants the bucket in the endpoint, but there is one endpoint for all buckets of a job.
            endpoint = f"{scheme}://{bucket}.{host}"
        # obstore would prefer the variable of the service to an endpoint that is given here.
        config["endpoint"] = config["aws_endpoint_url_s3"] = endpoint
    return config


def _content(store: ObjectStore, place: _Place, most_bytes: int) -> bytes:
    import obstore

    found = obstore.get(store, place.name)
    content = bytearray()
    too_large = found.meta["size"] > most_bytes
    if not too_large:
        for chunk in found.stream(_CHUNK_BYTES):
            content += chunk
            if too_large := len(content) > most_bytes:
                break
    if too_large:
        raise ObjectError(f"{place.shown!r} is larger than {most_bytes} bytes")
    return bytes(content)


# The first that stands in an error of obstore tells what is wrong. Its own words are not passed on: they have whole
# answers of servers, and addresses with signatures.
_KNOWN: Final = (
    ("Connection refused", "{server} does not answer: connection refused"),
    ("dns error", "{server} does not answer: there is no host of this name"),
    ("certificate", "the certificate of {server} is not trusted"),
    ("InvalidContentType", "{server} does not speak TLS; its address may have to begin with http://"),
    ("kind: Timeout", "{server} does not answer in time"),
    ("kind: Connect", "{server} does not answer"),
    ("kind: Interrupted", "{server} broke the connection"),
    # What was missing behind a break is asked for once more, which not all understand.
    ("RangeNotSupported", "{server} broke the connection"),
    ("Content-Range", "{server} broke the connection"),
    ("incorrectly configured region", "the bucket is in another region; set AWS_REGION"),
    ("Content-Length Header missing", "{server} does not say how large it is"),
    ("Account must be specified", "no account is given; set AZURE_STORAGE_ACCOUNT_NAME"),
    ("redential", "the credentials of the job cannot be used; set {credentials}"),
)
_ASKED: Final = re.compile(r" (?:GET|HEAD|PUT|POST) https?://(?:[^/\s@]*@)?([\w.:\[\]-]+)")
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound")
_METADATA: Final = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "/latest/api/token")


def _reason(error: BaseException, place: _Place) -> str:
    from obstore.exceptions import InvalidPathError, PermissionDeniedError, UnauthenticatedError

    text = str(error)
    credentials = _CREDENTIALS.get(place.family, "")
    code = _code(text)
    if isinstance(error, FileNotFoundError):
        return f"there is no bucket {place.host!r}" if code in _NO_BUCKET else "there is no such object"
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        remedy = f"; check {credentials} of the job, and what they may read" if credentials else ""
        return f"access is denied{f' ({code})' if code else ''}{remedy}"
    if isinstance(error, InvalidPathError):
        return "its name has an empty part, '.' or '..'"
    if any(part in text.partition("\n")[0] for part in _METADATA):
        return f"the job has no credentials; set {credentials}"
    server = _server(text, place)
    if status := re.search(r"status code: (\d{3})", text):
        return f"{server} answered {status[1]}{f' ({code})' if code else ''}"
    for part, sentence in _KNOWN:
        if part in text:
            return sentence.format(server=server, credentials=credentials)
    if not isinstance(error, Exception):
        return f"the environment of the job is malformed; look for line breaks in {credentials}"
    if _ASKED.search(text):
        return f"{server} answered something unexpected ({type(error).__name__})"
    return "its address, or what the environment of the job says about it, is malformed"


def _code(text: str) -> str:
    """The store's own name of the error, which is no secret."""
    found = re.search(r"<Code>(\w{1,60})</Code>", text)
    return found[1] if found else ""


def _server(text: str, place: _Place) -> str:
    """The host that was asked."""
    found = _ASKED.search(text)
    return found[1] if found else (place.host if place.family == "https" else "the object store")
