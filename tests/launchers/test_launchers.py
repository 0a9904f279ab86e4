"""The launchers of the papers: their numbers, their order, and layouts that fit both kinds of GPU."""

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.models import family_of
from cascade_rl.engine.models.memory import state_bytes
from cascade_rl.engine.models.name_map import vocabulary
from cascade_rl.engine.models.places import place_of
from cascade_rl.engine.refit.vllm_map import VOCABULARY_MULTIPLE
from cascade_rl.engine.train.schedule import learning_rate
from cascade_rl.kernels.parts.vocabulary import VocabularyShard
from cascade_rl.kernels.runtime.configs import CONFIGS
from cascade_rl.kernels.runtime.launch import tma_operand
from cascade_rl.launchers.local.inputs import PUBLISHED, check_inputs, check_settings, model_config, read_config
from cascade_rl.launchers.plan.hardware import read_hardware
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.text import from_plain, leaves, override, to_plain, to_yaml
from cascade_rl.rl_stages.run.stage_graph import dependencies
from tests.until import LIMIT_S

LAUNCHERS = ("cascade2_30b_a3b", "cascade1_8b", "cascade1_14b", "cascade1_8b_thinking")
KINDS = ("h100", "b200")
BFLOAT16, GIB = 2, 1 << 30
# Weights, gradients and optimizer leave this share of the card to activations, caches and libraries.
STATE_SHARE = 0.4

NUMBERS = {
    "cascade2_30b_a3b": {  # arXiv 2603.19220, Tables 7 to 10 and text
        "sft.steps": 33_000,
        "sft.token_budget": 262_144,
        "sft.optimizer.lr": 5e-5,
        "sft.optimizer.min_lr": 5e-6,
        "sft.optimizer.warmup_steps": 200,
        "sft.optimizer.schedule_steps": 40_000,
        "sft.optimizer.betas": [0.9, 0.98],
        "sft.optimizer.weight_decay": 0.1,
        "if_rl.steps": 180,
        "if_rl.prompts_per_step": 128,
        "if_rl.rollouts_per_prompt": 16,
        "if_rl.sampling.max_new_tokens": 49_152,
        "if_rl.optimizer.lr": 3e-6,
        "if_rl.optimizer.warmup_init_lr": 3e-7,
        "if_rl.normaliser": "prompt",
        "if_rl.dynamic_filtering": True,
        "if_rl.overlong": "penalty",
        "multi_domain_rl.steps": 70,
        "multi_domain_rl.overlong": "filter",
        "mopd.steps": 52,
        "mopd.rollouts_per_prompt": 4,
        "mopd.sampling.max_new_tokens": 98_304,
        "mopd.optimizer.lr": 2e-6,
        "mopd.optimizer.warmup_steps": 30,
        "mopd.importance_low": 0.5,
        "mopd.importance_high": 2.0,
        "mopd.objective": "sampled",
        "rlhf.steps": 25,
        "rlhf.kl_coefficient": 0.03,
        "rlhf.sampling.max_new_tokens": 16_384,
        "rlhf.reward_model.genrm.offsets": None,  # all pairs
        "rlhf_teacher.kl_coefficient": 0.03,
        "long_context_rl.steps": 30,
        "long_context_rl.sampling.max_total_tokens": 49_152,
        "code_rl.steps": 22,
        "code_rl.sampling.max_new_tokens": 118_784,
        "swe_agentless_rl.min_best_reward": 0.5,
        "swe_agentless_rl.wrong_format_reward": -1.0,
        "swe_agentless_rl.sampling.max_total_tokens": 98_304,
        "swe_agentic_rl.prompts_per_step": 16,
        "swe_agentic_rl.rollouts_per_prompt": 64,
        "swe_agentic_rl.sampling.temperature": 0.8,
        "swe_agentic_rl.sampling.max_turns": 200,
        "swe_agentic_rl.optimizer.warmup_steps": 10,
        "swe_agentic_rl.optimizer.warmup_init_lr": 3e-7,
        "layouts.b200.swe_agentic_rl.rollout.max_model_len": 262_144,
    },
    "cascade1_8b": {  # arXiv 2512.13607, Tables 14 to 20 and text
        "sft_16k.steps": 20_000,
        "sft_16k.optimizer.lr": 5e-5,
        "sft_32k.steps": 32_000,
        "sft_32k.optimizer.lr": 2e-5,
        "sft_32k.sequences_per_step": 256,
        "reward_model.optimizer.lr": 2e-6,
        "reward_model.pairs_per_step": 256,
        "rlhf.steps": 800,
        "rlhf.thinking_fraction": 0.5,
        "rlhf.sampling.temperature": 0.6,
        "if_rl.steps": 3100,
        "if_rl.thinking_fraction": 0.0,
        "math_rl.steps": 500,
        "math_rl.sampling.max_new_tokens": 24_576,
        "code_rl.steps": 90,
        "code_rl.optimizer.lr": 4e-6,
        "swe_rl.steps": 60,
        "swe_rl.rollouts_per_prompt": 16,
    },
    "cascade1_8b_thinking": {
        "rlhf.thinking_fraction": 1.0,
        "if_rl.steps": 850,
        "if_rl.reward_model.bonus": True,
        "math_rl.steps": 500,
        "code_rl.steps": 64,
        "code_rl.sampling.temperature": 1.2,
        "swe_rl.steps": 60,
    },
    "cascade1_14b": {
        "sft_16k.steps": 22_000,
        "sft_32k.steps": 41_000,
        "sft_32k.optimizer.lr": 5e-5,
        "rlhf.steps": 900,
        "if_rl.reward_model.bonus": True,
        "if_rl.steps": 920,
        "math_rl.steps": 220,
        "math_rl.optimizer.lr": 2.5e-6,
        "math_rl.sampling.max_new_tokens": 28_672,
        "code_rl.sampling.max_new_tokens": 57_344,
        "swe_rl.steps": 120,
    },
}
CASCADE1_ORDER = ["sft_16k", "sft_32k", "reward_model", "rlhf", "if_rl", "math_rl", "code_rl", "swe_rl"]


