"""Memory shares: a job divides its memory limit, and refuses one that is too small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import JobDefinitionError
from penstock.jobs.memory_shares import MemoryShares
from penstock.jobs.settings import RunSettings


@given(st.integers(200, 100_000), st.integers(1, 64), st.booleans())
def test_shares_stay_within_the_memory(memory_mb: int, parallelism: int, in_real_time: bool) -> None:
    """Each share is large enough to work with, and the sum with each process's base need is within the limit."""
    try:
        shares = MemoryShares.of(memory_mb, parallelism, in_real_time=in_real_time)
    except JobDefinitionError:
        assert memory_mb < 912 + 164 * parallelism
        return
    assert shares.heap_mb >= 512
    assert shares.state_mb >= 16
    assert shares.records_mb >= 8
    workers = parallelism * (shares.state_mb + shares.records_mb + 100)
    assert shares.heap_mb + workers + 400 <= memory_mb


def test_too_little_memory_is_refused() -> None:
    """The error names the smallest limit that works."""
    with pytest.raises(JobDefinitionError) as raised:
        MemoryShares.of(500, 2, in_real_time=True)
    assert str(raised.value) == (
        "The memory is 500 MiB; a job with a parallelism of 2 needs at least 1,240 MiB. Give it more memory, or lower "
        "the parallelism."
    )


def test_no_limit_is_no_shares() -> None:
    """Without a limit the defaults apply."""
    assert RunSettings().memory_shares(2) is None
    assert RunSettings(memory_mb=2000).memory_shares(2) is not None


def test_one_option_says_how_much_memory_there_is() -> None:
    """The option excludes a separate share for state, and a cluster has settings of its own."""
    with pytest.raises(JobDefinitionError, match="Leave out state_memory_mb"):
        RunSettings(memory_mb=1000, state_memory_mb=10)
    with pytest.raises(JobDefinitionError, match=r"spark\.executor\.memory"):
        RunSettings(memory_mb=1000, master="spark://host:7077")
