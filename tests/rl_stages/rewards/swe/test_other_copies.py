import subprocess
import sys

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.rewards.swe.grading import run_tests
from cascade_rl.rl_stages.rewards.swe.other_copies import NEEDED_BY_PYTEST, other_copies, require_hideable
from cascade_rl.rl_stages.rewards.swe.repository import Repository, installed_package
from cascade_rl.rl_stages.sandbox import Limits

LAYOUT = {
    "src/pkg/__init__.py": "",
    "src/pkg/a.py": "",
    "src/pkg/inner/__init__.py": "",
    "src/single.py": "",
    "setup.py": "",
    "docs/conf.py": "",
    "six.py": "",
    "pluggy/data.txt": "",
}
FIND = """
import os, sys
import pytest, yaml
shown = []
for root in {*sys.path, sys.prefix, sys.base_prefix, "/usr"}:
    for folder, _, files in os.walk(root):
        if os.path.basename(folder) == "catalogue":
            for name in files:
                try:
                    shown.append(open(os.path.join(folder, name)).read())
                except OSError:
                    pass
print(sum(map(len, shown)))
"""


def test_packages_and_modules_of_a_repository():
    repository = Repository(LAYOUT, {"tests/__init__.py": "", "tests/test_a.py": "", "test_b.py": ""})
    assert other_copies(repository) == {
        "src/pkg": ["__init__.py", "a.py"],
        "tests": ["__init__.py", "test_a.py"],
        **{path: [] for path in ("src/single.py", "six.py", "test_b.py")},
    }


def test_the_list_of_what_pytest_needs_is_whole():
    report = "import sys; before = set(sys.modules); import pytest, pygments; print(*(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-I", "-c", report], capture_output=True, text=True, check=True).stdout
    third_party = {name.partition(".")[0] for name in loaded.split()} - sys.stdlib_module_names
    assert third_party <= NEEDED_BY_PYTEST


@pytest.mark.parametrize("path", ["pluggy/__init__.py", "src/_pytest/__init__.py", "py.py"])
def test_no_tasks_of_what_pytest_needs(path):
    with pytest.raises(UserError, match="which pytest needs there"):
        require_hideable(Repository({path: ""}, {}))
    require_hideable(Repository(LAYOUT, {}))


@pytest.mark.sandbox
def test_a_box_shows_no_other_copy_of_its_package(tier_sandbox):
    repository = installed_package("catalogue")
    for hidden, seen in ((other_copies(repository), False), ({}, True)):
        with tier_sandbox.folder({"a.txt": ""}, None, hidden) as folder:
            run = tier_sandbox.run_command([sys.executable, "-c", FIND], folder, Limits(cpu_seconds=30.0))
        assert run.exit_code == 0, run.output
        assert (run.output != "0\n") is seen, run.output


@pytest.mark.sandbox
def test_hidden_tests_run_where_the_installed_package_is_hidden(tier_sandbox):
    repository = installed_package("catalogue")
    run = run_tests(repository, tier_sandbox)
    assert run.outcomes and "failed" not in run.results.values()
