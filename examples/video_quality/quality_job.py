"""Find playbacks of a title that are unlike those before, by what the job has learned of the title."""

from collections.abc import Iterator
from dataclasses import dataclass

import penstock as ps


@dataclass
class Playback:
    """A minute of a video: its bitrate in Mbit/s, and the share of the minute in which it stalled."""

    title: str
    session: str
    bitrate: float
    stalls: float


@dataclass
class Unusual:
    """A playback that is unlike others of its title, and by how many standard deviations."""

    title: str
    session: str
    distance: float


class Watch(ps.ProcessFunction):
    """Learns what is usual for each title, and tells what is not. What is unusual teaches nothing."""

    usual = ps.LearnedState(ps.Covariance("bitrate", "stalls"))
    limit = ps.Setting(float, 5.0)
    enough = ps.Setting(int, 50)

    def process_record(self, record: Playback, ctx: ps.Context) -> Iterator[Unusual]:
        distance = self.usual.score(record)
        learned = self.usual.get()
        if learned is not None and learned.count >= self.enough.get() and distance > self.limit.get():
            yield Unusual(record.title, record.session, distance)
        else:
            self.usual.learn(record, scored=False)


job = ps.Job("video-quality", key_groups=16)
playbacks = job.data_stream("playbacks", schema=Playback)
playbacks.key_by("title").process("watch", Watch()).sink_to("unusual")
