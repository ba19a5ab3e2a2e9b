"""The service: what users see and may do, by ids, with secrets masked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from empty_stores import open_store

from penstock.errors import IdempotencyError, JobDefinitionError, JobStateError, UnknownIdError
from penstock.server.lifecycle.statuses import Desired, JobStatus
from penstock.server.runs.definitions import Catalog
from penstock.server.runs.directory import ServerDirectory
from penstock.server.service.job_resources import Submission
from penstock.server.service.service import JobService

CANARY = "s3cr3t-canary"
DEFINITION = f"""
entry_point: tally
name: Tally of hits
bindings: {{hits: 'amqp://me:{CANARY}@h/%2F/q', out: 'kafka://h:1/t?sasl.password={CANARY}'}}
spark: {{spark.hadoop.fs.s3a.secret.key: {CANARY}}}
from_dump: s3://bucket/dump?secret_key={CANARY}
restart: fixed-delay:attempts=2
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[JobService]:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "tally.yaml").write_text(DEFINITION)
    home = ServerDirectory(tmp_path / "home")
    store = open_store(home.store)
    yield JobService(store, Catalog([tmp_path / "jobs"]), home)
    store.close()


def submit(service: JobService, **more: Any) -> str:
    result = service.submit(Submission(definition="tally", **more), "ann").result
    assert result is not None
    job_id: str = result["job"]
    return job_id


def test_a_submitted_job_is_shown(service: JobService) -> None:
    """With the definition's settings and the client's changes."""
    job_id = submit(service, name="mine!", parallelism=3, restart="none")
    assert job_id.startswith("mine-")
    info = service.get(job_id)
    assert info == service.list_jobs()[0]
    assert (info.name, info.status, info.desired) == ("mine!", JobStatus.CREATED, Desired.RUNNING)
    assert (info.settings["parallelism"], info.restart, info.run) == (3, "none", 0)
    assert service.checkpoint(job_id).parts[-3:] == ("jobs", job_id, "checkpoint")


def test_nothing_that_is_shown_has_a_secret(service: JobService) -> None:
    """Of a definition, a job, its operations and events."""
    job_id = submit(service)
    operation = service.stop(job_id, "ann", savepoint=True)
    shown = msgspec.json.encode(
        [
            service.definitions(),
            service.list_jobs(),
            service.get(job_id),
            service.runs(job_id),
            service.operation(operation.id),
            service.events(),
            service.savepoints(),
        ]
    ).decode()
    assert CANARY not in shown
    assert "amqp://me:***@h" in shown


@pytest.mark.parametrize("name", ["nobody", "../x", "/etc/passwd", "", "a\0b", "x" * 10_000])
def test_what_is_not_known_is_refused(service: JobService, name: str) -> None:
    """By each verb, whatever the id looks like."""
    for verb in (
        lambda: service.get(name),
        lambda: service.runs(name),
        lambda: service.log(name),
        lambda: service.events(name),
        lambda: service.checkpoint(name),
        lambda: service.cancel(name, "ann"),
        lambda: service.stop(name, "ann"),
        lambda: service.pause(name, "ann"),
        lambda: service.resume(name, "ann"),
        lambda: service.savepoint(name, "ann"),
        lambda: service.rescale(name, 2, "ann"),
        lambda: service.operation(name),
        # The model refuses some of these names itself; the service does not rely on that.
        lambda: service.submit(Submission.model_construct(definition=name), "ann"),
        lambda: service.submit(Submission.model_construct(definition="tally", from_savepoint=name), "ann"),
        lambda: service.submit(Submission.model_construct(definition="tally", continues=name), "ann"),
    ):
        with pytest.raises(UnknownIdError):
            verb()
    assert service.list_jobs() == []


def test_what_does_not_go_with_the_job_is_refused(service: JobService) -> None:
    """With a sentence."""
    job_id = submit(service)
    with pytest.raises(JobStateError, match="was never started, so it has no state"):
        service.savepoint(job_id, "ann")
    with pytest.raises(JobDefinitionError, match="from 1 to 32768"):
        service.rescale(job_id, 0, "ann")
    service.cancel(job_id, "ann")
    with pytest.raises(JobStateError, match="CANCELED is already requested"):
        service.stop(job_id, "ann")
    with pytest.raises(JobStateError, match="Only a job that has ended can be continued"):
        submit(service, continues=job_id)
    with pytest.raises(JobDefinitionError, match="cannot also start from a savepoint"):
        submit(service, continues=job_id, from_savepoint="one")


def test_a_repeated_request_is_done_once(service: JobService) -> None:
    """By its key, though ids and savepoints are made anew each time."""
    first = service.submit(Submission(definition="tally"), "ann", key="k1")
    assert service.submit(Submission(definition="tally"), "ann", key="k1") == first
    assert first.result is not None
    stop = service.stop(first.job, "ann", key="k2", savepoint=True)
    assert service.stop(first.job, "ann", key="k2", savepoint=True) == stop
    with pytest.raises(IdempotencyError):
        service.stop(first.job, "ann", key="k2", savepoint=False)
    assert len(service.list_jobs()) == 1
    assert [event.what for event in service.events(first.job)] == ["asked for: submit", "asked for: stop"]
