"""`cascade data`: what is kept, what is dropped and why, and that a failure leaves the old output."""

import json
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.cli import data
from cascade_rl.rl_stages.data.tokenizer import encode_prompt, train_tokenizer


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


CHAT = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}


def test_check_says_of_each_source_what_it_leaves_out_and_writes_the_rest(tmp_path: Path, capsys: Any) -> None:
    bad = write(tmp_path / "bad.jsonl", [row("a"), row("b", expected_answer=None), CHAT, "{", row("d")])
    good = write(tmp_path / "good.jsonl", [CHAT, row("e")])
    assert data.run(["check", good]) == 0
    assert data.run(["check", bad, good]) == 1
    told = capsys.readouterr().out
    assert "bad.jsonl: 5 rows, 3 usable, 2 left out" in told and "good.jsonl: 2 rows, 2 usable, 0 left out" in told
    kept = tmp_path / "kept.jsonl"
    assert data.run(["check", bad, good, "--keep", str(kept), "--json", str(tmp_path / "report.json")]) == 0
    assert list(map(json.loads, kept.read_text().splitlines())) == [row("a"), CHAT, row("d"), CHAT, row("e")]
    assert data.run(["check", str(kept)]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report.keys() == {bad, good}
    assert report[bad]["dropped"]["expected one JSON object a line"] == 1
    assert report[bad]["examples"]["expected one JSON object a line"][0].startswith(f"{bad}:4: ")


def test_plain_rows_are_checked_and_compared_by_their_prompts(tmp_path: Path) -> None:
    """TRL's forms, and columns under names of their own."""
    plain = [{"prompt": prompt, "answer": "1"} for prompt in ("one", "ONE ", "two")]
    source = write(tmp_path / "plain.jsonl", plain)
    assert data.run(["check", source, "--domain", "math", "--column", "expected_answer=answer"]) == 0
    assert data.run(["check", source, "--domain", "math"]) == data.run(["check", source]) == 1
    assert run(tmp_path, "dedup", source)[1] == [plain[0], plain[2]]
    told = [{"question": "one", "reply": reply} for reply in ("a", "b", "A")]
    pairs = [{"prompt": row["question"], "completion": row["reply"]} for row in told]
    assert run(tmp_path, "dedup", write(tmp_path / "sft.jsonl", pairs))[1] == pairs[:2]
    columns = ["--column", "prompt=question", "--column", "completion=reply"]
    assert data.run(["check", write(tmp_path / "told.jsonl", told), *columns]) == 0
    with pytest.raises(UserError, match="'messages', 'prompt' or 'responses_create_params'; found none of them"):
        run(tmp_path, "dedup", write(tmp_path / "none.jsonl", [{"text": "x"}]))


def test_lengths_are_counted_with_the_models_template_and_its_tools(tmp_path: Path) -> None:
    tokenizer = train_tokenizer([[{"role": "user", "content": "one two three"}]])
    tokenizer.save_pretrained(tmp_path / "model")
    rows = [row(" ".join(["one"] * count)) for count in (1, 5, 9)]
    tokens = [len(encode_prompt(tokenizer, found["responses_create_params"]["input"])) for found in rows]
    source, bounds = write(tmp_path / "a.jsonl", rows), [str(tokens[0] + 1), str(tokens[1])]
    lengths = ["--prompt-tokens", *bounds, "--tokenizer", str(tmp_path / "model")]
    report, kept = run(tmp_path, "filter", source, *lengths)
    assert kept == rows[1:2]
    assert report["dropped"] == {
        f"prompt of less than {tokens[0] + 1} tokens": 1,
        f"prompt of more than {tokens[1]} tokens": 1,
    }
    assert data.run(["check", source, *lengths]) == 1
    with pytest.raises(UserError, match="expected --prompt-tokens and --tokenizer together, or neither"):
        data.run(["check", source, "--prompt-tokens", "1", "2"])
    with pytest.raises(UserError, match=r"b\.jsonl:1: expected a task; found a demonstration"):
        run(tmp_path, "filter", write(tmp_path / "b.jsonl", [CHAT]), *lengths)


def test_converted_rows_are_checked_and_the_others_named(tmp_path: Path) -> None:
    rows = [{"problem": "1+1?", "answer": "2"}, {"problem": "why?", "answer": ""}, {"question": "?"}, "{"]
    report, kept = run(tmp_path, "convert", write(tmp_path / "a.jsonl", rows))
    assert [found["expected_answer"] for found in kept] == ["2"]
    assert sum(report["dropped"].values()) == 3 and report["kept"].keys() <= {"math train", "math heldout"}
    assert data.run(["convert", write(tmp_path / "b.jsonl", ["{"]), "--out", str(tmp_path / "out.jsonl")]) == 1


def test_filter_keeps_what_a_paper_keeps(tmp_path: Path) -> None:
    rows = [row(f"q{right}", answer_scores=[1.0] * right + [0.0] * (16 - right)) for right in (0, 11, 12, 16)]
    report, kept = run(tmp_path, "filter", write(tmp_path / "a.jsonl", rows), "--paper", "cascade1-math")
    assert kept == rows[:2] and report["dropped"] == {"solved 75% of 16 times or more": 2}
    with pytest.raises(UserError, match=r"a\.jsonl:1: expected 'answer_scores' to be 8 numbers, of answers of GPT-OSS"):
        run(tmp_path, "filter", str(tmp_path / "a.jsonl"), "--paper", "cascade2-code")


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
    other = write(tmp_path / "other.jsonl", [{"problem": "Prove it now."}])
    _, kept = run(tmp_path, "decontaminate", "--field", "problem", "--against", benchmark, "--against", other, source)
    assert kept == rows[1:2]
    with pytest.raises(UserError, match=r"bench\.jsonl:1: expected a row with 'messages', .* text with --field"):
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
