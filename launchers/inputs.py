"""What the user gives to a launch, checked as a whole before anything is written or started. Torch-free."""

from pathlib import Path

from cascade_rl.engine.errors import UserError
from cascade_rl.engine.models import check_layout, read_config
from cascade_rl.engine.rollout.layout import check_rollout
from cascade_rl.rl_stages.config import Cascade, SftStage, Stage
from cascade_rl.rl_stages.domains import domain_named
from cascade_rl.rl_stages.task import GENERATE, load_demonstrations, load_tasks


def check_inputs(cascade: Cascade) -> None:
    """Raises UserError for a model, a layout, a domain or a row of data that would end the run later."""
    _check_model(cascade)
    for domain in cascade.evaluation.domains:
        domain_named(domain)
    for stage in cascade.stages:
        for source in stage.data:
            _check_source(stage, source)


def _check_model(cascade: Cascade) -> None:
    base = cascade.base
    if base.hf is not None and not (Path(base.hf) / "config.json").is_file():
        raise UserError(
            f"base.hf: expected a Hugging Face folder with a config.json, found none in '{base.hf}'. "
            "Put the checkpoint there first; the launcher file says where it comes from."
        )
    hf_config = dict(base.hf_config or {}) if base.hf is None else read_config(base.hf)
    check_layout(hf_config, cascade.parallel, cascade.nproc)
    check_rollout(hf_config, cascade.rollout)


def _check_source(stage: Stage, source: str) -> None:
    if not source.startswith(GENERATE) and not Path(source).is_file():
        raise UserError(
            f"{stage.name}.data: expected a .jsonl file or generate:<domain>, found no file '{source}'."
        )
    if isinstance(stage, SftStage):
        load_demonstrations(source, count=1, seed=0)
    else:
        load_tasks(source, split="train", seed=0)
        load_tasks(source, split="heldout", seed=0)
