"""A teacher of another vocabulary, or one that was trained on other tokens of a conversation, is refused."""

from pathlib import Path
from typing import Any

import pytest

from cascade_rl.distillation.teacher_tokenizer import check_tokenizer
from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.data.chat_templates import NAMED
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer


def tokenizer(template: str | None, word: str = "word") -> Any:
    made = train_tokenizer([[{"role": "user", "content": f"{word} {word}"}]])
    made.chat_template = template
    return made


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        (tokenizer(NAMED["cascade2"], "other"), "mopd.teachers.math: expected the student's tokenizer, found another"),
        (tokenizer(NAMED["nemotron3"]), "in the conversation 'question', token 8 begins '<|im_end|>"),
    ],
)
def test_another_tokenizer_is_refused(tmp_path: Path, teacher: Any, message: str) -> None:
    teacher.save_pretrained(tmp_path)
    with pytest.raises(UserError) as error:
        check_tokenizer("mopd.teachers.math", tmp_path, tokenizer(NAMED["cascade2"]), foreign=True)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("template", "foreign"), [(NAMED["cascade2"], True), (None, True), (NAMED["nemotron3"], False)]
)
def test_the_students_own_is_not(tmp_path: Path, template: str | None, foreign: bool) -> None:
    tokenizer(template).save_pretrained(tmp_path)
    check_tokenizer("mopd.teachers.math", tmp_path, tokenizer(NAMED["cascade2"]), foreign=foreign)
