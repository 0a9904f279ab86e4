"""The published chat templates, and which tokens of a conversation are learned under each."""

import json
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.messages import parse_messages, parse_tools
from cascade_rl.rl_stages.data.chat_templates import NAMED, template_text
from cascade_rl.rl_stages.data.template_samples import ARGUMENTS, SAMPLES, Sample
from cascade_rl.rl_stages.data.template_samples import TOOLS as SAMPLE_TOOLS
from cascade_rl.rl_stages.data.tokenizer import encode_demonstration, encode_prompt, encode_reply, train_tokenizer
from cascade_rl.rl_stages.rewards.verifiers.structured.tool_text import split_calls

# The lines that the published templates render. nemotron3 holds what NVIDIA's renders, cascade2 the same after the
# system turn of the release. In cascade1, flags and system turn are the model cards', the rest is what Qwen3's renders.
GOLDEN = Path(__file__).with_name("golden_templates")

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
CALL = (
    "<tool_call>\n<function=pay>\n<parameter=to>\nAnn\n</parameter>\n<parameter=n>\n1\n</parameter>\n"
    "</function>\n</tool_call>\n"
)
RESULT = "<|im_start|>user\n<tool_response>\ndone\n</tool_response>\n<|im_end|>\n"


@pytest.fixture
def tokenizer() -> Any:
    return train_tokenizer([[{"role": "user", "content": "Pay Ann. I pay. done Thanks. Welcome."}]])


def with_template(tokenizer: Any, name: str) -> Any:
    tokenizer.chat_template = NAMED[name]
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


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
@pytest.mark.parametrize("name", NAMED)
def test_a_conversation_is_rendered_as_published(tokenizer: Any, name: str, sample: Sample) -> None:
    settings = {"add_generation_prompt": True, **sample.settings}
    rendered = with_template(tokenizer, name).apply_chat_template(
        list(sample.messages), list(sample.tools) or None, tokenize=False, **settings
    )
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    assert rendered.split("\n") == golden[sample.name]


def test_a_template_has_a_name_or_a_file(tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages }}")
    assert template_text(str(own)) == "{{ messages }}"
    for wrong in ("nemotron4", str(tmp_path / "none.jinja"), str(tmp_path)):
        with pytest.raises(UserError, match="one of nemotron3, cascade2, cascade1 or the path of a"):
            template_text(wrong)


@pytest.mark.parametrize("name", NAMED)
def test_the_verifiers_read_the_calls_that_a_template_shows(tokenizer: Any, name: str) -> None:
    """And these calls, rendered again, are the same text."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in SAMPLE_TOOLS}
    other = {"to": ["None"], "urgent": False, "copies": None, "about": {}, "note": None}
    given = [*ARGUMENTS.items(), ("send_mail", other), ("send_mail", {"note": "5", "urgent": True})]

    def shown(calls: list[tuple[str, Any]]) -> str:
        turn = {"role": "assistant", "content": "", "tool_calls": [called(*call) for call in calls]}
        text = with_template(tokenizer, name).apply_chat_template([CHAT[0], turn], SAMPLE_TOOLS, tokenize=False)
        return str(text).rpartition("<|im_start|>assistant\n")[2]

    _, calls = split_calls(shown(given), schemas)
    assert [(call.name, call.arguments) for call in calls] == given
    assert shown([(call.name, call.arguments) for call in calls]) == shown(given)


def called(name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_adjacent_results_share_a_turn(tokenizer: Any) -> None:
    reply = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    for name, end, opened in (("nemotron3", "\n", "<think>\n"), ("cascade1", "", "")):
        assert tokenizer.decode(encode_reply(with_template(tokenizer, name), reply)) == (
            "\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
            f"{end}<|im_end|>\n<|im_start|>assistant\n{opened}"
        )


@pytest.mark.parametrize("name", ["nemotron3", "cascade2", "cascade1"])
def test_a_loop_that_appends_replies_sees_what_the_template_shows(tokenizer: Any, name: str) -> None:
    """Up to the next user turn, where the template drops what the loop keeps."""
    with_template(tokenizer, name)
    [(ids, mask)] = encode_demonstration(tokenizer, CHAT[:4], TOOLS)
    first = encode_prompt(tokenizer, CHAT[:1], TOOLS, True)
    called = ids[len(first) : mask.index(False, len(first))]
    loop = first + called + encode_reply(tokenizer, CHAT[2:3], True)
    assert loop == encode_prompt(tokenizer, CHAT[:3], TOOLS, True) == ids[: len(loop)]


def test_every_turn_is_learned_once_in_the_form_in_which_it_is_sampled(tokenizer: Any) -> None:
    """The first two turns share a context; the third does not see their reasoning, so it has a sequence of its own."""
    tools = prompt(with_template(tokenizer, "nemotron3"), CHAT[:1], TOOLS).removesuffix("<think>\n")
    first, second = learned(tokenizer)
    assert first == (
        f"{tools}<think>\n⟦I pay.\n</think>\n{CALL}<|im_end|>⟧\n{RESULT}"
        "<|im_start|>assistant\n<think>\n⟦It is done.\n</think>\nPaid.<|im_end|>⟧"
    )
    assert second == (
        f"{tools}<think></think>\n{CALL}<|im_end|>\n{RESULT}<|im_start|>assistant\n<think></think>\nPaid.<|im_end|>\n"
        "<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n<think></think>⟦Welcome.<|im_end|>⟧"
    )
    assert learned(tokenizer, turns="last") == [second]


def test_turns_without_reasoning_share_one_sequence(tokenizer: Any) -> None:
    with_template(tokenizer, "nemotron3")
    plain = parse_messages(
        [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b")) * 3], "row"
    )
    [(ids, mask)] = encode_demonstration(tokenizer, plain)
    assert tokenizer.decode([token for token, learn in zip(ids, mask, strict=True) if learn]) == "b<|im_end|>" * 3


@pytest.mark.parametrize("name", ["nemotron3", "cascade2", "cascade1"])
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
