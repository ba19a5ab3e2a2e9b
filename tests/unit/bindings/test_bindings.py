"""Bindings: URIs become typed bindings, and the error for a wrong one says what would be right."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.bindings.parameters import PARAMETERS
from penstock.bindings.parse import allowed_forms, missing_binding, parse_binding, schemes, split_definition
from penstock.bindings.secrets import redact
from penstock.bindings.types import (
    ConsoleBinding,
    DeltaBinding,
    DiscardBinding,
    ExchangeBinding,
    FilesBinding,
    HttpListenBinding,
    IcebergBinding,
    KafkaBinding,
    MqttBinding,
    ObjectsBinding,
    PostgresBinding,
    QueueBinding,
    RabbitStreamBinding,
    RabbitVirtualHost,
    RateBinding,
    RedisBinding,
    Role,
    SocketBinding,
)
from penstock.errors import BindingError

ROLES: tuple[Role, ...] = ("data", "control", "sink")


@pytest.mark.parametrize("scheme", ["jsonl", "csv", "parquet"])
def test_files_take_relative_and_absolute_directories(scheme: str) -> None:
    """A directory is made absolute in the command's working folder, because workers have another."""
    relative = parse_binding("r", f"{scheme}:some/in", "data")
    assert isinstance(relative, FilesBinding)
    assert (relative.format, relative.directory) == (scheme, str(Path.cwd() / "some/in"))
    for uri in (f"{scheme}:/data/in", f"{scheme}:///data/in", f"{scheme.upper()}:/data/in"):
        absolute = parse_binding("r", uri, "sink")
        assert isinstance(absolute, FilesBinding)
        assert absolute.directory == "/data/in"


def test_folders_of_text_are_only_read() -> None:
    """Any folder of text can be a source; a sink needs a format with fields."""
    binding = parse_binding("lines", "text:/data/in?max_files_per_batch=1", "data")
    assert isinstance(binding, FilesBinding)
    assert (binding.format, binding.directory, binding.max_files_per_batch) == ("text", "/data/in", 1)
    with pytest.raises(BindingError, match="text: is only for data streams and control streams"):
        parse_binding("lines", "text:/data/out", "sink")


def test_files_take_escaped_names_and_the_home_directory() -> None:
    """`%3F` is a question mark in a name, and `~` the home directory, which the shell does not expand here."""
    escaped = parse_binding("r", "jsonl:/a%3Fb%20c", "data")
    home = parse_binding("r", "jsonl:~/in", "data")
    assert isinstance(escaped, FilesBinding)
    assert isinstance(home, FilesBinding)
    assert escaped.directory == "/a?b c"
    assert home.directory == str(Path.home() / "in")


