"""A suite's settings, what the command line changes of them, and what is refused."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.evaluate.benchmark import SUITES, read_suite

NOTHING: dict[str, Any] = {"answers": None, "max_new_tokens": None, "temperature": None, "top_p": None}
TABLE = {"rows": "a", "answers": 2, "max_new_tokens": 8, "temperature": 1.0, "top_p": 0.95, "thinking": "on"}


def options(**said: Any) -> argparse.Namespace:
    return argparse.Namespace(**NOTHING | {"only": [], "thinking": None, "method": None} | said)


def toml(table: dict[str, Any]) -> str:
    return "[one]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/rows.jsonl").write_text('{"problem": "1+1?", "answer": 2}\n')
    return tmp_path


@pytest.mark.parametrize("suite", sorted(path.stem for path in SUITES.glob("*.toml")))
def test_every_benchmark_of_a_shipped_suite_can_be_read(tmp_path: Path, suite: str) -> None:
    import tomllib

    for name, table in tomllib.loads((SUITES / f"{suite}.toml").read_text()).items():
        (tmp_path / f"{table['rows']}.jsonl").write_text('{"problem": "1+1?", "answer": 2}\n')
        (tmp_path / table["rows"]).mkdir()
        (tmp_path / f"{table['rows']}.jsonl").rename(tmp_path / table["rows"] / "rows.jsonl")
        [found] = read_suite(suite, tmp_path, options(only=[name]))
        assert (found.sampled.answers, found.modes) == (table["answers"], ("on",))
        assert found.published


def test_the_command_line_has_the_last_word(folder: Path) -> None:
    (folder / "own.toml").write_text(toml(TABLE))
    [found] = read_suite(str(folder / "own.toml"), folder, options(answers=3, thinking="both"))
    assert found.sampled == (3, 8, 1.0, 0.95)
    assert found.modes == ("on", "off")
    assert list(found.tasks) == ["one-000000"]
    assert found.method is None
    [found] = read_suite(str(folder / "own.toml"), folder, options(method="vote:generations=2"))
    assert found.method and found.method.told == "vote:generations=2"


@pytest.mark.parametrize(
    ("table", "said", "message"),
    [
        (TABLE | {"answer": 2}, {}, r"\[one\]: expected the keys .*; found 'answer'"),
        (TABLE | {"top_p": "x"}, {}, r"\[one\]: expected 'top_p' to be of type float; found 'x'"),
        (TABLE | {"thinking": "yes"}, {}, "expected 'thinking' to be one of .*; found 'yes'"),
        (TABLE, {"only": ["two"]}, r"--only: expected benchmarks of the suite \(one\); found 'two'"),
        (TABLE | {"rows": "b"}, {}, "no such file: .*/b"),
        (TABLE, {"answers": 0}, "expected --answers of at least 1; found 0"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, table: dict[str, Any], said: dict[str, Any], message: str) -> None:
    (folder / "own.toml").write_text(toml(table))
    with pytest.raises(UserError, match=message):
        list(read_suite(str(folder / "own.toml"), folder, options(**said)))


def test_an_unknown_suite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--suite: expected one of cascade2, .*; found 'cascade3'"):
        list(read_suite("cascade3", tmp_path, options()))
