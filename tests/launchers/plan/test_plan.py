"""The plan's terms against what a real trainer allocates, Megatron's FLOPs, vLLM's cache, and every launcher."""

import ast
import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from megatron.core.ssm import mamba_mixer
from megatron.core.ssm.gated_delta_net import common, gdn
from torch import Tensor
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator
from vllm.v1.kv_cache_interface import MambaSpec

from cascade_rl.engine.backend import fla, ssm
from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.passed_fields import VllmFields
from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.routes import narrowed
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig, Recomputed, RolloutConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import read_config
from cascade_rl.engine.models.memory import StateBytes
from cascade_rl.engine.train.losses import SftLoss
from cascade_rl.engine.train.packing import pack
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.launchers import plan
from cascade_rl.launchers.plan import activations, command
from cascade_rl.launchers.plan.activations import DELTA_CHUNK, Cuts, embedding_bytes, final_bytes, layer_bytes
from cascade_rl.launchers.plan.cascade_plan import plan_cascade
from cascade_rl.launchers.plan.engine_memory import EngineWorker
from cascade_rl.launchers.plan.hardware import read_hardware
from cascade_rl.launchers.plan.model import PUBLISHED, Model
from cascade_rl.launchers.plan.stage_plan import Setting, plan_stage
from cascade_rl.launchers.plan.storage import sample_bytes
from cascade_rl.launchers.plan.table import plain_text
from cascade_rl.launchers.plan.trainer_memory import batch_bytes
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade, Layout
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.text import override
from tests.engine.models import tiny
from tests.gloo import run_ranks

LAUNCHERS = Path(__file__).parents[3] / "launchers"
TOKENS = 128
NANO = "nemotron_3_nano_30b_a3b"
GPU, ASSUMED = read_hardware("h100")
SHARED = ParallelConfig(tensor=2, expert=2, sequence=True)


@dataclass(frozen=True)
class Allocated:
    """By one rank of a trainer; `saved` of the first micro-batch."""

    state: StateBytes
    saved: int