def test_folders_may_have_colons_in_their_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Text that is not in URI form is a name, and ./ makes any text a name."""
    monkeypatch.chdir(tmp_path)
    for uri, name in (("jsonl:12:30/in", "12:30/in"), ("jsonl:a:b", "a:b"), ("jsonl:./s3:/b", "s3:/b")):
        binding = parse_binding("r", uri, "data")
        assert isinstance(binding, FilesBinding)
        assert binding.directory == str(tmp_path / name)


def test_a_folder_that_is_a_uri_shows_no_password() -> None:
    """It is refused, but the URI that was meant has a password, which must be masked."""
    with pytest.raises(BindingError) as raised:
        parse_binding("r", "jsonl:amqp://user:sesame@h:1/v/q", "data")
    assert "sesame" not in str(raised.value)


def test_files_limit_the_files_of_a_batch() -> None:
    """`max_files_per_batch` is a number of at least 1, and no limit by default."""
    assert parse_binding("r", "jsonl:in", "data").max_files_per_batch is None  # type: ignore[union-attr]
    binding = parse_binding("r", "jsonl:in?max_files_per_batch=3", "control")
    assert isinstance(binding, FilesBinding)
    assert binding.max_files_per_batch == 3


def test_kafka_has_defaults_by_role() -> None:
    """Data starts at the latest record, control at the earliest and without a limit, a sink has no start."""
    starts = {}
    for role in ROLES:
        binding = parse_binding("r", "kafka://h1:9092,h2:9093/my-topic", role)
        assert isinstance(binding, KafkaBinding)
        assert (binding.servers, binding.topic, binding.format) == ("h1:9092,h2:9093", "my-topic", "json")
        assert (binding.delivery, binding.create_topic, binding.client) == ("at-least-once", False, {})
        starts[role] = (binding.start, binding.max_records_per_batch)
    assert starts == {"data": ("latest", 2_000_000), "control": ("earliest", None), "sink": (None, None)}


def test_kafka_takes_its_parameters_and_client_settings() -> None:
    """A parameter with a dot is a client setting; the prefix `kafka.` marks one without a dot."""
    uri = "kafka://[::1]:9092/t?format=protobuf&start=earliest&max_records_per_batch=10&create_topic=true"
    source = parse_binding("r", uri + "&fetch.max.bytes=5&kafka.check.crcs=false", "data")
    assert source == KafkaBinding(
        "r", source.uri, "[::1]:9092", "t", "protobuf", "earliest", 10, create_topic=True,
        client={"fetch.max.bytes": "5", "check.crcs": "false"},
    )  # fmt: skip
    sink = parse_binding("r", "kafka://h:1/t?delivery=exactly-once&kafka.acks=all&linger.ms=5", "sink")
    assert isinstance(sink, KafkaBinding)
    assert (sink.delivery, sink.client) == ("exactly-once", {"acks": "all", "linger.ms": "5"})


def test_socket_and_console() -> None:
    """A socket has a host and a port; the console has no parameters."""
    assert parse_binding("r", "socket://127.0.0.1:99", "data") == SocketBinding(
        "r", "socket://127.0.0.1:99", "127.0.0.1", 99
    )
    assert parse_binding("r", "socket://[::1]:99", "control").host == "::1"  # type: ignore[union-attr]
    assert parse_binding("r", "console:", "sink") == ConsoleBinding("r", "console:")


def test_a_rate_and_nowhere() -> None:
    """A rate is a number of records per second."""
    assert parse_binding("r", "rate:200", "data") == RateBinding("r", "rate:200", 200)
    assert parse_binding("r", "discard:", "sink") == DiscardBinding("r", "discard:")


def test_queues_and_streams_of_rabbitmq() -> None:
    """Names, users and passwords are unescaped; a stream starts like a topic of Kafka's."""
    queue = parse_binding("r", "amqp://gu%40est:p%2Fw%3A@h:5672/%2F/my%20queue", "control")
    host = RabbitVirtualHost("h", 5672, "gu@est", "p/w:", "/")
    assert queue == QueueBinding("r", "amqp://gu%40est:***@h:5672/%2F/my%20queue", host, "my queue")
    assert (queue.format, queue.prefetch, queue.create) == ("json", 1000, False)
    uri = "amqps://u:pw@[::1]:5671/v/q?format=protobuf&prefetch=65535&create=true"
    secure = parse_binding("r", uri, "data")
    assert isinstance(secure, QueueBinding)
    assert secure.virtual_host == RabbitVirtualHost("::1", 5671, "u", "pw", "v", secure=True)
    assert (secure.format, secure.prefetch, secure.create) == ("protobuf", 65535, True)
    for role, start in (("data", "latest"), ("control", "earliest")):
        stream = parse_binding("r", "rabbitmq-stream://u:pw@h:5552/v/s?format=bytes", role)  # type: ignore[arg-type]
        assert isinstance(stream, RabbitStreamBinding)
        assert (stream.name, stream.format, stream.start, stream.create) == ("s", "bytes", start, False)
    other = parse_binding("r", "rabbitmq-stream://u:pw@h:5552/v/s?start=earliest", "data")
    assert isinstance(other, RabbitStreamBinding)
    assert other.start == "earliest"


def test_a_sink_of_rabbitmq_names_a_queue_or_an_exchange() -> None:
    """With a routing key the path names an exchange."""
    queue = parse_binding("r", "amqp://u@h:5672/v/hall-{room}?password=env:P&origin=false", "sink")
    host = RabbitVirtualHost("h", 5672, "u", "env:P", "v")
    uri = "amqp://u@h:5672/v/hall-{room}?password=env:P&origin=false"
    assert queue == ExchangeBinding("r", uri, host, "", "hall-{room}", origin=False)
    exchange = parse_binding("r", "amqps://u:pw@h:5671/%2F/readings?routing_key=hall.{room}.%2B", "sink")
    assert isinstance(exchange, ExchangeBinding)
    assert (exchange.exchange, exchange.routing_key) == ("readings", "hall.{room}.+")
    assert (exchange.virtual_host.secure, exchange.origin, exchange.create) == (True, None, False)
    assert "pw" not in repr(exchange)


def test_a_job_may_listen_for_requests() -> None:
    """The binding has an address and a path; nothing displayed has the token."""
    binding = parse_binding("r", "http-listen://[::]:8080/a/b%3F?token=s3same&max_request_bytes=9", "control")
    assert isinstance(binding, HttpListenBinding)
    assert (binding.host, binding.port, binding.path, binding.max_request_bytes) == ("::", 8080, "/a/b?", 9)
    assert "s3same" not in repr(binding)
    root = parse_binding("r", "http-listen://h:1", "data")
    assert isinstance(root, HttpListenBinding)
    assert (root.path, root.certfile, root.max_journal_bytes) == ("/", None, 1 << 30)


def test_object_stores_have_their_form_and_keys_by_reference() -> None:
    """Keys are given as names of environment variables; a literal secret in the URI is masked."""
    binding = parse_binding(
        "r",
        "s3://b/some/day%201/?format=jsonl&endpoint=http://h:1&access_key_id=k&secret_access_key=pw&session_token=env:T",
        "sink",
    )
    assert isinstance(binding, ObjectsBinding)
    assert (binding.bucket, binding.prefix, binding.format) == ("b", "some/day 1", "jsonl")
    assert binding.place == "s3://b/some/day 1"
    assert binding.client == {
        "AWS_ENDPOINT_URL_S3": "http://h:1",
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "pw",
        "AWS_SESSION_TOKEN": "env:T",
    }
    assert "secret_access_key=***&session_token=env:T" in binding.uri
    assert "pw" not in repr(binding)
    for scheme in ("gs", "az"):
        whole = parse_binding("r", f"{scheme}://b?format=parquet", "sink")
        assert isinstance(whole, ObjectsBinding)
        assert (whole.scheme, whole.bucket, whole.prefix) == (scheme, "b", "")


