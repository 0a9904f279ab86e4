"""Which letters count as foreign, and when an answer has switched."""

import pytest

from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.scoring.code_switch import has_foreign_letters, is_switched


@pytest.mark.parametrize(
    "text",
    [
        "", "42 + 7 = 49!", "The café of Erdős", "∀ε > 0 ∃δ: |x - π| < δ", "𝑥² ∈ ℝⁿ, 𝜋 ≤ ℵ₀, ℏ = 5 µm", "naïve → ½ ª",
        "emoji 🙂 and a \ufffd",
    ],
)  # fmt: skip
def test_english_text_and_formulas_have_none(text: str) -> None:
    assert not has_foreign_letters(text)


@pytest.mark.parametrize("text", ["答案是 7", "ответ", "the answer is 七", "かな", "ｶﾅ", "한", "שלום", "سلام", "ไทย"])
def test_letters_of_other_scripts_are_foreign(text: str) -> None:
    assert has_foreign_letters(text)


@pytest.mark.parametrize(
    ("prompt", "answer", "switched"),
    [
        ("What is 3 + 4?", "<think>三加四</think>7", True),
        ("What is 3 + 4?", "seven", False),
        ("3 加 4 是多少?", "七", False),
    ],
)
def test_an_answer_switches_where_the_prompt_is_english(prompt: str, answer: str, switched: bool) -> None:
    task = Task("a", "math", ({"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}), {})
    assert is_switched(task, answer) is switched
