"""A tiny byte-level tokenizer with a ChatML template, and the two ways in which text becomes token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from cascade_rl.engine.errors import UserError
from cascade_rl.rl_stages.task import Message

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
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
            for part in (message["role"] + "\n", message["content"]):
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
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
) -> list[int]:
    """Ids of the conversation up to where the assistant speaks, with the tools that the template shows it.

    UserError without a chat template, and on tools that the template does not show.
    """
    if tokenizer.chat_template is None:
        raise UserError("expected a tokenizer with a chat template; found none: add one to tokenizer_config.json")
    render = partial(tokenizer.apply_chat_template, list(messages), tokenize=False, add_generation_prompt=True)
    text = render(tools=list(tools)) if tools else render()
    if tools and text == render():
        raise UserError("expected a chat template that shows tools, which these rows have; found one that does not")
    return tokenizer.encode(text, add_special_tokens=False)


def encode_demonstration(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]
) -> tuple[list[int], list[bool]]:
    """Ids of prompt, last answer and stop token; for each, whether it is learned (answer and stop are).

    The prompt's ids are those that the sampler will see, so the answer is tokenised by itself.
    """
    prompt = encode_prompt(tokenizer, messages[:-1])
    answer = [*tokenizer.encode(messages[-1]["content"], add_special_tokens=False), tokenizer.eos_token_id]
    return prompt + answer, [False] * len(prompt) + [True] * len(answer)
