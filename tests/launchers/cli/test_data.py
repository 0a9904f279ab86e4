"""`cascade data`: what is kept, what is dropped and why, and that a failure leaves the old output."""

import json
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.cli import data


def row(prompt: str, **fields: Any) -> dict[str, Any]:
    params = {"input": [{"role": "user", "content": prompt}]}
    return {"responses_create_params": params, "agent_ref": {"name": "math"}, "expected_answer": "1"} | fields


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join((found if isinstance(found, str) else json.dumps(found)) + "\n" for found in rows))
    return str(path)


def run(folder: Path, *arguments: str, out: bool = True) -> tuple[dict[str, Any], list[Any]]:
    """The report and the rows written."""
    report, written = folder / "report.json", folder / "out.jsonl"
    data.run([*arguments, "--json", str(report), *(("--out", str(written)) if out else ())])
    return json.loads(report.read_text()), list(map(json.loads, written.read_text().splitlines())) if out else []


def test_check_counts_every_row_and_goes_on_behind_a_wrong_one(tmp_path: Path, capsys: Any) -> None:
    chat = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    wrong = [row("b", expected_answer=None), row("c", expected_answer=3.5), "{", {"messages": []}]
    source = write(tmp_path / "rows.jsonl", [row("a"), *wrong, chat, row("d")])
    assert data.run(["check", source]) == 1
    report = data.check([source])
    assert report.kept.total() == 3 and report.kept["demonstrations"] == 1
    assert report.dropped.total() == 4
    assert report.dropped["expected one JSON object a line"] == 1
    assert [example.partition(": ")[0] for examples in report.examples.values() for example in examples] == [
        f"{source}:{line}" for line in (2, 3, 4, 5)
    ]
    assert "7 rows in" in capsys.readouterr().out
    assert data.run(["check", write(tmp_path / "good.jsonl", [chat, row("a")])]) == 0


def test_filter_keeps_a_range_of_pass_rates(tmp_path: Path) -> None:
    rows = [row(f"q{rate}", pass_rate=rate) for rate in (0, 0.1, 0.5, 0.9, 1.0)]
    report, kept = run(tmp_path, "filter", write(tmp_path / "a.jsonl", rows), "--pass-rate", "0.1", "0.9")
    assert kept == rows[1:4]
    assert report["dropped"] == {"pass rate below 0.1": 1, "pass rate above 0.9": 1}
    assert "q1.0" in report["examples"]["pass rate above 0.9"][0]


def test_a_row_that_cannot_be_judged_ends_the_command_and_the_old_output_stays(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [row("a", pass_rate=0.5), row("b")])
    out = tmp_path / "out.jsonl"
    out.write_text("old")
    with pytest.raises(UserError, match=r"a\.jsonl:2: expected 'pass_rate' to be a number in \[0, 1\]; found None"):
        data.run(["filter", source, "--pass-rate", "0", "1", "--out", str(out)])
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "out.jsonl"]


def test_dedup_keeps_the_first_of_what_says_the_same(tmp_path: Path) -> None:
    chats = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]} for text in "ab"]
    first = write(tmp_path / "a.jsonl", [row("What is  it?"), *chats, row("what is it? ", expected_answer="2")])
    report, kept = run(tmp_path, "dedup", first, write(tmp_path / "b.jsonl", [chats[0], row("What was it?")]))
    assert kept == [row("What is  it?"), *chats, row("What was it?")]
    assert report["dropped"] == {"duplicate": 2}


def test_decontaminate_drops_nine_shared_words_and_not_eight(tmp_path: Path) -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    rows = [
        row("Well, " + " ".join(words[1:]).upper() + "!"),
        row(" ".join(words[:8]) + " other " + " ".join(words[9:])),
        row("Prove it."),
        row("Prove it now."),
    ]
    benchmark = write(tmp_path / "bench.jsonl", [{"problem": " ".join(words)}, {"problem": "prove IT"}])
    source = write(tmp_path / "a.jsonl", rows)
    report, kept = run(tmp_path, "decontaminate", source, "--against", benchmark, "--field", "problem")
    assert kept == [rows[1], rows[3]]
    assert report["dropped"] == {"shares 9 words with the benchmark": 2}
    with pytest.raises(UserError, match=r"bench\.jsonl:1: expected a row with 'messages' .* text with --field"):
        run(tmp_path, "decontaminate", source, "--against", benchmark)


def test_mix_writes_the_shares_and_no_row_twice(tmp_path: Path) -> None:
    a, b = (write(tmp_path / f"{name}.jsonl", [row(f"{name}{i}") for i in range(100)]) for name in "ab")
    report, mixed = run(tmp_path, "mix", f"{a}*0.75", f"{b}*0.25", "--count", "80")
    assert report["kept"] == {a: 60, b: 20}
    assert len({json.dumps(found) for found in mixed}) == 80
    assert run(tmp_path, "mix", f"{a}*0.75", f"{b}*0.25", "--count", "80")[1] == mixed
    assert run(tmp_path, "mix", f"{a}*0.75", f"{b}*0.25", "--count", "80", "--seed", "2")[1] != mixed
    report, mixed = run(tmp_path, "mix", f"{a}[:30]", b)
    assert report["kept"] == {a: 30, b: 100} and len({json.dumps(found) for found in mixed}) == 130
    for arguments, message in (
        ((f"{a}*1", f"{b}*1"), "expected --count N, because the sources have weights"),
        ((f"{a}*1", f"{b}*1", "--count", "300"), "expected rows for its share of 300; found only 100"),
        ((a, "--count", "101"), "expected --count of at most 100, the number of rows; found 101"),
    ):
        with pytest.raises(UserError, match=message):
            run(tmp_path, "mix", *arguments)