WRONG: list[tuple[str, Role, str]] = [
    ("kafka://h:1/t?format=avro", "data", "format=avro needs registry=http://HOST:PORT"),
    ("kafka://h:1/t?format=bytes&registry=http://r:1", "data", "format=bytes has no schemas"),
    ("kafka://h:1/t?registry_user=me", "data", "registry_user needs registry=http://HOST:PORT"),
    ("kafka://h:1/t?format=avro&registry=r:8081", "data", "'r:8081' is not of the form http://HOST:PORT"),
    ("kafka://h:1/t?format=avro&registry=http://me:x@r", "data", "registry= has no login"),
    ("kafka://h:1/t?format=avro&registry=http://r&registry_user=me", "data", "need each other"),
    ("mqtt://h:1/t?format=avro&registry=http://r:1", "sink", "needs subject=NAME"),
    ("kafka://h:1/t?attributes=a", "data", "attributes is for format=cloudevents alone"),
    ("kafka://h:1/t?format=cloudevents&attributes=room_id", "data", "attributes have lower-case letters"),
    ("kafka://h:1/t?format=cloudevents&attributes=a:data", "data", "a record has no say in data"),
    ("kafka://h:1/t?format=cloudevents&attributes=a:id", "sink", "a record has no say in id; use event_id="),
    ("kafka://h:1/t?event_mode=binary", "sink", "event_mode is for format=cloudevents alone"),
    (
        "kafka://h:1/t?format=cloudevents&event_id={a}&event_source=b&event_type=c&headers=a:content-type",
        "sink",
        "headers=a:content-type, but an event has a header of that name itself",
    ),
    (
        "kafka://h:1/t?format=cloudevents&event_id={a}&event_source=b&event_type=c&event_mode=binary&headers=ce_id",
        "sink",
        "headers=ce_id:ce_id, but an event has a header of that name itself",
    ),
    ("http://h/x?event_id=a", "sink", "event_id is for format=cloudevents alone"),
    ("http://h/x?format=avro", "sink", "format='avro' must be one of json, cloudevents"),
    (
        "http://h/x?format=cloudevents&event_id={a}&event_source=b&event_type=c&event_mode=binary&header.CE-Room=a",
        "sink",
        "header.CE-Room is an attribute of an event; use attributes=",
    ),
    (
        "http://h/x?format=cloudevents&event_id={a}&event_source=b&event_type=c&event_mode=binary&records_per_request=2",
        "sink",
        "records_per_request=2, but with event_mode=binary a request is one event",
    ),
    ("http-listen://h:1/t?attributes=a:id", "data", "attributes is for format=cloudevents alone"),
    ("mqtt://h:1/t?format=cloudevents&event_id=x", "sink", "needs event_source=TEXT, event_type=TEXT"),
    ("csv:in?delimiter=none", "data", "delimiter=none separates no values"),
    ("csv:in?delimiter=;;", "data", "delimiter=';;' must be one ASCII character"),
    ("csv:in?quote=x", "data", "quote='x' must be one ASCII character that is not a letter or digit"),
    ("csv:in?quote=;&delimiter=;", "data", "delimiter and quote are both ';'"),
    ("csv:in?header=no", "data", "header='no' must be one of true, false"),
    ("jsonl:in?delimiter=;", "data", "unknown parameter 'delimiter'"),
    ("csv:out?header=false", "sink", "header has no meaning for a sink"),
    ("/data/in", "data", "no scheme"),
    ("", "data", "no scheme"),
    ("json:in", "data", "did you mean jsonl:"),
    ("ftp://h/x", "data", "the scheme 'ftp' is unknown"),
    ("jsonl:", "data", "directory is missing"),
    ("jsonl:?max_files_per_batch=1", "data", "directory is missing"),
    ("jsonl:~nobody-here/in", "data", "no user '~nobody-here'"),
    ("jsonl:a%00b", "data", "NUL"),
    ("jsonl://data/in", "data", "write jsonl:DIR"),
    (
        "csv:s3://b/x",
        "sink",
        "s3:// is not a local folder; bind to an object store with s3://BUCKET/PREFIX?format=parquet",
    ),
    ("parquet:gs://b/x", "data", "bind to an object store with s3://BUCKET/PREFIX"),
    ("s3://b/x?format=csv&names=growing", "sink", "names has no meaning for a sink"),
    ("s3://b/x?format=csv&names=other", "data", "must be one of any, growing, manifests"),
    ("s3://b/x?format=csv&delimiter=none", "data", "separates no values"),
    ("s3://b/x", "sink", "it needs ?format=parquet, jsonl or csv"),
    ("s3://b/x?format=text", "sink", "format='text' must be one of jsonl, csv, parquet"),
    ("s3:b/x?format=csv", "sink", "needs // before the host"),
    ("s3://key:pw@b/x?format=csv", "sink", "keys do not stand before the bucket"),
    ("s3://b{/x?format=csv", "sink", "'b{' is not the name of a bucket"),
    ("s3://b/x//y?format=csv", "sink", "has an empty part"),
    ("s3://b/x/%2E%2E/y?format=csv", "sink", "has an empty part, '.' or '..'"),
    ("s3://b/x%0A?format=csv", "sink", "control characters"),
    ("s3://b/x?format=csv&access_key_id=a", "sink", "secret_access_key belong together"),
    ("s3://b/x?format=csv&session_token=env:T", "sink", "session_token belongs to access_key_id"),
    ("s3://b/x?format=csv&endpoint=h:1", "sink", "must be an address like https://HOST:PORT"),
    ("gs://b/x?format=csv&region=r", "sink", "unknown parameter 'region'"),
    ("csv:S3%3A//b/x", "sink", "s3:// is not a local folder"),
    ("jsonl:hdfs://h/x", "data", "hdfs:// is not a local folder; bind to HDFS with hdfs://HOST:PORT/PATH"),
    ("hdfs://h:8020?format=csv", "sink", "a folder of their own: hdfs://HOST:PORT/PATH"),
    ("hdfs://me@h/x?format=csv", "sink", "users and keys do not stand before the bucket or host"),
    ("hdfs://h:80200x/y?format=csv", "sink", "'h:80200x' is not the address of a NameNode, like HOST:8020"),
    ("hdfs://h/x?format=csv&region=eu", "sink", "region"),
    ("jsonl:file:///data/in", "data", "write the path alone, jsonl:/DIR"),
    ("text:file:in", "control", "write the path alone, text:/DIR"),
    ("jsonl:kafka://h:1/t", "sink", "write kafka://... without jsonl: before it"),
    ("jsonl:csv:in", "data", "write csv:... without jsonl: before it"),
    ("jsonl:https://h/x", "data", "A folder of that name is jsonl:./https:..."),
    ("jsonl:in?max_files_per_batch=x", "data", "whole number"),
    ("jsonl:in?max_files_per_batch=0", "data", "at least 1"),
    ("jsonl:in?max_files_per_batch=-1", "data", "at least 1"),
    ("jsonl:in?max_files_per_batch=", "data", "form name=value"),
    ("jsonl:in?max_files_per_batch", "data", "form name=value"),
    ("jsonl:in?max_file_per_batch=1", "data", "did you mean max_files_per_batch"),
    ("jsonl:in?max_files_per_batch=1&max_files_per_batch=2", "data", "given twice"),
    ("jsonl:in?max_files_per_batch=1", "sink", "no meaning for a sink"),
    ("jsonl:in?fetch.max.bytes=1", "data", "unknown parameter 'fetch.max.bytes'"),
    ("kafka:h:1/t", "data", "needs //"),
    ("kafka:///t", "data", "host is missing"),
    ("kafka://h/t", "data", "'h' is not of the form HOST:PORT"),
    ("kafka://h:1,/t", "data", "'' is not of the form HOST:PORT"),
    ("kafka://h:99999/t", "data", "between 1 and 65535"),
    ("kafka://h:1", "data", "topic is missing"),
    ("kafka://h:1/", "data", "topic is missing"),
    ("kafka://h:1/a/b", "data", "not a topic name"),
    ("kafka://h:1/t?format=xml", "data", "one of json, protobuf, bytes"),
    ("kafka://h:1/t?formt=json", "data", "did you mean format"),
    ("kafka://h:1/t?start=newest", "data", "one of latest, earliest"),
    ("kafka://h:1/t?start=latest", "sink", "no meaning for a sink"),
    ("kafka://h:1/t?delivery=exactly-once", "data", "no meaning for a data stream"),
    ("kafka://h:1/t?delivery=twice", "sink", "at-least-once, exactly-once"),
    ("kafka://h:1/t?create_topic=yes", "sink", "one of true, false"),
    ("kafka://h:1/t?group.id=g", "data", "group.id is set by penstock"),
    ("kafka://h:1/t?kafka.transactional.id=g", "sink", "delivery=exactly-once instead"),
    ("kafka://h:1/t?kafka.acks=1&kafka.acks=2", "sink", "given twice"),
    ("kafka://h:1/t?kafka.check.crcs=true&check.crcs=false", "data", "given twice"),
    ("socket://h", "data", "not of the form HOST:PORT"),
    ("socket://h:0", "data", "between 1 and 65535"),
    ("socket://h:1/path", "data", "no path"),
    ("socket://h:1?x=1", "data", "unknown parameter 'x'"),
    ("socket://h:1", "sink", "only for data streams and control streams"),
    ("amqp://u:@h:1/v", "data", "/VHOST/QUEUE"),
    ("amqp://u:@h:1/v/", "data", "/VHOST/QUEUE"),
    ("amqp://u:@h:1//q", "data", "%2F is the virtual host /"),
    ("amqp://u:@h:1/v/q/r", "data", "/VHOST/QUEUE"),
    ("rabbitmq-stream://u:@h:1/s", "data", "/VHOST/STREAM"),
    ("amqp://h:1/v/q", "data", "needs USER:PASS@"),
    ("amqp://u@h:1/v/q", "data", "needs USER:PASS@"),
    ("amqp://u:p@h:1/v/q?password=env:P", "data", "needs USER:PASS@"),
    ("amqp://u@h:1/v/q?password=env:1", "data", "must name an environment variable"),
    ("amqp:u:@h:1/v/q", "data", "needs //"),
    ("amqp://u:@h/v/q", "data", "'h' is not of the form HOST:PORT"),
    ("amqp://u:@h:1/v/q?prefetch=0", "data", "at least 1"),
    ("amqp://u:@h:1/v/q?prefetch=65536", "data", "at most 65535"),
    ("amqp://u:@h:1/v/q?create=yes", "data", "one of true, false"),
    ("amqp://u:@h:1/v/q?start=latest", "data", "unknown parameter 'start'"),
    ("amqp://u:@h:1/v/q?prefetc=1", "data", "did you mean prefetch"),
    ("rabbitmq-stream://u:@h:1/v/s?prefetch=1", "data", "unknown parameter 'prefetch'"),
    ("rabbitmq-stream://u:@h:1/v/s?start=newest", "data", "one of latest, earliest"),
    ("amqp://u:@h:1/v/q?prefetch=1", "sink", "prefetch has no meaning for a sink"),
    ("amqp://u:@h:1/v/q?routing_key=a", "data", "routing_key has no meaning for a data stream"),
    ("amqp://u:@h:1/v/e?routing_key=a&create=true", "sink", "create=true declares one queue"),
    ("amqp://u:@h:1/v/q-{room}?create=true", "sink", "create=true declares one queue"),
    (f"amqp://u:@h:1/v/e?routing_key={'k' * 256}", "sink", "at most 255 bytes"),
    ("http-listen://h/p", "data", "'h' is not of the form HOST:PORT"),
    ("http-listen://h:1/p", "sink", "only for data streams and control streams"),
    ("http-listen://t@h:1/p", "data", "a login is a token"),
    ("http-listen://h:1/p?certfile=/c", "data", "both certfile=PATH and keyfile=PATH"),
    ("http-listen://h:1/p?certfile=c&keyfile=/k", "data", "must be an absolute path"),
    ("http-listen://h:1/p?max_journal_bytes=1", "data", "at least 536870912"),
    ("http-listen://h:1/p?max_request_bytes=1000000000", "data", "at most 268435456"),
    ("http-listen://h:1/p?tokn=env:T", "data", "did you mean token"),
    ("rabbitmq-stream://u:@h:1/v/s", "sink", "only for data streams and control streams"),
    ("postgresql://h:1/d/t", "sink", "needs USER@ before the host"),
    ("postgresql://u@h/d/t", "sink", "'h' is not of the form HOST:PORT"),
    ("postgresql://u@h:1/d", "sink", "needs /DATABASE/TABLE"),
    ("postgresql://u@h:1/d/t/x", "sink", "needs /DATABASE/TABLE"),
    ("postgresql://u@h:1/d/s.", "sink", "1 to 63 bytes"),
    ("postgresql://u:p@q@h:1/d/t", "sink", "write @ as %40"),
    ("postgresql://u:12?hush@h:1/d/t", "sink", "write @ as %40"),
    ("https://u:my?hush@h/hook", "sink", "write @ as %40"),
    ("kafka://u:hush@h:1/t", "sink", "a login has no place before this HOST:PORT"),
    ("socket://u:hush@h:1", "data", "a login has no place before this HOST:PORT"),
    ("mqtt://u:my?hu=sh@h:1/t", "data", "write @ as %40"),
    ("postgresql://u@h:1/d/t?upsert_by=a,a", "sink", "must name fields, each once"),
    ("postgresql://u@h:1/d/t?upsert_by=a b", "sink", "must name fields, each once"),
    ("postgresql://u@h:1/d/t?sslmode=on", "sink", "one of disable, prefer"),
    ("postgresql://u@h:1/d/t?sslrootcert=ca.pem", "sink", "absolute path, or system"),
    ("postgresql://u@h:1/d/t?sslkey=key.pem", "sink", "absolute path"),
    ("postgresql://u@h:1/d/t?password=env:1", "sink", "must name an environment variable"),
    ("postgresql://u:p@h:1/d/t?password=env:P", "sink", "given twice"),
    ("postgresql://u@h:1/d/t", "data", "needs poll_by=COLUMN"),
    ("postgresql://u@h:1/d/t?poll_by=id&poll_s=0", "control", "must be a whole number of at least 1"),
    ("postgresql://u@h:1/d/t?poll_by=id&upsert_by=id", "data", "upsert_by has no meaning for a data stream"),
    ("postgresql://u@h:1/d/t?poll_by=id", "sink", "poll_by has no meaning for a sink"),
    ("delta:", "sink", "the directory is missing"),
    ("delta:gs://bucket/t", "sink", "is not a local folder"),
    ("delta:t?partition_by=a,a", "sink", "must name fields, each once"),
    ("delta:t?create_table=no", "sink", "one of true, false"),
    ("delta:t?create_table=true", "data", "create_table has no meaning for a data stream"),
    ("delta:t?changed=skip", "sink", "changed has no meaning for a sink"),
    (
        "iceberg:seen?catalog=/c.db&warehouse=/w",
        "sink",
        "it needs the name of a table, iceberg:NAMESPACE.TABLE",
    ),
    ("iceberg:a.b", "sink", "it needs catalog=/PATH"),
    ("iceberg:a.b?catalog=/c.db", "sink", "it needs warehouse=/DIR or warehouse=s3://BUCKET/PREFIX"),
    ("iceberg:a.b?catalog=/c.db&warehouse=/w%3Fx", "sink", "cannot contain"),
    ("iceberg:a.b?catalog=/c.db&warehouse=/w&token=env:T", "sink", "token has no meaning for this catalog"),
    (
        "iceberg:a.b?catalog=postgresql://u:hidden@h/d&warehouse=/w",
        "sink",
        "has no password; give it by reference",
    ),
    (
        "iceberg:a.b?catalog=/c.db&warehouse=/w&partition_by=week(at)",
        "sink",
        "must name fields, or year(FIELD)",
    ),
    ("iceberg:a.b?catalog=/c.db&warehouse=/w&partition_by=at,day(at)", "sink", "must name each field once"),
    ("redis://h/0/k", "sink", "'h' is not of the form HOST:PORT"),
    ("redis://h:1/0", "sink", "needs /DATABASE/KEY"),
    ("redis://h:1/main/k", "sink", "needs /DATABASE/KEY"),
    ("redis://h:1/0/k:{", "sink", "name of a field in each pair of braces"),
    ("redis://h:1/0/k:{}", "sink", "name of a field in each pair of braces"),
    ("redis://@h:1/0/k", "sink", "user before @ is missing"),
    ("redis://u:p@q@h:1/0/k", "sink", "write @ as %40"),
    ("redis://u:p@h:1/0/k?password=env:P", "sink", "given twice"),
    ("redis://h:1/0/k?type=list", "sink", "one of hash, json"),
    ("redis://h:1/0/k?ttl_s=0", "sink", "at least 1"),
    ("redis://h:1/0/k?cafile=/ca.pem", "sink", "unknown parameter 'cafile'"),
    ("rediss://h:1/0/k?cafile=ca.pem", "sink", "must be an absolute path"),
    ("redis://h:1/0/k", "data", "only for sinks"),
    ("mqtt://h/t", "data", "'h' is not of the form HOST:PORT"),
    ("mqtt://h:1", "data", "needs a topic after the port"),
    ("mqtt://h:1/a/#/b", "data", "not a topic filter"),
    ("mqtt://h:1/a/b+", "data", "not a topic filter"),
    ("mqtt://@h:1/t", "data", "user before @ is missing"),
    ("mqtt://u:p@q@h:1/t", "data", "write @ as %40"),
    ("mqtt://h:1/t?password=env:P", "data", "needs USER@"),
    ("mqtt://u:p@h:1/t?password=env:P", "data", "given twice"),
    ("mqtt://h:1/t?cafile=/ca.pem", "data", "unknown parameter 'cafile'"),
    ("mqtts://h:1/t?cafile=ca.pem", "data", "must be an absolute path"),
    ("mqtt://h:1/t?prefetch=65536", "data", "at most 65535"),
    ("mqtt://h:1/t?protocol=4", "data", "one of 5, 3.1.1"),
    ("mqtt://h:1/a/+", "sink", "a sink writes to one topic"),
    ("mqtt://h:1/$share/group", "data", "is not a shared subscription"),
    ("mqtt://h:1/$share//a/+", "data", "is not a shared subscription"),
    ("mqtt://h:1/t?prefetch=5", "sink", "no meaning for a sink"),
    ("mqtt://h:1/t?origin=true&protocol=3.1.1", "sink", "origin=true needs protocol=5"),
    ("mqtt://h:1/t?retain=true", "data", "no meaning for a data stream"),
    ("https:host/hook", "sink", "needs //"),
    ("https://u:p@host/hook", "sink", "a login goes into a header"),
    ("https://ho st/hook", "sink", "not of the form HOST:PORT"),
    ("https://host/a b", "sink", "a space as %20"),
    ("https://host/hook?x=1", "sink", "unknown parameter 'x'"),
    ("https://host/hook?header.Content-Type=text/xml", "sink", "set by penstock"),
    ("https://host/hook?header.A%20B=1", "sink", "is not a header"),
    ("https://host/hook?header.A=1%0d%0aB:2", "sink", "is not a header"),
    ("https://host/hook?header.A=env:1", "sink", "must name an environment variable"),
    ("https://host/hook?requests_at_once=65", "sink", "at most 64"),
    ("https://host/hook?retry_s=0", "sink", "at least 1"),
    ("https://host/hook", "data", "only for sinks"),
    ("console:", "control", "only for sinks"),
    ("console:x", "sink", "nothing after it"),
    ("discard:x", "sink", "nothing after it"),
    ("discard:", "data", "only for sinks"),
    ("rate:0", "data", "not a whole number"),
    ("rate:", "data", "not a whole number"),
    ("rate:1.5", "data", "not a whole number"),
    ("rate:1?x=1", "data", "unknown parameter 'x'"),
    ("rate:1", "control", "only for data streams"),
]


