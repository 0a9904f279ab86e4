"""`cascade report`: the page's numbers are the files', and 100,000 rollouts do not make it wait.

Runs in headless Chromium, which it installs from Debian where there is none; CASCADE_WITHOUT_BROWSER=1 leaves out what
needs one.
"""

import json
import math
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.launchers.report import page as report
from cascade_rl.launchers.report.collect import collect, expert_load
from cascade_rl.launchers.report.rollouts import Rollouts, chunk_blocks, count, open_tokenizer, step_files
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.sample_record import SampleRecord, write_samples
from tests.launchers.report.conftest import opened
from tests.launchers.report.report_run import VOCABULARY, cascade, keep_tokenizer, large_run

INTERACTION_S = 3.0  # allowed of each, on a machine that does other work too; docs/report.md says what is measured
SEARCH_S = 12.0  # through all texts, the first time
LONGEST_TASK_MS = 1500  # that the page may not answer at a stretch
HEAP_MB = 400
MINUS, NONE = "\u2212", "\u2013"  # as the page writes them
LARGE = 100_000


# A small run, written as a stage writes it.


def sample(
    name: str, domain: str, ids: list[int], sampler: list[float], trainer: list[float], **other: object
) -> SampleRecord:
    settings = {
        "task_id": name.split("/")[-2],
        "prompt_ids": np.array([4, 5, 1]),
        "loss_mask": np.ones(len(ids), bool),
        "reward": 1.0,
        "advantage": 0.75,
        "outcome": Outcome.COMPLETED,
        "finish": "stop",
        "versions": ((0, 0),),
        "text": "".join(VOCABULARY[token] for token in ids[:-1]),
    }
    arrays = {
        "token_ids": np.array(ids),
        "rollout_logprobs": np.float32(sampler),
        "train_logprobs": np.float32(trainer),
    }
    return SampleRecord(id=name, domain=domain, **{**settings, **arrays, **other})  # type: ignore[arg-type]


SAMPLES = [
    sample(
        "math_rl/2/0/sum/0", "math", [6, 7, 2, 3, 0], [-0.5, -1.25, -0.1, -0.2, -0.01], [-0.5, -1.0, -0.1, -0.25, -0.01]
    ),
    sample("math_rl/2/0/sum/1", "math", [8, 0], [-2.0, -0.5], [-2.5, -0.5], reward=0.0, advantage=-0.75,
           outcome=Outcome.TRUNCATED, finish="length", reward_parts={"tests": 0.25, "style": None}),
    sample("math_rl/2/1/odd/0", "math", [9, 0], [-1.0, -1.0], [-1.0, -1.0], reward=None, advantage=0.0,
           outcome=Outcome.INFRASTRUCTURE_FAILURE, finish="abort", detail="Sandbox: gone <b>&amp;",
           loss_mask=np.zeros(2, bool)),
    sample("math_rl/2/1/odd/1", "math", [], [], [], outcome=Outcome.WRONG_FORMAT, loss_mask=np.zeros(0, bool)),
]  # fmt: skip
TAUGHT = sample(
    "mopd/1/0/two/0", "code", [10, 11, 0], [-0.5, -0.75, -1.5], [-0.5, -0.5, -1.5], advantage=-0.25,
    teacher_logprobs=np.float32([-1.0, -0.25, -1.75]), generated=np.array([True, False, True]), turns=2,
    loss_mask=np.array([True, False, True]), versions=((3, 0), (4, 2)),
)  # fmt: skip


def measured(model: str, off: float, on: float) -> dict[str, object]:
    """Numbers of a benchmark in both modes, as a stage records them."""
    scored = {"off": off, "on": on}
    rows = [
        {"benchmark": "aime", "model": model, "mode": mode, "prompts": 30, "avg@8": {"mean": mean, "half": 0.1}}
        for mode, mean in scored.items()
    ]
    gap = {"benchmark": "aime", "compared": f"{model}, thinking on - {model}, thinking off"}
    return {"results": rows, "differences": [gap | {"mean": on - off, "half": 0.0625}]}


