"""Records the experts that vLLM chose, for model runners that cannot return them themselves.

vLLM's model runner V2 returns `routed_experts` with each sample. The CPU has only runner V1. There a `RouteRecorder` in
the worker and a `RouteCollector` at the scheduler replace vLLM's connector, with the same field, shape and rule: the
choice made when a token was first computed is kept, even if its keys and values are recomputed later (verl#6029,
verl#6046).
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from cascade_rl.engine.rollout.vllm_worker.moe_layers import moe_layers


class RouteCollector:
    """The scheduler's `aux_output_connector`: asks the workers for the rows of each request that finishes."""

    def __init__(self, executor: Any):
        self._executor = executor
        executor.collective_rpc(record)

    def take_output(self, request: Any, _worker_output: Any) -> np.ndarray | None:
        """All rows of a finished request, [prompt + generated - 1, layers, topk]; None if it is not finished."""
        if not request.is_finished():
            return None
        rows = self._executor.collective_rpc(take, args=(request.request_id,))[0]
        return rows[: request.num_tokens - 1]

    def request_finished(self, _request: Any) -> None:
        """Nothing to do: the recorder learns of it in the next step."""

    def build_connector_meta(self, *_: Any) -> None:
        """Nothing to do: the recorder reads the model runner."""

    def reset(self) -> None:
        """Nothing to do: rows belong to tokens, and outlive the caches."""


def record(worker: Any) -> None:
    """Starts recording in the first worker. The others route the same tokens to the same experts."""
    worker.route_recorder = RouteRecorder(worker.model_runner) if worker.rank == 0 else None


def take(worker: Any, request_id: str) -> np.ndarray | None:
    """The rows recorded for a request, from the first worker only."""
    return worker.route_recorder.rows(request_id) if worker.route_recorder else None


class RouteRecorder:
    """The capture hook of one worker. Rows are int16 [tokens, all layers, topk]; layers without experts stay 0."""

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

    def rows(self, request_id: str) -> np.ndarray:
        """All rows recorded for a request, [tokens, layers, topk]."""
        self._rows[request_id] = [np.concatenate(self._rows[request_id])]
        return self._rows[request_id][0]

    def _capture(self, layer: int, topk_ids: torch.Tensor) -> None:
        self._step[: len(topk_ids), layer] = topk_ids

    def _execute_and_record(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        for finished in scheduler_output.finished_req_ids:
            self._rows.pop(finished, None)
            self._recorded.pop(finished, None)
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
