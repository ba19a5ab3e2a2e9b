"""The guide of scaling: the example of docs/scaling.md prints what the page shows, and its table has every field."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
from simulated_job import Nature, SimulatedJob
from typer.testing import CliRunner

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.cli import app
from penstock.metrics.batch_metrics import BatchMetricsWriter
from penstock.scaling.policy import DEFAULT_POLICY, ScalingPolicy, parse_policy
from penstock.server.manager.scaling_state import policy_for
from penstock.server.runs.definitions import Catalog

GUIDE = Path(__file__).parents[2] / "docs" / "scaling.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_example_of_the_guide(tmp_path: Path) -> None:
    """600 records/s that have become 2,400, for two tasks that can do 1,000 each."""
    nature = Nature(fixed_s=0.4, noise=0.05, interval_s=2, cores=8, key_groups=128)
    job = SimulatedJob(
        nature,
        lambda seconds: (600 if seconds < 1800 else 2400) + 200 * math.sin(seconds / 20),
        tasks=2,
    ).run(1920)
    checkpoint = tmp_path / "state"
    checkpoint.mkdir()
    Checkpoint(checkpoint).begin(Lineage("a", "shop", nature.key_groups, 2, ("visits",)))
    writer = BatchMetricsWriter(checkpoint)
    for metrics in job.metrics:
        writer.append(metrics)
    writer.close()
    policy = tmp_path / "scaling.yaml"
    text, _ = blocks("yaml")
    policy.write_text(text)
    (shown,) = blocks("console")
    command, _, printed = shown.partition("\n")
    arguments = command.replace("state/", str(checkpoint)).replace("scaling.yaml", str(policy)).split()
    assert arguments[:3] == ["$", "penstock", "advise"]
    result = CliRunner().invoke(app, arguments[2:])
    assert result.exit_code == 0
    assert result.stdout == printed


def test_the_definition_of_the_guide_is_accepted(tmp_path: Path) -> None:
    """With the policy that it shows."""
    (tmp_path / "job.py").write_text("")
    (tmp_path / "shop.yaml").write_text(blocks("yaml")[1])
    found, problems = Catalog([tmp_path]).definitions()
    assert problems == []
    policy = policy_for(found["shop"].settings)
    assert policy is not None
    assert policy.max_tasks == 8


def test_the_table_of_the_guide_has_every_field_with_its_default() -> None:
    """Durations are those that the text form takes."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", GUIDE.read_text(), re.MULTILINE)
    names = [name for name, _ in rows]
    fields = [
        name.removesuffix("_s") if name.endswith("_s") else name for name in ScalingPolicy.__struct_fields__
    ]
    assert sorted(names) == sorted(fields)
    for name, default in rows:
        value = default.strip().strip("`")
        if name == "max_tasks":
            assert (value, DEFAULT_POLICY.max_tasks) == ("the number of key groups", None)
            continue
        changed = msgspec.structs.asdict(parse_policy(f"{name}: {value}"))
        assert changed == msgspec.structs.asdict(DEFAULT_POLICY), name
