"""Scores the rollouts that NeMo-Gym publishes with our verifiers, beside Gym's own rewards:

    pip download --no-deps nemo-gym==0.4.0 && unzip nemo_gym-0.4.0-*.whl -d GYM
    python tests/rl_stages/rewards/verifiers/golden/rescore.py GYM [--write]

prints one line a rollout; `--write` keeps them in rewards.json, which `test_golden.py` reads. The rollouts themselves
stay where they are.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.verify.published.recorded import DOMAINS, prompt_of, rows_of, text_of, turns_of
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.environments.environment import Environment, played
from cascade_rl.rl_stages.tasks.domains import domain_named
from cascade_rl.rl_stages.tasks.load_tasks import parse_task

# Gym's resources server -> our domain, of those that have rollouts in rewards.json
SERVERS = {
    name: DOMAINS[name]
    for name in (
        *("mcqa", "instruction_following", "ifbench", "structured_outputs"),
        *("single_step_tool_use_with_argument_comparison", "code_gen", "math_with_judge", "reasoning_gym"),
        "workplace_assistant",
    )
}
REWARDS = Path(__file__).with_name("rewards.json")


def rescored(gym: Path) -> Iterator[dict[str, Any]]:
    for server, domain in SERVERS.items():
        data = gym / "resources_servers" / server / "data"
        given = {prompt_of(row): row for path in sorted(data.glob("*example.jsonl")) for row in rows_of(path)}
        for number, rollout in enumerate(rows_of(data / "example_rollouts.jsonl")):
            row = given.get(prompt_of(rollout), {}) | rollout | {"agent_ref": {"name": domain}}
            yield {"server": server, "rollout": number, "gym": rollout["reward"], **_ours(row, domain)}


def _ours(row: dict[str, Any], domain: str) -> dict[str, Any]:
    try:
        task = parse_task(row, "row", "0")
    except UserError as error:
        return {"ours": None, "detail": str(error)[:200]}
    verdict = _verdict(task, row["response"]["output"], domain)
    return {"ours": verdict.score, "detail": f"{verdict.outcome}: {verdict.detail}"[:200]}


def _verdict(task: Task, output: list[dict[str, Any]], domain: str) -> Verdict:
    kind = domain_named(domain)
    if kind.environment is not None:
        return _played(kind.environment(), task, output)
    assert kind.verifier is not None
    verifier = kind.verifier()
    try:
        return verifier(task, text_of(output))  # type: ignore[operator]
    finally:
        verifier.close()


def _played(environment: Environment, task: Task, output: list[dict[str, Any]]) -> Verdict:
    """The rollout's turns, one after another; what the tools said then is not looked at."""
    with closing(environment):
        if verdict := played(environment, task, turns_of(output)):
            return verdict
    raise ValueError("the rollout ended before the episode did")


if __name__ == "__main__":
    found = list(rescored(Path(sys.argv[1])))
    for row in found:
        print("  " if row["gym"] == row["ours"] else "! ", *row.values())
    if sys.argv[2:] == ["--write"]:
        told = "".join(f"  {json.dumps(row)},\n" for row in found)
        REWARDS.write_text(f"[\n{told.removesuffix(',\n')}\n]\n")
