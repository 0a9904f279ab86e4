"""Runs an engine in this process and writes down what its head was given and which log-probs came back.

    python captured_engine.py MODEL_FOLDER DTYPE IMAGE OUTPUT

An engine of its own, because hidden states never leave the process of an engine.
"""

import sys
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import torch

from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling, Scored
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout.protocol import Score, Settings, Submit, UpdateWeights
from cascade_rl.engine.rollout.server import Server

TEMPERATURES = (1.0, 0.6, 1.4, 0.0)
SCORED = ((3, 70), (200, 230), (100, 102))  # ranges of token ids
V2_TEMPERATURES = torch.tensor([0.5, 9.0, 0.0, 2.0])  # by request slot


class Captured:
    """A server with its end of the connection, and all calls of its model's head."""

    def __init__(self, folder: str, dtype: Any, image: str):
        config = RolloutConfig(max_model_len=256, max_num_seqs=16, kv_cache_mib=64, dtype=dtype, part_every_s=3600)
        self.trainer, connection = Pipe()
        self.server = Server(connection, Settings(folder, config, seed=0))
        self.runner = self.server._engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        self.calls: list[dict[str, Any]] = []
        self.runner.model.logits_processor.register_forward_hook(self._capture)
        self.ask(UpdateWeights(image, 0))

    def _capture(self, _module: Any, inputs: tuple, logits: torch.Tensor) -> None:
        requests = [name.rsplit("-", 1)[0] for name in self.runner.input_batch.req_ids]
        self.calls.append({"requests": requests, "hidden": inputs[1].clone(), "logits": logits.clone()})

    def ask(self, command: Any) -> Any:
        self.server._handle(command)
        return self.trainer.recv().value

    def sample(self, requests: list[Request]) -> tuple[list[dict[str, Any]], list[Rollout]]:
        self.calls.clear()
        self.server._handle(Submit(tuple(requests)))
        while self.server._has_work():
            self.server._step()
        return list(self.calls), [self.trainer.recv() for _ in requests]

    def score(self, sequences: list[list[int]]) -> tuple[list[dict[str, Any]], list[Scored]]:
        self.calls.clear()
        scored = self.ask(Score(tuple(map(tuple, sequences))))
        return list(self.calls), scored


def runner_v2(model: torch.nn.Module) -> Any:
    """What `install` sees of model runner V2; its worker scores a whole prompt by vLLM's own chunked function."""
    from vllm.v1.worker.gpu.sample import prompt_logprob

    return SimpleNamespace(
        get_model=lambda: model,
        sampler=SimpleNamespace(sampling_states=SimpleNamespace(temperature=SimpleNamespace(gpu=V2_TEMPERATURES))),
        prompt_logprobs_worker=SimpleNamespace(
            compute_prompt_logprobs=prompt_logprob.compute_prompt_logprobs_with_chunking
        ),
    )


def by_runner_v2(model: torch.nn.Module, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
    """Sampled and given tokens as model runner V2 asks for their log-probs."""
    from vllm.v1.worker.gpu.sample import sampler

    from cascade_rl.engine.rollout.vllm_worker import sampler_logprob

    runner = runner_v2(model)
    sampler_logprob.install(runner)
    token_ids, slots = torch.arange(len(hidden)) + 7, torch.arange(len(hidden)) % len(V2_TEMPERATURES)
    score = runner.prompt_logprobs_worker.compute_prompt_logprobs
    _, given, _ = score(token_ids, hidden, model.compute_logits, 0, "processed_logits")
    sampled = sampler.compute_topk_scores(
        model.compute_logits(hidden), 0, token_ids, None, expanded_idx_mapping=slots, logits_mode=True
    ).logprobs
    left = model.compute_logits(hidden)
    left[::2, 9:] = -torch.inf  # of every second row 9 are left
    kept = sampler.compute_topk_scores(
        left, left.shape[1], token_ids % 9, None, expanded_idx_mapping=slots, logits_mode=True
    )
    return {
        "hidden": hidden,
        "token_ids": token_ids,
        "slots": slots,
        "given": given,
        "sampled": sampled,
        "kept_ids": kept.logprob_token_ids,
        "kept": kept.logprobs,
    }


def refusals(model: torch.nn.Module) -> list[str]:
    """Messages for a head that scales logits and for a vLLM without a function that is replaced."""
    from cascade_rl.engine.rollout.vllm_worker import sampler_logprob

    found = []
    for scale, runner in ((2.0, runner_v2(model)), (1.0, SimpleNamespace(get_model=lambda: model, sampler=object()))):
        model.logits_processor.scale = scale
        try:
            sampler_logprob.install(runner)
        except (ValueError, RuntimeError) as refusal:
            found.append(str(refusal))
    return found


def main(folder: str, dtype: str, image: str, output: str) -> None:
    captured = Captured(folder, dtype, image)
    requests = [
        Request(f"r{i}", tuple(range(5 + i, 12 + 2 * i)), Sampling(10, temperature=TEMPERATURES[i % 4]), seed=i)
        for i in range(8)
    ]
    sampling_calls, rollouts = captured.sample(requests)
    scoring_calls, scored = captured.score([list(range(*ids)) for ids in SCORED])
    model = captured.runner.model
    found = {
        "weight": model.lm_head.weight.clone(),
        "sampling_calls": sampling_calls,
        "rollouts": {r.id: {"token_ids": r.token_ids, "logprobs": r.logprobs} for r in rollouts},
        "scoring_calls": scoring_calls,
        "scored": [s.logprobs for s in scored],
        "v2": by_runner_v2(model, scoring_calls[1]["hidden"]),
        "refusals": refusals(model),
    }
    torch.save(found, output)


if __name__ == "__main__":
    with torch.inference_mode():
        main(*sys.argv[1:])
