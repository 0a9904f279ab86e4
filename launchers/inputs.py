"""What the user gives to a launch, checked as a whole before anything is written or started. Torch-free."""

from collections import Counter
from functools import cache
from pathlib import Path

from cascade_rl.engine.errors import UserError
from cascade_rl.engine.models import HfConfig, check_layout, read_config
from cascade_rl.engine.rollout.layout import check_rollout
from cascade_rl.rl_stages import demonstration, task
from cascade_rl.rl_stages.config import Cascade, MopdStage, OnPolicyStage, RewardModelStage, SftStage, Stage, is_folder
from cascade_rl.rl_stages.domains import domain_named
from cascade_rl.rl_stages.reward_models import pairs
from cascade_rl.rl_stages.rows import HUB, data_files
from cascade_rl.rl_stages.source import Source
from cascade_rl.rl_stages.task import Split

# keys of a config.json that may differ between two checkpoints of one architecture
BESIDE_THE_MODEL = {
    "_name_or_path", "bos_token_id", "dtype", "eos_token_id", "pad_token_id", "torch_dtype", "transformers_version",
    "use_cache",
}  # fmt: skip


def check_inputs(cascade: Cascade) -> None:
    """Raises UserError for a model, a layout, a domain or a row of data that would end the run later.

    Every row of every source is read, once, as a stream: that takes time in proportion to the data, and no memory.
    """
    _check_model(cascade)
    census, count_demonstrations = cache(task.census), cache(demonstration.count_demonstrations)
    for domain in cascade.evaluation.domains:
        domain_named(domain)
    for stage in cascade.stages:
        for source in stage.data:
            _check_source(stage, source)
        if isinstance(stage, SftStage):
            for source in stage.data:
                count_demonstrations(source)
        if isinstance(stage, RewardModelStage):
            for source in stage.data:
                sum(1 for _ in pairs.read_pairs(source))
        if isinstance(stage, OnPolicyStage):
            _check_trained_domains(stage, sum((census(source) for source in stage.data), Counter()))
        if isinstance(stage, MopdStage):
            _check_teachers(stage, _hf_config(cascade))


def _hf_config(cascade: Cascade) -> HfConfig:
    base = cascade.base
    return dict(base.hf_config or {}) if base.hf is None else read_config(base.hf)


def _check_model(cascade: Cascade) -> None:
    base = cascade.base
    if base.hf is not None and not (Path(base.hf) / "config.json").is_file():
        raise UserError(
            f"base.hf: expected a Hugging Face folder with a config.json, found none in '{base.hf}'. "
            "Put the checkpoint there first; the launcher file says where it comes from."
        )
    hf_config = _hf_config(cascade)
    for stage in cascade.stages:
        layout = cascade.layout(stage)
        check_layout(hf_config, layout.parallel, layout.nproc)
        check_rollout(hf_config, layout.rollout)


def _check_source(stage: Stage, source: str) -> None:
    chosen = Source.parse(source)
    try:
        if not chosen.generated and not chosen.path.startswith(HUB):
            data_files(chosen.path)
    except UserError as error:
        raise UserError(f"{stage.name}.data: {error}") from None


def _check_trained_domains(stage: OnPolicyStage, tasks: Counter[tuple[Split, str]]) -> None:
    found = {domain for split, domain in tasks if split == "train"}
    for domain in sorted(set(stage.trained_domains) - found):
        raise UserError(f"{stage.name}.data: expected tasks of {domain}, found only {', '.join(sorted(found))}.")
    if isinstance(stage, MopdStage) and (orphans := found - set(stage.teachers)):
        raise UserError(
            f"{stage.name}.teachers: expected a teacher for each domain of its data, found none for "
            f"{', '.join(sorted(orphans))}. Name an earlier stage or a Hugging Face folder for it, or drop its data."
        )


def _check_teachers(stage: MopdStage, student: HfConfig) -> None:
    for domain, teacher in stage.teachers.items():
        if not is_folder(teacher):
            continue
        where = f"{stage.name}.teachers.{domain}"
        if not (Path(teacher) / "config.json").is_file():
            raise UserError(f"{where}: expected a Hugging Face folder with a config.json, found none in '{teacher}'.")
        config = read_config(teacher)
        shared = (student.keys() & config.keys()) - BESIDE_THE_MODEL
        if differing := sorted(key for key in shared if student[key] != config[key]):
            key = differing[0]
            raise UserError(
                f"{where}: expected a model of the student's architecture, found {key} = {config[key]!r} in "
                f"'{teacher}', {student[key]!r} in the student. Choose a checkpoint of the same model."
            )
