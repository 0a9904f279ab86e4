"""The picture of a learning curve, read back as XML."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.cli.main import _run
from cascade_rl.launchers.report.curve import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, curve_svg
from cascade_rl.rl_stages.run.durable_file import JsonLines

SVG = "{http://www.w3.org/2000/svg}"


def dots(svg: str) -> list[tuple[float, float]]:
    found = ElementTree.fromstring(svg).iter(f"{SVG}circle")
    return [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in found]


def mean_line(svg: str) -> list[float]:
    line = ElementTree.fromstring(svg).find(f"{SVG}polyline")
    assert line is not None
    return [float(point.split(",")[1]) for point in line.attrib["points"].split()]


def test_dots_fill_the_plot_from_zero_to_a_round_number() -> None:
    svg = curve_svg("reward", [0.0, 0.25, 0.5])
    bottom, middle = HEIGHT - BOTTOM, (HEIGHT - BOTTOM + TOP) / 2
    assert dots(svg) == [(LEFT, bottom), ((LEFT + WIDTH - RIGHT) / 2, middle), (WIDTH - RIGHT, TOP)]
    labels = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert labels[1:7] == ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]


def test_the_line_is_a_trailing_mean_of_five() -> None:
    svg = curve_svg("reward", [1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    height = HEIGHT - BOTTOM - TOP
    shares = [(HEIGHT - BOTTOM - y) / height for y in mean_line(svg)]
    assert shares == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 0], abs=0.001)


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [3e-5, 1.0]])
def test_flat_and_short_runs_are_drawn(values: list[float]) -> None:
    assert len(dots(curve_svg("reward", values))) == len(values)


def test_the_command_draws_a_metrics_file(tmp_path: Path) -> None:
    metrics = JsonLines(tmp_path / "metrics.jsonl")
    for step, reward in enumerate([0.125, 0.5], start=1):
        metrics.append({"step": step, "reward": reward, "kl": 0.0})
    assert _run(["curve", str(metrics.path), str(tmp_path / "out.svg")]) == 0
    assert len(dots((tmp_path / "out.svg").read_text())) == 2


def test_a_file_without_rewards_is_told(tmp_path: Path) -> None:
    JsonLines(tmp_path / "metrics.jsonl").append({"step": 1, "loss": 0.5})
    for name in ("metrics.jsonl", "gone.jsonl"):
        with pytest.raises(UserError, match=r"expected the metrics.jsonl of an RL stage, found no reward"):
            _run(["curve", str(tmp_path / name), str(tmp_path / "out.svg")])
    assert not (tmp_path / "out.svg").exists()
