"""Jobs that send to RabbitMQ: each output is in the queue, and repetitions have the same origin, whatever is
killed.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from file_feed import FileFeed
from rabbitmq_messages import take
from rabbitmq_node import RabbitNode
from reliability import noting
from sink_kills import KilledSink, victims

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import ExchangeBinding
from penstock.jobs.settings import RunSettings
from penstock.rabbitmq.rabbitmq_publisher import check_exchange


def outputs(node: RabbitNode, queue: str) -> Counter[tuple[int, int]]:
    """Return the received records without repetitions; a repeated origin must have an equal record."""
    found: dict[str, bytes] = {}
    for message in take(node, queue):
        assert message.origin is not None
        assert found.setdefault(message.origin, message.body) == message.body
    rows = [json.loads(body) for body in found.values()]
    return Counter((row["sensor"], row["count"]) for row in rows)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_kills_of_a_job_and_its_rabbitmq(tmp_path: Path, rabbitmq: RabbitNode, interval_ms: int) -> None:
    """Twenty kills in each mode, under load."""
    seed = 14 if interval_ms else 13
    mode = "real time" if interval_ms else "micro-batches"
    queue = f"killed-{interval_ms}"
    uri = rabbitmq.queue_uri(queue, "?create=true")
    binding = parse_binding("seen", uri, "sink")
    assert isinstance(binding, ExchangeBinding)
    check_exchange(binding)
    # A declaration just before a kill may be lost.
    rabbitmq.settle()
    feed = FileFeed(tmp_path)
    feed.write()

    def settings(*, bounded: bool = False) -> RunSettings:
        return RunSettings(
            bindings={"readings": feed.binding, "seen": uri},
            checkpoint=str(tmp_path / "checkpoint"),
            parallelism=2,
            checkpoint_interval_ms=interval_ms,
            bounded=bounded,
        )

    def interrupt() -> None:
        rabbitmq.kill()
        time.sleep(1)
        rabbitmq.start()

    with noting("RabbitMQ sinks", "-k kills_of_a_job_and_its_rabbitmq", str(seed)) as injected:
        KilledSink(tmp_path, feed, settings, interrupt).survive(
            victims("broker", 20),
            random.Random(seed),
            lambda victim: injected.add(f"{victim} of a job that sends to RabbitMQ in {mode}"),
        )
        assert outputs(rabbitmq, queue) == feed.expected
