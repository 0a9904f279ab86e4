"""The numbers of docs/tour.md: one prompt of the run of test_new.py, from its row to the next weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from transformers import AutoTokenizer

from cascade_rl.rl_stages.run.run_folder import RunFolder

PAGE = Path(__file__).parents[3] / "docs/tour.md"
RECORD = Path(__file__).parents[3] / "docs/tour.json"
TASK = "rows-000127"


def tour(rows: Path, run: Path) -> dict[str, Any]:
    """What became of the prompt, by the files of a run that took it in its first step."""
    folder = RunFolder.open(run)
    (stage,) = folder.stages
    first, second = (pq.read_table(stage.root / f"rollouts/step_0000{step}.parquet").to_pylist() for step in (1, 2))
    group = [sample for sample in first if sample["task_id"] == TASK]
    metrics = stage.metrics.rows()[0]
    return {
        "row": json.loads(rows.read_text().splitlines()[int(TASK.rpartition("-")[2])]),
        "prompt": AutoTokenizer.from_pretrained(folder.root / "base").decode(group[0]["prompt_ids"]),
        "prompt_ids": group[0]["prompt_ids"],
        "answers": [{key: sample[key] for key in ("token_ids", "finish", "reward", "advantage")} for sample in group],
        "text": group[0]["text"],
        "logprobs": group[0]["train_logprobs"],
        "step": {key: metrics[key] for key in ("loss", "grad_norm", "lr")},
        "tokens": sum(len(sample["token_ids"]) for sample in first),
        "gaps": {key: metrics[key] for key in ("max_gap", "probe_gap")},
        "versions": [_versions(first), _versions(second)],
    }


def write(record: dict[str, Any]) -> None:
    """One key a line."""
    RECORD.write_text("{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(record[key])}" for key in record) + "\n}\n")


def _versions(samples: list[dict[str, Any]]) -> list[int]:
    """Of the weights that drew the tokens."""
    return np.unique([version for sample in samples for version, _ in sample["versions"]]).tolist()