def test_mqtt_names_the_topics_of_a_broker() -> None:
    """The topic's slashes are those of the path; nothing displayed has the password."""
    binding = parse_binding(
        "r", "mqtts://me:s%40crt@[::1]:8883/hall/+/a%3Fb/#?client_id=x y&cafile=/ca", "control"
    )
    assert isinstance(binding, MqttBinding)
    assert (binding.host, binding.port, binding.topic, binding.user) == ("::1", 8883, "hall/+/a?b/#", "me")
    assert (binding.secure, binding.client_id, binding.cafile, binding.protocol) == (True, "x y", "/ca", "5")
    assert binding.login == {"password": "s@crt"}
    assert "crt" not in repr(binding)
    assert not binding.is_one_topic
    sink = parse_binding("r", "mqtts://h:8883/{room}?cafile=/ca&origin=false", "sink")
    assert isinstance(sink, MqttBinding)
    assert (sink.cafile, sink.origin) == ("/ca", False)


def test_postgresql_names_a_table() -> None:
    """The default schema is public; nothing displayed has the password."""
    binding = parse_binding(
        "r", "postgresql://me:s%40crt@db:5432/shop/a.b%2Fc?upsert_by=id,day&sslmode=require", "sink"
    )
    assert isinstance(binding, PostgresBinding)
    assert (binding.host, binding.port, binding.database, binding.schema, binding.table) == (
        "db",
        5432,
        "shop",
        "a",
        "b/c",
    )
    assert binding.client == {"user": "me", "password": "s@crt", "sslmode": "require"}
    assert binding.upsert_by == ("id", "day")
    assert "crt" not in repr(binding)
    source = parse_binding(
        "r", "postgresql://me@db:5432/shop/orders?poll_by=id&poll_s=5&start=latest", "data"
    )
    assert isinstance(source, PostgresBinding)
    assert (source.poll_by, source.poll_s, source.start, source.poll_delay_s) == ("id", 5, "latest", None)
    plain = parse_binding("r", "postgres://me@[::1]:5432/shop/orders", "sink")
    assert isinstance(plain, PostgresBinding)
    assert (plain.host, plain.schema, plain.table, plain.upsert_by) == ("::1", "public", "orders", ())


