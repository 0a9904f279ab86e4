"""Three-turn episodes on real engines: the log-probs of the joined sample are those of the weights, token by token."""

from collections.abc import Callable

import numpy as np
import pytest

from cascade_rl.engine.core.rollouts import Request, Sampling
from cascade_rl.engine.sync.sampler import Batch
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.data.tokenizer import encode_prompt
from cascade_rl.rl_stages.scoring.episodes import Episodes
from cascade_rl.rl_stages.scoring.scored_sample import Sample
from cascade_rl.rl_stages.tasks.domains import DOMAINS, Domain
from tests.rl_stages.environments.scripted import QUESTION, TASK, TOKENIZER, ScriptedEnvironment

from .conftest import Tiny
from .test_rollouts import MOE
from .tiny_models import VOCAB

SAMPLES = 6
STOPS = tuple(range(0, VOCAB, 8))  # a random model hardly ever says one given stop token
SAMPLING = Sampling(60, stop_token_ids=STOPS, max_turns=3, max_total_tokens=256)


def draw(tiny: Tiny, answer: Callable[[str], str | float], monkeypatch: pytest.MonkeyPatch) -> Batch:
    monkeypatch.setitem(
        DOMAINS, "scripted", Domain("scripted", lambda row: {}, None, environment=lambda: ScriptedEnvironment(answer))
    )
    prompt = tuple(encode_prompt(TOKENIZER, [QUESTION]))
    requests = [Request(f"{i}", prompt, SAMPLING, seed=i) for i in range(SAMPLES)]
    with Episodes(TOKENIZER) as episodes:
        episodes.begin(TASK, requests)
        batch = Batch(tiny.engine, requests, episodes.follow)
        assert batch.collect()
    return batch


def test_a_joined_sample_has_the_log_probs_of_the_weights(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = tiny.load(0)
    rollouts = draw(tiny, lambda text: "two cups and three books", monkeypatch).rollouts
    assert [rollout.turns for rollout in rollouts.values()].count(3) >= SAMPLES - 2
    for rollout in rollouts.values():
        sequence = Sample(TASK, rollout, "", Verdict.scored(1.0), 1.0).sequence(1.0)
        ids = sequence.token_ids
        assert (sequence.routes is not None) == (tiny.family in MOE)
        table = reference(ids, routes=sequence.routes)
        gaps = np.abs(table[np.arange(len(ids) - 1), ids[1:]] - sequence.per_token["rollout_logprob"])
        assert gaps[sequence.loss_mask].max() < tiny.tolerance
        assert np.exp(gaps[sequence.loss_mask]).mean() < 1.001  # tme_bound
        if rollout.turns > 1:
            shown = ~sequence.loss_mask[len(rollout.prompt_ids) - 1 :]
            assert shown.any()
            assert not sequence.per_token["rollout_logprob"][len(rollout.prompt_ids) - 1 :][shown].any()
        assert rollout.versions == ((tiny.engine.version, 0),)


def test_an_episode_is_repeated_by_its_seeds_alone(engines: dict[str, Tiny], monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = engines["qwen3_moe"]
    tiny.load(0)
    first, again = (draw(tiny, lambda text: "two cups", monkeypatch).rollouts for _ in range(2))
    assert {name: rollout.token_ids.tolist() for name, rollout in first.items()} == {
        name: rollout.token_ids.tolist() for name, rollout in again.items()
    }
