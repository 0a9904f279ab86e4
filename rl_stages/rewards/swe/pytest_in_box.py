"""Runs in the box with `python -c`: pytest on the files that stdin names. Prints the outcomes after the nonce of stdin.

The code under test shares this process and can report what it likes. What it cannot report is what the
tests expect: this is sealed. pytest is imported before the checkout can shadow a module.
"""

import builtins
import json
import os
import sys
from collections import defaultdict

import pytest

from cascade_rl.rl_stages.rewards.swe.sealed_value import ERROR_NAME, NAME, Sealed, sealed_error

MESSAGE_CHARACTERS = 200


class Outcomes:
    """The outcome of each test, "passed", "skipped" or "failed", with the message of a failure."""

    def __init__(self) -> None:
        self.of: dict[str, tuple[str, str]] = {}

    def pytest_configure(self, config: pytest.Config) -> None:
        config.option.tbstyle = "no"  # nobody reads the tracebacks, and pytest's own cost more than the tests

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            crash = getattr(report.longrepr, "reprcrash", None)
            self.of[report.nodeid] = (report.outcome, crash.message[:MESSAGE_CHARACTERS] if crash else "")


def main() -> None:
    request = json.load(sys.stdin)
    channel = os.dup(1)
    os.write(channel, f"{request['nonce']} ready\n".encode())
    sys.path.insert(0, os.getcwd())
    outcomes = Outcomes()
    seen: dict[int, set[str]] = defaultdict(set)
    setattr(builtins, NAME, lambda number: Sealed(number, seen[number]))
    setattr(builtins, ERROR_NAME, lambda number: sealed_error(seen[number]))
    # Without confcutdir pytest also lists the folders above the checkout. A box without namespaces may not do that.
    options = ["--rootdir=.", "--confcutdir=.", "-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:terminal"]
    pytest.main([*options, *request["files"]], plugins=[outcomes])
    report = {"outcomes": outcomes.of, "seen": {number: list(forms) for number, forms in seen.items()}}
    data = memoryview(f"\n{request['nonce']} {json.dumps(report)}\n".encode())
    while data:
        data = data[os.write(channel, data) :]
    os._exit(0)  # skips the exit handlers that the code under test registered


if __name__ == "__main__":
    main()
