"""Finds the first token in which two chat templates render a conversation differently."""

from collections.abc import Iterator
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from cascade_rl.rl_stages.data.template_samples import SAMPLES, Sample

BEFORE, AFTER = 12, 8  # tokens shown before the first difference, and from it on


@dataclass(frozen=True)
class Difference:
    """`position` counts tokens from 0. `before` is the text of both up to there; `texts` is how each goes on."""

    sample: str
    position: int
    before: str
    texts: tuple[str, str]


def differences(tokenizer: PreTrainedTokenizerBase, one: str, other: str) -> Iterator[Difference]:
    """The first difference in each sample that the templates `one` and `other` render as different tokens."""
    for sample in SAMPLES:
        texts = (_text(tokenizer, template, sample) for template in (one, other))
        mine, yours = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        if mine != yours:
            yield _difference(tokenizer, sample.name, mine, yours)


def _text(tokenizer: PreTrainedTokenizerBase, template: str, sample: Sample) -> str:
    """What the template renders; if it refuses the conversation, why."""
    from jinja2 import TemplateError

    settings = {"add_generation_prompt": True, **sample.settings}
    try:
        return str(
            tokenizer.apply_chat_template(
                list(sample.messages), list(sample.tools) or None, chat_template=template, tokenize=False, **settings
            )
        )
    except TemplateError as error:
        return f"{type(error).__name__}: {error}"


def _difference(tokenizer: PreTrainedTokenizerBase, sample: str, mine: list[int], yours: list[int]) -> Difference:
    same = [left == right for left, right in zip(mine, yours, strict=False)]
    first = same.index(False) if False in same else len(same)
    before, *texts = (
        str(tokenizer.decode(part))
        for part in (mine[max(0, first - BEFORE) : first], mine[first : first + AFTER], yours[first : first + AFTER])
    )
    return Difference(sample, first, before, (texts[0], texts[1]))
