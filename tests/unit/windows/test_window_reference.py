"""The reference model of windows does what Flink does."""

from __future__ import annotations

import pytest
from window_cases import case_ids, check, load_case, load_expected
from window_reference import windowed


@pytest.mark.parametrize("case_id", case_ids())
def test_the_model_emits_what_flink_emitted(case_id: str) -> None:
    """Every case comes out of the model as it came out of Flink, without an exception."""
    case = load_case(case_id)
    check(case, windowed(case.spec, case.elements), load_expected(case_id))
