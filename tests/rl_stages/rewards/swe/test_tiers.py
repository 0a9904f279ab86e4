"""Golden and wrong patches in every tier that this machine has, as root, as a user and as a container's root."""

import json

import pytest

from tests.rl_stages.sandbox.test_attacks import PLACES, Place, start
from tests.until import LIMIT_S


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "place", [place for place in PLACES if place[0] != "old root"], ids=lambda place: f"{place[1].name}-{place[0]}"
)
def test_only_the_golden_patch_scores_1(place: Place) -> None:
    process = start("grades", place)
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    found = json.loads(output)
    if isinstance(found, str):
        pytest.skip(found)
    assert found == [1.0, 0.0, 0.0]
