"""The planner against the two others, on the lengths that `cascade bench packing` prints."""

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from cascade_rl.engine.train.planner import packing_efficiency, plan_micro_batches
from cascade_rl.launchers.bench.packing import PLANNERS, RANKS, Batch, measure, recorded, synthetic_30b
from tests.until import LIMIT_S

KEPT = json.loads((Path(__file__).parents[3] / "launchers/bench/recorded_lengths.json").read_text())


@pytest.fixture(scope="module", params=[recorded, synthetic_30b])
def batch(request: pytest.FixtureRequest) -> Batch:
    return request.param()


@pytest.mark.parametrize("name", PLANNERS)
def test_each_is_a_plan(name: str, batch: Batch) -> None:
    found = PLANNERS[name](batch, 8)
    assert sorted(chain.from_iterable(chain.from_iterable(found))) == list(range(len(batch.lengths)))
    assert len({len(own) for own in found}) == 1


def test_efficiency_on_the_lengths_of_a_run(batch: Batch) -> None:
    assert measure(batch, 1, "planner").efficiency >= 0.98


@pytest.mark.parametrize("ranks", RANKS)
def test_fewest_passes_and_no_worse_balance_than_first_fit_decreasing(ranks: int, batch: Batch) -> None:
    ours, first_fit = (measure(batch, ranks, name) for name in ("planner", "FF decreasing"))
    assert ours.fullest <= 1
    assert ours.passes == -(-sum(batch.padded) // (batch.token_budget * ranks))
    assert ours.passes <= first_fit.passes
    for imbalance in ("ranks", "slots", "waiting"):
        assert getattr(ours, imbalance) <= getattr(first_fit, imbalance)
    assert ours.waiting < 1.02


def test_each_step_of_the_run_gets_as_few_micro_batches_as_its_tokens_need() -> None:
    cost, budget = recorded().cost, KEPT["token_budget"]
    for lengths in KEPT["steps"]:
        plan = plan_micro_batches(lengths, budget, cost)
        assert packing_efficiency(plan, lengths, budget) == sum(lengths) / budget / -(-sum(lengths) // budget)


def test_the_command_prints_both_batches_and_keeps_torch_out(tmp_path: Path) -> None:
    command = (
        "import sys; from cascade_rl.launchers.cli import main as cascade\n"
        f"sys.argv[1:] = ['bench', 'packing', '--json', {str(tmp_path / 'rows.json')!r}]\n"
        "try: cascade.main()\n"
        "finally: assert 'torch' not in sys.modules"
    )
    told = subprocess.run([sys.executable, "-c", command], text=True, capture_output=True, timeout=LIMIT_S)
    assert told.returncode == 0, told.stderr
    assert "recorded: 1,152 sequences, 69,757 tokens" in told.stdout
    assert "Karmarkar-Karp" in told.stdout
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == 2 * len(RANKS) * len(PLANNERS)
