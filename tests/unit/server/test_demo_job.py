"""The demo job: offered and submitted where a server has nothing else to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import UnknownIdError
from penstock.server.demo_job import DEMO, demo_definition, pause_demo, start_or_resume
from penstock.server.lifecycle.statuses import Desired
from penstock.server.runs.definitions import Catalog, JobSettings
from penstock.server.runs.directory import ServerDirectory
from penstock.server.service.job_resources import Submission
from penstock.server.service.service import JobService
from penstock.server.store.engine import sqlite_url
from penstock.server.store.store import Store


def test_it_is_submitted_once_in_an_empty_home(tmp_path: Path) -> None:
    """And never again, also when it is over."""
    home = ServerDirectory(tmp_path)
    store = Store.open(sqlite_url(home.store))
    service = JobService(store, Catalog([], [demo_definition()]), home)
    job_id = start_or_resume(service)
    assert job_id is not None
    job = service.get(job_id)
    assert (job.definition, job.name, job.created_by) == (DEMO, DEMO, "penstock serve")
    assert start_or_resume(service) is None
    assert [one.id for one in service.list_jobs()] == [job_id]
    store.close()


def test_it_stands_still_without_its_server(tmp_path: Path) -> None:
    """And continues with the next one, unless a user has paused it."""
    home = ServerDirectory(tmp_path)
    store = Store.open(sqlite_url(home.store))
    service = JobService(store, Catalog([], [demo_definition()]), home)
    job_id = start_or_resume(service)
    assert job_id is not None
    other = service.submit(Submission(definition=DEMO), "ann").job
    pause_demo(service, lambda: None)
    assert service.get(job_id).desired is Desired.PAUSED
    assert service.get(other).desired is Desired.RUNNING, "somebody has asked for that one"
    assert start_or_resume(service) == job_id
    assert service.get(job_id).desired is Desired.RUNNING
    service.pause(job_id, "ann")
    pause_demo(service, lambda: None)
    assert start_or_resume(service) is None
    assert service.get(job_id).desired is Desired.PAUSED
    store.close()


def test_it_is_a_definition_beside_others(tmp_path: Path) -> None:
    """Its file is in the package; a file of the same id in a folder is reported as hiding it."""
    assert Path(str(demo_definition().file)).is_file()
    assert JobSettings(**demo_definition().settings).bindings == {"ticks": "rate:200", "heaters": "discard:"}
    with pytest.raises(UnknownIdError, match="Available definitions: none"):
        Catalog([tmp_path]).definition(DEMO)
    catalog = Catalog([tmp_path], [demo_definition()])
    assert catalog.definition(DEMO) == demo_definition()
    (tmp_path / "job.py").write_text("")
    (tmp_path / "demo.yaml").write_text("job: job.py\n")
    found, problems = catalog.definitions()
    assert found == {}
    assert "has the same id 'demo'" in problems[0].problem
