"""Run folders for the report's test: a small one, and one of 100,000 rollouts, made in seconds."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from tokenizers import Tokenizer, decoders, models

from cascade_rl.engine.core.rollouts import Outcome, Sampling
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.run.durable_file import write_json
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.sample_record import _schema

DOMAINS = ("math", "code", "instruction_following", "swe_executed")
WORDS = ("the", "sum", "of", "two", "numbers", "is", "found", "by", "adding", "them", "so", "we", "check", "it", "then")
VOCABULARY = ["<|im_end|>", "\n", "Ã", "©", *(f" {word}" for word in WORDS), *(f" {digit}" for digit in range(10))]
START = 1_795_800_000.0  # seconds since 1970


def cascade(steps: int) -> Cascade:
    """Two stages from the SFT, one of them a side branch that teaches; a gate that closes."""
    sampling = Sampling(max_new_tokens=400)
    rl = {"steps": steps, "token_budget": 512, "sampling": sampling, "rollouts_per_prompt": 8}
    return Cascade(
        name="proof",
        base=BaseModel(hf_config={"model_type": "nemotron_h"}),
        rollout=RolloutConfig(max_model_len=512),
        evaluation=Evaluation(domains=DOMAINS, prompts_per_domain=128, max_new_tokens=24),
        stages=(
            SftStage(name="sft", domain="general", data=("generate:math",), steps=steps, token_budget=512),
            GrpoStage(name="if_rl", domain="instruction_following", data=("generate:math",), **rl),
            GrpoStage(name="math_rl", domain="math", data=("generate:math",), gate={"code": 0.02}, **rl),
            GrpoStage(name="code_teacher", domain="code", data=("generate:code",), parent="sft", **rl),
            MopdStage(
                name="mopd",
                domain="general",
                parent="math_rl",
                data=("generate:math", "generate:code"),
                teachers={"math": "math_rl", "instruction_following": "if_rl", "code": "code_teacher"},
                **rl,
            ),
            GrpoStage(name="swe_rl", domain="swe_executed", data=("generate:swe_executed",), **rl),
        ),
    )


def tokenizer() -> Tokenizer:
    """A token for each word, and two that are one character only together."""
    entries = {text.replace(" ", "Ġ").replace("\n", "Ċ"): index for index, text in enumerate(VOCABULARY)}
    made = Tokenizer(models.BPE(vocab=entries, merges=[], ignore_merges=True))
    made.decoder = decoders.ByteLevel()
    return made


def keep_tokenizer(run: RunFolder) -> None:
    (run.root / "tokenizer").mkdir(exist_ok=True)
    tokenizer().save(str(run.root / "tokenizer" / "tokenizer.json"))


def large_run(root: Path, rollouts: int, steps: int) -> RunFolder:
    """`rollouts` of five stages over `steps` steps each, with everything that a report can show."""
    generator = np.random.default_rng(0)
    with RunFolder.claim(root, cascade(steps)) as (run, _):
        keep_tokenizer(run)
        drawing = run.stages[1:]
        for stage in run.stages:
            _keep_log(stage, steps, generator)
        for stage in drawing:
            for step in range(1, steps + 1):
                _keep_rollouts(stage, step, rollouts // (len(drawing) * steps), generator)
        for stage in run.stages[:-1]:
            _finish(stage)
        run.record()
    return run


def _keep_log(stage: StageFolder, steps: int, generator: np.random.Generator) -> None:
    events = [{"time": START + stage.position * 9000, "event": "attempt", "from_step": 0}]
    rows = []
    for step in range(1, steps + 1):
        along, noise = step / steps, generator.normal(size=4)
        time = START + stage.position * 9000 + step * 30
        phases = {"update": 9 + noise[0]}
        metrics = {"loss": 2 / (1 + along) + 0.1 * noise[0], "entropy": 1.2 - 0.7 * along + 0.03 * noise[1]}
        if stage.config.kind != "sft":
            phases = {"generation": 14 + 3 * along + noise[1], "reward": 1.5, "log-prob": 3.0, **phases, "refit": 0.7}
            metrics |= {"reward": 0.2 + 0.6 * along + 0.05 * noise[2], "length": 40 + 9 * along + noise[3]}
            metrics |= {"tme": 1 + 3e-7 * (1 + abs(noise[0])), "kl": 1e-4 * (1 + along), "replay_fraction": 1.0}
        metrics |= {"grad_norm": 0.3 + 0.1 * abs(noise[1]), "lr": 3e-6}
        rows.append({"step": step, **metrics})
        events.append({"time": time, "event": "step", "step": step, "tokens": 9000, "seconds": phases})
        pull = np.exp(0.5 * along * np.sin(np.arange(16)) + 0.1 * generator.normal(size=(2, 16)))
        tokens = (pull / pull.sum(-1, keepdims=True) * 18_000).astype(int).tolist()
        events.append({"time": time, "event": "expert_tokens", "step": step, "tokens": tokens})
    if stage.config.name == "code_teacher":
        events.append({"time": time + 1, "event": "engine_died", "detail": "engine 0 ended by signal 9 (killed)"})
        events.append({"time": time + 2, "event": "ended", "exit_code": 1})
        events.append({"time": time + 60, "event": "attempt", "from_step": steps})
    events.append({"time": time + 70, "event": "ended", "exit_code": 0})
    stage.metrics.path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stage.events.path.write_text("".join(json.dumps(event, default=float) + "\n" for event in events))


def _finish(stage: StageFolder) -> None:
    gain = {"math": (0.2, 0.61), "code": (0.3, 0.24), "instruction_following": (0.41, 0.53), "swe_executed": (0.1, 0.1)}
    shift = 0.05 * stage.position
    write_json(stage.root / "scores.json", {
        "before": {domain: before + shift for domain, (before, _) in gain.items()},
        "after": {domain: after + shift for domain, (_, after) in gain.items()},
    })  # fmt: skip
    stage.export.mkdir(exist_ok=True)
    stage.checkpoint(stage.config.steps).mkdir(parents=True)
    stage.finish()


def _keep_rollouts(stage: StageFolder, step: int, count: int, generator: np.random.Generator) -> None:
    lengths = generator.integers(8, 72, count)
    total, offsets = int(lengths.sum()), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = generator.integers(4, len(VOCABULARY), total).astype(np.int32)
    ids[offsets[1:] - 1] = 0
    sampler = -generator.exponential(0.5, total).astype(np.float32)
    trainer = (sampler + generator.normal(0, 2e-6, total)).astype(np.float32)
    teacher = trainer + generator.normal(0, 0.2, total).astype(np.float32) if stage.config.kind == "mopd" else None
    kind = generator.choice(4, count, p=[0.9, 0.05, 0.03, 0.02])
    reward = np.where(kind == 0, generator.integers(0, 2, count), 0.0)
    domains = list(stage.config.trained_domains)  # type: ignore[attr-defined]
    of = [domains[row // 8 % len(domains)] for row in range(count)]
    words = np.array(VOCABULARY)[ids]
    turns = 3 if stage.config.name == "swe_rl" else 1
    shown = np.concatenate([(np.arange(n) % 24 < 18) | (np.arange(n) == n - 1) for n in lengths]) if turns > 1 else None
    names = [f"{stage.config.name}/{step}/{row // 8}/{of[row]}-{row // 8:06d}/{row % 8}" for row in range(count)]
    prompts = generator.integers(4, len(VOCABULARY), (count // 8 + 1, 24)).astype(np.int32)
    values = {
        "id": names,
        "task_id": [name.split("/")[3] for name in names],
        "domain": of,
        "prompt_ids": [prompts[row // 8] for row in range(count)],
        "token_ids": _lists(offsets, ids),
        "rollout_logprobs": _lists(offsets, sampler),
        "train_logprobs": _lists(offsets, trainer),
        "loss_mask": _lists(offsets, shown if shown is not None else np.ones(total, bool)),
        "reward": [None if kind[row] == 3 else reward[row] for row in range(count)],
        "advantage": reward - 0.5,
        "outcome": [list(Outcome)[index].value for index in kind],
        "finish": ["length" if index == 1 else "stop" for index in kind],
        "versions": [[[step - 1, 0]]] * count,
        "text": ["".join(words[offsets[row] : offsets[row + 1] - 1]) for row in range(count)],
        "detail": ["sandbox: no answer within 20 s" if index == 3 else "" for index in kind],
        "reward_parts": [[("tests", float(value))] for value in reward],
        "teacher_logprobs": [None] * count if teacher is None else _lists(offsets, teacher),
        "thinking": [None] * count,
        "generated": [None] * count if shown is None else _lists(offsets, shown),
        "turns": [turns] * count,
    }
    parquet.write_table(pa.table(values, schema=_schema()), stage.rollouts(step), compression="zstd")


def _lists(offsets: np.ndarray, values: np.ndarray) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
