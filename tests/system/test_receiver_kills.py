"""Jobs with receivers: whatever is killed, journaled records count once, and no promised record is missing.

The journals must only grow, and the outputs must equal a model computed from them; each kind of source then
has its own guarantee.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import pika
import pytest
from http_sender import Sender
from journal_checks import JournalCheck, numbers_by_page
from journaled_records import journaled
from rabbitmq_messages import publish, waiting
from rabbitmq_node import RabbitNode
from receiving_process import receiver
from reliability import noting
from rooms import read_folder
from sent_lines import LineServer
from sink_kills import BUSY_S, KilledSink, Server, interrupt_briefly, victims
from steady_feed import feed_steadily

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import QueueBinding, RabbitStreamBinding
from penstock.jobs.settings import RunSettings
from penstock.machine.local_server import free_port
from penstock.rabbitmq.rabbitmq_queue import check_queue
from penstock.rabbitmq.rabbitmq_stream import check_stream

JOB = Path(__file__).with_name("received_job.py")
STREAMS = ("first", "second")
PAGES = 20
AWAY = (OSError, pika.exceptions.AMQPError)


class Hits(Protocol):
    """A source of hits."""

    @property
    def uri(self) -> str: ...

    def feeding(self) -> AbstractContextManager[None]: ...

    def check(self, found: list[tuple[str, int]]) -> None:
        """Compare the journal with the hits that were sent."""


class PublishedHits:
    """Hits in a queue or stream, published again where the broker went down before it confirmed them."""

    def __init__(self, node: RabbitNode, name: str) -> None:
        self._node = node
        self._name = name
        self._tries: Counter[int] = Counter()
        self._confirmed = 0
        if name.endswith("queue"):
            self.uri = node.queue_uri(name, "?create=true")
            queue = parse_binding("hits", self.uri, "data")
            assert isinstance(queue, QueueBinding)
            check_queue(queue)
        else:
            self.uri = node.stream_uri(name, "?create=true&start=earliest")
            stream = parse_binding("hits", self.uri, "data")
            assert isinstance(stream, RabbitStreamBinding)
            check_stream(stream)

    def feeding(self) -> AbstractContextManager[None]:
        return feed_steadily(self._write, 0.2, AWAY)

    def _write(self) -> None:
        self._tries[self._confirmed] += 1
        rows = [{"page": f"{self._name}{page}", "number": self._confirmed} for page in range(PAGES)]
        publish(self._node, self._name, [json.dumps(row).encode() for row in rows])
        self._confirmed += 1

    def check(self, found: list[tuple[str, int]]) -> None:
        """Check that confirmed hits are there once, or at most as often as they were published."""
        assert self._confirmed > 0
        for page, numbers in numbers_by_page(found).items():
            times = Counter(numbers)
            assert set(range(self._confirmed)) <= set(times), page
            assert times <= self._tries, page


class QueuedHits(PublishedHits):
    """Hits in a queue, which must be empty at the end."""

    def check(self, found: list[tuple[str, int]]) -> None:
        super().check(found)
        assert waiting(self._node, self._name) == 0


class StreamedHits(PublishedHits):
    """Hits in a stream, which an undisturbed reader finds in the same order."""

    def __init__(self, node: RabbitNode, name: str, folder: Path) -> None:
        super().__init__(node, name)
        self._folder = folder

    def check(self, found: list[tuple[str, int]]) -> None:
        super().check(found)
        with receiver(self._folder, self.uri, bounded=True) as receiving:
            receiving.wait_for_end(threading.Event())
        rows = [json.loads(record) for record in journaled(self._folder)]
        assert found == [(row["page"], row["number"]) for row in rows]


class RequestedHits:
    """Hits that clients send with a key until they are acknowledged."""

    def __init__(self) -> None:
        address = f"127.0.0.1:{free_port()}/hits"
        self.uri = f"http-listen://{address}"
        self._senders = [Sender(f"http://{address}", page, self._hit, pause_s=0.05) for page in range(4)]

    @staticmethod
    def _hit(key: str) -> dict[str, str | int]:
        page, _, number = key.partition("-")
        return {"page": f"client{page}", "number": int(number)}

    @contextmanager
    def feeding(self) -> Iterator[None]:
        with ExitStack() as stack:
            for sender in self._senders:
                sender.start()
                stack.callback(sender.stop)
            yield

    def check(self, found: list[tuple[str, int]]) -> None:
        """Check that acknowledged hits are there once, in order; a client's next hit may be there
        unacknowledged.
        """
        numbers = numbers_by_page(found)
        for page, sender in enumerate(self._senders):
            assert sender.taken
            count = len(sender.taken)
            assert numbers[f"client{page}"] in (list(range(count)), list(range(count + 1))), page


class Both:
    """Two sources of a job, and their servers, if any."""

    def __init__(self, sources: Sequence[tuple[Hits, Server | None]]) -> None:
        self.hits = dict(zip(STREAMS, (hits for hits, _ in sources), strict=True))
        self._servers = [server for _, server in sources if server is not None]

    @contextmanager
    def feeding(self) -> Iterator[None]:
        with ExitStack() as stack:
            for hits in self.hits.values():
                stack.enter_context(hits.feeding())
            yield

    def kill(self) -> None:
        for server in self._servers:
            server.kill()

    def start(self) -> None:
        for server in self._servers:
            server.start()


@contextmanager
def sources_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Both]:
    """Start the sources of a job."""
    if kind == "RabbitMQ":
        node: RabbitNode = request.getfixturevalue("rabbitmq")
        queue = QueuedHits(node, f"{folder.name}-queue")
        stream = StreamedHits(node, f"{folder.name}-stream", folder / "whole")
        # A declaration just before a kill may be lost.
        node.restart()
        yield Both([(queue, node), (stream, None)])
    else:
        with LineServer() as lines:
            yield Both([(lines, lines), (RequestedHits(), None)])


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
@pytest.mark.parametrize(
    ("kind", "what", "seed"),
    [
        ("RabbitMQ", "a queue and a stream of RabbitMQ", 51),
        ("listening", "a socket and requests", 53),
    ],
    ids=["RabbitMQ", "listening"],
)
def test_kills_of_a_job_that_receives(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, what: str, seed: int, interval_ms: int
) -> None:
    """Ten kills in each mode, under load."""
    mode, seed = ("real time", seed + 1) if interval_ms else ("micro-batches", seed)
    tallies = tmp_path / "tallies"
    journals = JournalCheck(tmp_path / "checkpoint", STREAMS)
    with sources_of(kind, tmp_path, request) as both:

        def settings(*, bounded: bool = False) -> RunSettings:
            uris = {stream: hits.uri for stream, hits in both.hits.items()}
            return RunSettings(
                bindings={**uris, "tallies": f"jsonl:{tallies}"},
                checkpoint=str(tmp_path / "checkpoint"),
                parallelism=2,
                checkpoint_interval_ms=interval_ms,
                bounded=bounded,
            )

        with noting("receivers", f'-k "kills_of_a_job_that_receives and {kind}"', str(seed)) as injected:

            def note(victim: str) -> None:
                journals.look()
                injected.add(f"{victim} of a job that receives from {what} in {mode}")

            KilledSink(tmp_path, both, settings, partial(interrupt_briefly, both), JOB, BUSY_S).survive(
                victims("server", 10), random.Random(seed), note
            )
            journals.check_counted((row["page"], row["number"], row["hits"]) for row in read_folder(tallies))
            for stream, hits in both.hits.items():
                hits.check(journals.hits(stream))
            assert not read_folder(tmp_path / "checkpoint" / "dead-letters")
