"""Raw samples on disk: an Arrow stream that is appended batch by batch, and the Parquet file made of it at the end.

A stream needs no footer, so whatever was written before a crash can be read; a crash loses the batch being written.
Times are whole microseconds (an ``intended_us`` since the file's origin, the rest as offsets from it), because they
compress to a fraction of floating-point seconds. Each read of the stream is kept as well: ``read_us`` (gaps between
reads, the first from the intended start), ``read_lines`` and ``read_bytes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from deployctl.load.samples import NAN, Sample

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_OFFSETS = ("sent", "first_byte", "first_token", "first_visible", "end")
_DURATIONS = ("think", "total", "load", "prompt_eval", "eval", "retry_after")
_COUNTS = ("user", "seq", "chunks", "received_bytes", "asked_prompt_tokens", "asked_tokens", "prompt_tokens")
_SMALL = ("turn", "status")
_TEXTS = ("done_reason", "error", "message")
_ORIGIN = b"origin_monotonic_s"
_STREAM_LEVEL = 1  # written while load runs: little CPU; the Parquet file is packed tighter at the end

Reads = tuple["NDArray[np.float64]", "NDArray[np.uint32]", "NDArray[np.uint32]"]
"""Of one request: when each read came (monotonic seconds), its lines, its bytes."""

NO_READS: Reads = (np.zeros(0), np.zeros(0, np.uint32), np.zeros(0, np.uint32))


def schema(origin_s: float = 0.0) -> pa.Schema:
    """Return the columns of the file; ``origin_s`` is the monotonic time from which ``intended_us`` counts."""
    import pyarrow as pa

    columns: list[tuple[str, Any]] = [("intended_us", pa.int64())]
    columns += [(f"{name}_us", pa.int64()) for name in _OFFSETS + _DURATIONS]
    columns += [(name, pa.int32()) for name in (*_COUNTS, "output_tokens")]
    columns += [(name, pa.int16()) for name in _SMALL]
    columns += [(name, pa.string()) for name in _TEXTS]
    columns += [(name, pa.list_(pa.uint32())) for name in ("read_us", "read_lines", "read_bytes")]
    return pa.schema(columns, metadata={_ORIGIN: repr(origin_s).encode()})


class SampleWriter:
    """Appends batches of samples to an Arrow stream, compressed with zstd. Each `append` reaches the kernel at once."""

    def __init__(self, path: Path, origin_s: float) -> None:
        import pyarrow as pa

        self.path = path
        self._origin = origin_s
        self._schema = schema(origin_s)
        self._file: BinaryIO = path.open("xb", buffering=0)
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", _STREAM_LEVEL), use_threads=False)
        self._writer = pa.ipc.new_stream(self._file, self._schema, options=options)

    def warm_up(self) -> None:
        """Pay for the first use of Arrow and zstd (tens of milliseconds) before anything is measured."""
        import pyarrow as pa

        batch = _to_batch([Sample(0, 0, 0.0)], [NO_READS], 0.0, self._schema)
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", _STREAM_LEVEL), use_threads=False)
        with pa.ipc.new_stream(pa.BufferOutputStream(), self._schema, options=options) as stream:
            stream.write_batch(batch)

    def append(self, samples: list[Sample], reads: list[Reads]) -> None:
        """Write one batch; ``reads`` runs parallel to ``samples``."""
        if samples:
            self._writer.write_batch(_to_batch(samples, reads, self._origin, self._schema))

    def close(self) -> None:
        """End the stream properly."""
        self._writer.close()
        self._file.close()


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the whole batches of a stream, however it ended."""
    import pyarrow as pa

    with path.open("rb") as file:
        try:
            stream = pa.ipc.open_stream(file)
            while True:
                yield stream.read_next_batch()
        except (StopIteration, pa.ArrowInvalid, OSError):
            return


def read_samples(paths: Iterable[Path]) -> list[Sample]:
    """Return the samples of streams (``.arrow``) or Parquet files, times in seconds on the load process's clock."""
    import pyarrow.parquet as pq

    found: list[Sample] = []
    for path in paths:
        batches = pq.ParquetFile(path).iter_batches() if path.suffix == ".parquet" else read_batches(path)
        for batch in batches:
            found.extend(_from_batch(batch))
    return found


