"""Stored home: the place on an object store where a checkpoint has its home, by its URI or by its working folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from penstock.base.durable import write_atomically
from penstock.checkpoints.spark_state_files import damage
from penstock.errors import CheckpointError
from penstock.objects.object_stores import Place, is_host

__all__ = ["HOME_FILE", "home_of", "note_home", "place_in", "place_of_home"]

HOME_FILE: Final = "home.json"
"""The file of a working folder that says where the home is. It stays on its machine."""


class _Home(msgspec.Struct, frozen=True):
    uri: str


def place_of_home(uri: str) -> Place:
    """Return the place that the URI of a checkpoint names. Raises CheckpointError when it names none."""
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.strip("/").partition("/")
    parts = prefix.split("/")
    if not is_host(scheme, bucket) or "@" in rest or not all(part.strip(".") for part in parts):
        like = "hdfs://HOST:PORT/PATH" if scheme == "hdfs" else f"{scheme}://BUCKET/PREFIX"
        raise CheckpointError(
            f"{scheme}://... cannot hold a checkpoint. Give {like}; users and keys belong in the environment of "
            "the job."
        )
    return Place(scheme, bucket, prefix)


def place_in(home: Place, name: str) -> Place:
    """Return the place of an object, or a prefix, of the checkpoint.

    >>> place_in(Place("s3", "bucket", "rooms"), "state").shown
    's3://bucket/rooms/state'
    """
    return Place(home.scheme, home.host, f"{home.name}/{name}")


def note_home(folder: Path, uri: str) -> None:
    """Note in a working folder where its checkpoint has its home, for other processes of this machine."""
    write_atomically(folder / HOME_FILE, msgspec.json.encode(_Home(uri)))


def home_of(folder: Path) -> Place | None:
    """Return the home of the checkpoint in a working folder, None for a checkpoint that is a folder."""
    path = folder / HOME_FILE
    try:
        return place_of_home(msgspec.json.decode(path.read_bytes(), type=_Home).uri)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError) as e:
        raise damage(path, f"cannot be read ({e})") from e
