"""One policy on this rank: log-probs of sequences, and one optimizer step on a global batch.

The loss contract: losses return sums. The one denominator of the global batch is known before the first
forward pass and divides once. Megatron's own scaling by micro-batches and by tokens is switched off, so that the
same global batch gives the same gradient for any split into micro-batches, data parallel ranks or pipeline stages
(Megatron-LM#4590 proposes this; verl#6957, prime-rl#2562 and SkyRL#1751 are losses that depended on the split).

A global batch is rank 0's. Every rank makes the same plan from its lengths, and gets the sequences of its own replica
alone (engine/backend/replicas.py).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor

from cascade_rl.engine.backend.machine import backend
from cascade_rl.engine.backend.ranks import any_rank, barrier, from_all, from_rank0, is_rank0, least
from cascade_rl.engine.backend.replicas import Replicas
from cascade_rl.engine.backend.zigzag import gather
from cascade_rl.engine.core.settings import DEFAULT_ROUTER, LoraConfig, OptimizerConfig, ParallelConfig, RouterConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.lora.adapters import Lora
from cascade_rl.engine.models import build_model, family_of, head_weight, load_hf
from cascade_rl.engine.models.build import chunks_of, passed_to
from cascade_rl.engine.models.flops import sequence_cost
from cascade_rl.engine.models.head import Head, add_scalar_head, load_scalar_head, save_scalar_head
from cascade_rl.engine.models.layout import token_multiple
from cascade_rl.engine.train.context_parallel import shard
from cascade_rl.engine.train.losses import Loss, StatesLoss, Sums
from cascade_rl.engine.train.packing import MicroBatch, empty_like, pack, unpack
from cascade_rl.engine.train.planner import plan_micro_batches
from cascade_rl.engine.train.schedule import learning_rate
from cascade_rl.kernels.linear_logprob import IGNORED
from cascade_rl.moe.balance import Balance, balance_metrics
from cascade_rl.moe.padding import ignore_padding
from cascade_rl.moe.router_replay import RouterReplay

Reader = Callable[[Tensor, Head, MicroBatch], dict[str, Tensor]]
ForwardStep = Callable[[Iterator[MicroBatch], Any], tuple[Tensor, Callable]]


@dataclass(frozen=True)
class _OptimizerStep:
    sums: dict[str, float]  # over its sequences, of each metric of the loss
    denominator: float
    grad_norm: float
    replay_fraction: float
    expert_tokens: np.ndarray  # int64 [expert layers, experts]


def read_logprob(states: Tensor, head: Head, batch: MicroBatch) -> dict[str, Tensor]:
    """The `Reader` of `Trainer.log_probs`."""
    return {"logprob": head.logprob(states, batch.targets, batch.temperature, batch.kept)[0]}


def _finalize_without_scaling(lora: Lora | None, model: list, _num_tokens: Tensor | None, **kwargs: Any) -> None:
    finalize_model_grads(model, None, **kwargs)
    if lora:
        lora.sum_whole_factors()


class Trainer:
    """Call `initialize_distributed` first. `token_budget` is the number of tokens of a micro-batch. With `scalar_head`
    the model is a reward model: its losses and readers get one number per hidden state instead of a vocabulary. Without
    an `optimizer` it only reads: it has no gradients, and no state beside its weights. With `lora` only adapters are
    trained; gates and their biases stay as they are.

    Methods that take sequences are collective. Those of rank 0 count; the other ranks may give none.

    Raises UserError as `build_model` does, or if this machine cannot train in the precision."""

    def __init__(
        self,
        hf_config: dict,
        parallel: ParallelConfig,
        optimizer: OptimizerConfig | None,
        *,
        total_steps: int,
        token_budget: int,
        seed: int,
        router: RouterConfig = DEFAULT_ROUTER,
        scalar_head: bool = False,
        lora: LoraConfig | None = None,
    ) -> None:
        backend().check_precision(parallel.precision)
        self.hf_config, self.parallel, self.router = hf_config, parallel, router
        self.total_steps, self.token_budget = total_steps, token_budget
        self.replicas = Replicas(_data_rank())
        self.module = build_model(hf_config, parallel, seed=seed, router=_frozen(router) if lora else router)
        self.chunks = chunks_of(self.module)
        if scalar_head:
            add_scalar_head(self.chunks[-1])
        self.lora = Lora(self.module, hf_config, lora, parallel, seed) if lora else None
        self.module.to(backend().device)
        self.config = self.chunks[0].config
        ignore_padding(self.module)
        pattern = family_of(hf_config).pattern(hf_config)
        self.replay = RouterReplay(self.module, pattern)
        self.expert_tokens = np.zeros((0, 0), np.int64)
        self.balance = Balance(self.module, pattern, self.config.num_moe_experts or 0, backend().device)
        self.ddp: list[Any] = self.chunks
        if optimizer:
            self._prepare_to_learn(optimizer)

    def _prepare_to_learn(self, optimizer: OptimizerConfig) -> None:
        self.optimizer_config = optimizer
        passed = passed_to(DistributedDataParallelConfig, self.parallel.megatron)
        self.ddp_config = DistributedDataParallelConfig(
            use_distributed_optimizer=True, grad_reduce_in_fp32=True, **passed
        )
        self.ddp = [DistributedDataParallel(chunk.config, self.ddp_config, chunk) for chunk in self.chunks]
        trained = torch.float32 if self.lora else self.config.params_dtype
        self.optimizer = get_megatron_optimizer(
            _adamw(optimizer, self.parallel, trained), self.ddp, use_gloo_process_groups=False
        )
        if self.lora:
            self.lora.open()
        for chunk in self.chunks:
            chunk.config.finalize_model_grads_func = partial(_finalize_without_scaling, self.lora)
            chunk.config.grad_scale_func = self.optimizer.scale_loss
            if self.ddp_config.overlap_grad_reduce:
                chunk.config.no_sync_func = self._before_the_last_micro_batch

    def load_hf(self, folder: Path) -> None:
        """Loads the weights of a Hugging Face checkpoint. Collective. Raises UserError as `models.load_hf` does."""
        load_hf(self.module, folder)
        if self.lora:
            self.lora.rebase()
        self.optimizer.reload_model_params()

    def load_scalar_head(self, folder: Path) -> None:
        """Loads the head of an exported reward model. Collective. Raises UserError if the folder has none."""
        load_scalar_head(self.chunks[-1], folder)
        self.optimizer.reload_model_params()

    def save_scalar_head(self, folder: Path) -> None:
        """Writes the scalar head into an exported folder. Collective."""
        if _speaks() and (_data_rank(), parallel_state.get_context_parallel_rank()) == (0, 0):
            save_scalar_head(self.chunks[-1], folder)
        barrier()

    def log_probs(self, sequences: Sequence[TrainSequence]) -> list[np.ndarray]:
        """Log-prob of each token given its prefix: float32 [n - 1] per sequence, on the ranks that gave sequences.

        As in the sampler, logits are divided by the temperature, and only kept tokens count (slime#557).
        """
        return [values["logprob"] for values in self.read(sequences, read_logprob)]

    def replayed_log_probs(self, sequences: Sequence[TrainSequence]) -> tuple[list[np.ndarray], float]:
        """`log_probs`, and the share of the experts that came from the sequences' routes, as in `update`."""
        self.replay.start_counting()
        batches = self.local_batches(sequences)
        found = self._read(sequences, read_logprob, batches)
        return [values["logprob"] for values in found], self._replayed_fraction(self._held(batches))

    def read(self, sequences: Sequence[TrainSequence], reader: Reader) -> list[dict[str, np.ndarray]]:
        """What `reader` computes from the hidden states, by name: [n - 1, ...] per sequence, on the ranks that gave
        sequences; an empty list on the others.

        `reader` runs on the ranks of the last stage, without gradient, and returns [tokens, ...] for each name. There
        are no per_token values for it.
        """
        return self._read(sequences, reader, self.local_batches([replace(each, per_token={}) for each in sequences]))

    def _read(
        self, sequences: Sequence[TrainSequence], reader: Reader, batches: list[MicroBatch]
    ) -> list[dict[str, np.ndarray]]:
        with torch.no_grad():
            outputs = self._run(self._held(batches), partial(self._read_step, reader), forward_only=True)
        backend().release()  # to the engine on this card, which wakes up next
        local = None
        if _speaks() and parallel_state.get_context_parallel_rank() == 0:  # the others have the same, whole
            local = {name: unpack([output[name] for output in outputs], batches) for name in outputs[0]}
        found = _by_sequence(self.replicas.to_rank0(local), len(sequences))
        if any_rank(bool(sequences) and not is_rank0()):
            found = from_rank0(lambda: found)
        return found if sequences else []

    def update(
        self, sequences: Sequence[TrainSequence], loss: Loss | StatesLoss, step: int, updates: int = 1
    ) -> dict[str, float]:
        """One optimizer step on the whole batch; `step` counts from 0. Returns the metrics of the step.

        With several `updates`, a divisor of the number of sequences, there are so many optimizer steps, of the same
        learning rate, each on the next equal part of the sequences. A part without a loss token is left out.
        Metrics are sums over the global batch by the loss's denominator; "loss" is what was optimised, and "grad_norm"
        a mean over optimizer steps. How many tokens each expert got is afterwards in `expert_tokens`, int64
        [expert layers, experts].
        Raises FloatingPointError where a gradient norm is not finite; that optimizer step is then not taken.
        """
        lr = learning_rate(step, self.optimizer_config, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        parts = _parts(sequences, updates) if is_rank0() else []
        denominators = from_rank0(lambda: [loss.denominator(part) for part in parts])
        taken = [
            self._optimizer_step(parts[place] if parts else [], loss, denominator, step)
            for place, denominator in enumerate(denominators)
            if denominator
        ]
        self._gather_weights()
        backend().release()  # to the engine on this card, which wakes up next
        self.expert_tokens = np.sum([one.expert_tokens for one in taken], 0)
        denominator = sum(one.denominator for one in taken)
        return {
            **{name: sum(one.sums[name] for one in taken) / denominator for name in taken[0].sums},
            **balance_metrics(self.expert_tokens),
            "grad_norm": sum(one.grad_norm for one in taken) / len(taken),
            "lr": lr,
            "replay_fraction": min(one.replay_fraction for one in taken),
        }

    def _optimizer_step(
        self, sequences: Sequence[TrainSequence], loss: Loss | StatesLoss, denominator: float, step: int
    ) -> _OptimizerStep:
        batches = self._held(self.local_batches(sequences))
        for chunk in self.ddp:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        self.replay.start_counting()
        outputs = self._run(batches, partial(self._loss_step, loss, denominator), forward_only=False)
        replayed = self._replayed_fraction(batches)
        expert_tokens = self.balance.take()
        self._require_finite_gradient(step)
        _, grad_norm, _ = self.optimizer.step()
        if self.lora:
            self.lora.merge()
        return _OptimizerStep(_sum_over_batch(outputs), denominator, float(grad_norm), replayed, expert_tokens)

    @contextmanager
    def _before_the_last_micro_batch(self) -> Iterator[None]:
        """In the block, Megatron sums gradients on this rank only."""
        with ExitStack() as stack:
            for chunk in self.ddp:
                stack.enter_context(chunk.no_sync())
            yield

    def _gather_weights(self) -> None:
        """Where Megatron would gather them in the next forward pass: refit, export and teachers come before it."""
        if self.ddp_config.overlap_param_gather:
            for chunk in self.ddp:
                chunk.start_param_sync(force_sync=True)

    def _require_finite_gradient(self, step: int) -> None:
        """Megatron checks for NaN only with a loss scaler; without one, its step would write NaN into the weights."""
        self.optimizer.prepare_grads()
        grad_norm = float(self.optimizer.get_grad_norm())
        if not np.isfinite(grad_norm):
            raise FloatingPointError(f"gradient norm is {grad_norm} at step {step}")

    def local_batches(self, sequences: Sequence[TrainSequence]) -> list[MicroBatch]:
        """Micro-batches of this data-parallel rank. All ranks get equally many, so that collectives match."""
        lengths, like = from_rank0(lambda: ([len(each.loss_mask) for each in sequences], empty_like(sequences[0])))
        multiple = token_multiple(self.parallel)
        plan = plan_micro_batches(
            lengths,
            self.token_budget,
            sequence_cost(self.hf_config),
            ranks=_data_ranks(),
            segment_multiple=multiple,
            # interleaved stages take turns in rounds of so many micro-batches
            slot_multiple=self.parallel.pipeline if self.parallel.virtual_pipeline > 1 else 1,
        )
        padded_to = None if self.config.variable_seq_lengths else self.token_budget
        held = self.replicas.scatter(lambda: [{i: sequences[i] for i in chain(*of)} for of in plan])
        return pack(held, plan[self.replicas.own], segment_multiple=multiple, padded_to=padded_to, like=like)

    def _held(self, batches: list[MicroBatch]) -> list[MicroBatch]:
        """This context parallel rank's tokens of each micro-batch."""
        rank = parallel_state.get_context_parallel_rank()
        return [shard(batch, self.parallel.context, rank) for batch in batches]

    def _run(self, batches: list[MicroBatch], step: ForwardStep, *, forward_only: bool) -> list:
        for chunk in self.ddp:
            chunk.train(not forward_only)
        return get_forward_backward_func()(
            forward_step_func=step,
            # each when its turn comes: those of a whole step, with their routes, can be larger than the model
            data_iterator=[(batch.to(backend().device) for batch in batches) for _ in self.ddp],
            model=self.ddp,
            num_microbatches=len(batches),
            seq_length=self.token_budget,
            micro_batch_size=1,
            forward_only=forward_only,
        )

    def _hidden(self, batch: MicroBatch, model: Any) -> Tensor:
        """Hidden states [1, tokens / tp if sequence parallel, hidden], or the input of the next stage."""
        padding = self._local(batch.targets == IGNORED)
        with self.replay.of(None if batch.routes is None else self._local(batch.routes)):
            return model(
                batch.input_ids,
                batch.position_ids,
                None,
                packed_seq_params=_packed(batch, self.parallel.context),
                padding_mask=padding[None] if self.config.num_moe_experts else None,
            )

    def _local(self, rows: Tensor) -> Tensor:
        """This rank's part of the rows [tokens, ...] under sequence parallelism."""
        if not self.parallel.sequence:
            return rows
        return rows.chunk(self.parallel.tensor)[parallel_state.get_tensor_model_parallel_rank()]

    def head(self) -> Head:
        """The head of the last pipeline stage, with the current weights."""
        group = parallel_state.get_tensor_model_parallel_group()
        return Head(head_weight(self.chunks[-1]), self.hf_config["vocab_size"], group)

    def _states(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] on the last pipeline stage, whole under sequence parallelism."""
        rows = hidden.squeeze(0)
        if self.parallel.sequence:
            # the kernels have already summed the gradient over TP
            rows = gather_from_sequence_parallel_region(rows, tensor_parallel_output_grad=False)
        return rows

    def _read_step(self, reader: Reader, batches: Iterator[MicroBatch], model: Any) -> tuple[Tensor, Callable]:
        batch = next(batches)

        def collect(hidden: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            group = parallel_state.get_context_parallel_group()
            values = reader(self._states(hidden), self.head(), batch)
            whole = {name: gather(value, batch.cu_seqlens, group) for name, value in values.items()}
            return hidden.new_zeros(()), torch.tensor(1, dtype=torch.int), whole

        return self._hidden(batch, model), collect

    def _loss_step(
        self, loss: Loss | StatesLoss, denominator: float, batches: Iterator[MicroBatch], model: Any
    ) -> tuple[Tensor, Callable]:
        batch = next(batches)

        def divide(hidden: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            objective, sums = self._sums(loss, self._states(hidden), batch)
            return objective / denominator, torch.tensor(1, dtype=torch.int), sums

        return self._hidden(batch, model), divide

    def _sums(self, loss: Loss | StatesLoss, states: Tensor, batch: MicroBatch) -> Sums:
        if isinstance(loss, StatesLoss):
            return loss.of_states(states, self.head(), batch)
        return loss(*self.head().logprob(states, batch.targets, batch.temperature, batch.kept), batch)

    def _replayed_fraction(self, batches: list[MicroBatch]) -> float:
        """Replayed choices over all choices of real tokens, on the worst rank; 1.0 for a dense model."""
        real = sum(int((self._local(batch.targets) != IGNORED).sum()) for batch in batches)
        choices = real * len(self.replay.replays)
        return least(self.replay.replayed_rows() / choices if choices else 1.0)


def _frozen(router: RouterConfig) -> RouterConfig:
    return replace(router, trained=False, bias_update_rate=0.0)


def _adamw(config: OptimizerConfig, parallel: ParallelConfig, params_dtype: torch.dtype) -> MegatronOptimizerConfig:
    return MegatronOptimizerConfig(
        optimizer="adam",
        lr=config.lr,
        adam_beta1=config.betas[0],
        adam_beta2=config.betas[1],
        adam_eps=config.eps,
        weight_decay=config.weight_decay,
        clip_grad=config.clip_grad,
        use_distributed_optimizer=True,
        params_dtype=params_dtype,
        bf16=params_dtype == torch.bfloat16,
        **passed_to(MegatronOptimizerConfig, parallel.megatron),
    )


def _packed(batch: MicroBatch, context: int) -> PackedSeqParams:
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=batch.cu_seqlens,
        cu_seqlens_kv=batch.cu_seqlens,
        cu_seqlens_q_padded=batch.cu_seqlens,
        cu_seqlens_kv_padded=batch.cu_seqlens,
        max_seqlen_q=batch.max_seqlen,
        max_seqlen_kv=batch.max_seqlen,
        total_tokens=batch.input_ids.numel() * context,
    )


def _data_ranks() -> int:
    return parallel_state.get_data_parallel_world_size()


def _data_rank() -> int:
    return parallel_state.get_data_parallel_rank()


def _speaks() -> bool:
    """Whether this rank reports results, those of its tokens: the first TP ranks of the last pipeline stage do."""
    return parallel_state.is_pipeline_last_stage() and parallel_state.get_tensor_model_parallel_rank() == 0


def _by_sequence(replicas: list[dict[str, dict[int, np.ndarray]]], count: int) -> list[dict[str, np.ndarray]]:
    found: list[dict[str, np.ndarray]] = [{} for _ in range(count)]
    for replica in replicas:
        for name, values in replica.items():
            for index, value in values.items():
                found[index][name] = value
    return found


def _parts(sequences: Sequence[TrainSequence], updates: int) -> list[Sequence[TrainSequence]]:
    size = len(sequences) // updates
    return [sequences[first : first + size] for first in range(0, len(sequences), size)]


def _sum_over_batch(outputs: list[dict[str, Tensor]]) -> dict[str, float]:
    """Sums of each metric over micro-batches and replicas, in a fixed order, on every rank."""
    place = _data_rank(), parallel_state.get_context_parallel_rank()
    speakers = (item for item in from_all((place, _sums(outputs)) if _speaks() else None) if item is not None)
    replicas = [sums for _, sums in sorted(speakers, key=lambda item: item[0])]
    return {name: sum(replica[name] for replica in replicas) for name in replicas[0]}


def _sums(outputs: list[dict[str, Tensor]]) -> dict[str, float]:
    """Sum of each metric over micro-batches, with one wait for the device."""
    if not outputs[0]:
        return {}
    rows = torch.stack([torch.stack(list(output.values())) for output in outputs]).tolist()
    return dict(zip(outputs[0], map(sum, zip(*rows, strict=True)), strict=True))
