"""URIs of object stores and HDFS: a prefix of a bucket, the form of the files, and how to reach the store."""

from __future__ import annotations

import re
import urllib.parse
from typing import Final

from penstock.bindings.files_uri import files_binding
from penstock.bindings.lake_uris import S3_VARIABLES, check_s3_settings
from penstock.bindings.secrets import redact
from penstock.bindings.types import ObjectsBinding
from penstock.bindings.uri_parts import UriParts, split_authority

__all__ = ["bucket_and_prefix", "parse_objects"]

_BUCKET: Final = re.compile(r"[\w.-]+", re.ASCII)
_NAMENODE: Final = re.compile(r"[\w.-]+(:\d{1,5})?", re.ASCII)


def parse_objects(uri: UriParts) -> ObjectsBinding:
    """Return the prefix that a URI names. Raises ValueError, which says what is wrong."""
    is_hdfs = uri.scheme == "hdfs"
    bucket, prefix = bucket_and_prefix(uri.rest, is_hdfs=is_hdfs)
    if is_hdfs and not prefix:
        raise ValueError("files have a folder of their own: hdfs://HOST:PORT/PATH")
    known = uri.known()
    if "format" not in known:
        raise ValueError("it needs ?format=parquet, jsonl or csv")
    check_s3_settings(known)
    place = f"{uri.scheme}://{bucket}/{prefix}"
    return ObjectsBinding(
        stream=uri.stream,
        uri=redact(uri.uri),
        scheme=uri.scheme,
        bucket=bucket,
        prefix=prefix,
        format=known["format"],
        client={variable: known[name] for name, variable in S3_VARIABLES.items() if name in known},
        names=known.get("names", "any"),
        reading=None if uri.role == "sink" else files_binding(uri, known["format"], place, known),
    )


def bucket_and_prefix(rest: str, *, is_hdfs: bool = False) -> tuple[str, str]:
    """Return the bucket, of HDFS the NameNode, and the prefix of a URI without its scheme.

    Raises ValueError, which says what is wrong.
    """
    bucket, _, path = split_authority(rest)
    if "@" in bucket:
        raise ValueError(
            "users and keys do not stand before the bucket or host; they come from the environment, or by "
            "reference"
        )
    if not (_NAMENODE if is_hdfs else _BUCKET).fullmatch(bucket) or bucket in (".", ".."):
        what = "address of a NameNode, like HOST:8020" if is_hdfs else "name of a bucket"
        raise ValueError(f"{bucket!r} is not the {what}")
    prefix = urllib.parse.unquote(path).rstrip("/")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise ValueError(f"the prefix {prefix!r} has an empty part, '.' or '..'")
    if not prefix.isprintable():
        raise ValueError("a prefix cannot contain control characters")
    return bucket, prefix
