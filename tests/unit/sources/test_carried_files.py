"""Files that travel with their plan: a task on another machine reads the content that the planner found."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

from penstock.bindings.types import FilesBinding
from penstock.records.schemas import record_type
from penstock.sources.carried_files import CarriedFiles

READING = record_type("n INT")


def test_the_splits_of_a_plan_have_the_content(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"n":1}\n{"n":2}\n')
    (folder / "b.jsonl").write_text('{"n":3}\n')
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(b'{"n":5}\n'))
    log = CarriedFiles(FilesBinding("commands", f"jsonl:{folder}", "jsonl", str(folder)), tmp_path / "files")
    end = log.latest(0, limited=True)
    with (folder / "b.jsonl").open("a") as late:
        late.write('{"n":4}\n')
    splits = pickle.loads(pickle.dumps(log.splits(0, end, 2)))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    read = [
        (chunk.partition, line)
        for chunk in pickle.loads(pickle.dumps(log)).read(splits, READING)
        for line in chunk.raw.to_pylist()
    ]
    assert read == [
        *(("a.jsonl", b'{"n":1}\n'), ("a.jsonl", b'{"n":2}\n'), ("b.jsonl", b'{"n":3}\n')),
        ("c.jsonl.gz", b'{"n":5}\n'),
    ]
