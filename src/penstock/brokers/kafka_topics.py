"""Kafka topics: reach the brokers with a time-out, find topics, and check or create one."""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, TopicMetadata  # type: ignore[attr-defined]  # re-exported without saying so
from confluent_kafka.cimpl import NewTopic

from penstock.bindings.secrets import resolve_settings
from penstock.bindings.types import KafkaBinding
from penstock.brokers.client_logins import ClientLogin
from penstock.brokers.connection_diagnosis import connection_problem
from penstock.errors import BindingError, ExternalSystemError, PlaceMissingError

__all__ = [
    "ANSWER_TIMEOUT_S",
    "LastError",
    "build_client",
    "check_topic",
    "count_partitions",
    "find_topics",
    "kafka_log",
    "partition_leaders",
]

ANSWER_TIMEOUT_S: Final = 6.0
_APPEARS_POLL_S: Final = 0.05

kafka_log: Final = logging.getLogger("penstock.kafka")
"""The logger of librdkafka's own messages. Without a handler they would all go to standard error."""
kafka_log.addHandler(logging.NullHandler())

# librdkafka's own error codes begin with an underscore.
_ALL_BROKERS_DOWN: Final = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001  # librdkafka's own codes begin so
_VAGUE: Final = (_ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._TRANSPORT)  # noqa: SLF001  # librdkafka's own codes begin so
_LOGIN_REFUSED: Final = KafkaError._AUTHENTICATION  # noqa: SLF001  # librdkafka's own codes begin so
_NO_TOPIC: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)  # noqa: SLF001  # librdkafka's own codes begin so

_Client = TypeVar("_Client")


class LastError:
    """The newest error that a client reported, kept because a time-out alone does not say why.

    When brokers refuse its `login`, the client gets the one that files have by then.
    """

    def __init__(self) -> None:
        self.text = ""
        self.login: ClientLogin | None = None

    def __call__(self, error: KafkaError) -> None:
        """Record an error; clients call this."""
        if error.code() == _LOGIN_REFUSED and self.login is not None:
            self.login.renew_soon()
        # "All brokers are down" follows the error that says why, and would hide it.
        if error.code() != _ALL_BROKERS_DOWN or not self.text:
            self.text = error.str()

    def await_login(self) -> None:
        """Wait until a client whose login was refused has the one that files have."""
        if self.login is not None:
            self.login.await_renewal()

    def after(self, error: KafkaError) -> str:
        """Return the reason to show for an error: the one reported before, if this is only a time-out."""
        return self.text if self.text and error.code() in _VAGUE else error.str()


def build_client(
    make: Callable[..., _Client], binding: KafkaBinding, settings: Mapping[str, Any], errors: LastError
) -> _Client:
    """Build a quiet confluent-kafka client, with the values that settings refer to.

    Raises BindingError when it does not know a setting, or a value is not there.
    """
    own = {
        "bootstrap.servers": binding.servers,
        # Looking up a topic must not create it: a mistyped name must be an error.
        "allow.auto.create.topics": False,
        "enable.metrics.push": False,
    }
    quiet = {"error_cb": errors, "log.connection.close": False, "logger": kafka_log}
    found = resolve_settings(binding.stream, settings)
    try:
        client = make({**own, **found, **quiet})
    except (KafkaException, ValueError, TypeError) as e:
        reason = e.args[0].str() if isinstance(e, KafkaException) else str(e)
        for name, value in found.items():
            if value != settings[name]:
                reason = reason.replace(value, str(settings[name]))
        raise BindingError(
            f"Stream {binding.stream!r}: the Kafka client rejects a setting of "
            f"kafka://{binding.servers}/{binding.topic}: {reason}. Correct it in the URI."
        ) from e
    errors.login = ClientLogin.of(binding.stream, settings, client)
    return client


def check_topic(
    binding: KafkaBinding, settings: Mapping[str, Any], timeout_s: float = ANSWER_TIMEOUT_S
) -> int:
    """Return how many partitions the binding's topic has; create the topic first when the binding says so.

    Raises ExternalSystemError when no broker answers, PlaceMissingError when the topic does not exist, and
    BindingError when the Kafka client rejects a setting.
    """
    errors = LastError()
    admin = build_client(AdminClient, binding, settings, errors)
    partitions = count_partitions(admin, binding, errors, timeout_s)
    if partitions is None and binding.create_topic:
        _create(admin, binding, errors, timeout_s)
    if partitions is None and (binding.create_topic or binding.topic in _names(admin, timeout_s)):
        deadline = time.monotonic() + timeout_s
        # A broker learns of a new topic a moment later than the one that has created it.
        while (partitions := count_partitions(admin, binding, errors, timeout_s)) is None:
            if time.monotonic() >= deadline:
                break
            time.sleep(_APPEARS_POLL_S)
    if partitions is None:
        raise PlaceMissingError(
            f"Stream {binding.stream!r}: the topic {binding.topic!r} does not exist on {binding.servers}"
            f"{_similar(binding.topic, _names(admin, timeout_s))}. Create it, or add create_topic=true to the URI."
        )
    return partitions


