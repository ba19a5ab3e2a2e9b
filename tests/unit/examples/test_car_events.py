"""The top speeds equal those of a loop in plain Python, however the reports are cut into micro-batches."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from example_jobs import beside, loaded
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.testing.batch_runner import BatchRunner

JOB, top_speed_job = loaded("car_events", "top_speed_job")
feed = beside("car_events", "feed")
reference = beside("car_events", "car_reference")

Record = dict[str, Any]


def told(reports: list[Record], size: int, partitions: int = 2) -> list[Record]:
    """Return the job's output for the reports, in micro-batches of a given size."""
    job = BatchRunner(JOB, parallelism=partitions)
    found = []
    for number in range(0, len(reports), size):
        events = [top_speed_job.CarEvent(**report) for report in reports[number : number + size]]
        result = job.run({"cars": [("", events)]}, seed=number)
        assert not result.dead_letters
        found += [dataclasses.asdict(event) for event in result.output("top-speeds")]
    return found


def by_car(found: list[Record]) -> dict[int, list[Record]]:
    return {car: [one for one in found if one["car"] == car] for car in {one["car"] for one in found}}


@pytest.mark.parametrize("size", [1, 17, 1000])
def test_top_speeds_are_those_of_the_reference(size: int) -> None:
    """Each car's are in order; many come from an earlier report than the one that triggers the output."""
    reports = list(feed.reports(3, 80 if size == 1 else 240))
    wanted = list(reference.top_speeds(reports))
    assert len(wanted) > 20
    assert by_car(told(reports, size)) == by_car(wanted)


report = st.builds(
    lambda car, speed, gone, after: {"car": car, "speed": speed, "gone": gone, "after": after},
    st.integers(0, 1),
    st.integers(0, 3),
    st.sampled_from([0.0, 10.0, 49.0, 50.0, 51.0, 120.0]),
    st.sampled_from([0, 1000, 4000, 9999, 10000, 30000]),
)


@examples(20)
@given(drawn=st.lists(report, max_size=30), size=st.integers(1, 10))
def test_any_reports_give_those_of_the_reference(drawn: list[Record], size: int) -> None:
    """This includes equal speeds, exactly fifty metres, and exactly ten seconds."""
    time, distances, reports = 0, [0.0, 0.0], []
    for one in drawn:
        time += one["after"]
        distances[one["car"]] += one["gone"]
        reports.append(
            {"car": one["car"], "speed": one["speed"], "distance": distances[one["car"]], "time": time}
        )
    assert by_car(told(reports, size)) == by_car(list(reference.top_speeds(reports)))
