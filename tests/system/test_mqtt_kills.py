"""Jobs from MQTT to MQTT: no message is lost, and repetitions have the same origin, whatever is killed."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections import defaultdict
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from job_process import JobProcess, run_arguments
from mosquitto_broker import PASSWORD, MosquittoBroker
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from reliability import noting
from sink_kills import BUSY_S, KilledSink, victims
from steady_feed import feed_steadily

from penstock.jobs.settings import RunSettings

JOB = Path(__file__).with_name("tally_job.py")
PAGES = [f"page{number}" for number in range(20)]
WAIT_S = 60.0


class HitFeed:
    """Hits published every 0.2 s, again where the broker went down before it confirmed them."""

    def __init__(self, broker: MosquittoBroker) -> None:
        self._broker = broker
        self.rounds = 0

    def write(self) -> None:
        bodies = [json.dumps({"page": page, "number": self.rounds}).encode() for page in PAGES]
        self._broker.publish("hits", bodies)
        self.rounds += 1

    def feeding(self) -> AbstractContextManager[None]:
        """Publish while the block runs, also again when the broker was down."""
        return feed_steadily(self.write, 0.2, (OSError,))


class Collector:
    """A client with a persistent session that receives the job's output."""

    def __init__(self, port: int) -> None:
        self._found: list[tuple[str, bytes]] = []
        self._marks: dict[str, threading.Event] = {"subscribed": threading.Event()}
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=uuid.uuid4().hex, protocol=paho.MQTTv5
        )
        self._client.username_pw_set("tester", PASSWORD)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_message = self._take
        self._client.on_subscribe = lambda *_: self._marks["subscribed"].set()
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600
        self._client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        self._client.loop_start()
        self._client.subscribe("tallies/#", 1)
        assert self._marks["subscribed"].wait(WAIT_S)

    def _take(self, client: Any, userdata: Any, message: paho.MQTTMessage) -> None:
        if message.topic == "tallies/end":
            self._marks[message.payload.decode()].set()
            return
        assert isinstance(message.properties, Properties)
        origin = dict(message.properties.json()["UserProperty"])["penstock-origin"]
        self._found.append((origin, message.payload))

    def tallies(self) -> dict[str, list[tuple[int, int]]]:
        """Return the numbers and counts of each page without repetitions; a repeated origin must have an
        equal record.
        """
        name = uuid.uuid4().hex
        self._marks[name] = threading.Event()
        self._client.publish("tallies/end", name, 1)
        assert self._marks[name].wait(WAIT_S)
        known: dict[str, bytes] = {}
        tallies = defaultdict(list)
        for origin, body in self._found:
            if origin not in known:
                row = json.loads(body)
                tallies[row["page"]].append((row["number"], row["hits"]))
            assert known.setdefault(origin, body) == body
        return tallies

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_kills_of_a_job_and_its_mqtt(tmp_path: Path, interval_ms: int) -> None:
    """Ten kills in each mode, under load.

    The broker is stopped in an orderly way: no client can restore messages that it has confirmed but not yet
    written to disk.
    """
    seed = 18 if interval_ms else 17
    mode = "real time" if interval_ms else "micro-batches"
    folder = tmp_path / "broker"
    folder.mkdir()
    with MosquittoBroker(folder) as broker:
        feed = HitFeed(broker)

        def settings(*, bounded: bool = False) -> RunSettings:
            return RunSettings(
                bindings={"hits": broker.uri("hits"), "tallies": broker.uri("tallies/{page}")},
                checkpoint=str(tmp_path / "checkpoint"),
                parallelism=2,
                checkpoint_interval_ms=interval_ms,
                bounded=bounded,
            )

        def interrupt() -> None:
            broker.stop()
            time.sleep(0.5)
            broker.start()

        # The broker keeps messages for the job once the session exists.
        with JobProcess(run_arguments(JOB, settings(bounded=True)), tmp_path) as job:
            assert job.wait(BUSY_S).code == 0, job.err
        collector = Collector(broker.port)
        with noting("MQTT", "-k kills_of_a_job_and_its_mqtt", str(seed)) as injected:
            KilledSink(tmp_path, feed, settings, interrupt, JOB, BUSY_S).survive(
                victims("broker", 10),
                random.Random(seed),
                lambda victim: injected.add(f"{victim} of a job from MQTT to MQTT in {mode}"),
            )
            tallies = collector.tallies()
            collector.close()
            assert sorted(tallies) == sorted(PAGES)
            for page, found in tallies.items():
                assert [hits for _, hits in found] == list(range(1, len(found) + 1)), page
                assert {number for number, _ in found} == set(range(feed.rounds)), page