NUMBERS = {"sft": measured("sft", 0.25, 0.5), "math_rl": measured("math_rl", 0.625, 0.5)}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    with RunFolder.claim(tmp_path_factory.mktemp("small") / "run", cascade(steps=2)) as (run, _):
        keep_tokenizer(run)
        math_rl, mopd = run.stage("math_rl"), run.stage("mopd")
        write_samples(math_rl.rollouts(2), SAMPLES)
        write_samples(mopd.rollouts(1), [TAUGHT])
        math_rl.record_event("attempt", from_step=0)
        for step in (1, 2):
            metrics = {"reward": 0.25 * step, "tme": 1 + step * 1e-7}
            math_rl.record_step(step, metrics, {"generation": 1.5 * step, "update": 1.0}, tokens=100)
            math_rl.record_event("expert_tokens", step=step, tokens=[[6, 2], [4, 4]])
            math_rl.begin_checkpoint(step)
            math_rl.commit_checkpoint(step)
        math_rl.record_event("early_stop", step=2, rule="plateau", reason="plateau: mean reward 0.5")
        math_rl.record_event("engine_died", detail="signal 9")
        math_rl.record_event("ended", exit_code=3)
        math_rl.record_scores("before", dict.fromkeys(run.cascade.evaluation.domains, 0.5))
        even = dict.fromkeys(("instruction_following", "swe_executed"), 0.5)
        math_rl.record_scores("after", {"math": 0.625, "code": 0.375} | even)
        math_rl.record_benchmarks("before", NUMBERS["sft"])
        math_rl.record_benchmarks("after", NUMBERS["math_rl"])
        mopd.record_benchmarks("before", NUMBERS["math_rl"])
        math_rl.export.mkdir()
        math_rl.finish()
    report.run(run.root, None, LARGE)
    return run


def test_scores_and_gates_are_those_of_the_files(small: RunFolder, tab: Page) -> None:
    opened(tab, small.root / "report.html")
    cells = tab.locator("#scores-table td[data-stage=math_rl]")
    expect(cells).to_have_text(["0.625+0.125", f"0.375{MINUS}0.125 ✗ gate", "0.500+0.000", "0.500+0.000"])
    row = tab.locator("#graph .stage", has_text="03_math_rl")
    expect(row).to_contain_text("gate closed")
    expect(row).to_contain_text("✗ gate: code lost 0.125, allowed 0.020")
    expect(row).to_contain_text("→ mopd: math")
    expect(row).to_contain_text("ended by plateau: mean reward 0.5")
    expect(tab.locator("#graph path.taught title")).to_have_text(
        ["math_rl → mopd: math", "if_rl → mopd: instruction_following", "code_teacher → mopd: code"]
    )
    lanes = [dot.get_attribute("cx") for dot in tab.locator("#graph circle").all()]
    assert lanes == ["18", "18", "18", "18", "36", "18", "18"]  # the side branch has its own
    assert "code_teacher from sft" in tab.locator("#graph svg").get_attribute("aria-label")


def test_benchmarks_have_intervals_and_the_gap_between_the_modes(small: RunFolder, tab: Page) -> None:
    opened(tab, small.root / "report.html")
    expect(tab.locator("#benchmarks-table thead")).to_have_text("benchmarkmodesftmath_rl")
    expect(tab.locator("#benchmarks-table tbody tr")).to_have_text(
        ["aimethinking off0.250 ± 0.1000.625 ± 0.100", "aimethinking on0.500 ± 0.1000.500 ± 0.100"]
    )
    expect(tab.locator("#benchmarks-gaps tbody tr")).to_have_text(
        [
            "aimesft, thinking on - sft, thinking off+0.250 ± 0.063",
            f"aimemath_rl, thinking on - math_rl, thinking off{MINUS}0.125 ± 0.063",
        ]
    )


def test_curves_times_and_failures_are_those_of_the_files(small: RunFolder, tab: Page) -> None:
    opened(tab, small.root / "report.html")
    labels = [chart.get_attribute("aria-label") for chart in tab.locator("#curves-charts svg").all()]
    assert labels[0] == "reward: 2 steps, first 0.25, last 0.5, lowest 0.25, highest 0.5"
    assert labels[1].startswith("tme: 2 steps, first 1.0000001, last 1.0000002")
    expect(tab.locator("#time-charts tbody tr")).to_have_text(["generation2.25 s69.2 %", "update1 s30.8 %"])
    failures = tab.locator("#failures-body")
    expect(failures.locator("tbody tr").first).to_have_text("03_math_rlmath41 · 25.0 %1 · 25.0 %1 · 25.0 %1 · 25.0 %")
    expect(failures).to_contain_text("Sandbox: gone <b>&amp;")
    expect(failures).to_contain_text("exit code 3")
    expect(failures).to_contain_text("Engine deaths: 1")
    expect(failures).to_contain_text("steps that were not finished: 05_mopd step 1.")
    expect(tab.locator("#experts-tools output")).to_have_text(re.compile(r"^largest 1\.50 "))


