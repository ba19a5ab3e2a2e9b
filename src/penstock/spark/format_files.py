"""Format files: data loaded by a format of Spark, written once to Parquet files that a stream reads."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_type

from penstock.base.durable import sync_file, sync_folder, write_atomically
from penstock.bindings.secrets import resolve_settings
from penstock.bindings.types import SparkBinding
from penstock.errors import BindingError
from penstock.records.types import RecordType
from penstock.spark.format_errors import JARS_ADVICE, format_reason
from penstock.spark.types import SPARK_ERRORS, SparkSession

__all__ = ["write_format_files"]

# Spark's default, an older form of timestamps, has no time zone that other readers know.
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
# Prints each error with its stack to standard error, beside the sentence that the user gets.
_NOISE = "DataFrameQueryContextLogger"


def write_format_files(
    session: SparkSession,
    binding: SparkBinding,
    record_type: RecordType,
    folder: Path,
) -> int | None:
    """Load what a binding names and write the fields of a record type to files in a folder; return their number.

    Does nothing, and returns None, if an earlier start has filled the folder: the stream has the data of its first
    start. Raises BindingError when Spark cannot load it, or when it has other fields.
    """
    stream = binding.stream
    note = folder.with_name(f"{stream}.loaded")
    if note.exists():
        return None
    PySparkLogger.getLogger(_NOISE).setLevel(logging.CRITICAL)
    staging = folder.with_name(f".{stream}.loading")
    try:
        frame = (
            session.read.format(binding.format).options(**resolve_settings(stream, binding.options)).load()
        )
        _check_fields(binding, frame, record_type)
        session.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
        wanted = [sf.col(f"`{one.name}`").cast(from_arrow_type(one.arrow_type)) for one in record_type.fields]
        frame.select(*wanted).write.mode("overwrite").parquet(str(staging))
    except SPARK_ERRORS as e:
        raise BindingError(
            f"Stream {stream!r}: Spark cannot load the format {binding.format!r}: {format_reason(e)} Correct the "
            f"options in the URI. {JARS_ADVICE}"
        ) from e
    # These are of an interrupted start; nothing has read them.
    for old in folder.iterdir():
        old.unlink()
    parts = sorted(staging.glob("part-*.parquet"))
    for number, part in enumerate(parts):
        sync_file(part)
        part.rename(folder / f"{number:010}.parquet")
    sync_folder(folder)
    write_atomically(note, b"")
    shutil.rmtree(staging)
    return len(parts)


def _check_fields(binding: SparkBinding, frame: DataFrame, record_type: RecordType) -> None:
    known = frame.columns
    missing = [one.name for one in record_type.fields if one.name not in known]
    if missing:
        raise BindingError(
            f"Stream {binding.stream!r} needs the fields {', '.join(missing)}, but what the format {binding.format!r} "
            f"loads has {', '.join(known)}. Correct the schema of the stream, or the options in the URI."
        )
