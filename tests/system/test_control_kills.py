"""Commands survive kill -9 of the job and of the broker: each is applied once, and its receipts agree.

The commands add up, so one that is applied twice shows. The senders repeat themselves, as careful senders do.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
from job_in_session import JobInSession
from job_process import JobProcess, await_true, kill, run_arguments
from pyspark.sql import SparkSession
from rabbitmq_messages import publish, waiting
from rabbitmq_node import RabbitNode
from reliability import Injected, noting
from rooms import count_records, read_folder, write_file

from penstock.bindings.parse import parse_binding
from penstock.commands.receipt_segments import NewReceipts
from penstock.control.receipts import Receipt
from penstock.jobs.settings import RunSettings
from penstock.machine.kafka_broker import KafkaBroker
from penstock.rabbitmq.rabbitmq_queue import check_queue
from penstock.rabbitmq.rabbitmq_stream import check_stream
from topics import produce

JOB = Path(__file__).with_name("counting_job.py")
HELD = Path(__file__).with_name("held_job.py")
SENSORS = range(20)
VICTIMS = ("driver", "jvm", "worker", "broker")

Command = dict[str, Any]


class Way(Protocol):
    """A channel for commands."""

    uri: str | None

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands, and wait until they are durable."""

    def kill_broker(self) -> bool:
        """Kill -9 the server that keeps the commands, and restart it; return whether there is one."""


class FolderWay:
    """The command folder in the checkpoint."""

    uri = None

    def __init__(self, root: Path) -> None:
        self._folder = root / "checkpoint" / "commands"
        self._folder.mkdir(parents=True)
        self._count = 0

    def send(self, commands: Sequence[Command]) -> None:
        self._count += 1
        write_file(self._folder, f"{self._count:06}.jsonl", commands)

    def kill_broker(self) -> bool:
        return False


class KafkaWay:
    """A topic of several partitions."""

    def __init__(self, kafka: KafkaBroker) -> None:
        self._kafka = kafka
        self._topic = f"commands-{time.time_ns()}"
        kafka.create_topic(self._topic, 3)
        self.uri = f"kafka://{kafka.bootstrap}/{self._topic}"

    def send(self, commands: Sequence[Command]) -> None:
        # Keyed, so that the commands of one sensor stay in order.
        produce(
            self._kafka.bootstrap,
            self._topic,
            [
                (str(command["target"].get("key", 0)).encode(), json.dumps(command).encode())
                for command in commands
            ],
        )

    def kill_broker(self) -> bool:
        return False


class RabbitWay:
    """A queue or a stream."""

    def __init__(self, node: RabbitNode, name: str) -> None:
        self.node = node
        self.name = name
        if name.endswith("queue"):
            check_queue(parse_binding("commands", node.queue_uri(name, "?create=true"), "control"))  # type: ignore[arg-type]
            self.uri = node.queue_uri(name)
        else:
            check_stream(parse_binding("commands", node.stream_uri(name, "?create=true"), "control"))  # type: ignore[arg-type]
            self.uri = node.stream_uri(name)
        # A declaration just before a kill may be lost.
        node.settle()

    def send(self, commands: Sequence[Command]) -> None:
        publish(self.node, self.name, [json.dumps(command).encode() for command in commands])

    def kill_broker(self) -> bool:
        self.node.kill()
        self.node.start()
        return True


