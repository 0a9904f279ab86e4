"""Extends vLLM's workers (`worker_extension_cls`). Each worker imports this before it builds the model."""

from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.parent_death import die_with_parent
from cascade_rl.engine.core.settings import Check
from cascade_rl.engine.rollout.vllm_worker import sampler_logprob, vllm_cpu_patches, weight_transfer
from cascade_rl.engine.rollout.vllm_worker.moe_layers import moe_layers

if TYPE_CHECKING:
    pass

if parent_process():  # otherwise this is the server itself, which has its own way to end
    die_with_parent()
vllm_cpu_patches.apply()
weight_transfer.register()


class WorkerExtension:
    """Methods added to vLLM's worker. They are called through `collective_rpc`."""

    model_runner: Any
    weight_transfer_engine: weight_transfer.CascadeTransferEngine

    def moe_layers(self) -> list[int]:
        """Indices, among all layers, of the layers with routed experts."""
        return [layer.layer_id for layer in moe_layers(self.model_runner.get_model())]

    def buffer_weights(self, version: int, check: Check) -> None:
        """Weights arrive in a buffer from now on, beside the layers."""
        self.weight_transfer_engine.buffer_weights(version, check)

    def use_trainer_logprob(self) -> None:
        """Makes the worker compute all log-probs with the trainer's function."""
        sampler_logprob.install(self.model_runner)
