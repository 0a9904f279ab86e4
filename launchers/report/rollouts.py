"""The rollouts of a run as blocks: columns for filtering and sorting, and chunks that the page opens one by one.

A chunk has two blocks. `text-N` is JSON: the texts that are read and searched. `tokens-N` holds the numbers of the
tokens: ids, the sampler's log-probs, the XOR of the trainer's and the sampler's log-probs, flags (1 in the loss, 2
generated), and the teacher's log-probs in a stage with teachers. 4-byte values are stored as byte planes. The two
log-probs are nearly equal, so their XOR is nearly all zeros and compresses well, without loss.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.launchers.report.blocks import block, json_block, planes
from cascade_rl.launchers.report.sample_stream import SUFFIX, read_stream
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder

CHUNK_ROWS, CHUNK_TOKENS = 256, 65_536
PART_BYTES = 64 << 20  # of a stream that are read at once
OUTCOMES = [outcome.value for outcome in Outcome]
COLUMNS = {
    "stage": np.uint8,
    "step": np.uint32,
    "domain": np.uint16,
    "outcome": np.uint8,
    "reward": np.float32,  # NaN: none
    "advantage": np.float32,
    "prompt": np.uint32,  # tokens
    "answer": np.uint32,  # tokens, including the output of environments
    "length": np.uint32,  # tokens that the model generated
    "turns": np.uint16,
    "tme": np.float32,  # mean of exp|log p_train - log p_rollout| over the generated tokens; NaN: none
    "kl": np.float32,  # mean of log p_train - log p_teacher over the tokens in the loss; NaN: no teacher
    "group": np.uint32,
    "heldout": np.uint8,  # 1: of an evaluation; its step is 0 before the stage, and the last one after it
}


class File(NamedTuple):
    """A parquet file, or a stream, of samples. `stage`: its index."""

    stage: int
    step: int
    path: Path
    heldout: bool = False


@dataclass
class Rollouts:
    """What is known of the rollouts so far. Counts cover all rollouts on disk, `kept` those in the page."""

    total: int
    limit: int
    seen: int = 0
    kept: int = 0
    groups: int = 0
    domains: list[str] = field(default_factory=list)
    stages: set[int] = field(default_factory=set)
    outcomes: Counter[tuple[int, str, str]] = field(default_factory=Counter)  # stage, domain, outcome
    ages: Counter[tuple[int, int, int]] = field(default_factory=Counter)  # tokens: stage, step, updates since sampled
    broken: Counter[tuple[int, str, str]] = field(default_factory=Counter)  # infrastructure: stage, domain, detail
    starts: list[int] = field(default_factory=list)  # first rollout of each chunk
    vocabulary: set[int] = field(default_factory=set)
    columns: dict[str, list[np.ndarray]] = field(default_factory=lambda: {name: [] for name in COLUMNS})

    def facts(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "kept": self.kept,
            "domains": self.domains,
            "stages": sorted(self.stages),
            "outcomes": OUTCOMES,
            "starts": self.starts,
            "columns": {name: np.dtype(dtype).name for name, dtype in COLUMNS.items()},
        }

    def counts(self) -> dict[str, Any]:
        """Counts of the outcomes, of the tokens by age, and of the infrastructure failures by their messages."""
        return {
            "outcomes": [[*key, count] for key, count in self.outcomes.items()],
            "ages": [[*key, count] for key, count in sorted(self.ages.items())],
            "broken": [[*key, count] for key, count in self.broken.most_common()],
        }

    def column_blocks(self) -> Iterator[str]:
        for name, dtype in COLUMNS.items():
            parts = self.columns[name]
            yield block(f"column-{name}", planes(np.concatenate(parts).astype(dtype)) if parts else b"")


def step_files(run: RunFolder) -> list[File]:
    """In the order of the run."""
    return [file for index, stage in enumerate(run.stages) for file in _of_stage(index, stage)]


def _of_stage(index: int, stage: StageFolder) -> Iterator[File]:
    steps = [
        File(index, int(path.stem.removeprefix("step_")), path)
        for path in sorted((stage.root / "rollouts").glob("step_*.parquet"))
    ]
    yield from (File(index, 0, path, heldout=True) for path in _heldout(stage, "before"))
    yield from steps
    yield from (File(index, stage.last_step(), path, heldout=True) for path in _heldout(stage, "after"))


def _heldout(stage: StageFolder, when: str) -> list[Path]:
    """The held-out answers, then those to each benchmark."""
    own, benchmarks = stage.heldout(when), stage.benchmark_answers(when, "*")
    return [*([own] if own.exists() else []), *sorted(benchmarks.parent.glob(benchmarks.name))]


def count(files: Sequence[File]) -> int:
    return sum(map(_rows_in, files))


def _rows_in(file: File) -> int:
    from pyarrow import parquet

    if file.path.suffix == SUFFIX:
        return sum(group.num_rows for group in read_stream(file.path))
    return int(parquet.read_metadata(file.path).num_rows)


def unfinished(run: RunFolder, files: Sequence[File]) -> list[list[int]]:
    """[index of the stage, step] of the rollouts whose step has no metrics: it was interrupted, or is still running."""
    known = [{row["step"] for row in stage.metrics.rows()} for stage in run.stages]
    return [[file.stage, file.step] for file in files if not file.heldout and file.step not in known[file.stage]]


def chunk_blocks(files: Sequence[File], tokenizer: Any, rollouts: Rollouts) -> Iterator[str]:
    """Yields the blocks of all chunks, and fills `rollouts`. Reads one file at a time, and of a stream a part."""
    for file, table in ((each, table) for each in files for table in _tables(each.path)):
        if not file.heldout:
            _tally(rollouts, file.stage, table)
            _tally_ages(rollouts, file.stage, file.step, table)
        table = table.take(_whole_groups(rollouts, table["id"].to_pylist()))
        if table.num_rows:
            batch = _Batch(table)
            _add_columns(rollouts, file, batch)
            yield from _chunks(rollouts, batch, tokenizer)


def _tables(path: Path) -> Iterator[Any]:
    """Of whole groups."""
    from pyarrow import Table, parquet

    if path.suffix != SUFFIX:
        yield parquet.read_table(path)
        return
    held, size = list[Any](), 0
    for group in read_stream(path):
        held.append(group)
        size += group.nbytes
        if size > PART_BYTES:
            yield Table.from_batches(held)
            held, size = [], 0
    if held:
        yield Table.from_batches(held)


def vocabulary_block(rollouts: Rollouts, tokenizer: Any) -> str:
    """The text of every token that occurs. Bytes that are not text on their own have the tokenizer's name for them."""
    ids = sorted(rollouts.vocabulary)
    texts = tokenizer.decode_batch([[token] for token in ids], skip_special_tokens=False)
    named = [_piece(tokenizer, token, text) for token, text in zip(ids, texts, strict=True)]
    return json_block("vocabulary", [ids, named])


