import threading

import pytest

from tests.bounded import bounded


def test_a_wait_without_end_fails_where_it_is() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"within 0\.1 s"), bounded(0.1):
        threading.Event().wait()
    with bounded():
        pass
