"""First contact: an empty home and one command give a running demo job with visible metrics."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest
from first_contact import FirstContact
from job_process import await_true

ROOT = Path(__file__).parents[2]
MAX_S = 60.0


@pytest.mark.chaos  # test_serve.py and test_dashboard.py start a server and a job in another way
def test_a_demo_runs_in_an_empty_home(tmp_path: Path) -> None:
    """The URL leads to a page; the job runs and reports metrics. Its input and output use no disk."""
    met = FirstContact([sys.executable, "-m", "penstock.cli"], tmp_path)
    try:
        page = met.open()
        assert page.is_success
        assert page.headers["Content-Type"].startswith("text/html")
        await_true(lambda: met.records() > 0, met.log)
        print(f"\nmetrics after {met.seconds:.1f} s")
        assert {path.name for path in met.home.iterdir()} <= {"jobs", "server.json"} | {
            path.name for path in met.home.glob("store.db*")
        }
    finally:
        met.close()


@pytest.mark.chaos
def test_from_an_empty_environment(tmp_path: Path) -> None:
    """`pip install .`, `penstock serve`, open the URL: a running job with metrics in under 60 s."""
    begun_s = time.monotonic()
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    install = [str(programs / "python"), "-m", "pip", "install", "--quiet", str(ROOT)]
    subprocess.run(install, check=True, cwd=tmp_path)
    installed_s = time.monotonic() - begun_s
    met = FirstContact([str(programs / "penstock")], tmp_path)
    try:
        listens_s = met.seconds
        assert met.open().is_success
        opened_s = met.seconds
        await_true(lambda: met.records() > 0, met.log)
        seconds = met.seconds
    finally:
        met.close()
    print(
        f"\npip install: {installed_s:.0f} s; penstock serve listens after {listens_s:.1f} s, the page is there after "
        f"{opened_s:.1f} s, metrics of the running demo after {seconds:.1f} s (load {os.getloadavg()[0]:.1f} on "
        f"{os.cpu_count()} cores)"
    )
    assert seconds < MAX_S
