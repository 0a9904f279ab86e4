"""Nemotron-Cascade 2 as published, with all its stages, on Nemotron-3-Nano-30B-A3B-Base.

    nemo-run launchers/cascade2_30b_a3b.py --cluster NAME
    cascade plan launchers/cascade2_30b_a3b.py --hardware b200

The numbers are those of the paper, from rl_stages/recipes/cascade2.py. Where the paper states none, a comment says so
next to the number that was chosen. docs/papers.md lists all these choices.

The base model is expected in `models/` and the data in `data/`, relative to the folder of the launch (symbolic links
work). They have the names of NVIDIA's releases on the Hub. Data that were not released, or need conversion, go to
`data/cascade2/`; docs/papers.md says how to make them. The judges are OpenAI-compatible servers that you start
yourself.
"""

from collections.abc import Mapping
from typing import Any

from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig, RolloutConfig, RouterConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade, Layout
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.reward_model import GenRm, RewardModel
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.recipes import cascade2 as recipe

SFT_DATA = "data/Nemotron-Cascade-2-SFT-Data"
RL_DATA = "data/Nemotron-Cascade-2-RL-data"
RLHF_PROMPTS = "data/cascade2/rlhf"  # HelpSteer3, arena-human-preference-140k and safety: no joint release
MULTI_DOMAIN = ("mcqa", "workplace", "structured_output")
TEACHERS = {
    "math": "sft",
    "rlhf": "rlhf_teacher",
    **dict.fromkeys(("instruction_following", *MULTI_DOMAIN), "multi_domain_rl"),
}

# Tokens of a prompt with its answer. The paper limits the answer alone, except in long context and SWE, so 4,096 tokens
# are added for the prompt. The answer to a longer prompt has the rest. A micro-batch holds one sequence of this length,
# or several shorter ones.
SHORT = recipe.LONG_CONTEXT_MAX_TOTAL_TOKENS + 4096
MEDIUM = recipe.CASCADE2["code_rl"]["sampling"].max_new_tokens + 4096
LONG = recipe.SWE_AGENTIC_MAX_TOTAL_TOKENS

# Not in the paper. NeMo-RL's recipe for the base model freezes the router's gates in RL and updates its biases by 1e-3.
ROUTER = RouterConfig(trained=False, bias_update_rate=1e-3)
BFLOAT16_TME_BOUND = 1.05  # Nemotron-3-Nano reached 1.03 on vLLM 0.17 (NeMo-RL#2141)
GATE = 0.05  # not in the paper, which has no score gates


def rl(name: str, domain: str, *data: str, tokens: int, keeps: tuple[str, ...] = (), **more: Any) -> GrpoStage:
    """A GRPO stage. `keeps` names the domains of earlier stages that its gate protects."""
    settings: dict[str, Any] = {
        "token_budget": tokens,
        "router": ROUTER,
        "tme_bound": BFLOAT16_TME_BOUND,
        "checkpoint_every": 5,
        "gate": dict.fromkeys(keeps, GATE),
    }
    return GrpoStage(name=name, domain=domain, data=data, **{**settings, **recipe.CASCADE2.get(name, {}), **more})


def server(model: str, url: str, **settings: Any) -> RewardModel:
    """A judge that is served as `model` at `url`. The paper states no deadline; this one is our choice."""
    return RewardModel(kind="server", model=model, url=url, **({"deadline_seconds": 3600.0} | settings))


# It compares all pairs of the 16 answers: 15,360 requests a step. The paper aggregates "as Nano-v3", whose coefficients
# are the defaults of GenRm.
GENRM = server(
    "nvidia/Qwen3-Nemotron-235B-A22B-GenRM", "http://genrm:8000/v1", concurrency=512, genrm=GenRm(prompt="roles")
)
LONG_CONTEXT_JUDGE = server("Qwen/Qwen3-235B-A22B-Instruct-2507", "http://long-context-judge:8000/v1", max_tokens=16)
SWE_JUDGE = server("openai/gpt-oss-120b", "http://swe-judge:8000/v1", max_tokens=4096)

