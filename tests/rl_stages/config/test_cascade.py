"""The configuration tree: what it refuses, settings of the command line, YAML and back."""

from dataclasses import FrozenInstanceError, replace

import pytest
import yaml

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.passed_fields import MegatronFields, VllmFields
from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig, RolloutConfig
from cascade_rl.kernels.policy_objective import PolicyObjective
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade, Layout
from cascade_rl.rl_stages.config.grpo_stage import CodeSwitch, EpochFilter, Extension, GrpoStage
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.text import from_plain, leaves, override, to_plain, to_yaml

SFT = SftStage(name="sft", domain="math", data=("generate:math",), steps=3, token_budget=512)
RL = GrpoStage(
    name="if_rl",
    domain="instruction_following",
    data=("generate:instruction_following",),
    steps=25,
    token_budget=512,
    sampling=Sampling(max_new_tokens=24),
)
TINY = Cascade(
    name="tiny",
    base=BaseModel(
        hf_config={
            "architectures": ["NemotronHForCausalLM"],
            "hidden_size": 64,
            "norm_eps": 1e-5,
            "rope_scaling": None,
            "limits": {"low": 0.0, "high": None},
        }
    ),
    rollout=RolloutConfig(max_model_len=64),
    evaluation=Evaluation(domains=("instruction_following", "math"), prompts_per_domain=8, max_new_tokens=24),
    stages=(SFT, RL),
)


def test_defaults_are_the_numbers_of_cascade_2() -> None:
    assert (RL.prompts_per_step, RL.rollouts_per_prompt) == (128, 16)
    assert (RL.optimizer.lr, RL.optimizer.betas, RL.kl_coefficient) == (3e-6, (0.9, 0.95), 0.0)
    assert (RL.sampling.temperature, RL.sampling.top_p) == (1.0, 1.0)
    assert SFT.sequences_per_step == 64
    assert SFT.optimizer == OptimizerConfig(
        lr=5e-5, min_lr=5e-6, warmup_steps=200, schedule="cosine", betas=(0.9, 0.98), weight_decay=0.1
    )


def test_the_default_objective_is_the_papers() -> None:
    assert RL.objective == PolicyObjective()
    assert (RL.objective.surrogate, RL.objective.kl_coefficient, RL.updates_per_step) == ("reinforce", 0.0, 1)


