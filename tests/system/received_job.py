"""A job that counts the hits of two streams in one step."""

from __future__ import annotations

from tally_job import Count, Hit

import penstock as ps

job = ps.Job("received")
first = job.data_stream("first", schema=Hit)
second = job.data_stream("second", schema=Hit)
first.union(second).key_by("page").process("count", Count()).sink_to("tallies")