# Thousands of demonstrations, as the paper counts them. It states no sampling weights, so all rows are equally likely.
SFT_THOUSANDS = {
    f"{SFT_DATA}/math": 5192,
    f"{SFT_DATA}/science": 2700,
    f"{SFT_DATA}/chat": 10572,
    f"{SFT_DATA}/instruction_following": 791,
    f"{SFT_DATA}/safety": 4,
    f"{SFT_DATA}/conversational_agent": 822,
    f"{SFT_DATA}/swe": 514,
    f"{SFT_DATA}/terminal_agent": 490,
    "data/cascade2/sft_competitive_code": 4200,
    "data/cascade2/sft_scientific_code": 1100,
    "data/cascade2/sft_long_context": 234,
}

STAGES = (
    SftStage(
        name="sft",
        domain="general",
        parent="base",
        data=tuple(f"{path}*{thousands}" for path, thousands in SFT_THOUSANDS.items()),
        steps=33_000,
        # The paper has 64 packed sequences of 256K tokens a step. 1,210 demonstrations a step give its 1.5 epochs over
        # the rows above in 33,000 steps.
        sequences_per_step=1210,
        token_budget=262_144,
        overlong="drop",
        optimizer=OptimizerConfig(
            lr=5e-5,
            min_lr=5e-6,
            schedule="cosine",
            schedule_steps=40_000,
            warmup_steps=200,
            betas=(0.9, 0.98),
            weight_decay=0.1,
        ),
        checkpoint_every=250,
    ),
    rl("if_rl", "instruction_following", f"{RL_DATA}/IF-RL", tokens=SHORT),
    # The released rows already have the paper's shares: 55 % MCQA, 30 % workplace, 15 % structured output.
    rl(
        "multi_domain_rl",
        "general",
        f"{RL_DATA}/multi-domain-RL",
        tokens=SHORT,
        domains=MULTI_DOMAIN,
        keeps=("instruction_following",),
    ),
    # The side branch: RLHF from the SFT model. The paper does not state its settings, so they are those of RLHF, with
    # 100 steps: the paper compares RLHF with MOPD after 100 steps.
    rl(
        "rlhf_teacher",
        "rlhf",
        RLHF_PROMPTS,
        tokens=SHORT,
        parent="sft",
        reward_model=GENRM,
        **{**recipe.CASCADE2["rlhf"], "steps": 100},
    ),
    MopdStage(
        name="mopd",
        domain="general",
        parent="multi_domain_rl",
        # The 6,171 released prompts contain none of RLHF's. The paper does not state how the pools are mixed.
        data=(f"{RL_DATA}/MOPD*0.8", f"{RLHF_PROMPTS}*0.2"),
        teachers=TEACHERS,
        token_budget=MEDIUM,
        router=ROUTER,
        tme_bound=BFLOAT16_TME_BOUND,
        checkpoint_every=5,
        gate=dict.fromkeys(("instruction_following", *MULTI_DOMAIN), GATE),
        **recipe.CASCADE2["mopd"],
    ),
    rl(
        "rlhf",
        "rlhf",
        RLHF_PROMPTS,
        tokens=SHORT,
        reward_model=GENRM,
        keeps=("instruction_following", "math", *MULTI_DOMAIN),
    ),
    rl(
        "long_context_rl",
        "long_context",
        "data/cascade2/long_context",  # from Nemotron-3-Nano-RL-Training-Blend: 12K tasks, prompts up to 32K tokens
        tokens=SHORT,
        reward_model=LONG_CONTEXT_JUDGE,
        keeps=("instruction_following", "math", *MULTI_DOMAIN),
    ),
    rl(
        "code_rl",
        "code",
        "data/cascade2/code",  # 3.5K, not released: Cascade 1's prompts that GPT-OSS-120B does not solve 8 of 8 times
        tokens=MEDIUM,
        keeps=("instruction_following", "math", *MULTI_DOMAIN),
    ),
    rl(
        "swe_agentless_rl",
        "swe_agentless",
        "data/cascade2/swe_agentless",  # Nemotron-Cascade-RL-SWE, converted: each with golden and with retrieved files
        tokens=MEDIUM,
        reward_model=SWE_JUDGE,
        keeps=("instruction_following", "math", "code"),
    ),
    rl(
        "swe_agentic_rl",
        "swe_agentic",
        "data/cascade2/swe_agentic",  # SWE-RL: 3,612 tasks of SWE-Gym and R2E-Gym-Subset, with repositories
        tokens=LONG,
        steps=50,  # not stated; the same as agentless
        keeps=("instruction_following", "math", "code", "swe_agentless"),
    ),
)


