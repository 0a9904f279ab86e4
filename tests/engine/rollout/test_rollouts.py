"""Samples against transformers with the same weights: token ids, log-probs, experts, versions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cascade_rl.engine.core.passport import passport_of
from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling, Scored
from cascade_rl.engine.rollout.client import RolloutEngine

from .conftest import CONFIG, Tiny, kept_sets, make_requests
from .tiny_models import Reference, build, write_config, write_image

MOE = ["nemotron_h", "qwen3_moe"]


def gaps(rollout: Rollout, reference: Reference, temperature: float = 1.0) -> np.ndarray:
    """Differences of the generated tokens' log-probs [generated], the sample's own experts replayed."""
    ids = np.concatenate([rollout.prompt_ids, rollout.token_ids])
    table = reference(ids, temperature, rollout.routes)[len(rollout.prompt_ids) - 1 :]
    return np.abs(table[np.arange(len(rollout.token_ids)), rollout.token_ids] - rollout.logprobs)


def gap(rollout: Rollout, reference: Reference, temperature: float = 1.0) -> float:
    """The largest of them."""
    return float(gaps(rollout, reference, temperature).max())


def test_samples_follow_the_weights_of_the_last_update(tiny: Tiny) -> None:
    """Guards two silent defects of vLLM's reload on the CPU: packed experts and tied head."""
    requests = make_requests(8, Sampling(max_new_tokens=12))
    for index in (0, 1, 0):
        tiny.load(index)
        rollouts = tiny.sample(requests)
        assert rollouts.keys() == {request.id for request in requests}
        assert max(gap(rollout, tiny.references[index]) for rollout in rollouts.values()) < tiny.tolerance
        assert max(gap(rollout, tiny.references[1 - index]) for rollout in rollouts.values()) > 0.1
        assert {rollout.versions for rollout in rollouts.values()} == {((tiny.engine.version, 0),)}
        for request in requests:
            rollout = rollouts[request.id]
            assert rollout.passports == (passport_of(rollout, request, tiny.engine.version),)


def score_gaps(scored: Scored, token_ids: np.ndarray, reference: Reference) -> np.ndarray:
    """Differences of all log-probs [n - 1], the scored sequence's own experts replayed."""
    expected = reference(token_ids, routes=scored.routes)[np.arange(len(token_ids) - 1), token_ids[1:]]
    return np.abs(expected - scored.logprobs)


def test_scores_are_the_log_probs_of_given_tokens(tiny: Tiny) -> None:
    sequences = [np.arange(3, 60), np.arange(100, 104)]
    for index in (0, 1):
        reference = tiny.load(index)
        for token_ids, scored in zip(sequences, tiny.engine.score(sequences), strict=True):
            assert scored.logprobs.dtype == np.float32
            assert scored.logprobs.shape == (len(token_ids) - 1,)
            assert (scored.routes is not None) == (tiny.family in MOE)
            assert score_gaps(scored, token_ids, reference).max() < tiny.tolerance


def test_sample_layout(tiny: Tiny) -> None:
    tiny.load(0)
    requests = make_requests(4, Sampling(max_new_tokens=7))
    rollouts = tiny.sample(requests)
    for request in requests:
        rollout = rollouts[request.id]
        assert rollout.prompt_ids.tolist() == list(request.prompt_ids)
        assert (rollout.token_ids.dtype, rollout.logprobs.dtype) == (np.int64, np.float32)
        assert rollout.token_ids.shape == rollout.logprobs.shape == (7,)
        assert rollout.finish == "length"
        if tiny.family in MOE:
            assert rollout.routes.dtype == np.int16
            assert rollout.routes.shape == (len(request.prompt_ids) + 6, 2, 2)
        else:
            assert rollout.routes is None


@pytest.mark.parametrize("family", MOE)
def test_recorded_experts_are_those_the_router_ranks_first(engines: dict[str, Tiny], family: str) -> None:
    tiny = engines[family]
    reference = tiny.load(1)
    for rollout in tiny.sample(make_requests(8, Sampling(max_new_tokens=12))).values():
        reference(np.concatenate([rollout.prompt_ids, rollout.token_ids]), routes=rollout.routes)
        scores, routes = reference.router_scores, rollout.routes.astype(np.int64)
        lowest_chosen = np.take_along_axis(scores, routes, axis=-1).min(-1)
        np.put_along_axis(scores, routes, -np.inf, axis=-1)
        assert len(scores) == len(routes)
        assert (scores.max(-1) - lowest_chosen).max() < tiny.tolerance


def test_log_probs_are_those_after_temperature(engines: dict[str, Tiny]) -> None:
    tiny = engines["qwen3"]
    reference = tiny.load(0)
    rollouts = tiny.sample(make_requests(4, Sampling(max_new_tokens=12, temperature=0.6)))
    assert max(gap(rollout, reference, temperature=0.6) for rollout in rollouts.values()) < tiny.tolerance


def test_log_probs_are_normalised_over_the_nucleus(engines: dict[str, Tiny]) -> None:
    tiny = engines["llama"]
    reference = tiny.load(0)
    for rollout in tiny.sample(make_requests(4, Sampling(max_new_tokens=12, top_p=0.8))).values():
        ids = np.concatenate([rollout.prompt_ids, rollout.token_ids])
        for logprobs, token, found in zip(
            reference(ids)[len(rollout.prompt_ids) - 1 :], rollout.token_ids, rollout.logprobs, strict=True
        ):
            descending = np.sort(np.exp(logprobs.astype(np.float64)))[::-1]
            kept = descending[: np.searchsorted(descending.cumsum(), 0.8) + 1].sum()
            assert abs(logprobs[token] - np.log(kept) - found) < tiny.tolerance


