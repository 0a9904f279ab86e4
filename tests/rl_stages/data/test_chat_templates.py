"""The papers' chat templates, and which tokens of a conversation are learned under each."""

from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.messages import parse_messages, parse_tools
from cascade_rl.rl_stages.data import chat_templates
from cascade_rl.rl_stages.data.tokenizer import encode_demonstration, encode_prompt, encode_reply, train_tokenizer

TOOLS = parse_tools(
    [
        {
            "type": "function",
            "name": "pay",
            "description": "Pays.",
            "parameters": {
                "type": "object",
                "properties": {"to": {"type": "string", "description": "who"}, "n": {"type": "integer", "minimum": 1}},
                "required": ["to"],
            },
        }
    ],
    "tools",
)
CHAT = parse_messages(
    [
        {"role": "user", "content": "Pay Ann."},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I pay."}]},
        {"type": "function_call", "call_id": "a", "name": "pay", "arguments": '{"to": "Ann", "n": 1}'},
        {"type": "function_call_output", "call_id": "a", "output": "done"},
        {"role": "assistant", "content": "<think>It is done.</think>Paid."},
        {"role": "user", "content": "Thanks."},
        {"role": "assistant", "content": "Welcome."},
    ],
    "row",
)
SHOWN_TOOLS = """# Tools

These functions can be called:

<tools>
<function>
<name>pay</name>
<description>Pays.</description>
<parameters>
<parameter>
<name>to</name>
<type>string</type>
<description>who</description>
</parameter>
<parameter>
<name>n</name>
<type>integer</type>
<minimum>1</minimum>
</parameter>
<required>["to"]</required>
</parameters>
</function>
</tools>"""
CALL = (
    "<tool_call>\n<function=pay>\n<parameter=to>\nAnn\n</parameter>\n<parameter=n>\n1\n</parameter>\n"
    "</function>\n</tool_call>\n"
)
JSON_CALL = '<tool_call>\n{"name": "pay", "arguments": {"to": "Ann", "n": 1}}\n</tool_call>'
RESULT = "<|im_start|>user\n<tool_response>\ndone\n</tool_response>\n<|im_end|>\n"


@pytest.fixture
def tokenizer() -> Any:
    return train_tokenizer([[{"role": "user", "content": "Pay Ann. I pay. done Thanks. Welcome."}]])


def with_template(tokenizer: Any, name: str) -> Any:
    tokenizer.chat_template = getattr(chat_templates, name)
    return tokenizer


def prompt(tokenizer: Any, *arguments: Any, **settings: Any) -> str:
    return tokenizer.decode(encode_prompt(tokenizer, *arguments, **settings))


def learned(tokenizer: Any, **settings: Any) -> list[str]:
    """Each sequence as text, what is learned in ⟦⟧."""
    texts = []
    for ids, mask in encode_demonstration(tokenizer, CHAT, TOOLS, **settings):
        spans, start = "", 0
        for end in range(1, len(ids) + 1):
            if end == len(ids) or mask[end] != mask[start]:
                text = tokenizer.decode(ids[start:end])
                spans, start = spans + (f"⟦{text}⟧" if mask[start] else text), end
        texts.append(spans)
    return texts


@pytest.mark.parametrize(("thinking", "opened"), [(True, "<think>\n"), (False, "<think></think>"), (None, "<think>\n")])
def test_nemotron3_opens_the_turn_in_its_mode(tokenizer: Any, thinking: bool | None, opened: str) -> None:
    text = prompt(with_template(tokenizer, "NEMOTRON3"), CHAT[:1], thinking=thinking)
    assert (
        text == f"<|im_start|>system\n<|im_end|>\n<|im_start|>user\nPay Ann.<|im_end|>\n<|im_start|>assistant\n{opened}"
    )