def partition_leaders(binding: KafkaBinding, settings: Mapping[str, Any]) -> list[int]:
    """Return the number of the broker that leads each partition of the binding's topic, which exists.

    A partition may be without a leader, which is -1. Raises ExternalSystemError when no broker answers.
    """
    errors = LastError()
    admin = build_client(AdminClient, binding, settings, errors)
    topic = _list(admin, binding, binding.topic, errors, ANSWER_TIMEOUT_S)[binding.topic]
    return [partition.leader for partition in topic.partitions.values()]


def find_topics(
    admin: AdminClient, binding: KafkaBinding, errors: LastError, timeout_s: float
) -> dict[str, int]:
    """Return the topics that match the pattern of a binding, each with its number of partitions.

    A topic that brokers are still making is left out. Raises ExternalSystemError when no broker answers.
    """
    listed = _list(admin, binding, None, errors, timeout_s)
    return {
        name: len(topic.partitions)
        for name, topic in sorted(listed.items())
        if topic.error is None and topic.partitions and binding.reads(name)
    }


def count_partitions(
    client: AdminClient | Producer,
    binding: KafkaBinding,
    errors: LastError,
    timeout_s: float,
    name: str | None = None,
) -> int | None:
    """Return how many partitions a topic has, by default that of the binding, or None when it does not exist.

    Raises ExternalSystemError when no broker answers.
    """
    name = name or binding.topic
    topic = _list(client, binding, name, errors, timeout_s)[name]
    if topic.error is None:
        return len(topic.partitions)
    if topic.error.code() in _NO_TOPIC:
        return None
    raise ExternalSystemError(
        f"Stream {binding.stream!r}: the broker {binding.servers} refuses the topic {name!r} "
        f"({topic.error.str()})."
    )


def _list(
    client: AdminClient | Producer,
    binding: KafkaBinding,
    name: str | None,
    errors: LastError,
    timeout_s: float,
) -> dict[str, TopicMetadata]:
    """Return the brokers' description of a topic, or of all topics."""
    try:
        return client.list_topics(name, timeout=timeout_s).topics
    except KafkaException as e:
        # Errors are only reported while the client is polled.
        client.poll(0)
        raise ExternalSystemError(_why_unreachable(binding, errors.after(e.args[0]), timeout_s)) from e


def _why_unreachable(binding: KafkaBinding, reason: str, timeout_s: float) -> str:
    settings = resolve_settings(binding.stream, binding.client)
    problem = connection_problem(binding.servers, settings, reason)
    if problem is not None:
        return f"Stream {binding.stream!r}: the Kafka broker at {binding.servers} cannot be used: {problem}"
    return (
        f"Stream {binding.stream!r}: no Kafka broker answers at {binding.servers} within {timeout_s:g} s "
        f"({reason}). Start the broker, or correct the address in the URI."
    )


def _create(admin: AdminClient, binding: KafkaBinding, errors: LastError, timeout_s: float) -> None:
    new = NewTopic(binding.topic, num_partitions=-1, replication_factor=-1)
    created = admin.create_topics([new], operation_timeout=timeout_s, request_timeout=timeout_s)
    try:
        created[binding.topic].result(timeout_s + 1)
    except KafkaException as e:
        if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise ExternalSystemError(
                f"Stream {binding.stream!r}: the topic {binding.topic!r} cannot be created on "
                f"{binding.servers} ({errors.after(e.args[0])}). Create it by hand."
            ) from e


def _names(admin: AdminClient, timeout_s: float) -> list[str]:
    """Return the names of all topics that the brokers list; none when they do not answer."""
    try:
        return list(admin.list_topics(timeout=timeout_s).topics)
    except KafkaException:
        return []


def _similar(topic: str, names: Sequence[str]) -> str:
    found = difflib.get_close_matches(topic, names, 1)
    return f" (there is {found[0]!r})" if found else ""
