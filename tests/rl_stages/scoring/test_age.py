"""The ages of tokens: of first and last ones, and the share of each."""

import numpy as np
import pytest

from cascade_rl.rl_stages.scoring.age import told


def test_ages_are_told_over_the_loss_tokens() -> None:
    """A prompt counts nowhere, and a sample that is not trained on neither."""
    ages = [np.array([0, 0, 2, 2, 1]), np.array([0, 0, 0, 0]), np.array([0, 9])]
    masks = [np.array([False, False, True, True, True]), np.array([False, True, True, True]), np.array([False, False])]
    assert told(ages, masks) == {
        "age": pytest.approx(5 / 6),
        "age_first": 1.0,
        "age_last": 0.5,
        "age_max": 2.0,
        "age_0_fraction": pytest.approx(3 / 6),
        "age_1_fraction": pytest.approx(1 / 6),
        "age_2_fraction": pytest.approx(2 / 6),
    }
