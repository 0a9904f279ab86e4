"""The compile gate: every kernel and configuration, compiled for Hopper and Blackwell without a GPU.

A tile that spills, a dot that falls back to `mma.sync`, warp specialisation that silently switches off, a product that
is serialised: none of these fails a test in the interpreter, and each makes the kernel much slower on a GPU.
`ptxas` and `nvdisasm`, which Triton ships, report them. `gate_table.json` holds their results per Triton version.

    python -m cascade_rl.kernels.gate            compare with the table
    python -m cascade_rl.kernels.gate --write    replace this Triton version's part of the table
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from cascade_rl.kernels import fused_linear_kl, policy_loss
from cascade_rl.kernels.parts import saved_exponentials, vocabulary_tiles
from cascade_rl.kernels.runtime.configs import CONFIGS, Tile
from cascade_rl.kernels.runtime.launch import MERGE_ROWS

TABLE = Path(__file__).with_name("gate_table.json")
CAPABILITIES = {"sm90": 90, "sm100": 100}
SHARED_BYTES = 227 << 10  # limit of one thread block on either architecture

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_ELEMENT_SIZE = 2  # bfloat16, the dtype that training runs in


@dataclass(frozen=True)
class Case:
    """One kernel with one set of constants for one architecture."""

    name: str
    arch: str
    kernel: JITFunction
    constants: dict[str, Any]
    warps: int
    stages: int
    wide: bool  # whether it multiplies matrices, and so must use tensor cores and TMA


@dataclass(frozen=True)
class Resources:
    """What a compiled case uses. Counts are instructions in the machine code."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    warps: int
    tensor_core: int  # wgmma on Hopper, tcgen05 on Blackwell
    mma_sync: int  # the tensor core path of older GPUs
    tma_loads: int
    tma_stores: int
    float_additions: int  # in float32, fused multiply-adds included


def cases(arch: str) -> Iterator[Case]:
    """All kernels for `arch` with the constants that matter for speed."""
    yield from _tiled_cases(arch)
    config = CONFIGS[arch]
    merge = {"FAN": config.group_tiles, "BM": MERGE_ROWS}
    loss = {"SURROGATE": "gspo", "DUAL": True, "IMPORTANCE": "masked", "KL": "k3", "BLOCK": 1024}
    for name, kernel, constants in (
        ("merge_statistics", vocabulary_tiles.merge_statistics, merge),
        ("merge_divergence", fused_linear_kl.merge_divergence, merge | {"QUANTITY": "reverse"}),
        ("chosen_logits", vocabulary_tiles.chosen_logits, {"BI": 4, "BK": 512}),
        ("token_losses", policy_loss.token_losses, loss),
    ):
        yield Case(name, arch, kernel, constants, warps=4, stages=2, wide=False)


def _tiled_cases(arch: str) -> Iterator[Case]:
    config = CONFIGS[arch]

    def case(name: str, kernel: JITFunction, tile: Tile, **constants: Any) -> Case:
        return Case(name, arch, kernel, constants | _tile_constants(tile), tile.warps, tile.stages, wide=True)

    forward, backward = vocabulary_tiles.tile_statistics, vocabulary_tiles.logit_gradients
    yield case("tile_statistics", forward, config.statistics, saved=None)
    saving = replace(config.statistics, stages=config.saving_stages)
    yield case("tile_statistics/save", forward, saving)
    for entropy in (False, True):
        name = "saved_gradients/entropy" if entropy else "saved_gradients"
        constants = {"BM": saved_exponentials.ROWS, "BN": config.statistics.columns, "ENTROPY": entropy}
        yield Case(name, arch, vocabulary_tiles.saved_gradients, constants, saved_exponentials.WARPS, 2, wide=False)
    yield case("logit_gradients", backward, config.gradient, ENTROPY=False)
    yield case("logit_gradients/entropy", backward, config.gradient, ENTROPY=True)
    for quantity in ("reverse", "forward", "mixture"):
        tile = config.mixture if quantity == "mixture" else config.divergence
        yield case(f"tile_divergence/{quantity}", fused_linear_kl.tile_divergence, tile, QUANTITY=quantity)
    for kind in ("reverse", "forward", "jsd"):
        kernel = fused_linear_kl.divergence_gradients
        yield case(f"divergence_gradients/{kind}", kernel, config.divergence, KIND=kind)


def _tile_constants(tile: Tile) -> dict[str, int]:
    return {"BM": tile.rows, "BN": tile.columns, "BK": tile.depth(_ELEMENT_SIZE), "BAND": tile.band}


