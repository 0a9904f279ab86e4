"""Converts rows of SWE-bench and SWE-Gym, R2E-Gym and SWE-smith to our rows.

Their repositories come as Docker images or as commits to clone. Here a local folder replaces them:
`<environments>/<instance_id>` holds the checkout at the base commit, whose tests run under this Python.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.data.rows import scan_rows
from cascade_rl.rl_stages.data.sift import Report
from cascade_rl.rl_stages.rewards.swe.repository import Files, Repository, is_test, read_folder
from cascade_rl.rl_stages.rewards.swe.unified_diff import DiffError, apply_unified_diff, unified_diff
from cascade_rl.rl_stages.swe_tasks.localisation import Localisation, retrieved_files
from cascade_rl.rl_stages.swe_tasks.task_rows import task_rows

Row = dict[str, Any]


def import_rows(
    source: str, environments: Path, domain: str, report: Report, second: Localisation = retrieved_files
) -> Iterator[Row]:
    """The rows of `domain` for each row of a source. One that cannot be imported is left out and named in `report`.

    second  the files of an agentless instance's second prompt
    """
    for where, row in scan_rows(source):
        try:
            made = _imported(row, environments, domain, second)
        except UserError as error:
            report.refuse(where, error)
            continue
        report.kept[f"{source}, as {domain}"] += len(made)
        yield from made


def _imported(row: Mapping[str, Any] | UserError, environments: Path, domain: str, second: Localisation) -> list[Row]:
    if isinstance(row, UserError):
        raise row
    try:
        return list(task_rows(domain, import_row(row, environments), second))
    except UserError:
        raise
    except DiffError as error:
        raise UserError(f"expected patches that apply to the checkout; found one that does not: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"expected JSON in the text fields; found something else: {error}") from None
    except SyntaxError as error:
        raise UserError(f"expected test files that this Python can parse; found one that it cannot: {error}") from None


def import_row(row: Mapping[str, Any], environments: Path) -> Row:
    """An executed SWE row's fields from one row, whose own fields tell which format it has.

    UserError if it has none of the three formats, or lacks a field.
    """
    if "expected_output_json" in row:
        return _r2e_gym(row, environments)
    if "test_patch" in row:
        return _swe_bench(row, environments)
    if "patch" in row and "FAIL_TO_PASS" in row:
        return _swe_smith(row, environments)
    raise UserError(
        "expected a row of SWE-bench or SWE-Gym (patch, test_patch), R2E-Gym (expected_output_json) or SWE-smith "
        f"(patch, FAIL_TO_PASS); found the fields {', '.join(sorted(row))[:120]}"
    )


def _swe_bench(row: Mapping[str, Any], environments: Path) -> Row:
    files = _checkout(row, _text(row, "instance_id"), environments)
    tested = apply_unified_diff(files, _text(row, "test_patch"))
    tests = {path: text for path, text in tested.items() if is_test(path) or files.get(path) != text}
    source = {path: text for path, text in files.items() if path not in tests}
    return {
        **_common(row, _text(row, "instance_id"), Repository(source, tests)),
        "gold_patch": _text(row, "patch"),
        "FAIL_TO_PASS": _tests(row, "FAIL_TO_PASS"),
        "PASS_TO_PASS": _tests(row, "PASS_TO_PASS"),
    }


def _swe_smith(row: Mapping[str, Any], environments: Path) -> Row:
    """Here `patch` is the bug; the checkout does not contain it."""
    repository = Repository.of(_checkout(row, _text(row, "instance_id"), environments))
    buggy = apply_unified_diff(repository.files, _text(row, "patch"))
    bug = {path: text for path, text in buggy.items() if repository.files.get(path) != text}
    return {
        **_common(row, _text(row, "instance_id"), repository),
        "bug": bug,
        "gold_patch": unified_diff(buggy, repository.files),
        "FAIL_TO_PASS": _tests(row, "FAIL_TO_PASS"),
        "PASS_TO_PASS": _tests(row, "PASS_TO_PASS"),
    }


def _r2e_gym(row: Mapping[str, Any], environments: Path) -> Row:
    """All outcomes must be as expected. Tests are named `Class.test`, and the golden patch comes from the commit."""
    name = f"{_text(row, 'repo_name')}-{_text(row, 'commit_hash')}"
    repository = Repository.of(_checkout(row, name, environments))
    expected = json.loads(_text(row, "expected_output_json"))
    if not isinstance(expected, dict):
        raise UserError(f"expected 'expected_output_json' to be {{test: outcome}}; found {str(expected)[:80]!r}")
    nodes = node_ids(repository.tests)
    if unknown := sorted(test for test in expected if test.partition("[")[0] not in nodes):
        raise UserError(f"expected every test in the checkout; found none named {unknown[0]!r} in that of {name}")
    outcomes = {_node(nodes, test): outcome for test, outcome in expected.items()}
    return {
        **_common(row, name, repository),
        "gold_patch": _commit_patch(row, repository.files),
        "PASS_TO_PASS": sorted(test for test, outcome in outcomes.items() if outcome == "PASSED"),
        "FAIL_TO_FAIL": sorted(test for test, outcome in outcomes.items() if outcome in ("FAILED", "ERROR")),
    }


def node_ids(tests: Files) -> dict[str, str]:
    """pytest's node ids by `test` or `Class.test`. Raises SyntaxError on a broken test file."""
    found = {}
    for path, source in tests.items():
        body = ast.parse(source).body if path.endswith(".py") else []
        for name, node in ((node.name, node) for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)):
            inner = node.body if isinstance(node, ast.ClassDef) else []
            found[name] = f"{path}::{name}"
            for method in (method for method in inner if isinstance(method, ast.FunctionDef)):
                found[f"{name}.{method.name}"] = f"{path}::{name}::{method.name}"
    return found


def _node(nodes: Mapping[str, str], test: str) -> str:
    name, bracket, parameters = test.partition("[")
    return nodes[name] + bracket + parameters


def _commit_patch(row: Mapping[str, Any], files: Files) -> str:
    commit = json.loads(_text(row, "parsed_commit_content"))
    try:
        new = {item["header"]["file"]["path"]: item["new_file_content"] for item in commit["file_diffs"]}
    except (KeyError, TypeError):
        raise UserError(
            f"expected 'parsed_commit_content' to hold file_diffs with new_file_content; found {str(commit)[:80]!r}"
        ) from None
    return unified_diff(files, {**files, **{path: text for path, text in new.items() if path in files}})


def _common(row: Mapping[str, Any], name: str, repository: Repository) -> Row:
    snapshot = {"files": dict(repository.files), "tests": dict(repository.tests)}
    return {"instance_id": name, "problem_statement": _text(row, "problem_statement"), "repo_snapshot": snapshot}


def _checkout(row: Mapping[str, Any], name: str, environments: Path) -> Files:
    folder = environments / name.replace("/", "__")
    if not folder.is_dir():
        image = row.get("docker_image") or row.get("image_name")
        needs = f"the Docker image {image!r}" if image else f"the commit {row.get('base_commit')!r}"
        raise UserError(
            f"expected a checkout in CHECKOUTS/INSTANCE_ID; found no folder {folder}. {name} needs {needs}, which is "
            "not run here: put a checkout there"
        )
    return read_folder(folder)


def _tests(row: Mapping[str, Any], name: str) -> Any:
    """The tests, published as a list or as the JSON of a list."""
    value = row.get(name, [])
    return json.loads(value) if isinstance(value, str) else value


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"expected {name!r} to be non-empty text; found {str(value)[:80]!r}")
    return value
