"""The model queue: fetch and examine the models that commands have loaded, and remove those that nothing needs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.errors import ExternalSystemError, PenstockError
from penstock.models.library import ModelLibrary, Reference
from penstock.models.model import Model
from penstock.models.retention import removable_contents

__all__ = ["ModelQueue"]

_RETRY_S: Final = 10.0


class ModelQueue:
    """The queue of a job's models, in its library: one after the other, in a thread beside the job.

    So the facts are there when a command validates a version, and no micro-batch waits for them. `models` has the
    declared models of each step that has any, by name; `on_note` gets a sentence about each version. `retained_batches`
    is how many micro-batches the checkpoint can go back.
    """

    def __init__(
        self,
        library: ModelLibrary,
        models: Mapping[str, Mapping[str, Model]],
        on_note: Callable[[str], None],
        retained_batches: int,
    ) -> None:
        self._library: Final = library
        self._models: Final = models
        self._on_note: Final = on_note
        self._retained_batches: Final = retained_batches
        self._next_at_s = 0.0
        self._running: threading.Thread | None = None
        self._notes: Final[list[str]] = []

    def step(self) -> bool:
        """Begin with the next version, or report the outcome of the last one; return whether any is left."""
        if not self._models:
            return False
        if self._running is not None:
            if self._running.is_alive():
                return True
            self._running = None
        while self._notes:
            self._on_note(self._notes.pop(0))
        if time.monotonic() < self._next_at_s:
            return False
        for reference in self._library.asked():
            declared = self._models.get(reference.step, {}).get(reference.order.model)
            if declared is None or self._library.findings(reference, declared.spec) is not None:
                self._library.answer(reference)
                continue
            self._running = threading.Thread(
                target=self._examine, args=(reference, declared), name="models", daemon=True
            )
            self._running.start()
            return True
        return False

    def remove_unused(
        self, batch_id: int, versions: Mapping[str, Mapping[str, Mapping[str, Any]]], unused: dict[str, int]
    ) -> None:
        """Remove contents that no version has had for all micro-batches that the checkpoint retains.

        It is called when a micro-batch is about to be committed, while no task works. `versions` are those after the
        micro-batch by step, model and name. `unused` has since when contents are unused; it is brought up to date.
        """
        if not self._models or self._models.keys() - versions.keys():
            # The versions of a step are unknown before its first report.
            return
        used = {
            one["sha256"]
            for models in versions.values()
            for found in models.values()
            for one in found.values()
        }
        kept = self._library.contents()
        for sha256 in removable_contents(unused, batch_id, kept, used, self._retained_batches):
            size = self._library.remove_content(sha256)
            del unused[sha256]
            self._notes.append(
                f"The content {sha256[:12]}... of a model ({size:,} bytes) was removed from the checkpoint: no version "
                f"has had it for {self._retained_batches} micro-batches."
            )

    def _examine(self, reference: Reference, declared: Model) -> None:
        order = reference.order
        what = f"Version {order.version!r} of the model {order.model!r} of step {reference.step!r}"
        try:
            self._notes.append(f"{what} {self._answer(reference, declared)}.")
        except (OSError, ExternalSystemError) as e:
            # The disk of the checkpoint may be full, or its store unreachable; the version still waits.
            self._next_at_s = time.monotonic() + _RETRY_S
            why = getattr(e, "strerror", None) or e
            self._notes.append(
                f"{what} could not be kept in the checkpoint ({why}); this is tried again in {_RETRY_S:g} s."
            )

    def _answer(self, reference: Reference, declared: Model) -> str:
        """Examine a version, keep the result, and return it as words."""
        try:
            found = self._library.examine(reference, declared.spec)
        except ExternalSystemError:
            raise
        except PenstockError as e:
            self._library.answer(reference, str(e))
            return f"could not be fetched: {e}. The command validate-model tries it again"
        self._library.answer(reference)
        if found.refusal:
            return f"cannot be validated: {found.refusal}"
        return f"was fetched and examined: {found.ms:.1f} ms for {found.records:,} records"