def test_an_objective_is_made_of_the_keys_of_its_stage() -> None:
    settings = ["surrogate=gspo", "clip_low=3e-4", "clip_high=4e-4", "dual_clip=3", "updates_per_step=4"]
    settings += ["importance=masked", "importance_low=0.2", "kl_estimator=k2", "kl_coefficient=0.03"]
    stage = override(TINY, [f"if_rl.{setting}" for setting in settings]).stage("if_rl")
    assert isinstance(stage, GrpoStage)
    assert stage.updates_per_step == 4
    assert stage.objective == PolicyObjective(
        surrogate="gspo",
        clip_low=3e-4,
        clip_high=4e-4,
        dual_clip=3.0,
        importance="masked",
        importance_low=0.2,
        kl_estimator="k2",
        kl_coefficient=0.03,
    )
    assert stage.objective.reads == ("advantage", "share", "old_logprob", "rollout_logprob", "reference_logprob")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"surrogate": "ppo"}, "if_rl.surrogate: expected one of reinforce, clip, cispo, gspo, found 'ppo'."),
        ({"clip_low": 2.0}, "if_rl.clip_low: expected a value in [0, 1], found 2.0."),
        ({"kl_coefficient": -0.1}, "if_rl.kl_coefficient: expected 0 or more, found -0.1."),
        ({"normaliser": "token"}, "if_rl.normaliser: expected one of prompt, batch, sequence, found 'token'."),
        (
            {"optimizer": OptimizerConfig(warmup_steps=10)},
            "if_rl.optimizer.warmup_init_lr: expected more than 0 with warmup_steps = 10: at rate 0 the samples of the "
            "first step teach nothing, found 0.0.",
        ),
        ({"dual_clip": 3.0}, "if_rl.dual_clip: expected none unless the surrogate is clip or gspo, found 3.0."),
        (
            {"surrogate": "clip", "updates_per_step": 3},
            "if_rl.updates_per_step: expected a divisor of prompts_per_step = 128, found 3.",
        ),
        (
            {"surrogate": "clip", "updates_per_step": 0},
            "if_rl.updates_per_step: expected a divisor of prompts_per_step = 128, found 0.",
        ),
        (
            {"updates_per_step": 2},
            "if_rl.updates_per_step: expected 1 with surrogate=reinforce, which has no policy ratio, found 2.",
        ),
    ],
)
def test_a_wrong_objective_is_told(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as error:
        replace(RL, **changes)
    assert str(error.value) == message


def test_batch_terms_have_units() -> None:
    assert RL.batch_terms == (
        "25 steps of 128 prompts x 16 rollouts = 2,048 samples a step, 51,200 in all; "
        "at most 24 new tokens a sample; micro-batches of 512 tokens"
    )


def test_answers_get_longer_from_given_steps_on() -> None:
    """Math RL of Cascade 1, 8B: 24K with overlong filtering, 32K from step 190, 40K at temperature 0.8 from 430."""
    stage = replace(
        RL,
        overlong="filter",
        sampling=Sampling(max_new_tokens=24_576),
        extensions=(
            Extension(from_step=190, max_new_tokens=32_768, overlong="penalty"),
            Extension(from_step=430, max_new_tokens=40_960, temperature=0.8),
        ),
    )
    found = [stage.at(step) for step in (0, 189, 190, 429, 430, 499)]
    assert [now.sampling.max_new_tokens for now in found] == [24_576] * 2 + [32_768] * 2 + [40_960] * 2
    assert [now.sampling.temperature for now in found] == [1.0] * 4 + [0.8] * 2
    assert [now.overlong for now in found] == ["filter"] * 2 + ["penalty"] * 4
    assert stage.max_new_tokens == 40_960
    assert "at most 40,960 new tokens a sample" in stage.batch_terms
    with pytest.raises(UserError, match=r"if_rl\.sampling\.max_new_tokens: expected at most 64, .* found 40960"):
        replace(TINY, stages=(stage,))
    with pytest.raises(UserError, match=r"extensions: expected from_step above 0 and rising, found \[190, 190\]"):
        replace(stage, extensions=stage.extensions[:1] * 2)


def test_rules_of_a_stage_are_read_back_from_yaml() -> None:
    stage = replace(
        RL,
        extensions=(Extension(from_step=2, max_new_tokens=32),),
        epoch_filter=EpochFilter(hard_readmission=0.2),
        code_switch=CodeSwitch(reward=-10.0, relative_to="lowest"),
        dynamic_filtering=True,
        thinking_fraction=0.5,
    )
    tree = replace(TINY, stages=(SFT, stage))
    assert from_plain(yaml.safe_load(to_yaml(tree))) == tree
    changed = override(tree, ["if_rl.code_switch.reward=-1", "if_rl.epoch_filter=null"])
    assert changed.stage("if_rl") == replace(
        stage, code_switch=CodeSwitch(reward=-1.0, relative_to="lowest"), epoch_filter=None
    )


def test_the_tree_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        TINY.seed = 2  # type: ignore[misc]


def test_yaml_gives_back_an_equal_tree() -> None:
    assert from_plain(yaml.safe_load(to_yaml(TINY))) == TINY
    assert (
        from_plain(yaml.safe_load(to_yaml(override(TINY, ["if_rl.optimizer.lr=1e-7"])))).stages[1].optimizer.lr == 1e-7
    )


def test_settings_change_what_they_name_and_nothing_else() -> None:
    settings = {
        "seed": ("2", 2),
        "name": ("other", "other"),
        "nproc": ("2", 2),
        "parallel.tensor": ("2", 2),
        "parallel.sequence": ("true", True),
        "rollout.max_num_seqs": ("32", 32),
        "evaluation.domains": ("instruction_following", ["instruction_following"]),
        "if_rl.steps": ("3", 3),
        "if_rl.optimizer.lr": ("1e-3", 1e-3),
        "if_rl.optimizer.betas": ("0.8,0.9", [0.8, 0.9]),
        "if_rl.sampling.temperature": ("1", 1.0),
        "if_rl.importance": ("masked", "masked"),
        "sft.data": ("a.jsonl,generate:math", ["a.jsonl", "generate:math"]),
        "base.hf_config.hidden_size": ("32", 32),
        "base.hf_config.limits.low": ("0.5", 0.5),
    }
    before = leaves(to_plain(TINY))
    after = leaves(to_plain(override(TINY, [f"{key}={text}" for key, (text, _) in settings.items()])))
    assert after == before | {key: value for key, (_, value) in settings.items()}


def test_settings_that_need_each_other_come_in_any_order() -> None:
    both = ["parallel.tensor=2", "nproc=2"]
    assert override(TINY, both) == override(TINY, both[::-1])
    assert override(TINY, ["base.hf_config=null", "base.hf=model"]).base == BaseModel(hf="model")


def test_a_setting_in_a_node_that_is_null_makes_it() -> None:
    own = ["if_rl.nproc=4", "if_rl.parallel.tensor=2", "parallel.expert=2", "nproc=2", "if_rl.code_switch.reward=-1"]
    for settings in (own, own[::-1]):
        changed = override(TINY, settings)
        assert changed.stage("if_rl").parallel == ParallelConfig(tensor=2, expert=2)
        assert (changed.parallel, changed.stage("sft").parallel) == (ParallelConfig(expert=2), None)
        assert changed.stage("if_rl").code_switch == CodeSwitch(reward=-1.0)  # type: ignore[attr-defined]


def test_a_setting_in_a_stages_null_layout_keeps_the_rest_of_its_hardwares() -> None:
    laid_out = Layout(nproc=8, parallel=ParallelConfig(tensor=2, expert=4), rollout=RolloutConfig(max_model_len=128))
    layouts = {"h100": {"if_rl": laid_out}, "b200": {}}
    changed = override(replace(TINY, layouts=layouts), ["if_rl.parallel.tensor=4", "if_rl.rollout.max_num_seqs=9"])
    found = changed.layout(changed.stage("if_rl"))
    assert (found.nproc, found.parallel) == (8, ParallelConfig(tensor=4, expert=4))
    assert found.rollout == replace(laid_out.rollout, max_num_seqs=9)
    elsewhere = override(replace(TINY, layouts=layouts), ["if_rl.rollout.max_num_seqs=9", "hardware=b200"])
    assert elsewhere.stage("if_rl").rollout == replace(TINY.rollout, max_num_seqs=9)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("if_rl.stepz=3", "Unknown key 'if_rl.stepz'. Did you mean 'if_rl.steps'?"),
        ("if_rl.lr=3", "Unknown key 'if_rl.lr'. Did you mean 'if_rl.optimizer.lr'?"),
        ("if_r1.steps=3", "Unknown key 'if_r1.steps'. Did you mean 'if_rl.steps'?"),
        ("sed=2", "Unknown key 'sed'. Did you mean 'seed'?"),
        ("rollout.max_num_seq=2", "Did you mean 'rollout.max_num_seqs'?"),
        ("if_rl.steps.more=1", "Unknown key 'if_rl.steps.more'."),
        ("if_rl.parallel.tensr=2", "Unknown key 'if_rl.parallel.tensr'."),
        ("if_rl.reward_model.url=http://judge", "if_rl.reward_model: key 'kind' is missing."),
        ("stages=2", "Unknown key 'stages'."),
        ("if_rl.heldout=a.jsonl[:9]", "if_rl.heldout: expected sources without count and weight, found ('a.jsonl[:9]'"),
        ("sft.heldout=generate:math@1", "sft.heldout: expected rows: generated demonstrations have no end, found"),
        ("sft.validate_every=0", "sft.validate_every: expected at least 1, found 0."),
        ("evaluation.domains=", "evaluation.domains: expected at least one domain, with ["),
        ("evaluation.max_new_tokens=0", "evaluation.max_new_tokens: expected at least 1, found 0."),
        ("if_rl.kind=sft", "Unknown key 'if_rl.kind'."),
        ("seed", "Expected a setting key=value, found 'seed'."),
        ("if_rl.steps=abc", "if_rl.steps: expected a whole number, found 'abc'."),
        ("if_rl.steps=1.5", "if_rl.steps: expected a whole number, found '1.5'."),
        ("if_rl.steps=0", "if_rl.steps: expected at least 1, found 0."),
        ("if_rl.optimizer.lr=nan", "if_rl.optimizer.lr: expected a number, found nan."),
        ("if_rl.optimizer.betas=0.9", "if_rl.optimizer.betas: expected a list of 2, found [0.9]."),
        ("if_rl.importance=clip", "if_rl.importance: expected one of truncated, masked, off, found 'clip'."),
        ("if_rl.rollouts_per_prompt=1", "if_rl.rollouts_per_prompt: expected at least 2, found 1."),
        ("if_rl.sampling.temperature=0", "if_rl.sampling.temperature: expected more than 0, found 0.0."),
        ("if_rl.sampling.top_p=0", "if_rl.sampling.top_p: expected more than 0 and at most 1, found 0.0."),
        ("if_rl.sampling.top_p=0.9", "if_rl.sampling.top_k: expected 2 to 64, since all tokens that are kept"),
        ("if_rl.sampling.top_k=65", "if_rl.sampling.top_k: expected 2 to 64, since all tokens that are kept"),
        ("if_rl.sampling.top_k=1", "for the trainer, or 0 with top_p = 1, found 1."),
        ("if_rl.max_draws=0", "if_rl.max_draws: expected at least 1, found 0."),
        ("if_rl.thinking_fraction=1.5", "if_rl.thinking_fraction: expected a value in [0, 1], found 1.5."),
        ("if_rl.sequence_error_bound=0.5", "if_rl.sequence_error_bound: expected 1 or more, found 0.5."),
        ("if_rl.max_infrastructure_failures=2", "if_rl.max_infrastructure_failures: expected a value in [0, 1], found"),
        ("evaluation.heldout_fraction=0", "evaluation.heldout_fraction: expected more than 0 and less than 1, found"),
        ("evaluation.heldout_fraction=1", "evaluation.heldout_fraction: expected more than 0 and less than 1, found"),
        ("evaluation.max_infrastructure_failures=-1", "evaluation.max_infrastructure_failures: expected a value in"),
        ("if_rl.sampling.max_new_tokens=65", "expected at most 64"),
        (
            "if_rl.domain=code",
            "if_rl.domain: expected one of evaluation.domains (instruction_following, math)",
        ),
        ("parallel.sequence=yes", "parallel.sequence: expected true or false, found 'yes'."),
        ("parallel.tensor=2", "nproc: expected a multiple of 2 (parallel.tensor 2 x pipeline 1 x context 1), found 1."),
        ("parallel.expert=2", "nproc: expected a multiple of 2 (parallel.expert 2"),
        ("base.hf=model", "base: expected exactly one of hf and hf_config, found 'hf and hf_config'."),
        ("rollout=3", "rollout holds other keys"),
        (
            "parallel.recompute=ful",
            "parallel.recompute[0]: expected one of full, core_attn, layernorm, mlp, moe, moe_act,",
        ),
        ("parallel.recompute=full,moe", "parallel.recompute: expected full, which is every layer, or parts of layers;"),
        ("parallel.megatron.sequence_parallel=true", "found one that it sets itself: use parallel.tensor, sequence,"),
        ("if_rl.parallel.megatron.params_dtype=fp8", "trainer, checkpoint and engine hold the same bits of weights"),
        ("parallel.megatron.overlap_grad_reduse=true", "Did you mean 'overlap_grad_reduce'?"),
        ("parallel.megatron.bucket_size=big", "parallel.megatron.bucket_size: expected a whole number, found 'big'."),
        ("parallel.megatron.bucket_size=9", "expected overlap_grad_reduce with it, without which it has no effect"),
        (
            "parallel.megatron.recompute_num_layers=2",
            "expected it with parallel.recompute=full, found parallel.recompute",
        ),
        (
            "rollout.vllm.seed=3",
            "rollout.vllm.seed: expected a field that Cascade leaves to vLLM, found one that it sets",
        ),
        ("rollout.vllm.max_model_len=3", "use rollout.max_model_len: prompts, answers and token budgets are checked"),
        (
            "rollout.vllm.enable_prefix_caching=true",
            "whether prefixes are cached follows from rollout.deterministic and replay_routes",
        ),
        ("rollout.vllm.enforce_eager=1", "rollout.vllm.enforce_eager: expected true or false, found '1'."),
        ("rollout.max_staleness=-1", "rollout.max_staleness: expected 0 or more, found -1."),
        (
            "rollout.cache_at_refit=kept",
            "rollout.cache_at_refit: expected recomputed with rollout.max_staleness below",
        ),
        (
            "rollout.batch_order=ending",
            "rollout.batch_order: expected starting with rollout.max_staleness below 3",
        ),
        (
            "rollout.weight_buffer=true",
            "rollout.weight_buffer: expected False with rollout.max_staleness below 2, where",
        ),
        (
            "rollout.max_staleness=1",
            "rollout.max_staleness: expected 0 with rollout.placement=colocated, whose engines",
        ),
        ("if_rl.stale_gap_bound=0", "if_rl.stale_gap_bound: expected more than 0, found 0.0."),
        ("name=../x", "name: expected lower case letters, digits and _, found '../x'."),
    ],
)
def test_a_wrong_setting_is_told(setting: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        override(TINY, [setting])
    assert message in str(error.value)


APART = ["rollout.placement=disaggregated", "rollout.max_staleness=1"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("if_rl.importance=off", "if_rl.importance: expected truncated or masked with rollout.max_staleness above 0"),
        (
            "rollout.sleep=true",
            "rollout.sleep: expected False with rollout.placement=disaggregated, whose engines have",
        ),
    ],
)
def test_what_samples_of_older_weights_do_not_go_with_is_told(setting: str, message: str) -> None:
    assert override(TINY, APART).rollout.max_staleness == 1
    with pytest.raises(UserError) as error:
        override(TINY, [*APART, setting])
    assert message in str(error.value)