class Kernel(torch.autograd.Function):
    """Stands for a fused kernel of CUDA: keeps the first `inputs` of its inputs, and `extra` float32, and computes the
    rest again."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], inputs: int, extra: int, *given: Tensor) -> Tensor:
        ctx.function, ctx.others = function, given[inputs:]
        ctx.save_for_backward(torch.empty(extra), *given[:inputs])
        return function(*given)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        leaves = [t.detach().requires_grad_() for t in (*ctx.saved_tensors[1:], *ctx.others)]
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):  # not counted
            grads = torch.autograd.grad(ctx.function(*leaves), leaves, grad, allow_unused=True)
        return None, None, None, *grads


def fuse_mamba(patch: pytest.MonkeyPatch) -> None:
    """What mamba_ssm's kernels keep, instead of what their plain-torch twins do."""

    def scan(x: Tensor, weight: Tensor, bias: Tensor, dt_bias: Tensor, A: Tensor, D: Tensor, **fixed: Any) -> Tensor:
        def run(*tensors: Tensor) -> Tensor:
            return ssm.split_conv1d_scan(*tensors, **fixed)

        ungated = x.size(0) * x.size(1) * dt_bias.numel() * fixed["headdim"]
        return Kernel.apply(run, 1, ungated, x, weight, bias, dt_bias, A, D)

    forward = ssm.GroupedRMSNorm.forward

    def norm(self: ssm.GroupedRMSNorm, x: Tensor) -> Tensor:
        return Kernel.apply(lambda rows: forward(self, rows), 1, x.numel() // self.group_size, x)

    patch.setattr(mamba_mixer, "mamba_split_conv1d_scan_combined", scan)
    patch.setattr(ssm.GroupedRMSNorm, "forward", norm)


def fuse_delta_net(patch: pytest.MonkeyPatch) -> None:
    """What FLA's kernels keep, instead of what their plain-torch twins do."""

    def rule(q: Tensor, k: Tensor, v: Tensor, *, g: Tensor, beta: Tensor, **fixed: Any) -> tuple[Tensor, None]:
        def run(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
            return fla.chunk_gated_delta_rule(q, k, v, g=g, beta=beta, **fixed)[0]

        return Kernel.apply(run, 5, g.numel() * DELTA_CHUNK, q, k, v, g, beta), None

    def convolution(*, x: Tensor, weight: Tensor, **fixed: Any) -> tuple[Tensor, None]:
        def run(x: Tensor, weight: Tensor) -> Tensor:
            return fla.causal_conv1d(x=x, weight=weight, **fixed)[0]

        return Kernel.apply(run, 1, 0, x, weight), None

    patch.setattr(gdn, "chunk_gated_delta_rule", rule)
    patch.setattr(gdn, "causal_conv1d", convolution)
    patch.setattr(common, "l2norm", lambda x: Kernel.apply(fla.l2norm, 1, x.numel() // x.size(-1), x))


def allocated(hf: dict, parallel: ParallelConfig) -> Allocated:
    """One update of four micro-batches of one sequence each."""
    with pytest.MonkeyPatch.context() as patch:
        initialize_distributed(parallel, seed=1)
        fuse_mamba(patch)
        fuse_delta_net(patch)
        trainer = Trainer(hf, parallel, OptimizerConfig(), total_steps=1, token_budget=TOKENS, seed=1)
        own = {parameter.untyped_storage().data_ptr() for parameter in trainer.module.parameters()}
        kept: dict[int, Tensor] = {}
        passes: list[None] = []

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if len(passes) == 1 and storage.data_ptr() not in own:
                kept[storage.data_ptr()] = tensor  # held, so that no other takes its address
            return tensor

        hidden = trainer._hidden
        patch.setattr(trainer, "_hidden", lambda *given: (passes.append(None), hidden(*given))[1])
        sequences = [TrainSequence(np.arange(TOKENS + 1) % tiny.VOCABULARY, np.ones(TOKENS, bool)) for _ in range(4)]
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            trainer.update(sequences, SftLoss(), step=0)
        saved = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
        return Allocated(_state(trainer), saved)


def _state(trainer: Trainer) -> StateBytes:
    buffers = [buffer for ddp in trainer.ddp for buffer in (*ddp.buffers, *ddp.expert_parallel_buffers)]
    optimizers = getattr(trainer.optimizer, "chained_optimizers", [trainer.optimizer])
    moments = [tensor for one in optimizers for state in one.optimizer.state.values() for tensor in state.values()]
    return StateBytes(
        weights=sum(parameter.nbytes for parameter in trainer.module.parameters()),
        gradients=sum(buffer.grad_data.nbytes for buffer in buffers),
        optimizer=sum(tensor.nbytes for tensor in moments if torch.is_tensor(tensor) and tensor.dim()),
    )


def twin_bytes(model: Model, parallel: ParallelConfig) -> float:
    """What the plain-torch twins keep for each token beside: x / rms of every norm, and the attention's outputs twice,
    of each sequence and in a row."""
    config, cuts = model.config, Cuts.of(parallel)
    query = config["num_attention_heads"] * config["kv_channels"] / cuts.tensor
    key = config["num_query_groups"] * config["kv_channels"] / cuts.tensor
    norms = (len(model.pattern) + 1) * model.hidden / cuts.rows
    attention = model.pattern.count("*") * (query + (query + key if model.qk_norm else 0))
    latents = model.pattern.count("+") * (config.get("kv_lora_rank", 0) + config.get("q_lora_rank", 0)) / cuts.rows
    values = model.pattern.count("G") * config.get("linear_num_value_heads", 0) * config.get("linear_value_head_dim", 0)
    return cuts.itemsize * (norms + latents + attention + values / cuts.tensor)


def plain(config: Any) -> dict:
    return json.loads(config.to_json_string(use_diff=False))


MODELS = {
    "nemotron_h": (tiny.nemotron_h(hybrid_override_pattern="ME*-"), "NemotronHForCausalLM"),
    "qwen3": (tiny.qwen3(), "Qwen3ForCausalLM"),
    "qwen3_moe": (tiny.qwen3_moe(), "Qwen3MoeForCausalLM"),
    "qwen3_next": (tiny.qwen3_next(), "Qwen3NextForCausalLM"),
    "llama": (tiny.llama(tie_word_embeddings=False), "LlamaForCausalLM"),
    "glm4_moe": (tiny.glm4_moe(n_group=1, topk_group=1), "Glm4MoeForCausalLM"),
    "deepseek_v3": (tiny.deepseek_v3(n_group=1, topk_group=1), "DeepseekV3ForCausalLM"),
}
CASES = [
    ("nemotron_h", ParallelConfig()),
    ("nemotron_h", SHARED),
    ("qwen3", ParallelConfig()),
    ("qwen3_moe", SHARED),
    pytest.param("qwen3_next", ParallelConfig(), marks=pytest.mark.long),
    pytest.param("qwen3_next", SHARED, marks=pytest.mark.long),
    pytest.param("glm4_moe", SHARED, marks=pytest.mark.long),
    pytest.param("deepseek_v3", ParallelConfig(), marks=pytest.mark.long),
    pytest.param("deepseek_v3", SHARED, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("name", "parallel"), CASES)
def test_a_trainer_allocates_what_is_planned(name: str, parallel: ParallelConfig) -> None:
    """Weights, gradients and moments to padding and the routers' biases; activations to 48 bytes of a token, which are
    masks and indices, also of routers that choose groups first. Experts get different numbers of tokens, so that ranks
    are added up."""
    config, architecture = MODELS[name]
    hf = plain(config) | {"architectures": [architecture]}
    model, world = Model(hf, ""), parallel.tensor
    found = run_ranks(world, allocated, hf, parallel)
    for rank, one in enumerate(found):
        expected = model.state(rank, world, parallel)
        for item in fields(StateBytes):
            assert getattr(one.state, item.name) == pytest.approx(getattr(expected, item.name), abs=4096), item.name
    layers = sum(layer_bytes(model, symbol, parallel) for symbol in model.pattern)
    planned = layers + embedding_bytes() + final_bytes(model, parallel) + twin_bytes(model, parallel)
    assert sum(one.saved for one in found) / world / TOKENS == pytest.approx(planned, abs=48)


def test_a_micro_batch_has_the_bytes_that_are_planned() -> None:
    model = Model(read_config(PUBLISHED / NANO), "")
    layers = model.pattern.count("E")
    routes = np.zeros((TOKENS, layers, model.routes // layers), np.int16)
    names = ("advantage", "share", "rollout_logprob", "reference_logprob")
    values = {name: np.zeros(TOKENS, np.float32) for name in names}
    sequence = TrainSequence(np.zeros(TOKENS + 1, np.int64), np.ones(TOKENS, bool), 1.0, values, routes)
    (batch,) = pack([sequence], [[0]])
    tensors = [getattr(batch, name) for name in ("input_ids", "position_ids", "targets", "loss_mask", "temperature")]
    held = sum(tensor.nbytes for tensor in (*tensors, *batch.per_token.values(), batch.routes))
    setting = of_nano(kl_coefficient=0.03)
    assert held == TOKENS * batch_bytes(model, setting.stage, setting.layout)


def megatron_flops() -> dict[str, Any]:
    """The functions inside Megatron's `num_floating_point_operations`; its module takes long to import."""
    folder = Path(str(importlib.util.find_spec("megatron.core").origin)).parents[1]
    tree = ast.parse((folder / "training/training.py").read_text())
    (outer,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "num_floating_point_operations"]
    inner = ast.Module([n for n in outer.body if isinstance(n, ast.FunctionDef)], type_ignores=[])
    functions: dict[str, Any] = {}
    exec(compile(inner, "training.py", "exec"), functions)
    return functions


def test_flops_are_megatrons() -> None:
    """Of Nano's shape, but that Megatron takes Mamba's inner width for twice the hidden size, and leaves out the
    routers."""
    hf = read_config(PUBLISHED / NANO) | {"mamba_num_heads": 84}  # 84 x 64 = 2 x 2688
    model, length = Model(hf, ""), 4096
    count, config = model.pattern.count, model.config
    theirs = megatron_flops()["hybrid_flops"](
        length, length**2, model.hidden, count("*"), count("M"), count("-"), count("E"),
        mamba_state_dim=128, mamba_head_dim=64, mamba_num_groups=8, mamba_num_heads=84, num_attn_heads=32,
        gqa_groups=2, kv_channels=128, moe_ffn_hidden_size=config["moe_ffn_hidden_size"],
        shared_expert_ffn_hidden_size=3712, num_experts_routed_to=6, vocab_size=131072,
    )  # fmt: skip
    routers = 3 * length * 2 * model.hidden * 128 * count("E")
    assert 3 * model.cost.of([length])[0] - routers == pytest.approx(theirs, rel=1e-12)


def test_the_cache_holds_what_vllm_says() -> None:
    """Its log of the tiny cascade's engine on a CPU, where blocks have at least 128 tokens, and no prefixes are kept:
    "Maximum concurrency for 320 tokens per request: 409.60x", and 512.00x for 256."""
    tiny_cascade = command.load_cascade(LAUNCHERS / "cascade2_tiny.py")
    model = Model(dict(tiny_cascade.base.hf_config or {}), "")
    without = RolloutConfig(kv_cache_mib=128, deterministic=True, replay_routes=False)
    cache = EngineWorker(model, without, ASSUMED).cache(least_block_tokens=128)
    assert (cache.sequences(320), cache.sequences(256)) == (409.6, 512.0)


@pytest.mark.parametrize(
    ("settings", "states"),
    [({}, 3), ({"deterministic": True}, 3), ({"replay_routes": False}, 3),
     ({"deterministic": True, "replay_routes": False}, 1)],
)  # fmt: skip
def test_a_mamba_layer_has_the_states_that_vllm_counts(settings: dict[str, Any], states: int) -> None:
    """That is memory which vLLM asks for before it admits a request; three of 23 layers are 145 MB in float32."""
    worker = EngineWorker(Model(read_config(PUBLISHED / NANO), ""), RolloutConfig(**settings), ASSUMED)
    cache = worker.cache()
    assert cache.blocks_of(1) == cache.attention_groups + states * cache.mamba_groups
    assert cache.block_bytes * cache.mamba_groups >= 23 * worker.state_bytes()
    spec = MambaSpec(block_size=16, shapes=((1,),), dtypes=(torch.float32,), num_prefill_checkpoint_blocks=1)
    mode = SimpleNamespace(cache_config=SimpleNamespace(mamba_cache_mode="align" if states > 1 else "none"))
    assert spec.max_memory_usage_bytes(mode) == states * spec.page_size_bytes


def test_a_route_has_the_bytes_of_the_dtype_that_a_batch_has() -> None:
    """One for Nano's 128 experts."""
    hf = read_config(PUBLISHED / NANO)
    layout = Layout(parallel=ParallelConfig(), rollout=RolloutConfig(), nproc=1)
    for experts, itemsize in ((128, 1), (256, 1), (512, 2)):
        model = Model(hf | {"n_routed_experts": experts}, "")
        assert sample_bytes(model, layout) - 25 == 23 * 6 * itemsize
        assert narrowed(np.array([[experts - 1]], np.int16)).itemsize == itemsize


def test_a_latents_cache_is_whole_on_every_worker() -> None:
    """DeepSeek-V3: 512 numbers of a latent and 64 of a key that turns, in each of 61 layers."""
    for tensor in (1, 8):
        rollout = RolloutConfig(dtype="bfloat16", tensor=tensor)
        worker = EngineWorker(Model(read_config(PUBLISHED / "deepseek_v3"), ""), rollout, ASSUMED)
        assert worker.token_bytes() == 2 * 576
        assert worker.cache().block_bytes == 61 * 16 * 2 * 576


def test_nanos_cache_by_hand() -> None:
    """By Nemotron-3-Nano's config.json: 6,144 bytes per token, 48.2 MB of float32 states, three convolution inputs."""
    worker = EngineWorker(Model(read_config(PUBLISHED / NANO), ""), RolloutConfig(dtype="bfloat16"), ASSUMED)
    assert 6 * worker.token_bytes() == 6144
    assert 23 * worker.state_bytes() == 23 * (64 * 64 * 128 * 4 + 3 * 6144 * 2)


def test_a_delta_nets_state_is_vllms() -> None:
    for tensor in (1, 4):
        rollout = RolloutConfig(dtype="bfloat16", tensor=tensor)
        worker = EngineWorker(Model(read_config(PUBLISHED / "qwen3_next_80b_a3b"), ""), rollout, ASSUMED)
        convolved, state = MambaStateShapeCalculator.gated_delta_net_state_shape(tensor, 16, 32, 128, 128, 4)
        assert worker.state_bytes() == 2 * math.prod(convolved) + 4 * math.prod(state)
        assert worker.cache().mamba_groups == 3  # of 36 layers, as many as have attention: 12


def of_nano(parallel: ParallelConfig | None = None, nproc: int = 128, **changes: Any) -> Setting:
    stage = GrpoStage(
        name="rl", domain="math", data=("generate:math",), steps=10, token_budget=53_248,
        sampling=Sampling(max_new_tokens=49_152), **changes,
    )  # fmt: skip
    rollout = RolloutConfig(
        engines=32, tensor=4, max_model_len=53_248, max_num_seqs=64, kv_cache_mib=16_384, dtype="bfloat16", sleep=True
    )
    parallel = parallel or ParallelConfig(tensor=2, pipeline=2, context=4, expert=8, sequence=True)
    parallel = replace(parallel, precision="bfloat16")
    evaluation = Evaluation(domains=("math",), prompts_per_domain=8, max_new_tokens=1024)
    layout = Layout(nproc=nproc, parallel=parallel, rollout=rollout)
    return Setting(Model(read_config(PUBLISHED / NANO), ""), stage, layout, evaluation, GPU, ASSUMED)


def as_cascade(setting: Setting) -> Cascade:
    layout = setting.layout
    return Cascade(
        name="nano", base=BaseModel(hf="nowhere", published=NANO), stages=(setting.stage,),
        evaluation=setting.evaluation, nproc=layout.nproc, parallel=layout.parallel, rollout=layout.rollout,
    )  # fmt: skip


@pytest.mark.slow
def test_what_breaks_first_is_named_and_mended() -> None:
    """Without context parallelism a pass keeps four times as much; the mend that is told is applied and fits."""
    cut = ParallelConfig(tensor=2, pipeline=2, context=1, expert=8, sequence=True)
    made = plan_cascade(as_cascade(of_nano(cut)), GPU, ASSUMED)
    (broken,) = made.stages
    assert broken.fullest and broken.fullest.name == "train"
    assert max(broken.fullest.memory, key=lambda name: broken.fullest.memory[name]) == "activations"
    assert "parallel.context 1 -> 4" in broken.mends
    assert plan_stage(of_nano(replace(cut, context=4))).fits(GPU.capacity)
    text = plain_text(made)
    assert "rl: train breaks first" in text and "fits with parallel.context 1 -> 4" in text


def test_a_layout_that_cannot_be_has_the_engines_own_words() -> None:
    (made,) = plan_cascade(as_cascade(of_nano(ParallelConfig(expert=3), nproc=96)), GPU, ASSUMED).stages
    assert any("expert parallel size must divide the 128 experts; found 3" in problem for problem in made.problems)
    assert any("rollout.engines: expected a multiple of 12, since" in problem for problem in made.problems)


@pytest.mark.slow
def test_a_published_step_is_met_within_a_half() -> None:
    """NeMo-RL v0.6: 192 s for 2,048 samples of 3,203 tokens of Qwen3-30B-A3B on 32 H100 (performance-summary.md)."""
    base = of_nano(ParallelConfig(expert=8), nproc=32)
    stage = replace(base.stage, sampling=Sampling(max_new_tokens=3584), token_budget=16_384)
    rollout = replace(base.layout.rollout, engines=16, tensor=2, max_model_len=4096, max_num_seqs=128)
    assumed = replace(ASSUMED, prompt_tokens=203, answer_share=3000 / 3584)
    model = Model(read_config(PUBLISHED / "qwen3_30b_a3b"), "")
    layout = replace(base.layout, rollout=rollout)
    made = plan_stage(replace(base, model=model, stage=stage, layout=layout, assumed=assumed))
    assert made.tokens == pytest.approx(2048 * 3203)
    assert 192 / 1.5 < made.step_seconds < 192 * 1.5


WITH_A_CASCADE = sorted(path.name for path in LAUNCHERS.glob("*.py") if "CASCADE = " in path.read_text())


@pytest.mark.parametrize("launcher", WITH_A_CASCADE)
@pytest.mark.parametrize("hardware", ["h100", "b200"])
def test_every_launcher_has_a_plan(launcher: str, hardware: str, tmp_path: Path) -> None:
    cascade = command.load_cascade(LAUNCHERS / launcher)
    if cascade.base.hf and not cascade.base.published and not Path(cascade.base.hf).is_dir():
        pytest.skip(f"{launcher} reads a checkpoint that is not here")
    if not cascade.layouts:
        cascade = override(cascade, ["parallel.precision=bfloat16"])  # a launcher for the CPU
    made = plan.plan(cascade, hardware)
    assert {stage.name: stage.problems for stage in made.stages} == {stage.name: () for stage in cascade.stages}
    assert made.fits and made.gpu_hours > 0 and made.disk_bytes > 0
    if launcher == "cascade2_30b_a3b.py":
        assert f"{made.gpu_hours:,.0f} " in (LAUNCHERS.parent / "docs/plan.md").read_text()


def test_a_stage_in_float32_is_refused_as_on_a_gpu() -> None:
    setting = of_nano()
    parallel = replace(setting.layout.parallel, precision="float32")
    (told,) = plan_stage(replace(setting, layout=replace(setting.layout, parallel=parallel))).problems
    assert told.startswith("parallel.precision: expected bfloat16")


def test_what_only_the_vllm_of_a_gpu_has_may_be_planned_without_one() -> None:
    setting = of_nano()
    rollout = replace(setting.layout.rollout, vllm=VllmFields(enforce_eager=False))
    assert plan_stage(replace(setting, layout=replace(setting.layout, rollout=rollout))).problems == ()


def test_a_problem_is_printed_with_its_brackets() -> None:
    made = plan_cascade(as_cascade(of_nano(ParallelConfig(expert=3), nproc=96)), GPU, ASSUMED)
    told = replace(made, stages=(replace(made.stages[0], problems=("install it[gpu]",)),))
    assert "\nrl: install it[gpu]\n" in plain_text(told)


def test_a_buffer_holds_the_weights_once_more() -> None:
    setting = of_nano()
    alone = replace(setting.layout.rollout, placement="disaggregated", max_staleness=2, sleep=False)
    worker = replace(setting.worker, rollout=alone)
    buffered = replace(worker, rollout=replace(alone, weight_buffer=True))
    for before, after in ((worker.awake(), buffered.awake()), (worker.asleep(), buffered.asleep())):
        assert after.items() - before.items() == {("weight buffer", worker.weights())}


def test_what_stays_after_a_step_is_on_the_gpu() -> None:
    setting = of_nano(ParallelConfig(tensor=2, context=8, expert=8, sequence=True))
    phases = {phase.name: phase.memory for phase in plan_stage(setting).phases}
    for name in ("engine", "refit"):
        assert phases[name]["cached"] == pytest.approx(ASSUMED.cached * _transient(phases["train"]))


@pytest.mark.parametrize(
    ("again", "kept", "forwards"),
    [
        ("full", {"E": 2 * 2688 / 2, "M": 2 * 2688 / 2}, 4),
        ("moe", {"E": (2 * 2 * 2688 + 4) / 2}, 4),
        ("moe_act", {}, 3),
    ],
)
def test_what_is_recomputed_is_not_kept(again: Recomputed, kept: dict[str, float], forwards: int) -> None:
    """Of hidden size 2,688 in bfloat16, on two ranks under sequence parallelism: the input, and of experts the norm's
    input, output and float32 beside. One layer at a time has all."""
    cuts = ParallelConfig(tensor=2, context=8, expert=8, sequence=True)
    plain, setting = plan_stage(of_nano(cuts)), of_nano(replace(cuts, recompute=(again,)))
    parallel = setting.layout.parallel
    for symbol, expected in kept.items():
        assert activations.kept_bytes(setting.model, symbol, parallel) == expected
    (train,) = (phase for phase in plan_stage(setting).phases if phase.name == "train")
    (was,) = (phase for phase in plain.phases if phase.name == "train")
    assert train.memory["activations"] < was.memory["activations"]
    assert train.seconds == pytest.approx(was.seconds * forwards / 3)


def _transient(terms: Any) -> float:
    return sum(terms[name] for name in ("activations", "head", "backward", "batch", "fragments"))


def test_programs_run_on_the_cores_of_all_nodes() -> None:
    """427.2 s on 384 cores, for the 2,048 samples of a step: of 16 nodes with 112 cores each."""
    made = plan.plan(command.load_cascade(LAUNCHERS / "cascade2_30b_a3b.py"), "h100")
    (code,) = [stage for stage in made.stages if stage.name == "code_rl"]
    (verify,) = [phase.seconds for phase in code.phases if phase.name == "verify"]
    assert verify == pytest.approx(427.2 * 384 / (16 * 112), rel=1e-3)


def test_the_command_writes_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    arguments = [
        str(LAUNCHERS / "cascade2_tiny.py"),
        "--hardware",
        "b200",
        "--json",
        str(file),
        "sft.steps=7",
        "parallel.precision=bfloat16",
    ]
    assert command.run(arguments) == 0
    assert "everything fits" in capsys.readouterr().out
    assert json.loads(file.read_text())["stages"][0]["steps"] == 7


def test_the_help_comes_at_once_and_without_torch() -> None:
    code = (
        "import sys\nfrom cascade_rl.launchers.plan import command\n"
        "try: command.run(['--help'])\nexcept SystemExit: pass\n"
        "print(len(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(told.stdout.splitlines()[-1]) < 500  # torch alone has 1,200
