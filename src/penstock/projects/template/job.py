"""Tell when a sensor stays above the limit that was set for it.

The job only describes. Where its streams come from and go to is said when it is started; see README.md.
"""

import penstock as ps

from project_name.watch import Limit, Reading, Watch

job = ps.Job("project-name")

# Data is processed; control steers. Both are named, and bound to a place with -D NAME=URI.
readings = job.data_stream("readings", schema=Reading)
limits = job.control_stream("limits", schema=Limit)

# Both go by sensor, so that a limit meets the readings of its sensor. The state belongs to the step's name, "watch".
watched = readings.key_by("sensor").connect(limits.key_by("sensor")).process("watch", Watch())
watched.sink_to("alerts")
