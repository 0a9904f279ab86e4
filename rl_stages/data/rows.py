"""Streams the rows of a source: memory does not grow with its size, and every row comes with its file and line.

A source is a file (`.jsonl`, also with `.gz` or `.zst`, or `.parquet`), a folder of such files, a folder that
`datasets` saved to disk, or a data set of the Hub (rl_stages/core/hub.py). Arrow's columnar formats store null for a
key that a row lacks, so nulls are read as absent keys.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.hub import FORM, HUB, HubSource

Row = Mapping[str, Any]

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
ROWS_AT_ONCE = 256  # of a columnar file
FORMS = f".jsonl, .jsonl.gz, .jsonl.zst, .parquet, a folder of those, a saved data set, or {FORM}"


class RowError(UserError):
    """A malformed row. The message begins with its location."""


def read_rows(source: str) -> Iterator[tuple[str, Row]]:
    """Each row with its location: `file:line`, or `file:number` in a columnar file, from 1. Empty lines are skipped.

    Raises UserError for a missing source, and, with the location, for a line that is not a JSON object.
    """
    for where, row in scan_rows(source):
        if isinstance(row, UserError):
            raise row
        yield where, row


def scan_rows(source: str) -> Iterator[tuple[str, Row | UserError]]:
    """As `read_rows`, but yields the error of a line that is not a JSON object, and goes on with the next line."""
    if source.startswith(HUB):
        yield from _numbered(source, _hub(source))
        return
    for path in data_files(source):
        if path.suffix == ".parquet":
            yield from _numbered(str(path), _parquet(path))
        elif path.is_dir():
            yield from _numbered(str(path), _saved(path))
        else:
            yield from ((where, _row_or_error(line, where)) for where, line in read_lines(path))


def data_files(source: str) -> list[Path]:
    """The files of a local source, in a fixed order. For a saved data set this is its folder."""
    path = Path(source)
    if not path.exists():
        raise UserError(f"no such file: {source}; expected data ({FORMS}). Change the path, or put the data there")
    if path.is_file() and _form(path):
        return [path]
    if (path / "dataset_dict.json").is_file():
        splits = ", ".join(sorted(f"{source}/{part.name}" for part in path.iterdir() if part.is_dir()))
        raise UserError(f"{source}: expected one split of a data set; found several: name one of {splits}")
    if (path / "dataset_info.json").is_file() and (path / "state.json").is_file():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.is_file() and _form(file)) if path.is_dir() else []
    if not files:
        raise UserError(f"expected data ({FORMS}); found {source!r}, which has none of these formats")
    return files


def read_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """The lines of a JSONL file that are not empty, each with its location."""
    try:
        with open_lines(path) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.isspace():
                    yield f"{path}:{number}", line
    except (OSError, EOFError, pa.ArrowException) as error:
        raise UserError(f"{path}: expected a file that can be read; {error}") from None


def open_lines(path: Path) -> IO[bytes]:
    if path.suffix not in COMPRESSIONS:
        return path.open("rb")
    return io.BufferedReader(pa.input_stream(str(path), compression=COMPRESSIONS[path.suffix]))


def parse_line(line: bytes, where: str) -> Row:
    """The JSON object of a line. UserError for any other value, a repeated key, NaN, infinity and a lone surrogate."""
    try:
        row = _decode(line)
        if b"\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # fails on a lone surrogate
    except (ValueError, RecursionError) as error:
        raise RowError(f"{where}: expected one JSON object a line; found text that is not JSON ({error})") from None
    if not isinstance(row, dict):
        raise RowError(f"{where}: expected one JSON object a line; found a {type(row).__name__}")
    return row


def _row_or_error(line: bytes, where: str) -> Row | UserError:
    try:
        return parse_line(line, where)
    except UserError as error:
        return error


def _decode(line: bytes) -> Any:
    return json.loads(line, object_pairs_hook=_object, parse_constant=_refuse_constant)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a repeated key among {[key for key, _ in pairs]}")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _form(path: Path) -> bool:
    name = path.name.removesuffix(path.suffix) if path.suffix in COMPRESSIONS else path.name
    return name.endswith(".jsonl") or path.suffix == ".parquet"


def _numbered(source: str, rows: Iterable[Row]) -> Iterator[tuple[str, Row | UserError]]:
    for number, row in enumerate(rows, start=1):
        where = f"{source}:{number}"
        yield where, _plain_or_error(without_nulls(row), where)


def _plain_or_error(row: Row, where: str) -> Row | UserError:
    """Arrow's columns may hold NaN, dates and bytes, which JSON cannot represent."""
    try:
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        return RowError(f"{where}: expected a row that JSON can represent; found one that it cannot ({error})")
    return row


def without_nulls(value: Any) -> Any:
    """`value` without the keys whose value is null, at every depth; a null in a list stays."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def _parquet(path: Path) -> Iterator[Row]:
    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=ROWS_AT_ONCE):
            yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: expected a parquet file; {error}") from None


def _saved(path: Path) -> Iterator[Row]:
    import datasets

    yield from _loaded(str(path), lambda: datasets.load_from_disk(str(path)))


def _hub(source: str) -> Iterator[Row]:
    import datasets

    found = HubSource.parse(source)
    how = {"split": found.split or "train", "revision": found.commit, "streaming": True}
    yield from _loaded(source, lambda: datasets.load_dataset(found.repository, found.configuration, **how))


def _loaded(source: str, load: Callable[[], Iterable[Row]]) -> Iterable[Row]:
    import datasets

    try:
        return load()
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"{source}: expected a data set that `datasets` can load; {error}") from None
