"""No stage starts unless the engine samples from the model that is trained, and what was found is on disk."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import ParallelConfig, Precision, RolloutConfig
from cascade_rl.engine.parity.measure import Subject, certificate_of, probed
from cascade_rl.engine.sync.probe import Probe
from cascade_rl.engine.sync.weight_sync import Refit, StaleWeights
from cascade_rl.launchers.cli.parity import show
from cascade_rl.rl_stages import start as start_module
from cascade_rl.rl_stages.agreement import Mismatch
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.start import bounds_of, start

GRPO = GrpoStage(
    name="rl", domain="math", data=("generate:math",), steps=1, token_budget=64, sampling=Sampling(8), tme_bound=1.01
)
SFT = SftStage(name="sft", domain="math", data=("generate:math",), steps=1, token_budget=64)


class Tokenizer:
    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


class FakeRefit(Refit):
    """One whose two sides differ by `gap` everywhere."""

    def __init__(self, gap: float, replay_fraction: float) -> None:
        self.trainer: Any = SimpleNamespace(parallel=ParallelConfig())
        self.config, self.probe_ids = RolloutConfig(probe_bound=0.1), [[5, 6, 7], [8, 9]]
        logprobs = [np.full(2, -1.0), np.full(1, -2.0)]
        self.found = Probe(logprobs, [side - gap for side in logprobs], replay_fraction)

    def compare(self, version: int) -> Probe:
        self.version = version
        return self.found


def started(folder: Path, stage: Stage, gap: float, replay_fraction: float = 1.0, **settings: Any) -> dict[str, Any]:
    stage_folder: Any = SimpleNamespace(root=folder, config=stage)
    tokenizer: Any = Tokenizer()
    try:
        refit = FakeRefit(gap, replay_fraction)
        refit.config = replace(refit.config, **settings)
        start(refit, stage_folder, tokenizer, Path("model"), 3)
    finally:
        told = json.loads((folder / "parity.json").read_text(), parse_constant=pytest.fail)  # NaN is no JSON
    return told


class ProbedRefit(FakeRefit):
    """One whose sides differ by one of `gaps` at each token, with a trainer and an engine of these dtypes."""

    def __init__(self, gaps: np.ndarray, trainer: Precision, engine: Precision) -> None:
        super().__init__(0.0, 1.0)
        self.trainer.parallel = ParallelConfig(precision=trainer)
        self.config, self.version = replace(self.config, dtype=engine, probe_mean_bound=0.02), 3
        self.found = Probe([np.zeros_like(gaps)], [-gaps], 1.0)


def gaps(usual: float, odd: float, count: int) -> np.ndarray:
    """Of 10,000 tokens, `count` of which are odd ones."""
    return np.where(np.arange(10_000) < count, odd, usual)


BOTH: list[tuple[Precision, Precision]] = [("float32", "bfloat16"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")]
FLOAT32: list[tuple[Precision, Precision]] = [("float32", "float32")]


@pytest.mark.parametrize(
    ("found", "sides", "told"),
    [
        (gaps(0.01, 5.0, 9), BOTH, ""),
        (gaps(0.01, 5.0, 9), FLOAT32, r"5.00e\+00 \(largest gap\) and 1.45e-02 \(mean\)"),
        (gaps(0.01, 0.2, 11), BOTH, r"2.00e-01 \(99.9th percentile of the gap\) and 1.02e-02 \(mean\)"),
        (gaps(0.01, 0.09, 900), [*BOTH, *FLOAT32], ""),
        (
            gaps(0.03, 0.03, 0),
            [*BOTH, *FLOAT32],
            r"at most 1e-01 \(rollout.probe_bound\) and 2e-02 \(rollout.probe_mean",
        ),
    ],
    ids=["single tokens", "a single token in float32", "some tokens", "all within", "all tokens a little"],
)
def test_single_tokens_are_bounded_in_float32_alone(
    found: np.ndarray, sides: list[tuple[Precision, Precision]], told: str
) -> None:
    for trainer, engine in sides:
        refit = ProbedRefit(found, trainer, engine)
        if told:
            with pytest.raises(StaleWeights, match=told):
                refit(3)
        else:
            assert refit(3) == found.max()  # the metric stays the largest
        tokenizer: Any = Tokenizer()
        subject = Subject("model", ParallelConfig(), refit.config, None)
        ids = [list(range(len(found) + 1))]
        certificate = certificate_of(subject, probed(refit.found), ids, tokenizer, bounds_of(SFT, refit))
        assert bool(list(certificate.failures())) == bool(told)


@pytest.fixture(autouse=True)
def rank0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_module, "is_rank0", lambda: True)


def test_the_certificate_of_the_start_is_on_disk(tmp_path: Path) -> None:
    told = started(tmp_path, GRPO, gap=0.005)
    assert told["step"] == 3
    gap = told["pairs"]["Megatron/vLLM"]
    assert (gap["max"], gap["mean"]) == pytest.approx((0.005, 0.005), abs=1e-6)
    assert gap["tme"] == pytest.approx(math.exp(0.005), abs=1e-6)
    assert (told["tokens"], told["replay_fraction"], told["failures"]) == (3, 1.0, [])
    assert told["bounds"] == {"logprob": 0.1, "tme": 1.01, "layer": 1e-4, "mean": 0.1, "exact": True}
    assert {token["token"] for token in told["worst"]} == {"6", "7", "9"}


def test_a_gap_beyond_the_probe_bound_refuses_every_stage(tmp_path: Path) -> None:
    for stage in (GRPO, SFT):
        with pytest.raises(StaleWeights, match=r"weight version 3 .* differ by 2.00e-01 .*rollout.probe_bound"):
            started(tmp_path, stage, gap=0.2)
    assert json.loads((tmp_path / "parity.json").read_text())["failures"]


def test_a_mean_beyond_the_stages_own_bound_refuses_what_learns_from_its_samples(tmp_path: Path) -> None:
    with pytest.raises(Mismatch, match=r"start at step 3: .* is 1.051271, expected at most 1.01 "):
        started(tmp_path, GRPO, gap=0.05)
    assert started(tmp_path, SFT, gap=0.05)["failures"] == []


def test_an_expert_that_was_not_replayed_refuses_what_learns_from_its_samples(tmp_path: Path) -> None:
    with pytest.raises(Mismatch, match=r"step 3: 0.9900 of the experts that the sampler chose were replayed"):
        started(tmp_path, GRPO, gap=0.0, replay_fraction=0.99)
    assert started(tmp_path, SFT, gap=0.0, replay_fraction=0.0)["failures"] == []


def test_a_stage_without_replay_starts_and_certifies_none(tmp_path: Path) -> None:
    """As those of the 30B launcher with long answers, whose routes do not fit beside the trainer."""
    told = started(tmp_path, GRPO, gap=0.0, replay_fraction=0.0, replay_routes=False)
    assert (told["replay_fraction"], told["failures"]) == (None, [])


def test_nan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StaleWeights, match="differ by nan"):
        started(tmp_path, replace(GRPO, tme_bound=9.0), gap=math.nan)
    told = json.loads((tmp_path / "parity.json").read_text())
    assert told["pairs"] == {"Megatron/vLLM": {"max": None, "tail": None, "mean": None, "tme": None}}
    assert told["worst"][0]["gap"] is None
    assert [failure.partition(", expected")[0] for failure in told["failures"]] == [
        "Megatron/vLLM: largest gap of a log-prob nan",
        "Megatron/vLLM: mean gap of a log-prob nan",
        "Megatron/vLLM: mean of exp|gap| nan",
    ]


def test_what_is_not_finite_is_shown(tmp_path: Path) -> None:
    with pytest.raises(StaleWeights):
        started(tmp_path, GRPO, gap=math.nan)
    console = Console(width=120)
    with console.capture() as captured:
        show(json.loads((tmp_path / "parity.json").read_text()), console)
    assert captured.get().count("not finite") == 4 + 2 * 3  # the pair's four gaps; a gap and one side of three tokens
    assert "beyond the bounds: Megatron/vLLM: largest gap of a log-prob nan" in captured.get()
