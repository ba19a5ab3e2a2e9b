"""Bindings: read `-D name=URI` into what each stream is bound to."""

from __future__ import annotations

import difflib
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from penstock.errors import BindingError

__all__ = [
    "PARAMETERS",
    "Binding",
    "ConsoleBinding",
    "DiscardBinding",
    "FilesBinding",
    "KafkaBinding",
    "Parameter",
    "QueueBinding",
    "RabbitStreamBinding",
    "RabbitVirtualHost",
    "RateBinding",
    "Role",
    "SocketBinding",
    "allowed_forms",
    "missing_binding",
    "parse_binding",
    "redacted",
    "schemes",
    "split_definition",
]

Role: TypeAlias = Literal["data", "control", "sink"]
FileFormat: TypeAlias = Literal["jsonl", "csv", "parquet", "text"]
MessageFormat: TypeAlias = Literal["json", "protobuf", "bytes"]
Delivery: TypeAlias = Literal["at-least-once", "exactly-once"]
Start: TypeAlias = Literal["latest", "earliest"]
Missing: TypeAlias = Literal["fail", "skip"]

_SOURCES: Final[tuple[Role, ...]] = ("data", "control")
_ALL: Final[tuple[Role, ...]] = ("data", "control", "sink")
_FILE_SCHEMES: Final = ("jsonl", "csv", "parquet")
_READ_SCHEMES: Final = (*_FILE_SCHEMES, "text")
LINE_FORMATS: Final = ("jsonl", "text")
"""The formats of files in which a line is a record."""
_RABBIT_SCHEMES: Final = ("amqp", "amqps", "rabbitmq-stream")
_OBJECT_SCHEMES: Final = ("s3", "s3a", "s3n", "gs", "az", "abfs", "abfss", "wasbs", "http", "https")
RECORDS_PER_BATCH: Final = 2_000_000
"""The most records that a micro-batch reads of a topic, where its binding does not say otherwise."""
BYTES_PER_BATCH: Final = 256 << 20
"""The most bytes that a micro-batch reads of a folder, where its binding does not say otherwise."""
_UNACKNOWLEDGED: Final = 1000
_MOST_UNACKNOWLEDGED: Final = 65_535


@dataclass(frozen=True)
class FilesBinding:
    """A directory of files. `directory` is absolute; whether it exists is the source's or sink's to check.

    `missing` says what becomes of a file that was found and is gone before it was read. A micro-batch reads at least
    one file, however large it is.
    """

    stream: str
    uri: str
    format: FileFormat
    directory: str
    max_files_per_batch: int | None = None
    missing: Missing = "fail"
    max_bytes_per_batch: int = BYTES_PER_BATCH


@dataclass(frozen=True)
class KafkaBinding:
    """A Kafka topic. `start` is None for sinks; `client` has client settings without the prefix `kafka.`.

    `max_records_per_batch` is None for a control stream whose binding gives none: what it holds at a start is then read
    before any data, in as many micro-batches as the usual limit needs. `max_bytes_per_batch` is kept by the mean size
    of the records that came.
    """

    stream: str
    uri: str
    servers: str
    topic: str
    format: MessageFormat = "json"
    start: Start | None = None
    max_records_per_batch: int | None = None
    delivery: Delivery = "at-least-once"
    create_topic: bool = False
    client: Mapping[str, str] = field(default_factory=dict)
    max_bytes_per_batch: int | None = None

    @property
    def is_paced(self) -> bool:
        """Whether the binding says how much of the topic goes into a micro-batch, where it is a control stream."""
        return self.max_records_per_batch is not None or self.max_bytes_per_batch is not None


@dataclass(frozen=True)
class SocketBinding:
    """A server that sends lines; penstock connects to it as a client."""

    stream: str
    uri: str
    host: str
    port: int


