"""Content checks: refuse what could run code when it is loaded, before any library sees it."""

from __future__ import annotations

import io
import zipfile
from typing import Final

from penstock.models.refusals import ModelRefusedError

__all__ = ["check_content", "open_archive"]

_ZIP: Final = b"PK\x03\x04"
_NPY: Final = b"\x93NUMPY"
_ARROW: Final = b"ARROW1"
_STREAM: Final = b"\xff\xff\xff\xff"
_COMPRESSED: Final = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"x\x01": "zlib",
    b"x\x9c": "zlib",
    b"x\xda": "zlib",
}
# A member that unpacks to more than this many times its size may be meant to fill the memory.
_MAX_RATIO: Final = 1000
_MAX_MEMBERS: Final = 100_000
_PICKLE: Final = (
    "is a pickle, which can run any code when it is loaded. Export the model as ONNX, or with skops, or its weights as "
    "safetensors or Arrow"
)


def check_content(content: bytes, form: str) -> None:
    """Raise ModelRefusedError for a pickle, also inside a zip, and for content that is not of the format."""
    # The length with which safetensors begin may look like one.
    is_tensors = form == "safetensors" and content[4:9] == b"\0\0\0\0{"
    if is_pickle(content) and not is_tensors:
        raise ModelRefusedError(f"the model {_PICKLE}")
    if content.startswith(_ZIP):
        with open_archive(content):
            pass
        if form != "skops":
            raise ModelRefusedError(f"the model is a zip archive, not a file of the format {form!r}")
        return
    packed = next((name for magic, name in _COMPRESSED.items() if content.startswith(magic)), None)
    if packed is not None and not is_tensors:
        raise ModelRefusedError(
            f"the model is compressed with {packed}, so what it contains cannot be seen. Give the file itself"
        )
    if form == "skops":
        raise ModelRefusedError("the model is not a zip archive, as files of skops are, or it is cut off")
    if form == "arrow" and not content.startswith((_ARROW, _STREAM)):
        raise ModelRefusedError("the model is not an Arrow file or stream")
    if form == "onnx" and content[4:8] == b"ORTM":
        raise ModelRefusedError("the model is in the format of ONNX Runtime itself; give it as ONNX")


def is_pickle(content: bytes) -> bool:
    """Return whether bytes begin as a pickle does: with the number of its protocol and an instruction."""
    return len(content) > 2 and content[0] == 0x80 and 2 <= content[1] <= 5 and content[2] != 0


def open_archive(content: bytes) -> zipfile.ZipFile:
    """Open a zip archive whose members are neither pickles nor archives. Raises ModelRefusedError."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        members = archive.infolist()
        if len(members) > _MAX_MEMBERS:
            raise ModelRefusedError(f"the model is a zip archive of {len(members):,} members")
        for member in members:
            _check_member(archive, member)
    except (zipfile.BadZipFile, OSError, EOFError, RuntimeError, NotImplementedError, ValueError) as e:
        raise ModelRefusedError(f"the model is a damaged zip archive ({type(e).__name__})") from None
    return archive


def _check_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    if member.file_size > _MAX_RATIO * max(member.compress_size, 1):
        raise ModelRefusedError(
            f"the member {member.filename!r} of the zip archive unpacks to {member.file_size:,} bytes from "
            f"{member.compress_size:,}"
        )
    with archive.open(member) as file:
        begin = file.read(64)
    if is_pickle(begin) or member.filename.endswith((".pkl", ".pickle", ".joblib")):
        raise ModelRefusedError(f"the member {member.filename!r} of the zip archive {_PICKLE}")
    if begin.startswith(_ZIP):
        raise ModelRefusedError(f"the member {member.filename!r} of the zip archive is an archive itself")
    if begin.startswith(_NPY) and _has_objects(archive, member):
        raise ModelRefusedError(
            f"the member {member.filename!r} of the zip archive is an array of Python objects, which {_PICKLE}"
        )


def _has_objects(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bool:
    """Return whether an array of NumPy contains objects, which are stored as a pickle."""
    from numpy.lib import format as npy

    with archive.open(member) as file:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        _, _, kind = read(file)
    return bool(kind.hasobject)
