"""A package that is missing is named with the extra that brings it."""

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.extras import require_extra
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout.engine_layout import check_build
from cascade_rl.launchers.slurm import nemo_run_backend


def test_a_package_that_is_there_is_no_error() -> None:
    require_extra("json", "reading", "cpu")


@pytest.mark.parametrize(
    ("extra", "otherwise", "told"),
    [
        ("slurm", "", "Install cascade-rl[slurm]."),
        ("cpu or cuda", "", "Install cascade-rl[cpu] or cascade-rl[cuda]."),
        ("slurm", "do without", "Install cascade-rl[slurm], or do without."),
    ],
)
def test_a_missing_one_is_named_with_its_extra(extra: str, otherwise: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        require_extra("no_such_package", "a run", extra, otherwise)
    assert str(error.value) == f"a run: expected the package no_such_package, found none. {told}"


def test_sampling_needs_vllm_and_nemo_run_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr("cascade_rl.engine.core.extras.find_spec", lambda _name: None)
    with pytest.raises(UserError, match=r"package vllm, found none. Install cascade-rl\[cpu\] or cascade-rl\[cuda\]"):
        check_build(RolloutConfig())
    with pytest.raises(UserError, match=r"package nemo_run, .* cascade-rl\[slurm\], or submit with --backend sbatch"):
        nemo_run_backend.submit([], tmp_path)
