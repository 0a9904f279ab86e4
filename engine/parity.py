"""Whether transformers, Megatron and vLLM are one model: their log-probs of the same text, from one checkpoint."""

import os
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer

from cascade_rl.engine.backend import initialize_distributed
from cascade_rl.engine.config import OptimizerConfig, ParallelConfig, RolloutConfig
from cascade_rl.engine.models import read_config, write_hf
from cascade_rl.engine.refit import probe_gap, whole_sequence
from cascade_rl.engine.rollout.client import RolloutEngine
from cascade_rl.engine.trainer import Trainer

SENTENCES = (
    "The capital of France is Paris, which lies on the river Seine.",
    "Water boils at 100 degrees Celsius, but only at sea level.",
    "def add(a, b):\n    return a + b\n",
    "She opened the old letter, read it twice, and then put it back into the drawer without a word.",
)
TOKEN_BUDGET, SEED = 512, 1


@dataclass(frozen=True)
class Parity:
    """Largest |difference| of one token's log-prob from Megatron's, over `tokens` tokens of English and code.

    mean_logprob is Megatron's: a model that knows the language gives about -3, a random or badly converted one
    -log(vocabulary size) or less, however well the three agree.
    """

    transformers: float
    vllm: float
    mean_logprob: float
    tokens: int


def parity(folder: Path) -> Parity:
    """Measures a Hugging Face model folder, in this process and an engine that it starts."""
    hf_config = read_config(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [tokenizer.encode(sentence) for sentence in SENTENCES]
    _be_the_only_rank()
    trainer = Trainer(
        hf_config, ParallelConfig(), OptimizerConfig(), total_steps=1, token_budget=TOKEN_BUDGET, seed=SEED
    )
    trainer.load_hf(folder)
    megatron = np.concatenate(trainer.log_probs([whole_sequence(ids) for ids in texts]))
    reference = np.concatenate(_transformers(folder, texts))
    vllm_gap = _vllm_gap(folder, trainer, texts)
    dist.destroy_process_group()
    return Parity(float(np.abs(megatron - reference).max()), vllm_gap, float(megatron.mean()), len(megatron))


def _be_the_only_rank() -> None:
    """The kernel chooses the port."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    initialize_distributed(ParallelConfig(), SEED)


def _transformers(folder: Path, texts: ListOf[ListOf[int]]) -> list[np.ndarray]:
    """In the dtype of the checkpoint."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        return [_logprobs(model(torch.tensor([ids])).logits[0, :-1], ids) for ids in texts]


def _logprobs(logits: torch.Tensor, ids: ListOf[int]) -> np.ndarray:
    """Of each token after the first; `logits` is [tokens - 1, vocabulary]."""
    return logits.float().log_softmax(-1)[range(len(ids) - 1), ids[1:]].numpy()


def _vllm_gap(folder: Path, trainer: Trainer, texts: ListOf[ListOf[int]]) -> float:
    """The probe of every refit, on these texts, after a checkpoint that the trainer has written."""
    longest = max(map(len, texts))
    settings = RolloutConfig(max_model_len=longest + 1, max_num_seqs=len(texts))  # scoring samples one token
    with (
        TemporaryDirectory() as scratch,
        RolloutEngine(folder, settings, SEED, Path(scratch) / "engine.log") as engine,
    ):
        weights = Path(scratch) / "weights.safetensors"
        write_hf(trainer.module, trainer.hf_config, weights)
        engine.update_weights(weights, 0)
        return probe_gap(trainer, engine, texts)
