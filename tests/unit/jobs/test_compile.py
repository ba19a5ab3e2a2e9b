"""Binding a job: every stream is assigned its source or sink, and what cannot run is refused before anything
is written.
"""

from __future__ import annotations

import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.errors import BindingError, CheckpointError, ExternalSystemError, JobDefinitionError
from penstock.jobs.compile import compile_job
from penstock.jobs.settings import RunSettings
from penstock.machine.local_server import free_port
from penstock.streams.stream import DataStream

SCHEMA = "id INT, value DOUBLE"


class Holds(ps.ProcessFunction):
    """Holds what it is given."""

    def __init__(self, held: object) -> None:
        self.held = held

    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Any]:
        yield record


class Waits(Holds):
    """Has timers."""

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Any]:
        return iter(())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def bind(job: ps.Job, folder: Path, settings: dict[str, Any] | None = None, **bindings: str) -> Any:
    given = {"readings": f"jsonl:{folder / 'in'}", "out": f"jsonl:{folder / 'out'}", **bindings}
    run = RunSettings(bindings={k: v for k, v in given.items() if v}, **(settings or {}))
    return compile_job(job, run, Checkpoint.open(str(folder / "checkpoint")))


def plain_job() -> ps.Job:
    job = ps.Job("job", key_groups=3)
    job.data_stream("readings", schema=SCHEMA).sink_to("out")
    return job


def test_each_stream_and_sink_gets_its_place(folder: Path) -> None:
    """Bytes travel only for sources that have them; dead letters have a place without being asked."""
    bound = bind(plain_job(), folder)
    assert [source.node.name for source in bound.sources] == ["readings"]
    assert list(bound.sinks) == ["out", "dead-letters"]
    assert bound.plan.raw_streams == {"readings"}
    assert bound.plan.keyed_sinks == set()
    assert bound.dead_letters_at == str(folder / "checkpoint" / "dead-letters")
    assert bind(plain_job(), folder, readings=f"csv:{folder / 'in'}").plan.raw_streams == set()


def test_dead_letters_stay_in_a_checkpoint_whatever_its_name(tmp_path: Path) -> None:
    """A folder's name may look like a URI; the folder of a step's commands is treated alike."""
    folder = tmp_path / "50%25 of? #1"
    (folder / "in").mkdir(parents=True)
    quoted = urllib.parse.quote(str(folder))
    bound = bind(plain_job(), folder, readings=f"jsonl:{quoted}/in", out=f"jsonl:{quoted}/out")
    assert bound.dead_letters_at == str(folder / "checkpoint" / "dead-letters")


def test_lines_of_text_need_a_record_of_one_text(folder: Path) -> None:
    """Records with other fields are refused, naming a format that fits; a line's bytes are kept for dead
    letters.
    """
    job = ps.Job("job", key_groups=3)
    job.data_stream("readings", schema="text STRING").sink_to("out")
    assert bind(job, folder, readings=f"text:{folder / 'in'}").plan.raw_streams == {"readings"}
    with pytest.raises(
        BindingError, match=r"Stream 'readings' .* single field of type str or bytes. Bind it to jsonl:DIR"
    ):
        bind(plain_job(), folder, readings=f"text:{folder / 'in'}")


def test_dead_letters_may_have_another_place(folder: Path) -> None:
    """`-D dead-letters=URI` is optional."""
    bound = bind(plain_job(), folder, **{"dead-letters": f"jsonl:{folder / 'bad'}"})
    assert bound.dead_letters_at == str(folder / "bad")


@pytest.mark.parametrize(
    ("settings", "parallelism"),
    [
        ({"parallelism": 7}, 7),
        ({"master": "local[2]"}, 2),
        ({"master": "local[2,4]"}, 2),
        ({"master": "local"}, 1),
        ({"master": "local[64]"}, 3),
    ],
)
def test_the_parallelism_follows_the_master(folder: Path, settings: dict[str, Any], parallelism: int) -> None:
    """It is as given, else the number of cores, but at most the number of key groups."""
    assert bind(plain_job(), folder, settings).lineage.parallelism == parallelism


@pytest.mark.parametrize(
    ("bindings", "parts"),
    [
        ({"out": ""}, ("'out'",)),
        ({"readings": ""}, ("'readings'",)),
        ({"outt": "console:"}, ("no stream 'outt'", "readings, out, commands, receipts and dead-letters")),
    ],
)
def test_missing_and_unknown_bindings_are_named(
    folder: Path, bindings: dict[str, str], parts: tuple[str, ...]
) -> None:
    """The message lists the names that exist."""
    with pytest.raises(BindingError) as raised:
        bind(plain_job(), folder, **bindings)
    assert all(part in str(raised.value) for part in parts), raised.value


def test_a_stream_and_a_sink_need_two_names(folder: Path) -> None:
    """The name of a binding must belong to exactly one of them."""
    job = ps.Job("job")
    job.data_stream("readings", schema=SCHEMA).sink_to("readings")
    with pytest.raises(BindingError, match="both named 'readings'; rename one"):
        bind(job, folder)


@pytest.mark.parametrize("scheme", ["amqp", "rabbitmq-stream"])
def test_a_broker_that_is_away_is_said_before_the_start(folder: Path, scheme: str) -> None:
    """The error has the stream's name and the address but not the password, and comes before the job starts."""
    port = free_port()
    with pytest.raises(
        ExternalSystemError, match=f"'readings': no RabbitMQ answers at 127.0.0.1:{port}"
    ) as raised:
        bind(plain_job(), folder, readings=f"{scheme}://guest:s3cr3t@127.0.0.1:{port}/%2F/name")
    assert "s3cr3t" not in str(raised.value)
    assert raised.value.exit_code == 3


LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda s: s.key_by("id").process("s", Holds(LOCK), output=SCHEMA), "function of step 's'"),
        (lambda s: s.map(lambda r, lock=LOCK: r, output=SCHEMA, name="m").sink_to("x"), "map 'm'"),
        (
            lambda s: s.key_by(lambda r, lock=LOCK: r.id, key_type=int).process("s", Holds(1), output=SCHEMA),
            "key function of the stream 'readings'",
        ),
    ],
)
def test_a_function_that_cannot_travel_is_refused(
    folder: Path, use: Callable[[DataStream], object], what: str
) -> None:
    """It is refused with advice before the checkpoint belongs to this job."""
    job = ps.Job("job")
    stream = job.data_stream("readings", schema=SCHEMA)
    stream.sink_to("out")
    use(stream)
    with pytest.raises(JobDefinitionError) as raised:
        bind(job, folder, x="console:")
    message = str(raised.value)
    assert what in message
    assert "cannot be sent to the workers" in message
    assert "where they are first used, not when the job is described" in message
    assert not (folder / "checkpoint" / "lineage.json").exists()


def test_a_job_with_timers_is_woken_at_each_start_also_without_records(folder: Path) -> None:
    """A job whose first function with timers was added later needs a new checkpoint, and is told so."""

    def job(function: ps.ProcessFunction) -> ps.Job:
        found = ps.Job("job", key_groups=3)
        readings = found.data_stream("readings", schema=SCHEMA)
        readings.key_by("id").process("step", function, output=SCHEMA).sink_to("out")
        return found

    bound = bind(job(Waits(None)), folder)
    assert [source.node.name for source in bound.sources] == ["readings", "commands", "@starts"]
    assert bound.lineage.streams == ("readings", "commands", "@starts")
    told = r"with timers or watermarks, and the job has none.*--from-savepoint"
    with pytest.raises(CheckpointError, match=told):
        bind(job(Holds(None)), folder)