def test_delta_names_the_folder_of_a_table() -> None:
    binding = parse_binding("r", "delta:/lake/alerts?partition_by=day,room&create_table=false", "sink")
    assert isinstance(binding, DeltaBinding)
    assert (binding.directory, binding.partition_by) == ("/lake/alerts", ("day", "room"))
    assert not binding.create_table
    source = parse_binding(
        "r", "delta:/lake/alerts?start=latest&changed=skip&max_files_per_batch=3", "control"
    )
    assert isinstance(source, DeltaBinding)
    assert (source.reading.start, source.reading.changed, source.reading.max_files_per_batch) == (
        "latest",
        "skip",
        3,
    )
    plain = parse_binding("r", "delta:alerts", "sink")
    assert isinstance(plain, DeltaBinding)
    assert (plain.path, plain.partition_by, plain.create_table) == (Path("alerts").absolute(), (), True)


def test_a_source_reads_objects_as_files() -> None:
    """It has the parameters of folders; nothing displayed has the keys."""
    uri = "s3://b/in?format=csv&names=growing&delimiter=tab&max_files_per_batch=7&missing=skip"
    found = parse_binding("r", f"{uri}&access_key_id=k&secret_access_key=hidden", "control")
    assert isinstance(found, ObjectsBinding)
    assert found.names == "growing"
    assert found.reading is not None
    assert (found.reading.format, found.reading.directory) == ("csv", "s3://b/in")
    assert (found.reading.max_files_per_batch, found.reading.missing) == (7, "skip")
    assert found.reading.dialect.delimiter == "\t"
    assert "hidden" not in found.uri + found.reading.uri + repr(found)


