"""Proto compiler: the descriptors of protobuf files that a registry has as text, made by protoc."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import Final

from penstock.errors import BindingError, SchemaError
from penstock.registries.registry_client import RegisteredSchema

__all__ = ["compiled", "is_text"]

_TIMEOUT_S: Final = 60
_MAX_SHOWN: Final = 500
_REASON: Final = re.compile(r"(?:^|\s)(?:files/)?(\S+\.proto(?::[0-9]+)*: .*)$", re.MULTILINE)


def is_text(schema: str) -> bool:
    """Return whether a schema is the text of a file, and not its descriptor in base64.

    >>> is_text('message Reading { string room = 1; }'), is_text("Cg1kZWZhdWx0LnByb3Rv")
    (True, False)
    """
    return any(sign in schema for sign in "{;")


def compiled(found: RegisteredSchema) -> RegisteredSchema:
    """Return a schema whose texts, and those of what it refers to, are descriptors in base64 instead.

    protoc runs in a process and a folder of its own, and sees no other files than these and those of protobuf. Raises
    SchemaError when it refuses the text, and BindingError when there is no protoc.
    """
    try:
        import grpc_tools
    except ImportError as e:
        raise BindingError(
            "The schema registry has protobuf as text alone, which needs protoc. Install it with: "
            "pip install 'penstock[protobuf-text]'"
        ) from e
    well_known = Path(grpc_tools.__file__).with_name("_proto")
    named = dict(found.references)
    main = "schema.proto"
    while main in named:
        main = f"_{main}"
    with tempfile.TemporaryDirectory(prefix="penstock-proto-") as folder:
        for name, text in {**named, main: found.text}.items():
            path = Path(folder, "files", _checked(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        _run(Path(folder), well_known, main)
        texts = _descriptors(Path(folder, "set").read_bytes())
    references = tuple((name, texts[name]) for name in named if name in texts)
    return RegisteredSchema(texts[main], found.kind, references)


def _checked(name: str) -> str:
    """Return the name of a file below a folder. Raises SchemaError when it would be anywhere else."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\\" in name or not name.isprintable():
        raise SchemaError(f"it refers to {name!r}, which is not the name of a .proto file")
    return name


def _run(folder: Path, well_known: Path, main: str) -> None:
    arguments = ["-Ifiles", f"-I{well_known}", "--include_imports", "--descriptor_set_out=set", main]
    try:
        run = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SchemaError(f"protoc takes longer than {_TIMEOUT_S} s for its text") from None
    if run.returncode:
        raise SchemaError(f"protoc refuses its text ({_reasons(run.stderr)[:_MAX_SHOWN]})")


def _reasons(told: str) -> str:
    r"""Return what protoc says of files, without the time and the place of each line in its own code.

    >>> _reasons("WARNING: All log messages\nE0000 00:00:1 7 x.cc:1] files/a.proto:1:9: Expected field name.\n")
    'a.proto:1:9: Expected field name.'
    """
    return " ".join(_REASON.findall(told)) or " ".join(told.split())


def _descriptors(data: bytes) -> dict[str, str]:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    files = FileDescriptorSet.FromString(data).file
    return {
        file.name: base64.b64encode(file.SerializeToString(deterministic=True)).decode() for file in files
    }
