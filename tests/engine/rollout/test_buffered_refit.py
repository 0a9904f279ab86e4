"""A real vLLM engine samples while new weights arrive in a buffer, and holds the same bytes afterwards as in place."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import PrefixStore, TCPStore

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import family_of, read_config
from cascade_rl.engine.refit.group import Terms, join_as_trainer
from cascade_rl.engine.refit.transport import Header

from .buffered_refit import MEETING, SAMPLED, Told
from .refitted_engine import TRAINERS, Held, State, joined_store, refitted, require_model, state_of
from .tiny_models import build, write_config

# test_vllm_refit.py has weights that arrive in a buffer in each run of the tests, without samples beside them
pytestmark = pytest.mark.long

CASES = [
    ("nemotron_h", ParallelConfig(tensor=2, expert=2, sequence=True), 1, 2e-3),
    ("qwen3_moe", ParallelConfig(pipeline=2), 2, 1e-4),
    ("deepseek_v3", ParallelConfig(tensor=2, expert=2, sequence=True), 1, 1e-4),
]
CHECKS = ["sums", "digests", "none", "sums"]
MODELS = [1, 2, 1, 2]  # by their seeds


def send(folder: Path, parallel: ParallelConfig, workers: int, port: int, states: list[State]) -> int:
    """A trainer rank that has the weights of one model after the other; returns the bytes it put on a wire.

    Those of the last model stop half-way until the engine has sampled."""
    rank, hf = int(os.environ["RANK"]), read_config(folder)
    store, held = joined_store(rank, port), Held(family_of(hf).name_map(hf), rank, parallel)
    terms = Terms(hf, parallel, TRAINERS, workers, bucket_bytes=100_000, seconds=600.0)
    sender = join_as_trainer(PrefixStore(MEETING, store), rank, terms, held.tensors, torch.device("cpu"))
    for version, (state, check) in enumerate(zip(states, CHECKS, strict=True)):
        held.become(state)
        if version == len(CHECKS) - 1:
            assert len(sender._rounds) > 2  # two are in flight
            sender._start = partial(when_sampled, sender._start, store)  # type: ignore[method-assign]
        sender.send(version, check)
    return sender.group.sent["payload"]


def when_sampled(start: Callable[..., Any], store: TCPStore, header: Header, *how: Any) -> Any:
    if header.number == 2:  # the first is in the buffer
        store.wait([SAMPLED])
    return start(header, *how)


@pytest.mark.parametrize(("family", "parallel", "tensor", "tolerance"), CASES)
def test_an_engine_samples_while_its_next_weights_arrive(
    family: str, parallel: ParallelConfig, tensor: int, tolerance: float, port: int, tmp_path: Path
) -> None:
    folder = write_config(family, tmp_path / "model")
    models = [build(family, seed) for seed in MODELS]
    job = {"model": str(folder), "tensor": tensor, "port": port, "checks": CHECKS}
    arguments = folder, parallel, tensor, port, list(map(state_of, models))
    sent, found = refitted("buffered_refit.py", job, tmp_path, send, *arguments)
    assert sum(sent) == 0  # one host: through shared memory
    told = Told(**found)
    for model, scores in zip(models, told.scores, strict=True):
        require_model(model, scores, tolerance)
    require_undisturbed(told)
    require_as_in_place(told)


def require_undisturbed(told: Told) -> None:
    """While weights arrive, the engine samples the bits that it sampled before: no step has seen a part of them."""
    for before, meanwhile in zip(told.before, told.meanwhile, strict=True):
        assert meanwhile.versions == before.versions == ((2, 0),)
        assert meanwhile.token_ids.tolist() == before.token_ids.tolist()
        assert meanwhile.logprobs.tobytes() == before.logprobs.tobytes()
    ((old, _), (new, switch)) = told.across[0].versions
    assert (old, new) == (2, 3)
    assert 5 < switch < 40


def require_as_in_place(told: Told) -> None:
    """Each worker, in all its tensors and in what it computes with those that kernels keep for themselves."""
    assert told.layers[0] == told.layers[2] != told.layers[1] == told.layers[3]
    for in_place, buffered in zip(told.scores[1], told.scores[3], strict=True):
        assert buffered.logprobs.tobytes() == in_place.logprobs.tobytes()
