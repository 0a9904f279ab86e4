"""Golden and wrong patches in every tier that this machine has, as root, as a user and as a container's root."""

import json

import pytest

from cascade_rl.rl_stages.sandbox import Tier
from tests.rl_stages.sandbox.test_attacks import PLACES, Place, start


@pytest.mark.sandbox
@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[1].name}-{place[0]}")
def test_only_the_golden_patch_scores_1(place: Place) -> None:
    process = start("grades", place)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    found = json.loads(output)
    if isinstance(found, str):
        assert place[1] is not Tier.LANDLOCK, found
        pytest.skip(found)
    assert found == [1.0, 0.0, 0.0]