def finalise(streams: list[Path], target: Path) -> int:
    """Write all whole batches of ``streams`` into one Parquet file, remove the streams, return the number of rows.

    The Parquet file appears under its name only once it is whole. Streams without a row are removed as well.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    partial = target.with_suffix(".partial")
    rows = 0
    writer: Any = None
    for path in streams:
        for batch in read_batches(path):
            if writer is None:
                writer = _parquet_writer(pq, partial, batch.schema)
            writer.write_table(pa.Table.from_batches([batch]).cast(writer.schema))
            rows += batch.num_rows
    if writer is not None:
        writer.close()
        partial.replace(target)
    for path in streams:
        path.unlink()
    return rows


def _parquet_writer(pq: Any, path: Path, columns: pa.Schema) -> Any:
    texts = list(_TEXTS)
    lists = [f"{name}.list.element" for name in ("read_us", "read_lines", "read_bytes")]
    numbers = [name for name in columns.names if name not in texts and not name.startswith("read_")]
    return pq.ParquetWriter(
        path,
        columns,
        compression="zstd",
        compression_level=9,
        use_dictionary=texts,
        column_encoding={name: "DELTA_BINARY_PACKED" for name in numbers + lists if not name.startswith(_SMALL)},
    )


def _to_batch(samples: list[Sample], reads: list[Reads], origin_s: float, columns: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    intended = np.array([sample.intended_s for sample in samples])
    arrays: list[Any] = [pa.array(np.rint((intended - origin_s) * 1e6).astype(np.int64))]
    arrays += [_micros([getattr(sample, f"{name}_s") for sample in samples], intended) for name in _OFFSETS]
    arrays += [_micros([getattr(sample, f"{name}_s") for sample in samples], 0.0) for name in _DURATIONS]
    arrays += [pa.array([getattr(s, name) for s in samples], pa.int32()) for name in (*_COUNTS, "output_tokens")]
    arrays += [pa.array([getattr(sample, name) for sample in samples], pa.int16()) for name in _SMALL]
    arrays += [pa.array([getattr(sample, name) or None for sample in samples], pa.string()) for name in _TEXTS]
    offsets = np.cumsum([0, *(len(entry[0]) for entry in reads)])
    times = np.concatenate([entry[0] for entry in reads])
    gaps = np.diff(times, prepend=0.0)
    filled = np.flatnonzero(np.diff(offsets))
    firsts = offsets[:-1][filled]  # the first read of a request counts from its intended start
    gaps[firsts] = times[firsts] - intended[filled]
    flat = [
        np.rint(gaps * 1e6).clip(0, 2**32 - 1).astype(np.uint32),
        np.concatenate([entry[1] for entry in reads]),
        np.concatenate([entry[2] for entry in reads]),
    ]
    bounds = pa.array(offsets, pa.int32())
    arrays += [pa.ListArray.from_arrays(bounds, pa.array(values, pa.uint32())) for values in flat]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _micros(values: list[float], begin: NDArray[np.float64] | float) -> Any:
    import pyarrow as pa

    offsets = (np.array(values, dtype=np.float64) - begin) * 1e6
    missing = np.isnan(offsets)
    return pa.array(np.rint(np.where(missing, 0, offsets)).astype(np.int64), pa.int64(), mask=missing)


def _from_batch(batch: pa.RecordBatch) -> list[Sample]:
    origin = float((batch.schema.metadata or {}).get(_ORIGIN, b"0"))
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if not name.startswith("read_")}
    intended = [origin + micros * 1e-6 for micros in columns["intended_us"]]
    fields: dict[str, list[Any]] = {"intended_s": intended}
    for name in _OFFSETS:
        pairs = zip(columns[f"{name}_us"], intended, strict=True)
        fields[f"{name}_s"] = [NAN if value is None else begin + value * 1e-6 for value, begin in pairs]
    for name in _DURATIONS:
        fields[f"{name}_s"] = [NAN if value is None else value * 1e-6 for value in columns[f"{name}_us"]]
    for name in (*_COUNTS, "output_tokens", *_SMALL, "error"):
        fields[name] = columns[name]
    for name in ("done_reason", "message"):
        fields[name] = [value or "" for value in columns[name]]
    names = list(fields)
    return [Sample(**dict(zip(names, row, strict=True))) for row in zip(*fields.values(), strict=True)]


def bytes_per_request(path: Path, rows: int) -> float:
    """Return the size of a finished file per row."""
    return path.stat().st_size / max(1, rows)
