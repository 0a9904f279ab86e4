"""GPUs and assumptions, read from hardware.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.kernels.runtime.configs import CONFIGS, Config
from cascade_rl.rl_stages.config.node import nearest

TABLE = Path(__file__).with_name("hardware.toml")
GIB = 1 << 30


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU. Rates are per direction, in 1e12 FLOP/s and 1e9 bytes/s."""

    name: str
    memory_gib: float
    bf16_tflops: float
    memory_gb_s: float
    network_gb_s: float
    gpus_per_node: int
    cores_per_node: int
    kernels: str

    @property
    def capacity(self) -> int:
        """Bytes."""
        return int(self.memory_gib * GIB)

    @property
    def kernel_config(self) -> Config:
        return CONFIGS[self.kernels]


@dataclass(frozen=True)
class Assumed:
    """Numbers that are neither measured nor set by a launcher. hardware.toml explains each."""

    context_gib: float
    communicators_gib: float
    fragmentation: float
    cached: float
    train_flops: float
    dense_train_flops: float
    prefill_flops: float
    decode_bandwidth: float
    engine_step_ms: float
    read_gb_s: float
    hand_out_s_per_gb: float
    prompt_tokens: int
    answer_share: float
    demonstration_tokens: int
    filtered_draws: float
    prefill_batch_tokens: int
    core_seconds: Mapping[str, float] = field(default_factory=dict)


def read_hardware(name: str, assumptions: Mapping[str, float] | None = None) -> tuple[Gpu, Assumed]:
    """The GPU of that name, and the assumptions with those of `assumptions` replaced. UserError for an unknown name."""
    table = tomllib.loads(TABLE.read_text())
    if name not in table["gpu"]:
        expected = ", ".join(table["gpu"])
        raise UserError(
            f"hardware: expected one of {expected}, found '{name}'. Add a table [gpu.{name}] to {TABLE.name}"
        )
    numbers = {**table["reserve"], **table["assumed"]}
    for key in assumptions or {}:
        if key not in numbers:
            raise UserError(f"--assume has no name '{key}'. Did you mean '{nearest(key, numbers)}'?")
    assumed = Assumed(**numbers | dict(assumptions or {}), core_seconds=table["verification"])
    return Gpu(name, **table["gpu"][name]), assumed


def names() -> tuple[str, ...]:
    return tuple(tomllib.loads(TABLE.read_text())["gpu"])
