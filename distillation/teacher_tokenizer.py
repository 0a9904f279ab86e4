"""A teacher scores the student's tokens: it must have the student's tokenizer, and know the student's chat template."""

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from cascade_rl.distillation.teacher_vocabulary import other_tokenizer
from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.data.template_check import differences


def check_tokenizer(where: str, folder: Path, student: PreTrainedTokenizerBase, *, foreign: bool) -> None:
    """Raises UserError unless the teacher in `folder` has the student's vocabulary.

    where     the key of the teacher
    foreign   the teacher is no stage of this run. If it has a chat template, that must render the student's tokens
    """
    teacher = AutoTokenizer.from_pretrained(folder)
    if teacher.get_vocab() != student.get_vocab():
        raise other_tokenizer(where, folder)
    if not foreign or not isinstance(teacher.chat_template, str):
        return
    for found in differences(student, str(student.chat_template), teacher.chat_template):
        raise UserError(
            f"{where}: expected the student's chat template, found another one in {folder}: in the conversation "
            f"'{found.sample}', token {found.position} begins {found.texts[1]!r}, not {found.texts[0]!r}. Choose a "
            "teacher that was trained with it or, if this one is to score it all the same, copy it into the folder"
        )
