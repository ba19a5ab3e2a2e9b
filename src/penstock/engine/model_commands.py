"""Model commands: change the status of a model's version in a slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.control.admitted_commands import AdmittedCommand
from penstock.control.commands import Command
from penstock.control.receipts import Report
from penstock.engine.command_validation import named_keys, payload_of
from penstock.engine.function_instance import FunctionInstance
from penstock.engine.slot import report_of
from penstock.models.bound_model import BoundModel
from penstock.models.orders import MODEL_ORDERS, PinModel, RollBackModel, ValidateModel
from penstock.models.refusals import ModelRefusedError
from penstock.models.versions import SERVING, Cause, ModelVersion, serving_version, version_before

__all__ = ["change_versions", "describe_versions"]


def change_versions(
    admitted: AdmittedCommand, instance: FunctionInstance, key_groups: Sequence[int], *, first: bool
) -> list[Report]:
    """Carry out a command on the versions of a model, in all slots alike; return the reports of this one.

    `first` is whether it is the first slot of its step, which reports refusals and details for all.
    """
    command = admitted.command
    order = payload_of(command, MODEL_ORDERS[command.kind])
    model = next(found for found in instance.models.values() if found.model == order.model)
    before = dict(model.items())
    try:
        details = _change(command, order, model, instance)
    except ModelRefusedError as e:
        return [report_of(admitted, "refused", str(e), alone=True)] if first else []
    if not first:
        return [report_of(admitted, "applied", key_groups=list(key_groups))]
    applied = report_of(admitted, "applied", key_groups=list(key_groups), replies=[(None, details)])
    if not isinstance(order, RollBackModel) or not order.reason:
        return [applied]
    undone = _undone(order, before)
    if not undone.command_id:
        # The version is from a state that was stored before commands were noted.
        return [applied]
    said = {"id": undone.command_id, "kind": undone.command_kind, "issued_by": undone.changed_by}
    report = report_of(admitted, "undone", order.reason)
    return [applied, msgspec.structs.replace(report, version=None, **said)]


def _undone(order: RollBackModel, before: Mapping[str, ModelVersion]) -> ModelVersion:
    """Return the version that a rollback has taken out of use, as it was before."""
    name = serving_version(before) if order.version is None else order.version
    assert name is not None, "a rollback that was carried out has a version"
    return before[name]


def _change(command: Command, order: Any, model: BoundModel, instance: FunctionInstance) -> dict[str, Any]:
    """Change the versions, and return the changes. Raises ModelRefusedError when the versions do not allow them."""
    if isinstance(order, PinModel):
        order = msgspec.structs.replace(order, keys=named_keys(order.keys, instance.core.key_type))
    changes = model.change(order, Cause(command.issued_by, command.id, command.kind))
    instance.cursor.undo.clear()
    if isinstance(order, ValidateModel):
        # Loaded early, so that the later cut at which it begins to score need not wait.
        model.preload(order.version)
    statuses = {name: None if version is None else version.status for name, version in changes.items()}
    details = {"model": order.model, "versions": statuses}
    reason = getattr(order, "reason", "")
    return details | ({"reason": reason} if reason else {})


def describe_versions(model: BoundModel) -> dict[str, dict[str, Any]]:
    """Return the versions of a model as plain values, for people."""
    versions = dict(model.items())
    return {
        name: {
            "status": version.status,
            "format": version.format,
            "sha256": version.sha256,
            "uri": version.uri,
            "metadata": msgspec.json.decode(version.metadata),
            "changed_by": version.changed_by,
            "command": version.command_id,
        }
        | ({"share": version.share} if version.share else {})
        | ({"pinned": len(version.pinned)} if version.pinned else {})
        | ({"before": version_before(versions, name)} if version.status == SERVING else {})
        for name, version in versions.items()
    }
