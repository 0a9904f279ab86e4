"""A tiny byte-level tokenizer with a ChatML template, and the two ways in which text becomes token ids."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Rollout
from cascade_rl.rl_stages.core.messages import Message, Tool

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_OPENING: tuple[Message, ...] = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "!"})
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}"
    "{% for call in message['tool_calls'] %}"
    "{{ '<tool_call>' + (call['function'] | tojson) + '</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(conversations: Iterable[Sequence[Message]], vocab_size: int = 512) -> PreTrainedTokenizerFast:
    """Special tokens, the 243 bytes of UTF-8, then the most frequent words, up to `vocab_size` tokens.

    Such a word, the space before it included, is one token, and other text is bytes: every text round-trips.
    There are no merges: those that a BPE needs on the way to a word would fill so small a vocabulary.
    """
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    counts: Counter[str] = Counter()
    for conversation in conversations:
        for message in conversation:
            calls = (f"<tool_call>{json.dumps(call['function'])}</tool_call>" for call in message.get("tool_calls", ()))
            for part in (message["role"] + "\n", message["content"], *calls):
                counts.update(word for word, _ in splitter.pre_tokenize_str(part))
    words = [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if len(word) > 1]
    vocabulary = [PAD, START, END, *utf8_alphabet(), *words][:vocab_size]

    ids = {token: index for index, token in enumerate(vocabulary)}
    backend = Tokenizer(models.BPE(vocab=ids, merges=[], ignore_merges=True))
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def utf8_alphabet() -> list[str]:
    """The byte-level characters of all bytes that UTF-8 text can hold; 13 values never occur in it."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    leads = "".join(chr(point) for point in (*range(0x800), *range(0x800, 0xD800, 0x100), 0xE000, 0xFF00))
    planes = "".join(chr(point) for point in range(0x10000, 0x110000, 0x10000))
    return sorted({character for word, _ in splitter.pre_tokenize_str(leads + planes) for character in word})


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    thinking: bool | None = None,
) -> list[int]:
    """Ids of the conversation up to where the assistant speaks, with the tools that the template shows it, in the mode
    that its `enable_thinking` asks for; None leaves the mode to the template.

    UserError without a chat template, on tools that the template does not show, and on a mode where it has only one.
    """
    if thinking is not None:
        _require_switch(tokenizer, messages)
    return tokenizer.encode(_render(tokenizer, messages, tools, thinking, speak=True), add_special_tokens=False)


def encode_reply(
    tokenizer: PreTrainedTokenizerBase, reply: Sequence[Message], thinking: bool | None = None
) -> list[int]:
    """Ids between the stop token of an assistant's turn and its next one: `reply`, which is the outputs of its calls or
    a user's turn, and where the assistant speaks. For loops that append ids and never render what was sampled.

    UserError as in `encode_prompt`.
    """
    if thinking is not None:
        _require_switch(tokenizer, _OPENING[:1])
    text = _render(tokenizer, [*_OPENING, *reply], (), thinking, speak=True)
    _, found, rest = text.partition(_OPENING[1]["content"] + tokenizer.eos_token)
    if not found:
        raise UserError(
            f"expected a chat template that ends a turn with {tokenizer.eos_token}; found one that does not"
        )
    return tokenizer.encode(rest, add_special_tokens=False)


def answer_text(tokenizer: PreTrainedTokenizerBase, rollout: Rollout) -> str:
    """What was sampled, as text, without its stop token."""
    ended = rollout.finish == "stop"
    return str(tokenizer.decode(rollout.token_ids[:-1] if ended else rollout.token_ids))


def encode_demonstration(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    turns: Literal["every", "last"] = "every",
) -> list[tuple[list[int], list[bool]]]:
    """The sequences that teach the assistant's turns: ids, and for each whether it is learned. An answer with its
    reasoning, its calls and its stop token is, in the mode that it was written in; all else is not.

    The ids before a learned turn are `encode_prompt`'s, which the sampler sees. So a turn joins the sequence of those
    before it only where the template shows them as they were learned: where it drops their reasoning, a turn begins
    another sequence, and no turn is learned twice. UserError where the template shows an answer or its reasoning in
    another form than that in which it is sampled.
    """
    sequences: list[tuple[list[int], list[bool]]] = []
    learned: str | None = None  # all that the newest sequence says, where a next turn may join it
    for end, message in enumerate(messages, start=1):
        if message["role"] != "assistant" or (turns == "last" and end < len(messages)):
            continue
        prompt, answer = _turn(tokenizer, messages[:end], tools)
        if learned is None or not prompt.startswith(learned):
            learned = ""
            sequences.append(([], []))
        shown = prompt[len(learned) :]
        shown_ids, answer_ids, joined = (
            tokenizer.encode(text, add_special_tokens=False) for text in (shown, answer, shown + answer)
        )
        ids, mask = sequences[-1]
        ids += shown_ids + answer_ids
        mask += [False] * len(shown_ids) + [True] * len(answer_ids)
        learned = prompt + answer if joined == shown_ids + answer_ids else None
    return sequences


def _turn(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[str, str]:
    """The text up to where the last message speaks, and what it says, stop token included."""
    reasoning = messages[-1].get("reasoning_content", "")
    parts = [reasoning, *(call["function"]["name"] for call in messages[-1].get("tool_calls", ()))]
    prompt = _render(tokenizer, messages[:-1], tools, bool(reasoning), speak=True)
    whole = _render(tokenizer, messages, tools, bool(reasoning), speak=False)
    said, stop, _ = whole.removeprefix(prompt).rpartition(tokenizer.eos_token)
    if not whole.startswith(prompt) or not stop or not all(part in said for part in parts):
        raise UserError(
            "expected a chat template that shows an answer behind its prompt, with its reasoning, its calls and its "
            f"stop token {tokenizer.eos_token}; found one that ends so: {whole[-200:]!r}"
        )
    return prompt, said + stop


def _render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    thinking: bool | None,
    *,
    speak: bool,
) -> str:
    """The template's text, with where the assistant speaks or without it."""
    if tokenizer.chat_template is None:
        raise UserError("expected a tokenizer with a chat template; found none: add one to tokenizer_config.json")
    mode = {} if thinking is None else {"enable_thinking": thinking}
    render = partial(tokenizer.apply_chat_template, list(messages), tokenize=False, add_generation_prompt=speak, **mode)
    text = str(render(tools=list(tools)) if tools else render())
    if tools and text == render():
        raise UserError("expected a chat template that shows tools, which these rows have; found one that does not")
    return text


def _require_switch(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> None:
    on, off = (_render(tokenizer, messages, (), thinking, speak=True) for thinking in (True, False))
    if on == off:
        raise UserError("expected a chat template with a switch enable_thinking; found one that does not read it")
