"""New weights for a running engine through vLLM's own weight-transfer registry, backend `cascade`.

With a trainer, this is the worker's end of a planned refit (`engine/refit/transport.py`). Slices arrive from the ranks
that hold them, and are written into the layer in the layout in which vLLM loads it. vLLM's layerwise reload packs each
complete layer and copies it in place. Of adapters only the factors arrive, and the layers are made of them
(adapted_layers.py).

What waits for trainer ranks is done in a thread, so that the engine decodes meanwhile: the meeting, and the arrival of
weights that are buffered. The thread writes into a buffer alone (`weight_buffer.py`). Only the worker's own thread,
between two steps, writes into layers.

Without a trainer (`cascade parity`) the weights come from safetensors files with Hugging Face names.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.distributed import PrefixStore, TCPStore
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import _layerwise_process, get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import materialize_layer
from vllm.model_executor.model_loader.reload.utils import get_tensor_load_numel

from cascade_rl.engine.backend.wire import own_stream
from cascade_rl.engine.core.settings import Check
from cascade_rl.engine.models.name_map import Cut
from cascade_rl.engine.refit.vllm_map import WHOLE, WorkerPlace
from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches
from cascade_rl.engine.rollout.vllm_worker.meeting import Meeting
from cascade_rl.engine.rollout.vllm_worker.weight_buffer import WeightBuffer

BACKEND = "cascade"


def register() -> None:
    """Register the backend with vLLM in this process."""
    WeightTransferEngineFactory.register_engine(BACKEND, CascadeTransferEngine)


@dataclass
class JoinInfo(WeightTransferInitInfo):
    """The fields of `protocol.JoinRefit`; each meeting has its own name."""

    address: str
    port: int
    meeting: str
    first_rank: int


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The source of new weights: a file, or else the trainer's ranks, which send now or have sent into the buffer."""

    image_path: str | None = None
    version: int = -1
    check: Check = "none"


class CascadeTransferEngine(WeightTransferEngine[JoinInfo, UpdateInfo]):
    """The worker's side. Raises RefitError, which the trainer's ranks raise too.

    A missing tensor is an error; vLLM itself would warn and keep the old one.
    """

    init_info_cls = JoinInfo
    update_info_cls = UpdateInfo
    _reloaded: Any

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._beside = ThreadPoolExecutor(1, "refit")
        self._meeting: Future[Meeting] | None = None
        self._buffer: WeightBuffer | None = None
        self._arrived: Future[WeightBuffer] | None = None

    def init_transfer_engine(self, init_info: JoinInfo) -> None:
        """Called on every worker while every trainer rank joins; again when an engine has been replaced."""
        cut = Cut(get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size())
        place = WorkerPlace(cut, cut if self.parallel_config.enable_expert_parallel else WHOLE)
        self._meeting = None  # its memory goes before the next one's comes
        self._meeting = self._beside.submit(
            self._join, init_info, init_info.first_rank + cut.rank, place, as_loaded(self.model)
        )

    def buffer_weights(self, version: int, check: Check) -> None:
        """From now on the trainer's ranks may send: the weights go into a buffer, and the next `receive_weights` puts
        them into the layers."""
        assert self._meeting
        self._arrived = self._beside.submit(self._arrive, self._meeting, version, check, as_loaded(self.model))

    def start_weight_update(self) -> None:
        part = self._meeting.result().part if self._meeting else None
        self._reloaded = part or self.model
        initialize_layerwise_reload(self._reloaded)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        if update_info.image_path is not None:
            self.model.load_weights(_tensors(Path(update_info.image_path)))
            return
        assert self._meeting
        meeting, layers = self._meeting.result(), LayerwiseParameters(self.model)
        if self._arrived:
            self._arrived.result().pour(layers)
            self._arrived = None
        else:
            meeting.receive(update_info.version, update_info.check, layers)
        meeting.make(layers)

    def finish_weight_update(self) -> None:
        if stale := _stale_layers(self.model, self.model_config.hf_text_config.tie_word_embeddings):
            raise ValueError(f"expected all weights, found too few for: {', '.join(stale)}")
        finalize_layerwise_reload(self._reloaded, self.model_config)
        vllm_cpu_patches.refresh_packed(self.model)

    def shutdown(self) -> None:
        pass

    def _join(self, info: JoinInfo, rank: int, place: WorkerPlace, loaded: Mapping[str, torch.Tensor]) -> Meeting:
        with own_stream(self.device):
            store = PrefixStore(info.meeting, TCPStore(info.address, info.port, wait_for_workers=False))
            return Meeting.join(store, rank, place, self.model, loaded, self.device)

    def _arrive(
        self, joined: Future[Meeting], version: int, check: Check, loaded: Mapping[str, torch.Tensor]
    ) -> WeightBuffer:
        with own_stream(self.device):
            meeting = joined.result()
            copied = meeting.copied(loaded)
            if self._buffer is None or self._buffer.names != copied.keys():
                self._buffer = WeightBuffer(copied, self.device)
            meeting.receive(version, check, self._buffer)
            return self._buffer


def _tensors(image: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a safetensors file, or of all files that an index (.json) names."""
    index = json.loads(image.read_text())["weight_map"].values() if image.suffix == ".json" else (image.name,)
    for name in sorted(set(index)):
        with safe_open(image.with_name(name), framework="pt") as file:
            yield from ((tensor, file.get_tensor(tensor)) for tensor in file.keys())  # noqa: SIM118


def _stale_layers(model: torch.nn.Module, tied: bool) -> list[str]:
    """Names of layers that still wait for elements after the update. A finished layer no longer waits."""
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


def as_loaded(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters in the shapes in which vLLM loads them; on the meta device if they have been packed since. Latent
    attention has some that are not loaded: vLLM makes them of others' when all are there."""
    loaded = dict[str, torch.Tensor]()
    for name, parameter in model.named_parameters():
        module, _, own = name.rpartition(".")
        layer = model.get_submodule(module)
        recorded, _ = get_layerwise_info(layer).restore_metadata
        if own in recorded or not is_deferred_attention_layer(layer):
            loaded[name] = recorded.get(own, parameter)
    return loaded


class LayerwiseParameters:
    """The `Destination` in a model that is being reloaded. A layer has memory from its first slice to its last."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._missing = Counter(name.rpartition(".")[0] for name in as_loaded(model))

    def tensor(self, parameter: str) -> torch.Tensor:
        module, _, name = parameter.rpartition(".")
        layer = self._model.get_submodule(module)
        if getattr(layer, name).is_meta:
            materialize_layer(layer, get_layerwise_info(layer))
            if isinstance(layer, VocabParallelEmbedding):
                getattr(layer, name).zero_()  # the rows that pad the vocabulary never arrive
        return getattr(layer, name).data

    def filled(self, parameter: str) -> None:
        module = parameter.rpartition(".")[0]
        self._missing[module] -= 1
        if not self._missing[module]:
            layer = self._model.get_submodule(module)
            _layerwise_process(layer, get_layerwise_info(layer))
