"""The record of one sample, of an RL step or of an evaluation, and the parquet file with all records of either."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.run.durable_file import sync

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, kw_only=True)
class SampleRecord:
    """One sample, from prompt to gradient. A held-out one ends at its reward: it has no `train_logprobs`.

    prompt_ids        int [prompt]
    token_ids         int [answer], including stop tokens and the replies of an environment
    rollout_logprobs, train_logprobs, teacher_logprobs   float32 [answer], of the sampler, the trainer and the teacher
    loss_mask         bool [answer], tokens with a gradient
    reward            None for an infrastructure failure
    advantage         the mean over the answer's tokens if each has its own
    thinking          the mode that the prompt asked for; None if it was left to the chat template
    versions          (weight version, index of the first token generated with it) spans
    generated         bool [answer], False for an environment's replies; None if the model generated all tokens
    turns             number of the model's turns
    """

    id: str
    task_id: str
    domain: str
    prompt_ids: np.ndarray
    token_ids: np.ndarray
    rollout_logprobs: np.ndarray
    train_logprobs: np.ndarray | None
    loss_mask: np.ndarray
    reward: float | None
    advantage: float
    outcome: Outcome
    finish: str
    versions: tuple[tuple[int, int], ...]
    text: str
    detail: str = ""
    reward_parts: Mapping[str, float | None] = field(default_factory=dict)
    teacher_logprobs: np.ndarray | None = None
    thinking: bool | None = None
    generated: np.ndarray | None = None
    turns: int = 1


def write_samples(path: Path, records: Sequence[SampleRecord]) -> None:
    """Writes one parquet file atomically, and its folder if need be. It is on disk when this returns."""
    from pyarrow import parquet

    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    parquet.write_table(table_of(records), temporary, compression="zstd")
    sync(temporary)
    temporary.rename(path)
    sync(path.parent)


def table_of(records: Sequence[SampleRecord]) -> "pyarrow.Table":
    from pyarrow import table

    columns = {item.name: [_plain(getattr(record, item.name)) for record in records] for item in fields(SampleRecord)}
    return table(columns, schema=_schema())


def read_samples(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a step's parquet file, arrays as lists; of these columns only, if any are named."""
    from pyarrow import parquet

    return parquet.read_table(path, columns=columns and list(columns)).to_pylist()


def _plain(value: Any) -> Any:
    if isinstance(value, Outcome):
        return value.value
    if isinstance(value, Mapping):
        return list(value.items())
    return value


def _schema() -> "pyarrow.Schema":
    import pyarrow as pa

    tokens, logprobs = pa.list_(pa.int32()), pa.list_(pa.float32())
    span = pa.list_(pa.int32(), 2)
    return pa.schema(
        {
            "id": pa.string(),
            "task_id": pa.string(),
            "domain": pa.string(),
            "prompt_ids": tokens,
            "token_ids": tokens,
            "rollout_logprobs": logprobs,
            "train_logprobs": logprobs,
            "loss_mask": pa.list_(pa.bool_()),
            "reward": pa.float64(),
            "advantage": pa.float64(),
            "outcome": pa.string(),
            "finish": pa.string(),
            "versions": pa.list_(span),
            "text": pa.string(),
            "detail": pa.string(),
            "reward_parts": pa.map_(pa.string(), pa.float64()),
            "teacher_logprobs": logprobs,
            "thinking": pa.bool_(),
            "generated": pa.list_(pa.bool_()),
            "turns": pa.int32(),
        }
    )