def test_iceberg_names_a_table_of_a_catalog() -> None:
    """Nothing displayed has the secrets, or parameters that may be secrets."""
    uri = "iceberg:plant.line1.seen?catalog=https://lake.example&credential=me:hidden&warehouse=prod"
    binding = parse_binding("r", f"{uri}&partition_by=day(at),bucket(16,sensor),room", "sink")
    assert isinstance(binding, IcebergBinding)
    assert (binding.place, binding.is_rest, binding.warehouse) == ("plant.line1.seen", True, "prod")
    assert [str(rule) for rule in binding.partition_by] == ["day(at)", "bucket(16,sensor)", "room"]
    assert "hidden" not in binding.uri + repr(binding)
    by_database = parse_binding(
        "r",
        "iceberg:a.b?catalog=postgresql://me@db:5432/lake&password=env:PW&warehouse=s3://bucket/lake/",
        "sink",
    )
    assert isinstance(by_database, IcebergBinding)
    assert (by_database.catalog, by_database.warehouse, by_database.login) == (
        "postgresql+psycopg://me@db:5432/lake",
        "s3://bucket/lake",
        {"password": "env:PW"},
    )
    in_file = parse_binding("r", "iceberg:a.b?catalog=/lake/c.db&warehouse=/lake", "sink")
    assert isinstance(in_file, IcebergBinding)
    assert (in_file.catalog, in_file.warehouse) == ("sqlite:////lake/c.db", "file:///lake")


