"""Bindings: parse `-D name=URI` into the binding of each stream."""

from __future__ import annotations

import difflib
import re
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.bindings.amazon_uri import parse_dynamodb, parse_kinesis
from penstock.bindings.event_parts import events_of
from penstock.bindings.files_uri import files_binding
from penstock.bindings.http_listen_uri import parse_http_listen
from penstock.bindings.lake_uris import S3_VARIABLES, check_s3_settings, lake_reading, parse_iceberg
from penstock.bindings.mqtt_uri import parse_mqtt
from penstock.bindings.objects_uri import bucket_and_prefix, parse_objects
from penstock.bindings.parameters import (
    ALL_ROLES,
    BUCKET_SCHEMES,
    FILE_SCHEMES,
    MQTT_SCHEMES,
    OBJECT_SCHEMES,
    POSTGRES_SCHEMES,
    RABBIT_SCHEMES,
    REDIS_SCHEMES,
    REQUEST_PREFIXES,
    SEARCH_SCHEMES,
    SOURCE_ROLES,
    WEB_SCHEMES,
    parameters_of,
)
from penstock.bindings.postgres_uri import parse_postgres
from penstock.bindings.python_uri import parse_python
from penstock.bindings.redis_uri import parse_redis
from penstock.bindings.registry_parts import registry_of
from penstock.bindings.secrets import redact, without_logins
from penstock.bindings.spark_uri import parse_spark
from penstock.bindings.storage_parameters import S3_SCHEMES
from penstock.bindings.types import (
    BYTES_PER_BATCH,
    PATTERN_MARK,
    RECORDS_PER_BATCH,
    UNACKNOWLEDGED,
    Binding,
    ConsoleBinding,
    DeltaBinding,
    DiscardBinding,
    ExchangeBinding,
    FilesBinding,
    KafkaBinding,
    QueueBinding,
    RabbitStreamBinding,
    RabbitVirtualHost,
    RateBinding,
    Role,
    SocketBinding,
    Start,
)
from penstock.bindings.uri_parts import ROLE_NAMES, UriParts, parse_server, split_authority
from penstock.bindings.versioned_uris import parse_cassandra, parse_opensearch
from penstock.bindings.webhook_uri import parse_webhook
from penstock.errors import BindingError

__all__ = ["allowed_forms", "missing_binding", "parse_binding", "schemes", "split_definition"]

_CLOUD_SCHEMES: Final = (*OBJECT_SCHEMES, "s3n", "abfss", "wasbs")
_MAX_UNACKNOWLEDGED: Final = 65_535
_MAX_NAME_BYTES: Final = 255
_UNESCAPED: Final = "in users, passwords and names write @ as %40, / as %2F, : as %3A and ? as %3F"


def split_definition(definition: str) -> tuple[str, str]:
    """Return the stream and the URI of one `-D` argument.

    >>> split_definition("readings=jsonl:in?max_files_per_batch=1")
    ('readings', 'jsonl:in?max_files_per_batch=1')
    """
    stream, equals, uri = definition.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.-]*", stream.strip()) or not uri.strip():
        raise BindingError(
            f"-D {redact(definition)!r} is not of the form NAME=URI. "
            "Write for example -D readings=jsonl:DIR, with the stream's name from the job file."
        )
    return stream.strip(), uri.strip()


def parse_binding(stream: str, uri: str, role: Role) -> Binding:
    """Parse the URI of a stream with a role: a data stream, a control stream or a sink.

    >>> parse_binding("readings", "jsonl:/data/in", "data").directory
    '/data/in'

    Raises BindingError naming the stream, the URI and the forms that the role allows.
    """
    try:
        return _parse(stream, uri, role)
    except ValueError as e:
        scheme = uri.partition(":")[0].lower()
        forms = allowed_forms(role, scheme if scheme in dict(schemes(role)) else None)
        raise BindingError(
            f"Stream {stream!r} cannot be bound to {redact(uri)!r}: {without_logins(str(e))}. {forms}"
        ) from None