def test_nemotron3_shows_tools_calls_and_results_and_drops_reasoning_before_the_last_user_turn(tokenizer: Any) -> None:
    with_template(tokenizer, "NEMOTRON3")
    assert prompt(tokenizer, CHAT[:5], TOOLS).partition("\n\nA call is")[0] == f"<|im_start|>system\n{SHOWN_TOOLS}"
    kept = (
        f"<|im_start|>assistant\n<think>\nI pay.\n</think>\n{CALL}<|im_end|>\n{RESULT}<|im_start|>assistant\n<think>\n"
    )
    assert prompt(tokenizer, CHAT[:3], TOOLS).endswith(kept)
    dropped = f"<think></think>{CALL}<|im_end|>\n{RESULT}<|im_start|>assistant\n<think></think>Paid.<|im_end|>\n"
    assert prompt(tokenizer, CHAT[:5], TOOLS).endswith(
        f"<|im_start|>assistant\n{dropped}<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_nemotron3_keeps_reasoning_and_names_a_budget_when_asked(tokenizer: Any) -> None:
    text = with_template(tokenizer, "NEMOTRON3").apply_chat_template(
        list(CHAT[:5]), tokenize=False, truncate_history_thinking=False, reasoning_budget=50
    )
    assert "<think>\nI pay.\n</think>\n<tool_call>" in text
    assert text.endswith("Thanks.\n\n{thinking token budget: 50}<|im_end|>\n")


def test_adjacent_results_share_a_turn(tokenizer: Any) -> None:
    reply = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    for name, opened in (("NEMOTRON3", "<think>\n"), ("CASCADE1", "")):
        assert tokenizer.decode(encode_reply(with_template(tokenizer, name), reply)) == (
            "\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>\n<|im_end|>\n"
            f"<|im_start|>assistant\n{opened}"
        )


@pytest.mark.parametrize("name", ["NEMOTRON3", "CASCADE2", "CASCADE1"])
def test_a_loop_that_appends_replies_sees_what_the_template_shows(tokenizer: Any, name: str) -> None:
    """Up to the next user turn, where the template drops what the loop keeps."""
    with_template(tokenizer, name)
    [(ids, mask)] = encode_demonstration(tokenizer, CHAT[:4], TOOLS)
    first = encode_prompt(tokenizer, CHAT[:1], TOOLS, True)
    called = ids[len(first) : mask.index(False, len(first))]
    loop = first + called + encode_reply(tokenizer, CHAT[2:3], True)
    assert loop == encode_prompt(tokenizer, CHAT[:3], TOOLS, True) == ids[: len(loop)]


def test_cascade2_says_who_it_is_where_nobody_else_does(tokenizer: Any) -> None:
    with_template(tokenizer, "CASCADE2")
    assert prompt(tokenizer, CHAT[:1]).startswith(
        "<|im_start|>system\nYou are a helpful and harmless assistant.\n\nNo tools may be used.<|im_end|>\n"
    )
    assert "No tools" not in prompt(tokenizer, CHAT[:1], TOOLS)
    own = ({"role": "system", "content": "Be brief."}, *CHAT[:1])
    assert prompt(tokenizer, own).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")


def test_cascade1_flags_each_user_turn_and_has_no_empty_think_block(tokenizer: Any) -> None:
    with_template(tokenizer, "CASCADE1")
    text = prompt(tokenizer, CHAT[:5], TOOLS, thinking=False)
    assert text.endswith(
        f"<|im_start|>user\nPay Ann. /no_think<|im_end|>\n<|im_start|>assistant\n{JSON_CALL}<|im_end|>\n{RESULT}"
        "<|im_start|>assistant\nPaid.<|im_end|>\n<|im_start|>user\nThanks. /no_think<|im_end|>\n<|im_start|>assistant\n"
    )
    assert '<tools>\n{"name": "pay"' in text
    assert prompt(tokenizer, CHAT[:1]) == "<|im_start|>user\nPay Ann. /think<|im_end|>\n<|im_start|>assistant\n"


def test_every_turn_is_learned_once_in_the_form_in_which_it_is_sampled(tokenizer: Any) -> None:
    """The first two turns share a context; the third does not see their reasoning, so it has a sequence of its own."""
    tools = prompt(with_template(tokenizer, "NEMOTRON3"), CHAT[:1], TOOLS).removesuffix("<think>\n")
    first, second = learned(tokenizer)
    assert first == (
        f"{tools}<think>\n⟦I pay.\n</think>\n{CALL}<|im_end|>⟧\n{RESULT}"
        "<|im_start|>assistant\n<think>\n⟦It is done.\n</think>\nPaid.<|im_end|>⟧"
    )
    assert second == (
        f"{tools}<think></think>{CALL}<|im_end|>\n{RESULT}<|im_start|>assistant\n<think></think>Paid.<|im_end|>\n"
        "<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n<think></think>⟦Welcome.<|im_end|>⟧"
    )
    assert learned(tokenizer, turns="last") == [second]


def test_turns_without_reasoning_share_one_sequence(tokenizer: Any) -> None:
    with_template(tokenizer, "NEMOTRON3")
    plain = parse_messages(
        [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b")) * 3], "row"
    )
    [(ids, mask)] = encode_demonstration(tokenizer, plain)
    assert tokenizer.decode([token for token, learn in zip(ids, mask, strict=True) if learn]) == "b<|im_end|>" * 3


@pytest.mark.parametrize("name", ["NEMOTRON3", "CASCADE2", "CASCADE1"])
@pytest.mark.parametrize("end", [2, 4, 6])
def test_the_ids_before_a_learned_turn_are_those_that_the_sampler_sees(tokenizer: Any, name: str, end: int) -> None:
    with_template(tokenizer, name)
    ids, mask = encode_demonstration(tokenizer, CHAT[:end], TOOLS)[-1]
    start = max(place for place in range(len(ids)) if mask[place] and not mask[place - 1])
    thinking = "reasoning_content" in CHAT[end - 1]
    assert ids[:start] == encode_prompt(tokenizer, CHAT[: end - 1], TOOLS, thinking)


def test_a_turn_that_tokenises_otherwise_in_its_context_begins_a_new_sequence(tokenizer: Any) -> None:
    """Behind "!", an answer "!" is another word than alone: the sampler of the next turn sees "!!", not "!" twice."""
    tokenizer = train_tokenizer([[{"role": "user", "content": "!! !!"}]])
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content + ('<|im_end|>' if m.role == 'assistant' else '!') }}{% endfor %}"
    )
    plain = [{"role": role, "content": "!" * (role == "assistant")} for role in ("user", "assistant") * 2]
    sequences = encode_demonstration(tokenizer, plain)
    assert [tokenizer.convert_ids_to_tokens(ids) for ids, _ in sequences] == [
        ["!", "!", "<|im_end|>"],
        ["!!", "<|im_end|>", "!", "!", "<|im_end|>"],
    ]
    assert sequences[1][0][:3] == encode_prompt(tokenizer, plain[:3])


def test_a_template_that_hides_reasoning_or_calls_is_refused(tokenizer: Any) -> None:
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant{% endif %}"
    )
    for turn in ({"reasoning_content": "so"}, {"tool_calls": CHAT[1]["tool_calls"]}):
        with pytest.raises(UserError, match="shows an answer after its prompt, with its reasoning, its calls"):
            encode_demonstration(tokenizer, [CHAT[0], {"role": "assistant", "content": "yes", **turn}])