def test_redis_names_keys_of_a_database() -> None:
    """Nothing displayed has the password; user names are optional."""
    binding = parse_binding(
        "r",
        "rediss://me:s%40crt@cache:6380/2/plant/{room}:%7Bsensor%7D?type=json&ttl_s=60&cafile=/ca.pem",
        "sink",
    )
    assert isinstance(binding, RedisBinding)
    assert (binding.host, binding.port, binding.database) == ("cache", 6380, 2)
    assert (binding.key, binding.type, binding.ttl_s) == ("plant/{room}:{sensor}", "json", 60)
    assert (binding.user, binding.login, binding.secure, binding.cafile) == (
        "me",
        {"password": "s@crt"},
        True,
        "/ca.pem",
    )
    assert "crt" not in repr(binding)
    plain = parse_binding("r", "redis://:s3crt@[::1]:6379/0/newest", "sink")
    assert isinstance(plain, RedisBinding)
    assert (plain.host, plain.user, plain.secure, plain.type, plain.ttl_s) == (
        "::1",
        None,
        False,
        "hash",
        None,
    )
    assert "crt" not in repr(plain)


@pytest.mark.parametrize(("uri", "role", "expected"), WRONG)
def test_a_wrong_uri_names_stream_uri_and_allowed_forms(uri: str, role: Role, expected: str) -> None:
    """The message alone suffices to correct a mistyped binding."""
    with pytest.raises(BindingError) as raised:
        parse_binding("heaters", uri, role)
    message = str(raised.value)
    assert "'heaters'" in message
    assert repr(redact(uri)) in message
    assert expected in message
    scheme = uri.partition(":")[0].lower()
    assert allowed_forms(role, scheme if scheme in dict(schemes(role)) else None) in message
    assert "hush" not in message.partition("Allowed for")[0]


