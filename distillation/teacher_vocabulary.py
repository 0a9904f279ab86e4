"""Whether a teacher's ids mean the student's tokens, as their files say. Works without torch, before a launch."""

from pathlib import Path

from tokenizers import Tokenizer

from cascade_rl.engine.core.errors import UserError


def check_vocabulary(where: str, teacher: Path, student: Path) -> None:
    """Raises UserError if an id of the teacher's tokenizer is another token in the student's. Where one of them has no
    file of its own, nothing is compared. The stage compares all of both when it starts (teacher_tokenizer.py).

    where  the key of the teacher
    """
    files = [folder / "tokenizer.json" for folder in (teacher, student)]
    if not all(file.is_file() for file in files):
        return
    theirs, own = (_tokens(file) for file in files)
    if any(theirs[number] != own[number] for number in theirs.keys() & own.keys()):
        raise other_tokenizer(where, teacher)


def other_tokenizer(where: str, teacher: Path) -> UserError:
    return UserError(
        f"{where}: expected the student's tokenizer, found another one in {teacher}. A teacher scores the student's "
        "tokens: choose one with the same tokenizer"
    )


def _tokens(file: Path) -> dict[int, str]:
    return {number: token for token, number in Tokenizer.from_file(str(file)).get_vocab().items()}
