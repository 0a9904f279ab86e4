"""`cascade eval`: a real tiny model answers in two modes; a second command asks it nothing."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.cli import main
from cascade_rl.launchers.evaluate.kept_answers import KeptAnswers
from cascade_rl.launchers.report.sample_stream import read_stream
from cascade_rl.rl_stages.benchmarks.votes import VOTES
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.data.chat_templates import NAMED
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer
from tests.engine.rollout.tiny_models import VOCAB, build, write_config, write_image

SIZES = ("--max-new-tokens", "8", "--max-model-len", "128", "--kv-cache-mib", "16", "--max-num-seqs", "8")
COLUMNS = ("--domain", "math", "--column", "prompt=q", "--column", "expected_answer=a")


def evaluate(folder: Path, *options: str) -> int:
    arguments = ("eval", str(folder / "sums.jsonl"), "--model", str(folder / "model"), "--out", str(folder / "out"))
    return main._run([*arguments, *SIZES, *COLUMNS, *options])


def lines(path: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, path.read_text().splitlines()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"q": f"What is {number}?", "a": str(number)} for number in range(3)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def own_model(folder: Path) -> Path:
    """A random one that can be asked to think."""
    model = write_config("llama", folder / "model")
    tokenizer = train_tokenizer([[{"role": "user", "content": "What is"}]], vocab_size=VOCAB)
    tokenizer.chat_template += "{% if enable_thinking %}<think>{% endif %}"
    tokenizer.save_pretrained(model)
    write_image(build("llama", seed=1), model / "model.safetensors")
    return model


@pytest.mark.engine
def test_every_answer_is_kept_and_estimated_and_none_is_asked_for_twice(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = own_model(folder)
    assert evaluate(folder, "--answers", "3", "--thinking", "both") == 0
    kept, results = lines(folder / "out/answers.jsonl"), json.loads((folder / "out/results.json").read_text())
    assert len(kept) == 3 * 2 * 3
    assert {(row["id"], row["mode"], row["sample"]) for row in kept} == {
        (f"sums-{prompt:06d}", mode, sample) for prompt in range(3) for mode in ("on", "off") for sample in range(3)
    }
    [off_groups, on_groups] = sorted(
        (list(read_stream(path)) for path in (folder / "out/samples").iterdir()),
        key=lambda groups: groups[0].schema.metadata[b"mode"],
    )
    assert [group.num_rows for group in (*off_groups, *on_groups)] == [3] * 6
    read = {(group["id"][0].as_py(), group["thinking"][0].as_py()): group["token_ids"] for group in on_groups}
    assert {key: len(ids[0]) for key, ids in read.items()} == {
        (f"{row['id']}/0", True): row["tokens"] for row in kept if row["mode"] == "on" and row["sample"] == 0
    }
    assert "report.html: 18 of 18 answers" in capsys.readouterr().out
    (off, on), (gap,) = results["results"], results["differences"]
    assert (off["mode"], on["mode"], on["prompts"], gap["benchmark"]) == ("off", "on", 3, "math")
    assert on["tokens"]["mean"] == pytest.approx(sum(row["tokens"] for row in kept if row["mode"] == "on") / 9)
    assert gap["mean"] == pytest.approx(on["avg@3"]["mean"] - off["avg@3"]["mean"])
    assert {"pass@1", "pass@2", "pass@3", "maj@3"} < on.keys()

    # a group that a kill cut off is answered again, whole ones are not: the model is gone
    (folder / "out/answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    (model / "model.safetensors").unlink()
    assert evaluate(folder, "--answers", "3", "--thinking", "both") == 0
    assert json.loads((folder / "out/results.json").read_text()) == results
    assert evaluate(folder, "--answers", "3", "--thinking", "on") == 0
    assert len(json.loads((folder / "out/results.json").read_text())["results"]) == 1
    (folder / "out/answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept[:-1]))
    with pytest.raises(UserError, match=r"expected a Hugging Face folder with model\.safetensors"):
        evaluate(folder, "--answers", "3", "--thinking", "both")
    assert len(lines(folder / "out/answers.jsonl")) == 3 * 2 * 3 - 3


@pytest.mark.engine
def test_two_models_answer_each_benchmark_of_a_suite_in_its_own_way(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = own_model(folder)
    other = shutil.copytree(model, folder / "other")
    how = 'max_new_tokens = 8\ntemperature = 1.0\ntop_p = 0.95\nthinking = "off"\n'
    sums = f'[sums]\nrows = "sums"\nanswers = 2\npublished = {{ somebody = 12.5 }}\n{how}'
    (folder / "own.toml").write_text(
        f'{sums}[letters]\nrows = "letters"\nanswers = 2\nmethod = "vote:generations=3"\n{how}'
    )
    for name, row in (
        ("sums", {"problem": "1 + 1?", "answer": 2}),
        ("letters", {"question": "Which?", "choices": ["a", "b"], "answer": 0}),
    ):
        (folder / name).mkdir()
        (folder / name / "rows.jsonl").write_text(json.dumps(row) + "\n")
    suite = ("--suite", str(folder / "own.toml"), "--benchmarks", str(folder))
    command = ["eval", *suite, "--model", str(model), "--model", str(other), "--out", str(folder / "out"), *SIZES[2:]]
    assert main._run(command) == 0
    results = json.loads((folder / "out/results.json").read_text())["results"]
    assert [(row["model"], row["benchmark"], row["mode"], row["prompts"]) for row in results] == [
        (str(one), benchmark, "off", 1) for benchmark in ("sums", "letters") for one in (model, other)
    ]
    assert all("avg@2" in row for row in results)
    assert [row["tokens"] <= 8 for row in lines(folder / "out/sums/answers.jsonl")] == [True] * 4
    assert [3 < row["tokens"] <= 24 for row in lines(folder / "out/letters/answers.jsonl")] == [True] * 4
    assert [len(list(read_stream(path))) for path in (folder / "out/sums/samples").iterdir()] == [1, 1]
    assert json.loads((folder / "out/letters/settings.json").read_text())["method"] == "vote:generations=3"
    assert "published, sums, in percent: somebody 12.5" in capsys.readouterr().out


@pytest.mark.engine
@pytest.mark.sandbox
@pytest.mark.long
def test_an_answer_with_the_python_tool_is_an_episode(folder: Path) -> None:
    model = own_model(folder)
    (model / "chat_template.jinja").write_text(NAMED["nemotron3"])
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    assert evaluate(folder, "--answers", "2", "--python-tool", "--max-model-len", "2048") == 0
    assert {row["domain"] for row in lines(folder / "out/answers.jsonl")} == {"math_python"}
    assert json.loads((folder / "out/settings.json").read_text())["python_tool"] == 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--answers", "0"), "expected --answers of at least 1; found 0"),
        ((), "expected --answers; found none: add it"),
        (("--answers", "1", "--suite", "cascade2"), r"expected ROWS or --suite; found .*sums\.jsonl and cascade2"),
        (("--answers", "1", "--column", "prompt"), "--column: expected FIELD=COLUMN; found 'prompt'"),
        (("--answers", "1", "--column", "prompt=question"), r"sums.jsonl:1: expected the column 'question'"),
        (("--answers", "1", "--domain", "maths"), "did you mean 'math'"),
        (("--answers", "1", "--python-tool", "--method", "vote"), "expected --python-tool or a method; found vote too"),
        (("--answers", "1", "--judge-url", "http://x/v1"), "expected --judge-model with --judge-url; found none"),
    ],
)
def test_what_cannot_be_asked_is_refused(folder: Path, options: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        evaluate(folder, *options)


def test_answers_that_were_sampled_otherwise_are_not_mixed(tmp_path: Path) -> None:
    KeptAnswers.open(tmp_path, {"answers": 2, "temperature": 1.0})
    KeptAnswers.open(tmp_path, {"answers": 2, "temperature": 1.0})
    with pytest.raises(UserError, match=r"found temperature 1\.0: choose another --out"):
        KeptAnswers.open(tmp_path, {"answers": 2, "temperature": 0.5})
    KeptAnswers.open(tmp_path / "judged", {"answers": 2, "judge": "m"})
    with pytest.raises(UserError, match="found judge 'm': choose another --out"):
        KeptAnswers.open(tmp_path / "judged", {"answers": 2})


@pytest.mark.parametrize(
    ("domain", "one", "other", "same"),
    [
        ("math", r"so \boxed{0.5}", r"</think> \boxed{\frac{1}{2}}", True),
        ("math", r"\boxed{3}", r"\boxed{3} and \boxed{4}", False),
        ("math", "no box", "none either", True),
        ("mcqa", r"\boxed{B}", r"<think>A</think> \boxed{B}", True),
        ("mcqa", r"\boxed{A}", r"\boxed{B}", False),
    ],
)
def test_equal_answers_are_one_vote(domain: str, one: str, other: str, same: bool) -> None:
    fields = {"options": {"A": "x", "B": "y"}, "grading_mode": "strict_single_letter_boxed", "patterns": []}
    task = Task("t", domain, (), fields)
    assert (VOTES[domain](task, one) == VOTES[domain](task, other)) is same
