"""One engine per family for all tests of this folder, started side by side: a start costs 10 s of CPU."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout.client import RolloutEngine
from cascade_rl.engine.rollout.last_parts import new_folder
from cascade_rl.launchers.local.held_port import held_port

from .tiny_models import FAMILIES, VOCAB, Reference, build, write_config, write_image

CONFIG = RolloutConfig(max_model_len=256, max_num_seqs=32, kv_cache_mib=64, part_every_s=0.2)


class Tiny:
    """An engine, and two sets of weights with their oracles."""

    def __init__(self, family: str, folder: Path, config: RolloutConfig = CONFIG):
        self.family = family
        # vLLM's Mamba kernels on the CPU use approximate exponentials.
        self.tolerance = 2e-3 if family == "nemotron_h" else 1e-4
        self.left = folder / "left"
        model, log = write_config(family, folder), folder / "engine.log"
        self.engine = RolloutEngine(model, config, seed=0, log_path=log, last_parts=new_folder(self.left))
        models = [build(family, seed) for seed in (1, 2)]
        self.images = [write_image(model, folder / f"{i}.safetensors") for i, model in enumerate(models)]
        self.references = [Reference(model) for model in models]

    def load(self, index: int) -> Reference:
        """Give the engine one of the two sets of weights, as its next version."""
        self.engine.update_weights(self.images[index], next_version(self.engine))
        return self.references[index]

    def sample(self, requests: list[Request]) -> dict[str, Rollout]:
        self.engine.submit(requests)
        return {rollout.id: rollout for rollout in self.engine.results()}


def next_version(engine: RolloutEngine) -> int:
    return 0 if engine.version is None else engine.version + 1


def make_requests(count: int, sampling: Sampling, seed: int = 0) -> list[Request]:
    """Prompts of 5 to 24 tokens, drawn once and for all."""
    draw = np.random.default_rng(seed)
    prompts = [draw.integers(3, VOCAB, draw.integers(5, 25)).tolist() for _ in range(count)]
    return [Request(f"{seed}/{i}", tuple(prompt), sampling, seed=i) for i, prompt in enumerate(prompts)]


def kept_sets(rollout: Rollout) -> list[list[int]]:
    """The tokens from which each token of the answer was drawn, in the order of their ids."""
    assert rollout.kept is not None
    assert (rollout.kept.ids.dtype, rollout.kept.counts.dtype) == (np.int32, np.int32)
    return [sorted(ids.tolist()) for ids in np.split(rollout.kept.ids, rollout.kept.counts.cumsum()[:-1])]


@pytest.fixture(scope="package")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Tiny]]:
    tinies = {family: Tiny(family, tmp_path_factory.mktemp(family)) for family in FAMILIES}
    yield tinies
    for tiny in tinies.values():
        tiny.engine.close()


@pytest.fixture(params=FAMILIES)
def tiny(request: pytest.FixtureRequest, engines: dict[str, Tiny]) -> Tiny:
    return engines[request.param]


@pytest.fixture
def port() -> Iterator[int]:
    """Of the store where trainers and engine meet."""
    with held_port() as port:
        yield port
