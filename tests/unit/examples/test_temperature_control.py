"""The temperature-control example: both forms of the job emit exactly what the reference model does."""

from __future__ import annotations

import dataclasses
import importlib.util
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from hypothesis import example, given
from hypothesis import strategies as st
from step_support import run_group

from penstock.engine.step import StepCore, StepResult
from penstock.jobs.job_loader import load_job
from penstock.operators.record_blocks import OFFSET, Block
from penstock.records.wire_formats import format_of
from penstock.runtime.plan import JobPlan
from penstock.state.key_groups import key_groups
from penstock.streams.graph import SinkNode
from penstock.streams.job_description import JobDescription

EXAMPLE = Path(__file__).parents[3] / "examples" / "temperature_control"
SETTINGS, READINGS = 0, 1
STREAMS = ("settings", "readings")
Record = dict[str, Any]
Batch = tuple[list[Record], list[Record]]


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


reference = module("reference")
JOBS: dict[str, JobDescription] = {
    name: load_job(str(EXAMPLE / f"{name}.py")).job for name in ("job", "vectorised")
}

# Taken here, since other tests unload what they have imported.
MESSAGES = sys.modules["messages_pb2"]


def core(job: JobDescription) -> StepCore:
    plan = JobPlan(job.graph, job.key_groups, frozenset(), frozenset(), strict=False)
    return plan.core(job.graph.steps()[0])


# The first run of each step imports a lot, and the machine may be busy.

# Few sensors, so that records meet; some far apart, so that several key groups are used.
sensors = st.sampled_from([0, 1, 2, 3, -1, 2**31 - 1, -(2**63), 2**63 - 1])
# Temperatures near the settings are likely, so that there are commands; extreme ones are possible.
temperatures = st.one_of(
    st.sampled_from([18.0, 19.0, 19.999999999999996, 20.0, 20.5, 21.0, 22.0, -0.0, 1e308, -1e308]),
    st.floats(allow_nan=True, allow_infinity=True),
)
any_reading = st.fixed_dictionaries({"sensor_id": sensors, "temperature": temperatures})
deltas = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 1e308]), st.floats(allow_nan=True, allow_infinity=True))
any_setting = st.fixed_dictionaries(
    {
        "sensor_id": sensors,
        "desired": st.one_of(st.sampled_from([20.0, 21.0]), temperatures),
        "up_delta": deltas,
        "down_delta": deltas,
    }
)
any_run = st.lists(
    st.tuples(st.lists(any_setting, max_size=6), st.lists(any_reading, max_size=25)), max_size=5
)


class Driver:
    """Runs a step as the runtime would: by key group, in blocks, with state kept as bytes between batches."""

    def __init__(self, job: JobDescription, block_sizes: random.Random) -> None:
        self.core = core(job)
        self.count = job.key_groups
        self.random = block_sizes
        self.state: dict[int, dict[str, bytes]] = {}
        self.next_offset = {SETTINGS: 0, READINGS: 0}

    def run(self, batch: Batch) -> dict[int, list[str]]:
        """Return the commands of a micro-batch, by sensor."""
        blocks: dict[int, list[Block]] = {}
        for number, records in enumerate(batch):
            for block in self.blocks(number, records):
                keys = self.core.inputs[number].key.column(block.batch)
                groups = key_groups(keys, self.count)
                for group in sorted(set(groups.tolist())):
                    rows = block.batch.filter(pa.array(groups == group))
                    first = rows.column(OFFSET)[0].as_py()
                    blocks.setdefault(group, []).append(
                        dataclasses.replace(block, first_offset=first, batch=rows)
                    )
        found: dict[int, list[str]] = {}
        for group, mine in blocks.items():
            self.random.shuffle(mine)
            result, self.state[group] = run_group(self.core, group, mine, self.state.get(group))
            assert not result.dead_letters
            for sensor, command in emitted(result):
                found.setdefault(sensor, []).append(command)
        return found

    def blocks(self, number: int, records: list[Record]) -> list[Block]:
        """Return the records of one input as blocks of any size, from one partition."""
        kind = self.core.inputs[number].record_type
        found = []
        while records:
            size = self.random.randint(1, len(records))
            part, records = records[:size], records[size:]
            batch = kind.batch([msgspec.convert(record, kind.python_class) for record in part])
            first = self.next_offset[number]
            self.next_offset[number] += size
            offsets = pa.array(range(first, first + size), pa.int64())
            found.append(Block(number, STREAMS[number], "0", first, batch.append_column(OFFSET, offsets)))
        return found


def emitted(result: StepResult) -> list[tuple[int, str]]:
    return [
        (row["sensor_id"], row["command"])
        for emission in result.emissions
        for row in emission.batch.to_pylist()
    ]


def expected(run: list[Batch]) -> list[dict[int, list[str]]]:
    """Return the reference's result, for each batch and sensor."""
    fold = reference.Fold()
    found: list[dict[int, list[str]]] = []
    for batch_settings, batch_readings in run:
        for setting in batch_settings:
            fold.take_setting(setting)
        commands: dict[int, list[str]] = {}
        for reading in batch_readings:
            command = fold.judge(reading)
            if command is not None:
                commands.setdefault(command["sensor_id"], []).append(command["command"])
        found.append(commands)
    return found


def setting(desired: float, sensor: int = 1) -> Record:
    return {"sensor_id": sensor, "desired": desired, "up_delta": 1.0, "down_delta": 1.0}


def reading(temperature: float, sensor: int = 1) -> Record:
    return {"sensor_id": sensor, "temperature": temperature}


