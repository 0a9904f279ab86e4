"""The probability of each of a few words where a judge had to choose between them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate

from cascade_rl.rl_stages.core.verdict import END_OF_REASONING

ALTERNATIVES = 20  # log-probs that a server returns per token; vLLM's default maximum
LEAST_MASS = 0.5  # least total probability of the words; below it, the judge chose none of them
CONTEXT_CHARACTERS = 64

FENCE = r"[\s`*]*"  # all that may follow a judgement
_CHOSEN = re.compile(rf"\s*\w*\s*(?:</[^<>]*>)?{FENCE}")


def ends_with_choice(answer: str, behind: str) -> bool:
    """Whether the last `behind` is followed by one word or none, the end of its tag, and no more than a fence.

    As in `parse_judgement`, a choice with words behind it is one that the judge quotes.
    """
    _, opened, said = answer.rpartition(behind)
    return bool(opened and _CHOSEN.fullmatch(said))


def word_probabilities(
    top_logprobs: Sequence[Mapping[str, float]], words: Sequence[str], behind: str
) -> tuple[float, ...] | None:
    """The probability of each of `words` at the deciding token, the first one after the last `behind`, a tag.

    None if the words together never have LEAST_MASS after a `behind` of the answer, which follows the reasoning.

    words         in upper case; the answer's case does not count
    top_logprobs  of a greedy answer: for each token the log-probs of the most probable ones by text, in that order
    """
    found, before = None, ""
    for tokens in top_logprobs[_reasoning([next(iter(tokens), "") for tokens in top_logprobs]) :]:
        masses = tuple(_mass(before, tokens, word, behind) for word in words)
        if sum(masses) >= LEAST_MASS:
            found = masses
        before = (before + next(iter(tokens), ""))[-CONTEXT_CHARACTERS:]
    return found


def _reasoning(texts: Sequence[str]) -> int:
    """How many tokens the reasoning has, with its end."""
    end = "".join(texts).rfind(END_OF_REASONING) + len(END_OF_REASONING)
    lengths = accumulate(map(len, texts), initial=0)
    return sum(length < end for length in lengths) if end >= len(END_OF_REASONING) else 0


def _mass(before: str, tokens: Mapping[str, float], word: str, behind: str) -> float:
    """Probability of the tokens that begin `word` right after an open tag."""
    if _said(before, behind):
        return 0.0
    begun = {token: _said(before + token, behind) for token in tokens}
    fitting = [token for token, text in begun.items() if text and (word.startswith(text) or text.startswith(word))]
    return sum(math.exp(tokens[token]) for token in fitting)


def _said(before: str, behind: str) -> str:
    _, opened, said = before.rpartition(behind)
    return said.partition("<")[0].strip().upper() if opened else ""
