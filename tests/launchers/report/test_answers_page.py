"""The answers of an evaluation as a page: its numbers, and each answer token by token."""

from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Page, expect

from cascade_rl.launchers.report.answers_page import Answers, write_answers
from cascade_rl.launchers.report.rollouts import File
from cascade_rl.launchers.report.sample_stream import SampleStream, read_stream, source_of
from tests.launchers.report.conftest import opened
from tests.launchers.report.report_run import tokenizer
from tests.launchers.report.test_report import NUMBERS, SAMPLES

SOURCES = ("sft, thinking on", "sft, thinking off")


def streams(folder: Path) -> list[Path]:
    """One a source: two groups of two answers, and one."""
    paths = [folder / f"{number}.arrows" for number in range(2)]
    for path, source, groups in zip(paths, SOURCES, ([SAMPLES[:2], SAMPLES[2:]], [SAMPLES[:2]]), strict=True):
        stream = SampleStream(path, {"source": source})
        for group in groups:
            stream.append([replace(sample, train_logprobs=None) for sample in group])
        stream.close()
    return paths


def test_a_group_that_a_kill_cut_off_is_not_read(tmp_path: Path) -> None:
    path, other = streams(tmp_path)
    whole, size = path.read_bytes(), other.stat().st_size
    assert [group.num_rows for group in read_stream(path)] == [2, 2]
    assert source_of(path) == {"source": SOURCES[0]}
    for cut in (len(whole) - 100, size + 1, size):
        path.write_bytes(whole[:cut])
        assert [group.num_rows for group in read_stream(path)] == [2]
    path.write_bytes(whole[:100])
    assert (list(read_stream(path)), source_of(path)) == ([], {})


def test_the_page_has_the_numbers_and_the_answers(tmp_path: Path, tab: Page) -> None:
    files = [File(index, 0, path, heldout=True) for index, path in enumerate(streams(tmp_path))]
    page = Answers("math", {"models": "sft <b>"}, NUMBERS["sft"], SOURCES, files, tokenizer())
    rollouts = write_answers(tmp_path / "report.html", page)
    assert (rollouts.total, rollouts.kept, len(rollouts.starts)) == (6, 6, 2)
    opened(tab, tmp_path / "report.html", "#rollout=1")
    expect(tab.locator("nav a")).to_have_text(["Evaluation", "Benchmarks", "Rollouts"])
    expect(tab.locator("#facts")).to_have_text("modelssft <b>")
    expect(tab.locator("#benchmarks-gaps tbody tr")).to_have_text(
        ["aimesft, thinking on - sft, thinking off+0.250 \u00b1 0.063"]
    )
    expect(tab.locator("#detail .group button")).to_have_text(["1", "0"])
    expect(tab.locator("#detail")).to_contain_text("sft, thinking on")
