"""A tiny byte-level tokenizer with a ChatML template, and the encoding of prompts, replies and demonstrations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Rollout
from cascade_rl.rl_stages.core.messages import Message, Tool
from cascade_rl.rl_stages.data.control_tokens import Marks

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

    Each of these words, with its leading space, is one token. All other text becomes bytes, so every text round-trips.
    There are no merges: the intermediate tokens that BPE needs to reach a word would fill so small a vocabulary.
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
    """The byte-level characters of all bytes that can occur in UTF-8 text; 13 byte values never do."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    leads = "".join(chr(point) for point in (*range(0x800), *range(0x800, 0xD800, 0x100), 0xE000, 0xFF00))
    planes = "".join(chr(point) for point in range(0x10000, 0x110000, 0x10000))
    return sorted({character for word, _ in splitter.pre_tokenize_str(leads + planes) for character in word})


def load_tokenizer(folder: Path, chat_template: str | None) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder. `chat_template`, a template's text, replaces the folder's own unless it is None.

    Raises UserError if there is no template, or if it does not open the assistant's turn.
    """
    from transformers import AutoTokenizer  # it imports torch

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if not turn_opening(tokenizer):
        end = _render(tokenizer, _OPENING[:1], (), None, speak=True)[-40:]
        raise UserError(
            "expected a chat template that opens the assistant's turn where add_generation_prompt is true; found one "
            f"that ends with {end!r} either way. Add that block, or name another one in base.chat_template"
        )
    return tokenizer


def turn_opening(tokenizer: PreTrainedTokenizerBase) -> str:
    """What the chat template writes between a user's turn and the assistant's answer, in its default mode."""
    closed, opened = (_render(tokenizer, _OPENING[:1], (), None, speak=speak) for speak in (False, True))
    return opened.removeprefix(closed)


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    thinking: bool | None = None,
) -> list[int]:
    """Ids of the conversation with its tools, up to the start of the assistant's answer. `thinking` sets the template's
    `enable_thinking`; None leaves the mode to the template.

    Raises UserError without a chat template, for tools that the template does not show, and for a mode if the template
    has only one.
    """
    if thinking is not None:
        _require_switch(tokenizer, messages)
    marks = Marks.of(tokenizer, messages, tools)
    return marks.encode(_render(tokenizer, messages, tools, thinking, marks, speak=True))


def encode_reply(
    tokenizer: PreTrainedTokenizerBase, reply: Sequence[Message], thinking: bool | None = None
) -> list[int]:
    """Ids between the stop token of an assistant turn and the next one: `reply`, which is the outputs of its calls or a
    user turn, and the start of the assistant's answer. For loops that append ids and never re-render sampled text.

    Raises UserError as `encode_prompt` does.
    """
    if thinking is not None:
        _require_switch(tokenizer, _OPENING[:1])
    marks = Marks.of(tokenizer, reply)
    text = _render(tokenizer, [*_OPENING, *reply], (), thinking, marks, speak=True)
    _, found, rest = text.partition(_OPENING[1]["content"] + tokenizer.eos_token)
    if not found:
        raise UserError(
            f"expected a chat template that ends a turn with {tokenizer.eos_token}; found one that does not"
        )
    return marks.encode(rest)


def answer_text(tokenizer: PreTrainedTokenizerBase, rollout: Rollout) -> str:
    """The sampled text without its stop token."""
    ended = rollout.finish == "stop"
    return str(tokenizer.decode(rollout.token_ids[:-1] if ended else rollout.token_ids))


def encode_demonstration(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    turns: Literal["every", "last"] = "every",
) -> list[tuple[list[int], list[bool]]]:
    """The sequences that teach the assistant turns: ids, and for each id whether it is learned. Learned are the answers
    with reasoning, calls and stop token, in the mode in which they were written, and nothing else.

    The ids before a learned turn are those of `encode_prompt`, which the sampler sees. A turn therefore extends the
    sequence of the turns before it only if the template shows these as they were learned. Where the template drops
    their reasoning, a new sequence begins. No turn is learned twice. Raises UserError if the template shows an answer
    or its reasoning in another form than the sampled one.
    """
    marks = Marks.of(tokenizer, messages, tools)
    sequences: list[tuple[list[int], list[bool]]] = []
    learned: str | None = None  # text of the newest sequence, if the next turn may extend it
    for end, message in enumerate(messages, start=1):
        if message["role"] != "assistant" or (turns == "last" and end < len(messages)):
            continue
        prompt, answer = _turn(tokenizer, messages[:end], tools, marks)
        if learned is None or not prompt.startswith(learned):
            learned = ""
            sequences.append(([], []))
        shown = prompt[len(learned) :]
        shown_ids, answer_ids, joined = map(marks.encode, (shown, answer, shown + answer))
        ids, mask = sequences[-1]
        ids += shown_ids + answer_ids
        mask += [False] * len(shown_ids) + [True] * len(answer_ids)
        learned = prompt + answer if joined == shown_ids + answer_ids else None
    return sequences


def _turn(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Tool], marks: Marks
) -> tuple[str, str]:
    """The text up to the start of the last message's answer, and the answer with its stop token, both marked."""
    (last,) = marks.on(messages[-1:])
    reasoning = last.get("reasoning_content", "")
    parts = [reasoning, *(call["function"]["name"] for call in last.get("tool_calls", ()))]
    prompt = _render(tokenizer, messages[:-1], tools, bool(reasoning), marks, speak=True)
    whole = _render(tokenizer, messages, tools, bool(reasoning), marks, speak=False)
    said, stop, _ = whole.removeprefix(prompt).rpartition(tokenizer.eos_token)
    if not whole.startswith(prompt) or not stop or not all(part in said for part in parts):
        raise UserError(
            "expected a chat template that shows an answer after its prompt, with its reasoning, its calls and its "
            f"stop token {tokenizer.eos_token}; found one whose text ends with {whole[-200:]!r}"
        )
    return prompt, said + stop


def _render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    thinking: bool | None,
    marks: Marks | None = None,
    *,
    speak: bool,
) -> str:
    """The template's text, with or without the start of an assistant answer, and with the marks of its messages."""
    if marks and marks.mark:
        plain = _render(tokenizer, messages, tools, thinking, speak=speak)
        text = _render(tokenizer, marks.on(messages), marks.on(tools), thinking, speak=speak)
        if marks.off(text) == plain:
            return text
        raise UserError(
            "expected a chat template that shows the texts of messages as they are; found one that changes texts with "
            f"{marks.mark!a}, so that a control token that a message spells cannot be told from its own. Write them as "
            "they are, or remove the messages that spell control tokens"
        )
    if tokenizer.chat_template is None:
        raise UserError("expected a tokenizer with a chat template; found none: name one in base.chat_template")
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