def open_tokenizer(run: RunFolder) -> Any:
    """The tokenizer of the run. Raises UserError if neither the base nor a stage has one."""
    from tokenizers import Tokenizer

    base = [Path(run.cascade.base.hf)] if run.cascade.base.hf else []
    folders = [run.root / "tokenizer", run.root / "base", *base, *(stage.export for stage in run.stages)]
    for folder in folders:
        if (folder / "tokenizer.json").exists():
            return Tokenizer.from_file(str(folder / "tokenizer.json"))
    raise UserError(
        f"{run.root}: expected a tokenizer.json to turn token ids into text, found none in "
        f"{', '.join(map(str, folders))}. Copy that of the run into {run.root / 'tokenizer'}."
    )


class _Batch:
    """The rows of a file as flat arrays. `lengths` and `starts` locate the answers in them. `groups` holds the number
    of answers to each prompt."""

    def __init__(self, table: Any) -> None:
        self.table, self.rows = table, table.num_rows
        self.groups = _group_sizes(self.values("id"))
        self.ids, self.lengths, _ = _flat(table["token_ids"])
        self.prompts = _flat(table["prompt_ids"])[1]
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.sampler = self._per_token("rollout_logprobs", np.float32, math.nan)
        self.trainer = self._per_token("train_logprobs", np.float32, math.nan)
        self.teacher = self._per_token("teacher_logprobs", np.float32, math.nan)
        self.mask = self._per_token("loss_mask", np.bool_, False)
        self.generated = self._per_token("generated", np.bool_, True)
        self.taught = table["teacher_logprobs"].null_count < self.rows

    def values(self, name: str) -> list[Any]:
        return list(self.table[name].to_pylist())

    def sums(self, values: np.ndarray) -> np.ndarray:
        """The sum of `values` over each answer, [rows]."""
        running = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
        return running[self.starts[1:]] - running[self.starts[:-1]]

    def means(self, values: np.ndarray, where: np.ndarray) -> np.ndarray:
        """The mean of `values` over the tokens of each answer in the mask `where`, [rows]. NaN for an empty mask."""
        counts = self.sums(where)
        return np.where(counts, self.sums(np.where(where, values, 0.0)) / np.maximum(counts, 1), math.nan)

    def _per_token(self, name: str, dtype: Any, absent: Any) -> np.ndarray:
        values, lengths, present = _flat(self.table[name])
        if not np.array_equal(lengths[present], self.lengths[present]):
            raise UserError(f"expected one value of {name} per answer token, found a different number.")
        row = np.full(len(self.ids), absent, dtype)
        row[np.repeat(present, self.lengths)] = values
        return row


