"""Captured experts replace the router's choice, row by row; its scores and their gradient stay its own."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from megatron.core import tensor_parallel
from megatron.core.transformer.moe.moe_utils import topk_routing_with_score_function
from torch import Tensor

from cascade_rl.engine.backend.machine import backend
from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import build_model
from cascade_rl.moe import router_replay
from cascade_rl.moe.router import routers
from cascade_rl.moe.router_replay import NOT_CAPTURED, Replay, RouterReplay
from tests.engine.models import tiny
from tests.gloo import run_ranks

TOKENS, EXPERTS, TOPK = 6, 8, 2


@pytest.fixture(scope="module")
def hf_config(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder: Path = tmp_path_factory.mktemp("config")
    config = tiny.nemotron_h(architectures=["NemotronHForCausalLM"])
    config.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch) -> RouterReplay:
    """One router, that of the only expert layer."""
    backend()
    router = SimpleNamespace(layer_number=1)
    monkeypatch.setattr(tensor_parallel, "checkpoint", tensor_parallel.checkpoint)
    monkeypatch.setattr(router_replay, "routers", lambda _model: [router])
    return RouterReplay(torch.nn.Module(), "E")


@contextmanager
def target(replaying: RouterReplay, rows: Tensor | None) -> Iterator[Replay]:
    with replaying.of(None if rows is None else rows[:, None]):
        yield replaying.replays[0]


def plain_topk(scores: Tensor, topk: int, num_groups: object = None, group_topk: object = None) -> tuple:
    return torch.topk(scores, topk, dim=1)


def choose(replay: Replay, scores: Tensor) -> tuple[Tensor, Tensor]:
    return replay.get_replay_topk(scores, TOPK, default_compute_topk=plain_topk)


def least_liked(scores: Tensor) -> Tensor:
    return scores.argsort(dim=1)[:, :TOPK]


def test_without_a_target_the_router_chooses(replaying: RouterReplay) -> None:
    scores = torch.randn(TOKENS, EXPERTS)
    with target(replaying, None) as replay:
        values, indices = choose(replay, scores)
    assert torch.equal(indices, scores.topk(TOPK).indices)
    assert torch.equal(values, scores.topk(TOPK).values)
    assert replaying.replayed_rows() == 0


def test_captured_rows_are_replayed_and_the_others_are_not(replaying: RouterReplay) -> None:
    scores = torch.randn(TOKENS, EXPERTS)
    rows = least_liked(scores)
    rows[1] = NOT_CAPTURED
    rows[4, 1] = NOT_CAPTURED  # half a row is no row
    with target(replaying, rows) as replay:
        values, indices = choose(replay, scores)
    for row in range(TOKENS):
        expected = scores[row].topk(TOPK).indices if row in (1, 4) else rows[row]
        assert torch.equal(indices[row], expected)
    assert torch.equal(values, scores.gather(1, indices))
    with target(replaying, rows) as replay:
        choose(replay, scores)
    assert replaying.replayed_rows() == 2 * (TOKENS - 2)
    replaying.start_counting()
    assert replaying.replayed_rows() == 0


def test_the_gradient_goes_to_the_replayed_scores(replaying: RouterReplay) -> None:
    scores = torch.randn(TOKENS, EXPERTS, requires_grad=True)
    with target(replaying, least_liked(scores.detach())) as replay:
        values, indices = choose(replay, scores)
    [gradient] = torch.autograd.grad(values.sum(), scores)
    assert torch.equal(gradient, torch.zeros_like(scores).scatter(1, indices, 1.0))


def test_what_is_computed_again_has_the_routes_of_its_own_micro_batch(replaying: RouterReplay) -> None:
    """Of two micro-batches of equal length, the second goes forward before the first goes back, as in a pipeline. A
    target that a router holds would then be the second's for both. Each token is counted once."""
    scores = [torch.randn(TOKENS, EXPERTS, requires_grad=True) for _ in range(2)]
    rows = [least_liked(scores[0].detach()), scores[1].detach().topk(TOPK).indices.flip(0)]

    def forward(batch: int) -> Tensor:
        with target(replaying, rows[batch]) as replay:
            return tensor_parallel.checkpoint(lambda x: choose(replay, x)[0], False, scores[batch])

    values = [forward(0), forward(1)]
    for batch in (0, 1):
        values[batch].sum().backward()
        chosen = torch.zeros(TOKENS, EXPERTS).scatter(1, rows[batch], 1.0)
        assert torch.equal(scores[batch].grad, chosen)
    assert replaying.replayed_rows() == 2 * TOKENS


@pytest.mark.parametrize("shape", [(TOKENS - 1, TOPK), (TOKENS, TOPK + 1)])
def test_routes_of_another_shape_are_refused(shape: tuple[int, int], replaying: RouterReplay) -> None:
    with (
        target(replaying, torch.zeros(shape, dtype=torch.int64)) as replay,
        pytest.raises(ValueError, match=r"expected routes of shape \(6, 2\), found"),
    ):
        choose(replay, torch.randn(TOKENS, EXPERTS))


@pytest.mark.parametrize("score_function", ["sigmoid", "softmax"])
def test_megatron_weighs_replayed_experts_by_their_own_scores(score_function: str, replaying: RouterReplay) -> None:
    """Sigmoid as NemotronH routes, with a bias that moves the choice but not the weight; softmax as Qwen3."""
    logits, bias = torch.randn(TOKENS, EXPERTS), torch.randn(EXPERTS)
    sigmoid = score_function == "sigmoid"
    rows = least_liked(logits)
    with target(replaying, rows) as replay:
        probs, routing_map = topk_routing_with_score_function(
            logits,
            TOPK,
            scaling_factor=2.5 if sigmoid else None,
            score_function=score_function,
            expert_bias=bias if sigmoid else None,
            router_replay=replay,
        )
    chosen = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool).scatter(1, rows, True)
    scores = logits.sigmoid() if sigmoid else logits.exp()
    weights = scores.where(chosen, 0)
    weights = weights / weights.sum(1, keepdim=True) * (2.5 if sigmoid else 1)
    assert torch.equal(routing_map, chosen)
    torch.testing.assert_close(probs, weights)
    assert replaying.replayed_rows() == TOKENS


def choices(model: torch.nn.Module) -> list[list[int]]:
    """The experts of the first token, router by router."""
    scores = torch.zeros(TOKENS, EXPERTS)
    return [choose(router.router_replay, scores)[1][0].tolist() for router in routers(model)]


def layers_and_choices(hf: dict, parallel: ParallelConfig) -> tuple[list[int], list[list[int]], int]:
    initialize_distributed(parallel, seed=1)
    model = build_model(hf, parallel, seed=1)
    replay = RouterReplay(model, "MEM*E-")
    routes = torch.arange(TOKENS * 2 * TOPK).view(TOKENS, 2, TOPK) % EXPERTS
    with replay.of(routes):
        chosen = choices(model)
    assert choices(model) != chosen  # they choose for themselves again
    return [router.layer for router in replay.replays], chosen, replay.replayed_rows()


def test_each_router_gets_its_own_layer_also_on_a_pipeline_stage(hf_config: dict) -> None:
    [whole] = run_ranks(1, layers_and_choices, hf_config, ParallelConfig())
    assert whole == ([0, 1], [[0, 1], [2, 3]], 2 * TOKENS)
    first, second = run_ranks(2, layers_and_choices, hf_config, ParallelConfig(pipeline=2))
    assert first == ([0], [[0, 1]], TOKENS)
    assert second == ([1], [[2, 3]], TOKENS)
