"""OUT/report.html: the numbers of an evaluation, and its answers to be read, filtered and sorted."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_rl.launchers.report.answers_page import Answers, write_answers
from cascade_rl.launchers.report.rollouts import File
from cascade_rl.launchers.report.sample_stream import source_of
from cascade_rl.rl_stages.benchmarks.results import Source

TOKENIZER = "tokenizer.json"


def write_page(out: Path, models: Sequence[Path], numbers: Mapping[str, Any], samples: Sequence[Path]) -> None:
    """Of the models of the command. The page has one tokenizer: answers of a model with another one are left out, and
    named. None is written if the first model has no file of one."""
    if not (models[0] / TOKENIZER).is_file():
        return print(f"no report.html: expected a {TOKENIZER} in {models[0]} to turn token ids into text; found none")
    alike = [model for model in models if _tokenizer(model) == _tokenizer(models[0])]
    for model in models:
        if model not in alike:
            print(f"report.html: without the answers of {model}, whose tokenizer is another; answers.jsonl has them")
    found = [(path, Source(**told)) for path in samples if (told := source_of(path))]
    shown = [(path, source) for path, source in found if source.model in map(str, alike)]
    sources = list(dict.fromkeys(source for _, source in shown))
    files = [File(sources.index(source), 0, path, heldout=True) for path, source in shown]
    facts = {"models": ", ".join(map(str, models)), "folder": str(out)}
    page = Answers(out.name, facts, numbers, list(map(str, sources)), files, _opened(models[0]))
    rollouts = write_answers(out / "report.html", page)
    print(f"{out / 'report.html'}: {rollouts.kept:,} of {rollouts.total:,} answers")


def _tokenizer(model: Path) -> bytes:
    path = model / TOKENIZER
    return path.read_bytes() if path.is_file() else b""


def _opened(model: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(model / TOKENIZER))
