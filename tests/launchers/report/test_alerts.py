"""Rules over metrics: what they say of faults, and nothing of what the committed runs show."""

import json
from pathlib import Path

import pytest

from cascade_rl.launchers.report.alerts import RULES, SYMPTOMS, WINDOW, alerts, symptom
from cascade_rl.rl_stages.run.run_folder import RunFolder
from tests.launchers.report.report_run import cascade

ROOT = Path(__file__).parents[3]
STEPS = 2 * WINDOW


def line(first: float, last: float) -> list[float]:
    return [first + (last - first) * step / (STEPS - 1) for step in range(STEPS)]


NOISE = [0.01 * (-1) ** step for step in range(STEPS)]
FAULTS = {
    "reward": ([0.3 + noise for noise in NOISE], "reward_flat"),
    "signal_fraction": ([0.0] * WINDOW, "reward_flat"),
    "wrong_format_fraction": (line(0.0, 0.3), "wrong_format_rises"),
    "length": (line(100, 300), "length_explodes"),
    "truncated_fraction": (line(0.0, 0.5), "length_explodes"),
    "tme": (line(1.0, 1.002), "tme_grows"),
    "reference_kl": (line(0.0, 2.0)[WINDOW:], "reward_hacked"),
    "infrastructure_failure_fraction": ([0.05] * WINDOW, "infrastructure_failures"),
}
HEALTHY = {
    "reward": line(0.3, 0.4),
    "signal_fraction": [0.5] * WINDOW,
    "wrong_format_fraction": line(0.05, 0.0),
    "length": line(100, 120),
    "truncated_fraction": line(0.1, 0.2),
    "tme": [1.0 + abs(noise) * 1e-4 for noise in NOISE],
    "reference_kl": line(0.0, 0.05)[WINDOW:],
    "infrastructure_failure_fraction": [0.0] * WINDOW,
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.metric)
def test_a_rule_sees_its_fault_and_no_other_thing(rule) -> None:
    values, page = FAULTS[rule.metric]
    alert = rule.alert([{rule.metric: value} for value in values])
    assert alert and alert.page == page and alert.text.startswith(f"{rule.metric} {rule.says}: mean ")
    assert rule.alert([{rule.metric: value} for value in HEALTHY[rule.metric]]) is None
    assert rule.alert([{rule.metric: value} for value in values[1:]]) is None  # a step too early
    assert rule.alert([]) is None


def test_every_rule_has_a_page_that_the_documentation_lists() -> None:
    listed = (ROOT / "docs" / "README.md").read_text()
    assert ROOT / "docs" / "symptoms" == SYMPTOMS
    for rule in RULES:
        assert f"(symptoms/{rule.page}.md)" in listed
        assert (symptom(rule.page) or "").startswith("# ")


def test_a_run_that_learned_has_no_alert() -> None:
    rows = [json.loads(row) for row in (ROOT / "docs/smollm2/metrics.jsonl").read_text().splitlines()]
    assert len(rows) >= STEPS
    assert [rule.metric for rule in RULES if rule.alert(rows)] == []


def test_rewards_are_judged_only_where_a_stage_learns_from_them(tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "run", cascade(steps=STEPS)) as (run, _):
        rows = [{"step": step + 1, "reward": 0.5, "length": length} for step, length in enumerate(line(100, 300))]
        for name, pages in {"math_rl": ["reward_flat", "length_explodes"], "mopd": ["length_explodes"]}.items():
            stage = run.stage(name)
            stage.metrics.path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            assert [alert.page for alert in alerts(stage)] == pages
