"""Where two chat templates part: the first token, what is before it and how each goes on."""

from cascade_rl.rl_stages.data.chat_templates import NAMED
from cascade_rl.rl_stages.data.template_check import Difference, differences
from cascade_rl.rl_stages.data.template_samples import SAMPLES
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer([[{"role": "user", "content": "Is Ann in? And Bob? Be brief."}]])


def test_a_template_agrees_with_itself_and_with_one_that_renders_the_same() -> None:
    for template in NAMED.values():
        assert list(differences(TOKENIZER, template, "{#- the same -#}\n" + template)) == []


def test_the_first_differing_token_is_shown_with_its_context() -> None:
    short = "{% for m in messages %}{{ m.role + m.content + '<|im_end|>' }}{% endfor %}"
    found = next(differences(TOKENIZER, short, short + "{% if add_generation_prompt %}assistant{% endif %}"))
    ids = TOKENIZER.encode("userIs Ann in?<|im_end|>")
    before = TOKENIZER.decode(ids[-12:])
    assert found == Difference("question", len(ids), before, ("", TOKENIZER.decode(TOKENIZER.encode("assistant")[:8])))


def test_every_fault_that_was_found_in_a_template_shows_in_a_sample() -> None:
    """Issue 13: booleans, the order of `required`, newlines before calls and texts, and the words around the tools."""
    template = NAMED["nemotron3"]
    for right, wrong in (
        ("else value | string", "else (value if value is string else value | tojson)"),
        ("('type', 'properties', 'required')", "('type', 'properties')"),
        ("{{- '\\n' -}}\n            {%- for tool_call", "{%- for tool_call"),
        ("{{- ('<think></think>' ~ after) | trim -}}", "{{- '<think></think>' ~ after | trim -}}"),
        ("You have access to the following functions", "These functions can be called"),
    ):
        assert template.count(right) == 1
        assert list(differences(TOKENIZER, template, template.replace(right, wrong)))


def test_a_template_that_refuses_a_conversation_differs_there_alone() -> None:
    template = NAMED["cascade2"]
    refusing = "{%- if tools -%}{{ raise_exception('no tools') }}{%- endif -%}" + template
    found = list(differences(TOKENIZER, template, refusing))
    assert [item.sample for item in found] == [sample.name for sample in SAMPLES if sample.tools]
    assert all(item.position == 0 and item.texts[1].startswith("Te") for item in found)
