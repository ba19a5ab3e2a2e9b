"""Object stores: a client for the place of a URI, built from the environment, and its errors as sentences.

Endpoint and credentials come from the environment of the process, never from the URI (docs/object_stores.md).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.objects.aws_profile import ProfileError, aws_profile

if TYPE_CHECKING:
    from obstore.store import (
        ClientConfig,
        ObjectStore,
        RetryConfig,
        S3Config,
    )

__all__ = [
    "S3_ENDPOINTS",
    "Endpoint",
    "Patience",
    "Place",
    "find_endpoint",
    "is_denied",
    "is_host",
    "is_without_bucket",
    "s3_endpoint",
    "store_of",
    "why",
]

_S3: Final = ("s3", "s3a")

S3_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_AZURE_ENDPOINTS: Final = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_BUCKET: Final = re.compile(r"[\w.-]+")
_NAMENODE: Final = re.compile(r"[\w.-]+(:\d{1,5})?")
_HOST: Final = re.compile(r"([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?")
_ENDPOINT: Final = re.compile(rf"https?://{_HOST.pattern}(/[^\s?#@]*)?")
# The variables that a caller may set instead of the environment, and their names in obstore.
_S3_SETTINGS: Final = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_REGION": "region",
}
_TRUE: Final = ("1", "true", "yes", "on", "y", "t")

_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


class _UnusableError(Exception):
    """A store cannot be used. The message says why, as the end of a sentence."""


@dataclass(frozen=True)
class Patience:
    """Time limits: to connect, for the next bytes, for a whole request, and for attempts after the first."""

    connect_ms: int
    read_ms: int
    request_ms: int
    retries: int
    retry_ms: int


@dataclass(frozen=True)
class Place:
    """The address of an object: `host` is the bucket or the container; of HDFS, the NameNode or the nameservice."""

    scheme: str
    host: str
    name: str

    @property
    def shown(self) -> str:
        """The URI for messages."""
        return f"{self.scheme}://{self.host}/{self.name}"

    @property
    def family(self) -> str:
        """The kind of store: s3, gs, az or hdfs."""
        if self.scheme in _S3:
            return "s3"
        return self.scheme if self.scheme in ("gs", "hdfs") else "az"


def is_host(scheme: str, host: str) -> bool:
    """Return whether a text may be the host of a place: a bucket, or of HDFS a NameNode or a nameservice.

    >>> is_host("s3", "rooms"), is_host("s3", "rooms:9000"), is_host("hdfs", "namenode:8020")
    (True, False, True)
    """
    return bool((_NAMENODE if scheme == "hdfs" else _BUCKET).fullmatch(host))


def store_of(place: Place, environ: Mapping[str, str], patience: Patience) -> ObjectStore:
    """Return a client for the bucket, container or server of a place. `why` explains the errors that it raises."""
    # Jobs without object stores need not load it.
    from obstore.store import AzureStore, GCSStore, S3Store

    client: ClientConfig = {
        "allow_http": _plain_http(place, environ),
        "connect_timeout": dt.timedelta(milliseconds=patience.connect_ms),
        "read_timeout": dt.timedelta(milliseconds=patience.read_ms),
        "timeout": dt.timedelta(milliseconds=patience.request_ms),
    }
    retry: RetryConfig = {
        "max_retries": patience.retries,
        "retry_timeout": dt.timedelta(milliseconds=patience.retry_ms),
        "backoff": {
            "init_backoff": dt.timedelta(milliseconds=200),
            "max_backoff": dt.timedelta(seconds=1),
            "base": 2,
        },
    }
    more: dict[str, Any] = {"client_options": client, "retry_config": retry}
    match place.family:
        case "s3":
            return S3Store(place.host, config=_s3_config(place.host, environ), **more)
        case "gs":
            return GCSStore(place.host, **more)
        case _:
            return AzureStore(place.host, **more)


@dataclass(frozen=True)
class Endpoint:
    """Where S3 is, as the environment says: "" is the provider's own; `hosted` puts the bucket into the host name."""

    uri: str
    region: str
    hosted: bool


def s3_endpoint(environ: Mapping[str, str]) -> Endpoint:
    """Return where S3 is, for other clients than that of `store_of`.

    >>> s3_endpoint({"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_REGION": "eu-west-1"})
    Endpoint(uri='http://127.0.0.1:9000', region='eu-west-1', hosted=False)
    """
    uri = _endpoint(S3_ENDPOINTS, environ)
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION", "")
    # Servers other than the provider's have no host names for buckets, unless the user says so.
    hosted = not uri or environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in _TRUE
    return Endpoint(uri, region, hosted)


