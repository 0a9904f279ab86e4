"""`cascade dry-run`: builds one rank of each pipeline stage of a layout on the meta device, and shows its memory."""

import argparse
from dataclasses import asdict, fields
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import check_layout, family_of, read_config
from cascade_rl.engine.models.hf_config import HfConfig
from cascade_rl.engine.models.memory import state_bytes
from cascade_rl.engine.models.name_map import NameMap
from cascade_rl.engine.models.places import place_of
from cascade_rl.engine.refit.plan import Links
from cascade_rl.launchers.bench.planned_refit import planned_refit

GIB = 1 << 30
BFLOAT16 = 2
SIZES = ("tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor")
HEADINGS = ("rank", "layers", "parameters", "weights", "gradients", "optimizer", "GiB")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="folder with a config.json, such as those in engine/models/published")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="number of trainer ranks")
    defaults = {field.name: field.default for field in fields(ParallelConfig)}
    for name in SIZES:
        option, size = "--" + name.replace("_", "-"), name.replace("_", " ")
        text = f"{size} parallel size (default: {defaults[name]})"
        parser.add_argument(option, type=int, default=defaults[name], metavar="N", help=text)
    parser.add_argument(
        "--engines", type=int, default=0, metavar="N", help="also plan a refit to N vLLM engines on the first GPUs"
    )
    parser.add_argument(
        "--engine-tensor", type=int, default=1, metavar="N", help="tensor parallel workers of each engine (default: 1)"
    )
    for name, speed in asdict(Links()).items():
        option = "--" + name.replace("_", "-")
        text = f"link speed {name.replace('_', ' ')}, in bytes per second (default: {speed:g})"
        parser.add_argument(option, type=float, default=speed, metavar="B/S", help=text)


def run(options: argparse.Namespace) -> int:
    hf = read_config(options.model)
    parallel = ParallelConfig(**{name: getattr(options, name) for name in SIZES}, sequence=options.tensor > 1)
    check_layout(hf, parallel, options.ranks)
    name_map = family_of(hf).name_map(hf)
    table = Table(*HEADINGS, title=f"{name_map.parameter_count():,} parameters in bfloat16 on {options.ranks} ranks")
    for rank in range(0, options.ranks, options.ranks // parallel.pipeline):
        table.add_row(*_first_of_stage(hf, name_map, parallel, options.ranks, rank))
    Console(highlight=False).print(table)
    if options.engines:
        links = Links(options.within_node, options.between_nodes)
        print(f"refit: {planned_refit(hf, parallel, options.ranks, options.engines, options.engine_tensor, links)}")
    return 0


def _first_of_stage(hf: HfConfig, name_map: NameMap, parallel: ParallelConfig, world: int, rank: int) -> list[str]:
    """One rank as Megatron builds it. The other ranks of its pipeline stage hold equally much."""
    from cascade_rl.engine.models.dry_run import imagined_rank, meta_chunks

    with imagined_rank(rank, world, parallel):
        chunks = meta_chunks(hf, parallel)
    layers = " + ".join(str(len(chunk.decoder.layer_type_list)) for chunk in chunks)
    numbers = sum(parameter.numel() for chunk in chunks for parameter in chunk.parameters())
    place = place_of(rank, world, parallel)
    held = state_bytes(name_map.shards(place), place, BFLOAT16)
    sizes = (held.weights, held.gradients, held.optimizer, held.total)
    return [str(rank), layers, f"{numbers:,}", *(f"{size / GIB:.2f}" for size in sizes)]