def layout(nproc: int, parallel: ParallelConfig, *, workers: int, tokens: int, kv_cache_gib: int) -> Layout:
    """Trainer and engines take turns on the same GPUs. Each engine has `workers` GPUs. The paper states no layout.

    It does not say either whether the experts' routes are replayed. The routes of a step of long answers do not fit
    next to the trainer, which holds a whole step on its GPUs.
    """
    rollout = RolloutConfig(
        engines=nproc // workers,
        tensor=workers,
        max_model_len=tokens,
        max_num_seqs=64,
        kv_cache_mib=kv_cache_gib << 10,
        dtype="bfloat16",
        replay_routes=tokens <= SHORT,
        probe_bound=0.5,  # nats, of 99.9 % of the tokens, which are unlikely text; not measured on a GPU
        sleep=True,
    )
    return Layout(nproc=nproc, parallel=parallel, rollout=rollout)


def cut(tensor: int, context: int, expert: int) -> ParallelConfig:
    return ParallelConfig(tensor=tensor, context=context, expert=expert, sequence=tensor > 1, precision="bfloat16")


def by_stage(sft: Layout, short: Layout, medium: Layout, long: Layout) -> Mapping[str, Layout]:
    """The layout of each stage, by sequence length."""
    by_budget = {SHORT: short, MEDIUM: medium, LONG: long}
    return {stage.name: by_budget[stage.token_budget] for stage in STAGES} | {"sft": sft}


H100 = by_stage(
    sft=layout(256, cut(tensor=8, context=8, expert=16), workers=4, tokens=SHORT, kv_cache_gib=16),
    short=layout(128, cut(tensor=4, context=4, expert=16), workers=4, tokens=SHORT, kv_cache_gib=16),
    medium=layout(128, cut(tensor=4, context=8, expert=16), workers=4, tokens=MEDIUM, kv_cache_gib=28),
    long=layout(128, cut(tensor=8, context=8, expert=16), workers=4, tokens=LONG, kv_cache_gib=28),
)
B200 = by_stage(
    sft=layout(128, cut(tensor=4, context=8, expert=8), workers=2, tokens=SHORT, kv_cache_gib=16),
    short=layout(64, cut(tensor=2, context=4, expert=8), workers=2, tokens=SHORT, kv_cache_gib=16),
    medium=layout(64, cut(tensor=2, context=8, expert=8), workers=2, tokens=MEDIUM, kv_cache_gib=28),
    long=layout(64, cut(tensor=4, context=8, expert=8), workers=2, tokens=LONG, kv_cache_gib=28),
)

CASCADE = Cascade(
    name="cascade2_30b_a3b",
    base=BaseModel(
        hf="models/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16",
        published="nemotron_3_nano_30b_a3b",
        chat_template="cascade2",
    ),
    stages=STAGES,
    # Held-out prompts of the training pools. The paper's benchmarks have answers of up to 128K tokens.
    evaluation=Evaluation(
        domains=("instruction_following", *MULTI_DOMAIN, "math", "code", "swe_agentless", "swe_agentic"),
        unmeasured=("rlhf", "long_context"),
        prompts_per_domain=512,
        max_new_tokens=32_768,
        min_answer_tokens=8_192,
    ),
    layouts={"h100": H100, "b200": B200},
)

if __name__ == "__main__":
    launch(CASCADE)
