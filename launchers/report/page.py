"""`cascade report RUN`: writes the run as one HTML file that needs no server, no network and no other file."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.report.blocks import block, json_block, planes
from cascade_rl.launchers.report.collect import collect, expert_load
from cascade_rl.launchers.report.rollouts import (
    File,
    Rollouts,
    chunk_blocks,
    count,
    open_tokenizer,
    step_files,
    unfinished,
    vocabulary_block,
)
from cascade_rl.rl_stages.run.durable_file import write_atomically
from cascade_rl.rl_stages.run.run_folder import RunFolder

SCRIPTS = ("report.js", "charts.js", "sections.js", "viewer.js")
EXPERT_UNIT = 256  # stands for a load of 1 in the page


def run(root: Path, out: Path | None, limit: int, live: Collection[str] = ()) -> int:
    """Writes `out`, or report.html in the run folder, with at most `limit` rollouts. Prints its size. `live` are the
    stages whose Slurm jobs are alive."""
    out = out or root / "report.html"
    content, rollouts = page(root, limit, live)
    write_atomically(out, content)
    size = out.stat().st_size / 1e6
    print(f"{out}: {size:.1f} MB, {rollouts.kept:,} of {rollouts.total:,} rollouts")
    return 0


def page(root: Path, limit: int, live: Collection[str], follow: str | None = None) -> tuple[str, Rollouts]:
    """The page, and what is known of its rollouts. `follow`: it is served, and this names its content; it then asks for
    a newer one."""
    if limit < 0:
        raise UserError(f"--rollouts: expected 0 or more, found {limit}.")
    folder = RunFolder.open(root)
    found = step_files(folder)
    rollouts = Rollouts(total=count(found), limit=limit)
    scripts = [*map(resource, SCRIPTS)]
    if follow:
        scripts += [resource("watch.js"), f"follow({json.dumps(follow)});"]
    return _page(folder, rollouts, found, live, "\n".join(scripts)), rollouts


def _page(run: RunFolder, rollouts: Rollouts, files: list[File], live: Collection[str], script: str) -> str:
    chunks = "".join(rollout_blocks(open_tokenizer(run), rollouts, files) if rollouts.total else ())
    loads = [expert_load(stage) for stage in run.stages]
    facts = collect(run, live) | {"rollouts": rollouts.facts(), "counts": rollouts.counts(), "bytes": len(chunks)}
    facts["unfinished"] = unfinished(run, files)
    return assembled(
        {
            "title": escape(f"{run.cascade.name}: report"),
            "run": json_block("run", facts | {"experts": [load.shape for load in loads]}),
            "script": script,
            "blocks": "".join(_expert_blocks(loads)) + chunks,
        }
    )


def assembled(parts: Mapping[str, str]) -> str:
    """The template with its parts. What is seen first comes first: the browser shows it while it still reads the
    rest."""
    page = resource("template.html")
    for name, content in {"style": resource("report.css"), **parts}.items():
        before, _, after = page.partition(f"<!-- {name} -->")
        page = before + content + after
    return page


def rollout_blocks(tokenizer: Any, rollouts: Rollouts, files: Sequence[File]) -> Iterator[str]:
    """All blocks of the rollouts; fills `rollouts`."""
    chunks = list(chunk_blocks(files, tokenizer, rollouts))
    yield from rollouts.column_blocks()
    yield vocabulary_block(rollouts, tokenizer)
    yield from chunks


def _expert_blocks(loads: list[np.ndarray]) -> Iterator[str]:
    for index, load in enumerate(loads):
        if load.size:
            units = np.minimum(np.rint(load * EXPERT_UNIT), np.iinfo(np.uint16).max)
            yield block(f"experts-{index}", planes(units.astype(np.uint16).reshape(-1)))


def resource(name: str) -> str:
    """A file of web/."""
    return files("cascade_rl.launchers.report").joinpath("web", name).read_text()
