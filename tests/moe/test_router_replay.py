"""Captured experts replace the router's choice, row by row; its scores and their gradient stay its own."""

import json
from pathlib import Path

import pytest
import torch
from megatron.core.transformer.moe.moe_utils import topk_routing_with_score_function
from torch import Tensor

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import build_model
from cascade_rl.moe.router_replay import NOT_CAPTURED, Replay, RouterReplay
from tests.engine.models import tiny
from tests.gloo import run_ranks

TOKENS, EXPERTS, TOPK = 6, 8, 2
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def hf_config(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder: Path = tmp_path_factory.mktemp("config")
    config = tiny.nemotron_h(architectures=["NemotronHForCausalLM"])
    config.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


def plain_topk(scores: Tensor, topk: int, num_groups: object = None, group_topk: object = None) -> tuple:
    return torch.topk(scores, topk, dim=1)


def choose(replay: Replay, scores: Tensor) -> tuple[Tensor, Tensor]:
    return replay.get_replay_topk(scores, TOPK, default_compute_topk=plain_topk)


def least_liked(scores: Tensor) -> Tensor:
    return scores.argsort(dim=1)[:, :TOPK]


def test_without_a_target_the_router_chooses() -> None:
    replay, scores = Replay(CPU), torch.randn(TOKENS, EXPERTS)
    values, indices = choose(replay, scores)
    assert torch.equal(indices, scores.topk(TOPK).indices)
    assert torch.equal(values, scores.topk(TOPK).values)
    assert replay.replayed_rows == 0


def test_captured_rows_are_replayed_and_the_others_are_not() -> None:
    replay, scores = Replay(CPU), torch.randn(TOKENS, EXPERTS)
    target = least_liked(scores)
    target[1] = NOT_CAPTURED
    target[4, 1] = NOT_CAPTURED  # half a row is no row
    replay.target = target
    values, indices = choose(replay, scores)
    for row in range(TOKENS):
        expected = scores[row].topk(TOPK).indices if row in (1, 4) else target[row]
        assert torch.equal(indices[row], expected)
    assert torch.equal(values, scores.gather(1, indices))
    assert replay.replayed_rows == TOKENS - 2
    choose(replay, scores)
    assert replay.replayed_rows == 2 * (TOKENS - 2)


def test_the_gradient_goes_to_the_replayed_scores() -> None:
    replay, scores = Replay(CPU), torch.randn(TOKENS, EXPERTS, requires_grad=True)
    replay.target = least_liked(scores.detach())
    values, indices = choose(replay, scores)
    [gradient] = torch.autograd.grad(values.sum(), scores)
    assert torch.equal(gradient, torch.zeros_like(scores).scatter(1, indices, 1.0))


@pytest.mark.parametrize("shape", [(TOKENS - 1, TOPK), (TOKENS, TOPK + 1)])
def test_routes_of_another_shape_are_refused(shape: tuple[int, int]) -> None:
    replay = Replay(CPU)
    replay.target = torch.zeros(shape, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"expected routes of shape \(6, 2\), found"):
        choose(replay, torch.randn(TOKENS, EXPERTS))


@pytest.mark.parametrize("score_function", ["sigmoid", "softmax"])
def test_megatron_weighs_replayed_experts_by_their_own_scores(score_function: str) -> None:
    """Sigmoid as NemotronH routes, with a bias that moves the choice but not the weight; softmax as Qwen3."""
    logits, bias = torch.randn(TOKENS, EXPERTS), torch.randn(EXPERTS)
    sigmoid = score_function == "sigmoid"
    replay = Replay(CPU)
    replay.target = least_liked(logits)
    probs, routing_map = topk_routing_with_score_function(
        logits,
        TOPK,
        scaling_factor=2.5 if sigmoid else None,
        score_function=score_function,
        expert_bias=bias if sigmoid else None,
        router_replay=replay,
    )
    chosen = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool).scatter(1, replay.target, True)
    scores = logits.sigmoid() if sigmoid else logits.exp()
    weights = scores.where(chosen, 0)
    weights = weights / weights.sum(1, keepdim=True) * (2.5 if sigmoid else 1)
    assert torch.equal(routing_map, chosen)
    torch.testing.assert_close(probs, weights)
    assert replay.replayed_rows == TOKENS


def layers_and_targets(hf: dict, parallel: ParallelConfig) -> tuple[list[int], list[list[int]], int, int]:
    initialize_distributed(parallel, seed=1)
    policy, other = (RouterReplay(build_model(hf, parallel, seed=1), "MEM*E-", CPU) for _ in range(2))
    routes = torch.arange(TOKENS * 2 * TOPK).view(TOKENS, 2, TOPK)
    policy.set_target(routes)
    targets = [replay.target[0].tolist() for _, replay in policy.replays]
    untouched = sum(replay.target is not None for _, replay in other.replays)
    policy.replays[0][1].replayed_rows += 3
    counted = policy.take_replayed_rows(), policy.take_replayed_rows()
    policy.set_target(None)
    assert all(replay.target is None for _, replay in policy.replays)
    return [layer for layer, _ in policy.replays], targets, untouched, counted


def test_each_router_gets_its_own_layer_also_on_a_pipeline_stage(hf_config: dict) -> None:
    [whole] = run_ranks(1, layers_and_targets, hf_config, ParallelConfig())
    assert whole == ([0, 1], [[0, 1], [2, 3]], 0, (3, 0))
    first, second = run_ranks(2, layers_and_targets, hf_config, ParallelConfig(pipeline=2))
    assert first == ([0], [[0, 1]], 0, (3, 0))
    assert second == ([1], [[2, 3]], 0, (3, 0))
