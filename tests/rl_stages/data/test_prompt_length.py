"""What cannot be counted is an error that says what to change. Counts: tests/launchers/cli/test_data.py."""

from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.data.prompt_length import PromptLength


def test_a_folder_without_a_tokenizer_and_a_wrong_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"expected a model folder with a tokenizer; no such file: .*tokenizer_config\.json"
    ):
        PromptLength(tmp_path, 0, 1)
    with pytest.raises(UserError, match="expected prompt tokens 0 <= LEAST <= MOST; found 2 and 1"):
        PromptLength(tmp_path, 2, 1)
