"""Latency in micro-batches: measured from the records of the streams that feed a sink to the commit."""

from __future__ import annotations

from types import SimpleNamespace

import penstock as ps
from penstock.base.instants import milliseconds_of
from penstock.jobs.task_measurements import TaskMeasurements, streams_before_sinks
from penstock.testing.batch_runner import NOW, BatchRunner


def pages_job() -> ps.Job:
    job = ps.Job("pages", key_groups=8)
    visits = job.data_stream("visits", schema="page INT, count INT")
    other = job.data_stream("other", schema="page INT, count INT")
    visits.key_by("page").count("total").sink_to("totals")
    other.sink_to("copies")
    return job


def test_outputs_count_from_what_leads_to_their_sink() -> None:
    """Each output is measured until the commit; sinks without output and streams without records have no
    latency.
    """
    job = pages_job()
    runner = BatchRunner(job, parallelism=2)
    first = runner.run({"visits": [("a", [b'{"page": %d, "count": 1}' % page for page in range(30)])]})
    second = runner.run({"other": [("b", [b'{"page": 1, "count": 1}'] * 5)]})
    before = streams_before_sinks(job.graph)
    assert before == {"totals": {"visits", "commands"}, "copies": {"other"}}
    found = []
    for outcome in (first, second):
        measured = TaskMeasurements()
        for kind, name, partition, total, body in outcome.reports:
            measured.add(SimpleNamespace(kind=kind, name=name, partition=partition, total=total, body=body))
        outputs = {name: len(records) for name, records in outcome.outputs.items()}
        found.append(measured.latencies(outputs, before, milliseconds_of(NOW) + 250))
    assert {sink: (one.outputs, one.longest_s) for sink, one in found[0].items()} == {"totals": (30, 0.25)}
    assert {sink: (one.outputs, one.longest_s) for sink, one in found[1].items()} == {"copies": (5, 0.25)}
