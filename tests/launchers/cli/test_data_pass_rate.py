"""`cascade data pass-rate`: a real tiny model answers, a second run asks only for what is missing."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.cli import data
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer
from tests.engine.rollout.tiny_models import VOCAB, build, write_config, write_image


def row(prompt: str, **fields: Any) -> dict[str, Any]:
    params = {"input": [{"role": "user", "content": prompt}]}
    return {"responses_create_params": params, "agent_ref": {"name": "math"}, "expected_answer": "1"} | fields


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In two files with an index, as large models are published."""
    folder = write_config("llama", tmp_path_factory.mktemp("model"))
    train_tokenizer([[{"role": "user", "content": "What is"}]], vocab_size=VOCAB).save_pretrained(folder)
    write_image(build("llama", seed=1), folder / "whole.safetensors")
    weights = load_file(folder / "whole.safetensors")
    (folder / "whole.safetensors").unlink()
    files = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(sorted(weights))}
    for file in set(files.values()):
        save_file({name: weights[name] for name in files if files[name] == file}, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return folder


def rate(folder: Path, model: Path, *options: str) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
    """Exit code, rows written and the log."""
    out = folder / "out.jsonl"
    sizes = ("--max-new-tokens", "8", "--max-model-len", "128", "--kv-cache-mib", "16", "--max-num-seqs", "8")
    arguments = ["pass-rate", str(folder / "rows.jsonl"), "--model", str(model), "--out", str(out), *sizes, *options]
    code = data.run(arguments)
    rows, log = (path.read_text().splitlines() for path in (out, folder / "out.jsonl.answers"))
    return code, list(map(json.loads, rows)), list(map(json.loads, log))


@pytest.mark.engine
def test_a_model_answers_every_row_and_a_second_run_only_the_new_ones(tmp_path: Path, model: Path, capsys: Any) -> None:
    source = tmp_path / "rows.jsonl"
    rows = [row("What is 1?"), row("What is 2?"), row("What is 1?")]
    bad = [row("What is", expected_answer=3), row("x" * 300)]
    source.write_text("".join(json.dumps(found) + "\n" for found in (*rows, *bad)))
    code, written, log = rate(tmp_path, model, "--answers", "3")
    assert code == 1
    assert [found | {"pass_rate": 0.0, "answer_scores": [0.0] * 3} for found in rows] == written
    assert len(log) == 3 and log[0] == {
        "model": str(model),
        "answers": 3,
        "max_new_tokens": 8,
        "temperature": 1.0,
        "top_p": 1.0,
    }
    told = capsys.readouterr().out
    assert "3 rows have a pass rate, 2 have none" in told and "expected a prompt of at most 120 tokens" in told

    # what is known is taken from the log, whatever the model would say now
    known = log[1] | {"scores": [1.0, 1.0, 0.0]}
    (tmp_path / "out.jsonl.answers").write_text("".join(json.dumps(line) + "\n" for line in (log[0], known, log[2])))
    source.write_text("".join(json.dumps(found) + "\n" for found in rows))
    code, written, again = rate(tmp_path, Path(model), "--answers", "3")
    assert code == 0 and len(again) == 3
    assert sorted(found["pass_rate"] for found in written) in ([0.0, 2 / 3, 2 / 3], [0.0, 0.0, 2 / 3])
    with pytest.raises(UserError, match=r"out\.jsonl\.answers: expected answers sampled with .*: remove it or change"):
        rate(tmp_path, model, "--answers", "4")


def test_a_folder_without_weights_and_no_answers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row("What is 1?")) + "\n")
    with pytest.raises(UserError, match="expected --answers of at least 1; found 0"):
        rate(tmp_path, tmp_path, "--answers", "0")
    with pytest.raises(UserError, match=r"expected a Hugging Face folder with model\.safetensors or its index"):
        rate(tmp_path, tmp_path, "--answers", "1")
