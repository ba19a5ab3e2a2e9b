"""Requests in flight: limit the requests that a producer sends to a broker before the first is answered.

An idempotent producer of librdkafka that has five messages of a partition in flight sends no more of that partition.
But if a request may go out, its thread asks over and over whether one can, until the answer has come, and takes a core
for it. It sleeps while another partition's request waits for its turn. So there are fewer turns than partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import partition_leaders

__all__ = ["most_requests", "with_requests"]

_SETTING: Final = "max.in.flight"
_SAME_SETTING: Final = "max.in.flight.requests.per.connection"
# More are refused for an idempotent producer.
_MOST: Final = 5


def most_requests(leaders: Iterable[int]) -> int:
    """Return how many requests to have in flight to a broker, from the leader of each partition of a topic."""
    fewest = min(Counter(leaders).values(), default=1)
    return min(max(fewest - 1, 1), _MOST)


def with_requests(binding: KafkaBinding, settings: Mapping[str, Any]) -> KafkaBinding:
    """Return the binding with producers that have this many requests in flight, unless its URI says how many."""
    if _SETTING in binding.client or _SAME_SETTING in binding.client:
        return binding
    most = str(most_requests(partition_leaders(binding, settings)))
    return replace(binding, client={_SETTING: most, **binding.client})
