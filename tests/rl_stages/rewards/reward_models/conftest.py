from collections.abc import Iterator

import pytest

from .fake_judge import FakeJudge, fake_judge


@pytest.fixture
def server() -> Iterator[FakeJudge]:
    with fake_judge() as server:
        yield server