def tokens(tab: Page) -> list[list[str]]:
    rows = tab.locator("#tokentable tbody tr").all()
    return [[cell.replace(MINUS, "-") for cell in row.locator("td").all_inner_texts()] for row in rows]


def test_every_token_has_the_numbers_of_its_record(small: RunFolder, tab: Page) -> None:
    opened(tab, small.root / "report.html", "#rollout=0")
    record, shown = SAMPLES[0], tokens(tab)
    expect(tab.locator("#detail h3").first).to_have_text(record.id)
    assert [int(row[1]) for row in shown] == record.token_ids.tolist()
    assert [float(row[3]) for row in shown] == pytest.approx(record.rollout_logprobs.tolist(), rel=1e-4)
    assert [float(row[4]) for row in shown] == pytest.approx(record.train_logprobs.tolist(), rel=1e-4)
    ratios = np.exp(record.train_logprobs - record.rollout_logprobs).tolist()
    assert [float(row[5]) for row in shown] == pytest.approx(ratios, rel=1e-5)
    assert [row[6:] for row in shown] == [["✓", "0.75"]] * 5
    expect(tab.locator("pre.prompt")).to_have_text(" the sum\n", use_inner_text=True)
    expect(tab.locator("pre.tokens")).to_have_text(" of two⟨Ã⟩⟨©⟩<|im_end|>")


def test_turns_teacher_and_versions_are_shown(small: RunFolder, tab: Page) -> None:
    opened(tab, small.root / "report.html", f"#rollout={len(SAMPLES)}&colour=kl")
    shown = tokens(tab)
    assert [row[6] for row in shown] == ["✓", NONE, "✓"]
    assert [float(row[7]) for row in shown] == [-0.5, 0.0, -0.25]  # teacher's log-prob - student's, in the loss
    assert [float(row[8]) for row in shown] == [-1.0, -0.25, -1.75]
    assert [float(row[9]) for row in shown] == [0.5, -0.25, 0.25]
    expect(tab.locator("pre.tokens .turn")).to_have_text(["turn 1", "environment", "turn 2"])
    expect(tab.locator("#detail")).to_contain_text("3 from token 0, 4 from token 2")
    expect(tab.locator("#detail")).to_contain_text("3 + 3, 2 generated")


def test_states_rewards_and_parts(small: RunFolder, tab: Page) -> None:
    opened(tab, small.root / "report.html", "#rollout=1")
    expect(tab.locator("#parts")).to_have_text(f"tests0.25style{NONE}")
    expect(tab.locator("#detail .group button")).to_have_text(["1", "0"])
    tab.keyboard.press("j")
    expect(tab.locator("#reward")).to_have_text("none")
    expect(tab.locator("#detail")).to_contain_text("Sandbox: gone <b>&amp;")
    tab.keyboard.press("j")
    expect(tab.locator("#detail")).to_contain_text("No token was generated")
    tab.keyboard.press("h")
    expect(tab.locator("#detail h3").first).to_have_text("math_rl/2/1/odd/0")


FILTERS = {
    "stage=mopd": [4],
    "domain=math&outcome=completed": [0],
    "steps=2-": [0, 1, 2, 3],
    "steps=1": [4],
    "reward=0.5-1": [0, 3, 4],
    "q=SUM%20of": [],
    "q=of%20TWO": [0],
    "q=sandbox": [2],
    "q=the%20sum": [0, 1, 2, 3, 4],
    "sort=-reward": [0, 3, 4, 1, 2],
    "sort=kl": [4, 0, 1, 2, 3],
    "sort=-tme": [1, 0, 2, 4, 3],
    "": [0, 1, 2, 3, 4],
}


def test_an_address_is_a_filter(small: RunFolder, tab: Page) -> None:
    opened(tab, small.root / "report.html", "#outcome=truncated")
    rows = "JSON.stringify([...document.querySelectorAll('.window .row')].map((row) => +row.dataset.rollout))"
    assert tab.evaluate(rows) == "[1]"
    for state, rollouts in FILTERS.items():
        tab.evaluate("(state) => { location.hash = state; }", state)
        wanted = json.dumps(rollouts, separators=(",", ":"))
        tab.wait_for_function(f"(wanted) => {rows} === wanted", arg=wanted)


