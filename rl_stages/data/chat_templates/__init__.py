"""The chat templates of the papers, as text for `tokenizer.chat_template`.

Sources of the grammar: arXiv 2512.13607 (Cascade 1), arXiv 2603.19220, Figure 1 (Cascade 2), and nano3.jinja of
NVIDIA-NeMo/Nemotron (Nemotron-3). The English sentences in them are ours.

The templates read `enable_thinking` (default true) and `truncate_history_thinking` (default true: reasoning before the
last user turn is dropped). That of Nemotron-3 also reads `reasoning_budget`. A loop that appends raw token ids never
re-renders its history, so it keeps all reasoning, whatever the template drops.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent

NEMOTRON3 = (_FOLDER / "nemotron3.jinja").read_text()
CASCADE1 = (_FOLDER / "cascade1.jinja").read_text()
CASCADE2 = (
    "{%- set default_system = 'You are a helpful and harmless assistant.' -%}\n"
    "{%- set default_refusal = '\\n\\nNo tools may be used.' -%}\n" + NEMOTRON3
)
