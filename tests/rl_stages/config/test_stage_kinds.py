"""Kinds of stages outside of the package."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.cascade import Cascade, stage_class
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.text import from_plain, leaves, override, to_plain
from cascade_rl.rl_stages.run.files_read import files_read
from cascade_rl.rl_stages.run.known_data import KnownData
from cascade_rl.rl_stages.run.upgrade.recorded import changed_keys, recorded_yaml
from tests.rl_stages.tiny_cascade import CASCADE

EXAMPLE = Path(__file__).parents[3] / "examples/own_parts"
KIND = "python:best_of:BestOfStage"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield


def tree() -> Cascade:
    stage = next(stage for stage in CASCADE.stages if isinstance(stage, GrpoStage))
    plain = to_plain(stage) | {"kind": KIND, "least": 0.5}
    return from_plain(to_plain(CASCADE) | {"stages": [plain]})


def test_a_file_and_a_setting_know_its_keys(tmp_path: Path) -> None:
    cascade = tree()
    assert type(cascade.stages[0]) is stage_class(KIND)
    assert leaves(to_plain(cascade))["if_rl.least"] == 0.5
    changed = override(cascade, ["if_rl.least=0.75"])
    assert changed.stages[0].least == 0.75  # type: ignore[attr-defined]
    (tmp_path / "cascade.yaml").write_text(recorded_yaml(cascade))
    assert list(changed_keys(tmp_path / "cascade.yaml", changed)) == [("if_rl.least", (0.5, 0.75))]


def test_its_modules_are_known_by_content() -> None:
    cascade = tree()
    assert files_read(cascade, cascade.stages[0], KnownData()).keys() == {"python:best_of", "python:best_of_loop"}
    own = "python-domain:letters:LETTERS"
    rewarded = replace(cascade.stages[0], domain=own)
    evaluated = replace(cascade, stages=(rewarded,), evaluation=replace(cascade.evaluation, domains=(own,)))
    assert "python:letters" in files_read(evaluated, rewarded, KnownData())


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("python:best_off:BestOfStage", "kind python:best_off:BestOfStage: expected the module 'best_off' beside"),
        ("python:best_of:BestOf", "expected 'BestOf' in .*best_of.py; found no such name"),
        ("python:best_of:dataclass", "expected a class under Stage with that `kind` and a `loop`; found"),
        ("python:best_of:GrpoStage", "expected a class under Stage with that `kind` and a `loop`; found"),
    ],
)
def test_what_is_no_kind_is_told(kind: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        stage_class(kind)
