"""The cascade as data: a tree of frozen dataclasses that a launcher file fills in.

Guarantees: an unknown key is a UserError that names the nearest known one, here as in an override or a YAML
file (`rl_stages/config/text.py`). Values that cannot work together are refused when the tree is built, before
anything is written. Defaults are the numbers of Nemotron-Cascade 2 (arXiv 2603.19220). A setting that no paper states
has no default, or its docstring says where the default comes from. Torch-free.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import ParallelConfig, RolloutConfig
from cascade_rl.engine.core.user_modules import imported
from cascade_rl.rl_stages.config.base import BASE, BEST, BaseModel, Evaluation, is_folder
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.node import Node, at_least, check_name, nearest, require
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage
from cascade_rl.rl_stages.config.room import Room, total_tokens
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage

STAGE_KINDS: dict[str, type[Stage]] = {
    stage.kind: stage for stage in (SftStage, GrpoStage, MopdStage, RewardModelStage)
}
OWN_KIND = "python:"


def stage_class(kind: str) -> type[Stage] | None:
    """The class of a kind; None for an unknown one. Raises UserError for a class of the user's that is not there."""
    if not kind.startswith(OWN_KIND):
        return STAGE_KINDS.get(kind)
    found = imported(kind.removeprefix(OWN_KIND), f"kind {kind}")
    if not (isinstance(found, type) and issubclass(found, Stage) and found.kind == kind and found.loop):
        raise UserError(f"kind {kind}: expected a class under Stage with that `kind` and a `loop`; found {found!r}")
    return found


