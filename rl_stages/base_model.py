"""The model that the first stage starts from: a Hugging Face checkpoint, or a new random model with its tokenizer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from cascade_rl.engine.backend.ranks import barrier, is_rank0
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import build_model, export_hf
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.data.chat_templates import template_text
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.tasks.demonstration import load_demonstrations
from cascade_rl.rl_stages.tasks.load_tasks import load_tasks
from cascade_rl.rl_stages.tasks.pairs import load_pairs
from cascade_rl.rl_stages.tasks.row_form import RowForm

TEXTS = 4096  # per source, enough to see every word of the generated domains


def ready(run: RunFolder, parallel: ParallelConfig) -> Path:
    """Folder of the base model. A missing random one is made in float32, sharded as `parallel` says. Collective."""
    base = run.cascade.base
    if base.hf is not None:
        return Path(base.hf)
    folder = run.root / "base"
    if not folder.exists():
        _make(run.cascade, parallel, folder)
    return folder


def chat_template(base: BaseModel) -> str | None:
    """The text of the template that the launcher names; None for the template of the model folder."""
    return None if base.chat_template is None else template_text(base.chat_template)


def _make(cascade: Cascade, parallel: ParallelConfig, folder: Path) -> None:
    given = cascade.base.tokenizer
    tokenizer = AutoTokenizer.from_pretrained(given) if given else _train_tokenizer(cascade)
    hf_config = _with_special_ids(dict(cascade.base.hf_config or {}), tokenizer)
    # in any precision the same numbers, since the stages' hashes do not say how a base was made
    model = build_model(hf_config, replace(parallel, precision="float32"), seed=cascade.seed)
    source = folder.with_name("tokenizer")
    if is_rank0():
        tokenizer.save_pretrained(source)
    barrier()
    export_hf(model, hf_config, folder, tokenizer_from=source, chat_template=chat_template(cascade.base))


def _train_tokenizer(cascade: Cascade) -> PreTrainedTokenizerBase:
    """A tokenizer trained on each source once, however many stages use it."""
    texts: list[Any] = []
    readers = {(source, stage.kind): stage for stage in cascade.stages for source in stage.data}
    for (source, _), stage in readers.items():
        how: dict[str, Any] = {"seed": cascade.seed, "form": RowForm.of(stage)}
        if isinstance(stage, SftStage):
            how["heldout_fraction"] = cascade.evaluation.heldout_fraction
            texts += [shown.messages for shown in load_demonstrations(source, count=TEXTS, **how)]
            continue
        how |= {"heldout_fraction": cascade.withheld(stage), "split": "train"}
        if isinstance(stage, RewardModelStage):
            texts += [pair.messages for pair in load_pairs(source, **how)[:TEXTS]]
        else:
            texts += [task.messages for task in load_tasks(source, **how)[:TEXTS]]
    assert cascade.base.hf_config is not None
    return train_tokenizer(texts, vocab_size=cascade.base.hf_config["vocab_size"])


def _with_special_ids(hf_config: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    return {**hf_config, "bos_token_id": pad, "pad_token_id": pad, "eos_token_id": eos}
