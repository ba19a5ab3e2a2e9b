"""`penstock rescale` on a stopped job: a run that may still work elsewhere loses the checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.ownership import Ownership
from penstock.cli import app
from penstock.errors import FencedError


def test_a_run_elsewhere_is_fenced_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where locks have no effect, it might commit to the rescaled checkpoint."""
    checkpoint = Checkpoint.open(str(tmp_path / "checkpoint"))
    checkpoint.begin(Lineage("lineage", "job", 8, 2, ("readings",)))
    elsewhere = Ownership.take(checkpoint.folder)
    seen: list[FencedError | None] = []

    @contextlib.contextmanager
    def no_spark(**_: Any) -> Iterator[None]:
        yield None

    def rescaled(session: None, folder: Checkpoint, parallelism: int) -> Lineage:
        seen.append(elsewhere.lost())
        return Lineage("lineage", "job", 8, parallelism, ("readings",))

    monkeypatch.setattr("penstock.spark.reading_session.reading_session", no_spark)
    monkeypatch.setattr("penstock.savepoints.rescaling.rescale", rescaled)
    done = CliRunner().invoke(app, ["rescale", str(checkpoint.folder), "--parallelism", "4", "-o", "json"])
    assert done.exit_code == 0, done.output
    assert isinstance(seen[0], FencedError)
