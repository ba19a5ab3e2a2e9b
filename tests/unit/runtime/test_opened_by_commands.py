"""Access control: records and commands open no file and no address that the run has not allowed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from audited_opens import opened
from domains import Visit

import penstock as ps
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import BatchRunner

CANARY = "canary-root-sesame"


@dataclass
class Seen:
    limit: int


class Limits(ps.ProcessFunction):
    """Emits the setting for each visit."""

    limit = ps.Setting(int, 0)
    word = ps.Setting(str, "")

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Seen]:
        yield Seen(self.limit.get())


def job_of(tmp_path: Path) -> BatchRunner:
    job = ps.Job("job", key_groups=8)
    visits = job.data_stream("visits", schema=Visit)
    visits.key_by("user").process("limits", Limits()).sink_to("seen")
    made = BatchRunner(job, parallelism=2)
    made.fetched_folder = str(tmp_path / "kept")
    return made


def run(job: BatchRunner, *commands: dict[str, Any], visits: Sequence[Visit] = ()) -> BatchOutcome:
    sent = [msgspec.json.encode({"id": f"c{number}", **one}) for number, one in enumerate(commands)]
    return job.run({"commands": [("c", sent)], "visits": [("a", visits)]})


def reload_from(uri: object) -> dict[str, Any]:
    return {"kind": "reload-config", "target": {"step": "limits"}, "payload": {"from": uri}}


def dump_to(uri: object) -> dict[str, Any]:
    return {"kind": "dump-state", "payload": {"to": uri}}


@pytest.fixture
def canaries(tmp_path: Path) -> Iterator[list[str]]:
    """Return existing and missing files, and a reachable address, none of them allowed."""
    secret = tmp_path / "secret.yaml"
    secret.write_text(f"{CANARY}: 1\nlimit: {CANARY}\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        yield [
            *(
                str(secret),
                f"file://{secret}",
                f"{tmp_path}/allowed/../secret.yaml",
                f"{tmp_path}/allowedness/x",
            ),
            *(
                str(tmp_path / "none.yaml"),
                "/etc/passwd",
                "~/.ssh/id_rsa",
                "/proc/self/environ",
                "secret.yaml",
            ),
            *(f"http://127.0.0.1:{port}/a", f"http://allowed.example@127.0.0.1:{port}/a"),
            *("http://169.254.169.254/latest/meta-data", "https://allowed.example.other/a", "s3://other/a"),
        ]
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_writer_of_the_command_topic_opens_nothing(tmp_path: Path, canaries: list[str]) -> None:
    """Whatever place a command names, the refusals are identical, and no content is kept."""
    job = job_of(tmp_path)
    job.allow_read = [str(tmp_path / "allowed"), "https://allowed.example"]
    job.allow_write = [str(tmp_path / "allowed")]
    # Time zones are looked up only once.
    run(job.copy(), {"kind": "trace"})
    with opened() as heard:
        read = run(job, *map(reload_from, canaries))
        written = run(job, *({**dump_to(uri), "id": f"d{n}"} for n, uri in enumerate(canaries)))
    for result, word in ((read, "read"), (written, "write")):
        assert [receipt.status for receipt in result.receipts] == ["ACCEPTED", "REJECTED"] * len(canaries)
        (reason,) = {receipt.reason for receipt in result.receipts if receipt.status == "REJECTED"}
        assert f"may not {word}" in reason
    # The name of the job's own folder is synced in its parent.
    own = str(Path(job.fetched_folder).parent)
    assert {path for path in heard if path != own and not path.startswith(job.fetched_folder)} == set()
    kept = b"".join(path.read_bytes() for path in Path(job.fetched_folder).iterdir())
    assert CANARY.encode() not in kept
    assert CANARY not in repr((read.receipts, read.dead_letters, written.receipts))


def test_without_settings_a_job_opens_nothing(tmp_path: Path) -> None:
    """This includes world-readable files."""
    there = tmp_path / "limits.json"
    there.write_text('{"limit": 3}')
    job = job_of(tmp_path)
    assert [receipt.status for receipt in run(job, reload_from(str(there))).receipts] == [
        "ACCEPTED",
        "REJECTED",
    ]
    again = job_of(tmp_path / "again")
    again.allow_read = [str(tmp_path)]
    assert [receipt.status for receipt in run(again, reload_from(str(there))).receipts][-1] == "APPLIED"


def test_what_is_allowed_and_does_not_fit_is_not_quoted(tmp_path: Path) -> None:
    """Viewers of receipts need not be allowed to read the file."""
    files = {
        "names.yaml": f"{CANARY}: 1\nlimit: 2\n",
        "values.yaml": f"limit: {CANARY}\n",
        "broken.yaml": f"limit: 1\n{CANARY}: [\n",
        "alias.yaml": f"a: &{CANARY} 1\nlimit: *{CANARY}\n",
        "broken.json": f'{{"limit": "{CANARY}',
        "array.json": f'["{CANARY}"]',
        "text": CANARY,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    job = job_of(tmp_path)
    job.allow_read = [str(tmp_path)]
    result = run(job, *(reload_from(str(tmp_path / name)) for name in files))
    refused = [receipt.reason for receipt in result.receipts if receipt.status == "REJECTED"]
    assert len(refused) == len(files)
    assert CANARY not in repr((result.receipts, result.dead_letters))
    assert (
        "1 of the 2 names that were read are not settings of the step 'limits'; it has limit, word"
        in refused[0]
    )
    assert "the value read for the setting 'limit' does not fit its type" in refused[1]
    assert "it is not YAML" in refused[2]


def test_a_refused_dump_is_refused_again_in_a_replay(tmp_path: Path) -> None:
    """This holds if the replaying run has other permissions: a receipt does not change."""
    job = job_of(tmp_path)
    job.allow_write = ["/dumps"]
    before = job.copy()
    commands = (dump_to("/dumps/{batch}"), dump_to("/other/{batch}"))
    result = run(job, *commands)
    assert [r.status for r in result.receipts if r.status != "ACCEPTED"] == [
        "VALIDATED",
        "APPLIED",
        "REJECTED",
    ]
    before.allow_write = ["/other"]
    assert run(before, *commands).receipts == result.receipts


def test_a_writer_of_data_opens_nothing(tmp_path: Path, canaries: list[str]) -> None:
    """Names in records have no effect."""
    job = job_of(tmp_path)
    with opened() as heard:
        result = run(job, visits=[Visit(uri, 0) for uri in canaries])
    assert len(result.output("seen")) == len(canaries)
    assert heard == []


@pytest.mark.parametrize(
    "payload", [None, 1, [], {"from": 1}, {"from": None}, {"to": 7}, {"from": {"a": "/etc"}}]
)
def test_payloads_of_other_shapes_are_refused(tmp_path: Path, payload: object) -> None:
    """The refusal comes before anything is opened."""
    job = job_of(tmp_path)
    commands = ({**reload_from(""), "payload": payload}, {**dump_to(""), "payload": payload})
    with opened() as heard:
        assert [r.status for r in run(job, *commands).receipts] == ["ACCEPTED", "REJECTED"] * 2
    assert [path for path in heard if not path.startswith(job.fetched_folder)] == []
    assert json.dumps(payload)