def test_kept_tokens_are_those_that_top_k_and_then_top_p_leave(engines: dict[str, Tiny]) -> None:
    """By the rule in float64, but where a border is nearer than the engine's rounding."""
    tiny = engines["llama"]
    reference = tiny.load(0)
    sampling = Sampling(max_new_tokens=24, temperature=0.3, top_p=0.9, top_k=20)
    sizes, clear = [], 0
    for rollout in tiny.sample(make_requests(8, sampling)).values():
        ids = np.concatenate([rollout.prompt_ids, rollout.token_ids])
        distributions = reference(ids, temperature=0.3)[len(rollout.prompt_ids) - 1 :].astype(np.float64)
        for logprobs, token, logprob, left in zip(
            distributions, rollout.token_ids, rollout.logprobs, kept_sets(rollout), strict=True
        ):
            assert token in left
            assert abs(logprobs[token] - np.log(np.exp(logprobs[left]).sum()) - logprob) < tiny.tolerance
            expected, margin = rule(logprobs, sampling)
            if margin > tiny.tolerance:
                assert left == sorted(expected)
                clear += 1
            sizes.append(len(left))
    assert clear > 0.9 * len(sizes)
    assert len(set(sizes)) > 5


def rule(logprobs: np.ndarray, sampling: Sampling) -> tuple[np.ndarray, float]:
    """The ids that are kept, and how far their borders are from another answer."""
    order = np.argsort(-logprobs)
    likeliest = np.exp(logprobs[order[: sampling.top_k]])
    mass = (likeliest / likeliest.sum()).cumsum()
    count = int(np.searchsorted(mass, sampling.top_p)) + 1
    border = logprobs[order[sampling.top_k - 1 : sampling.top_k + 1]]
    return order[:count], min(np.abs(mass - sampling.top_p).min(), border[0] - border[1])


def test_only_what_is_drawn_with_top_k_has_kept_tokens_whatever_it_is_drawn_beside(engines: dict[str, Tiny]) -> None:
    tiny = engines["llama"]
    tiny.load(0)
    with_top_k = make_requests(3, Sampling(6, top_k=3))
    others = make_requests(3, Sampling(6), seed=1) + make_requests(3, Sampling(6, top_p=0.8), seed=2)
    together, alone = tiny.sample(with_top_k + others), tiny.sample(with_top_k) | tiny.sample(others)
    for request_id, rollout in together.items():
        assert np.array_equal(rollout.token_ids, alone[request_id].token_ids)
        assert np.abs(rollout.logprobs - alone[request_id].logprobs).max() < tiny.tolerance
    assert all(together[request.id].kept.counts.tolist() == [3] * 6 for request in with_top_k)
    assert all(together[request.id].kept is None for request in others)


def test_a_stop_token_ends_the_sample_and_is_part_of_it(engines: dict[str, Tiny]) -> None:
    tiny = engines["llama"]
    tiny.load(0)
    [request] = make_requests(1, Sampling(max_new_tokens=12))
    whole = tiny.sample([request])[request.id].token_ids.tolist()
    stop = whole[5]
    stopping = Request("stopping", request.prompt_ids, Sampling(12, stop_token_ids=(stop,)), request.seed)
    rollout = tiny.sample([stopping])["stopping"]
    assert rollout.finish == "stop"
    assert rollout.token_ids.tolist() == whole[: whole.index(stop) + 1]


def test_a_seed_repeats_its_sample_in_any_company(tiny: Tiny) -> None:
    tiny.load(0)
    requests = make_requests(12, Sampling(max_new_tokens=10))
    together = tiny.sample(requests)
    alone = tiny.sample(requests[:1])
    reseeded = tiny.sample([Request(requests[0].id, requests[0].prompt_ids, requests[0].sampling, seed=99)])
    again = tiny.sample(requests)
    first = requests[0].id
    assert alone[first].token_ids.tolist() == together[first].token_ids.tolist()
    assert reseeded[first].token_ids.tolist() != together[first].token_ids.tolist()
    for request_id, rollout in together.items():
        assert np.array_equal(again[request_id].logprobs, rollout.logprobs)


def test_bfloat16_weights_follow_the_update(tmp_path: Path) -> None:
    """In bfloat16 vLLM packs the Mamba convolution, and prefill goes on reading the old one (off by 0.4)."""
    folder, sequences = write_config("nemotron_h", tmp_path), [np.arange(3, 120), np.arange(200, 300)]
    config = replace(CONFIG, dtype="bfloat16")
    with RolloutEngine(folder, config, seed=0, log_path=tmp_path / "log") as engine:
        for version in (0, 1, 2):
            model = build("nemotron_h", version)
            engine.update_weights(write_image(model, tmp_path / "image.safetensors"), version)
            reference = Reference(model)
            for token_ids, scored in zip(sequences, engine.score(sequences), strict=True):
                assert score_gaps(scored, token_ids, reference).mean() < 0.1
