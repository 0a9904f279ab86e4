"""Checks all inputs of a launch before anything is written or started. Torch-free."""

from collections.abc import Callable, Iterable, Iterator, Set
from functools import partial
from itertools import chain
from pathlib import Path

from cascade_rl.distillation.teacher_model import check_teacher
from cascade_rl.distillation.teacher_vocabulary import check_vocabulary
from cascade_rl.engine import models
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.lora.peft_config import is_adapter, read_peft, whole_model
from cascade_rl.engine.lora.rules import check_lora, factor_map, with_partners
from cascade_rl.engine.models import HfConfig, check_layout, family_of, read_config
from cascade_rl.engine.rollout.engine_layout import check_build, check_cut
from cascade_rl.launchers.local.prompt_lengths import overlong_prompts
from cascade_rl.rl_stages.benchmarks.of_cascade import check_benchmarks
from cascade_rl.rl_stages.config.base import is_folder
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.source import Source
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage
from cascade_rl.rl_stages.data.chat_templates import template_text
from cascade_rl.rl_stages.data.rows import RowError, data_files
from cascade_rl.rl_stages.run.known_data import KnownData
from cascade_rl.rl_stages.run.trackers.known import require_trackers
from cascade_rl.rl_stages.scoring.reward_makers import reward_makers
from cascade_rl.rl_stages.tasks import demonstration, pairs
from cascade_rl.rl_stages.tasks import load_tasks as task
from cascade_rl.rl_stages.tasks.domains import domain_named
from cascade_rl.rl_stages.tasks.row_form import RowForm
from cascade_rl.rl_stages.tasks.stage_domains import local_readers, prove_rewards

PUBLISHED = Path(models.__file__).parent / "published"


def check_inputs(cascade: Cascade, known: KnownData | None = None, *, elsewhere: bool = False) -> list[str]:
    """Raises UserError for a model, layout, domain or row of data that would make the run fail later. Returns
    a line for each thing that the run will leave out.

    If files are missing, the error has one line for each. `elsewhere` says that the run has another environment, so
    the vLLM and the trackers of this one are not checked, nor are rewards imported. Every row of every source that is
    not in `known` is streamed once. The time is proportional to the size of the data; the memory is constant.
    """
    if missing := "\n".join(_missing(cascade)):
        raise UserError(missing)
    check_settings(cascade)
    if not elsewhere:
        require_trackers(cascade)
        prove_rewards(cascade.stages)
    known = known or KnownData()
    for stage in cascade.stages:
        if not elsewhere:
            check_build(cascade.layout(stage).rollout)
        form = RowForm.of(stage)
        if isinstance(stage, SftStage):
            for source in (*stage.data, *stage.heldout):
                count = _rows_of(partial(demonstration.count_demonstrations, form=form))
                known.recall(f"demonstrations{form.shown}", source, count)
        if isinstance(stage, RewardModelStage):
            for source in (*stage.data, *stage.heldout):
                known.recall(f"pairs{form.shown}", source, _rows_of(partial(_count_pairs, form)))
        if isinstance(stage, OnPolicyStage):
            found = _domains_of(known, form, stage.data, "train", cascade.withheld(stage))
            _check_trained_domains(stage, found)
            _check_heldout_domains(cascade, stage, _domains_of(known, form, stage.heldout, "heldout", 1.0))
        if isinstance(stage, MopdStage):
            _check_teachers(stage, cascade)
    check_benchmarks(cascade)
    return overlong_prompts(cascade, known)


def check_settings(cascade: Cascade) -> None:
    """Raises UserError for faults of the settings themselves, whatever the machine and the data.

    These are an unsupported model, a layout that does not divide it, targets of `lora` that it lacks, a chat template
    that does not exist, an unknown domain, and a domain that the stage's reward model does not score. Only config.json
    is read: that of `base.published` if the checkpoint is not here.
    """
    hf_config = model_config(cascade)
    if cascade.base.chat_template is not None:
        template_text(cascade.base.chat_template)
    for domain in cascade.evaluation.domains:
        domain_named(domain)
    for stage in cascade.stages:
        reward_makers(stage, Path, cascade.layout(stage), Path())
        if stage.lora:
            check_lora(family_of(hf_config).name_map(hf_config), stage.lora, cascade.layout(stage).parallel)
    for layout in dict.fromkeys(map(cascade.layout, cascade.stages)):
        check_layout(hf_config, layout.parallel, layout.nproc)
        check_cut(hf_config, layout.rollout)


