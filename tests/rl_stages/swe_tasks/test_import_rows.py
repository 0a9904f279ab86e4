import json

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.cli import main
from cascade_rl.rl_stages.rewards.swe.grading import grade
from cascade_rl.rl_stages.rewards.swe.instance import Instance
from cascade_rl.rl_stages.rewards.swe.unified_diff import unified_diff
from cascade_rl.rl_stages.sandbox.outside.folder import write_files
from cascade_rl.rl_stages.tasks.load_tasks import parse_task
from tests.rl_stages.rewards.swe.tiny_package import REPOSITORY, SOURCE

PATH, TEST_PATH = "tiny/lists.py", "tests/test_lists.py"
BUGGY = SOURCE.replace("wanted in values", "wanted not in values")
BUG, GOLD = unified_diff({PATH: SOURCE}, {PATH: BUGGY}), unified_diff({PATH: BUGGY}, {PATH: SOURCE})
TESTS = REPOSITORY.tests[TEST_PATH]
OLD_TESTS = TESTS[: TESTS.index("def test_has")]
HAS, MEAN = f"{TEST_PATH}::test_has", f"{TEST_PATH}::test_mean"

SWE_BENCH = {
    **{"instance_id": "me__tiny-1", "base_commit": "abc", "version": "1", "problem_statement": "has() is wrong"},
    **{"patch": GOLD, "test_patch": unified_diff({TEST_PATH: OLD_TESTS}, {TEST_PATH: TESTS})},
    **{"FAIL_TO_PASS": json.dumps([HAS]), "PASS_TO_PASS": [MEAN]},
}
SWE_SMITH = {
    **{"instance_id": "me__tiny.abc.bug", "image_name": "swesmith/tiny", "problem_statement": "has() is wrong"},
    **{"patch": BUG, "FAIL_TO_PASS": [HAS], "PASS_TO_PASS": [MEAN]},
}
COMMIT = {"file_diffs": [{"header": {"file": {"path": PATH}}, "new_file_content": SOURCE}]}
R2E_GYM = {
    **{"docker_image": "me/tiny:abc", "repo_name": "tiny", "commit_hash": "abc", "problem_statement": "has() is wrong"},
    "expected_output_json": json.dumps(
        {"test_has": "PASSED", "TestCount.test_count": "PASSED", "test_broken": "FAILED"}
    ),
    "parsed_commit_content": json.dumps(COMMIT),
}
R2E_TESTS = {TEST_PATH: f"{TESTS}\n\ndef test_broken():\n    assert mean([1]) == 2\n"}
KINDS = {
    "SWE-bench": (SWE_BENCH, "me__tiny-1", {PATH: BUGGY, TEST_PATH: OLD_TESTS}),
    "SWE-smith": (SWE_SMITH, "me__tiny.abc.bug", {}),
    "R2E-Gym": (R2E_GYM, "tiny-abc", {PATH: BUGGY, **R2E_TESTS}),
}


