"""Nemotron-Cascade 1, the 14B model that thinks, as published, on Qwen3-14B-Base.

    nemo-run launchers/cascade1_14b.py --cluster NAME
    cascade plan launchers/cascade1_14b.py --hardware b200

The numbers are the paper's, from rl_stages/recipes/cascade1.py, which has those of the 8B model that only thinks, too;
docs/papers.md lists what it does not state. The base is in `models/`, data in `data/`, below the folder from which this
is launched (links will do): demonstrations under the names of their releases by nvidia on the Hub, prompts in
`data/cascade1/`, made as docs/papers.md says. The base's config.json must allow the longest sequence: set its
max_position_embeddings to 61440, as its rotary embeddings have no end of their own.
"""

from collections.abc import Mapping
from typing import Any

from cascade_rl.engine.config import OptimizerConfig, ParallelConfig, RolloutConfig
from cascade_rl.launchers.cli import launch
from cascade_rl.rl_stages.config import (
    BaseModel,
    Cascade,
    Evaluation,
    GrpoStage,
    Layout,
    RewardModel,
    RewardModelStage,
    SftStage,
    Stage,
)
from cascade_rl.rl_stages.recipes.cascade1 import THINKING_14B

# Of prompt and answer together, for the longest answers of all stages; 4,096 are for the prompt.
TOKENS = THINKING_14B["code_rl"]["sampling"].max_new_tokens + 4096
BFLOAT16_TME_BOUND = 1.05  # not in the paper (facts/paper.md 5.5)
GATE = 0.05  # not in the paper, which has no gates


def sft(name: str, lr: float, steps: int, longest: int, *data: str, **more: Any) -> SftStage:
    """One epoch. Decay is made for 100K steps and ends before; a warm-up is not stated."""
    optimizer = OptimizerConfig(lr=lr, schedule="cosine", schedule_steps=100_000, betas=(0.9, 0.95), weight_decay=1e-4)
    return SftStage(
        name=name,
        domain="general",
        data=data,
        steps=steps,
        sequences_per_step=256,
        token_budget=longest,
        overlong="drop",
        optimizer=optimizer,
        checkpoint_every=250,
        **more,
    )


def rl(name: str, domain: str, data: str, keeps: tuple[str, ...] = (), **more: Any) -> GrpoStage:
    """`keeps` are the domains of the stages before it."""
    return GrpoStage(
        name=name,
        domain=domain,
        data=(data,),
        token_budget=TOKENS,
        tme_bound=BFLOAT16_TME_BOUND,
        checkpoint_every=10,
        gate=dict.fromkeys(keeps, GATE),
        **THINKING_14B[name],
        **more,
    )


STAGES: tuple[Stage, ...] = (
    # 5.44 M and 7.80 M + 0.16 M released rows: one epoch is 256 of them in each of the stated steps, give or take 7 %
    sft("sft_16k", 5e-5, 22_000, 16_384, "data/Nemotron-Cascade-SFT-Stage-1", parent="base"),
    sft(
        "sft_32k",
        5e-5,
        41_000,
        32_768,
        "data/Nemotron-Cascade-SFT-Stage-2*7797730",
        "data/Nemotron-Cascade-SFT-SWE*162262",
    ),
    # The paper's is Qwen2.5-72B-Instruct. Ours has the policy's architecture, and is as weak as its 7B: hence `shaped`.
    RewardModelStage(
        name="reward_model",
        domain="preference",
        data=("data/cascade1/preference_pairs",),  # 82K: HelpSteer2, HelpSteer3, synthetic off-topic pairs
        token_budget=16_384,
    ),
    rl(
        "rlhf",
        "rlhf",
        "data/cascade1/rlhf",  # prompts of the pairs, without mathematics and competitive programming
        reward_model=RewardModel(kind="bradley_terry", model="reward_model", shaped=True),
    ),
    rl("if_rl", "instruction_following", "data/cascade1/instruction_following"),
    rl("math_rl", "math", "data/cascade1/math", keeps=("instruction_following",)),
    rl("code_rl", "code", "data/cascade1/code", keeps=("instruction_following", "math")),  # 9.8K, not released
    rl(
        "swe_rl",
        "swe_agentless",
        "data/cascade1/swe_agentless",
        keeps=("instruction_following", "math", "code"),
        reward_model=RewardModel(
            kind="server",
            model="moonshotai/Kimi-Dev-72B",
            url="http://swe-judge:8000/v1",
            max_tokens=4096,
            deadline_seconds=3600.0,
        ),
    ),
)


def layout(nproc: int, tensor: int, context: int, workers: int, kv_cache_gib: int = 24) -> Layout:
    """Trainer and engines on the same GPUs in turn. The paper states none, and 8 DGX-H100 nodes for verification."""
    rollout = RolloutConfig(
        engines=nproc // workers,
        tensor=workers,
        max_model_len=TOKENS,
        max_num_seqs=64,
        kv_cache_mib=kv_cache_gib << 10,
        dtype="bfloat16",
        probe_bound=0.5,  # nats, on text that no model likes; what bfloat16 needs is not measured
        sleep=True,
    )
    parallel = ParallelConfig(tensor=tensor, context=context, sequence=True)
    return Layout(nproc=nproc, parallel=parallel, rollout=rollout)


def by_stage(nproc: int, tensor: int, context: int, workers: int) -> Mapping[str, Layout]:
    """One layout for all stages. Of RLHF, the reward model is there too, and takes its memory from the caches."""
    shared = layout(nproc, tensor, context, workers)
    beside_reward_model = layout(nproc, tensor, context, workers, kv_cache_gib=16)
    return {stage.name: shared for stage in STAGES} | {"rlhf": beside_reward_model}


CASCADE = Cascade(
    name="cascade1_14b",
    base=BaseModel(hf="models/Qwen3-14B-Base", published="qwen3_14b"),
    stages=STAGES,
    evaluation=Evaluation(
        domains=("instruction_following", "math", "code", "swe_agentless"),
        unmeasured=("rlhf",),
        prompts_per_domain=512,
        max_new_tokens=32_768,
        temperature=0.6,
    ),
    layouts={
        "h100": by_stage(64, tensor=4, context=4, workers=4),
        "b200": by_stage(32, tensor=2, context=4, workers=1),
    },
)

if __name__ == "__main__":
    launch(CASCADE)
