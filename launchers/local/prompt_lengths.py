"""Says before a launch which prompts of the real data are too long for their stage. Each source is measured once.

A model has a tokenizer before the run unless the run trains one. Then each stage
measures the prompts that it draws (rl_stages/tasks/prompt_room.py).
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.room import Room
from cascade_rl.rl_stages.config.source import parse_sources
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage
from cascade_rl.rl_stages.data.chat_templates import template_text
from cascade_rl.rl_stages.run.known_data import KnownData
from cascade_rl.rl_stages.tasks.load_tasks import read_tasks, split_of
from cascade_rl.rl_stages.tasks.row_form import RowForm

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

Lengths = Mapping[str, Mapping[str, Any]]
"""Domain -> {"tokens": of every prompt, longest first; "longest": id of the longest}, of one split."""

Recall = Callable[[str, float], Mapping[str, Lengths]]


def overlong_prompts(cascade: Cascade, known: KnownData, stages: Iterable[Stage] | None = None) -> list[str]:
    """A line for each source and domain of the `stages`, by default all, with prompts that will be left out.

    Raises UserError if none of a domain is left, and for any overlong prompt if the stage says that it is an error.
    """
    model = cascade.base.hf or cascade.base.tokenizer
    if model is None:
        return []
    named = cascade.base.chat_template
    folder, template = Path(model), named and template_text(named)
    what = f"prompts of tokenizer {_fingerprint(folder, template)}"
    find = partial(_lengths, folder, template)
    sampling = [stage for stage in stages or cascade.stages if isinstance(stage, OnPolicyStage)]
    lines = (_of_stage(cascade, stage, _recall(known, what, find, RowForm.of(stage))) for stage in sampling)
    return list(chain.from_iterable(lines))


def _recall(known: KnownData, what: str, find: Callable[[RowForm, float, str], Any], form: RowForm) -> Recall:
    return lambda path, heldout: known.recall(
        f"{what}, held out {heldout}{form.shown}", path, partial(find, form, heldout)
    )


def _of_stage(cascade: Cascade, stage: OnPolicyStage, recall: Recall) -> Iterator[str]:
    scored = set(cascade.evaluation.domains) & set(stage.trained_domains)
    withheld, room = cascade.withheld(stage), cascade.evaluation_room
    for path in dict.fromkeys(source.path for source in parse_sources(stage.data)):
        found = recall(path, withheld)
        yield from _overlong(cascade.room(stage), path, found["train"])
        heldout = {domain: lengths for domain, lengths in found["heldout"].items() if domain in scored}
        yield from _overlong(room, f"the held-out part of {path}", heldout)
    for path in stage.heldout:
        yield from _overlong(room, path, recall(path, 1.0)["heldout"])


def _overlong(room: Room, where: str, found: Lengths) -> Iterator[str]:
    for domain, lengths in found.items():
        tokens = lengths["tokens"]
        over = sum(length > room.longest_prompt for length in tokens)
        told = (
            f"{room.owner}: {over:,} of {len(tokens):,} prompts of {domain} in {where} are too long: expected at most "
            f"{room.longest_prompt:,} tokens, found up to {tokens[0]:,} ({lengths['longest']})"
        )
        if over == len(tokens) or (over and room.overlong == "error"):
            raise UserError(
                f"{told}. Change the data, rollout.max_model_len, {room.owner}.min_answer_tokens or, if others are "
                f"left, {room.owner}.overlong_prompts"
            )
        if over:
            yield f"{told}. They will be left out"


def _lengths(
    folder: Path, template: str | None, form: RowForm, heldout_fraction: float, source: str
) -> dict[str, Lengths]:
    """By split. Renders and encodes every prompt of the source."""
    from cascade_rl.rl_stages.tasks.prompt_room import prompt_tokens

    tokenizer = _tokenizer(folder, template)
    print(f"measuring the prompts of {source}", flush=True)
    found: dict[str, dict[str, list[tuple[int, str]]]] = {"train": defaultdict(list), "heldout": defaultdict(list)}
    for task in read_tasks(source, form):
        found[split_of(task.messages, heldout_fraction)][task.domain].append((prompt_tokens(tokenizer, task), task.id))
    return {split: {domain: _summary(own) for domain, own in domains.items()} for split, domains in found.items()}


@cache
def _tokenizer(folder: Path, template: str | None) -> "PreTrainedTokenizerBase":
    from cascade_rl.rl_stages.data.tokenizer import load_tokenizer

    return load_tokenizer(folder, template)


def _summary(lengths: Iterable[tuple[int, str]]) -> dict[str, Any]:
    ordered = sorted(lengths, reverse=True)
    return {"tokens": [tokens for tokens, _ in ordered], "longest": ordered[0][1]}


def _fingerprint(folder: Path, template: str | None) -> str:
    digest = hashlib.blake2b((template or "").encode(), digest_size=8)
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    return digest.hexdigest()
