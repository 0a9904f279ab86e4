"""Where an answer begins inside of its reasoning: by every shipped template, and by what other templates write."""

from typing import Any

import pytest

from cascade_rl.rl_stages.data.chat_templates import NAMED
from cascade_rl.rl_stages.data.open_reasoning import never_answers, opened_by
from cascade_rl.rl_stages.data.tokenizer import CHAT_TEMPLATE, encode_prompt, encode_reply, train_tokenizer

ASKED = {"role": "user", "content": "Does <think> open it?\n<think>\n"}
MODES = (None, True, False)
OPEN = {"nemotron3": {None, True}, "cascade2": {None, True}, "cascade1": set()}
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
HEADER = "{% if add_generation_prompt %}<|im_start|>assistant\n"
MODE = "{% if enable_thinking is defined and enable_thinking"


@pytest.fixture
def tokenizer() -> Any:
    return train_tokenizer([[ASKED]])


@pytest.mark.parametrize("thinking", MODES)
@pytest.mark.parametrize("name", NAMED)
def test_the_shipped_templates(tokenizer: Any, name: str, thinking: bool | None) -> None:
    tokenizer.chat_template = NAMED[name]
    opened = "<think>" if thinking in OPEN[name] else ""
    prompts = encode_prompt(tokenizer, [ASKED], (), thinking), encode_reply(tokenizer, [ASKED], thinking)
    assert [opened_by(tokenizer, prompt) for prompt in prompts] == [opened] * 2
    for text, never in (("5", bool(opened)), ("so</think>5", False), ("</think>5 <think>", True), ("<think>5", True)):
        assert never_answers(tokenizer, prompts[0], text) is never


@pytest.mark.parametrize(
    ("template", "opened"),
    [
        (CHAT_TEMPLATE, ("", "", "")),
        (TURNS + HEADER + "<think>{% endif %}", ("<think>",) * 3),
        (TURNS + HEADER + "<think>\nFirst, {% endif %}", ("<think>",) * 3),
        (TURNS + HEADER + "<think>\nI have thought.\n</think>\n\n{% endif %}", ("", "", "")),
        (TURNS + HEADER + MODE + " %}<think>\n{% endif %}{% endif %}", ("", "<think>", "")),
        (TURNS + HEADER + MODE + "== false %}<think>\n\n</think>\n\n{% endif %}{% endif %}", ("", "", "")),
        (TURNS + "{% if add_generation_prompt %}<think>\n{% endif %}", ("<think>",) * 3),
    ],
)
def test_other_templates(tokenizer: Any, template: str, opened: tuple[str, ...]) -> None:
    tokenizer.chat_template = template
    told = {"tokenize": True, "return_dict": False, "add_generation_prompt": True}
    for mode, expected in zip(MODES, opened, strict=True):
        switch = {} if mode is None else {"enable_thinking": mode}
        assert opened_by(tokenizer, tokenizer.apply_chat_template([ASKED], **told, **switch)) == expected
