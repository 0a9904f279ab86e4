"""The engine's log-probs are bit by bit those of the trainer's function of vLLM's own hidden states and head."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cascade_rl.engine.rollout.vllm_worker.vllm_cpu_patches import ENVIRONMENT
from cascade_rl.kernels.linear_logprob import IGNORED, linear_logprob
from tests.engine.rollout.tiny_models import VOCAB, build, write_config, write_image

# The tied head has no weight of its own in the checkpoint.
ENGINES = {"float32": "qwen3", "bfloat16": "llama"}
IN_PROCESS = ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
TEMPERATURES = (1.0, 0.6, 1.4, 1.0)  # of request i % 4; the last is greedy
SCORED = (range(3, 70), range(200, 230), range(100, 102))
V2_TEMPERATURES = torch.tensor([0.5, 9.0, 1.0, 2.0])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What `captured_engine.py` wrote, by dtype; both engines run at once."""
    started = {dtype: start(family, dtype, tmp_path_factory.mktemp(dtype)) for dtype, family in ENGINES.items()}
    return {dtype: finish(*program) for dtype, program in started.items()}


def start(family: str, dtype: str, folder: Path) -> tuple[subprocess.Popen, Path]:
    script, output = Path(__file__).with_name("captured_engine.py"), folder / "captured.pt"
    image = write_image(build(family, seed=1), folder / "image.safetensors")
    command = [sys.executable, script, write_config(family, folder), dtype, image, output]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, env=os.environ | IN_PROCESS, stdout=log, stderr=log), output


def finish(program: subprocess.Popen, output: Path) -> dict[str, Any]:
    code = program.wait(timeout=300)
    assert code == 0, output.with_name("log").read_text()[-3000:]
    return torch.load(output, weights_only=False)


@pytest.fixture(params=ENGINES)
def run(request: pytest.FixtureRequest, runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return runs[request.param]


def sampled(run: dict[str, Any]) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """Of each step: hidden states, logits, tokens, temperatures, and the log-probs that came back."""
    taken = dict.fromkeys(run["rollouts"], 0)
    for call in run["sampling_calls"]:
        rows = []
        for name in call["requests"]:
            rollout, at = run["rollouts"][name], taken[name]
            rows.append((rollout["token_ids"][at], TEMPERATURES[int(name[1:]) % 4], rollout["logprobs"][at]))
            taken[name] += 1
        tokens, temperatures, logprobs = zip(*rows, strict=True)
        heat = torch.tensor(temperatures)
        yield call["hidden"], call["logits"], torch.tensor(tokens), heat, torch.tensor(logprobs)
    assert set(taken.values()) == {10}


def scored(run: dict[str, Any]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of each sequence: hidden states, tokens, and the log-probs that came back. The first call samples."""
    for call, ids, logprobs in zip(run["scoring_calls"][1:], SCORED, run["scored"], strict=True):
        yield call["hidden"], torch.tensor(ids)[1:], torch.from_numpy(logprobs)


def test_of_sampled_tokens_at_their_temperatures(run: dict[str, Any]) -> None:
    for hidden, _, tokens, temperature, found in sampled(run):
        ours, _ = linear_logprob(hidden, run["weight"], tokens, temperature, vocab_size=VOCAB)
        assert torch.equal(ours, found)


def test_of_given_tokens_without_logits(run: dict[str, Any]) -> None:
    for call in run["scoring_calls"][1:]:
        assert call["logits"].numel() == 0
    for hidden, tokens, found in scored(run):
        ours, _ = linear_logprob(hidden, run["weight"], tokens, 1.0, vocab_size=VOCAB)
        assert torch.equal(ours, found)


def test_they_are_exact_where_bfloat16_logits_are_not(runs: dict[str, dict[str, Any]]) -> None:
    """Against float64 of the same hidden states; and the logits that tokens are drawn from are not rounded."""
    run, errors, rounded_errors = runs["bfloat16"], [], []
    for hidden, logits, tokens, temperature, found in sampled(run):
        exact = hidden.double() @ run["weight"][:VOCAB].double().T
        assert logits.dtype == torch.float32
        assert (logits - exact).abs().max() < 1e-5
        rounded = hidden @ run["weight"][:VOCAB].T
        errors.append(found - chosen(exact, tokens, temperature))
        rounded_errors.append(chosen(rounded, tokens, temperature) - chosen(exact, tokens, temperature))
    ours, theirs = torch.cat(errors).abs().max(), torch.cat(rounded_errors).abs().max()
    print(f"largest error: {ours:.2e}, of bfloat16 logits {theirs:.2e}")
    assert ours < 5e-6
    assert theirs > 100 * ours


def chosen(logits: Tensor, tokens: Tensor, temperature: Tensor) -> Tensor:
    return (logits.double() / temperature[:, None]).log_softmax(1).gather(1, tokens[:, None])[:, 0]


def test_model_runner_v2_asks_for_the_same(run: dict[str, Any]) -> None:
    """It needs a GPU; here its functions are called as it calls them."""
    v2, weight = run["v2"], run["weight"]
    temperature = V2_TEMPERATURES[v2["slots"]]
    for name, heat in (("given", torch.ones_like(temperature)), ("sampled", temperature)):
        ours, _ = linear_logprob(v2["hidden"], weight, v2["token_ids"], heat, vocab_size=VOCAB)
        assert torch.equal(ours[:, None], v2[name])


def test_model_runner_v2_gets_what_was_kept(run: dict[str, Any]) -> None:
    """Behind the token, in every second row the 9 ids that were left; log-probs are the trainer's over these."""
    v2, weight = run["v2"], run["weight"]
    kept = v2["kept_ids"][:, 1:].long()
    assert torch.equal(kept[::2].sort(1).values, torch.arange(9).expand(len(kept[::2]), 9))
    assert (kept[1::2] == IGNORED).all()
    tokens, temperature = v2["token_ids"] % 9, V2_TEMPERATURES[v2["slots"]]
    assert torch.equal(v2["kept_ids"][:, 0].long(), tokens)
    ours, _ = linear_logprob(v2["hidden"], weight, tokens, temperature, vocab_size=VOCAB, kept=kept)
    assert torch.equal(ours[:, None].expand(v2["kept"].shape), v2["kept"])
    exact = (v2["hidden"].double() @ weight[:9].double().T / temperature[:, None]).log_softmax(1)
    assert (ours - exact.gather(1, tokens[:, None])[:, 0])[::2].abs().max() < 5e-6


def test_what_is_not_known_is_refused(run: dict[str, Any]) -> None:
    head, internals = run["refusals"]
    assert "expected a model with one head, its logits neither scaled nor capped" in head
    assert "to have 'gather_logprobs', as in vLLM 0.32.0" in internals
