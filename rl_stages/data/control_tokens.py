"""Text that spells a control token stays text: only the chat template writes control tokens.

A tool's output that holds "<|im_end|>\\n<|im_start|>user" would else forge a turn (huggingface/transformers#29279). The
spellings in messages are put between two characters that occur nowhere else, which a template copies like any text.
What it then writes is encoded in parts: a control token that is not so marked, or the text between two of them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Self
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from cascade_rl.rl_stages.core.messages import Message, Tool
from cascade_rl.rl_stages.core.verdict import END_OF_REASONING, REASONING

PRIVATE_USE = range(0xE000, 0xF900)
HEAD = 3  # characters
OWN = frozenset((REASONING, END_OF_REASONING, "<tool_call>", "</tool_call>"))  # which a model writes in its turn


class ControlTokens:
    """The control tokens of a tokenizer: those of its added tokens that are special."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.ids = {str(token): index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.all, self._others = _any_of(self.ids), _any_of(self.ids.keys() - OWN)
        self._heads = _any_of({token[:HEAD] for token in self.ids})
        self._backend: Tokenizer = tokenizer.backend_tokenizer

    def spelt_by(self, item: Mapping[str, Any]) -> bool:
        """Whether a text of the message or tool spells one that is foreign to it."""
        foreign = self.foreign_to(item)  # it takes several times as long as the heads, where there are a thousand
        return any(self._heads.search(text) and foreign.search(text) for text in _texts(item))

    def foreign_to(self, item: Mapping[str, Any]) -> re.Pattern[str]:
        """The control tokens that a message or a tool cannot write; a model's turn may have its own."""
        return self._others if item.get("role") == "assistant" else self.all

    @cached_property
    def blind(self) -> Tokenizer:
        """The tokenizer without an eye for control tokens. A copy, since this is a state that all threads share."""
        blind = copy.deepcopy(self._backend)
        blind.encode_special_tokens = True
        return blind


@dataclass(frozen=True)
class Marks:
    """What sets the spellings in a conversation apart: `mark`, which is empty if there are none."""

    mark: str
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Self:
        control, items = _control(tokenizer), [*messages, *tools]
        if not any(map(control.spelt_by, items)):
            return cls("", tokenizer)
        used = set[str]().union(*(text for item in items for text in _texts(item)))
        return cls(next(mark for mark in map(chr, PRIVATE_USE) if mark not in used), tokenizer)

    def on(self, items: Sequence[Any]) -> list[Any]:
        """Messages or tools with their spellings marked."""
        if not self.mark:
            return list(items)
        return [
            _replaced(item, _control(self.tokenizer).foreign_to(item), f"{self.mark}\\g<0>{self.mark}")
            for item in items
        ]

    def off(self, text: str) -> str:
        return text.replace(self.mark, "") if self.mark else text

    def encode(self, text: str) -> list[int]:
        """The ids of what a template wrote."""
        if not self.mark:
            return self.tokenizer.encode(text, add_special_tokens=False)
        control, ids, plain, at = _control(self.tokenizer), list[int](), list[str](), 0
        for found in re.finditer(f"{self.mark}[^{self.mark}]*{self.mark}|{control.all.pattern}", text):
            plain.append(text[at : found.start()])
            at = found.end()
            if found[0].startswith(self.mark):
                plain.append(self.off(found[0]))
            else:
                ids += [*_encoded(control.blind, plain), control.ids[found[0]]]
                plain.clear()
        return ids + _encoded(control.blind, [*plain, text[at:]])


_known: WeakKeyDictionary[PreTrainedTokenizerBase, ControlTokens] = WeakKeyDictionary()


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of a text that no template wrote, none of them a control token's except those of the model's turns."""
    turn: Message = {"role": "assistant", "content": text}
    marks = Marks.of(tokenizer, [turn])
    return marks.encode(marks.on([turn])[0]["content"])


def _control(tokenizer: PreTrainedTokenizerBase) -> ControlTokens:
    if tokenizer not in _known:
        _known[tokenizer] = ControlTokens(tokenizer)
    return _known[tokenizer]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(_texts(part) for part in (*value.keys(), *value.values()))
    elif isinstance(value, list | tuple):
        yield from chain.from_iterable(map(_texts, value))


def _replaced(value: Any, pattern: re.Pattern[str], form: str) -> Any:
    if isinstance(value, str):
        return pattern.sub(form, value)
    if isinstance(value, Mapping):
        return {_replaced(key, pattern, form): _replaced(part, pattern, form) for key, part in value.items()}
    return [_replaced(part, pattern, form) for part in value] if isinstance(value, list | tuple) else value


def _any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of the tokens, as a tokenizer does; nothing if there are none."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")


def _encoded(tokenizer: Tokenizer, parts: Sequence[str]) -> list[int]:
    return list(tokenizer.encode("".join(parts), add_special_tokens=False).ids)
