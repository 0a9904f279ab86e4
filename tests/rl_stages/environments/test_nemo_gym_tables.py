"""Where NVIDIA's tables are looked for, and what a row without an office says where they are not."""

import json
import sys
from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.environments.nemo_gym_tables import FOLDER, VARIABLE, start
from cascade_rl.rl_stages.tasks.load_tasks import load_tasks
from tests.rl_stages.environments.own_office import COLLEAGUES, write

ROW = {
    "responses_create_params": {"input": [{"role": "user", "content": "Say hello."}]},
    "agent_ref": {"name": "workplace_assistant_simple_agent"},
}
DELETE = {"name": "email_delete_email", "arguments": '{"email_id": "00000007"}'}


@pytest.fixture(autouse=True)
def _without_nemo_gym(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "nemo_gym", None)


@pytest.mark.parametrize("calls", [[DELETE], []])
def test_a_row_without_an_office_says_where_nvidias_tables_are_expected(tmp_path: Path, calls: list[dict]) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(ROW | {"ground_truth": calls}))
    with pytest.raises(UserError) as error:
        load_tasks(str(file), split="train", seed=0)
    assert str(error.value) == (
        f"{file}:1: expected NVIDIA's workplace tables, which a row without 'initial_state' needs, in an "
        "installed nemo-gym or in the folder that CASCADE_NEMO_GYM names; found neither. Run `make published` and set "
        "CASCADE_NEMO_GYM=build/published, or `pip install --no-deps nemo-gym==0.4.0`"
    )


def test_the_tables_of_an_installed_package_are_read_and_it_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    (tmp_path / "nemo_gym").mkdir()
    (tmp_path / "nemo_gym/__init__.py").write_text("raise ImportError('its requirements are not installed')\n")
    monkeypatch.delitem(sys.modules, "nemo_gym")
    monkeypatch.syspath_prepend(tmp_path)
    sizes = {"email": 40, "calendar": 30, "project_management": 30, "customer_relationship_manager": 20}
    tables = start()
    assert {name: len(rows) for name, rows in tables.items()} == sizes | {"visits": 60, "directory": 8, "plots": 0}
    assert [row["email"] for row in tables["directory"].values()] == list(COLLEAGUES)
    assert tables["email"]["00000007"]["subject"] == "The mast of the ferry"


def test_the_variable_goes_before_the_package_and_must_name_all_the_tables(
    boatyard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    missing = tmp_path / FOLDER / "processed/emails.csv"
    missing.unlink()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match=f"; found no readable '{missing}' .No such file or directory.. Run"):
        start()
    monkeypatch.setenv(VARIABLE, str(boatyard))
    assert len(start()["email"]) == 40
