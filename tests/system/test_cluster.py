"""A Spark standalone cluster, a master and two workers as real processes, gives what one process gives."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from job_process import EXAMPLE, cli
from rooms import Record, Rooms, write_file
from spark_cluster import bare_python, spark_cluster


def test_a_cluster_gives_the_same_output(tmp_path: Path) -> None:
    """The example's files are byte-identical, though nothing of penstock or the job was installed on the workers."""
    rooms = Rooms(11)
    write_file(tmp_path / "settings", "0.jsonl", rooms.first_settings())
    for number in range(3):
        readings: list[Record] = [reading for _ in range(50) for reading in rooms.readings()]
        readings.insert(700, {"sensor_id": 1})
        write_file(tmp_path / "readings", f"{number}.jsonl", readings)
        write_file(tmp_path / "settings", f"{number + 1}.jsonl", rooms.settings())

    def run(name: str, *more: str, **environment: str) -> tuple[dict[str, bytes], dict[str, object]]:
        result = cli(
            str(EXAMPLE),
            "--bounded",
            *(f"-D{s}=jsonl:{tmp_path / s}?max_files_per_batch=1" for s in ("readings", "settings")),
            f"-Dheaters=jsonl:{tmp_path / name}",
            f"--checkpoint={tmp_path / f'checkpoint-{name}'}",
            "--parallelism=2",
            "-ojson",
            *more,
            folder=tmp_path,
            environment=environment,
        )
        assert result.code == 0, result
        counts = {
            key: value for key, value in result.summary.items() if key not in ("job_id", "dead_letters_at")
        }
        written = {path.name: path.read_bytes() for path in (tmp_path / name).glob("part-*.jsonl")}
        return written, counts

    python = bare_python(tmp_path)
    with spark_cluster(tmp_path) as master:
        on_cluster, counts_on_cluster = run("cluster", f"--master={master}", PYSPARK_PYTHON=str(python))
        # Both workers took part, and neither can import penstock by itself.
        for worker in ("worker-1", "worker-2"):
            assert list((tmp_path / worker).glob("app-*/*/penstock-code-*.zip")), f"{worker} got no code"
        found = subprocess.run(
            [str(python), "-c", "import pyarrow, penstock"],
            env={"PENSTOCK_TEST_ON_WORKER": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "No module named 'penstock'" in found.stderr
    locally, counts_locally = run("local")
    assert on_cluster == locally
    assert counts_on_cluster == counts_locally
    assert counts_locally["dead_letters"] == 3
    assert sum(len(lines.splitlines()) for lines in locally.values()) > 50
    assert all(
        json.loads(line)["command"] in ("ON", "OFF")
        for lines in locally.values()
        for line in lines.splitlines()
    )
