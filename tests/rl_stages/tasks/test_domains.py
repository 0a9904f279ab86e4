import json
import random
from contextlib import closing
from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.environments.environment import played
from cascade_rl.rl_stages.tasks.domains import DOMAINS, domain_named, lessons_of, rules_of
from cascade_rl.rl_stages.tasks.load_tasks import parse_task
from cascade_rl.rl_stages.tasks.row_form import RowForm

EXAMPLES = Path(__file__).parents[3] / "examples"
PAY = {"type": "function", "name": "pay", "parameters": {"type": "object"}, "strict": True}
# A row as NeMo-Gym has it, an answer that scores 1 and one that scores 0.
GYM_ROWS = {
    "code_gen_simple_agent": (
        {"verifier_metadata": {"unit_tests": {"inputs": ["1 2"], "outputs": ["3"]}}},
        "```python\nprint(sum(map(int, input().split())))\n```",
        "```python\nprint(3 + 1)\n```",
    ),
    "instruction_following_simple_agent": (
        {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
        "yes",
        "yes, sir",
    ),
    "genrm_simple_agent": (
        {"dataset": "hs3", "instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": ["denote"]}]},
        "It is denote.",
        "It is phonetic.",
    ),
    "math_with_judge_simple_agent": ({"expected_answer": "7"}, r"\boxed{7}", r"\boxed{8}"),
    "mcqa_simple_agent": ({"options": [{"A": "x"}, {"B": "y"}], "expected_answer": "B"}, r"\boxed{B}", r"\boxed{A}"),
    "structured_outputs_v3_simple_agent": (
        {"schema_str": '{"type": "object", "properties": {"a": {"type": "integer"}}}', "schema_type": "toml"},
        "a = 1",
        "b = 1",
    ),
    "single_step_tool_use_with_argument_comparison_agent": (
        {"expected_action": {"type": "function_call", "name": "pay", "arguments": '{"to": "Ann"}'}},
        '<tool_call>{"name": "pay", "arguments": {"to": "Ann"}}</tool_call>',
        '<tool_call>{"name": "pay", "arguments": {"to": "Bob"}}</tool_call>',
    ),
}


@pytest.mark.sandbox
@pytest.mark.parametrize("agent", GYM_ROWS)
def test_rows_of_nemo_gym_become_tasks_of_a_domain(agent):
    fields, right, wrong = GYM_ROWS[agent]
    params = {"input": [{"role": "user", "content": "q", "type": "message"}], "tools": [PAY]}
    task = parse_task({"responses_create_params": params, "agent_ref": {"name": agent}} | fields, "row", "t")
    pay = {"name": "pay", "parameters": {"type": "object"}, "strict": True}  # templates show it
    assert task.tools == ({"type": "function", "function": pay},)
    with closing(DOMAINS[task.domain].verifier()) as verifier:
        assert [verifier(task, text).score for text in (right, wrong)] == [1.0, 0.0]


def test_every_domain_has_a_row_of_nemo_gym():
    optional = {"reasoning_gym"}  # its package; see verifiers/test_reasoning_gym.py
    verified = {domain.name for domain in DOMAINS.values() if domain.agents and domain.verifier}
    assert {domain_named(agent).name for agent in GYM_ROWS} == verified - optional


@pytest.mark.sandbox
def test_each_domain_scores_its_own_right_answers():
    for domain in DOMAINS.values():
        if domain.lessons is None or domain.verifier is None:  # for episodes see lessons/test_episode_lessons.py
            continue
        verifier, lessons = domain.verifier(), list(domain.lessons())
        for lesson in lessons[:: len(lessons) // 20]:
            task = parse_task(lesson.row(domain.name), "row", "t")
            assert verifier(task, lesson.right(random.Random(0))).score == 1.0
            assert verifier(task, "").score == 0.0
        verifier.close()


def test_an_unknown_domain_names_the_nearest():
    with pytest.raises(UserError, match="found 'maths'; did you mean 'math'"):
        domain_named("maths")


def test_a_domain_outside_of_the_package_reads_makes_and_scores_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "own_parts"))
    name = "python-domain:letters:LETTERS"
    lessons = list(lessons_of(name))
    assert len(lessons) == 26 * 4
    with closing(rules_of(name, "here")()) as verifier:
        for lesson in lessons[:8]:
            task = parse_task(lesson.row(name), "here", "one", RowForm(rewards=(name,)))
            assert task.domain == name
            answers = lesson.right(random.Random(0)), lesson.wrong(random.Random(0)), f"{task.metadata['letter']}!"
            assert [verifier(task, str(answer)).score for answer in answers] == [1.0, 0.0, 0.5]
    with pytest.raises(UserError, match="letter: expected one letter; found 'ab'"):
        parse_task(lessons[0].row(name) | {"letter": "ab"}, "here", "one")
    with pytest.raises(UserError, match="somebody else's reward that the launcher's stage names"):
        parse_task(lessons[0].row(name), "here", "one", RowForm(rewards=()))
    with pytest.raises(UserError, match=r"python-domain:letters:PROMPTS: expected a Domain .*; found \('Write the"):
        domain_named("python-domain:letters:PROMPTS")


def test_an_environment_outside_of_the_package_judges_the_turns_of_its_lessons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "tools"))
    domain = domain_named("python-domain:shelves:SHELVES")
    assert domain.environment
    environment = domain.environment()
    for lesson in list(lessons_of(domain.name))[:9]:
        task = parse_task(lesson.row(domain.name), "here", "one")
        for draw, score in ((lesson.right, 1.0), (lesson.wrong, 0.0)):
            turns = [turn for turn in draw(random.Random(0)) if turn["role"] == "assistant"]  # type: ignore[index]
            shown = (json.dumps(call["function"]) for turn in turns[:1] for call in turn["tool_calls"])  # type: ignore[index]
            said = [f"<tool_call>{next(shown)}</tool_call>", turns[1]["content"]]  # type: ignore[index]
            verdict = played(environment, task, said)
            assert verdict and verdict.score == score
