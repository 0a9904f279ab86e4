"""What vLLM loads into each of its workers before the model is built (`worker_extension_cls`)."""

from typing import TYPE_CHECKING, Any

from cascade_rl.engine.rollout.server_process import die_with_parent
from cascade_rl.engine.rollout.vllm_worker import sampler_logprob, vllm_cpu_patches, weight_transfer

if TYPE_CHECKING:
    import torch

die_with_parent()
vllm_cpu_patches.apply()
weight_transfer.register()


class WorkerExtension:
    """Methods added to vLLM's worker, called through `collective_rpc`."""

    model_runner: Any

    def moe_layers(self) -> list[int]:
        """Indices, among all layers, of the layers with routed experts."""
        return [layer.layer_id for layer in moe_layers(self.model_runner.get_model())]

    def use_trainer_logprob(self) -> None:
        """From now on, log-probs are those of the trainer's function."""
        sampler_logprob.install(self.model_runner)


def moe_layers(model: "torch.nn.Module") -> list[Any]:
    """The modules of a vLLM model that route tokens to experts, in layer order."""
    from vllm.model_executor.layers.fused_moe.layer import MoERunner

    return [module for module in model.modules() if isinstance(module, MoERunner)]
