"""Our verifiers on recorded rollouts of NeMo-Gym's form: a few of our own here, and the table of Gym's own rollouts,
whose every difference is explained."""

import json
from pathlib import Path

import pytest

from tests.rl_stages.rewards.verifiers.golden import rescore

# (server, rollout) -> why our score is not Gym's
EXPLAINED = {
    ("mcqa", 2): "the right option with its text in the box, which Gym loses",
    **{("structured_outputs", n): "the wheel has the rollout without its schema" for n in range(5)},
    **{("workplace_assistant", n): "the wheel has the rollout without its expected calls" for n in range(5)},
}

TOOLS = [{"type": "function", "name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}]
ADD = {"type": "function_call", "name": "add", "arguments": '{"a": 1}'}
SCHEMA = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
STRUCTURED = {"schema_str": SCHEMA, "schema_type": "json"}

# server, the row's fields, the rollout's output, score
RECORDED = [
    ("mcqa", {"options": [{"A": "red"}, {"B": "blue"}], "expected_answer": "B"}, "So \\boxed{B}", 1.0),
    ("mcqa", {"options": [{"A": "red"}, {"B": "blue"}], "expected_answer": "B"}, "So \\boxed{A}", 0.0),
    ("instruction_following", {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}, "a b", 1.0),
    ("instruction_following", {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}, "a, b", 0.0),
    ("math_with_judge", {"expected_answer": "12"}, "\\boxed{12}", 1.0),
    ("math_with_judge", {"expected_answer": "12"}, "\\boxed{13}", 0.0),
    ("structured_outputs", STRUCTURED, '{"n": 1}', 1.0),
    ("structured_outputs", STRUCTURED, '{"n": "1"}', 0.0),
    ("single_step_tool_use_with_argument_comparison", {"expected_action": ADD}, ADD, 1.0),
    ("single_step_tool_use_with_argument_comparison", {"expected_action": ADD}, "I add.", 0.0),
]


def row(fields: dict, prompt: str) -> dict:
    params = {"input": [{"role": "user", "content": prompt}]}
    return {"responses_create_params": params | ({"tools": TOOLS} if "expected_action" in fields else {})}


def output(answer: object) -> list[dict]:
    thought = {"type": "reasoning", "summary": [{"text": "\\boxed{13}, I think."}]}
    said = {"type": "message", "content": [{"type": "output_text", "text": answer}]}
    return [thought, said if isinstance(answer, str) else answer]  # type: ignore[list-item]


def write(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))


@pytest.mark.process
def test_recorded_rollouts_have_their_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the rows say what is expected in the rollout, as Gym's do, and half in the file of examples."""
    servers = dict.fromkeys(case[0] for case in RECORDED)
    monkeypatch.setattr(rescore, "SERVERS", {name: rescore.SERVERS[name] for name in servers})
    for server in servers:
        cases = [case for case in RECORDED if case[0] == server]
        examples, rollouts = [], []
        for number, (_, fields, answer, score) in enumerate(cases):
            bare = row(fields, f"{server} {number}")
            examples.append(bare | (fields if number % 2 else {}))
            rollouts.append(
                bare | ({} if number % 2 else fields) | {"response": {"output": output(answer)}, "reward": score}
            )
        data = tmp_path / "resources_servers" / server / "data"
        write(data / "example.jsonl", examples)
        write(data / "example_rollouts.jsonl", rollouts)
    found = list(rescore.rescored(tmp_path))
    assert len(found) == len(RECORDED)
    assert [each for each in found if each["gym"] != each["ours"]] == []


def test_every_difference_to_gyms_rewards_is_explained() -> None:
    table = json.loads(rescore.REWARDS.read_text())
    assert {each["server"] for each in table} == set(rescore.SERVERS)
    differing = {(each["server"], each["rollout"]) for each in table if each["gym"] != each["ours"]}
    assert differing == set(EXPLAINED)
