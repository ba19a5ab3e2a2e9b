"""A connection to an MQTT broker, in one thread: everything happens in `wait`."""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from penstock.base.tls_ports import tls_advice
from penstock.bindings.secrets import resolve_setting
from penstock.bindings.types import MqttBinding
from penstock.errors import BindingError, ExternalSystemError, PenstockError
from penstock.records.cloud_events import EVENT_CONTENT_TYPE
from penstock.sinks.message_parts import ORIGIN_HEADER
from penstock.sinks.publishing_sink import OutgoingMessage

__all__ = [
    "Arrived",
    "MqttConnection",
    "check_connection",
    "check_topic_filter",
    "open_subscription",
    "publish_to_topic",
]

_ANSWER_S: Final = 10.0
_KEEPALIVE_S: Final = 30
_STEP_S: Final = 0.1
_FAILED: Final = 128
# A session, with its waiting messages, outlives a stopped job for this long.
_SESSION_S: Final = 7 * 24 * 3600
_QOS: Final = 1
_IN_FLIGHT: Final = 2000
# The number of arriving messages that are taken before other work is done.
_MOST_AT_ONCE: Final = 200
# More bytes than a packet has besides its topic and its body.
_OTHER_BYTES: Final = 1024


class Arrived(NamedTuple):
    """A message, with what acknowledges it."""

    number: int
    qos: int
    body: bytes


