"""HDFS files as objects, with requests that fail at any point, on a model of HDFS."""

from __future__ import annotations

import io
import sys
import threading
from itertools import chain, repeat

import pytest
from modelled_hdfs import HdfsFate, ModelledHdfs

from penstock.errors import BindingError, ExternalSystemError
from penstock.objects import hdfs_client, hdfs_connections
from penstock.objects.hdfs_connections import client_of, within
from penstock.objects.hdfs_errors import explain, is_passing, is_refusal
from penstock.objects.object_stores import Place

PLACE = Place("hdfs", "namenode:8020", "rooms")
BAD: tuple[HdfsFate, ...] = ("answer lost", "fails", "fails and arrives late")
# Creating a file takes create, sync, close and rename.
REQUESTS = 4


def answered(name: str, message: str) -> RuntimeError:
    """Return a NameNode's answer, as the library presents it."""
    return RuntimeError(f'RPCError("{name}", "{message}\\n\\tat org.apache.hadoop.X.y(X.java:1)")')


@pytest.mark.parametrize("block_bytes", [12, 32, 128])
@pytest.mark.parametrize("size", [0, 1, 8, 32, 97, 256])
def test_each_block_of_a_file_is_synced(block_bytes: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens before the next block begins, for any block size."""
    monkeypatch.setattr(hdfs_client, "_PIECE_BYTES", 8)
    monkeypatch.setattr(hdfs_client, "_SYNC_BYTES", 64)
    hdfs = ModelledHdfs(monkeypatch)
    hdfs.block_bytes = block_bytes
    content = bytes(range(size))
    hdfs.put("large", io.BytesIO(content))
    assert hdfs.find("large") == content
    assert not hdfs.unsynced


@pytest.mark.parametrize("fate", BAD)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("at", range(REQUESTS))
def test_a_file_is_created_whatever_becomes_of_a_request(
    fate: HdfsFate, times: int, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one failure it exists, however often it was written; after two, whole or not at all."""
    fates = chain(repeat("well", at), repeat(fate, times), repeat("well"))
    hdfs = ModelledHdfs(monkeypatch, lambda: next(fates))  # type: ignore[arg-type]
    error = None
    try:
        hdfs.create("log/1", b"content")
    except ExternalSystemError as e:
        error = str(e)
    if error is None:
        assert hdfs.find("log/1") == b"content"
    else:
        assert times == 2
        assert "hdfs://namenode:8020/rooms: 'log/1' cannot be written" in error
    hdfs.arrive()
    assert hdfs.find("log/1") in (b"content", None)
    # The remains are no object.
    assert set(hdfs.names("log")) <= {"1"}
    assert {one.name for one in hdfs.objects()} <= {"log/1"}
    # Nobody else's content gets there later.
    hdfs.create("log/1", b"other")
    before = hdfs.find("log/1")
    hdfs.arrive()
    assert hdfs.find("log/1") == before


@pytest.mark.parametrize("fate", BAD)
@pytest.mark.parametrize("at", range(REQUESTS))
def test_a_file_is_replaced_whatever_becomes_of_a_request(
    fate: HdfsFate, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hdfs = ModelledHdfs(monkeypatch)
    hdfs.put("1.lease", io.BytesIO(b"old"))
    fates = chain(repeat("well", at), [fate], repeat("well"))
    hdfs._fate = lambda: next(fates)  # type: ignore[assignment]
    hdfs.put("1.lease", io.BytesIO(b"new"))
    assert hdfs.find("1.lease") == b"new"
    hdfs.arrive()
    assert hdfs.find("1.lease") == b"new"


def test_a_file_that_is_taken_leaves_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs = ModelledHdfs(monkeypatch)
    assert hdfs.create("log/1", b"one")
    assert not hdfs.create("log/1", b"two")
    assert hdfs.files == {"/rooms/log/1": b"one"}


def test_a_hidden_file_that_was_removed_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be removed by another process that takes it for an orphan."""
    hdfs = ModelledHdfs(monkeypatch)
    requests = 0

    def fate() -> HdfsFate:
        nonlocal requests
        requests += 1
        if requests == REQUESTS:
            hdfs.files.clear()
        return "well"

    hdfs._fate = fate
    assert hdfs.create("log/1", b"one")
    assert hdfs.find("log/1") == b"one"


def kerberos(kind: str, code: int) -> Exception:
    """What the library raises of GSSAPI."""
    codes = f'raw: "0x00070000", calling_error: "none", routine_error: "{kind}", supplementary_info: "0x0000"'
    return RuntimeError(f'GSSAPIError(GssMajorCodes {{ {codes} }}, {code}, "What GSSAPI says. More")')


@pytest.mark.parametrize(
    ("error", "reason", "refused", "passing"),
    [
        (
            answered("java.io.IOException", 'no \\"x\\"'),
            'namenode:8020 answered IOException: no "x"',
            False,
            True,
        ),
        (
            answered("org.apache.hadoop.security.AccessControlException", "Permission denied: user=x"),
            "access is denied (Permission denied: user=x)",
            True,
            False,
        ),
        (
            answered(
                "org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Name node is in safe mode."
            ),
            "the NameNode namenode:8020 is in safe mode",
            False,
            True,
        ),
        (
            answered("org.apache.hadoop.hdfs.protocol.NSQuotaExceededException", "The quota"),
            "answered NSQuotaExceededException: The quota",
            False,
            False,
        ),
        (OSError("failed to lookup address information: Name"), "the host name does not exist", False, False),
        (OSError("RPC listener disconnected"), "if it asks for Kerberos, name the folder", False, True),
        (TimeoutError(), "does not answer in time", False, True),
        (
            RuntimeError('InvalidArgument("No NameNode hosts found")'),
            "HADOOP_CONF_DIR; name the NameNode's port",
            False,
            False,
        ),
        (RuntimeError('DataTransferError("x")'), "HDFS failed (DataTransferError", False, True),
        (RuntimeError("NoSASLMechanism"), "access is denied (NoSASLMechanism)", True, False),
        (kerberos("GSS_S_NO_CRED", 2529639053), "there is no ticket of Kerberos: run kinit", True, False),
        (kerberos("GSS_S_FAILURE", 2529638944), "the ticket of Kerberos has expired: run kinit", True, False),
        (kerberos("GSS_S_FAILURE", 2529639068), "no KDC of Kerberos answers", False, True),
        (
            kerberos("GSS_S_FAILURE", 7),
            "access is denied (Kerberos, code 7: What GSSAPI says. More)",
            True,
            False,
        ),
        (NotImplementedError("hsync"), "folders with erasure coding are not supported", False, False),
    ],
)
def test_errors_are_explained(error: Exception, reason: str, refused: bool, passing: bool) -> None:
    assert reason in explain(error, PLACE)
    assert (is_refusal(error), is_passing(error)) == (refused, passing)


def test_a_request_has_a_limit_and_its_error_is_that_of_the_caller() -> None:
    waits = threading.Event()
    with pytest.raises(TimeoutError, match="no answer within 0 s"):
        within(0.01, waits.wait)
    waits.set()
    with pytest.raises(KeyError):
        within(5.0, lambda: {}["x"])


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    monkeypatch.setattr(hdfs_connections, "_clients", {})
    with pytest.raises(BindingError, match=r"Install it: pip install 'penstock\[hdfs\]'"):
        client_of(PLACE)
