"""The order of the checks, what they end with, and that docs/gpu.md says the same."""

import re
from pathlib import Path

import pytest

from cascade_rl.engine.backend import cards
from cascade_rl.engine.core.settings import Precision
from cascade_rl.launchers.card import command, on_cards
from cascade_rl.launchers.card.check import Check, Unfit
from cascade_rl.launchers.stage.exit_status import USER_ERROR
from cascade_rl.rl_stages.run.score_gate import GATE_CLOSED

GUIDE = Path(__file__).parents[3] / "docs" / "gpu.md"


def broken() -> str:
    raise Unfit("expected much, found little")


def test_a_machine_without_a_card_says_what_it_would_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(cards, "count", lambda: 0)
    assert command.run() == command.NO_CARD
    told = capsys.readouterr().out
    assert all(f"{code}  {name}: {looks_at}" in told for code, name, looks_at in command.table())


def test_every_check_has_a_code_of_its_own():
    codes = [code for code, *_ in command.table()]
    assert len({0, 1, USER_ERROR, GATE_CLOSED, command.NO_CARD, *codes}) == 5 + len(codes)


def test_the_guide_has_the_table():
    rows = re.findall(r"^\| (\d+) \| ([\w ]+) \|", GUIDE.read_text(), re.MULTILINE)
    assert rows == [(str(command.NO_CARD), "no card"), *((str(code), name) for code, name, _ in command.table())]


@pytest.mark.parametrize(
    ("number", "peers", "first_steps", "code", "words"),
    [
        (1, False, {1: None}, 0, "fit"),
        (1, True, {1: None}, 15, "peers: FAILED (15): Unfit: expected much, found little"),
        (1, False, {1: 22}, 22, "not fit: 22"),
        (8, False, {1: None, 2: 31}, 31, "the first steps on 2 of 8 cards"),
        (8, True, {1: None, 2: 31}, 15, "not fit: 15, 31"),
    ],
)
def test_the_first_failure_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    peers: bool,
    first_steps: dict[int, int | None],
    code: int,
    words: str,
):
    monkeypatch.setattr(cards, "count", lambda: number)
    monkeypatch.setattr(command, "CHECKS", (Check(15, "peers", "", broken if peers else lambda: "2 cards"),))
    monkeypatch.setattr(command, "first_failure", lambda ranks, _: first_steps[ranks])
    assert command.run() == code
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("passed", "code"), [("", 31), ("step\n", 32), ("step\nrefit\n", 33), ("step\nrefit\ngeneration\n", 33)]
)
def test_the_step_that_did_not_pass_is_named_with_the_end_of_the_engines_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], passed: str, code: int
):
    def start(folder: Path, ranks: int, _: Precision) -> str:
        (folder / "passed").write_text(passed)
        (folder / "engine.log").write_text("vLLM says why\n")
        return f"rank 0 of {ranks} was killed by SIGKILL"

    monkeypatch.setattr(on_cards, "_start", start)
    assert on_cards.first_failure(2, "bfloat16") == code
    told = capsys.readouterr().out
    assert f"FAILED ({code}): rank 0 of 2 was killed by SIGKILL" in told
    assert "vLLM says why" in told


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.ranks
@pytest.mark.parametrize(("ranks", "precision"), [(1, "float32"), (2, "bfloat16")])
def test_the_first_steps_pass_here(ranks: int, precision: Precision, capfd: pytest.CaptureFixture[str]):
    """On the CPU, where nothing is compiled: the same programs, and a card's precision."""
    assert on_cards.first_failure(ranks, precision) is None
    told = capfd.readouterr().out
    assert [line.partition(":")[0] for line in told.splitlines()] == list(on_cards.STEPS)