def model_config(cascade: Cascade) -> HfConfig:
    """The config.json of the base, or of `base.published` if the checkpoint is not here. UserError without both."""
    base = cascade.base
    if base.hf is None:
        return dict(base.hf_config or {})
    at_hand = base.published is None or (Path(base.hf) / "config.json").is_file()
    return read_config(base.hf if at_hand else PUBLISHED / str(base.published))


def _missing(cascade: Cascade) -> Iterator[str]:
    """A message for each missing input."""
    base = cascade.base
    if base.hf is not None and not (Path(base.hf) / "config.json").is_file():
        yield (
            f"base.hf: expected a Hugging Face folder with a config.json, found none in '{base.hf}'. "
            "Put the checkpoint there first; the launcher file says where it comes from."
        )
    for path, stage in local_readers(cascade.stages).items():
        yield from _missing_data(stage, path)
    for stage in cascade.stages:
        if isinstance(stage, GrpoStage):
            yield from _missing_judge(stage)


def _missing_judge(stage: GrpoStage) -> Iterator[str]:
    for key, model in stage.models_read.items():
        if is_folder(model) and not (Path(model) / "config.json").is_file():
            yield (
                f"{stage.name}.{key}: expected a Hugging Face folder with a config.json, found none in '{model}'. "
                "Put the model there, or name an earlier stage."
            )


def _missing_data(stage: Stage, path: str) -> Iterator[str]:
    try:
        data_files(path)
    except UserError as error:
        key = "heldout" if path in stage.heldout else "data"
        yield f"{stage.name}.{key}: {error}"


def _rows_of[T](find: Callable[[str], T]) -> Callable[[str], T]:
    """As `find`; the error of a malformed row also says which command writes the others."""

    def found(source: str) -> T:
        try:
            return find(source)
        except RowError as error:
            path = Source.parse(source).path
            raise UserError(
                f"{error}: `cascade data check {path} --keep FILE.jsonl` names the rows that cannot be used, and "
                "writes the others"
            ) from None

    return found


def _count_pairs(form: RowForm, source: str) -> int:
    return sum(1 for _ in pairs.read_pairs(source, form))


def _domains_of(known: KnownData, form: RowForm, sources: Iterable[str], split: task.Split, heldout: float) -> set[str]:
    """The domains with tasks in the split."""

    def find(source: str) -> list[str]:
        return sorted(domain for part, domain in task.census(source, heldout, form) if part == split)

    what = f"tasks, {heldout} held out{form.shown}"
    return set(chain.from_iterable(known.recall(what, source, _rows_of(find)) for source in sources))


def _check_heldout_domains(cascade: Cascade, stage: OnPolicyStage, found: Set[str]) -> None:
    for domain in sorted(set(stage.trained_domains) & set(cascade.evaluation.domains) - found if stage.heldout else ()):
        raise UserError(f"{stage.name}.heldout: expected tasks of {domain}, found only {', '.join(sorted(found))}.")


def _check_trained_domains(stage: OnPolicyStage, found: Set[str]) -> None:
    for domain in sorted(set(stage.trained_domains) - found):
        raise UserError(f"{stage.name}.data: expected tasks of {domain}, found only {', '.join(sorted(found))}.")
    if isinstance(stage, MopdStage) and (orphans := found - set(stage.teachers)):
        raise UserError(
            f"{stage.name}.teachers: expected a teacher for each domain of its data, found none for "
            f"{', '.join(sorted(orphans))}. Name an earlier stage or a Hugging Face folder for it, or drop its data."
        )


def _check_teachers(stage: MopdStage, cascade: Cascade) -> None:
    student, layout = model_config(cascade), cascade.layout(stage)
    for domain, teacher in stage.teachers.items():
        if not is_folder(teacher):
            continue
        where = f"{stage.name}.teachers.{domain}"
        whole = whole_model(Path(teacher))
        if not (whole / "config.json").is_file():
            raise UserError(f"{where}: expected a Hugging Face folder with a config.json, found none in '{teacher}'.")
        sizes = layout.parallel, layout.nproc, layout.rollout.max_model_len
        check_teacher(where, hf := read_config(whole), student, *sizes)
        if is_adapter(Path(teacher)):
            name_map = family_of(hf).name_map(hf)
            factor_map(name_map, with_partners(name_map, read_peft(Path(teacher))))
        if own := cascade.base.hf or cascade.base.tokenizer:
            check_vocabulary(where, whole, Path(own))
