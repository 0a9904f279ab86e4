from pathlib import Path

import pytest

from cascade_rl.rl_stages.environments.nemo_gym_tables import VARIABLE
from tests.rl_stages.environments.own_office import write


@pytest.fixture(scope="session")
def boatyard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("boatyard")
    write(folder)
    return folder


@pytest.fixture
def own_office(boatyard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without `initial_state` are about an office of our own."""
    monkeypatch.setenv(VARIABLE, str(boatyard))