def missing_binding(stream: str, role: Role) -> BindingError:
    """Return the error for a stream without a binding."""
    return BindingError(
        f"{ROLE_NAMES[role].capitalize()} {stream!r} has no binding. Add -D {stream}=URI. {allowed_forms(role)}"
    )


def allowed_forms(role: Role, scheme: str | None = None) -> str:
    """List every form of URI that a role allows, one per line, or only that of a scheme."""
    forms = [
        s.form + _query_form(name, role)
        for name, s in _SCHEMES.items()
        if role in s.roles and scheme in (None, name)
    ]
    return "\n  ".join([f"Allowed for a {ROLE_NAMES[role]}:", *forms])


def _query_form(scheme: str, role: Role) -> str:
    names = [p.form for p in parameters_of(scheme, role)]
    if scheme == "kafka":
        names.append("CLIENT.SETTING=VALUE")
    if scheme in WEB_SCHEMES:
        names += [f"{prefix}NAME=VALUE" for prefix in REQUEST_PREFIXES]
    return f"[?{'&'.join(names)}]" if names else ""


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
        only = " and ".join(f"{ROLE_NAMES[r]}s" for r in known.roles)
        raise ValueError(f"{scheme}: is only for {only}, and this is a {ROLE_NAMES[role]}")
    place, _, query = rest.partition("?")
    _check_login(scheme, place, query)
    return known.parse(UriParts(stream, uri, role, scheme, place, _query(query)))


def _check_login(scheme: str, place: str, query: str) -> None:
    """Refuse a password that is not escaped, before a message shows a part of it as a path or a parameter."""
    authority, slash, path = place.removeprefix("//").partition("/")
    if scheme in RABBIT_SCHEMES:
        is_cut = authority.count("@") > 1 or "@" in path or "@" in query
    else:
        # Only a question mark ends a password here. Behind the colon of a web address is its port.
        has_port = scheme in (*WEB_SCHEMES, "http-listen") and re.search(r":[0-9]+$", authority)
        is_login = place.startswith("//") and ":" in authority and not slash and not has_port
        is_cut = is_login and "@" in query
    if is_cut:
        raise ValueError(_UNESCAPED)


