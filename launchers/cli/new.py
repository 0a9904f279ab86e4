"""`cascade new`: a folder with a launcher, a reward with its test, and rows, which runs as it is."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

from rich.prompt import Prompt

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.node import check_name

TEMPLATES = Path(__file__).with_name("new_run")
TINY_MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "max_position_embeddings": 128,
    "initializer_range": 0.02,
    "torch_dtype": "float32",
}
TINY = {
    "standard": "import json\n",
    "base": 'BaseModel(hf_config=json.loads((HERE / "model.json").read_text()))',
    "total": 128,
    "answer": 32,
    "budget": 1024,
    "cache": 16,
    "steps": 40,
    "rate": "1e-2",
}
COLUMNS = '\n            columns={{"prompt": {}}},'
NEW_MODEL, SUMS = "a tiny new one", "some sums"  # what the folder then contains
LONGEST = 4096  # tokens of prompt and answer, unless the model has room for fewer
IMPORTS = (
    "engine.core.rollouts import Sampling",
    "engine.core.settings import OptimizerConfig, RolloutConfig",
    "launchers.cli.launch import launch",
    "rl_stages.config.base import BaseModel, Evaluation",
    "rl_stages.config.cascade import Cascade",
    "rl_stages.config.grpo_stage import GrpoStage",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="folder to make; its name is that of the run")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help=f"Hugging Face folder (default: {NEW_MODEL})")
    parser.add_argument("--data", metavar="SOURCE", help=f"rows: a file, a folder or hf:owner/name (default: {SUMS})")
    parser.add_argument("--prompt", default="prompt", metavar="COLUMN", help="the column with the prompt (prompt)")
    parser.add_argument("--dry", action="store_true", help="show the files, write nothing")


def run(options: argparse.Namespace) -> int:
    """Raises UserError for a folder that exists, a model without config.json and rows without that column."""
    check_name("the folder's name", options.folder.name)
    if options.folder.exists():
        raise UserError(f"expected a folder that does not exist; found {options.folder}: choose another name")
    _ask(options)
    files = dict(_files(options))
    for name, text in files.items():
        if options.dry:
            print(f"{options.folder / name}:\n\n{text}")
        else:
            options.folder.mkdir(parents=True, exist_ok=True)
            (options.folder / name).write_text(text)
    if not options.dry:
        print(f"{options.folder}: wrote {', '.join(files)}\ntrain with: nemo-run {options.folder / 'launcher.py'}")
    return 0


def _ask(options: argparse.Namespace) -> None:
    """For what no flag says, where there is somebody to answer."""
    if sys.stdin.isatty() and options.model is None and (given := Prompt.ask("Hugging Face folder", default=NEW_MODEL)):
        options.model = None if given == NEW_MODEL else Path(given)
    if sys.stdin.isatty() and options.data is None and (given := Prompt.ask("rows with prompts", default=SUMS)):
        options.data = None if given == SUMS else given


def _files(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Names and texts of the files of the folder."""
    if options.model is None:
        yield "model.json", json.dumps(TINY_MODEL, indent=2) + "\n"
    if options.data is None:
        yield "rows.jsonl", "".join(json.dumps(row) + "\n" for row in _sums())
    values = _values(options)
    for template in sorted(TEMPLATES.glob("*.template")):
        yield template.stem, Template(template.read_text()).substitute(values)


def _values(options: argparse.Namespace) -> Mapping[str, Any]:
    return {
        "name": options.folder.name,
        "rows": options.data or "rows.jsonl",
        "data": json.dumps(_checked_rows(options)) if options.data else 'str(HERE / "rows.jsonl")',
        "columns": "" if options.prompt == "prompt" else COLUMNS.format(json.dumps(options.prompt)),
        "imports": "".join(f"from cascade_rl.{line}\n" for line in IMPORTS),
        **(_of_model(options.model) if options.model else TINY),
    }


def _of_model(model: Path) -> Mapping[str, Any]:
    """Sizes for a model of its own: its context, and a learning rate that does not undo what it knows."""
    total = _longest(model)
    sizes = {"total": total, "answer": total // 4, "budget": total, "cache": 1024, "steps": 20, "rate": "1e-5"}
    return {"standard": "", "base": f'BaseModel(hf="{model.resolve()}")'} | sizes


def _longest(model: Path) -> int:
    config = model / "config.json"
    if not config.is_file():
        raise UserError(f"--model: expected a Hugging Face folder with a config.json; found none in '{model}'")
    return min(LONGEST, json.loads(config.read_text()).get("max_position_embeddings", LONGEST))


def _checked_rows(options: argparse.Namespace) -> str:
    """The source, if its first row has a prompt."""
    from cascade_rl.rl_stages.data.rows import read_rows

    source = options.data if options.data.startswith("hf:") else str(Path(options.data).resolve())
    where, row = next(read_rows(source), (source, {}))
    if options.prompt not in row and "responses_create_params" not in row:
        raise UserError(
            f"{where}: expected a column {options.prompt!r}; found {sorted(row)}. Name the prompt's with --prompt"
        )
    return source


def _sums() -> Iterator[dict[str, str]]:
    for first in range(1, 13):
        for second in range(1, 13):
            yield {"prompt": f"What is {first} + {second}?", "answer": str(first + second)}
