"""Planned refits of a real vLLM engine: what it computes afterwards is what transformers makes of the same weights.

A refit of adapters alone, in place or buffered, leaves the engine with the bits of the merged weights.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import PrefixStore

from cascade_rl.engine.core.settings import LoraConfig, ParallelConfig
from cascade_rl.engine.lora.merge import merged
from cascade_rl.engine.lora.rules import factor_map, factor_name
from cascade_rl.engine.models import family_of, read_config
from cascade_rl.engine.refit.group import BASE, Terms, join_as_trainer

from .refitted_engine import TRAINERS, Held, State, joined_store, refitted, require_model, state_of
from .tiny_models import build, write_config

CASES = [
    ("nemotron_h", ParallelConfig(tensor=2, expert=2, sequence=True), 1, 2e-3),
    pytest.param("qwen3_moe", ParallelConfig(pipeline=2), 2, 1e-4, marks=pytest.mark.long),
    pytest.param("qwen3_next", ParallelConfig(tensor=2, expert=2, sequence=True), 2, 1e-4, marks=pytest.mark.long),
    pytest.param("qwen3", ParallelConfig(), 1, 1e-4, marks=pytest.mark.long),
    pytest.param("qwen2", ParallelConfig(tensor=2), 1, 1e-4, marks=pytest.mark.long),
    pytest.param("deepseek_v3", ParallelConfig(tensor=2, expert=2, sequence=True), 1, 1e-4, marks=pytest.mark.long),
    pytest.param("glm4_moe", ParallelConfig(tensor=2, expert=2, sequence=True), 2, 1e-4, marks=pytest.mark.long),
]
WEIGHTS, ADAPTERS, BUFFERED, MERGED = "weights", "adapters", "buffered adapters", "merged"
MEETINGS = {
    WEIGHTS: ["sums", "digests", "none"],
    ADAPTERS: ["digests", "none"],
    BUFFERED: ["sums", "none"],
    MERGED: ["none", "sums"],
}
LORA = LoraConfig(rank=3)


def send(
    folder: Path, parallel: ParallelConfig, workers: int, port: int, states: list[State], factors: list[State]
) -> tuple[int, dict[str, int]]:
    """A trainer rank that has the weights of one model after the other, then adapters on the first, then the same
    merged. Returns the bytes it put on a wire, and those of one refit of each meeting."""
    rank, hf = int(os.environ["RANK"]), read_config(folder)
    store = joined_store(rank, port)
    name_map, device, version, sizes, sent = family_of(hf).name_map(hf), torch.device("cpu"), 0, dict[str, int](), 0
    weights, adapters = Held(name_map, rank, parallel), Held(factor_map(name_map, LORA), rank, parallel)
    terms = Terms(hf, parallel, TRAINERS, workers, bucket_bytes=100_000, seconds=600.0)
    contents = {
        WEIGHTS: states,
        ADAPTERS: factors,
        BUFFERED: factors,
        MERGED: [adapted(states[0], own) for own in factors],
    }
    for meeting, checks in MEETINGS.items():
        held, own = (adapters, replace(terms, lora=LORA)) if meeting in (ADAPTERS, BUFFERED) else (weights, terms)
        place = PrefixStore(meeting, store)
        sender = join_as_trainer(place, rank, own, held.tensors, device)
        if meeting in (ADAPTERS, BUFFERED):
            weights.become(states[0])
            join_as_trainer(PrefixStore(BASE, place), rank, terms, weights.tensors, device).send(version, checks[0])
        for state, check in zip(contents[meeting], checks, strict=True):
            held.become(state)
            sender.send(version, check)
            version += 1
        sizes[meeting], sent = sender.bytes, sent + sender.group.sent["payload"]
    return sent, sizes


def drawn_factors(folder: Path, seed: int) -> State:
    hf, generator = read_config(folder), np.random.default_rng(seed)
    tensors = factor_map(family_of(hf).name_map(hf), LORA).hf_tensors()
    return {name: generator.normal(size=each.shape).astype(np.float32) / 20 for name, each in tensors.items()}


def adapted(state: State, factors: State) -> State:
    """The whole tensors, merged without any cut."""
    found = dict(state)
    for name, base in state.items():
        if factor_name(name, "A") in factors:
            a, b = (torch.from_numpy(factors[factor_name(name, factor)]) for factor in "AB")
            found[name] = merged(torch.from_numpy(base), b, a, LORA.scale).numpy()
    return found


@pytest.mark.parametrize(("family", "parallel", "tensor", "tolerance"), CASES)
def test_the_engine_computes_with_what_the_trainer_sent(
    family: str, parallel: ParallelConfig, tensor: int, tolerance: float, port: int, tmp_path: Path
) -> None:
    folder = write_config(family, tmp_path / "model")
    models = [build(family, seed) for seed in (1, 2, 1)]
    states, factors = list(map(state_of, models)), [drawn_factors(folder, seed) for seed in (1, 2)]
    job = {"model": str(folder), "tensor": tensor, "port": port, "meetings": MEETINGS, "buffered": [BUFFERED]}
    arguments = folder, parallel, tensor, port, states, factors
    sent, (scores, packed) = refitted("vllm_refit.py", job, tmp_path, send, *arguments)
    assert sum(wire for wire, _ in sent) == 0  # one host: through shared memory
    sizes = {meeting: sum(sizes[meeting] for _, sizes in sent) for meeting in MEETINGS}
    assert 10 * sizes[ADAPTERS] == 10 * sizes[BUFFERED] < sizes[WEIGHTS] == sizes[MERGED]
    for model, found in zip(models, scores[:3], strict=True):
        require_model(model, found, tolerance)
    first, second = packed[3:5]
    assert [first, second] == packed[5:7] == packed[7:]  # to the byte, on every worker
    for one, base, other in zip(first, packed[2], second, strict=True):
        assert one.keys() == base.keys() == other.keys()
        assert {name for name in one if one[name] != base[name]} == {name for name in one if one[name] != other[name]}
        assert sum(one[name] != base[name] for name in one) >= 4
    for one, other in zip(2 * scores[3:5], scores[5:], strict=True):
        for ours, theirs in zip(one, other, strict=True):
            assert np.array_equal(ours.logprobs, theirs.logprobs)
