"""A suite's settings, what is asked instead of them, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.benchmarks.benchmark import MODES
from cascade_rl.rl_stages.benchmarks.suite import SUITES, Asked, read_suite

MODELS = {
    "cascade1": {
        "Qwen3-8B",
        "Qwen3-14B",
        "Nemotron-Cascade-8B",
        "Nemotron-Cascade-8B-Thinking",
        "Nemotron-Cascade-14B-Thinking",
    },
    "cascade2": {"Nemotron-3-Nano-30B-A3B", "Nemotron-Cascade-2-30B-A3B"},
}
TABLE = {"rows": "a", "answers": 2, "max_new_tokens": 8, "temperature": 1.0, "top_p": 0.95, "thinking": "on"}


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
        [found] = read_suite(suite, tmp_path, Asked(only=[name]))
        assert (found.sampled.answers, found.modes) == (table["answers"], MODES[table["thinking"]])
        assert found.published and found.published.keys() <= MODELS[suite]


def test_what_is_asked_has_the_last_word(folder: Path) -> None:
    (folder / "own.toml").write_text(toml(TABLE))
    [found] = read_suite(str(folder / "own.toml"), folder, Asked(sampled={"answers": 3}, thinking="both"))
    assert found.sampled == (3, 8, 1.0, 0.95)
    assert found.modes == ("on", "off")
    assert list(found.tasks) == ["one-000000"]
    assert found.method is None
    asked = Asked(sampled={"answers": 3, "top_p": 1.0}, answers={"one": 5}, method="vote:generations=2")
    [found] = read_suite(str(folder / "own.toml"), folder, asked)
    assert found.sampled == (5, 8, 1.0, 1.0)
    assert found.method == "vote:generations=2"


@pytest.mark.parametrize(
    ("table", "asked", "message"),
    [
        (TABLE | {"answer": 2}, Asked(), r"\[one\]: expected the keys .*; found 'answer'"),
        (TABLE | {"top_p": "x"}, Asked(), r"\[one\]: expected 'top_p' to be of type float; found 'x'"),
        (TABLE | {"thinking": "yes"}, Asked(), "expected 'thinking' to be one of .*; found 'yes'"),
        (TABLE, Asked(only=["two"]), r"expected benchmarks of it \(one\); found 'two'"),
        (TABLE, Asked(answers={"two": 1}), r"expected benchmarks of it \(one\); found 'two'"),
        (TABLE | {"rows": "b"}, Asked(), "no such file: .*/b"),
        (TABLE, Asked(sampled={"answers": 0}), "expected --answers of at least 1; found 0"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, table: dict[str, Any], asked: Asked, message: str) -> None:
    (folder / "own.toml").write_text(toml(table))
    with pytest.raises(UserError, match=message):
        list(read_suite(str(folder / "own.toml"), folder, asked))


def test_an_unknown_suite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"suite: expected one of .*cascade2, .*; found 'cascade3'"):
        list(read_suite("cascade3", tmp_path, Asked()))
