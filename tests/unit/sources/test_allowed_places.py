"""Allowed places: a place outside those that the run's settings name is not opened, however a command spells
it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.errors import JobDefinitionError
from penstock.objects.allowed import AllowedPlaces, PlaceRefusedError

MAX_BYTES = 1000
SECRET = b"root:sesame"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with an allowed directory, and forbidden files beside it."""
    (tmp_path / "data" / "a" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "ab").mkdir()
    (tmp_path / "data" / "a" / "limits.json").write_bytes(b"{}")
    (tmp_path / "data" / "a" / "deep" / "more.json").write_bytes(b"{1}")
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "data" / "ab" / "secret").write_bytes(SECRET)
    (tmp_path / "data" / "a" / "out").symlink_to(tmp_path)
    (tmp_path / "data" / "a" / "leak.json").symlink_to(tmp_path / "secret")
    (tmp_path / "data" / "a" / "nowhere.json").symlink_to(tmp_path / "not-there")
    (tmp_path / "data" / "a" / "inside.json").symlink_to("deep/more.json")
    return tmp_path


@pytest.fixture
def allowed(root: Path) -> AllowedPlaces:
    places = [f"{root}/data/a", "https://host.example/config", "s3://bucket/config"]
    return AllowedPlaces.of(places, [f"{root}/data/a", "s3://bucket/dumps"])


def refusal(allowed: AllowedPlaces, uri: str) -> str:
    with pytest.raises(PlaceRefusedError) as caught:
        allowed.content(uri, MAX_BYTES)
    return str(caught.value)


def test_what_is_allowed_is_read(root: Path, allowed: AllowedPlaces) -> None:
    """Allowed: files in the folder and below it, through links that stay inside, and as a URI."""
    assert allowed.content(f"{root}/data/a/limits.json", MAX_BYTES) == b"{}"
    assert allowed.content(f"{root}/data/a/deep/more.json", MAX_BYTES) == b"{1}"
    assert allowed.content(f"file://{root}/data/a/inside.json", MAX_BYTES) == b"{1}"
    assert allowed.content(f"file://{root}/data/a/%6cimits.json", MAX_BYTES) == b"{}"
    one = AllowedPlaces.of([f"{root}/secret"], [])
    assert one.content(f"{root}/secret", MAX_BYTES) == SECRET


def test_a_folder_that_is_a_link_is_allowed_by_its_name(root: Path) -> None:
    """A Kubernetes ConfigMap is mounted so: its names are links to links."""
    (root / "mounted").symlink_to(root / "data" / "a")
    allowed = AllowedPlaces.of([f"{root}/mounted/"], [])
    assert allowed.content(f"{root}/mounted/limits.json", MAX_BYTES) == b"{}"
    assert "may not read" in refusal(allowed, f"{root}/mounted/leak.json")


HOSTILE_FILES = (
    "{root}/secret",
    "{root}/data/ab/secret",
    "{root}/data/a/",
    "{root}/data/a/../../secret",
    "{root}/data/a/./limits.json",
    "{root}/data/a//limits.json",
    "//{root}/data/a/limits.json",
    "{root}/data/a/limits.json/",
    "{root}/data/A/limits.json",
    "{root}/data/a./limits.json",
    "{root}/data/a /limits.json",
    "{root}/data/a\0/limits.json",
    "{root}/data/a/limits.json\0",
    "{root}/data/a/limits.json\n",
    "{root}/data/a/\u202elimits.json",
    "{root}/data/a/leak.json",
    "{root}/data/a/nowhere.json",
    "{root}/data/a/out/secret",
    "{root}/data/a/out/data/ab/secret",
    "file:{root}/data/a/limits.json",
    "file:/{root}/data/a/limits.json",
    "file://localhost{root}/data/a/limits.json",
    "FILE://{root}/data/a/limits.json",
    "file://{root}/data/a/%2e%2e/%2e%2e/secret",
    "file://{root}/data/a/..%2f..%2fsecret",
    "file://{root}/data/a%2flimits.json",
    "file://{root}/data/a/limits.json%00",
    "file://{root}/data/a/%ff",
    "file://{root}/secret",
    "~/secret",
    "~root/secret",
    "secret",
    "data/a/limits.json",
    "../secret",
    "/etc/passwd",
    "/etc/there-is-no-such-file",
    "/proc/self/environ",
    "/dev/stdin",
    "/",
    "",
    "/" * 5000,
)

