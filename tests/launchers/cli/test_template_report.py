"""`cascade data check --launcher`: exit code 1, and the first differing token, where a model has another template."""

import json
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.cli import data
from cascade_rl.rl_stages.data.chat_templates import NAMED
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer

LAUNCHER = """
from dataclasses import replace
from cascade_rl.rl_stages.config.base import BaseModel
from tests.launchers import fake_launcher

CASCADE = replace(fake_launcher.CASCADE, base=BaseModel(hf="{model}", chat_template={template!r}))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with the tokenizer of a model that has the template of Nemotron-3."""
    folder = tmp_path / "model"
    tokenizer = train_tokenizer([[{"role": "user", "content": "Is Ann in? And Bob?"}]])
    tokenizer.chat_template = NAMED["nemotron3"]
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def launcher(model: Path, template: str | None) -> str:
    path = model.with_name("launcher.py")
    path.write_text(LAUNCHER.format(model=model, template=template))
    return str(path)


def test_a_launcher_with_the_models_template_agrees(model: Path, capsys: Any) -> None:
    assert data.run(["check", "--launcher", launcher(model, "nemotron3")]) == 0
    assert capsys.readouterr().out == f"chat template nemotron3 and that of {model}: 0 of 12 conversations differ\n"


def test_another_template_is_told_token_by_token(model: Path, capsys: Any) -> None:
    other = launcher(model.with_name("elsewhere"), "cascade2")
    assert data.run(["check", "--launcher", other, "--model", str(model)]) == 1
    title, question, ours, theirs, *_ = capsys.readouterr().out.splitlines()
    assert title == f"chat template cascade2 and that of {model}: 7 of 12 conversations differ"
    assert question == "  question: token 8 differs, after '<|im_start|>system\\n'"
    assert ours == "    cascade2: 'You are '"
    assert theirs == f"    {model}: '<|im_end|>\\n<|im_start|>user\\nIs Ann in'"


def test_what_cannot_be_compared_is_refused(model: Path) -> None:
    for arguments, message in (
        (["--launcher", launcher(model, None)], "expected a base.chat_template; found none"),
        (["--launcher", launcher(model.parent, "cascade2")], "--model: expected a Hugging Face folder"),
        ([], "expected --launcher FILE.py, or rows without --model; found neither"),
        (["rows.jsonl", "--model", str(model)], "expected --launcher FILE.py, or rows without --model"),
    ):
        with pytest.raises(UserError, match=message):
            data.run(["check", *arguments])
    (model / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="expected a tokenizer with one chat template; found None"):
        data.run(["check", "--launcher", launcher(model, "cascade2")])
