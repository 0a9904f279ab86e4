"""What a launcher names by `module:NAME`."""

from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.user_modules import imported


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_module.py").write_text("ANSWER = 42\n")
    (tmp_path / "own_needs_more.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_the_object_is_found() -> None:
    assert imported("own_module:ANSWER", "here") == 42


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("own_module", "here: expected MODULE:NAME; found 'own_module'"),
        ("own module:x", "here: expected MODULE:NAME; found"),
        ("own_module:QUESTION", r"here: expected 'QUESTION' in .*own_module.py; found no such name"),
        ("own_modul:ANSWER", "here: expected the module 'own_modul' beside the launcher file"),
    ],
)
def test_what_is_not_there_is_told(target: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        imported(target, "here")


def test_what_the_module_lacks_itself_keeps_its_traceback() -> None:
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        imported("own_needs_more:x", "here")