def _query(text: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for part in filter(None, text.split("&")):
        name, equals, value = part.partition("=")
        name, value = urllib.parse.unquote(name), urllib.parse.unquote(value)
        if not equals or not name or not value:
            raise ValueError(f"the parameter {redact('?' + part)[1:]!r} must have the form name=value")
        if name in (known for known, _ in pairs):
            raise ValueError(f"the parameter {name} is given twice")
        pairs.append((name, value))
    return pairs


def _folder(uri: UriParts) -> str:
    """Return the absolute path of the folder that a URI names."""
    path = urllib.parse.unquote(uri.rest)
    if path.startswith("//"):
        if not path.startswith("///"):
            raise ValueError(f"//{path[2:].split('/')[0]} would be a host; write {uri.scheme}:DIR")
        path = path[2:]
    if not path:
        raise ValueError("the directory is missing")
    _check_no_uri(uri.scheme, path)
    if "\0" in path:
        raise ValueError("the name of a directory cannot contain NUL characters")
    return _absolute(path)


def _parse_files(uri: UriParts) -> FilesBinding:
    directory = _folder(uri)
    return files_binding(uri, uri.scheme, directory, uri.known())


def _parse_delta(uri: UriParts) -> DeltaBinding:
    known = uri.known()
    scheme, _, rest = uri.rest.partition("://")
    is_stored = scheme.lower() in S3_SCHEMES and rest != ""
    bucket, prefix = bucket_and_prefix(f"//{rest}") if is_stored else ("", "")
    client = {variable: known[name] for name, variable in S3_VARIABLES.items() if name in known}
    if is_stored and not prefix:
        raise ValueError("a table has a prefix of its own: delta:s3://BUCKET/PREFIX")
    if client and not is_stored:
        raise ValueError("endpoint, region and keys are for delta:s3://BUCKET/PREFIX; a folder has none")
    check_s3_settings(known)
    return DeltaBinding(
        uri.stream,
        redact(uri.uri),
        f"s3://{bucket}/{prefix}" if is_stored else _folder(uri),
        known.get("partition_by", ()),
        known.get("create_table", "true") == "true",
        lake_reading(known),
        known.get("upsert_by", ()),
        "s3" if is_stored else "",
        bucket,
        prefix,
        client,
    )


def _check_no_uri(scheme: str, path: str) -> None:
    """Refuse a path that is itself a URI: it would become a local folder of that name."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(/*)", path)
    if match is None:
        return
    inner, slashes = match.group(1).lower(), match.group(2)
    if not slashes and inner not in (*_SCHEMES, *_CLOUD_SCHEMES, "file"):
        return
    if inner == "file":
        instead = f"write the path alone, {scheme}:/DIR"
    elif inner in _CLOUD_SCHEMES:
        place = (
            "HDFS with hdfs://HOST:PORT/PATH"
            if inner == "hdfs"
            else "an object store with s3://BUCKET/PREFIX"
        )
        instead = f"bind to {place}?format=parquet, jsonl or csv"
    elif inner in _SCHEMES:
        instead = f"write {inner}:{slashes}... without {scheme}: before it"
    else:
        instead = "mount it, and write the path of the mount"
    raise ValueError(
        f"{inner}:{slashes} is not a local folder; {instead}. A folder of that name is {scheme}:./{inner}:..."
    )


def _absolute(path: str) -> str:
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError:
        raise ValueError(
            f"there is no user {path.split('/', maxsplit=1)[0]!r}; write ./~ for a name with a tilde"
        ) from None


def _parse_kafka(uri: UriParts) -> KafkaBinding:
    authority, slash, topic = split_authority(uri.rest)
    servers = [parse_server(server) for server in authority.split(",")]
    topic = urllib.parse.unquote(topic)
    if not slash or not topic:
        raise ValueError("the topic is missing")
    known = uri.known()
    if topic.startswith(PATTERN_MARK):
        _check_pattern(uri.role, topic, creates=known.get("create_topic") == "true")
    elif not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic) or topic in (".", ".."):
        raise ValueError(f"{topic!r} is not a topic name (letters, digits, '.', '_' and '-', at most 249)")
    start: Start | None = None
    if uri.role != "sink":
        start = known.get("start", "earliest" if uri.role == "control" else "latest")
    if "partition_by" in known and "partitioner" in known:
        raise ValueError(
            "partition_by and partitioner exclude each other: partition_by chooses partitions with Kafka's murmur2"
        )
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
        missing=known.get("missing", "fail"),
        key_field=known.get("key"),
        header_fields=known.get("headers", ()),
        partitioner=known.get("partitioner", "murmur2_random"),
        partition_by=known.get("partition_by"),
        origin=known.get("origin") == "true",
        registry=registry_of(known, uri.role, f"{topic}-value"),
        events=events_of(known, uri.role),
    )


def _check_pattern(role: Role, topic: str, *, creates: bool) -> None:
    """Raise ValueError unless the topic is a pattern that a source can read."""
    pattern = topic.removeprefix(PATTERN_MARK)
    if role == "sink":
        raise ValueError(f"{topic!r} is a pattern, and a sink writes to one topic; name it")
    if not pattern:
        raise ValueError(f"the regular expression after {PATTERN_MARK} is missing")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as e:
        raise ValueError(f"{pattern!r} is not a regular expression ({e})") from None
    if creates:
        raise ValueError("create_topic=true needs the name of a topic, and a pattern names none")


def _parse_socket(uri: UriParts) -> SocketBinding:
    authority, _, path = split_authority(uri.rest)
    if path:
        raise ValueError(f"a socket has no path, but this one has {path!r}")
    host, port = parse_server(authority)
    uri.known()
    return SocketBinding(uri.stream, uri.uri, host.strip("[]"), port)


def _virtual_host(uri: UriParts) -> tuple[RabbitVirtualHost, str]:
    """Return the virtual host, and the name of the queue or stream in it."""
    authority, _, path = split_authority(uri.rest)
    login, at, server = authority.partition("@")
    user, colon, password = login.partition(":")
    reference = uri.known().get("password")
    if not at or (reference is None) == (not colon):
        raise ValueError("it needs USER:PASS@ before the host, or USER@ and password=env:NAME")
    host, port = parse_server(server)
    names = path.split("/")
    kind = "STREAM" if uri.scheme == "rabbitmq-stream" else "QUEUE"
    if len(names) != 2 or not all(names):
        raise ValueError(f"it needs /VHOST/{kind} after the port (%2F is the virtual host /)")
    vhost, name = (urllib.parse.unquote(part) for part in names)
    if any(not 1 <= len(part.encode()) <= _MAX_NAME_BYTES for part in (vhost, name)):
        raise ValueError("names of virtual hosts, queues and streams have at most 255 bytes")
    secure = uri.scheme == "amqps"
    user, password = urllib.parse.unquote(user), urllib.parse.unquote(password)
    password = password if reference is None else reference
    return RabbitVirtualHost(host.strip("[]"), port, user, password, vhost, secure), name


def _parse_queue(uri: UriParts) -> QueueBinding | ExchangeBinding:
    virtual_host, queue = _virtual_host(uri)
    known = uri.known()
    if uri.role == "sink":
        return _exchange(uri, virtual_host, queue)
    prefetch = known.get("prefetch", UNACKNOWLEDGED)
    if prefetch > _MAX_UNACKNOWLEDGED:
        raise ValueError(f"prefetch={prefetch} must be at most {_MAX_UNACKNOWLEDGED}")
    return QueueBinding(
        stream=uri.stream,
        uri=redact(uri.uri),
        virtual_host=virtual_host,
        queue=queue,
        format=known.get("format", "json"),
        prefetch=prefetch,
        create=known.get("create") == "true",
        registry=registry_of(known, uri.role),
        events=events_of(known, uri.role),
    )


def _exchange(uri: UriParts, virtual_host: RabbitVirtualHost, name: str) -> ExchangeBinding:
    """Return where a sink publishes to: a queue, or with a routing key an exchange."""
    known = uri.known()
    routing_key = known.get("routing_key")
    creates = known.get("create") == "true"
    if creates and (routing_key is not None or "{" in name):
        raise ValueError(
            "create=true declares one queue; create exchanges, and queues with {field}, yourself"
        )
    if len((routing_key or "").encode()) > _MAX_NAME_BYTES:
        raise ValueError(f"routing keys have at most {_MAX_NAME_BYTES} bytes")
    return ExchangeBinding(
        stream=uri.stream,
        uri=redact(uri.uri),
        virtual_host=virtual_host,
        exchange="" if routing_key is None else name,
        routing_key=name if routing_key is None else routing_key,
        format=known.get("format", "json"),
        create=creates,
        registry=registry_of(known, uri.role),
        events=events_of(known, uri.role),
        origin=uri.switch("origin"),
    )


def _parse_rabbit_stream(uri: UriParts) -> RabbitStreamBinding:
    virtual_host, name = _virtual_host(uri)
    known = uri.known()
    return RabbitStreamBinding(
        stream=uri.stream,
        uri=redact(uri.uri),
        virtual_host=virtual_host,
        name=name,
        format=known.get("format", "json"),
        start=known.get("start", "earliest" if uri.role == "control" else "latest"),
        create=known.get("create") == "true",
        missing=known.get("missing", "fail"),
        registry=registry_of(known, uri.role),
        events=events_of(known, uri.role),
    )


def _parse_console(uri: UriParts) -> ConsoleBinding:
    if uri.rest.strip("/"):
        raise ValueError(f"console: takes nothing after it, but there is {uri.rest!r}")
    uri.known()
    return ConsoleBinding(uri.stream, uri.uri)


def _parse_rate(uri: UriParts) -> RateBinding:
    uri.known()
    if not re.fullmatch(r"[0-9]{1,9}", uri.rest) or int(uri.rest) == 0:
        raise ValueError(f"{uri.rest!r} is not a whole number of records per second")
    return RateBinding(uri.stream, uri.uri, int(uri.rest))


def _parse_discard(uri: UriParts) -> DiscardBinding:
    if uri.rest:
        raise ValueError(f"discard: takes nothing after it, but there is {uri.rest!r}")
    uri.known()
    return DiscardBinding(uri.stream, uri.uri)


@dataclass(frozen=True)
class _Scheme:
    form: str
    roles: tuple[Role, ...]
    parse: Callable[[UriParts], Binding]


_SCHEMES: Final[dict[str, _Scheme]] = {
    **{name: _Scheme(f"{name}:DIR", ALL_ROLES, _parse_files) for name in FILE_SCHEMES},
    "text": _Scheme("text:DIR", SOURCE_ROLES, _parse_files),
    "kafka": _Scheme("kafka://HOST:PORT[,HOST:PORT]/TOPIC", ALL_ROLES, _parse_kafka),
    "socket": _Scheme("socket://HOST:PORT", SOURCE_ROLES, _parse_socket),
    "amqp": _Scheme("amqp://USER[:PASS]@HOST:PORT/VHOST/QUEUE", ALL_ROLES, _parse_queue),
    "amqps": _Scheme("amqps://USER[:PASS]@HOST:PORT/VHOST/QUEUE", ALL_ROLES, _parse_queue),
    "rabbitmq-stream": _Scheme(
        "rabbitmq-stream://USER[:PASS]@HOST:PORT/VHOST/STREAM", SOURCE_ROLES, _parse_rabbit_stream
    ),
    **{
        name: _Scheme(f"{name}://[USER[:PASS]@]HOST:PORT/TOPIC_FILTER", ALL_ROLES, parse_mqtt)
        for name in MQTT_SCHEMES
    },
    "http-listen": _Scheme("http-listen://HOST:PORT/PATH", SOURCE_ROLES, parse_http_listen),
    "spark": _Scheme("spark:FORMAT[?OPTION=VALUE]", ALL_ROLES, parse_spark),
    "python": _Scheme("python:MODULE:CLASS[?OPTION=VALUE]", ALL_ROLES, parse_python),
    "rate": _Scheme("rate:RECORDS_PER_SECOND", ("data",), _parse_rate),
    **{
        name: _Scheme(
            f"{name}://USER[:PASS]@HOST:PORT/DATABASE/[SCHEMA.]TABLE", (*ALL_ROLES, "lookup"), parse_postgres
        )
        for name in POSTGRES_SCHEMES
    },
    "delta": _Scheme("delta:DIR|s3://BUCKET/PREFIX", ALL_ROLES, _parse_delta),
    "iceberg": _Scheme("iceberg:NAMESPACE.TABLE", ALL_ROLES, parse_iceberg),
    **{
        name: _Scheme(f"{name}://[USER[:PASS]@]HOST:PORT/DATABASE/KEY", ("sink",), parse_redis)
        for name in REDIS_SCHEMES
    },
    "cassandra": _Scheme(
        "cassandra://[USER[:PASS]@]HOST:PORT[,HOST:PORT]/KEYSPACE/TABLE", ("sink",), parse_cassandra
    ),
    **{
        name: _Scheme(f"{name}://[USER[:PASS]@]HOST:PORT/INDEX", ("sink",), parse_opensearch)
        for name in SEARCH_SCHEMES
    },
    **{name: _Scheme(f"{name}://HOST[:PORT]/PATH", ("sink",), parse_webhook) for name in WEB_SCHEMES},
    "kinesis": _Scheme("kinesis://STREAM", ALL_ROLES, parse_kinesis),
    "dynamodb": _Scheme("dynamodb://TABLE", ("sink",), parse_dynamodb),
    **{name: _Scheme(f"{name}://BUCKET/PREFIX", ALL_ROLES, parse_objects) for name in BUCKET_SCHEMES},
    "hdfs": _Scheme("hdfs://HOST:PORT/PATH", ALL_ROLES, parse_objects),
    "console": _Scheme("console:", ("sink",), _parse_console),
    "discard": _Scheme("discard:", ("sink",), _parse_discard),
}


def schemes(role: Role) -> Iterable[tuple[str, str]]:
    """Return the schemes that a role allows, with the form of each, for the documentation."""
    return [(name, s.form) for name, s in _SCHEMES.items() if role in s.roles]
