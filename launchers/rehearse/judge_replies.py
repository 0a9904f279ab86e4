"""What the stand-in judge says: a function of the request alone, spread over the whole scale.

Nobody reads the answers. Each has a value that its hash draws, so that the answers of a group get different rewards,
and the same answer the same reward in every run.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

SCORES = 5
LEAST = 0.02  # of P(YES) and of P(NO)
ANSWERS = ("response_1", "response_2")

Message = Mapping[str, Any]
Token = tuple[str, Mapping[str, float]]
"""A token of the reply, and the probabilities of what could have stood in its place."""

_SECTION = re.compile(r"<(response_[12])>(.*?)</\1>", re.DOTALL)
_NONCE = re.compile(r"\b[0-9a-f]{16}\b")  # the markers of rewards/swe/judgement.py, which are new in each request
_TAG = re.compile(r"<[^<>]*>")
_PIECE = re.compile(r"\s*\w+|\s*[^\w\s]")


def reply_to(messages: Sequence[Message]) -> list[Token]:
    """The tokens of the reply: to a comparison, to a question with `<judgement>` or YES and NO, or to anything else."""
    asked = "\n".join(str(message["content"]) for message in messages)
    if pair := _compared(messages):
        return certain(json.dumps(_comparison(asked_before(messages), *pair)))
    if "<judgement>" in asked:
        yes = LEAST + (1 - 2 * LEAST) * drawn(_NONCE.sub("", asked))
        return [*certain("<judgement>"), _choice(yes), *certain("</judgement>")]
    if "YES or NO" in asked:
        # Both orders of two answers have the same words, so the judge says the same of both.
        return [_choice(float(drawn(*sorted(_TAG.sub(" ", asked).split())) < 0.5))]
    return certain("I have read it.")


def asked_before(messages: Sequence[Message]) -> str:
    """The conversation without the two answers."""
    said = "\n".join(str(message["content"]) for message in messages if message["role"] not in ANSWERS)
    return _SECTION.sub("", said)


def drawn(*parts: str) -> float:
    """A number in [0, 1) that the parts decide."""
    digest = hashlib.blake2b("\0".join(parts).encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def certain(text: str) -> list[Token]:
    """The tokens of a text without alternatives."""
    return [(piece, {piece: 1.0}) for piece in pieces(text)]


def pieces(text: str) -> list[str]:
    """About as many as a tokenizer's: words and marks, with the space before them."""
    return _PIECE.findall(text)


def _choice(yes: float) -> Token:
    chances = {word: chance for word, chance in (("YES", yes), ("NO", 1 - yes)) if chance > 0}
    return max(chances, key=chances.__getitem__), chances


def _compared(messages: Sequence[Message]) -> tuple[str, str] | None:
    """The two answers of a comparison, in either form of rewards/reward_models/genrm.py."""
    found = {str(message["role"]): str(message["content"]) for message in messages if message["role"] in ANSWERS}
    found = found or dict(_SECTION.findall(str(messages[-1]["content"])))
    return (found[ANSWERS[0]], found[ANSWERS[1]]) if found.keys() == set(ANSWERS) else None


def _comparison(conversation: str, *answers: str) -> dict[str, int]:
    first, second = (drawn(conversation, answer) for answer in answers)
    ranking = min(6, max(1, math.ceil(3 * (1 - first + second))))
    return {"score_1": 1 + int(SCORES * first), "score_2": 1 + int(SCORES * second), "ranking": ranking}