def test_where_time_decides_no_bits_are_promised() -> None:
    with pytest.raises(
        UserError, match=r"rollout.deterministic: expected False with rollout.max_staleness of 2 or more"
    ):
        override(TINY, [APART[0], "rollout.max_staleness=2", "rollout.deterministic=true"])


def test_a_launcher_file_with_an_unknown_key_is_told() -> None:
    with pytest.raises(UserError, match=r"GrpoStage has no key 'stepz'\. Did you mean 'steps'\?"):
        GrpoStage(stepz=3)  # type: ignore[call-arg]


def test_fields_of_megatron_and_vllm_are_set_by_their_names() -> None:
    own = ["megatron.overlap_param_gather=true", "megatron.overlap_grad_reduce=true", "recompute=moe,core_attn"]
    theirs = "rollout.vllm.max_num_batched_tokens=512"
    changed = override(TINY, [*(f"parallel.{setting}" for setting in own), theirs])
    fields = MegatronFields(overlap_grad_reduce=True, overlap_param_gather=True)
    assert changed.parallel == ParallelConfig(recompute=("moe", "core_attn"), megatron=fields)
    assert changed.rollout.vllm == VllmFields(max_num_batched_tokens=512)
    assert from_plain(yaml.safe_load(to_yaml(changed))) == changed


