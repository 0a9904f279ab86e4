"""Scores the rollouts that NeMo-Gym publishes with our verifiers, beside Gym's own rewards:

    pip download --no-deps nemo-gym==0.4.0 && unzip nemo_gym-0.4.0-*.whl -d GYM
    python tests/rl_stages/rewards/verifiers/golden/rescore.py GYM [--write]

prints one line a rollout; `--write` keeps them in rewards.json, which `test_golden.py` reads. The rollouts themselves
stay where they are.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.verify.published.recorded import text_of, turns_of
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.environments.environment import End
from cascade_rl.rl_stages.tasks.domains import domain_named
from cascade_rl.rl_stages.tasks.load_tasks import parse_task

# Gym's resources server -> our domain
SERVERS = {
    "mcqa": "mcqa",
    "instruction_following": "instruction_following",
    "ifbench": "instruction_following",
    "structured_outputs": "structured_output",
    "single_step_tool_use_with_argument_comparison": "tool_call",
    "code_gen": "code",
    "math_with_judge": "math",
    "reasoning_gym": "reasoning_gym",
    "workplace_assistant": "workplace",
}
REWARDS = Path(__file__).with_name("rewards.json")


def rescored(gym: Path) -> Iterator[dict[str, Any]]:
    for server, domain in SERVERS.items():
        data = gym / "resources_servers" / server / "data"
        given = {_prompt(row): row for path in sorted(data.glob("*example.jsonl")) for row in _rows(path)}
        for number, rollout in enumerate(_rows(data / "example_rollouts.jsonl")):
            row = given.get(_prompt(rollout), {}) | rollout | {"agent_ref": {"name": domain}}
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


def _played(environment: Any, task: Task, output: list[dict[str, Any]]) -> Verdict:
    """The rollout's turns, one after another; what the tools said then is not looked at."""
    episode = environment.start(task)
    try:
        for turn in turns_of(output):
            seen = episode.step(turn)
            if isinstance(seen, End):
                return seen.verdict
        raise ValueError("the rollout ended before the episode did")
    finally:
        episode.close()
        environment.close()


def _prompt(row: dict[str, Any]) -> str:
    """What the model was given: text, whatever else Gym has put around it since."""
    messages = row["responses_create_params"]["input"]
    return "\n".join(str(m.get("content")) for m in messages) if isinstance(messages, list) else messages


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


if __name__ == "__main__":
    found = list(rescored(Path(sys.argv[1])))
    for row in found:
        print("  " if row["gym"] == row["ours"] else "! ", *row.values())
    if sys.argv[2:] == ["--write"]:
        told = "".join(f"  {json.dumps(row)},\n" for row in found)
        REWARDS.write_text(f"[\n{told.removesuffix(',\n')}\n]\n")
