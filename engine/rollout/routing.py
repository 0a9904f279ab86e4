"""Recording of the experts that vLLM chose, for model runners that cannot return them themselves.

vLLM's model runner V2 returns `routed_experts` with each sample. The CPU has only runner V1, so a
`RouteRecorder` takes the place of vLLM's connector there: the same field, the same shape, the same rule that
the choice made when a token was first computed stays, also when its keys and values are recomputed later
(verl#6029, #6046).
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from cascade_rl.engine.rollout.worker import moe_layers


class RouteRecorder:
    """The scheduler's `aux_output_connector` and the worker's capture hook at once: both live in one process.

    Rows are int16 [tokens, all layers, topk]; layers without experts stay 0.
    """

    def __init__(self, model_runner: Any):
        self._runner = model_runner
        layers = moe_layers(model_runner.get_model())
        self._step = torch.zeros(
            model_runner.scheduler_config.max_num_batched_tokens,
            model_runner.model_config.get_total_num_hidden_layers(),
            layers[0].router.top_k,
            dtype=torch.int16,
        )  # [step's tokens, layers, topk]
        self._rows: dict[str, list[np.ndarray]] = {}
        self._recorded: dict[str, int] = {}
        for layer in layers:
            layer.router.set_capture_fn(partial(self._capture, layer.layer_id))
        self._execute_model = model_runner.execute_model
        model_runner.execute_model = self._execute_and_record

    def take_output(self, request: Any, _worker_output: Any) -> np.ndarray | None:
        """All rows of a finished request, [prompt + generated - 1, layers, topk]; None before."""
        if not request.is_finished():
            return None
        return np.concatenate(self._rows[request.request_id])[: request.num_tokens - 1]

    def request_finished(self, request: Any) -> None:
        """Forget a request. Also called for a preempted one, whose rows are still wanted."""
        if request.is_finished():
            self._rows.pop(request.request_id, None)
            self._recorded.pop(request.request_id, None)

    def build_connector_meta(self, *_: Any) -> None:
        """The recorder reads the worker directly."""

    def reset(self) -> None:
        """Rows outlive the caches: they belong to tokens."""

    def _capture(self, layer: int, topk_ids: torch.Tensor) -> None:
        self._step[: len(topk_ids), layer] = topk_ids

    def _execute_and_record(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        output = self._execute_model(scheduler_output, *args, **kwargs)
        if scheduler_output.total_num_scheduled_tokens:
            self._record(scheduler_output.num_scheduled_tokens)
        return output

    def _record(self, scheduled: dict[str, int]) -> None:
        batch = self._runner.input_batch
        step = self._step.numpy()[: sum(scheduled.values())].copy()
        end = 0
        for request_id, start in zip(batch.req_ids, batch.num_computed_tokens_cpu.tolist(), strict=False):
            count = scheduled.get(request_id, 0)
            begin, end = end, end + count
            known = self._recorded.get(request_id, 0)
            if start + count > known:
                self._rows.setdefault(request_id, []).append(step[begin + known - start : end])
                self._recorded[request_id] = start + count