def test_what_is_chosen_is_in_the_address(small: RunFolder, tab: Page) -> None:
    opened(tab, small.root / "report.html")
    tab.select_option("[name=outcome]", "truncated")
    tab.click(".window .row")
    assert tab.url.endswith("#outcome=truncated&rollout=1")
    tab.click("#theme")
    expect(tab.locator("html")).to_have_attribute("data-theme", "light")


def test_expert_load_is_over_the_mean_of_its_layer(small: RunFolder) -> None:
    load = expert_load(small.stage("math_rl"))
    assert load.tolist() == [[[1.5, 1.5], [0.5, 0.5]], [[1.0, 1.0], [1.0, 1.0]]]


def test_a_killed_attempt_counts_once(tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "run", cascade(steps=2)) as (run, _):
        stage = run.stage("sft")
        stage.record_event("attempt", from_step=0)
        stage.record_step(1, {"loss": 2.0}, {"update": 5.0}, tokens=10)
        stage.record_event("attempt", from_step=0)
        stage.record_event("step", step=1, tokens=10, seconds={"update": 3.0})
        facts = collect(run)["stages"][0]
    assert facts["phases"]["seconds"] == [[3.0]]
    assert [attempt["code"] for attempt in facts["attempts"]] == [None, None]


def test_tokens_are_counted_by_the_updates_since_they_were_sampled(tmp_path: Path, tab: Page) -> None:
    spans = [((1, 0),), ((0, 0), (1, 3)), ((0, 0),)]
    ids = [9, 9, 9, 0], [-1.0] * 4
    drawn = [sample(f"math_rl/2/0/sum/{n}", "math", *ids, ids[1], versions=own) for n, own in enumerate(spans)]
    with RunFolder.claim(tmp_path / "run", cascade(steps=2)) as (run, _):
        keep_tokenizer(run)
        write_samples(run.stage("math_rl").rollouts(2), drawn)
    files = step_files(run)
    rollouts = Rollouts(total=count(files), limit=0)
    list(chunk_blocks(files, open_tokenizer(run), rollouts))
    assert rollouts.counts()["ages"] == [[2, 2, 0, 5], [2, 2, 1, 7]]
    report.run(run.root, None, LARGE)
    opened(tab, run.root / "report.html")
    expect(tab.locator("#ages figure")).to_contain_text("03_math_rlmean age 0.583")
    expect(tab.locator("#ages-legend")).to_have_text("0 updates1 update")
    assert tab.locator("#nav a", has_text="Age of tokens").count() == 1


def test_answers_to_held_out_prompts_are_shown_apart(tmp_path: Path, tab: Page) -> None:
    with RunFolder.claim(tmp_path / "run", cascade(steps=2)) as (run, _):
        keep_tokenizer(run)
        stage = run.stage("math_rl")
        write_samples(stage.rollouts(1), SAMPLES[:2])
        for when, name in (("before", "heldout-math/0/sum/0"), ("after", "heldout-math/1/sum/0")):
            kept = sample(name, "math", [6, 0], [-0.5, -0.25], [], loss_mask=np.zeros(2, bool))
            write_samples(stage.heldout(when), [replace(kept, train_logprobs=None)])
        stage.begin_checkpoint(1)
        stage.commit_checkpoint(1)
    report.run(run.root, None, LARGE)
    opened(tab, run.root / "report.html", "#of=evaluation")
    rows = tab.locator(".window .row")
    expect(rows).to_have_count(2)
    expect(rows.locator("span:nth-child(2)")).to_have_text(["0", "1"])
    rows.first.click()
    expect(tab.locator("#detail h3").first).to_have_text("heldout-math/0/sum/0")
    expect(tab.locator("#detail .facts").first).to_contain_text("ofevaluation")
    assert [row[3:5] for row in tokens(tab)] == [["-0.5", NONE], ["-0.25", NONE]]
    expect(tab.locator("#failures-body tbody tr").first).to_contain_text("03_math_rlmath21")  # of training alone


def test_a_capped_report_keeps_whole_groups_spread_over_the_run(small: RunFolder) -> None:
    files = step_files(small)
    rollouts = Rollouts(total=count(files), limit=2)
    list(chunk_blocks(files, open_tokenizer(small), rollouts))
    assert (rollouts.total, rollouts.kept) == (5, 2)
    assert np.concatenate(rollouts.columns["group"]).tolist() == [0, 0]
    assert sum(rollouts.outcomes.values()) == 5  # what is counted is all of them