def find_endpoint(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that say where S3 is, for processes on other machines, which have credentials only.

    >>> find_endpoint({"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_SECRET_ACCESS_KEY": "x"})
    {'AWS_ENDPOINT_URL_S3': 'http://127.0.0.1:9000'}
    """
    endpoint = s3_endpoint(environ)
    found = {S3_ENDPOINTS[0]: endpoint.uri, "AWS_REGION": endpoint.region}
    if endpoint.uri and endpoint.hosted:
        found["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "true"
    return {name: value for name, value in found.items() if value}


def _plain_http(place: Place, environ: Mapping[str, str]) -> bool:
    """Return whether the endpoint uses http; everything else is encrypted."""
    if place.family == "s3":
        return _endpoint(S3_ENDPOINTS, environ).startswith("http:")
    if place.family == "gs":
        return _endpoint(("GOOGLE_BASE_URL",), environ).startswith("http:")
    emulator = environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in _TRUE
    return emulator or _endpoint(_AZURE_ENDPOINTS, environ).startswith("http:")


def _endpoint(variables: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """Return the endpoint in the first of these variables that is set, "" for the provider's own."""
    for variable in variables:
        if variable in environ:
            if not _ENDPOINT.fullmatch(environ[variable]):
                raise _UnusableError(f"{variable} of the job is not an address like https://HOST:PORT")
            return environ[variable]
    return ""


def _s3_config(bucket: str, environ: Mapping[str, str]) -> S3Config:
    """Return the settings that obstore does not read from the environment like other tools."""
    found = {key: environ[name] for name, key in _S3_SETTINGS.items() if environ.get(name)}
    config = cast("S3Config", found)
    if environ.get("AWS_PROFILE") and not environ.get("AWS_ACCESS_KEY_ID"):
        profile = aws_profile(environ)
        config["access_key_id"] = profile.access_key_id
        config["secret_access_key"] = profile.secret_access_key
        if profile.session_token:
            config["session_token"] = profile.session_token
        if profile.region and not environ.get("AWS_REGION"):
            config["region"] = profile.region
    if endpoint := _endpoint(S3_ENDPOINTS, environ):
        scheme, _, host = endpoint.partition("://")
        hosted = environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in _TRUE
        if hosted and not host.startswith(f"{bucket}."):
            # obstore wants the bucket in the endpoint, but a job has one endpoint for all its buckets.
            endpoint = f"{scheme}://{bucket}.{host}"
        # obstore would prefer the variable of the service to an endpoint that is set here.
        config["endpoint"] = config["aws_endpoint_url_s3"] = endpoint
    return config


# The first text found in an obstore error says what is wrong. obstore's own words are not passed on: they contain whole
# answers of servers, and addresses with signatures.
_KNOWN: Final = (
    ("Connection refused", "{server} does not answer: connection refused"),
    ("dns error", "{server} does not answer: the host name does not exist"),
    ("certificate", "the certificate of {server} is not trusted"),
    ("InvalidContentType", "{server} does not speak TLS; its address may need to begin with http://"),
    ("kind: Timeout", "{server} does not answer in time"),
    ("kind: Connect", "{server} does not answer"),
    ("kind: Interrupted", "{server} closed the connection early"),
    # After a break the missing part is requested again, which not all servers support.
    ("RangeNotSupported", "{server} closed the connection early"),
    ("Content-Range", "{server} closed the connection early"),
    ("incorrectly configured region", "the bucket is in another region; set AWS_REGION"),
    ("Content-Length Header missing", "{server} does not report the size of the object"),
    ("Account must be specified", "no account is given; set AZURE_STORAGE_ACCOUNT_NAME"),
    ("redential", "the credentials of the job cannot be used; set {credentials}"),
)
_ASKED: Final = re.compile(r" (?:GET|HEAD|PUT|POST) https?://(?:[^/\s@]*@)?([\w.:\[\]-]+)")
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound")
_METADATA: Final = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "/latest/api/token")


def why(error: BaseException, place: Place) -> str:
    """Return why a store cannot be used, as the end of a sentence without secrets.

    The error with this message should not chain its cause, which may hold secrets. An error that is not from a store,
    such as an interrupt, is raised again.
    """
    if isinstance(error, _UnusableError | ProfileError):
        return str(error)
    # A panic of obstore is not an Exception; a line break in a credential is enough to cause one.
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    return _reason(error, place)


def is_denied(error: BaseException) -> bool:
    """Return whether a store has refused the credentials or the request."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    # The errors of lists have no class of their own.
    refused = re.search(r"status code: 40[13]\b", str(error))
    return isinstance(error, PermissionDeniedError | UnauthenticatedError) or refused is not None


def is_without_bucket(error: BaseException) -> bool:
    """Return whether there is no bucket, or no container."""
    return _code(str(error)) in _NO_BUCKET


def _reason(error: BaseException, place: Place) -> str:
    from obstore.exceptions import InvalidPathError

    text = str(error)
    credentials = _CREDENTIALS[place.family]
    code = _code(text)
    if is_without_bucket(error):
        return f"the bucket {place.host!r} does not exist"
    if isinstance(error, FileNotFoundError):
        return "the object does not exist"
    if is_denied(error):
        return f"access is denied{f' ({code})' if code else ''}; check {credentials} of the job, and what they may do"
    if isinstance(error, InvalidPathError):
        return "its name has an empty part, '.' or '..'"
    if any(part in text.partition("\n")[0] for part in _METADATA):
        return f"the job has no credentials; set {credentials}"
    server = _server(text)
    if status := re.search(r"status code: (\d{3})", text):
        return f"{server} answered {status[1]}{f' ({code})' if code else ''}"
    for part, sentence in _KNOWN:
        if part in text:
            return sentence.format(server=server, credentials=credentials)
    if not isinstance(error, Exception):
        return f"the environment of the job is malformed; look for line breaks in {credentials}"
    if _ASKED.search(text):
        return f"{server} sent an unexpected answer ({type(error).__name__})"
    return "its address, or its configuration in the environment of the job, is malformed"


def _code(text: str) -> str:
    """Return the store's own name of the error, which is not secret."""
    found = re.search(r"<Code>(\w{1,60})</Code>", text)
    return found[1] if found else ""


def _server(text: str) -> str:
    """Return the host that was asked."""
    found = _ASKED.search(text)
    return found[1] if found else "the object store"
