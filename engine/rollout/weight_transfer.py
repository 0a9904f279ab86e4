"""New weights for a running engine through vLLM's own weight-transfer registry: the backend `cascade_image`.

The trainer fills one memory-mapped safetensors file (`engine/models/hf_image.py`, under /dev/shm when trainer
and engine share a host); each worker maps the same file and loads its shards in checkpoint format through
vLLM's layerwise reload. Nothing of the file is referenced afterwards.
"""

from dataclasses import dataclass

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.utils import get_tensor_load_numel

from cascade_rl.engine.rollout import vllm_cpu_patches

BACKEND = "cascade_image"


def register() -> None:
    """Make the backend known to vLLM in this process."""
    WeightTransferEngineFactory.register_engine(BACKEND, ImageTransferEngine)


@dataclass
class ImageInit(WeightTransferInitInfo):
    """Nothing to agree on beforehand."""


@dataclass
class ImageUpdate(WeightTransferUpdateInfo):
    image_path: str


class ImageTransferEngine(WeightTransferEngine[ImageInit, ImageUpdate]):
    """Worker side. An image that lacks a tensor is an error; vLLM itself warns and keeps the old weights."""

    init_info_cls = ImageInit
    update_info_cls = ImageUpdate

    def init_transfer_engine(self, init_info: ImageInit) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: ImageUpdate) -> None:
        with safe_open(update_info.image_path, framework="pt") as image:
            self.model.load_weights((name, image.get_tensor(name)) for name in image.keys())  # noqa: SIM118

    def finish_weight_update(self) -> None:
        if stale := _stale_layers(self.model, self.model_config.hf_text_config.tie_word_embeddings):
            raise ValueError(f"expected an image of all weights, found too few for: {', '.join(stale)}")
        finalize_layerwise_reload(self.model, self.model_config)
        vllm_cpu_patches.refresh_packed(self.model)

    def shutdown(self) -> None:
        pass


def _stale_layers(model: torch.nn.Module, tied: bool) -> list[str]:
    """Layers that wait for more elements than the image had. A finished layer no longer waits."""
    return [name for name, layer in model.named_modules() if _is_stale(layer, tied)]


def _is_stale(layer: torch.nn.Module, tied: bool) -> bool:
    info = get_layerwise_info(layer)
    if not info.can_load() or is_deferred_attention_layer(layer):
        return False
    if isinstance(layer, ParallelLMHead) and tied:
        return False  # its weight is the embedding's
    if isinstance(layer, VocabParallelEmbedding) and info.load_numel:
        return False  # the rows that pad the vocabulary never arrive
    needed = sum(get_tensor_load_numel(parameter) for parameter in layer.parameters(recurse=False))
    return info.load_numel < needed