class MqttConnection:
    """A connection to a broker; a context manager. Messages stay with the broker until they are acknowledged.

    With a `session` the broker keeps what comes for the subscription while nobody is connected. Creating one raises
    ExternalSystemError; everything else raises ConnectionError when the connection is lost.
    """

    def __init__(self, binding: MqttBinding, session: str | None) -> None:
        self._binding: Final = binding
        self._arrived: Final[list[Arrived]] = []
        self._answer: Any = None
        self._confirmed: Final[dict[int, Any]] = {}
        self._ended = ""
        self._max_packet_bytes: int | None = None
        is_5 = binding.protocol == "5"
        keeps = session is not None
        self._client: Final = paho.Client(
            CallbackAPIVersion.VERSION2,
            session or f"penstock-{uuid.uuid4().hex[:12]}",
            clean_session=None if is_5 else not keeps,
            protocol=paho.MQTTv5 if is_5 else paho.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        self._prepare()
        try:
            self._connect(is_5=is_5, keeps=keeps)
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        binding, client = self._binding, self._client

        def on_message(client: Any, userdata: Any, message: paho.MQTTMessage) -> None:  # noqa: ARG001  # the signature is paho's
            self._arrived.append(Arrived(message.mid, message.qos, bytes(message.payload)))

        def on_disconnect(client: Any, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:  # noqa: ARG001  # the signature is paho's
            self._ended = str(reason)

        def on_connect(client: Any, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:  # noqa: ARG001  # the signature is paho's
            self._answer = reason
            self._max_packet_bytes = getattr(properties, "MaximumPacketSize", None)

        def on_subscribe(client: Any, userdata: Any, number: int, reasons: Any, properties: Any) -> None:  # noqa: ARG001  # the signature is paho's
            self._answer = reasons[0]

        def on_publish(client: Any, userdata: Any, number: int, reason: Any, properties: Any) -> None:  # noqa: ARG001  # the signature is paho's
            self._confirmed[number] = reason

        client.on_message, client.on_disconnect = on_message, on_disconnect
        client.on_connect, client.on_subscribe, client.on_publish = on_connect, on_subscribe, on_publish
        if binding.user is not None:
            password = resolve_setting(binding.stream, binding.login, "password")
            client.username_pw_set(binding.user, password)
        if binding.secure:
            try:
                # Without a password, OpenSSL would prompt for that of an encrypted key at the terminal, forever.
                client.tls_set(binding.cafile, binding.certfile, binding.keyfile, keyfile_password="")
            except (OSError, ValueError) as e:
                files = ", ".join(filter(None, (binding.cafile, binding.certfile, binding.keyfile)))
                raise BindingError(
                    f"Stream {binding.stream!r}: the certificates of mqtts ({files}) cannot be used "
                    f"({getattr(e, 'strerror', None) or e}). Correct cafile, certfile and keyfile in the URI."
                ) from e

    def _connect(self, *, is_5: bool, keeps: bool) -> None:
        binding = self._binding
        properties = None
        if is_5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho does not annotate it
            properties.SessionExpiryInterval = _SESSION_S if keeps else 0
            properties.ReceiveMaximum = binding.prefetch
        try:
            self._client.connect(
                binding.host,
                binding.port,
                _KEEPALIVE_S,
                clean_start=not keeps if is_5 else paho.MQTT_CLEAN_START_FIRST_ONLY,
                properties=properties,
            )
            reason = self._ask(lambda: None, "connection")
        except (OSError, ValueError) as e:
            advice = tls_advice(binding.host, binding.port, is_secure=binding.secure)
            raise ExternalSystemError(
                f"Stream {binding.stream!r}: no MQTT broker answers at {binding.host}:{binding.port} ({e}). Start it, "
                f"or correct the address in the URI.{advice}"
            ) from e
        if reason.value >= _FAILED:
            raise ExternalSystemError(
                f"Stream {binding.stream!r}: the MQTT broker {binding.host}:{binding.port} refuses the connection "
                f"({reason}). Correct user and password in the URI, or the protocol."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def subscribe(self) -> None:
        """Subscribe to the filter, or continue its session. Raises ExternalSystemError when the broker refuses."""
        binding = self._binding
        how: dict[str, Any] = {"qos": _QOS}
        if binding.protocol == "5":
            # Retained messages come with a new subscription, and not again with each connection.
            how = {"options": SubscribeOptions(_QOS, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)}
        reason = self._ask(lambda: self._client.subscribe(binding.topic, **how), "subscription")
        if reason.value >= _FAILED:
            raise ExternalSystemError(
                f"Stream {binding.stream!r}: the MQTT broker {binding.host}:{binding.port} refuses the subscription of "
                f"{binding.topic!r} ({reason}). Give the user the right, or correct the topic in the URI."
            )

    def publish(
        self, messages: Mapping[int, OutgoingMessage], retain: bool = False
    ) -> Iterator[tuple[int, str]]:
        """Publish numbered messages in their order, and yield each number when the broker has judged its message.

        With it comes the reason if the broker has refused the message, else an empty text. Packets have 65,535 ids, so
        only some messages are in flight at a time.
        """
        self._answer = None
        self._confirmed.clear()
        largest = self._max_packet_bytes
        refused = {} if largest is None else self._too_large(messages, largest)
        for number in refused:
            yield (
                number,
                f"The broker takes packets of at most {largest} bytes, and it would have {refused[number]}.",
            )
        unsent = iter([(number, message) for number, message in messages.items() if number not in refused])
        in_flight: dict[int, int] = {}
        deadline_s = time.monotonic() + _ANSWER_S
        while True:
            for number, message in itertools.islice(unsent, _IN_FLIGHT - len(in_flight)):
                in_flight[self._send(message, retain)] = number
            if not in_flight:
                return
            if not self._confirmed:
                self._step(deadline_s, "messages")
                continue
            judged = list(self._confirmed.items())
            self._confirmed.clear()
            deadline_s = time.monotonic() + _ANSWER_S
            for sent, reason in judged:
                yield (
                    in_flight.pop(sent),
                    f"The broker refuses it: {reason}." if reason.value >= _FAILED else "",
                )

    def _too_large(self, messages: Mapping[int, OutgoingMessage], largest: int) -> dict[int, int]:
        """Return the sizes of the packets at which the broker would end the connection."""
        found = {
            number: self._packet_bytes(message)
            for number, message in messages.items()
            # The properties are short, so they are only made where they may matter.
            if 4 * len(message.route) + len(message.body) + _OTHER_BYTES > largest
        }
        return {number: size for number, size in found.items() if size > largest}

    def _packet_bytes(self, message: OutgoingMessage) -> int:
        properties = self._properties(message)
        # The topic after its length, the id, the properties, of which none have a length too, and the body.
        own = 2 + len(message.route.encode()) + 2 + (1 if properties is None else len(properties.pack()))
        rest = own + len(message.body)
        return 1 + -(-rest.bit_length() // 7) + rest

    def _properties(self, message: OutgoingMessage) -> Any:
        """Return the properties of a message; None if it has none."""
        properties = None
        is_event = self._binding.format == "cloudevents"
        if self._binding.protocol == "5" and (is_event or message.origin is not None):
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho does not annotate it
            if message.origin is not None:
                properties.UserProperty = (ORIGIN_HEADER, message.origin)
            if is_event:
                properties.ContentType = EVENT_CONTENT_TYPE
        return properties

    def _send(self, message: OutgoingMessage, retain: bool) -> int:
        sent = self._client.publish(message.route, message.body, _QOS, retain, self._properties(message))
        return int(sent.mid)

    def wait(self, timeout_s: float) -> list[Arrived]:
        """Wait for messages, and return those that have arrived."""
        # Messages may have come with the answer to a subscription.
        code, taken = self._client.loop(0 if self._arrived else timeout_s), 0
        # That takes one packet. The others that are there do not need a call of the system each.
        while code == paho.MQTT_ERR_SUCCESS and taken < len(self._arrived) < _MOST_AT_ONCE:
            taken = len(self._arrived)
            code = self._client.loop_read()
        if code != paho.MQTT_ERR_SUCCESS:
            raise ConnectionError(self._ended or paho.error_string(code))
        arrived = list(self._arrived)
        self._arrived.clear()
        return arrived

    def acknowledge(self, arrived: list[Arrived]) -> None:
        """Let the broker forget messages."""
        for one in arrived:
            if one.qos:
                self._client.ack(one.number, one.qos)

    def close(self) -> None:
        """End the connection. The broker keeps the session."""
        self._client.disconnect()
        # Sends what waits to be sent, the acknowledgements before all.
        self._client.loop(0)

    def _ask(self, ask: Callable[[], object], what: str) -> Any:
        """Ask the broker, and return its answer. Messages that arrive meanwhile are kept."""
        self._answer = None
        ask()
        deadline_s = time.monotonic() + _ANSWER_S
        while self._answer is None:
            self._step(deadline_s, what)
        return self._answer

    def _step(self, deadline_s: float, what: str) -> None:
        """Send and take what is there. Raises ConnectionError when the connection is lost, or an answer is late."""
        code = self._client.loop(_STEP_S)
        if code != paho.MQTT_ERR_SUCCESS and self._answer is None:
            raise ConnectionError(self._ended or paho.error_string(code))
        if time.monotonic() > deadline_s:
            raise ConnectionError(f"there is no answer to the {what} for {_ANSWER_S:g} s")


def open_subscription(binding: MqttBinding, session: str | None) -> MqttConnection:
    """Return a connection to which the broker sends what comes for the filter from now on.

    Raises ExternalSystemError when it cannot be made.
    """
    with _lost_connections_named(binding):
        connection = MqttConnection(binding, session)
        try:
            connection.subscribe()
        except BaseException:
            connection.close()
            raise
        return connection


def check_topic_filter(binding: MqttBinding) -> None:
    """Check that the broker answers and lets the user subscribe, without a trace. Raises ExternalSystemError."""
    open_subscription(binding, None).close()


def publish_to_topic(binding: MqttBinding, body: bytes) -> None:
    """Publish one message, and wait until the broker has it. Raises ExternalSystemError when that fails."""
    with _lost_connections_named(binding), MqttConnection(binding, None) as connection:
        for _, reason in connection.publish({0: OutgoingMessage(binding.topic, body)}):
            if reason:
                raise ExternalSystemError(
                    f"Stream {binding.stream!r}: {binding.topic!r} takes no message. {reason}"
                )


def check_connection(binding: MqttBinding) -> None:
    """Check that the broker lets the user connect. Raises ExternalSystemError."""
    with _lost_connections_named(binding):
        MqttConnection(binding, None).close()


@contextlib.contextmanager
def _lost_connections_named(binding: MqttBinding) -> Iterator[None]:
    """Raise ExternalSystemError for a connection that is lost."""
    try:
        yield
    except PenstockError:
        raise
    except OSError as e:
        raise ExternalSystemError(
            f"Stream {binding.stream!r}: the MQTT broker {binding.host}:{binding.port} has ended the connection ({e})."
        ) from e
