"""A layout that vLLM would refuse is refused before anything starts."""

import pytest

from cascade_rl.engine.config import RolloutConfig
from cascade_rl.engine.errors import UserError
from cascade_rl.engine.rollout import vllm_cpu_patches
from cascade_rl.engine.rollout.layout import check_rollout

MODEL = {"num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 96, "mamba_num_heads": 16}


@pytest.mark.parametrize(
    ("tensor", "changes", "refused"),
    [
        (2, {}, None),
        (8, {}, None),  # two workers share each key/value head
        (3, {}, "num_attention_heads = 8, found 3"),
        (8, {"num_key_value_heads": 3}, "num_key_value_heads = 3, found 8"),
        (8, {"intermediate_size": 100}, "intermediate_size = 100, found 8"),
        (8, {"n_groups": 1}, None),
        (8, {"n_groups": 2}, "n_groups = 2, found 8"),
        (16, {}, "num_attention_heads = 8, found 16"),
    ],
)
def test_workers_divide_the_model(tensor: int, changes: dict[str, int], refused: str | None) -> None:
    if refused is None:
        check_rollout(MODEL | changes, RolloutConfig(tensor=tensor))
    else:
        with pytest.raises(UserError, match=f"rollout.tensor: expected a divisor of the model's {refused}"):
            check_rollout(MODEL | changes, RolloutConfig(tensor=tensor))


def test_sleep_needs_a_build_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="CPU build of vLLM has no sleep mode"):
        check_rollout(MODEL, RolloutConfig(sleep=True))
    monkeypatch.setattr(vllm_cpu_patches, "installed", lambda: False)
    check_rollout(MODEL, RolloutConfig(sleep=True))


@pytest.mark.parametrize("name", ["engines", "tensor"])
def test_at_least_one(name: str) -> None:
    with pytest.raises(UserError, match=f"rollout.{name}: expected at least 1, found 0"):
        RolloutConfig(**{name: 0})