class Run:
    """A job under attack, its input, and its expected output."""

    def __init__(self, root: Path, way: Way, seed: str, injected: Injected | None = None) -> None:
        self.root = root
        self._injected = injected or Injected()
        self.way = way
        self.chance = random.Random(seed)
        self.sent: list[Command] = []
        self.read = 0
        self._lost_a_worker = False
        for name in ("readings", "sums", "seen"):
            (root / name).mkdir()
        bindings = {name: f"jsonl:{root / name}" for name in ("readings", "sums", "seen")}
        if way.uri is not None:
            bindings["commands"] = way.uri
        self.settings = RunSettings(bindings=bindings, checkpoint=str(root / "checkpoint"))
        self.arguments = run_arguments(JOB, self.settings)

    def send(self, count: int) -> None:
        """Send new commands, some of them twice, some old ones again, and some readings."""
        new = []
        for _ in range(count):
            number = len(self.sent)
            amount = -1 if self.chance.random() < 0.1 else self.chance.randint(1, 9)
            command = {
                "id": f"c{number}",
                "kind": "add",
                "target": {"step": "sums", "key": self.chance.choice(SENSORS)},
                "payload": amount,
            }
            self.sent.append(command)
            new.append(command)
        again = self.chance.sample(self.sent, min(len(self.sent), count // 2))
        self.way.send([*new, *self.chance.sample(new, count // 2), *again])
        readings = [{"sensor": self.chance.choice(SENSORS), "number": self.read + n} for n in range(count)]
        self.read += count
        write_file(self.root / "readings", f"{self.read:08}.jsonl", readings)

    def receipts(self) -> list[Receipt]:
        """Return the receipts of all commands, in order."""
        return NewReceipts(self.root / "checkpoint", from_start=True).read()

    def applied(self) -> int:
        """Return how many commands have a final receipt."""
        finals = ("APPLIED", "DEGRADED", "REJECTED")
        return sum(receipt.status in finals for receipt in self.receipts())

    def survive(self, victims: Sequence[str]) -> None:
        """Send commands; once some of them have been applied, kill a victim at a random moment."""
        self.job = JobProcess(self.arguments, self.root)
        try:
            for victim in victims:
                before = self.applied()
                self.send(20)
                self._await_applied(before + 1)
                self.send(20)
                time.sleep(self.chance.uniform(0, 0.6))
                self._go_on()
                self._kill(victim)
            self.send(20)
            self._await_applied(len(self.sent))
            await_true(
                lambda: self._go_on() and count_records(self.root / "seen") >= self.read,
                lambda: self.job.err,
            )
            self.job.signal(signal.SIGTERM)
            result = self.job.wait()
            assert result.code == 0, result.err
        finally:
            self.job.__exit__()

    def _await_applied(self, count: int) -> None:
        await_true(
            lambda: self._go_on() and self.applied() >= count,
            lambda: f"{self.applied()} of {count}: {self.job.err}",
        )

    def _go_on(self) -> bool:
        """A job that has lost a worker may end with an error; then restart it, as a supervisor would."""
        if not self.job.running:
            result = self.job.wait()
            assert self._lost_a_worker, result.err
            assert result.code in (1, 3), result
            assert "Traceback" not in result.err, result.err
            self._restart()
        return True

    def _restart(self) -> None:
        self.job.__exit__()
        self.job = JobProcess(self.arguments, self.root)
        self._lost_a_worker = False

    def _kill(self, victim: str) -> None:
        job = self.job
        if victim == "broker" and self.way.kill_broker():
            self._injected.add("kill -9 of the broker")
            return
        if victim == "worker" and job.workers():
            self._injected.add("kill -9 of a worker")
            kill(self.chance.choice(job.workers()), signal.SIGKILL)
            self._lost_a_worker = True
            return
        if victim == "jvm" and job.jvms():
            self._injected.add("kill -9 of a JVM")
            kill(job.jvms()[0], signal.SIGKILL)
        else:
            self._injected.add("kill -9 of a driver")
            job.signal(signal.SIGKILL)
        job.wait()
        self._restart()

    def check(self) -> None:
        """Check every command once: in its receipts, in its output, in the sums, and in what readings saw."""
        receipts = self.receipts()
        histories: dict[str, list[str]] = {}
        for receipt in receipts:
            histories.setdefault(receipt.id, []).append(receipt.status)
        assert histories == {
            c["id"]: ["ACCEPTED", "VALIDATED", "DEGRADED" if c["payload"] < 0 else "APPLIED"]
            for c in self.sent
        }
        sums = read_folder(self.root / "sums")
        good = {c["id"]: c for c in self.sent if c["payload"] > 0}
        assert Counter(s["command"] for s in sums) == Counter(list(good))
        totals: Counter[int] = Counter()
        for one in sums:
            totals[one["sensor"]] += good[one["command"]]["payload"]
            assert one["total"] == totals[one["sensor"]]
        seen = read_folder(self.root / "seen")
        assert sorted(s["number"] for s in seen) == list(range(self.read))


def fight(root: Path, way: Way, victims: Sequence[str], injected: Injected) -> None:
    """Run a job through all kills, and check it."""
    run = Run(root, way, f"{type(way).__name__} {len(victims)}", injected)
    run.survive(victims)
    run.check()


def test_commands_that_are_repeated_are_applied_once(tmp_path: Path, spark: SparkSession) -> None:
    """No process is killed here; test_rabbitmq.py kills the broker and receivers."""
    run = Run(tmp_path, FolderWay(tmp_path), "folder")
    with JobInSession(spark, JOB, run.settings) as job:
        run.send(20)
        job.await_true(lambda: run.applied() > 0)
        run.send(20)
        job.await_true(lambda: run.applied() >= len(run.sent))
        job.await_true(lambda: count_records(tmp_path / "seen") >= run.read)
        assert job.stop().status == "stopped"
    run.check()


@pytest.mark.chaos
def test_commands_of_a_queue_survive_the_broker_and_the_driver(
    rabbitmq: RabbitNode, tmp_path: Path, spark: SparkSession
) -> None:
    """One kill -9 of each; the driver's comes before it has acknowledged what is in its journal."""
    run = Run(tmp_path, RabbitWay(rabbitmq, "commands-queue"), "queue")
    hold, held = tmp_path / "hold", tmp_path / "held"
    with JobProcess(run.arguments, tmp_path, program=[str(HELD), str(hold), str(held)]) as job:
        run.send(20)
        await_true(lambda: run.applied() > 0 or not job.running, lambda: job.err)
        run.send(20)
        time.sleep(run.chance.uniform(0, 0.6))
        run.way.kill_broker()
        await_true(lambda: run.applied() == 40 or not job.running, lambda: job.err)
        hold.touch()
        run.send(20)
        await_true(lambda: held.exists() or not job.running, lambda: job.err)
        time.sleep(run.chance.uniform(0, 0.6))
        assert job.running, job.err
        job.signal(signal.SIGKILL)
        job.wait()
    # All commands are redelivered: the broker has received no acknowledgement.
    await_true(lambda: waiting(rabbitmq, "commands-queue") >= 40, lambda: "the queue lost some")
    with JobInSession(spark, JOB, run.settings) as again:
        run.send(20)
        again.await_true(lambda: run.applied() >= len(run.sent))
        again.await_true(lambda: count_records(tmp_path / "seen") >= run.read)
        assert again.stop().status == "stopped"
    run.check()
    await_true(lambda: waiting(rabbitmq, "commands-queue") == 0, lambda: "some were not acknowledged")


WAYS: dict[str, Callable[[Path, pytest.FixtureRequest], Way]] = {
    "folder": lambda root, _: FolderWay(root),
    "kafka": lambda _, request: KafkaWay(request.getfixturevalue("kafka")),
    "queue": lambda _, request: RabbitWay(request.getfixturevalue("rabbitmq"), "chaos-queue"),
    "stream": lambda _, request: RabbitWay(request.getfixturevalue("rabbitmq"), "chaos-stream"),
}


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", WAYS)
def test_commands_survive_many_kills(way: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Twelve kills -9 for each channel."""
    victims = list(VICTIMS) * 3
    random.Random(way).shuffle(victims)
    with noting("commands", f'-k "commands_survive_many_kills and {way}"') as injected:
        fight(tmp_path, WAYS[way](tmp_path, request), victims, injected)
