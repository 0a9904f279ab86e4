"""`cascade data check --launcher`: the launcher's chat template against that of a model folder, token by token."""

from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.quiet_libraries import quiet_libraries
from cascade_rl.launchers.plan.command import load_cascade
from cascade_rl.rl_stages.data.chat_templates import template_text


def differing(launcher: Path, model: Path | None) -> int:
    """Prints the first differing token of each sample conversation. Returns how many samples differ.

    model   the folder; None: the launcher's base. Raises UserError if launcher or folder names no template.
    """
    base = load_cascade(launcher).base
    folder = model or (Path(base.hf) if base.hf else None)
    if base.chat_template is None:
        raise UserError(f"{launcher}: expected a base.chat_template; found none. Set it to compare it with a model's")
    if folder is None or not (folder / "config.json").is_file():
        raise UserError(f"--model: expected a Hugging Face folder with a config.json; found none in '{folder}'")
    return _told(base.chat_template, folder)


def _told(name: str, folder: Path) -> int:
    quiet_libraries()
    from transformers import AutoTokenizer

    from cascade_rl.rl_stages.data.template_check import differences
    from cascade_rl.rl_stages.data.template_samples import SAMPLES

    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not isinstance(tokenizer.chat_template, str):
        raise UserError(f"{folder}: expected a tokenizer with one chat template; found {tokenizer.chat_template!r}")
    found = list(differences(tokenizer, template_text(name), tokenizer.chat_template))
    print(f"chat template {name} and that of {folder}: {len(found)} of {len(SAMPLES)} conversations differ")
    for item in found:
        print(f"  {item.sample}: token {item.position} differs, after {item.before!r}")
        for owner, text in zip((name, str(folder)), item.texts, strict=True):
            print(f"    {owner}: {text!r}")
    return len(found)
