import json

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.cli import main
from cascade_rl.rl_stages.data.sift import Report
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer
from cascade_rl.rl_stages.rewards.swe.grading import grade
from cascade_rl.rl_stages.rewards.swe.instance import Instance
from cascade_rl.rl_stages.rewards.swe.unified_diff import unified_diff
from cascade_rl.rl_stages.sandbox.outside.folder import write_files
from cascade_rl.rl_stages.swe_tasks.import_rows import import_rows
from cascade_rl.rl_stages.tasks.load_tasks import parse_task
from tests.rl_stages.rewards.swe.tiny_package import REPOSITORY, SOURCE

PATH, TEST_PATH = "tiny/lists.py", "tests/test_lists.py"
BUGGY = SOURCE.replace("result = 1\n", "result = 2\n")
BUG, GOLD = unified_diff({PATH: SOURCE}, {PATH: BUGGY}), unified_diff({PATH: BUGGY}, {PATH: SOURCE})
TESTS = REPOSITORY.tests[TEST_PATH]
OLD_TESTS = TESTS[: TESTS.index("def test_power")]
POWER, MEAN = f"{TEST_PATH}::test_power", f"{TEST_PATH}::test_mean"

SWE_BENCH = {
    **{"instance_id": "me__tiny-1", "base_commit": "abc", "version": "1", "problem_statement": "power() is wrong"},
    **{"patch": GOLD, "test_patch": unified_diff({TEST_PATH: OLD_TESTS}, {TEST_PATH: TESTS})},
    **{"FAIL_TO_PASS": json.dumps([POWER]), "PASS_TO_PASS": [MEAN]},
}
SWE_SMITH = {
    **{"instance_id": "me__tiny.abc.bug", "image_name": "swesmith/tiny", "problem_statement": "power() is wrong"},
    **{"patch": BUG, "FAIL_TO_PASS": [POWER], "PASS_TO_PASS": [MEAN]},
}
COMMIT = {"file_diffs": [{"header": {"file": {"path": PATH}}, "new_file_content": SOURCE}]}
R2E_GYM = {
    **{
        "docker_image": "me/tiny:abc",
        "repo_name": "tiny",
        "commit_hash": "abc",
        "problem_statement": "power() is wrong",
    },
    "expected_output_json": json.dumps(
        {"test_power": "PASSED", "TestCount.test_count": "PASSED", "test_broken": "FAILED"}
    ),
    "parsed_commit_content": json.dumps(COMMIT),
}
R2E_TESTS = {TEST_PATH: f"{TESTS}\n\ndef test_broken():\n    assert mean([1]) == 2\n"}
KINDS = {
    "SWE-bench": (SWE_BENCH, "me__tiny-1", {PATH: BUGGY, TEST_PATH: OLD_TESTS}),
    "SWE-smith": (SWE_SMITH, "me__tiny.abc.bug", {}),
    "R2E-Gym": (R2E_GYM, "tiny-abc", {PATH: BUGGY, **R2E_TESTS}),
}


def written(tmp_path, rows):
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(source)


def imported(tmp_path, rows, domain="swe_executed", *options):
    out = tmp_path / "imported.jsonl"
    arguments = ["swe-import", written(tmp_path, rows), str(tmp_path), str(out), "--domain", domain, *options]
    assert main._run(arguments) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def refused(tmp_path, rows, domain="swe_executed"):
    """The report on rows of which the first is good."""
    report = Report()
    made = list(import_rows(written(tmp_path, rows), tmp_path, domain, report))
    assert len(made) == report.kept.total() == 1
    return report


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
    assert TEST_PATH not in row["repo_snapshot"]["files"] and "test_power" in row["repo_snapshot"]["tests"][TEST_PATH]


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
    assert "power() is wrong" in task.messages[0]["content"] and SOURCE[:20] not in task.messages[0]["content"]
    assert [tool["function"]["name"] for tool in task.tools] == ["bash", "submit"]


def test_an_unknown_domain_is_refused(checkouts, capsys):
    with pytest.raises(SystemExit) as refused:
        imported(checkouts, [SWE_BENCH], "swe")
    assert refused.value.code == 2
    assert "choose from 'swe_executed', 'swe_agentless', 'swe_agentic'" in capsys.readouterr().err


