"""The chat templates of the published models, by the name that a launcher's `base.chat_template` gives.

nemotron3  Nemotron-3-Nano: nano3.jinja of NVIDIA-NeMo/Nemotron. It renders the same tokens; the Jinja is ours
cascade2   the same, with the release's system turn where a conversation has none (arXiv 2603.19220, Figure 1)
cascade1   arXiv 2512.13607 and the model cards. What these leave open is Qwen3's, as docs/papers.md lists

All read `enable_thinking` (default true). Those of Nemotron-3 also read `truncate_history_thinking` (default true:
reasoning before the last user turn is dropped). A loop that appends raw token ids never renders its history again, so
it keeps all reasoning; a server of its model shows the same with `truncate_history_thinking` false.
"""

from pathlib import Path

from cascade_rl.engine.core.errors import UserError

_FOLDER = Path(__file__).parent
_SYSTEM = r"You are a helpful and harmless assistant.\n\nYou are not allowed to use any tools."
_NEMOTRON3 = (_FOLDER / "nemotron3.jinja").read_text()
NAMED = {
    "nemotron3": _NEMOTRON3,
    "cascade2": f"{{%- set default_system = '{_SYSTEM}' -%}}\n{_NEMOTRON3}",
    "cascade1": (_FOLDER / "cascade1.jinja").read_text(),
}


def template_text(name: str) -> str:
    """The template of that name or, if `name` ends with .jinja, in that file. UserError if there is none."""
    if name in NAMED:
        return NAMED[name]
    if not name.endswith(".jinja") or not Path(name).is_file():
        raise UserError(
            f"base.chat_template: expected one of {', '.join(NAMED)} or the path of a .jinja file; found '{name}'. "
            "Choose one of them, or leave the key out for the template of the model folder"
        )
    return Path(name).read_text()
