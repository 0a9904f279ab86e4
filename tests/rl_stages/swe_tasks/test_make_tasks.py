import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.cli import main as cascade
from cascade_rl.rl_stages.rewards.swe.grading import grade
from cascade_rl.rl_stages.rewards.swe.instance import Instance, parse_instance
from cascade_rl.rl_stages.rewards.swe.repository import installed_package, load_snapshot
from cascade_rl.rl_stages.swe_tasks.issue_text import issue_text
from cascade_rl.rl_stages.swe_tasks.make_tasks import Report, TaskMaker
from cascade_rl.rl_stages.tasks.load_tasks import load_tasks
from tests.rl_stages.rewards.swe.test_grading import HOOK, REPORTS
from tests.rl_stages.rewards.swe.tiny_package import REPOSITORY, SOURCE

REFERENCE = {"files": REPOSITORY.files, "tests": REPOSITORY.tests}
MUTANTS = int(os.environ.get("CASCADE_SWE_MUTANTS", "2"))
MODULE = "catalogue/__init__.py"
TAMPERING = {
    "conftest at the root": {"conftest.py": HOOK},
    "conftest of the tests": {"catalogue/tests/conftest.py": HOOK},
    "pytest.ini and a plugin": {"pytest.ini": "[pytest]\naddopts = -p evil\n", "evil.py": HOOK},
    "reports of pytest": {MODULE: f"import sys\n{REPORTS}tamper(sys.modules['_py' + 'test.reports'])\n"},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Tasks of an installed package; CASCADE_SWE_MUTANTS=20 runs the whole check."""
    out = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    assert cascade._run(["swe-tasks", "catalogue", str(out), "--count", str(MUTANTS), "--seed", "3"]) == 0
    return out


@pytest.mark.sandbox
def test_the_command_makes_verified_tasks_from_an_installed_package(written):
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    assert len({row["instance_id"] for row in rows}) == MUTANTS
    tasks = [task for split in ("train", "heldout") for task in tasks_of(written, split)]
    assert {task.domain for task in tasks} == {"swe_executed"}
    for row in rows:
        assert row["FAIL_TO_PASS"] and row["PASS_TO_PASS"]
        prompt = row["responses_create_params"]["input"][0]["content"]
        assert row["problem_statement"] in prompt and "test_catalogue.py" not in prompt and "def test_" not in prompt


def test_of_its_mutants_only_the_repaired_one_passes(written, sandbox):
    """Each attack comes with a change that is applied, so that the tests run."""
    instances = [Instance.of(parse_instance(json.loads(line))) for line in written.read_text().splitlines()]

    def scores(instance):
        files = instance.repository.files
        changed = {**files, MODULE: files[MODULE] + "\n# a comment\n"}
        attacks = [
            {**changed, **patch, **({MODULE: patch[MODULE] + changed[MODULE]} if MODULE in patch else {})}
            for patch in TAMPERING.values()
        ]
        return [grade(instance, tried, sandbox).score for tried in (instance.repaired, files, changed, *attacks)]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(scores, instances)) == [[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]] * MUTANTS


def tasks_of(out, split):
    try:
        return load_tasks(str(out), split=split, seed=1)
    except UserError:  # both prompts may be of the other split
        return []


def test_one_seed_gives_one_list_and_the_report_adds_up(sandbox):
    def made(count: int) -> tuple[list, Report]:
        report = Report(seconds=1.0)
        maker = TaskMaker("tiny", REPOSITORY, REFERENCE, sandbox)
        return list(maker.tasks(count, 1, report)), report

    (first, report), (again, _) = made(2), made(1)
    assert first[:1] == again and len(first) == report.fates["kept"] == report.kinds.total() == 2
    assert f"{report.fates.total()} mutants" in report.text()
    for row in first:
        (path,) = row["bug"]
        assert path == "tiny/lists.py" and row["bug"][path] != SOURCE


def test_a_package_that_cannot_be_used():
    for name, why in (("no-such-thing", "installed"), ("numpy", "pure Python"), ("six", "tests inside")):
        with pytest.raises(UserError, match=why):
            installed_package(name)


def test_a_package_whose_tests_do_not_pass(sandbox):
    broken = REPOSITORY.changed({"tiny/lists.py": "1 / 0"})
    with pytest.raises(UserError, match="expected its tests to pass"):
        TaskMaker("tiny", broken, REFERENCE, sandbox)


def test_a_snapshot_is_read_only_with_its_digest(tmp_path):
    import hashlib

    path = tmp_path / "snapshot.json"
    path.write_text(REPOSITORY.as_json())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert load_snapshot({"path": str(path), "sha256": digest}) == REPOSITORY
    missing = [{"path": other, "sha256": digest} for other in (str(tmp_path / "none"), "/dev/zero")]
    for value in ({"path": str(path), "sha256": "0"}, *missing):
        with pytest.raises(UserError, match="expected a snapshot"):
            load_snapshot(value)
    for files in ({"../a": ""}, {"/a": ""}, {"a//b": ""}, {"a": 1}, []):
        with pytest.raises(UserError, match="files"):
            load_snapshot({"files": files, "tests": {}})


def test_an_issue_tells_what_fails_and_not_where_the_tests_are():
    failures = {f"tests/test_a.py::test_b_{n}[x]": f"assert <f at 0x7f{n}> == {n}\nmore" for n in range(5)}
    assert issue_text("pkg", failures).splitlines() == [
        "pkg misbehaves in b 0, b 1, b 2.",
        "* b 0: assert <f> == 0",
        "* b 1: assert <f> == 1",
        "* b 2: assert <f> == 2",
        "2 more checks fail.",
    ]
