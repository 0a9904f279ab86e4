"""One SWE task, as a data row describes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.rewards.swe.repository import Repository, checked_files, load_snapshot
from cascade_rl.rl_stages.rewards.swe.unified_diff import DiffError, apply_unified_diff

TEST_LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS", "FAIL_TO_FAIL")


@dataclass(frozen=True)
class Instance:
    """A repository with a bug, and the outcomes of its tests after the repair.

    id            for messages: other rows may have it too
    gold_patch    the repair, a unified diff of `repository.files`
    fail_to_pass  those of `must_pass` that fail before the repair, where that is known
    """

    id: str
    problem_statement: str
    repository: Repository
    gold_patch: str
    must_pass: tuple[str, ...]
    fail_to_fail: tuple[str, ...]
    fail_to_pass: tuple[str, ...] = ()

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Self:
        """The instance of the fields that `parse_instance` returned."""
        return cls(
            metadata["instance_id"],
            metadata["problem_statement"],
            load_snapshot(metadata["repo_snapshot"]).changed(metadata["bug"]),
            metadata["gold_patch"],
            (*metadata["FAIL_TO_PASS"], *metadata["PASS_TO_PASS"]),
            tuple(metadata["FAIL_TO_FAIL"]),
            tuple(metadata["FAIL_TO_PASS"]),
        )

    @cached_property
    def digest(self) -> str:
        """Instances that have the same grade every patch alike, as those of the same `id` need not."""
        graded = (self.id, self.repository.as_json(), self.gold_patch, self.must_pass, self.fail_to_fail)
        return hashlib.sha256(repr(graded).encode()).hexdigest()

    @cached_property
    def repaired(self) -> Mapping[str, str]:
        return apply_unified_diff(self.repository.files, self.gold_patch)


def parse_instance(row: Mapping[str, Any]) -> dict[str, Any]:
    """The checked fields of a row whose tests are executed:

    instance_id, problem_statement           text
    repo_snapshot                            see `load_snapshot`
    bug                                      optional, {path: text}: replaces files of the snapshot
    FAIL_TO_PASS, PASS_TO_PASS, FAIL_TO_FAIL pytest node ids; each list is optional, but one of the first two has a test
    gold_patch                               a unified diff that applies
    """
    fields: dict[str, Any] = {name: _text(row, name) for name in ("instance_id", "problem_statement", "gold_patch")}
    fields |= {"repo_snapshot": row.get("repo_snapshot"), "bug": checked_files(row.get("bug", {}), "bug")}
    fields |= {name: _tests(row, name) for name in TEST_LISTS}
    instance = Instance.of(fields)
    if not instance.must_pass:
        raise UserError("expected a test in 'FAIL_TO_PASS' or 'PASS_TO_PASS'; found none: any patch would do")
    for test in (*instance.must_pass, *instance.fail_to_fail):
        if test.partition("::")[0] not in instance.repository.tests:
            raise UserError(f"expected a test file of the snapshot; found {test!r}")
    try:
        assert instance.repaired is not None
    except DiffError as error:
        raise UserError(f"expected 'gold_patch' to apply to the files; found one that does not: {error}") from None
    return fields


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"expected {name!r} to be non-empty text; found {str(value)[:80]!r}")
    return value


def _tests(row: Mapping[str, Any], name: str) -> list[str]:
    value = row.get(name, [])
    if not isinstance(value, list) or not all(isinstance(test, str) for test in value):
        raise UserError(f"expected {name!r} to be a list of pytest node ids; found {str(value)[:80]!r}")
    return value