def test_columns_are_the_means_of_the_records(small: RunFolder) -> None:
    files = step_files(small)
    rollouts = Rollouts(total=count(files), limit=LARGE)
    list(chunk_blocks(files, open_tokenizer(small), rollouts))
    tme, kl = (np.concatenate(rollouts.columns[name]).tolist() for name in ("tme", "kl"))
    gaps = np.abs(SAMPLES[0].train_logprobs - SAMPLES[0].rollout_logprobs).astype(np.float64)
    assert tme[0] == pytest.approx(np.exp(gaps).mean())
    assert tme[4] == pytest.approx(1.0) and kl[4] == pytest.approx((0.5 + 0.25) / 2)
    assert math.isnan(tme[3]) and all(map(math.isnan, kl[:4]))


def test_a_run_without_a_tokenizer_is_refused(small: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(small.root, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "tokenizer")
    with pytest.raises(UserError, match=r"expected a tokenizer\.json"):
        report.run(tmp_path / "run", None, LARGE)


def test_a_run_that_has_not_begun_has_a_report(tmp_path: Path, tab: Page) -> None:
    with RunFolder.claim(tmp_path / "run", cascade(steps=2)) as (run, _):
        report.run(run.root, tmp_path / "early.html", LARGE)
    opened(tab, tmp_path / "early.html")
    expect(tab.locator("#rollouts-note")).to_have_text("No stage has sampled rollouts yet.")
    expect(tab.locator("#ages")).to_be_hidden()


# A large run.


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = large_run(tmp_path_factory.mktemp("large") / "run", LARGE, steps=10)
    report.run(run.root, None, LARGE)
    return run.root / "report.html"


def timed(tab: Page, act: Callable[[], object], until: str, limit: float = INTERACTION_S) -> None:
    """`act`, then `until` holds in the page, in `limit` seconds."""
    began = time.perf_counter()
    act()
    tab.wait_for_function(until, polling=20, timeout=10 * limit * 1000)
    assert time.perf_counter() - began < limit, until


@pytest.mark.long  # its limits are of time, which a machine with other work may not have
def test_a_hundred_thousand_rollouts_do_not_freeze_the_page(large: Path, tab: Page) -> None:
    starts = "document.getElementById('summary').textContent.startsWith"
    timed(tab, lambda: tab.goto(f"file://{large}", wait_until="commit"), "document.documentElement.dataset.painted")
    tab.wait_for_selector("html[data-ready]", state="attached")
    timed(tab, lambda: tab.select_option("[name=stage]", "mopd"), f"{starts}('20,000 of 100,000')")
    timed(tab, lambda: tab.click("button[type=reset]"), f"{starts}('100,000 of 100,000')")
    timed(tab, lambda: tab.select_option("[name=sort]", "-tme"), "document.body.textContent.includes('1 ↓')")
    searched = f"/^[\\d,]+ of/.test(summary.textContent) && !{starts}('100,000')"
    timed(tab, lambda: tab.fill("[name=q]", "7 7 7 7"), searched, SEARCH_S)
    timed(tab, lambda: tab.click("button[type=reset]"), f"{starts}('100,000 of 100,000')")
    scroll = "document.getElementById('list').scrollTop = 1.3e6"
    timed(tab, lambda: tab.evaluate(scroll), "document.getElementById('row-50000')?.lastChild.textContent !== ''")
    timed(tab, lambda: tab.click("#row-50000"), "document.querySelector('[aria-selected=true]')?.id === 'row-50000'")
    assert tab.locator(".window .row").count() < 60
    assert max(tab.evaluate("tasks"), default=0) < LONGEST_TASK_MS
    assert tab.evaluate("performance.memory.usedJSHeapSize") / 1e6 < HEAP_MB


@pytest.mark.parametrize("scheme, dark", [("light", False), ("dark", True)])
def test_both_schemes_at_both_widths(
    small: RunFolder, browser: Browser, tmp_path: Path, scheme: str, dark: bool
) -> None:
    for width in (1280, 390):
        tab = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 844})  # type: ignore[arg-type]
        opened(tab, small.root / "report.html")
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        paper = json.loads(
            tab.evaluate("JSON.stringify(getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number))")
        )
        assert (max(paper) < 60) == dark
        tab.close()
