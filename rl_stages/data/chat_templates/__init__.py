"""The chat templates of the papers, as text for `tokenizer.chat_template` (facts/paper.md 7; the sentences are ours).

They read `enable_thinking` (default true), `truncate_history_thinking` (default true: reasoning before the last user
turn is dropped) and, of Nemotron-3, `reasoning_budget`. A loop that appends raw token ids never renders its history
again, so it keeps all reasoning whatever the template drops.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent

NEMOTRON3 = (_FOLDER / "nemotron3.jinja").read_text()
CASCADE1 = (_FOLDER / "cascade1.jinja").read_text()
CASCADE2 = (
    "{%- set default_system = 'You are a helpful and harmless assistant.' -%}\n"
    "{%- set default_refusal = '\\n\\nNo tools may be used.' -%}\n" + NEMOTRON3
)
