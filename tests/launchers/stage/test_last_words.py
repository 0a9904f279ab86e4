"""What ended a stage is kept in its logs."""

import os
from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.stage.last_words import LONGEST, forget, kept, last_words


def fails(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UserError("expected rows\nfound none"), "expected rows\nfound none"),
        (ValueError("no"), "ValueError: no"),
        (KeyError("x" * 5000), ("KeyError: '" + "x" * 5000)[:LONGEST]),
    ],
)
def test_a_failure_is_kept_and_raised(tmp_path: Path, error: Exception, message: str) -> None:
    with pytest.raises(type(error)):
        kept(tmp_path, 0, lambda: fails(error))
    assert last_words(tmp_path) == message
    traced = "in fails" in (tmp_path / "last_words_0").read_text()
    assert traced is not isinstance(error, UserError)


def test_the_first_failure_is_the_cause(tmp_path: Path) -> None:
    for rank, error in ((1, ValueError("cause")), (0, ConnectionError("peer is gone"))):
        with pytest.raises(type(error)):
            kept(tmp_path, rank, lambda error=error: fails(error))  # type: ignore[misc]
    os.utime(tmp_path / "last_words_1", (1, 1))
    assert last_words(tmp_path) == "ValueError: cause"
    forget(tmp_path)
    assert last_words(tmp_path) == ""


def test_an_end_on_request_is_no_failure(tmp_path: Path) -> None:
    assert kept(tmp_path, 0, lambda: 75) == 75
    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path, 0, lambda: fails(KeyboardInterrupt()))
    assert last_words(tmp_path) == ""
