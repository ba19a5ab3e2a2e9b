"""librdkafka, which Kafka's Python client contains: its functions, for calls that the client does not make.

Source: `rdkafka.h`, the public C interface of librdkafka. The forms of these functions have not changed since they
came, with version 2.2 at the latest.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, ClassVar, Final

from confluent_kafka import cimpl

__all__ = [
    "NO_PROBLEM",
    "OnDelivery",
    "OnError",
    "OnLog",
    "Pointer",
    "TopicPlace",
    "has_bulk_calls",
    "libraries",
]

NO_PROBLEM: Final = 0
_PROBLEM: Final = ctypes.c_int32
Pointer = ctypes.c_void_p
OnError: Final = ctypes.CFUNCTYPE(None, Pointer, ctypes.c_int, ctypes.c_char_p, Pointer)
OnDelivery: Final = ctypes.CFUNCTYPE(None, Pointer, ctypes.POINTER(_PROBLEM), Pointer)
OnLog: Final = ctypes.CFUNCTYPE(None, Pointer, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)


class TopicPlace(ctypes.Structure):
    """The beginning of rd_kafka_topic_partition_t."""

    _fields_: ClassVar = [
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("note", ctypes.c_void_p),
        ("note_bytes", ctypes.c_size_t),
    ]


_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "rd_kafka_conf_new": (Pointer, ()),
    "rd_kafka_conf_destroy": (None, (Pointer,)),
    "rd_kafka_conf_set": (
        ctypes.c_int,
        (Pointer, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t),
    ),
    "rd_kafka_conf_set_error_cb": (None, (Pointer, OnError)),
    "rd_kafka_conf_set_dr_msg_cb": (None, (Pointer, OnDelivery)),
    "rd_kafka_conf_set_log_cb": (None, (Pointer, OnLog)),
    "rd_kafka_new": (Pointer, (ctypes.c_int, Pointer, ctypes.c_char_p, ctypes.c_size_t)),
    "rd_kafka_set_log_queue": (ctypes.c_int, (Pointer, Pointer)),
    "rd_kafka_topic_new": (Pointer, (Pointer, ctypes.c_char_p, Pointer)),
    "rd_kafka_topic_destroy": (None, (Pointer,)),
    "rd_kafka_produce": (
        ctypes.c_int,
        (
            Pointer,
            ctypes.c_int32,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_char_p,
            ctypes.c_size_t,
            Pointer,
        ),
    ),
    "rd_kafka_produce_batch": (
        ctypes.c_int,
        (Pointer, ctypes.c_int32, ctypes.c_int, Pointer, ctypes.c_int),
    ),
    "rd_kafka_last_error": (ctypes.c_int, ()),
    "rd_kafka_err2str": (ctypes.c_char_p, (ctypes.c_int,)),
    "rd_kafka_poll": (ctypes.c_int, (Pointer, ctypes.c_int)),
    "rd_kafka_flush": (ctypes.c_int, (Pointer, ctypes.c_int)),
    "rd_kafka_outq_len": (ctypes.c_int, (Pointer,)),
    "rd_kafka_purge": (ctypes.c_int, (Pointer, ctypes.c_int)),
    "rd_kafka_destroy": (None, (Pointer,)),
    "rd_kafka_metadata": (
        ctypes.c_int,
        (Pointer, ctypes.c_int, Pointer, ctypes.POINTER(Pointer), ctypes.c_int),
    ),
    "rd_kafka_metadata_destroy": (None, (Pointer,)),
    "rd_kafka_init_transactions": (Pointer, (Pointer, ctypes.c_int)),
    "rd_kafka_begin_transaction": (Pointer, (Pointer,)),
    "rd_kafka_send_offsets_to_transaction": (Pointer, (Pointer, Pointer, Pointer, ctypes.c_int)),
    "rd_kafka_commit_transaction": (Pointer, (Pointer, ctypes.c_int)),
    "rd_kafka_abort_transaction": (Pointer, (Pointer, ctypes.c_int)),
    "rd_kafka_error_code": (ctypes.c_int, (Pointer,)),
    "rd_kafka_error_string": (ctypes.c_char_p, (Pointer,)),
    "rd_kafka_error_destroy": (None, (Pointer,)),
    "rd_kafka_consumer_group_metadata_new": (Pointer, (ctypes.c_char_p,)),
    "rd_kafka_consumer_group_metadata_destroy": (None, (Pointer,)),
    "rd_kafka_topic_partition_list_new": (Pointer, (ctypes.c_int,)),
    "rd_kafka_topic_partition_list_add": (
        ctypes.POINTER(TopicPlace),
        (Pointer, ctypes.c_char_p, ctypes.c_int32),
    ),
    "rd_kafka_topic_partition_list_destroy": (None, (Pointer,)),
    "rd_kafka_sasl_set_credentials": (Pointer, (Pointer, ctypes.c_char_p, ctypes.c_char_p)),
    "rd_kafka_mem_malloc": (Pointer, (Pointer, ctypes.c_size_t)),
}


@functools.cache
def libraries() -> tuple[ctypes.CDLL, ctypes.PyDLL] | None:
    """Return librdkafka, whose calls let other threads run meanwhile, and do not; None if it cannot be called.

    It is the library that the client itself is linked with. If that library hides its names, return None.
    """
    try:
        found = ctypes.CDLL(cimpl.__file__), ctypes.PyDLL(cimpl.__file__)
        for library in found:
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return found


def has_bulk_calls() -> bool:
    """Return whether librdkafka can be called for many messages at once."""
    return libraries() is not None