@dataclass(frozen=True)
class RabbitVirtualHost:
    """A virtual host of a RabbitMQ broker, and whom to log in as. `secure` says that the connection uses TLS."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    name: str
    secure: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class QueueBinding:
    """A RabbitMQ queue. `uri` has its password masked; `prefetch` is how many messages may be unacknowledged."""

    stream: str
    uri: str
    virtual_host: RabbitVirtualHost
    queue: str
    format: MessageFormat = "json"
    prefetch: int = _UNACKNOWLEDGED
    create: bool = False


@dataclass(frozen=True)
class RabbitStreamBinding:
    """A RabbitMQ stream, which is named `name` there. `uri` has its password masked."""

    stream: str
    uri: str
    virtual_host: RabbitVirtualHost
    name: str
    format: MessageFormat = "json"
    start: Start = "latest"
    create: bool = False


@dataclass(frozen=True)
class ConsoleBinding:
    """Standard output of the process that runs the job."""

    stream: str
    uri: str


@dataclass(frozen=True)
class RateBinding:
    """Numbers that come at an even rate, in records per second."""

    stream: str
    uri: str
    rate: int


@dataclass(frozen=True)
class DiscardBinding:
    """Nowhere."""

    stream: str
    uri: str


Binding: TypeAlias = (
    FilesBinding
    | KafkaBinding
    | SocketBinding
    | QueueBinding
    | RabbitStreamBinding
    | ConsoleBinding
    | RateBinding
    | DiscardBinding
)


@dataclass(frozen=True)
class Parameter:
    """A query parameter of a URI: where it is allowed, what it may be, and what it does.

    `values` is "integer", or the allowed words. `default` is what holds when it is left out, in words.
    """

    name: str
    schemes: tuple[str, ...]
    roles: tuple[Role, ...]
    values: tuple[str, ...] | Literal["integer"]
    default: str
    meaning: str

    @property
    def form(self) -> str:
        """How the parameter is written: `name=a|b`, or `name=N` for an integer."""
        return f"{self.name}={'N' if self.values == 'integer' else '|'.join(self.values)}"

    def parse(self, text: str) -> int | str:
        """The value of the parameter; ValueError says what is wrong with it."""
        if self.values == "integer":
            if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
                raise ValueError(f"{self.name}={text!r} must be a whole number of at least 1")
            return int(text)
        if text not in self.values:
            raise ValueError(f"{self.name}={text!r} must be one of {', '.join(self.values)}")
        return text


PARAMETERS: Final[tuple[Parameter, ...]] = (
    Parameter(
        "max_files_per_batch",
        _READ_SCHEMES,
        _SOURCES,
        "integer",
        "no limit",
        "The most files that one batch reads.",
    ),
    Parameter(
        "max_bytes_per_batch",
        _READ_SCHEMES,
        _SOURCES,
        "integer",
        str(BYTES_PER_BATCH),
        "The most bytes of files that one batch reads, but always one file; a file counts as 4096 bytes at least.",
    ),
    Parameter(
        "missing",
        _READ_SCHEMES,
        _SOURCES,
        ("fail", "skip"),
        "fail",
        "Whether a file that is gone before it was read ends the run, or is left out with a dead letter.",
    ),
    Parameter(
        "format",
        ("kafka", *_RABBIT_SCHEMES),
        _ALL,
        ("json", "protobuf", "bytes"),
        "json",
        "What a message value is: a JSON object, a protobuf message of the stream's schema, or plain bytes.",
    ),
    Parameter(
        "start",
        ("kafka", "rabbitmq-stream"),
        _SOURCES,
        ("latest", "earliest"),
        "latest for data, earliest for control",
        "Where a job without a checkpoint begins to read.",
    ),
    Parameter(
        "max_records_per_batch",
        ("kafka",),
        _SOURCES,
        "integer",
        str(RECORDS_PER_BATCH),
        "The most records that one batch reads. A control stream is read before data at a start, unless it is given.",
    ),
    Parameter(
        "max_bytes_per_batch",
        ("kafka",),
        _SOURCES,
        "integer",
        f"{BYTES_PER_BATCH} for data without max_records_per_batch",
        "About the most bytes that one batch reads, by the mean size of the records that came.",
    ),
    Parameter(
        "delivery",
        ("kafka",),
        ("sink",),
        ("at-least-once", "exactly-once"),
        "at-least-once",
        "Whether a read_committed consumer may see a record again after a crash.",
    ),
    Parameter(
        "create_topic",
        ("kafka",),
        _ALL,
        ("true", "false"),
        "false",
        "Create the topic, with the broker's defaults, when it does not exist.",
    ),
    Parameter(
        "prefetch",
        ("amqp", "amqps"),
        _SOURCES,
        "integer",
        str(_UNACKNOWLEDGED),
        "The most messages that the broker sends before those in front are acknowledged.",
    ),
    Parameter(
        "create",
        _RABBIT_SCHEMES,
        _SOURCES,
        ("true", "false"),
        "false",
        "Declare the queue (durable, a quorum queue) or the stream when it does not exist.",
    ),
)
"""Every query parameter that penstock itself reads. Kafka URIs take client settings besides."""

CLIENT_SETTING: Final = (
    "client settings: a name with a dot (fetch.max.bytes), or the prefix kafka. (kafka.acks)"
)

_OWN_SETTINGS: Final = {
    "auto.offset.reset": "write start=latest|earliest instead",
    "bootstrap.servers": "the servers stand before the topic",
    "enable.auto.commit": "the checkpoint keeps the offsets",
    "enable.auto.offset.store": "the checkpoint keeps the offsets",
    "enable.idempotence": "sinks are always idempotent",
    "group.id": "the checkpoint keeps the offsets",
    "interceptor.classes": "penstock reads and writes without interceptors",
    "key.deserializer": "keys stay bytes",
    "key.serializer": "keys stay bytes",
    "transactional.id": "write delivery=exactly-once instead",
    "value.deserializer": "write format=json|protobuf|bytes instead",
    "value.serializer": "write format=json|protobuf|bytes instead",
}
"""Client settings that would break what penstock promises, and what to do instead."""

# In the name of a folder that is no URI itself @ means nothing.
_LOGIN: Final = re.compile(
    r"(?s)^(?!\s*(?:jsonl|csv|parquet|text|console):(?!\s*[A-Za-z][A-Za-z0-9+.-]*:))([^:]*:/*[^:]*:).*@"
)
_URI: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s\"'<>]+")
_SECRET: Final = re.compile(r"(?i)([?&][^=&]*(?:password|secret|jaas|token|credential|key\.pem)[^=&]*=)[^&]*")


def split_definition(definition: str) -> tuple[str, str]:
    """The stream and the URI of one `-D` argument.

    >>> split_definition("readings=jsonl:in?max_files_per_batch=1")
    ('readings', 'jsonl:in?max_files_per_batch=1')
    """
    stream, equals, uri = definition.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.-]*", stream.strip()) or not uri.strip():
        raise BindingError(
            f"-D {redacted(definition)!r} is not of the form NAME=URI. "
            "Write for example -D readings=jsonl:DIR, with the stream's name as the job file has it."
        )
    return stream.strip(), uri.strip()


def parse_binding(stream: str, uri: str, role: Role) -> Binding:
    """What `uri` binds the stream to, which is a data stream, a control stream or a sink.

    >>> parse_binding("readings", "jsonl:/data/in", "data").directory
    '/data/in'

    Raises BindingError naming the stream, the URI and the forms that the role allows.
    """
    try:
        return _parse(stream, uri, role)
    except ValueError as e:
        raise BindingError(
            f"Stream {stream!r} cannot be bound to {redacted(uri)!r}: {e}. {allowed_forms(role)}"
        ) from None


def missing_binding(stream: str, role: Role) -> BindingError:
    """The error for a stream that nothing is bound to."""
    kind = {"data": "Data stream", "control": "Control stream", "sink": "Sink"}[role]
    return BindingError(f"{kind} {stream!r} has no binding. Add -D {stream}=URI. {allowed_forms(role)}")


def allowed_forms(role: Role) -> str:
    """Every form of URI that a role allows, one a line."""
    forms = [s.form + _query_form(name, role) for name, s in _SCHEMES.items() if role in s.roles]
    kind = {"data": "a data stream", "control": "a control stream", "sink": "a sink"}[role]
    return "\n  ".join([f"Allowed for {kind}:", *forms])


def redacted(uri: str) -> str:
    """The URI with passwords and other secrets masked, for messages and logs.

    >>> redacted("kafka://h:9092/t?sasl.password=abc&format=json")
    'kafka://h:9092/t?sasl.password=***&format=json'
    >>> redacted("amqp://guest:abc@h:5672/%2F/readings")
    'amqp://guest:***@h:5672/%2F/readings'
    """
    # Up to the last @, and under any scheme, so that what is mistyped shows no password either.
    return _SECRET.sub(r"\1***", _LOGIN.sub(r"\1***@", uri))


def without_secrets(text: str) -> str:
    """A text in which the secrets of URIs are masked, for logs.

    >>> without_secrets("The broker amqp://guest:abc@h:5672/%2F/readings does not answer.")
    'The broker amqp://guest:***@h:5672/%2F/readings does not answer.'
    """
    return _URI.sub(lambda found: redacted(found.group()), text)


def _query_form(scheme: str, role: Role) -> str:
    names = [p.form for p in _parameters(scheme, role)]
    if scheme == "kafka":
        names.append("CLIENT.SETTING=VALUE")
    return f"[?{'&'.join(names)}]" if names else ""


def _parameters(scheme: str, role: Role) -> list[Parameter]:
    return [p for p in PARAMETERS if scheme in p.schemes and role in p.roles]


@dataclass(frozen=True)
class _Uri:
    """A URI in its parts; all parsers below raise ValueError, which `parse_binding` makes a BindingError."""

    stream: str
    uri: str
    role: Role
    scheme: str
    rest: str
    query: Sequence[tuple[str, str]]

    def known(self) -> dict[str, Any]:
        """The values of penstock's own parameters; others are refused unless they are client settings."""
        parameters = {p.name: p for p in _parameters(self.scheme, self.role)}
        found: dict[str, Any] = {}
        for name, value in self.query:
            if name in parameters:
                found[name] = parameters[name].parse(value)
            elif self.scheme != "kafka" or not _is_client_setting(name):
                raise ValueError(self._unknown(name, parameters))
        return found

    def client(self) -> dict[str, str]:
        """The client settings among the parameters, without the prefix `kafka.`."""
        settings: dict[str, str] = {}
        for name, value in self.query:
            if not _is_client_setting(name):
                continue
            bare = name.removeprefix("kafka.")
            if bare in _OWN_SETTINGS:
                raise ValueError(f"{bare} is penstock's to set; {_OWN_SETTINGS[bare]}")
            if bare in settings:
                raise ValueError(f"the client setting {bare} is given twice")
            settings[bare] = value
        return settings

    def _unknown(self, name: str, parameters: Mapping[str, Parameter]) -> str:
        if any(p.name == name and self.scheme in p.schemes for p in PARAMETERS):
            return f"{name} has no meaning for a {_role_name(self.role)}"
        near = difflib.get_close_matches(name, parameters, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        if self.scheme == "kafka":
            return f"unknown parameter {name!r}{hint}; known are its own and {CLIENT_SETTING}"
        return f"unknown parameter {name!r}{hint}"


def _role_name(role: Role) -> str:
    return {"data": "data stream", "control": "control stream", "sink": "sink"}[role]


def _is_client_setting(name: str) -> bool:
    # A name without a dot is rather a misspelt parameter than a setting, so those need the prefix.
    return "." in name.strip(".")


def _parse(stream: str, uri: str, role: Role) -> Binding:
    scheme, colon, rest = uri.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        raise ValueError("it has no scheme, such as jsonl: or kafka:")
    scheme = scheme.lower()
    if scheme not in _SCHEMES:
        near = difflib.get_close_matches(scheme, _SCHEMES, 1)
        hint = f" (did you mean {near[0]}:?)" if near else ""
        raise ValueError(f"the scheme {scheme!r} is unknown{hint}")
    known = _SCHEMES[scheme]
    if role not in known.roles:
        only = " and ".join(f"{_role_name(r)}s" for r in known.roles)
        raise ValueError(f"{scheme}: is only for {only}, and this is a {_role_name(role)}")
    place, _, query = rest.partition("?")
    if scheme in _RABBIT_SCHEMES:
        _check_login(place, query)
    return known.parse(_Uri(stream, uri, role, scheme, place, _query(query)))


def _query(text: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for part in filter(None, text.split("&")):
        name, equals, value = part.partition("=")
        name, value = urllib.parse.unquote(name), urllib.parse.unquote(value)
        if not equals or not name or not value:
            raise ValueError(f"the parameter {redacted('?' + part)[1:]!r} must have the form name=value")
        if name in (known for known, _ in pairs):
            raise ValueError(f"the parameter {name} is given twice")
        pairs.append((name, value))
    return pairs


def _parse_files(uri: _Uri) -> FilesBinding:
    path = urllib.parse.unquote(uri.rest)
    if path.startswith("//"):
        if not path.startswith("///"):
            raise ValueError(f"//{path[2:].split('/')[0]} would be a host; write {uri.scheme}:DIR")
        path = path[2:]
    if not path:
        raise ValueError("the directory is missing")
    _check_no_uri(uri.scheme, path)
    if "\0" in path:
        raise ValueError("a directory has no NUL characters in its name")
    known = uri.known()
    return FilesBinding(
        stream=uri.stream,
        uri=uri.uri,
        format=uri.scheme,  # type: ignore[arg-type]  # the scheme table has only these
        directory=_absolute(path),
        max_files_per_batch=known.get("max_files_per_batch"),
        missing=known.get("missing", "fail"),
        max_bytes_per_batch=known.get("max_bytes_per_batch", BYTES_PER_BATCH),
    )


def _check_no_uri(scheme: str, path: str) -> None:
    """Refuse what is a URI itself: it would become a folder of this machine that is called like one."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(/*)", path)
    if match is None:
        return
    inner, slashes = match.group(1).lower(), match.group(2)
    if not slashes and inner not in (*_SCHEMES, *_OBJECT_SCHEMES, "file"):
        return
    if inner == "file":
        instead = f"write the path alone, {scheme}:/DIR"
    elif inner in _SCHEMES:
        instead = f"write {inner}:{slashes}... without {scheme}: before it"
    else:
        instead = (
            "write to or read from a folder and copy it (object stores take savepoints and dumps), or bind to kafka://"
            if inner in _OBJECT_SCHEMES
            else "mount it, and write the path of the mount"
        )
    raise ValueError(
        f"{inner}:{slashes} is no folder of this machine; {instead}. A folder of that name is {scheme}:./{inner}:..."
    )


def _absolute(path: str) -> str:
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError:
        raise ValueError(
            f"there is no user {path.split('/', maxsplit=1)[0]!r}; write ./~ for a name with a tilde"
        ) from None


def _parse_kafka(uri: _Uri) -> KafkaBinding:
    authority, slash, topic = _authority(uri.rest)
    servers = [_server(server) for server in authority.split(",")]
    topic = urllib.parse.unquote(topic)
    if not slash or not topic:
        raise ValueError("the topic is missing")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic) or topic in (".", ".."):
        raise ValueError(f"{topic!r} is no name of a topic (letters, digits, '.', '_' and '-', at most 249)")
    known = uri.known()
    start: Start | None = None
    if uri.role != "sink":
        start = known.get("start", "earliest" if uri.role == "control" else "latest")
    is_bounded = uri.role == "data" and "max_records_per_batch" not in known
    usual_bytes = BYTES_PER_BATCH if is_bounded else None
    return KafkaBinding(
        stream=uri.stream,
        uri=uri.uri,
        servers=",".join(f"{host}:{port}" for host, port in servers),
        topic=topic,
        format=known.get("format", "json"),
        start=start,
        max_records_per_batch=known.get(
            "max_records_per_batch", RECORDS_PER_BATCH if uri.role == "data" else None
        ),
        delivery=known.get("delivery", "at-least-once"),
        create_topic=known.get("create_topic") == "true",
        client=uri.client(),
        max_bytes_per_batch=known.get("max_bytes_per_batch", usual_bytes),
    )


def _parse_socket(uri: _Uri) -> SocketBinding:
    authority, _, path = _authority(uri.rest)
    if path:
        raise ValueError(f"a socket has no path, but there is {path!r}")
    host, port = _server(authority)
    uri.known()
    return SocketBinding(uri.stream, uri.uri, host.strip("[]"), port)


def _check_login(place: str, query: str) -> None:
    """Refuse a password that is not escaped, before a part of it is taken for something that messages may show."""
    authority = place.removeprefix("//").partition("/")[0]
    if authority.count("@") > 1 or "@" in place.removeprefix("//")[len(authority) :] or "@" in query:
        raise ValueError("in users, passwords and names write @ as %40, / as %2F, : as %3A and ? as %3F")
    if "@" not in authority or ":" not in authority.partition("@")[0]:
        raise ValueError("it needs USER:PASS@ before the host")


def _virtual_host(uri: _Uri) -> tuple[RabbitVirtualHost, str]:
    """The virtual host, and the name of the queue or stream in it."""
    authority, _, path = _authority(uri.rest)
    login, _, server = authority.partition("@")
    user, _, password = login.partition(":")
    host, port = _server(server)
    names = path.split("/")
    kind = "STREAM" if uri.scheme == "rabbitmq-stream" else "QUEUE"
    if len(names) != 2 or not all(names):
        raise ValueError(f"behind the port it needs /VHOST/{kind} (%2F is the virtual host /)")
    vhost, name = (urllib.parse.unquote(part) for part in names)
    if any(not 1 <= len(part.encode()) <= 255 for part in (vhost, name)):
        raise ValueError("names of virtual hosts, queues and streams have at most 255 bytes")
    secure = uri.scheme == "amqps"
    user, password = urllib.parse.unquote(user), urllib.parse.unquote(password)
    return RabbitVirtualHost(host.strip("[]"), port, user, password, vhost, secure), name


def _parse_queue(uri: _Uri) -> QueueBinding:
    virtual_host, queue = _virtual_host(uri)
    known = uri.known()
    prefetch = known.get("prefetch", _UNACKNOWLEDGED)
    if prefetch > _MOST_UNACKNOWLEDGED:
        raise ValueError(f"prefetch={prefetch} must be at most {_MOST_UNACKNOWLEDGED}")
    return QueueBinding(
        stream=uri.stream,
        uri=redacted(uri.uri),
        virtual_host=virtual_host,
        queue=queue,
        format=known.get("format", "json"),
        prefetch=prefetch,
        create=known.get("create") == "true",
    )


def _parse_rabbit_stream(uri: _Uri) -> RabbitStreamBinding:
    virtual_host, name = _virtual_host(uri)
    known = uri.known()
    return RabbitStreamBinding(
        stream=uri.stream,
        uri=redacted(uri.uri),
        virtual_host=virtual_host,
        name=name,
        format=known.get("format", "json"),
        start=known.get("start", "earliest" if uri.role == "control" else "latest"),
        create=known.get("create") == "true",
    )


def _parse_console(uri: _Uri) -> ConsoleBinding:
    if uri.rest.strip("/"):
        raise ValueError(f"console: takes nothing behind it, but there is {uri.rest!r}")
    uri.known()
    return ConsoleBinding(uri.stream, uri.uri)


def _parse_rate(uri: _Uri) -> RateBinding:
    uri.known()
    if not re.fullmatch(r"[0-9]{1,9}", uri.rest) or int(uri.rest) == 0:
        raise ValueError(f"{uri.rest!r} is no whole number of records per second")
    return RateBinding(uri.stream, uri.uri, int(uri.rest))


def _parse_discard(uri: _Uri) -> DiscardBinding:
    if uri.rest:
        raise ValueError(f"discard: takes nothing behind it, but there is {uri.rest!r}")
    uri.known()
    return DiscardBinding(uri.stream, uri.uri)


def _authority(rest: str) -> tuple[str, str, str]:
    if not rest.startswith("//"):
        raise ValueError("it needs // before the host")
    authority, slash, path = rest[2:].partition("/")
    if not authority:
        raise ValueError("the host is missing")
    return authority, slash, path


def _server(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not of the form HOST:PORT")
    port = int(match.group(2))
    if not 1 <= port <= 65535:
        raise ValueError(f"the port {port} is not between 1 and 65535")
    return match.group(1), port


@dataclass(frozen=True)
class _Scheme:
    form: str
    roles: tuple[Role, ...]
    parse: Callable[[_Uri], Binding]


_SCHEMES: Final[dict[str, _Scheme]] = {
    **{name: _Scheme(f"{name}:DIR", _ALL, _parse_files) for name in _FILE_SCHEMES},
    "text": _Scheme("text:DIR", _SOURCES, _parse_files),
    "kafka": _Scheme("kafka://HOST:PORT[,HOST:PORT]/TOPIC", _ALL, _parse_kafka),
    "socket": _Scheme("socket://HOST:PORT", _SOURCES, _parse_socket),
    "amqp": _Scheme("amqp://USER:PASS@HOST:PORT/VHOST/QUEUE", _SOURCES, _parse_queue),
    "amqps": _Scheme("amqps://USER:PASS@HOST:PORT/VHOST/QUEUE", _SOURCES, _parse_queue),
    "rabbitmq-stream": _Scheme(
        "rabbitmq-stream://USER:PASS@HOST:PORT/VHOST/STREAM", _SOURCES, _parse_rabbit_stream
    ),
    "rate": _Scheme("rate:RECORDS_PER_SECOND", ("data",), _parse_rate),
    "console": _Scheme("console:", ("sink",), _parse_console),
    "discard": _Scheme("discard:", ("sink",), _parse_discard),
}


def schemes(role: Role) -> Iterable[tuple[str, str]]:
    """The schemes that a role allows, with the form of each, for the documentation."""
    return [(name, s.form) for name, s in _SCHEMES.items() if role in s.roles]
