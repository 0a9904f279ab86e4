"""Every kernel compiles for Hopper and Blackwell as in the committed table, and within the rules."""

import inspect
from dataclasses import asdict, replace

import pytest
import triton

from cascade_rl.kernels import fused_linear_kl, gate, policy_loss
from cascade_rl.kernels.parts import vocabulary_tiles
from cascade_rl.kernels.runtime.configs import CONFIGS

CASES = [case for arch in gate.CAPABILITIES for case in gate.cases(arch)]
MODULES = (fused_linear_kl, policy_loss, vocabulary_tiles)


@pytest.mark.process
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.arch}-{case.name}")
def test_a_kernel_compiles_to_what_the_table_says(case: gate.Case):
    found = gate.measure(case)
    assert gate.faults(case, found) + gate.differences(case, found, gate.load_table()) == []


def test_a_regression_names_the_kernel_and_the_number():
    case = CASES[0]
    expected = gate.Resources(**gate.load_table()[triton.__version__][case.arch][case.name])
    worse = replace(expected, spill_bytes=444, mma_sync=8, warps=4)
    assert gate.faults(case, worse) == [
        "sm90 tile_statistics: 444 bytes of spills",
        "sm90 tile_statistics: 4 warps, asked for 8",
        "sm90 tile_statistics: 8 mma.sync",
    ]
    assert gate.differences(case, worse, gate.load_table())[0] == "sm90 tile_statistics: spill_bytes 444, was 0"
    assert gate.differences(case, expected, {}) == [
        f"sm90 tile_statistics: not in the table of Triton {triton.__version__}; run gate --write"
    ]


@pytest.mark.process
def test_a_spilling_tile_is_caught():
    """A tile of 128 x 256 with four warps, which have half the registers, spills 3496 bytes on Hopper."""
    case = replace(CASES[0], warps=4)
    found = gate.measure(case)
    assert found.spill_bytes > 0
    assert gate.faults(case, found) != []


@pytest.mark.parametrize("arch", gate.CAPABILITIES)
def test_saving_adds_nothing_to_the_sums(arch: str):
    """A log-prob has the same bits whether or not exponentials are saved: same additions, same tile shape."""
    for version in gate.load_table().values():
        plain, saving = (version[arch][name] for name in ("tile_statistics", "tile_statistics/save"))
        for count in ("float_additions", "tensor_core", "warps"):
            assert plain[count] == saving[count]


def test_no_kernel_is_compiled_for_a_hidden_size():
    """The hidden size is the length of one loop: 2688 and 4096 share the same machine code."""
    wide = [case for case in CASES if case.wide]
    for case in wide:
        widths = [p for p in case.kernel.params if p.name.endswith("width")]
        assert widths
        assert all(p.do_not_specialize and not p.is_constexpr for p in widths)


def test_the_gate_knows_every_kernel():
    launched = {
        name
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, triton.runtime.jit.JITFunction) and any(p.name.endswith("_ptr") for p in value.params)
    }
    assert {case.kernel.fn.__name__ for case in CASES} == launched


def test_the_table_has_the_cases_of_the_gate_and_no_others():
    for version in gate.load_table().values():
        assert {(arch, name) for arch, rows in version.items() for name in rows} == {(c.arch, c.name) for c in CASES}


def test_kernels_follow_the_rules_of_the_house():
    for module in MODULES:
        source = inspect.getsource(module)
        for forbidden in ("autotune", "libdevice", "atomic_", "inline_asm"):
            assert forbidden not in source, f"{module.__name__} has {forbidden}"
    for case in CASES:
        sizes = {p.name for p in case.kernel.params} & {"tokens", "columns", "rows", "width", "parts"}
        specialised = {p.name for p in case.kernel.params if not p.do_not_specialize}
        assert not sizes & specialised, f"{case.name} compiles anew for another batch"


def test_tiles_of_one_architecture_fit_each_other():
    for config in CONFIGS.values():
        for tile in (config.divergence, config.mixture):
            assert config.statistics.columns % tile.columns == 0
        # A slab of gradients must begin where a tile of statistics, and so of saved exponentials, begins.
        assert config.gradient.columns % config.statistics.columns == 0


def test_groups_depend_on_the_vocabulary_alone():
    config = CONFIGS["sm90"]
    assert config.group_columns(131072) == 1024
    assert config.group_columns(151936) == 256
    assert asdict(config)["group_tiles"] * config.statistics.columns == 1024
