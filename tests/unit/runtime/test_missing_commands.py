"""Commands deleted from a topic before they were read: one receipt and one dead letter for the gap."""

from __future__ import annotations

from pathlib import Path

import penstock as ps
from penstock.objects.allowed import AllowedPlaces
from penstock.runtime.command_reader import CommandReader
from penstock.runtime.packed_rows import DEAD_LETTERS, SLOT_COMMANDS
from penstock.sources.fetched import FetchedFiles, KeptInFolder
from penstock.sources.gathered_messages import missing_chunk
from penstock.testing.batch_runner import BatchRunner


def test_a_gap_of_commands_is_refused_and_reported(tmp_path: Path) -> None:
    """Both say which offsets are missing."""
    job = ps.Job("counts", key_groups=2)
    job.data_stream("hits", schema="page INT").key_by("page").count("counted").sink_to("counts")
    plan = BatchRunner(job).plan
    fetched = FetchedFiles(KeptInFolder(str(tmp_path)), 1 << 20, AllowedPlaces.of((), ()))
    reader = CommandReader(plan, "json", 1 << 20, fetched)
    rows = list(reader.rows([missing_chunk("00001", "steering", 1, 3, 9)]))
    (letter,) = [row for row in rows if row.destination == DEAD_LETTERS]
    reasons = letter.body.column("reason").to_pylist()
    assert [reason.partition(" (")[0] for reason in reasons] == [
        "The offsets 3 to 8 of partition 1 of the topic 'steering' are missing"
    ]
    commands = [bytes(row.body) for row in rows if row.destination == SLOT_COMMANDS]
    assert len(commands) == len(plan.slot_of)
    assert all(reasons[0].encode() in body for body in commands)
