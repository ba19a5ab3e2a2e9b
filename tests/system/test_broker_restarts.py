"""Kafka's broker is killed or stopped under a job that reads topics and writes exactly once, and comes back."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import pyarrow as pa
import pytest
from half_done import HalfDone, TopicPipes
from job_process import JobProcess
from reliability import Injected, noting
from steady_feed import feed_steadily

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.machine.kafka_broker import KafkaBroker
from penstock.sinks.kafka_producers import PlainProducer
from penstock.sinks.message_parts import Messages

SEED = 13
RESTARTS = 16


class Supervised:
    """The job with two sinks; when it ends with an error it is restarted, as by a supervisor."""

    def __init__(self, broker: KafkaBroker, folder: Path) -> None:
        self._broker = broker
        self.job = HalfDone(TopicPipes(broker), folder, SEED)
        self._running = contextlib.ExitStack()
        self._process: JobProcess | None = None

    def ensure(self) -> JobProcess:
        """Return the process, restarted if it has ended."""
        if self._process is not None and not self._process.running:
            result = self._process.wait()
            assert result.code in (1, 3), result
            assert result.err.strip()
            assert "Traceback" not in result.err, result.err
            self.stop()
        if self._process is None:
            self._process = self._running.enter_context(self.job.job())
        return self._process

    def stop(self) -> None:
        self._running.close()
        self._process = None

    def restart_broker(self, chance: random.Random, injected: Injected) -> None:
        """Take the broker down at a random moment, briefly or longer than clients wait."""
        self.job.send(40)
        time.sleep(chance.uniform(0, 3))
        if chance.random() < 0.7:
            injected.add("kill -9 of the Kafka broker under a job")
            self._broker.kill()
        else:
            injected.add("stop of the Kafka broker under a job")
            self._broker.stop()
        time.sleep(chance.choice((0.2, 5, 20)))
        self._broker.start()

    def await_rest(self) -> None:
        """Wait until all input is processed, by this run or the next one."""
        while True:
            process = self.ensure()
            try:
                self.job.await_rest(process)
            except AssertionError:
                if process.running:
                    raise
            else:
                return


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_broker_restarts_cost_nothing(tmp_path: Path) -> None:
    """Each hit is in both sinks once, with the expected count.

    test_kafka_broker.py has a kill of the broker within a transaction in `make test`.
    """
    chance = random.Random(SEED)
    arguments = "-k broker_restarts_cost_nothing"
    with (
        KafkaBroker(tmp_path / "kafka") as broker,
        noting("broker restarts", arguments, str(SEED)) as injected,
    ):
        supervised = Supervised(broker, tmp_path)
        try:
            supervised.job.send(20)
            supervised.await_rest()
            for number in range(RESTARTS):
                supervised.ensure()
                supervised.restart_broker(chance, injected)
                if number % 2:
                    supervised.await_rest()
            supervised.await_rest()
        finally:
            supervised.stop()
        result = supervised.job.result
        assert (result.lost, result.doubled, result.wrong) == (0, 0, 0), result


@pytest.mark.chaos
def test_producers_of_sinks_go_on_when_the_broker_is_back(tmp_path: Path) -> None:
    """Many producers send meanwhile; none waits long, since a broker is not forgotten when it is down.

    Each of them meets the broker's start at another moment.
    """
    messages = Messages(pa.array([b"reading"] * 10), None, {}, None)
    with (
        KafkaBroker(tmp_path / "kafka") as broker,
        noting("broker restarts", "-k producers_of_sinks_go_on", "") as injected,
    ):
        broker.create_topic("seen", 3)
        binding = parse_binding("seen", f"kafka://{broker.bootstrap}/seen", "sink")
        assert isinstance(binding, KafkaBinding)
        producers = [PlainProducer(binding) for _ in range(20)]

        def send() -> None:
            for producer in producers:
                producer.send(messages)

        for _ in range(4):
            with feed_steadily(send, 0.05):
                time.sleep(1)
                injected.add("kill -9 of the Kafka broker under producers")
                broker.kill()
                broker.start()
            back_s = time.monotonic()
            for producer in producers:
                producer.flush()
            assert time.monotonic() - back_s < 30
