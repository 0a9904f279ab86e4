"""A layout that vLLM would refuse is refused before anything starts."""

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.passed_fields import VllmFields
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout.engine_layout import check_build, check_cut
from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches

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
        check_cut(MODEL | changes, RolloutConfig(tensor=tensor))
    else:
        with pytest.raises(UserError, match=f"rollout.tensor: expected a divisor of the model's {refused}"):
            check_cut(MODEL | changes, RolloutConfig(tensor=tensor))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (RolloutConfig(sleep=True), "rollout.sleep: .* CPU build of vLLM has no sleep mode"),
        (RolloutConfig(expert_parallel=True), "rollout.expert_parallel: .* CPU build of vLLM crashes under"),
        (
            RolloutConfig(vllm=VllmFields(enforce_eager=False)),
            "rollout.vllm.enforce_eager: .* found False",
        ),
    ],
)
def test_what_needs_cuda_is_refused(config: RolloutConfig, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=reason):
        check_build(config)
    monkeypatch.setattr(vllm_cpu_patches, "installed", lambda: False)
    check_build(config)


def test_expert_parallel_workers_cut_the_number_of_experts_instead_of_their_width() -> None:
    model = MODEL | {"num_experts": 6, "moe_intermediate_size": 33}
    check_cut(model, RolloutConfig(tensor=2, expert_parallel=True))
    with pytest.raises(UserError, match="model's num_experts = 5"):
        check_cut(model | {"num_experts": 5}, RolloutConfig(tensor=2, expert_parallel=True))
    with pytest.raises(UserError, match="model's moe_intermediate_size = 33"):
        check_cut(model, RolloutConfig(tensor=2))


@pytest.mark.parametrize("name", ["engines", "tensor"])
def test_at_least_one(name: str) -> None:
    with pytest.raises(UserError, match=f"rollout.{name}: expected at least 1, found 0"):
        RolloutConfig(**{name: 0})
