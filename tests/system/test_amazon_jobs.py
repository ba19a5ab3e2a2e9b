"""Jobs from Kinesis to DynamoDB: each reading counts once, whichever process or server is killed."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import botocore.exceptions
import pytest
from amazon_servers import LOGIN, DynamoServer, KinesisServer
from file_feed import COUNTING_JOB, SENSORS
from job_in_session import JobInSession
from pyspark.sql import SparkSession
from reliability import noting
from sink_kills import KilledSink, victims
from steady_feed import feed_steadily

from penstock.bindings.parse import parse_binding
from penstock.commands.command_sender import send_command
from penstock.control.commands import Command, Target
from penstock.jobs.settings import RunSettings

READINGS = "readings"


@pytest.fixture(autouse=True)
def login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set AWS credentials for this process and its children."""
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)


class KinesisFeed:
    """Readings in a stream whose shards are split and merged meanwhile; the server's content is what counts."""

    def __init__(self, server: KinesisServer, chance: random.Random) -> None:
        self._server = server
        self._chance = chance
        self._written = 0
        server.create(READINGS, 2)

    def write(self) -> None:
        records = [
            json.dumps({"sensor": sensor, "number": self._written}).encode() for sensor in range(SENSORS)
        ]
        self._server.put(READINGS, [(str(sensor), record) for sensor, record in enumerate(records)])
        self._written += 1

    def reshard(self) -> None:
        shards = self._server.open_shards(READINGS)
        place = self._chance.randrange(len(shards))
        if len(shards) < 4:
            self._server.split(READINGS, shards[place])
        else:
            place = min(place, len(shards) - 2)
            self._server.merge(READINGS, shards[place], shards[place + 1])

    def feeding(self) -> AbstractContextManager[None]:
        """Write readings every 0.2 s while the block runs, also again when the server was down."""
        away = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)
        return feed_steadily(self._write_and_reshard, 0.2, away)

    def _write_and_reshard(self) -> None:
        self.write()
        if self._chance.random() < 0.02:
            self.reshard()

    def counts(self) -> dict[int, int]:
        """Return how many readings of each sensor there are."""
        return dict(Counter(json.loads(data)["sensor"] for _, data in self._server.records(READINGS)))


def items(server: DynamoServer) -> dict[int, int]:
    return {int(one["sensor"]["N"]): int(one["count"]["N"]) for one in server.items("seen")}


def test_a_job_reads_kinesis_and_writes_dynamodb_in_both_modes(tmp_path: Path, spark: SparkSession) -> None:
    """Shards are split between the runs; commands come from a stream as well; the checkpoint has no secret."""
    with KinesisServer(tmp_path) as kinesis, DynamoServer(tmp_path) as dynamo:
        dynamo.create("seen", sensor="N")
        feed = KinesisFeed(kinesis, random.Random(1))
        kinesis.create("commands")
        (tmp_path / "secret").write_text(f"{LOGIN['AWS_SECRET_ACCESS_KEY']}\n")
        login = f"&access_key_id=tester&secret_access_key=file:{tmp_path / 'secret'}"
        bindings = {
            "readings": kinesis.uri(READINGS, f"&start=earliest{login}"),
            "seen": dynamo.uri("seen", login),
            "commands": kinesis.uri("commands", login),
        }
        for interval_ms in (0, 1000):
            feed.write()
            feed.reshard()
            settings = RunSettings(
                bindings=bindings,
                checkpoint=str(tmp_path / "checkpoint"),
                parallelism=2,
                bounded=True,
                checkpoint_interval_ms=interval_ms,
            )
            place = parse_binding("commands", bindings["commands"], "control")
            send_command(Command(id=f"dump {interval_ms}", kind="no-such-kind", target=Target()), place)
            with JobInSession(spark, COUNTING_JOB, settings) as job:
                job.wait()
            assert items(dynamo) == feed.counts()
        receipts = [
            path.read_text() for path in (tmp_path / "checkpoint" / "receipts").rglob("*") if path.is_file()
        ]
        assert all(any(f"dump {interval_ms}" in text for text in receipts) for interval_ms in (0, 1000))
        checkpoint = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
        secret = LOGIN["AWS_SECRET_ACCESS_KEY"].encode()
        assert not [path for path in checkpoint if secret in path.read_bytes()]


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
@pytest.mark.parametrize("sink", ["dynamodb", "kinesis"])
def test_kills_of_a_job_and_its_amazon(tmp_path: Path, sink: str, interval_ms: int) -> None:
    """Twenty for each sink, ten in each mode, under load; the source stream is split and merged meanwhile."""
    seed = 31 + 2 * (sink == "kinesis") + bool(interval_ms)
    chance = random.Random(seed)
    mode = "real time" if interval_ms else "micro-batches"
    with KinesisServer(tmp_path) as kinesis, DynamoServer(tmp_path) as dynamo:
        feed = KinesisFeed(kinesis, random.Random(seed))
        dynamo.create("seen", sensor="N")
        kinesis.create("seen", 2)
        feed.write()
        uri = dynamo.uri("seen") if sink == "dynamodb" else kinesis.uri("seen", "&origin=true")

        def settings(*, bounded: bool = False) -> RunSettings:
            return RunSettings(
                bindings={"readings": kinesis.uri(READINGS, "&start=earliest"), "seen": uri},
                checkpoint=str(tmp_path / "checkpoint"),
                parallelism=2,
                checkpoint_interval_ms=interval_ms,
                bounded=bounded,
            )

        def interrupt() -> None:
            for server in (kinesis, dynamo):
                server.kill()
            time.sleep(1)
            for server in (kinesis, dynamo):
                server.start()

        with noting("Kinesis and DynamoDB", "-k kills_of_a_job_and_its_amazon", str(seed)) as injected:
            KilledSink(tmp_path, feed, settings, interrupt).survive(
                victims("server", 10),
                chance,
                lambda victim: injected.add(f"{victim} of a job from Kinesis to {sink} in {mode}"),
            )
            if sink == "dynamodb":
                assert items(dynamo) == feed.counts()
            else:
                assert outputs(kinesis) == Counter(
                    (sensor, count)
                    for sensor, all_of_it in feed.counts().items()
                    for count in range(1, all_of_it + 1)
                )


def outputs(server: KinesisServer) -> Counter[tuple[int, int]]:
    """Return the received records without repetitions; a repeated origin must have an equal record."""
    found: dict[str, tuple[int, int]] = {}
    last: dict[str, int] = {}
    for key, data in server.records("seen"):
        row = json.loads(data)
        origin = row["penstock_origin"]
        if origin not in found:
            # The first records of each origin are in the order of their key.
            assert row["count"] == last.get(key, 0) + 1
            last[key] = row["count"]
        assert found.setdefault(origin, (row["sensor"], row["count"])) == (row["sensor"], row["count"])
    return Counter(found.values())
