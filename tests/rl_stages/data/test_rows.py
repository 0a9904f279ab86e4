"""The same rows from every form of file, in order, with their places; and what is no row."""

import gzip
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.data.row_index import RowIndex
from cascade_rl.rl_stages.data.rows import Row, RowError, read_rows, scan_rows

ROWS: list[Row] = [{"a": 1, "kwargs": [{}, {"n": 2}]}, {"a": 2, "text": "ä\n"}, {"a": 3, "kwargs": [None]}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def parquet(path: Path, rows: list[Row]) -> None:
    pq.write_table(pa.Table.from_pylist(rows, schema=datasets.Features.from_arrow_schema(SCHEMA).arrow_schema), path)


SCHEMA = pa.schema([("a", pa.int64()), ("kwargs", pa.list_(pa.struct([("n", pa.int64())]))), ("text", pa.string())])


def make(folder: Path, form: str) -> str:
    path = folder / f"rows.{form}"
    if form == "jsonl":
        path.write_bytes(LINES.replace(b"}\n", b"}\n\n  \n", 1))
    elif form == "jsonl.gz":
        path.write_bytes(gzip.compress(LINES))
    elif form == "jsonl.zst":
        path.write_bytes(pa.Codec("zstd").compress(LINES, asbytes=True))
    elif form == "parquet":
        parquet(path, ROWS)
    elif form == "saved":
        datasets.Dataset(pa.Table.from_pylist(ROWS, schema=SCHEMA)).save_to_disk(path)
    else:
        path.mkdir()
        (path / "a.jsonl").write_bytes(LINES[: LINES.index(b"\n") + 1])
        (path / "README.md").write_text("none of it")
        parquet(path / "b.parquet", ROWS[1:])
    return str(path)


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "saved", "folder"])
def test_every_form_gives_the_same_rows_streamed_and_by_number(form: str, tmp_path: Path) -> None:
    source = make(tmp_path, form)
    read = list(read_rows(source))
    assert [row for _, row in read] == ROWS
    index = RowIndex(source)
    assert [index[number] for number in (2, 0, 1)] == [read[number] for number in (2, 0, 1)]
    places = {"jsonl": (1, 4, 5), "folder": (1, 1, 2)}.get(form, (1, 2, 3))
    assert tuple(int(where.rpartition(":")[2]) for where, _ in read) == places


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"{", "text that is not JSON"),
        (b"[" * 100_000, "text that is not JSON"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": 1, "a": 2}', "a repeated key among ['a', 'a']"),
        (b'{"a": "\xff"}', "text that is not JSON"),
        (b'{"a": "\\ud800"}', "surrogates not allowed"),
        (b'{"a": ' + b"1" * 5000 + b"}", "text that is not JSON"),
        (b"3", "a int"),
    ],
)
def test_a_line_that_is_no_row_is_named_by_file_and_line(line: bytes, found: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' + line + b"\n")
    with pytest.raises(UserError) as error:
        list(read_rows(str(path)))
    assert str(error.value).startswith(f"{path}:3: expected one JSON object a line; found ") and found in str(
        error.value
    )
    with pytest.raises(UserError, match=r"rows\.jsonl:3: "):
        RowIndex(str(path))[1]


@pytest.mark.parametrize(("name", "content"), [("a.jsonl.gz", LINES), ("a.jsonl.zst", LINES), ("a.parquet", LINES)])
def test_a_file_of_another_form_than_its_name_says_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}: expected a "):
        list(read_rows(str(tmp_path / name)))


def test_a_torn_file_is_refused(tmp_path: Path) -> None:
    for name, whole in (
        ("a.jsonl.gz", gzip.compress(LINES)),
        ("a.jsonl.zst", pa.compress(LINES, "zstd", asbytes=True)),
    ):
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(UserError, match=name):
            list(read_rows(str(tmp_path / name)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), datetime(2026, 1, 1), b"\xff"])
def test_what_a_column_holds_and_json_cannot_is_told_by_its_row(value: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [None, value, None]}), tmp_path / "a.parquet")
    found = list(scan_rows(str(tmp_path / "a.parquet")))
    assert [where.rpartition(":")[2] for where, row in found] == ["1", "2", "3"]
    assert [type(row) for _, row in found] == [dict, RowError, dict]
    assert re.search(r"a\.parquet:2: expected a row that JSON can represent; found", str(found[1][1]))


def test_sources_that_are_none_are_refused(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": datasets.Dataset.from_list([{"a": 1}])}).save_to_disk(tmp_path / "splits")
    (tmp_path / "empty").mkdir()
    (tmp_path / "rows.csv").touch()
    for source, message in (
        ("gone.jsonl", "no such file: gone.jsonl; expected data "),
        (str(tmp_path / "empty"), "expected data .*; found .*/empty', which has none of these formats"),
        (str(tmp_path / "splits"), f"several: name one of {tmp_path}/splits/train"),
        ("hf:alone", r"expected hf:owner/name\[@revision\]\[/config\]\[:split\]; found 'hf:alone'"),
    ):
        with pytest.raises(UserError, match=message):
            list(read_rows(source))


def test_a_hub_name_is_read_as_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda *names, **options: asked.append((names, options)) or iter([{"a": 1, "b": None}]),
    )
    commit = "0123456789abcdef0123456789abcdef01234567"
    source = f"hf:nvidia/rl-data@{commit}/IF-RL:test"
    assert list(read_rows(source)) == [(f"{source}:1", {"a": 1})]
    assert asked == [(("nvidia/rl-data", "IF-RL"), {"split": "test", "streaming": True, "revision": commit})]