def _flat(column: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The concatenated values of a column of lists, the lengths of the lists, and which rows are not null."""
    import pyarrow.compute as pc

    values = pc.list_flatten(column).to_numpy()
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    return values, lengths, pc.is_valid(column).to_numpy().astype(bool)


def _tally(rollouts: Rollouts, stage: int, table: Any) -> None:
    domains, outcomes, details = (table[name].to_pylist() for name in ("domain", "outcome", "detail"))
    for domain, outcome, detail in zip(domains, outcomes, details, strict=True):
        rollouts.outcomes[stage, domain, outcome] += 1
        if outcome == Outcome.INFRASTRUCTURE_FAILURE:
            rollouts.broken[stage, domain, detail] += 1


def _tally_ages(rollouts: Rollouts, stage: int, step: int, table: Any) -> None:
    """Step n learns in weight version n - 1. A sample names the versions that made it, each with its first token."""
    lengths = _flat(table["token_ids"])[1].tolist()
    for spans, length in zip(table["versions"].to_pylist(), lengths, strict=True):
        ends = [first for _, first in spans[1:]] + [length]
        for (version, first), end in zip(spans, ends, strict=True):
            rollouts.ages[stage, step, step - 1 - version] += end - first


def _whole_groups(rollouts: Rollouts, ids: list[str]) -> np.ndarray:
    """The rows to keep: at most `limit` in all, evenly spread over the run, and only whole groups of a prompt."""
    share, position = min(1.0, rollouts.limit / max(rollouts.total, 1)), 0
    rows: list[int] = []
    for size in _group_sizes(ids):
        rollouts.seen += size
        kept = rollouts.kept + len(rows)
        if kept + size / 2 <= rollouts.seen * share and kept + size <= rollouts.limit:
            rows += range(position, position + size)
        position += size
    rollouts.kept += len(rows)
    return np.array(rows, np.int64)


def _group_sizes(ids: list[str]) -> list[int]:
    """The numbers of answers to each prompt. They are adjacent, and their ids differ only after the last "/"."""
    return [len(list(group)) for _, group in groupby(ids, lambda name: name.rpartition("/")[0])]


def _add_columns(rollouts: Rollouts, file: File, batch: _Batch) -> None:
    columns = {
        "stage": np.full(batch.rows, file.stage),
        "step": np.full(batch.rows, file.step),
        "heldout": np.full(batch.rows, file.heldout),
        "domain": _codes(rollouts.domains, batch.values("domain")),
        "outcome": [OUTCOMES.index(outcome) for outcome in batch.values("outcome")],
        "reward": [math.nan if reward is None else reward for reward in batch.values("reward")],
        "advantage": batch.values("advantage"),
        "prompt": batch.prompts,
        "answer": batch.lengths,
        "length": batch.sums(batch.generated),
        "turns": batch.values("turns"),
        "tme": batch.means(np.exp(np.abs(batch.trainer - batch.sampler)), batch.generated),
        "kl": batch.means(batch.trainer - batch.teacher, batch.mask) if batch.taught else np.full(batch.rows, math.nan),
        "group": np.repeat(np.arange(len(batch.groups)) + rollouts.groups, batch.groups),
    }
    rollouts.stages.add(file.stage)
    for name, values in columns.items():
        rollouts.columns[name].append(np.asarray(values).astype(COLUMNS[name]))
    rollouts.groups += len(batch.groups)


def _codes(known: list[str], names: list[str]) -> list[int]:
    known += [name for name in dict.fromkeys(names) if name not in known]
    return [known.index(name) for name in names]


def _chunks(rollouts: Rollouts, batch: _Batch, tokenizer: Any) -> Iterator[str]:
    offset = rollouts.kept - batch.rows
    rollouts.vocabulary.update(np.unique(batch.ids).tolist())
    texts = _texts(batch, tokenizer)
    for first, end in _cuts(batch.lengths):
        number = len(rollouts.starts)
        rollouts.starts.append(offset + first)
        yield json_block(f"text-{number}", _readable(texts, first, end))
        yield block(f"tokens-{number}", _numbers(batch, int(batch.starts[first]), int(batch.starts[end])))


def _cuts(lengths: np.ndarray) -> Iterator[tuple[int, int]]:
    """(first row, end row) of each chunk: at most CHUNK_ROWS rows and CHUNK_TOKENS tokens, but at least one answer."""
    first = tokens = 0
    for row, length in enumerate(lengths.tolist()):
        if row > first and (row - first == CHUNK_ROWS or tokens + length > CHUNK_TOKENS):
            yield first, row
            first, tokens = row, 0
        tokens += length
    yield first, len(lengths)


def _texts(batch: _Batch, tokenizer: Any) -> dict[str, list[Any]]:
    """The texts of each rollout. A prompt is decoded once, however many answers it has."""
    firsts = np.cumsum([0, *batch.groups[:-1]])
    decoded = tokenizer.decode_batch(batch.table["prompt_ids"].take(firsts).to_pylist(), skip_special_tokens=False)
    names = ("id", "task_id", "text", "detail", "finish", "versions", "thinking")
    return {
        "prompt": [text for text, size in zip(decoded, batch.groups, strict=True) for _ in range(size)],
        "reward": [_finite(reward) for reward in batch.values("reward")],
        "parts": [[[name, _finite(part)] for name, part in parts or ()] for parts in batch.values("reward_parts")],
        **{name: batch.values(name) for name in names},
    }


def _finite(value: float | None) -> float | str | None:
    """JSON has no NaN and no infinity, so the page gets their names."""
    return value if value is None or math.isfinite(value) else str(value)


def _readable(texts: dict[str, list[Any]], first: int, end: int) -> dict[str, Any]:
    part = {name: values[first:end] for name, values in texts.items()}
    prompts = list(dict.fromkeys(part["prompt"]))
    place = {text: index for index, text in enumerate(prompts)}
    return {**part, "prompts": prompts, "prompt": [place[text] for text in part["prompt"]]}


def _numbers(batch: _Batch, first: int, end: int) -> bytes:
    part = slice(first, end)
    sampler, trainer = batch.sampler[part].view(np.uint32), batch.trainer[part].view(np.uint32)
    flags = batch.mask[part].astype(np.uint8) | batch.generated[part].astype(np.uint8) << 1
    values = [batch.ids[part].astype(np.uint32), sampler, sampler ^ trainer]
    taught = planes(batch.teacher[part]) if batch.taught else b""
    return b"".join(map(planes, values)) + flags.tobytes() + taught


def _piece(tokenizer: Any, token: int, text: str) -> str:
    """A token that is only part of a character is shown by its name in the tokenizer."""
    if "\ufffd" not in text:
        return text
    return f"\u27e8{tokenizer.id_to_token(token)}\u27e9"