@given(
    uri=st.text(max_size=40),
    scheme=st.sampled_from(["jsonl:", "kafka://h:1/t?", "socket://", "amqp://u:p@h:1", ""]),
)
def test_any_text_is_a_binding_or_a_binding_error(uri: str, scheme: str) -> None:
    """The parser fails in no other way for any input."""
    for role in ROLES:
        try:
            binding = parse_binding("s", scheme + uri, role)
        except BindingError:
            continue
        assert binding.uri in (scheme + uri, redact(scheme + uri))


def test_every_parameter_is_documented_and_has_a_form() -> None:
    """The table, from which errors and documentation are made, says what each parameter means."""
    for parameter in PARAMETERS:
        assert parameter.meaning.endswith(".")
        for role in parameter.roles:
            assert parameter.form in allowed_forms(role)


def test_bindings_are_frozen() -> None:
    """A binding does not change once it is parsed."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse_binding("r", "jsonl:in", "data").stream = "x"  # type: ignore[misc]


def test_definitions_are_split_at_the_first_equals_sign() -> None:
    """The URI may contain equals signs."""
    assert split_definition("a=jsonl:in?max_files_per_batch=1") == ("a", "jsonl:in?max_files_per_batch=1")
    for wrong in ("readings", "=jsonl:in", "readings=", "a b=jsonl:in", "jsonl:in?max_files_per_batch=1"):
        with pytest.raises(BindingError, match="NAME=URI"):
            split_definition(wrong)


def test_a_missing_binding_says_what_to_add() -> None:
    """The error for an unbound stream has the option to add and the allowed forms."""
    message = str(missing_binding("heaters", "sink"))
    assert "Sink 'heaters' has no binding. Add -D heaters=URI." in message
    assert "console:" in message


def test_secrets_do_not_reach_messages() -> None:
    """Passwords in client settings are masked wherever a URI is shown."""
    uri = "kafka://h:1/t?sasl.password=hunter2&ssl.key.password=abc&formt=json"
    assert "hunter2" not in redact(uri)
    with pytest.raises(BindingError) as raised:
        parse_binding("s", uri, "data")
    assert "hunter2" not in str(raised.value)
    assert "abc" not in str(raised.value)


RABBIT = ["amqp", "amqps", "rabbitmq-stream", "ampq", "rabbitmq"]


@examples(100)
@given(
    scheme=st.sampled_from(RABBIT),
    before=st.text("ab:/?@&=%# ", max_size=3),
    behind=st.text("ab:/?@&=%# ", max_size=3),
    slashes=st.sampled_from(["//", "//", "/", ""]),
    place=st.sampled_from(
        ["h:5672/v/q", "h/v/q", "h:5672/v/q?prefetch=x", "h:5672", "h:1/v/q?format=xml&x=y"]
    ),
    role=st.sampled_from(ROLES),
)
def test_no_password_reaches_a_message(
    scheme: str, before: str, behind: str, slashes: str, place: str, role: Role
) -> None:
    """This holds for unescaped passwords, and for URIs that are wrong in another way."""
    uri = f"{scheme}:{slashes}user:{before}s3cr3t{behind}@{place}"
    assert "s3cr3t" not in redact(uri)
    try:
        binding = parse_binding("s", uri, role)
    except BindingError as e:
        found = str(e)
    else:
        found = repr(binding)
        assert "s3cr3t" in dataclasses.asdict(binding)["virtual_host"]["password"]
    assert "s3cr3t" not in found
    with pytest.raises(BindingError) as raised:
        split_definition("no name=" + uri)
    assert "s3cr3t" not in str(raised.value)
