"""Checks a finding of the doctor."""

from __future__ import annotations

from penstock.doctor.findings import Finding

__all__ = ["told"]


def told(finding: Finding, status: str, found: str = "", remedy: str = "") -> None:
    """Check the status and the text of a finding, and that it has a remedy unless it is ok."""
    assert finding.status == status, finding
    assert found in finding.found
    assert remedy in finding.remedy
    assert bool(finding.remedy) == (status != "ok"), "what is not in order has a remedy"
