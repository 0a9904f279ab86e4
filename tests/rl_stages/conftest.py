from collections.abc import Iterator
from functools import cache

import pytest

from cascade_rl.rl_stages.sandbox import Sandbox, Tier
from cascade_rl.rl_stages.sandbox.outside import pool
from cascade_rl.rl_stages.sandbox.outside.probe import why_not

known_reason = cache(why_not)


@pytest.fixture(scope="package")
def sandbox():
    with Sandbox(slots=2) as sandbox:
        yield sandbox


@pytest.fixture(scope="module", params=Tier, ids=lambda tier: tier.name)
def tier(request: pytest.FixtureRequest) -> Iterator[Tier]:
    """Each tier that this machine has. In a test that asks for it, every new sandbox is in that tier."""
    if reason := known_reason(request.param):
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "probe", lambda: request.param)
        yield request.param


@pytest.fixture(scope="module")
def tier_sandbox(tier: Tier) -> Iterator[Sandbox]:
    with Sandbox(slots=2) as sandbox:
        yield sandbox