def cascade(launcher: str, *settings: str) -> Cascade:
    return override(importlib.import_module(f"cascade_rl.launchers.{launcher}").CASCADE, settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_layouts_divide_the_model_and_leave_the_card_room(launcher: str, kind: str) -> None:
    found = cascade(launcher, f"hardware={kind}")
    check_settings(found)
    hf = model_config(found)
    gpu, _ = read_hardware(kind)
    for stage in found.stages:
        layout = found.layout(stage)
        assert layout.nproc % gpu.gpus_per_node == 0
        assert gpu.gpus_per_node % layout.rollout.tensor == 0
        assert layout.rollout.engines * layout.rollout.tensor == layout.nproc
        assert layout.rollout.max_model_len <= stage.token_budget or stage.kind in ("sft", "reward_model")
    name_map = family_of(hf).name_map(hf)
    for nproc, parallel in {(layout.nproc, layout.parallel) for layout in map(found.layout, found.stages)}:
        place = place_of(0, nproc, parallel)
        held = state_bytes(name_map.shards(place), place, BFLOAT16)
        assert held.total / GIB < STATE_SHARE * gpu.memory_gib, parallel


def head_shards(rows: int, hidden: int, vocab_size: int, ranks: int) -> list[VocabularyShard]:
    """The shards of all ranks, which the kernels read where they are, without a copy."""
    weight = torch.empty(rows, hidden, dtype=torch.bfloat16, device="meta")
    assert tma_operand(weight) is weight
    groups = [SimpleNamespace(rank=lambda rank=rank: rank, size=lambda: ranks) for rank in range(ranks)]
    return [VocabularyShard.of(weight, vocab_size, group) for group in groups]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_kernels_take_the_heads_of_trainer_and_worker(launcher: str, kind: str) -> None:
    """On every card. The trainer's shards are whole column groups, so that its bits do not depend on its layout; vLLM
    pads to 64 rows."""
    found = cascade(launcher, f"hardware={kind}")
    hf = model_config(found)
    vocab_size, hidden = hf["vocab_size"], hf["hidden_size"]
    layouts = [found.layout(stage) for stage in found.stages]
    head = vocabulary("head", vocab_size, hidden)
    sides = {(head, layout.parallel.tensor) for layout in layouts}
    assert all(
        head.shard_shape(ranks)[0] % config.group_columns(vocab_size) == 0
        for _, ranks in sides
        for config in (CONFIGS["sm90"], CONFIGS["sm100"])
    )
    worker = replace(head, multiple=VOCABULARY_MULTIPLE)
    for rule, ranks in sides | {(worker, layout.rollout.tensor) for layout in layouts}:
        shards = head_shards(*rule.shard_shape(ranks), vocab_size, ranks)
        assert sum(shard.columns for shard in shards) == vocab_size


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_numbers_are_those_of_the_papers(launcher: str) -> None:
    found = leaves(to_plain(cascade(launcher)))
    assert {key: found[key] for key in NUMBERS[launcher]} == NUMBERS[launcher]


SHIPPED = (*LAUNCHERS, "cascade1_8b_thinking", "cascade2_short", "cascade2_tiny", "if_rl_smollm2")


@pytest.mark.parametrize("launcher", SHIPPED)
def test_no_rollouts_are_drawn_for_an_update_of_rate_0(launcher: str) -> None:
    stages = [stage for stage in cascade(launcher).stages if isinstance(stage, GrpoStage)]
    assert stages
    assert all(learning_rate(step, stage.optimizer, stage.steps) > 0 for stage in stages for step in range(stage.steps))


def test_cascade_2_has_the_order_and_the_teachers_of_the_paper() -> None:
    found = cascade("cascade2_30b_a3b")
    line, stage = [], found.stages[-1]
    while stage is not None:
        line.append(stage.name)
        stage = found.parent(stage)
    assert line[::-1] == [
        "sft", "if_rl", "multi_domain_rl", "mopd", "rlhf", "long_context_rl", "code_rl", "swe_agentless_rl",
        "swe_agentic_rl",
    ]  # fmt: skip
    mopd = found.stage("mopd")
    assert isinstance(mopd, MopdStage)
    assert mopd.teachers["math"] == "sft"
    assert mopd.teachers["rlhf"] == "rlhf_teacher"
    assert {mopd.teachers[name] for name in ("instruction_following", "mcqa", "workplace", "structured_output")} == {
        "multi_domain_rl"
    }
    assert [stage.name for stage in dependencies(found, found.stage("rlhf_teacher"))] == ["sft"]
    assert [stage.name for stage in dependencies(found, mopd)] == ["sft", "multi_domain_rl", "rlhf_teacher"]


@pytest.mark.parametrize("launcher", LAUNCHERS[1:])
def test_cascade_1_has_the_order_of_the_paper(launcher: str) -> None:
    found = cascade(launcher)
    assert [stage.name for stage in found.stages] == CASCADE1_ORDER
    parent = found.parent(found.stage("rlhf"))
    assert parent is not None
    assert parent.name == "sft_32k"


def test_length_curricula_are_those_of_the_papers() -> None:
    def lengths(launcher: str, name: str) -> list[tuple[int, int]]:
        stage = to_plain(cascade(launcher).stage(name))
        return [(change["from_step"], change["max_new_tokens"]) for change in stage["extensions"]]

    assert lengths("cascade1_8b", "math_rl") == [(190, 32_768), (430, 40_960)]
    assert lengths("cascade1_14b", "math_rl") == [(120, 40_960)]
    assert lengths("cascade1_8b", "if_rl") == [(2300, 8_192)]
    assert lengths("cascade1_8b_thinking", "if_rl") == [(550, 16_384)]
    assert lengths("cascade1_14b", "if_rl") == [(800, 16_384)]


# arXiv 2603.19220: 32K of 49K in long-context RL. arXiv 2512.13607: 24K (8B) and 32K (14B) in SWE RL. The released
# rows of the workplace and of structured output have up to 5,116 and 14,522 tokens. 64K of agentless SWE: what the
# released rows need, of 98,304.
LONGEST_PROMPTS = {
    "cascade2_30b_a3b": {
        "if_rl": 5_116,
        "multi_domain_rl": 14_522,
        "mopd": 14_522,
        "rlhf": 16_384,
        "long_context_rl": 32_768,
        "code_rl": 8_192,
        "swe_agentless_rl": 65_536,
        "swe_agentic_rl": 32_768,
    },
    "cascade1_8b": {"rlhf": 8_192, "if_rl": 8_192, "math_rl": 4_096, "code_rl": 4_096, "swe_rl": 24_576},
    "cascade1_8b_thinking": {"rlhf": 8_192, "if_rl": 8_192, "math_rl": 4_096, "code_rl": 4_096, "swe_rl": 24_576},
    "cascade1_14b": {"rlhf": 8_192, "if_rl": 8_192, "math_rl": 4_096, "code_rl": 4_096, "swe_rl": 32_768},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_papers_longest_prompts_have_room(launcher: str, kind: str) -> None:
    found = cascade(launcher, f"hardware={kind}")
    for name, tokens in LONGEST_PROMPTS[launcher].items():
        room = found.room(found.stage(name))
        assert tokens <= room.longest_prompt, (name, room)
    longest = max(tokens for tokens in LONGEST_PROMPTS[launcher].values() if tokens < 65_536)
    assert longest <= found.evaluation_room.longest_prompt


def test_the_reward_model_of_cascade_1_may_be_a_served_one() -> None:
    own = cascade("cascade1_8b_thinking")
    assert own.stage("rlhf").models_read == own.stage("if_rl").models_read == {"reward_model.model": "reward_model"}
    server = ("url=http://rm:8000", "model=rm-72b")
    keys = [f"{stage}.reward_model.{key}" for stage in ("rlhf", "if_rl") for key in server]
    served = cascade("cascade1_8b_thinking", *keys, "rlhf.reward_model.shaped=false")
    assert served.stage("rlhf").models_read == served.stage("if_rl").models_read == {}
    assert [stage.name for stage in dependencies(served, served.stage("rlhf"))] == ["sft_32k"]


def test_a_schedule_may_be_made_for_more_steps_than_the_stage_has() -> None:
    """The paper's SFT ends at step 33,000 of a cosine of 40,000, at a rate of about 8.4e-6."""
    stage = cascade("cascade2_30b_a3b").stage("sft")
    assert learning_rate(stage.steps, stage.optimizer, stage.steps) == pytest.approx(8.4e-6, rel=0.01)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_survives_its_file(launcher: str) -> None:
    found = cascade(launcher)
    assert from_plain(yaml.safe_load(to_yaml(found))) == found


def test_hardware_chooses_the_layout_and_settings_go_before_it() -> None:
    h100, b200 = (cascade("cascade1_8b", f"hardware={kind}") for kind in KINDS)
    assert (h100.layout(h100.stage("rlhf")).nproc, b200.layout(b200.stage("rlhf")).nproc) == (64, 32)
    changed = cascade("cascade1_8b", "layouts.h100.rlhf.nproc=128", "math_rl.nproc=256")
    assert [changed.layout(changed.stage(name)).nproc for name in ("rlhf", "math_rl", "swe_rl")] == [128, 256, 64]
    with pytest.raises(UserError, match="hardware: expected one of h100, b200, found 'a100'"):
        cascade("cascade1_8b", "hardware=a100")


def test_a_layout_of_no_stage_is_told() -> None:
    plain = to_plain(cascade("cascade1_8b"))
    plain["layouts"]["b200"]["rlhff"] = plain["layouts"]["b200"]["rlhf"]
    with pytest.raises(UserError, match=r"layouts\.b200: expected names of stages, found 'rlhff'"):
        from_plain(yaml.safe_load(to_yaml(plain)))


def test_what_is_not_there_is_told_at_once_and_a_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = cascade("cascade2_30b_a3b")
    with pytest.raises(UserError) as error:
        check_inputs(found)
    lines = str(error.value).splitlines()
    paths = {source.split("*")[0] for stage in found.stages for source in stage.data}
    assert lines[0].startswith("base.hf: expected a Hugging Face folder with a config.json, found none in 'models/")
    assert len(lines) == 1 + len(paths)
    assert all(any(f"no such file: {path};" in line for line in lines) for path in paths)


@pytest.mark.parametrize(("model", "parameters"), [("qwen3_8b", 8_190_735_360), ("qwen3_14b", 14_768_307_200)])
def test_published_models_have_their_published_size(model: str, parameters: int) -> None:
    hf = read_config(PUBLISHED / model)
    assert family_of(hf).name_map(hf).parameter_count() == parameters


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_help_comes_at_once_without_torch(launcher: str) -> None:
    """Torch alone has 1,200 modules."""
    file = importlib.import_module(f"cascade_rl.launchers.{launcher}").__file__
    source = (
        f"import sys; sys.argv = [{file!r}, '--help', 'layouts']; import atexit, runpy\n"
        "atexit.register(lambda: print(len(sys.modules) > 800))\n"
        f"runpy.run_path({file!r}, run_name='__main__')"
    )
    told = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=LIMIT_S)
    assert told.stdout.endswith("\nFalse\n")
    assert "\n  layouts.b200.rlhf.rollout.tensor=" in told.stdout
