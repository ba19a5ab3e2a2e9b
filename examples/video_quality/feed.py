"""Playbacks of three days: `python feed.py FOLDER` writes FOLDER/1/playbacks.jsonl to FOLDER/3/playbacks.jsonl.

Each title has a bitrate and stalls of its own; the lower the bitrate, the more it stalls. On the second and the third
day the transcoder of one title is broken: its bitrate and its stalls are each as usual, but not together.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

Record = dict[str, Any]

TITLES = {"the lake": 3.0, "night train": 5.0, "salt": 8.0, "eleven doors": 4.0, "a quiet coast": 6.0}
BROKEN = {1: None, 2: "salt", 3: "night train"}
A_DAY = 1500


def playbacks_of(day: int) -> list[Record]:
    """Return the playbacks of a day, in order."""
    chance = random.Random(day)
    found = []
    for number in range(A_DAY):
        title = chance.choice(list(TITLES))
        away = chance.gauss(0, 1)
        is_broken = title == BROKEN[day] and number > A_DAY // 2 and chance.random() < 0.2
        stalls = 0.2 + 0.05 * (away if is_broken else -away) + 0.005 * chance.gauss(0, 1)
        if is_broken and abs(away) < 0.7:
            # So near the middle nothing is amiss.
            stalls = 0.2 - 0.05 * away
        found.append(
            {
                "title": title,
                "session": f"{day}-{number:05}",
                "bitrate": round(TITLES[title] + 0.4 * away, 4),
                "stalls": round(stalls, 5),
            }
        )
    return found


def is_amiss(playback: Record) -> bool:
    """Return whether a playback is one of the broken transcoder."""
    away = (playback["bitrate"] - TITLES[playback["title"]]) / 0.4
    return bool(abs(playback["stalls"] - (0.2 - 0.05 * away)) > 0.05)


def write(folder: Path) -> None:
    """Write the days."""
    for day in BROKEN:
        place = folder / str(day)
        place.mkdir(parents=True)
        lines = (json.dumps(one) + "\n" for one in playbacks_of(day))
        (place / "playbacks.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