HOSTILE_ADDRESSES = (
    "http://169.254.169.254/latest/meta-data/iam/security-credentials",
    "http://127.0.0.1:8081/v1/jobs",
    "http://[::1]/x",
    "http://host.example/config/a.json",
    "https://host.example/other",
    "https://host.example/configuration/a.json",
    "https://host.example/config/../other",
    "https://host.example/config/%2e%2e/other",
    "https://host.example/config/..%2fother",
    "https://host.example/config/%252e%252e/other",
    "https://host.example/config/..\\other",
    "https://host.example/config//a.json",
    "https://host.example/config/a.json?to=http://169.254.169.254",
    "https://host.example/config/a.json#x",
    "https://host.example:8443/config/a.json",
    "https://host.example./config/a.json",
    "https://host.example@169.254.169.254/config/a.json",
    "https://user:sesame@host.example/config/a.json",
    "https://host.example\\@169.254.169.254/config/a.json",
    "https://h\u00f6st.example/config/a.json",
    "https://ho\u017ft.example/config/a.json",
    "https://\uff48ost.example/config/a.json",
    "HTTPS://host.example/config/a.json",
    "https:/host.example/config/a.json",
    "https:host.example/config/a.json",
    "https://host.example/config/\r\nHost: other",
    "s3://other/config/a.json",
    "s3://bucket/other",
    "s3://bucket/configuration/a.json",
    "s3://bucket/config/../other",
    "s3://bucket/config//other",
    "s3://bucket/",
    "s3://key:sesame@bucket/config/a.json",
    "s3://BUCKET/config/a.json",
    "s3a://bucket/config/a.json",
    "gs://bucket/config/a.json",
    "az://bucket/config/a.json",
    "ftp://host.example/config/a.json",
    "gopher://host.example/config/a.json",
    "data://host.example/config/a.json",
    "jar:file:///x!/y",
    "unix:///run/docker.sock",
)


@pytest.mark.parametrize("hostile", [*HOSTILE_FILES, *HOSTILE_ADDRESSES])
def test_what_is_not_allowed_is_refused_in_the_same_words(
    root: Path, allowed: AllowedPlaces, hostile: str
) -> None:
    """The error reveals nothing about the place, not even whether it exists."""
    reason = refusal(allowed, hostile.replace("{root}", str(root)))
    assert reason == refusal(AllowedPlaces(), "/any")
    assert "sesame" not in reason


@pytest.mark.parametrize(
    "hostile", [*HOSTILE_FILES, *HOSTILE_ADDRESSES, "https://host.example/config/a.json"]
)
def test_nothing_is_written_where_it_is_not_allowed(root: Path, allowed: AllowedPlaces, hostile: str) -> None:
    """The same goes for dumps; links inside a folder are resolved when the dump is written."""
    with pytest.raises(PlaceRefusedError, match="may not write"):
        allowed.to_write(hostile.replace("{root}", str(root)))


def test_a_place_to_write_is_given_without_links(root: Path, allowed: AllowedPlaces) -> None:
    """So the file that is opened is the one that was checked; it need not exist yet."""
    (root / "data" / "a" / "link").symlink_to("deep")
    assert allowed.to_write(f"{root}/data/a/link/new") == f"{root}/data/a/deep/new"
    assert allowed.to_write("s3://bucket/dumps/7") == "s3://bucket/dumps/7"
    allowed.check_write("s3://bucket/dumps/7")


def test_a_link_that_is_put_there_meanwhile_is_not_followed(
    root: Path, allowed: AllowedPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This goes for links in place of the file and of a parent folder."""
    real = os.path.realpath

    def swapped_behind(path: str) -> str:
        found = real(path)
        if path.endswith("more.json"):
            (root / "data" / "a" / "deep").rename(root / "moved")
            (root / "data" / "a" / "deep").symlink_to(root / "data" / "ab")
            (root / "data" / "ab" / "more.json").write_bytes(SECRET)
        if path.endswith("limits.json"):
            (root / "data" / "a" / "limits.json").unlink()
            (root / "data" / "a" / "limits.json").symlink_to(root / "secret")
        return found

    monkeypatch.setattr("penstock.objects.allowed.os.path.realpath", swapped_behind)
    for name in ("deep/more.json", "limits.json"):
        assert "cannot be read" in refusal(allowed, f"{root}/data/a/{name}")


def test_errors_of_what_is_allowed_say_why(root: Path, allowed: AllowedPlaces) -> None:
    """Details are safe here, and help whoever has allowed the place."""
    assert "No such file" in refusal(allowed, f"{root}/data/a/none.json")
    os.mkfifo(root / "data" / "a" / "pipe")
    assert "not a regular file" in refusal(allowed, f"{root}/data/a/pipe")
    (root / "data" / "a" / "large").write_bytes(bytes(MAX_BYTES + 1))
    assert "is larger than" in refusal(allowed, f"{root}/data/a/large")


@pytest.mark.parametrize(
    "text",
    [
        "data",
        "~/x",
        "/a/../b",
        "/a//b",
        "",
        "https://u@host/a",
        "https://host/a?b",
        "s3://",
        "ftp://host/a",
        "/a\n",
    ],
)
def test_a_prefix_that_is_not_plain_is_refused(text: str) -> None:
    """The error comes when the job is described, and says what to write."""
    with pytest.raises(JobDefinitionError, match=r"allow_read has .* Give an absolute path"):
        AllowedPlaces.of([text], [])


def test_the_web_is_not_written_to() -> None:
    """HTTP destinations are never accepted."""
    with pytest.raises(JobDefinitionError, match="allow_write"):
        AllowedPlaces.of([], ["https://host/a"])


def test_a_prefix_may_be_all_there_is() -> None:
    """Allowed prefixes include the file system's root, a whole bucket, and a whole host."""
    allowed = AllowedPlaces.of(["/", "s3://bucket", "https://host/"], ["/", "s3://bucket/"])
    assert allowed.to_write("/a/b") == "/a/b"
    assert allowed.to_write("s3://bucket/x y%/z") == "s3://bucket/x y%/z"
