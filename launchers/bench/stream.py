"""`cascade bench stream`: what the arrays of one RL step cost the ranks of a large job, on one machine.

The ranks are threads that run the product's own functions over a wire that counts (counting_wire.py): samples are told,
log-probs are read and come back, the update gets its values. Models, the packing of micro-batches and the sockets are
left out. Beside it, the same step as if every rank got everything; and a few samples over real sockets to one other
process. Seconds are those of a processor.
"""

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from cascade_rl.engine import models
from cascade_rl.engine.backend.process_groups import join_ranks
from cascade_rl.engine.backend.ranks import barrier, from_rank0
from cascade_rl.engine.backend.replicas import Replicas
from cascade_rl.engine.core.rollouts import Rollout
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models.flops import sequence_cost
from cascade_rl.engine.models.layout import token_multiple
from cascade_rl.engine.train import trainer
from cascade_rl.engine.train.planner import Plan, plan_micro_batches
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.launchers.bench.counting_wire import CountingWire
from cascade_rl.launchers.local.held_port import held_port
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.scoring.scored_sample import Sample

HF = models.read_config(Path(models.__file__).parent / "published/nemotron_3_nano_30b_a3b")
PARALLEL = ParallelConfig(tensor=4, context=4, expert=16, sequence=True)  # short stages of cascade2_30b_a3b.py, H100
REPLICA = PARALLEL.tensor * PARALLEL.context
ON_SOCKETS = 64  # samples
PROMPT, TOKENS, MOE_LAYERS, TOP_K, CHARACTERS = 1024, 49_152, 23, 6, 4  # the last: of a token's text


@dataclass(frozen=True)
class Cost:
    """Of rank 0, or of the other rank for which it is most.

    received, sent  gigabytes
    held            gigabytes of the step's arrays, but for micro-batches
    seconds         of a processor, but for the plan
    """

    received: float
    sent: float
    held: float
    seconds: float


Costs = dict[str, Cost]


@dataclass(frozen=True)
class Batch:
    """What rank 0 has of a step."""

    samples: list[Sample]
    sequences: list[TrainSequence]

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for sequence in self.sequences for array in _arrays(sequence))


def run(json_path: Path | None, machine: str, ranks: int, samples: int) -> int:
    """Prints the costs, and writes them to `json_path` if it is given."""
    found = {"to every rank": _measured(_to_all, ranks, samples, present=2)}
    found |= {"to its replica": _measured(_to_replicas, ranks, samples, present=ranks)}
    begun = time.process_time()
    _plan([TOKENS - 1] * samples, ranks)
    plan_s = time.process_time() - begun
    wire = dict(zip(("send", "receive"), _over_sockets(), strict=True))
    table = Table("arrays go", "rank", "GB received", "GB sent", "GB held", "s", title=_title(ranks, samples))
    for way, costs in found.items():
        for rank, cost in costs.items():
            table.add_row(way, rank, *(f"{value:.3f}" for value in asdict(cost).values()))
    console = Console(highlight=False)
    console.print(table)
    console.print(f"and {plan_s:.2f} s for the plan on every rank, twice a step, on {machine}")
    console.print("over sockets, s/GB: " + ", ".join(f"{name} {value:.2f}" for name, value in wire.items()))
    if json_path:
        step = {way: {rank: asdict(cost) for rank, cost in costs.items()} for way, costs in found.items()}
        told = {
            "machine": machine,
            "ranks": ranks,
            "samples": samples,
            "tokens": TOKENS,
            "plan_s": plan_s,
            "s_per_gb": wire,
        }
        json_path.write_text(json.dumps(told | {"step": step}, indent=2) + "\n")
    return 0


def _title(ranks: int, samples: int) -> str:
    return f"one step, {ranks} ranks in {ranks // REPLICA} replicas, {samples} samples of {TOKENS} tokens"


