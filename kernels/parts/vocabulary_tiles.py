"""The Triton kernels that see every (token, column) pair of a linear head, one tile at a time.

Logits are in units of log2, z = (hidden . weight) log2(e) / temperature. A tile's statistics are taken relative to
k = ceil(max z), an integer. So rescaling by 2**(k - k') is exact, and only sums round. One program adds the tiles in
vocabulary order, so a token's bits depend neither on its batch nor on which rank owns which columns.

Kernels are never specialised on sizes: another batch size must not compile to another instruction order.
"""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1e30)  # finite value for minus infinity: inf - inf and 0 * inf are NaN
LOWEST_LOG_RATIO = tl.constexpr(-1e4)
SHIFT = tl.constexpr(15)  # float16 ends at 2**16: shifted, it has full precision for 29 octaves below k, not 14
SHIFTED = tl.constexpr(2.0**15)


@triton.jit
def tile_of(item, row_tiles, column_tiles, BAND: tl.constexpr):
    """The `item`-th tile, swizzled (BAND is GROUP_M): a band of BAND row tiles reads each weight tile once."""
    first = item // (BAND * column_tiles) * BAND
    height = tl.minimum(row_tiles - first, BAND)
    place = item % (BAND * column_tiles)
    return first + place % height, place // height


@triton.jit
def product(hidden, weight, row, column, width, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """hidden[row : row + BM] @ weight[column : column + BN].T in float32, [BM, BN]."""
    sum = tl.zeros((BM, BN), tl.float32)
    for step in tl.range(0, tl.cdiv(width, BK)):
        sum = tl.dot(hidden.load([row, step * BK]), weight.load([column, step * BK]).T, sum, input_precision="ieee")
    return sum


@triton.jit
def finite(z):
    """Replaces minus infinity by LOWEST and keeps NaN, which tl.maximum would drop on a GPU."""
    return tl.where(z < LOWEST, LOWEST, z)


@triton.jit(do_not_specialize=["tokens", "columns", "rows", "width"])
def tile_statistics(
    hidden,  # [tokens, hidden]
    weight,  # [rows, hidden]
    scale_ptr,  # [tokens] log2(e) / temperature
    statistics_ptr,  # [column tiles, 3, tokens] out: k, sum 2**(z - k), sum 2**(z - k) (z - k)
    saved,  # [tokens, saved columns] out: 2**(z - k + SHIFT); None to save nothing
    tokens,
    columns,  # without padding
    rows,
    width,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BAND: tl.constexpr,
):
    row_tiles = tl.cdiv(tokens, BM)
    column_tiles = tl.cdiv(rows, BN)
    for item in tl.range(tl.program_id(0), row_tiles * column_tiles, tl.num_programs(0)):
        row_tile, column_tile = tile_of(item, row_tiles, column_tiles, BAND)
        z = product(hidden, weight, row_tile * BM, column_tile * BN, width, BM, BN, BK)
        token = row_tile * BM + tl.arange(0, BM)
        real = token < tokens
        column = column_tile * BN + tl.arange(0, BN)
        z = finite(z * tl.load(scale_ptr + token, mask=real, other=0.0)[:, None])
        part = (column < columns)[None, :]
        z = tl.where(part, z, LOWEST)
        k = tl.ceil(tl.max(z, 1))
        z = z - k[:, None]
        exponential = tl.exp2(z)
        out = statistics_ptr + column_tile.to(tl.int64) * 3 * tokens + token
        tl.store(out, k, mask=real)
        tl.store(out + tokens, tl.sum(exponential, 1), mask=real)
        tl.store(out + 2 * tokens, tl.sum(exponential * z, 1), mask=real)
        if saved is not None:  # the hardware drops what lies beyond the saved columns
            saved.store([row_tile * BM, column_tile * BN], (exponential * SHIFTED).to(saved.dtype))


@triton.jit(do_not_specialize=["tokens", "parts", "out_stride"])
def merge_statistics(
    parts_ptr,  # [parts, 3, tokens]
    merged_ptr,  # [groups, 3, out_stride] out
    tokens,
    parts,
    out_stride,
    FAN: tl.constexpr,
    BM: tl.constexpr,
):
    """Merges each group of FAN parts into one, in order. A part that is all padding changes no bit."""
    token = tl.program_id(0) * BM + tl.arange(0, BM)
    group = tl.program_id(1)
    real = token < tokens
    k = tl.full((BM,), LOWEST, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    weighted = tl.zeros((BM,), tl.float32)
    for part in tl.range(group * FAN, tl.minimum(group * FAN + FAN, parts)):
        at = parts_ptr + tl.cast(part, tl.int64) * 3 * tokens + token
        part_k = tl.load(at, mask=real, other=LOWEST)
        part_total = tl.load(at + tokens, mask=real, other=0.0)
        part_weighted = tl.load(at + 2 * tokens, mask=real, other=0.0)
        top = tl.maximum(k, part_k)
        old = tl.exp2(k - top)
        new = tl.exp2(part_k - top)
        weighted = old * (weighted + (k - top) * total) + new * (part_weighted + (part_k - top) * part_total)
        total = old * total + new * part_total
        k = top
    out = merged_ptr + group.to(tl.int64) * 3 * out_stride + token
    tl.store(out, k, mask=real)
    tl.store(out + out_stride, total, mask=real)
    tl.store(out + 2 * out_stride, weighted, mask=real)


@triton.jit(do_not_specialize=["ids", "width", "hidden_stride", "weight_stride", "out_stride"])
def chosen_logits(
    hidden_ptr,  # [tokens, hidden]
    weight_ptr,  # [rows, hidden]
    scale_ptr,  # [tokens]
    chosen_ptr,  # [tokens, ids] int32, column or -1
    logits_ptr,  # [ids, out_stride] out: z of each id, LOWEST where the column is -1
    ids,
    width,
    hidden_stride,
    weight_stride,
    out_stride,
    BI: tl.constexpr,
    BK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    which = tl.program_id(1) * BI + tl.arange(0, BI)
    column = tl.load(chosen_ptr + token * ids + which, mask=which < ids, other=-1)
    owned = column >= 0
    weight_rows = weight_ptr + column.to(tl.int64)[:, None] * weight_stride
    sum = tl.zeros((BI, BK), tl.float32)
    for start in tl.range(0, width, BK):
        lane = start + tl.arange(0, BK)
        inside = lane < width
        h = tl.load(hidden_ptr + token * hidden_stride + lane, mask=inside, other=0.0)
        w = tl.load(weight_rows + lane[None, :], mask=owned[:, None] & inside[None, :], other=0.0)
        sum += h.to(tl.float32)[None, :] * w.to(tl.float32)
    z = finite(tl.sum(sum, 1) * tl.load(scale_ptr + token))
    out = logits_ptr + which.to(tl.int64) * out_stride + token
    tl.store(out, tl.where(owned, z, LOWEST), mask=which < ids)


@triton.jit(do_not_specialize=["tokens", "first", "columns", "width"])
def logit_gradients(
    hidden,  # [tokens, hidden]
    weight,  # [rows, hidden]
    gradients,  # [tokens, columns] out: dlogits
    scale_ptr,  # [tokens]
    log_sum_exp_ptr,  # [tokens], of z, in log2
    uniform_ptr,  # [tokens]
    slope_ptr,  # [tokens]; read if ENTROPY
    tokens,
    first,  # first column of the slab of gradients
    columns,  # of the slab
    width,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BAND: tl.constexpr,
    ENTROPY: tl.constexpr,
):
    """dlogits without the own terms of the chosen columns: p (uniform + slope log2 p)."""
    row_tiles = tl.cdiv(tokens, BM)
    column_tiles = tl.cdiv(columns, BN)
    for item in tl.range(tl.program_id(0), row_tiles * column_tiles, tl.num_programs(0)):
        row_tile, column_tile = tile_of(item, row_tiles, column_tiles, BAND)
        z = product(hidden, weight, row_tile * BM, first + column_tile * BN, width, BM, BN, BK)
        token = row_tile * BM + tl.arange(0, BM)
        real = token < tokens
        z = z * tl.load(scale_ptr + token, mask=real, other=0.0)[:, None]
        log_p = z - tl.load(log_sum_exp_ptr + token, mask=real, other=0.0)[:, None]
        log_p = tl.where(log_p < LOWEST_LOG_RATIO, LOWEST_LOG_RATIO, log_p)
        factor = tl.load(uniform_ptr + token, mask=real, other=0.0)[:, None]
        if ENTROPY:
            factor = factor + tl.load(slope_ptr + token, mask=real, other=0.0)[:, None] * log_p
        gradient = tl.exp2(log_p) * factor
        gradients.store([row_tile * BM, column_tile * BN], gradient.to(gradients.dtype))


@triton.jit(do_not_specialize=["tokens", "first", "saved_stride", "tops_stride", "gradients_stride"])
def saved_gradients(
    saved_ptr,  # [saved tokens, saved columns] 2**(z - k + SHIFT)
    tops_ptr,  # [column tiles, saved tokens] k
    rows_ptr,  # [tokens] int64, rows of the saved tensors
    gradients_ptr,  # [tokens, whole tiles of columns] out
    log_sum_exp_ptr,  # [tokens], of z, in log2
    uniform_ptr,  # [tokens]
    slope_ptr,  # [tokens]; read if ENTROPY
    tokens,
    first,  # first column of the slab of gradients, which is the first of a tile
    saved_stride,
    tops_stride,
    gradients_stride,
    BM: tl.constexpr,
    BN: tl.constexpr,
    ENTROPY: tl.constexpr,
):
    """The result of `logit_gradients`, from saved exponentials instead of a product."""
    saved_stride = saved_stride // BN * BN  # the same number, now a known multiple: accesses may be wide
    gradients_stride = gradients_stride // 8 * 8
    token = tl.program_id(0) * BM + tl.arange(0, BM)
    real = token < tokens
    row = tl.load(rows_ptr + token, mask=real, other=0)
    tile = tl.cast(first // BN + tl.program_id(1), tl.int64)
    lane = tl.arange(0, BN)
    at = saved_ptr + row[:, None] * saved_stride + (tile * BN + lane)[None, :]
    exponential = tl.load(at, mask=real[:, None], other=0.0).to(tl.float32)
    shift = tl.load(tops_ptr + tile * tops_stride + row, mask=real, other=LOWEST) - SHIFT
    shift = shift - tl.load(log_sum_exp_ptr + token, mask=real, other=0.0)
    factor = tl.load(uniform_ptr + token, mask=real, other=0.0)[:, None]
    if ENTROPY:
        log_p = tl.log2(exponential) + shift[:, None]
        log_p = tl.where(log_p < LOWEST_LOG_RATIO, LOWEST_LOG_RATIO, log_p)
        factor = factor + tl.load(slope_ptr + token, mask=real, other=0.0)[:, None] * log_p
    gradient = exponential * tl.exp2(shift)[:, None] * factor
    out = gradients_ptr + token.to(tl.int64)[:, None] * gradients_stride + (tl.program_id(1) * BN + lane)[None, :]
    tl.store(out, gradient.to(gradients_ptr.dtype.element_ty), mask=real[:, None])