TrackerName = Literal["wandb", "mlflow", "otel"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a stage runs: training ranks, how they shard the model, and the rollout engines.

    nproc     training ranks
    parallel  how they shard the model
    rollout   the engines that sample
    """

    nproc: int
    parallel: ParallelConfig
    rollout: RolloutConfig


@dataclass(frozen=True, kw_only=True)
class Cascade(Node):
    """The whole run: stages in order, each starting from the weights of its parent.

    name      of the run, and of its folder: lower case letters, digits and _
    base      the model that the first stage starts from
    stages    in the order in which they run; a setting addresses each by its name
    evaluation  the held-out scores before and after each stage
    seed      of a random model's weights, of the order of prompts and of samples
    nproc     training ranks; the data-parallel size is nproc divided by the sizes in `parallel`
    parallel  how those ranks shard the model
    rollout   the engines that sample
    layouts   kind of GPU -> stage -> its layout there, instead of the cascade's nproc, parallel and rollout
    hardware  key of `layouts` that applies; a cluster's profile sets it
    report_to  experiment trackers that are told of each step, besides TensorBoard: wandb, mlflow, otel
    """

    name: str
    base: BaseModel
    stages: tuple[Stage, ...]
    evaluation: Evaluation = field(default_factory=Evaluation)
    seed: int = 1
    nproc: int = 1
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    layouts: Mapping[str, Mapping[str, Layout]] = field(default_factory=dict)
    hardware: str = "h100"
    report_to: tuple[TrackerName, ...] = ()

    def __post_init__(self) -> None:
        check_name("name", self.name)
        at_least(0, "cascade", self, "seed")
        at_least(1, "cascade", self, "nproc")
        self._check_stage_names()
        self._check_parents()
        self._check_layouts()
        self._check_lengths()
        self._check_staleness()
        self._check_domains()
        self._check_models_read()

    @property
    def scored_domains(self) -> tuple[str, ...]:
        """All domains with held-out scores: evaluation.domains for policies, and the domain of each reward model."""
        own = [stage.domain for stage in self.stages if not stage.trains_policy]
        return tuple(dict.fromkeys((*self.evaluation.domains, *own)))

    def stage(self, name: str) -> Stage:
        """The stage of that name. Raises UserError that names the nearest one."""
        names = [stage.name for stage in self.stages]
        if name not in names:
            raise UserError(f"{self.name} has no stage '{name}'. Did you mean '{nearest(name, names)}'?")
        return self.stages[names.index(name)]

    def earlier(self, stage: Stage) -> tuple[Stage, ...]:
        """The stages listed before `stage`."""
        return self.stages[: self.stages.index(stage)]

    def parent(self, stage: Stage) -> Stage | None:
        """The stage whose weights it starts from; None for the base."""
        before = [other for other in self.earlier(stage) if other.trains_policy]
        if stage.parent is None:
            return before[-1] if before else None
        return None if stage.parent == BASE else self.stage(stage.parent)

    def layout(self, stage: Stage) -> Layout:
        """The layout of a stage. Each value is the stage's own, else that of its hardware, else the cascade's."""
        shared = self.layouts.get(self.hardware, {}).get(stage.name, self)
        return Layout(
            nproc=stage.nproc or shared.nproc,
            parallel=stage.parallel or shared.parallel,
            rollout=stage.rollout or shared.rollout,
        )

    def room(self, stage: OnPolicyStage) -> Room:
        """How many tokens the prompts and answers of a stage may have."""
        total = total_tokens(stage.sampling, self.layout(stage).rollout)
        return Room(stage.name, total, stage.min_answer_tokens, stage.overlong_prompts)

    def has_sampler(self, stage: Stage) -> bool:
        """Whether engines run beside the stage: to sample what it learns from, or its held-out answers."""
        return stage.trains_policy and bool(self.evaluation.domains)

    def withheld(self, stage: Stage) -> float:
        """The share of the prompts in the stage's data that no stage trains on."""
        return 0.0 if stage.heldout else self.evaluation.heldout_fraction

    @property
    def evaluation_room(self) -> Room:
        """Those of the evaluation: what every stage's engines have room for."""
        total = min(self.layout(stage).rollout.max_model_len for stage in self.stages)
        return Room("evaluation", total, self.evaluation.min_answer_tokens, self.evaluation.overlong_prompts)

    def _check_stage_names(self) -> None:
        names = [stage.name for stage in self.stages]
        require(len(names) > 0, "stages", "at least one stage", self.stages)
        require(len(set(names)) == len(names), "stages", "different names", names)
        taken = ({item.name for item in fields(self)} | {BASE, BEST}) & set(names)
        require(not taken, "stages", "names that are not keys of the cascade itself", sorted(taken))

    def _check_parents(self) -> None:
        for stage in self.stages:
            known = [BASE, *(other.name for other in self.earlier(stage) if other.trains_policy)]
            expected = f"an earlier stage or {BASE} ({', '.join(known)})"
            require(stage.parent is None or stage.parent in known, f"{stage.name}.parent", expected, stage.parent)

    def _check_layouts(self) -> None:
        kinds = ", ".join(self.layouts)
        require(not self.layouts or self.hardware in self.layouts, "hardware", f"one of {kinds}", self.hardware)
        for kind, layouts in self.layouts.items():
            for name in layouts:
                require(name in [stage.name for stage in self.stages], f"layouts.{kind}", "names of stages", name)
        for stage in self.stages:
            layout = self.layout(stage)
            _check_layout(f"{stage.name}.nproc" if stage.nproc or stage.parallel else "nproc", layout)

    def _check_lengths(self) -> None:
        for stage in self.stages:
            limit = self.layout(stage).rollout.max_model_len
            expected = f"less than rollout.max_model_len = {limit}, which prompt and answer share"
            if isinstance(stage, OnPolicyStage):
                room = self.room(stage)
                _check_room(room, f"{stage.name}.sampling", stage.max_new_tokens)
                known = f"at least {room.total}, the tokens of its longest sample"
                require(stage.token_budget >= room.total, f"{stage.name}.token_budget", known, stage.token_budget)
            judge = stage.reward_model if isinstance(stage, GrpoStage) else None
            if judge and judge.kind == "engine":
                require(judge.max_tokens < limit, f"{stage.name}.reward_model.max_tokens", expected, judge.max_tokens)

        if self.evaluation.domains:
            _check_room(self.evaluation_room, "evaluation", self.evaluation.max_new_tokens)

    def _check_staleness(self) -> None:
        expected = "truncated or masked with rollout.max_staleness above 0, whose samples are of older weights"
        for stage in self.stages:
            if isinstance(stage, GrpoStage) and self.layout(stage).rollout.max_staleness:
                require(stage.importance != "off", f"{stage.name}.importance", expected, stage.importance)

    def _check_domains(self) -> None:
        measured = self.evaluation.domains
        expected = f"one of evaluation.domains ({', '.join(measured)})"
        samples = [stage.name for stage in self.stages if isinstance(stage, OnPolicyStage)]
        require(bool(measured) or not samples, "evaluation.domains", f"at least one domain, with {samples}", measured)
        for stage in self.stages:
            key = "teachers" if isinstance(stage, MopdStage) else "domain"
            for domain in stage.trained_domains if isinstance(stage, OnPolicyStage) else ():
                known = domain in measured or domain in self.evaluation.unmeasured
                require(known, f"{stage.name}.{key}", expected, domain)
            for domain in stage.gate:
                require(domain in measured, f"{stage.name}.gate", expected, domain)

    def _check_models_read(self) -> None:
        for stage in self.stages:
            policies = isinstance(stage, MopdStage)
            names = [other.name for other in self.earlier(stage) if other.trains_policy or not policies]
            earlier, best = ", ".join(names) or "there is none", f", {BEST}" if isinstance(stage, MopdStage) else ""
            expected = f'the name of an earlier stage ({earlier}){best} or a Hugging Face folder, written with a "/"'
            known = [*names, BEST] if best and names else names
            for key, model in stage.models_read.items():
                require(is_folder(model) or model in known, f"{stage.name}.{key}", expected, model)


def _check_room(room: Room, owner: str, max_new_tokens: int) -> None:
    expected = f"at most {room.total}, which prompt and answer share"
    require(max_new_tokens <= room.total, f"{owner}.max_new_tokens", expected, max_new_tokens)
    least = room.min_answer_tokens
    expected = f"at most max_new_tokens = {max_new_tokens}, and less than {room.total}, which it shares with the prompt"
    require(least <= max_new_tokens and least < room.total, f"{room.owner}.{room.key}", expected, least)


def _check_layout(owner: str, layout: Layout) -> None:
    sizes = ("engines", "tensor", "max_model_len", "max_num_seqs", "kv_cache_mib")
    at_least(1, owner.replace("nproc", "rollout"), layout.rollout, *sizes)
    cut = layout.parallel
    dense = cut.tensor * cut.pipeline * cut.context
    require(
        layout.nproc % dense == 0,
        owner,
        f"a multiple of {dense} (parallel.tensor {cut.tensor} x pipeline {cut.pipeline} x context {cut.context})",
        layout.nproc,
    )
    experts = cut.expert * cut.expert_tensor * cut.pipeline
    require(
        layout.nproc % experts == 0,
        owner,
        f"a multiple of {experts} (parallel.expert {cut.expert} x expert_tensor {cut.expert_tensor} "
        f"x pipeline {cut.pipeline})",
        layout.nproc,
    )
