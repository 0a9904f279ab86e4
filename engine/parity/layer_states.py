"""Hidden states after every layer, of the Megatron model under any layout and of transformers, by the same names.

A layer is a symbol of the hybrid pattern. A decoder layer of Llama or Qwen3 is two of them: the input of its second
norm is the hidden state after its attention.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor
from transformers import PreTrainedModel

from cascade_rl.engine.backend.zigzag import gather
from cascade_rl.engine.models import family_of
from cascade_rl.engine.parity.certificate import LayerGap
from cascade_rl.engine.sync.probe import whole_sequence
from cascade_rl.engine.train.packing import unpack
from cascade_rl.engine.train.trainer import Trainer

KINDS = {"M": "Mamba", "G": "delta net", "*": "attention", "+": "attention", "-": "MLP", "E": "experts"}
Keep = Callable[[str, Any], None]


def layer_gaps(megatron: dict[str, np.ndarray], transformers: dict[str, np.ndarray]) -> tuple[LayerGap, ...]:
    """The gap of each layer, in the order of the model. Both arguments hold float32 [n - 1, hidden] by layer."""
    return tuple(
        LayerGap(layer, float((np.linalg.norm(megatron[layer] - theirs, axis=-1) / _norm(theirs)).max()))
        for layer, theirs in transformers.items()
    )


def megatron_states(trainer: Trainer, ids: Sequence[int]) -> dict[str, np.ndarray]:
    """float32 [n - 1, hidden] by layer, on rank 0; empty on others. Collective. The routers choose the experts."""
    kept: dict[str, list[Tensor]] = defaultdict(list)
    sequences = [whole_sequence(ids)]
    with _watched(_megatron_sites(trainer), lambda layer, states: kept[layer].append(states.float())):
        trainer.log_probs(sequences)
    batches = trainer.local_batches(sequences)
    group = parallel_state.get_context_parallel_group()
    whole = {
        layer: unpack(
            [
                gather(_rows(trainer, states), batch.cu_seqlens, group)
                for states, batch in zip(calls, batches, strict=True)
            ],
            batches,
        )
        for layer, calls in kept.items()
    }
    return _on_rank0({layer: found[0].astype(np.float32) for layer, found in whole.items() if found})


def transformers_states(model: PreTrainedModel, hf_config: dict, ids: Sequence[int]) -> dict[str, np.ndarray]:
    """float32 [n - 1, hidden] by layer, in the order of the model."""
    kept: dict[str, np.ndarray] = {}
    pattern = family_of(hf_config).pattern(hf_config)

    def keep(layer: str, states: Tensor) -> None:
        kept[layer] = states[0].float().numpy()

    with _watched(_transformers_sites(model, pattern), keep), torch.no_grad():
        model(torch.tensor([ids[:-1]]))
    return kept


def name(pattern: str, layer: int) -> str:
    return f"layer {layer} ({KINDS[pattern[layer]]})"


Site = tuple[torch.nn.Module, bool, str]
"""A module, whether to take its input instead of its output, and the name of the layer that these states come after."""


def _megatron_sites(trainer: Trainer) -> Iterator[Site]:
    pattern = family_of(trainer.hf_config).pattern(trainer.hf_config)
    for chunk in trainer.chunks:
        if chunk.pre_process:
            yield chunk.embedding, False, "embedding"
        for layer in chunk.decoder.layers:
            yield layer, False, name(pattern, layer.layer_number - 1)
        if chunk.post_process:
            yield chunk.decoder.final_norm, False, "final norm"


def _transformers_sites(model: PreTrainedModel, pattern: str) -> Iterator[Site]:
    base: Any = model.base_model
    yield base.get_input_embeddings(), False, "embedding"
    halves = len(pattern) // len(base.layers)
    for number, layer in enumerate(base.layers):
        if halves == 2:
            yield layer.post_attention_layernorm, True, name(pattern, 2 * number)
        yield layer, False, name(pattern, halves * (number + 1) - 1)
    yield base, False, "final norm"


@contextmanager
def _watched(sites: Iterator[Site], keep: Keep) -> Iterator[None]:
    """Passes the name of each site's layer and its states to `keep`."""
    with ExitStack() as hooks:
        for module, reads_input, layer in sites:
            hooks.enter_context(_hook(module, reads_input, layer, keep))
        yield


def _hook(module: torch.nn.Module, reads_input: bool, layer: str, keep: Keep) -> Any:
    if reads_input:
        return module.register_forward_pre_hook(lambda _module, args: keep(layer, _states(args)))
    return module.register_forward_hook(lambda _module, _args, output: keep(layer, _states(output)))


def _states(value: Any) -> Tensor:
    """The hidden states in a layer's input or output, which is a tensor, or a tuple or record that begins with them."""
    return value if isinstance(value, Tensor) else value[0]


def _rows(trainer: Trainer, states: Tensor) -> Tensor:
    """[tokens / cp, hidden] of Megatron's [tokens / cp / tp if sequence parallel, 1, hidden]."""
    rows = states.squeeze(1)
    return gather_from_sequence_parallel_region(rows) if trainer.parallel.sequence else rows


def _on_rank0(states: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The states of all ranks, on rank 0. Ranks that hold the same layer hold the same states."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(states, everyone if dist.get_rank() == 0 else None)
    return {layer: found for held in everyone if held for layer, found in held.items()}


def _norm(states: np.ndarray) -> np.ndarray:
    """The norm of each state, [tokens], above zero."""
    return np.maximum(np.linalg.norm(states, axis=-1), np.finfo(np.float32).tiny)
