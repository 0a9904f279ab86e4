import pytest

from cascade_rl.rl_stages.sandbox import Sandbox


@pytest.fixture(scope="package")
def sandbox():
    with Sandbox(slots=2) as sandbox:
        yield sandbox
