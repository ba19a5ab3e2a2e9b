"""Objects of a bucket: removing missing ones works, whatever a store answers."""

from __future__ import annotations

from pathlib import Path

import obstore
import pytest
from obstore.store import LocalStore

from penstock.objects import bucket_client
from penstock.objects.bucket_client import BucketClient
from penstock.objects.object_folder import IN_HASTE
from penstock.objects.object_stores import Place


@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_what_is_not_there_can_be_removed(tmp_path: Path, gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some stores report a missing object as an error; the others are still removed."""
    store = LocalStore(tmp_path)
    monkeypatch.setattr(bucket_client, "store_of", lambda *_: store)
    client = BucketClient(Place("az", f"rooms-{gone}", ""), {}, IN_HASTE)
    for name in ("a", "b", "c", "d"):
        obstore.put(store, name, b"")
    obstore.delete(store, gone)
    client.remove(["a", "b", "c"])
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
