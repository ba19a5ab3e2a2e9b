"""What a check of the doctor has found."""

from __future__ import annotations

from penstock.doctor.findings import Finding

__all__ = ["told"]


def told(finding: Finding, status: str, found: str = "", remedy: str = "") -> None:
    """Check the status of a finding, what it says, and that it has a remedy if something is not in order."""
    assert finding.status == status, finding
    assert found in finding.found
    assert remedy in finding.remedy
    assert bool(finding.remedy) == (status != "ok"), "what is not in order has a remedy"