@pytest.mark.parametrize("form", JOBS)
@given(run=any_run, seed=st.integers(0, 2**32))
@example(run=[([], [reading(30.0)]), ([setting(20.0)], [reading(30.0)] * 3)], seed=0)
@example(run=[([setting(20.0)], [reading(30.0), reading(10.0)]), ([setting(5.0)], [reading(10.0)])], seed=1)
def test_the_step_equals_the_fold(form: str, run: list[Batch], seed: int) -> None:
    """Any interleaving of settings and readings, cut into any blocks and batches, gives the fold's commands."""
    driver = Driver(JOBS[form], random.Random(seed))
    assert [driver.run(batch) for batch in run] == expected(run)


@given(before=any_run, after=any_run, order=st.permutations(["job", "vectorised"]))
def test_either_form_goes_on_from_the_others_state(
    before: list[Batch], after: list[Batch], order: list[str]
) -> None:
    """State of one form is readable by the other, so a job may change its form without loss."""
    first, second = (Driver(JOBS[form], random.Random(0)) for form in order)
    found = [first.run(batch) for batch in before]
    second.state = first.state
    found += [second.run(batch) for batch in after]
    assert found == expected(before + after)


@given(run=any_run, seed=st.integers(0, 2**32))
def test_a_replayed_batch_gives_the_same_bytes(run: list[Batch], seed: int) -> None:
    """The same blocks on the same state give byte-identical output and state, in whatever order they arrive."""
    for form, job in JOBS.items():
        driver = Driver(job, random.Random(seed))
        for batch in run:
            mine = [block for number, records in enumerate(batch) for block in driver.blocks(number, records)]
            state = driver.state.get(0)
            results = []
            for _ in range(2):
                driver.random.shuffle(mine)
                results.append(run_group(driver.core, 0, mine, state))
            one, other = results
            assert (one[1], emitted(one[0])) == (other[1], emitted(other[0])), form
            driver.state[0] = one[1]


def test_both_forms_emit_the_same_records_in_the_same_order() -> None:
    """Large batches, in which an unstable sort would show, are included; the order holds across sensors."""
    numbers = random.Random(3)
    wishes = [setting(20.0, sensor) for sensor in range(3)]
    measured = [reading(numbers.uniform(15, 25), numbers.randrange(3)) for _ in range(5_000)]
    found = []
    for job in JOBS.values():
        driver = Driver(job, random.Random(0))
        blocks = [*driver.blocks(SETTINGS, wishes), *driver.blocks(READINGS, measured)]
        found.append(emitted(run_group(driver.core, 0, blocks, None)[0]))
    assert found[0] == found[1] == [tuple(c.values()) for c in reference.commands([(wishes, measured)])]


@pytest.mark.parametrize("form", JOBS)
def test_readings_in_the_band_leave_the_state_alone(form: str) -> None:
    """A batch that changes nothing writes no state."""
    driver = Driver(JOBS[form], random.Random(0))
    driver.run(([setting(20.0)], [reading(30.0)]))
    kept = dict(driver.state)
    (group,) = kept
    blocks = driver.blocks(READINGS, [reading(20.0), reading(20.5), reading(30.0)])
    assert run_group(driver.core, group, blocks, kept[group]) == (StepResult(), kept[group])


def test_the_documented_example_of_the_reference() -> None:
    """The example in the reference's docstring is right."""
    import doctest

    assert doctest.testmod(reference).failed == 0


def test_the_generated_module_is_that_of_the_proto_file(tmp_path: Path) -> None:
    """`messages_pb2.py` matches the present `messages.proto`."""
    target = tmp_path / "descriptors"
    command = ["-m", "grpc_tools.protoc", f"-I{EXAMPLE}", f"--descriptor_set_out={target}", "messages.proto"]
    subprocess.run([sys.executable, *command], check=True)
    (generated,) = FileDescriptorSet.FromString(target.read_bytes()).file
    generated.ClearField("source_code_info")
    for field in [f for message in generated.message_type for f in message.field]:
        field.ClearField("json_name")
    committed = FileDescriptorProto()
    messages().DESCRIPTOR.CopyToProto(committed)
    assert committed == generated


def messages() -> ModuleType:
    """The generated module, as the job has loaded it."""
    return MESSAGES


@pytest.mark.parametrize("stream", ["readings", "settings"])
def test_messages_of_the_protobuf_library_are_read(stream: str) -> None:
    """Bytes that the plain protobuf library has written become the job's records."""
    wire = {
        "readings": messages().SensorData(sensorID=7, temperature=21.5),
        "settings": messages().TemperatureControl(sensorID=7, desired=20, upDelta=1, downDelta=2),
    }[stream]
    (source,) = (node for node in JOBS["job"].graph.sources() if node.name == stream)
    decoder = format_of("protobuf", source.record_type, protobuf=source.protobuf)
    decoded = decoder.decode(pa.array([wire.SerializeToString()], pa.binary()))
    assert not decoded.bad
    fields = (
        {"temperature": 21.5}
        if stream == "readings"
        else {"desired": 20.0, "up_delta": 1.0, "down_delta": 2.0}
    )
    assert decoded.batch.to_pylist() == [{"sensor_id": 7} | fields]


def test_commands_are_read_by_the_protobuf_library() -> None:
    """The plain protobuf library parses what the sink writes; enumerations match by name."""
    (sink,) = (node for node in JOBS["job"].graph.nodes.values() if isinstance(node, SinkNode))
    encoder = format_of("protobuf", sink.record_type, protobuf=sink.protobuf)
    batch = pa.RecordBatch.from_pylist(
        [{"sensor_id": 3, "command": "ON"}, {"sensor_id": 4, "command": "OFF"}],
        schema=sink.record_type.schema,
    )
    control = messages().HeaterControl
    parsed = [control.FromString(raw) for raw in encoder.encode(batch).to_pylist()]
    assert parsed == [control(sensorID=3, command="On"), control(sensorID=4, command="Off")]