def measure(case: Case) -> Resources:
    """Compiles `case` and counts its resources. Errors of the compiler propagate unchanged."""
    names, constants = case.kernel.arg_names, case.constants
    signature = {name: "constexpr" if name in constants else _type(case, name) for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in names if signature[name].startswith("*")}
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=constants, attrs=aligned)
    target = GPUTarget("cuda", CAPABILITIES[case.arch], 32)
    compiled = triton.compile(source, target=target, options={"num_warps": case.warps, "num_stages": case.stages})
    ptx, code = compiled.asm["ptx"], _run("nvdisasm", "-c", compiled.asm["cubin"])
    usage = _run("cuobjdump", "-res-usage", compiled.asm["cubin"])
    spilled = re.findall(r"\b(?:STL|LDL)(?:\.\w+)*", code)
    return Resources(
        registers=_number(r"REG:(\d+)", usage),
        spill_bytes=sum(_bytes(instruction) for instruction in spilled),
        shared_bytes=compiled.metadata.shared,
        warps=compiled.metadata.num_warps,
        tensor_core=len(re.findall(r"\bHGMMA|\bUTC\w*MMA", code)),
        mma_sync=len(re.findall(r"mma\.sync", ptx)),
        tma_loads=len(re.findall(r"\bUTMALDG", code)),
        tma_stores=len(re.findall(r"\bUTMASTG", code)),
        float_additions=len(re.findall(r"\bF(?:ADD|FMA)", code)),
    )


def faults(case: Case, found: Resources) -> list[str]:
    """Violations of the rules that hold for any table, each with its number."""
    rules = {
        f"{found.spill_bytes} bytes of spills": found.spill_bytes == 0,
        f"{found.shared_bytes} bytes of shared memory, above {SHARED_BYTES}": found.shared_bytes <= SHARED_BYTES,
        f"{found.warps} warps, asked for {case.warps}": found.warps == case.warps,
        f"{found.mma_sync} mma.sync": found.mma_sync == 0,
        "no wgmma or tcgen05": found.tensor_core > 0 or not case.wide,
        "no TMA load": found.tma_loads > 0 or not case.wide,
        f"{found.registers * case.warps * 32} registers, above 65536": found.registers * case.warps * 32 <= 65536,
    }
    return [f"{case.arch} {case.name}: {fault}" for fault, holds in rules.items() if not holds]


def differences(case: Case, found: Resources, table: dict[str, Any]) -> list[str]:
    """Differences from the committed table of this Triton version; a missing entry counts as one."""
    expected = table.get(triton.__version__, {}).get(case.arch, {}).get(case.name)
    if expected is None:
        return [f"{case.arch} {case.name}: not in the table of Triton {triton.__version__}; run gate --write"]
    return [
        f"{case.arch} {case.name}: {key} {value}, was {expected[key]}"
        for key, value in asdict(found).items()
        if value != expected[key]
    ]


_BLOCKS = {
    "hidden": ("BM", "BK"),
    "student": ("BM", "BK"),
    "teacher": ("BM", "BK"),
    "weight": ("BN", "BK"),
    "student_weight": ("BN", "BK"),
    "teacher_weight": ("BN", "BK"),
    "gradients": ("BM", "BN"),
    "saved": ("BM", "BN"),
}
_HALF = ("gradients", "saved")  # float16 operands of the products in backward; other blocks are bfloat16
_POINTERS = {  # all other pointers are to float32
    "gradients_ptr": "*fp16",
    "saved_ptr": "*fp16",
    "rows_ptr": "*i64",
    "hidden_ptr": "*bf16",
    "weight_ptr": "*bf16",
    "chosen_ptr": "*i32",
}
_FLOATS = {
    *("clip_low", "clip_high", "dual_clip", "importance_low", "importance_high", "kl_coefficient"),
    *("log_beta", "log_rest", "rest"),
}


def _type(case: Case, name: str) -> str:
    """Triton type of an argument, from its name."""
    if name in _BLOCKS:
        rows, columns = (case.constants[side] for side in _BLOCKS[name])
        return f"tensordesc<{'fp16' if name in _HALF else 'bf16'}[{rows}, {columns}]>"
    if name.endswith("_ptr"):
        return _POINTERS.get(name, "*fp32")
    return "fp32" if name in _FLOATS else "i32"


def _run(tool: str, option: str, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([_TOOLS / tool, option, file.name], capture_output=True, text=True, check=True)
    return done.stdout


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"expected {pattern!r} in the report of cuobjdump, found {text[:200]!r}")
    return int(match[1])


def _bytes(instruction: str) -> int:
    width = re.search(r"\.(64|128)\b", instruction)
    return int(width[1]) // 8 if width else 4


def load_table() -> dict[str, Any]:
    return json.loads(TABLE.read_text()) if TABLE.exists() else {}


def check(write: bool = False) -> list[str]:
    """Compiles and prints every case. Returns what is wrong with them, one line each; `write` replaces the table."""
    table, complaints = load_table(), []
    if write:
        table[triton.__version__] = {arch: {} for arch in CAPABILITIES}
    for arch in CAPABILITIES:
        for case in cases(arch):
            found = measure(case)
            print(f"{arch:6} {case.name:30} " + "  ".join(f"{k} {v}" for k, v in asdict(found).items()), flush=True)
            complaints += faults(case, found)
            if write:
                table[triton.__version__][arch][case.name] = asdict(found)
            else:
                complaints += differences(case, found, table)
    if write:
        TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    return complaints


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cascade_rl.kernels.gate", description="The compile gate.")
    parser.add_argument("--write", action="store_true", help="replace this Triton version's part of the table")
    complaints = check(parser.parse_args().write)
    print("\n".join(complaints) or "gate: nothing to complain of")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
