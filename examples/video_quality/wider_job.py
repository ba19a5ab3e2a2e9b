"""The same job for more machines: with 64 key groups it cannot continue a checkpoint with 16, but start from a dump."""

from quality_job import Playback, Watch

import penstock as ps

job = ps.Job("video-quality", key_groups=64)
playbacks = job.data_stream("playbacks", schema=Playback)
playbacks.key_by("title").process("watch", Watch()).sink_to("unusual")
