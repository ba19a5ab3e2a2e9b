"""Faults planted into penstock's code, to verify that the simulator finds each: a piece of source is replaced."""

from __future__ import annotations

import contextlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from crash_model import POWER_LOSSES, Loss
from run_kinds import MAIN
from topic_kinds import MAIN_TOPICS

from penstock.checkpoints import checkpoint, plans
from penstock.checkpoints.checkpoint_sync import CheckpointSync
from penstock.commands import receipt_segments
from penstock.jobs import commit, restore, runner
from penstock.savepoints import rescaling
from penstock.sinks import file_sink, kafka_producers, kafka_sink
from penstock.sources import found_files, journal

__all__ = ["PLANTED", "PlantedFault"]


@dataclass(frozen=True)
class PlantedFault:
    """A fault: the function, the replaced pieces of source, and the kind of runs that must reveal it.

    With `stops` the run after each crash is stopped while it starts.
    """

    what: str
    owner: Any
    function: str
    edits: tuple[tuple[str, str], ...]
    kind: str = MAIN
    losses: tuple[Loss | None, ...] = (None,)
    stops: bool = False

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the fault while the block runs."""
        real: Callable[..., Any] = inspect.getattr_static(self.owner, self.function)
        source = textwrap.dedent(inspect.getsource(real))
        for old, new in self.edits:
            if old not in source:
                raise AssertionError(
                    f"{self.function} has no {old!r} any more; plant {self.what!r} otherwise"
                )
            source = source.replace(old, new)
        made: dict[str, Any] = {}
        code = compile(source, f"planted: {self.what}", "exec")
        exec(code, sys.modules[real.__module__].__dict__, made)
        with mock.patch.object(self.owner, self.function, made[self.function]):
            yield


PLANTED: tuple[PlantedFault, ...] = (
    PlantedFault(
        "files with names by chance, which a replay does not find",
        file_sink.FilesSink,
        "commit",
        (("{batch_id:010}.", "{batch_id:010}{uuid.uuid4().int % 10**6:06}."),),
    ),
    PlantedFault(
        "a half-done micro-batch that a stop forgets",
        plans.Plans,
        "forget_refused",
        (("<= self._begun", "< -1"),),
        stops=True,
    ),
    PlantedFault(
        "receipts that a replay adds once more",
        receipt_segments.SegmentWriter,
        "append",
        (("lines = self._missing(batch_id, lines)", "pass"),),
    ),
    PlantedFault(
        "folders of a savepoint's files whose own names are not synced",
        restore,
        "_restore_own_files",
        (("make_folder(path.parent)", "path.parent.mkdir(parents=True, exist_ok=True)"),),
        kind="a journal and a savepoint",
        losses=POWER_LOSSES,
    ),
    PlantedFault(
        "a file that is written in its place",
        checkpoint,
        "write_atomically",
        (
            ('temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")', "temporary = path"),
            ('open("xb")', 'open("wb")'),
        ),
    ),
    PlantedFault(
        "a rescaling that forgets what it does before it has done it",
        rescaling,
        "finish_rescaling",
        (
            ("    intent.unlink()\n", ""),
            ("    for name in _OF_RUNS:", "    intent.unlink()\n    for name in _OF_RUNS:"),
        ),
        kind="rescaled up",
    ),
    PlantedFault(
        "leftovers of a beginning that stay",
        restore,
        "_clear",
        (("if not mark.exists():", "if True:"),),
        kind="a savepoint",
    ),
    PlantedFault(
        "a lineage that is there before its state",
        runner,
        "begin",
        (("    keys = write_seed(", "    checkpoint.begin(lineage)\n    keys = write_seed("),),
        kind="a savepoint",
    ),
    PlantedFault(
        "an output whose bytes are not synced",
        file_sink,
        "_publish",
        (("os.fsync(file.fileno())", "pass"),),
        losses=POWER_LOSSES,
    ),
    PlantedFault(
        "an output whose name is not synced",
        file_sink,
        "_publish",
        (("sync_folder(target.parent)", "pass"),),
        losses=POWER_LOSSES,
    ),
    PlantedFault(
        "outputs before the checkpoint is on disk",
        CheckpointSync,
        "wait",
        (("self._done.result()", "pass"),),
        losses=POWER_LOSSES,
    ),
    PlantedFault(
        "names of a plan that are not synced",
        CheckpointSync,
        "sync_new",
        (("list(self._files.map(_sync_folder_if_there, new))", "pass"),),
        losses=POWER_LOSSES,
    ),
    PlantedFault(
        "a journal that acknowledges before the disk has it",
        journal.JournalWriter,
        "append",
        (("os.fdatasync(self._segment)", "pass"),),
        kind="a journal, three runs",
        losses=POWER_LOSSES,
    ),
    PlantedFault(
        "a list of files that is not synced",
        found_files.FoundFiles,
        "append",
        (("os.fsync(log.fileno())", "pass"),),
        losses=POWER_LOSSES,
    ),
    PlantedFault(
        "a transaction that does not ask whether the batch is there",
        kafka_sink._TransactionTask,
        "_attempt",
        (("if producer.done < self._batch_id:", "if True:"),),
        kind=MAIN_TOPICS,
    ),
    PlantedFault(
        "messages that are committed before the note of their batch",
        kafka_producers.TransactionalProducer,
        "commit",
        (
            (
                "    self._send_offset(",
                "\n        ".join(
                    [
                        "    self._producer.commit_transaction(60)",
                        "self._producer.begin_transaction()",
                        "self._send_offset(",
                    ]
                ),
            ),
        ),
        kind=MAIN_TOPICS,
    ),
    PlantedFault(
        "tasks that commit before the checkpoint is on disk",
        commit.BatchCommitter,
        "before_batch",
        (("self.sync.wait(batch_id)", "pass"),),
        kind=MAIN_TOPICS,
        losses=POWER_LOSSES,
    ),
)
