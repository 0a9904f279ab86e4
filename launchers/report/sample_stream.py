"""An Arrow stream of samples that grows group by group. A kill loses at most the group that was being written."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cascade_rl.rl_stages.run.sample_record import SampleRecord, table_of

if TYPE_CHECKING:
    import pyarrow

SUFFIX = ".arrows"


class SampleStream:
    """A new file. `source` says whose samples they are."""

    def __init__(self, path: Path, source: Mapping[str, str]) -> None:
        self._file, self._source = path.open("xb"), dict(source)
        self._writer: pyarrow.ipc.RecordBatchStreamWriter | None = None

    def append(self, records: Sequence[SampleRecord]) -> None:
        """A group: the answers to one prompt."""
        from pyarrow import ipc

        table = table_of(records).replace_schema_metadata(self._source)
        if self._writer is None:
            self._writer = ipc.new_stream(self._file, table.schema, options=ipc.IpcWriteOptions(compression="zstd"))
        self._writer.write_table(table)
        self._file.flush()

    def close(self) -> None:
        if self._writer:
            self._writer.close()
        self._file.close()


def read_stream(path: Path) -> "Iterator[pyarrow.RecordBatch]":
    """The groups, each with the source in its schema's metadata, up to one that a kill cut off."""
    import pyarrow as pa

    with path.open("rb") as file:
        try:
            yield from pa.ipc.open_stream(file)
        except (pa.ArrowInvalid, OSError):
            return


def source_of(path: Path) -> dict[str, str]:
    """Whose samples a file has; empty for one without a group."""
    first = next(read_stream(path), None)
    return {} if first is None else {key.decode(): value.decode() for key, value in first.schema.metadata.items()}