def test_rows_without_a_checkout_are_left_out_counted_and_named(checkouts, capsys):
    gone = [{**row, "instance_id": "gone", "repo_name": "gone"} for row in (R2E_GYM, SWE_SMITH, SWE_BENCH)]
    report = refused(checkouts, [SWE_BENCH, *gone])
    assert report.dropped == {"expected a checkout in CHECKOUTS/INSTANCE_ID": 3}
    (examples,) = report.examples.values()
    for line, needed in enumerate(("me/tiny:abc", "swesmith/tiny", "the commit 'abc'"), start=2):
        assert f"rows.jsonl:{line}: " in examples[line - 2] and needed in examples[line - 2]
    assert len(imported(checkouts, [gone[0], SWE_BENCH])) == 1
    shown = capsys.readouterr().out
    assert "1 rows of swe_executed; 1 published rows left out" in shown and "expected a checkout" in shown
    assert main._run(["swe-import", written(checkouts, gone), str(checkouts), str(checkouts / "out.jsonl")]) == 1


def test_a_golden_patch_that_adds_a_file_leaves_its_row_out(checkouts):
    added = unified_diff({PATH: BUGGY}, {PATH: SOURCE, "tiny/more.py": "MORE = 1\n"})
    report = refused(checkouts, [SWE_BENCH, {**SWE_BENCH, "patch": added}], "swe_executed")
    assert report.dropped == {"expected a golden patch of existing source files only": 1}


@pytest.mark.parametrize(
    ("tests", "statement"),
    [
        ("assert has([1], 1) and not has([], 1)", "it is wrong"),
        ("assert power(3, 0) == 1", "it is wrong"),
        ("assert power(3, 2) == 9", "power(3, 2) is 18, not 9"),
    ],
)
def test_tests_that_a_patch_passes_without_knowing_a_value_leave_their_row_out(tests, statement, checkouts):
    changed = TESTS.replace("assert power(3, 2) == 9 and power(5, 0) == 1 and power(2, 1) == 2", tests)
    assert changed != TESTS
    row = {
        **SWE_BENCH,
        "problem_statement": statement,
        "test_patch": unified_diff({TEST_PATH: OLD_TESTS}, {TEST_PATH: changed}),
    }
    ((reason, count),) = refused(checkouts, [SWE_BENCH, row]).dropped.items()
    assert count == 1 and "does not tell" in reason
    assert len(imported(checkouts, [row], "swe_agentless")) == 2


def test_the_second_prompt_shows_golden_files_and_the_noise_that_fits(checkouts):
    for number in range(4):
        write_files(checkouts / "me__tiny-1", {f"tiny/more{number}.py": f"power = wrong = {'x' * 400 * number!r}\n"})
    conversation = [[{"role": "user", "content": SOURCE}]]
    train_tokenizer(conversation).save_pretrained(checkouts / "model")
    longest = 900 + len(SOURCE)

    def shown(most):
        options = ("--noise", str(most), "--tokenizer", str(checkouts / "model"))
        rows = imported(checkouts, [SWE_BENCH], "swe_agentless", *options)
        return [list(parse_task(row, "here", "1").metadata["files"]) for row in rows]

    golden, noisy = shown(longest)
    assert golden == [PATH] and PATH in noisy and 1 < len(noisy) < 6
    assert "tiny/more3.py" not in noisy and "tiny/more0.py" in noisy
    assert shown(longest) == [golden, noisy]
    assert shown(10) == [[PATH]]
    with pytest.raises(UserError, match="expected --noise N and --tokenizer FOLDER together"):
        imported(checkouts, [SWE_BENCH], "swe_agentless", "--noise", "10")


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
def test_broken_rows_are_left_out_and_named_by_file_and_line(row, checkouts):
    report = refused(checkouts, [SWE_BENCH, "", row])
    ((reason, count),) = report.dropped.items()
    assert count == 1 and "tiny" not in reason and report.examples[reason][0].startswith(str(checkouts))
    assert "rows.jsonl:3: " in report.examples[reason][0]


@pytest.mark.slow
def test_every_field_of_another_type_is_left_out_or_a_task(checkouts):
    for row in (SWE_BENCH, SWE_SMITH, R2E_GYM):
        changed = [
            {**row, name: value} for name in row for value in (None, 1, [], {}, "", "x", [[]], "null", {"a": {}})
        ]
        report = Report()
        list(import_rows(written(checkouts, changed), checkouts, "swe_executed", report))
        assert report.kept.total() + report.dropped.total() == len(changed)