def test_a_launcher_file_with_a_value_of_another_type_is_told() -> None:
    with pytest.raises(UserError, match=r"sft\.data: expected a list, found 'generate:math'"):
        override(replace(TINY, stages=(replace(SFT, data="generate:math"), RL)), [])


def test_stage_names_are_different_and_no_top_level_key() -> None:
    with pytest.raises(UserError, match="different names"):
        replace(TINY, stages=(SFT, SFT))
    with pytest.raises(UserError, match="rollout"):
        replace(TINY, stages=(replace(SFT, name="rollout"),))


def test_experts_are_cut_within_a_pipeline_stage() -> None:
    layout = ParallelConfig(tensor=2, expert=2, pipeline=2)
    assert replace(TINY, nproc=4, parallel=layout).nproc == 4
    with pytest.raises(UserError, match="a multiple of 8"):
        replace(TINY, nproc=4, parallel=replace(layout, expert_tensor=2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sed": 1}, "Unknown key 'cascade.sed'. Did you mean 'cascade.seed'?"),
        ({"name": None}, "name: expected text, found None."),
        ({"seed": True}, "seed: expected a whole number, found True."),
        (
            {"stages": [{"kind": "ppo", "name": "x"}]},
            "stages[0].kind: expected one of sft, grpo, mopd, reward_model, found 'ppo'.",
        ),
        ({"stages": [{"kind": "sft", "name": "x"}]}, "x: key 'domain' is missing."),
    ],
)
def test_a_wrong_file_is_told(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as error:
        from_plain(to_plain(TINY) | change)
    assert message in str(error.value)


def test_stage_by_name() -> None:
    assert TINY.stage("if_rl") is RL
    with pytest.raises(UserError, match="Did you mean 'if_rl'"):
        TINY.stage("if_r")
