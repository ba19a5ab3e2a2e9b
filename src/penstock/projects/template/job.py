"""Raise an alert when a sensor stays above its limit.

This file only describes the job. Its sources and sinks are given when it is started; see README.md.
"""

import penstock as ps

from project_name.watch import Limit, Reading, Watch

job = ps.Job("project-name")

# The data stream is processed, the control stream steers. Each has a name, and is bound to a URI with -D NAME=URI.
readings = job.data_stream("readings", schema=Reading)
limits = job.control_stream("limits", schema=Limit)

# Both are keyed by sensor, so that a limit meets the readings of its sensor. State belongs to the step named "watch".
watched = readings.key_by("sensor").connect(limits.key_by("sensor")).process("watch", Watch())
watched.sink_to("alerts")