def imported(tmp_path, rows, domain="swe_executed"):
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    out = tmp_path / "imported.jsonl"
    assert main._run(["swe-import", str(source), str(tmp_path), str(out), "--domain", domain]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.fixture
def checkouts(tmp_path):
    for _, name, files in KINDS.values():
        write_files(tmp_path / name, {**REPOSITORY.with_tests, **files})
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_rows_become_tasks_whose_golden_patch_passes_and_whose_bug_does_not(kind, checkouts, sandbox):
    (row,) = imported(checkouts, [KINDS[kind][0]])
    task = parse_task(row, "here", "1")
    instance = Instance.of(task.metadata)
    assert instance.repository.files[PATH] == BUGGY and instance.problem_statement in task.messages[0]["content"]
    assert grade(instance, instance.repaired, sandbox).score == 1.0
    assert grade(instance, {PATH: BUGGY + "# more\n"}, sandbox).score == 0.0


def test_hidden_tests_are_not_in_the_files(checkouts):
    (row,) = imported(checkouts, [SWE_BENCH])
    assert TEST_PATH not in row["repo_snapshot"]["files"] and "test_has" in row["repo_snapshot"]["tests"][TEST_PATH]


@pytest.mark.parametrize("kind", KINDS)
def test_agentless_rows_hold_the_golden_files_and_then_the_retrieved_ones(kind, checkouts):
    tasks = [parse_task(row, "here", "1") for row in imported(checkouts, [KINDS[kind][0]], "swe_agentless")]
    assert {task.domain for task in tasks} == {"swe_agentless"}
    assert [task.metadata["files"] for task in tasks] == [{PATH: BUGGY}, {PATH: BUGGY, "tiny/__init__.py": ""}]
    assert ["tiny/__init__.py" in task.messages[0]["content"] for task in tasks] == [False, True]


@pytest.mark.parametrize("kind", KINDS)
def test_agentic_rows_hold_the_issue_and_the_tools(kind, checkouts):
    (row,) = imported(checkouts, [KINDS[kind][0]], "swe_agentic")
    task = parse_task(row, "here", "1")
    assert Instance.of(task.metadata).repository.files[PATH] == BUGGY
    assert "has() is wrong" in task.messages[0]["content"] and SOURCE[:20] not in task.messages[0]["content"]
    assert [tool["function"]["name"] for tool in task.tools] == ["bash", "submit"]


def test_an_unknown_domain_is_refused(checkouts, capsys):
    with pytest.raises(SystemExit) as refused:
        imported(checkouts, [SWE_BENCH], "swe")
    assert refused.value.code == 2
    assert "choose from 'swe_executed', 'swe_agentless', 'swe_agentic'" in capsys.readouterr().err


def test_a_row_whose_environment_is_not_here_is_refused_by_name(tmp_path):
    for row, shown in ((R2E_GYM, "me/tiny:abc"), (SWE_SMITH, "swesmith/tiny"), (SWE_BENCH, "commit 'abc'")):
        with pytest.raises(UserError, match=rf"rows\.jsonl:1: .*needs the .*{shown}"):
            imported(tmp_path, [row])


BROKEN = (
    "not JSON",
    "[1]",
    "[" * 100_000,
    {"a": 1},
    {**SWE_BENCH, "patch": "no diff"},
    {**SWE_BENCH, "patch": BUG},
    {**SWE_BENCH, "patch": unified_diff({TEST_PATH: OLD_TESTS}, {TEST_PATH: "x\n"})},
    {**SWE_BENCH, "test_patch": 3},
    {**SWE_BENCH, "FAIL_TO_PASS": "[", "PASS_TO_PASS": []},
    {**SWE_BENCH, "FAIL_TO_PASS": ["nowhere.py::test"]},
    {**SWE_BENCH, "FAIL_TO_PASS": [], "PASS_TO_PASS": []},
    {**SWE_BENCH, "problem_statement": None},
    {**SWE_SMITH, "patch": GOLD},
    {**SWE_SMITH, "instance_id": ["x"]},
    {**R2E_GYM, "expected_output_json": "[]"},
    {**R2E_GYM, "expected_output_json": '{"test_none": "PASSED"}'},
    {**R2E_GYM, "parsed_commit_content": "{}"},
)


@pytest.mark.parametrize("row", BROKEN, ids=range(len(BROKEN)))
def test_broken_rows_are_named_by_file_and_line(row, checkouts):
    with pytest.raises(UserError, match=r"rows\.jsonl:3: "):
        imported(checkouts, [SWE_BENCH, "", row])


@pytest.mark.slow
def test_every_field_of_another_type_is_an_error_or_a_task(checkouts):
    for row in (SWE_BENCH, SWE_SMITH, R2E_GYM):
        for name in row:
            for value in (None, 1, [], {}, "", "x", [[]], "null", {"a": {}}):
                try:
                    imported(checkouts, [{**row, name: value}])
                except UserError as error:
                    assert ".jsonl:1: " in str(error)