def _measured(step: Callable[[Batch, int], int], ranks: int, samples: int, present: int) -> Costs:
    """`step` gives the bytes that a rank holds at its end."""
    wire, batch = CountingWire(ranks, present), _batch(samples)
    plan = _plan([len(sequence.loss_mask) for sequence in batch.sequences], ranks)
    held, seconds = dict[int, int](), dict[int, float]()

    def work(rank: int) -> None:
        begun = time.thread_time()
        held[rank] = step(batch, rank)
        seconds[rank] = time.thread_time() - begun

    with (
        mock.patch.object(trainer, "_data_ranks", lambda: ranks // REPLICA),
        mock.patch.object(trainer, "plan_micro_batches", lambda *_, **__: plan),
        mock.patch.object(trainer, "pack", lambda held, *_, **__: held),
    ):
        wire.run(work)

    def most(ranks: Sequence[int]) -> Cost:
        received, sent, kept = (max(count[rank] for rank in ranks) / 1e9 for count in (wire.received, wire.sent, held))
        return Cost(received, sent, kept, max(seconds[rank] for rank in ranks))

    return {"0": most([0]), "any other": most(range(1, present))}


def _to_replicas(batch: Batch, rank: int) -> int:
    """A step as grpo.py takes it."""
    policy: Any = SimpleNamespace(
        parallel=PARALLEL,
        token_budget=TOKENS,
        hf_config=HF,
        config=SimpleNamespace(variable_seq_lengths=False),
        replicas=Replicas(rank // REPLICA),
    )
    from_rank0(lambda: batch.samples, lambda samples: [sample.told() for sample in samples])
    sequences = batch.sequences if rank == 0 else []
    own = Trainer.local_batches(policy, [replace(sequence, per_token={}) for sequence in sequences])
    logprobs = {i: _logprobs(sequence) for i, sequence in own.items()} if rank % REPLICA == 0 else None  # type: ignore
    policy.replicas.to_rank0(logprobs)
    from_rank0(lambda: [1.0])  # the denominators
    Trainer.local_batches(policy, sequences)
    return batch.bytes if rank == 0 else sum(array.nbytes for array in policy.replicas.held.values())


def _to_all(batch: Batch, rank: int) -> int:
    """The same if every rank got everything: rollouts, answers with their texts, and log-probs."""
    from_rank0(lambda: [sample.rollout for sample in batch.samples])
    from_rank0(lambda: [(sample.text, sample.verdict) for sample in batch.samples])
    from_rank0(lambda: [_logprobs(sequence) for sequence in batch.sequences])
    return batch.bytes


def _over_sockets() -> list[float]:
    """Seconds per gigabyte of rank 0, and of the other rank, which is a replica."""
    fork, batch = multiprocessing.get_context("fork"), _batch(ON_SOCKETS)

    def rank_main(rank: int, port: int, writer: Connection) -> None:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        join_ranks()
        replicas = Replicas(rank)
        replicas.scatter(lambda: [None, None])  # the ranks tell each other their replicas
        begun = time.process_time()
        replicas.scatter(lambda: [None, batch.sequences])
        writer.send((time.process_time() - begun) / (batch.bytes / 1e9))
        barrier()
        torch.distributed.destroy_process_group()

    pipes = [fork.Pipe(duplex=False) for _ in range(2)]
    with held_port() as port:
        ranks = [fork.Process(target=rank_main, args=(rank, port, writer)) for rank, (_, writer) in enumerate(pipes)]
        for process in ranks:
            process.start()
        found = [reader.recv() for reader, _ in pipes]
    for process in ranks:
        process.join()
    return found


def _plan(lengths: Sequence[int], ranks: int) -> Plan:
    multiple = token_multiple(PARALLEL)
    return plan_micro_batches(lengths, TOKENS, sequence_cost(HF), ranks=ranks // REPLICA, segment_multiple=multiple)


def _batch(samples: int) -> Batch:
    """Samples that share their memory."""
    ids, values = np.zeros(TOKENS, np.int64), np.zeros(TOKENS - 1, np.float32)
    mask, routes = np.ones(TOKENS - 1, np.bool_), np.zeros((TOKENS - 1, MOE_LAYERS, TOP_K), np.uint8)
    task, text = (
        Task("task", "if", ({"role": "user", "content": "?" * CHARACTERS * PROMPT},), {}),
        "a" * CHARACTERS * TOKENS,
    )
    batch = Batch([], [])
    for number in range(samples):
        per_token = {name: values[:] for name in ("advantage", "rollout_logprob", "share")}
        batch.sequences.append(TrainSequence(ids[:], mask[:], per_token=per_token, routes=routes[:]))
        rollout = Rollout(
            f"if_rl/1/{number}", ids[:PROMPT], ids[PROMPT:], values[PROMPT - 1 :], routes[:], ((1, 0),), "stop"
        )
        batch.samples.append(Sample(task, rollout, text, Verdict.scored(1.0)))
    return batch


def _logprobs(sequence: TrainSequence) -> np.ndarray:
    return np.zeros(len(sequence.loss_mask), np.float32)


def _arrays(sequence: TrainSequence) -> list[np.ndarray]:
    arrays = [sequence.token_ids, sequence.loss_mask, sequence.routes, *sequence.per_token.values()]
    return [array for array in arrays if array is not None]
