"""The only table of tile shapes. A shape depends on kernel and architecture, never on the number of tokens.

There is no autotuning. It picks by time, so the order of a sum, and with it the last bits of a log-prob, would change
from run to run and with the batch. Here a token's bits depend on nothing but the token. The gate compiles every entry
and asserts its registers, spills, shared memory and instructions (`gate.py`).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """One program's tile: `rows` tokens by `columns` of the vocabulary, `depth_bytes` of the hidden size per step."""

    rows: int
    columns: int
    depth_bytes: int
    warps: int
    stages: int
    band: int = 8  # row tiles per group (Triton's GROUP_M swizzle); weight tiles stay in the L2 cache

    def depth(self, element_size: int) -> int:
        return self.depth_bytes // element_size


@dataclass(frozen=True)
class Config:
    """The settings of one architecture.

    statistics, gradient  tiles of the forward and the backward pass over [tokens, vocab]
    divergence, mixture   tiles of the passes that multiply two models' hidden states by their heads; their columns
                          divide those of `statistics`
    group_tiles           tiles of `statistics` merged before the all-gather, if the vocabulary divides into such groups
    launch_tokens         tokens per launch; bounds the memory of per-tile statistics
    saving_stages         pipeline stages of `statistics` when exponentials are saved, because their store needs shared
                          memory too. Nothing else may differ, or the bits of a log-prob would differ
    gradient_bytes        bounds the memory of the gradient of the logits (dlogits) and of the operands of its products,
                          of which one slab of columns exists at a time
    saved_bytes           bounds the memory of the exponentials that forward saves; backward recomputes the rest
    """

    statistics: Tile
    gradient: Tile
    divergence: Tile
    mixture: Tile
    saving_stages: int
    group_tiles: int
    launch_tokens: int
    gradient_bytes: int
    saved_bytes: int

    def group_columns(self, vocab_size: int) -> int:
        """Columns per group. It depends on the vocabulary alone, or the sum would change with the number of ranks.

        A vocabulary that 8 ranks cannot split into whole groups is gathered tile by tile. The last group of a shard
        that ends within one is smaller.
        """
        group = self.statistics.columns * self.group_tiles
        return group if vocab_size % (8 * group) == 0 else self.statistics.columns


_HOPPER_AND_BLACKWELL = Config(
    statistics=Tile(128, 256, 128, warps=8, stages=4),
    gradient=Tile(128, 256, 128, warps=8, stages=3),
    divergence=Tile(128, 128, 128, warps=8, stages=4),
    mixture=Tile(128, 64, 128, warps=8, stages=4),
    saving_stages=3,
    group_tiles=4,
    launch_tokens=8192,
    gradient_bytes=512 << 20,
    saved_bytes=2 << 30,
)

CONFIGS = {
    "sm90": _HOPPER_AND_BLACKWELL,
    "sm100": _HOPPER_AND_BLACKWELL,
    # Small enough that a test has ragged tiles, several groups, several launches and several slabs.
    "interpreter": Config(
        statistics=Tile(16, 32, 64, warps=4, stages=2, band=2),
        gradient=Tile(16, 32, 64, warps=4, stages=2, band=2),
        divergence=Tile(16, 32, 64, warps=4, stages=2, band=2),
        mixture=Tile(16, 16, 64, warps=4, stages=2, band=2),
        saving_stages=2,
        group_tiles=2,
        launch_tokens=32,
        gradient_bytes=32 << 10,
        saved_bytes=8 << 10,
    ),
}
