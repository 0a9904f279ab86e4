"""What --help says of a cascade: a page, and everything about one key."""

import importlib

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.help.key import as_typed, find
from cascade_rl.launchers.help.launcher_page import explain, overview
from cascade_rl.rl_stages.config.text import leaves, override, to_plain
from tests.launchers.fake_launcher import CASCADE

LONGEST = 60 - 28  # lines of a page, less those of the options
LAUNCHERS = ("cascade2_tiny", "cascade2_30b_a3b", "cascade1_8b", "cascade1_14b")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_overview_is_a_page_and_names_every_stage(launcher: str) -> None:
    cascade = importlib.import_module(f"cascade_rl.launchers.{launcher}").CASCADE
    told = overview(cascade)
    assert len(told.splitlines()) <= LONGEST
    assert [stage.name for stage in cascade.stages if f"\n  {stage.name} " not in told] == []


def test_a_key_is_told_with_value_type_default_and_unit() -> None:
    assert explain(CASCADE, "rollout.kv_cache_mib").splitlines() == [
        "rollout.kv_cache_mib=64", "size of the KV cache of one worker", "type: a whole number", "default: 64",
        "unit: MiB",
    ]  # fmt: skip
    told = explain(CASCADE, "math_rl.surrogate").splitlines()
    assert told[0] == "math_rl.surrogate=reinforce"
    assert told[-2:] == ["type: one of reinforce, clip, cispo, gspo", "default: reinforce"]
    assert "default: none, it must be given" in explain(CASCADE, "sft.data")


def test_the_default_is_that_of_the_kind_of_stage() -> None:
    assert find(CASCADE, "sft.optimizer.lr").default == 5e-5
    assert find(CASCADE, "math_rl.optimizer.lr").default == 3e-6


def test_a_node_lists_every_key_below_it() -> None:
    plain = to_plain(CASCADE)
    for name in ("rollout", "sft", "math_rl"):
        told = explain(CASCADE, name)
        keys = [key for key in leaves(plain) if key.startswith(f"{name}.") and not key.endswith(".kind")]
        assert keys and [key for key in keys if f"\n  {key}=" not in told] == []


def test_a_node_that_is_null_lists_what_could_be_set() -> None:
    assert find(CASCADE, "math_rl.parallel").value is None
    assert "\n  math_rl.parallel.tensor=1 " in explain(CASCADE, "math_rl.parallel")


@pytest.mark.parametrize(
    ("key", "nearest"), [("rolout", "rollout"), ("sft.optimizer.learning_rate", "sft.optimizer.lr"), ("a.b", "name")]
)
def test_an_unknown_key_names_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(UserError, match=f"Unknown key '{key}'. Did you mean '{nearest}'?"):
        explain(CASCADE, key)


@pytest.mark.parametrize("value", [None, True, 3, 2.5e-7, ("math", "code"), "text"])
def test_a_value_is_shown_as_it_is_typed(value: object) -> None:
    assert as_typed(value) == {None: "null", True: "true", ("math", "code"): "math,code"}.get(value, str(value))


def test_what_is_shown_may_be_given_as_a_setting() -> None:
    keys = ("rollout.deterministic", "evaluation.domains", "math_rl.dual_clip", "math_rl.optimizer.betas", "seed")
    assert override(CASCADE, [f"{key}={as_typed(find(CASCADE, key).value)}" for key in keys]) == CASCADE
