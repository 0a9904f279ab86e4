import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from cascade_rl.kernels.runtime import interpreter


@triton.jit
def cast(source_ptr, target_ptr, LANES: tl.constexpr):
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    tl.store(target_ptr + lane, tl.load(source_ptr + lane).to(target_ptr.dtype.element_ty))


@triton.jit
def double(x):
    return x + x


@triton.jit
def dot(a, b, out_ptr, row_sum_ptr, SIDE: tl.constexpr):
    product = tl.dot(a.load([0, 0]), b.load([0, 0]).T)
    row = tl.arange(0, SIDE)
    tl.store(out_ptr + row[:, None] * SIDE + row[None, :], product)
    tl.store(row_sum_ptr + row, double(tl.sum(product, 1)))


@triton.jit
def accumulated(a, b, sum_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    places = sum_ptr + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(places, tl.dot(a.load([0, 0]), b.load([0, 0]).T, tl.load(places)))


@triton.jit
def arithmetic(x_ptr, OP: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, 16))
    if OP == "add":
        x = x + x
    if OP == "minimum":
        x = tl.minimum(x, x * 0)
    if OP == "less":
        x = (x < x).to(tl.bfloat16)
    tl.store(x_ptr + tl.arange(0, 16), x.to(tl.bfloat16))


def cast_to(source: Tensor, dtype: torch.dtype) -> Tensor:
    target = torch.empty(len(source), dtype=dtype)
    lanes = 1024
    arguments = {"source_ptr": source, "target_ptr": target, "LANES": lanes}
    interpreter.run(cast, (len(source) // lanes,), arguments)
    return target


def whole(tensor: Tensor) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(tensor, list(tensor.shape))


def accumulate(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """start [rows, columns] + a [rows, k] @ b [columns, k].T, in the interpreter."""
    sum = start.clone()
    arguments = {"a": whole(a), "b": whole(b), "sum_ptr": sum, "ROWS": len(a), "COLUMNS": len(b)}
    interpreter.run(accumulated, (1,), arguments)
    return sum


def all_bfloat16() -> Tensor:
    return torch.from_numpy(np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.int16)).view(torch.bfloat16)


def same_bits(a: Tensor, b: Tensor) -> bool:
    nan = a.isnan()
    integer = torch.int16 if a.element_size() == 2 else torch.int32
    return torch.equal(nan, b.isnan()) and torch.equal(a[~nan].view(integer), b[~nan].view(integer))


def test_every_bfloat16_becomes_its_float32():
    source = all_bfloat16()
    assert same_bits(cast_to(source, torch.float32), source.float())


def test_every_bfloat16_survives_a_round_trip():
    source = all_bfloat16()
    assert same_bits(cast_to(source.float(), torch.bfloat16), source)


def test_float32_rounds_to_bfloat16_as_torch_does():
    bits = torch.randint(-(2**31), 2**31, (1 << 16,), dtype=torch.int64).int()
    ties = (bits & ~0xFFFF) | 0x8000  # halfway between two bfloat16 numbers
    edges = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3.4e38, -3.4e38, 1e-45]).repeat(128)
    source = torch.cat([bits.view(torch.float32), ties.view(torch.float32), edges])
    assert same_bits(cast_to(source, torch.bfloat16), source.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32])
def test_bfloat16_to_and_from_other_types(dtype: torch.dtype):
    source = (torch.randn(1024) * 100).bfloat16()
    assert torch.equal(cast_to(source, dtype), source.to(dtype))
    assert torch.equal(cast_to(source.to(dtype), torch.bfloat16), source.to(dtype).bfloat16())


def test_dot_of_bfloat16_is_that_of_float32_and_functions_can_be_called():
    a, b = torch.randn(16, 16).bfloat16(), torch.randn(16, 16).bfloat16()
    out, row_sum = torch.empty(16, 16), torch.empty(16)
    arguments = {"a": whole(a), "b": whole(b), "out_ptr": out, "row_sum_ptr": row_sum, "SIDE": 16}
    interpreter.run(dot, (1,), arguments)
    assert torch.allclose(out, a.float() @ b.float().T, atol=1e-5)
    assert torch.allclose(row_sum, 2 * out.sum(1), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dot_has_the_same_bits_wherever_a_row_or_column_is(dtype: torch.dtype):
    a, b, start = torch.randn(16, 32).to(dtype), torch.randn(32, 32).to(dtype), torch.randn(16, 32)
    product = accumulate(a, b, start)
    for _ in range(20):
        rows, columns = torch.randperm(16), torch.randperm(32)
        permuted = accumulate(a[rows], b[columns], start[rows][:, columns])
        assert torch.equal(permuted, product[rows][:, columns])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dot_equals_float64_within_the_rounding_of_float32(dtype: torch.dtype):
    a, b, start = torch.randn(16, 64).to(dtype), torch.randn(32, 64).to(dtype), torch.randn(16, 32)
    exact = start.double() + a.double() @ b.double().T
    size = start.abs().double() + a.abs().double() @ b.abs().double().T
    # A term is rounded at most 65 times, each time by 2**-24 (Higham, Accuracy and Stability, 2nd ed., section 3.1).
    assert ((accumulate(a, b, start) - exact).abs() <= 66 * 2**-24 * size).all()


def test_dot_of_float8_is_refused():
    eights = torch.ones(16, 32).to(torch.float8_e5m2)
    with pytest.raises(TypeError, match="dot of fp8e5: cast to float16"):
        accumulate(eights, eights, torch.zeros(16, 16))


@pytest.mark.parametrize("op", ["add", "minimum", "less"])
def test_arithmetic_on_bfloat16_is_refused(op: str):
    with pytest.raises(TypeError, match="bfloat16: cast to float32"):
        interpreter.run(arithmetic, (1,), {"x_ptr": torch.ones(16).bfloat16(), "OP": op})


def test_the_language_is_whole_after_a_kernel_and_after_a_failure():
    before = {
        name: getattr(module, name)
        for module in (tl, tl.core)
        for name in ("load", "dot", "exp2", "range")
        if hasattr(module, name)
    }
    with pytest.raises(TypeError):
        interpreter.run(arithmetic, (1,), {"x_ptr": torch.ones(16).bfloat16(), "OP": "add"})
    after = {name: getattr(module, name) for module in (tl, tl.core) for name in before if hasattr(module, name)}
    assert all(after[name] is before[name] for name in before)
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        double(1)


def test_paths_are_chosen_by_block():
    assert not interpreter.chosen()
    with interpreter.interpreted():
        assert interpreter.chosen()
    assert not interpreter.chosen()
