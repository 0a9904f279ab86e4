"""Draws a learning curve as SVG, without a plotting library."""

from collections.abc import Callable, Sequence

import numpy as np

WIDTH, HEIGHT = 640, 320  # px
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 40, 44  # px around the plot
TICKS = 5
WINDOW = 5  # steps of the trailing mean

STYLE = (
    "text{font:13px sans-serif;fill:#52514e}.title{font-size:15px;fill:#0b0b0b}"
    ".grid{stroke:#e4e3df}.step{fill:#9ec3ee}.mean{fill:none;stroke:#2a78d6;stroke-width:2}"
)


def curve_svg(title: str, values: Sequence[float]) -> str:
    """Dots are the non-negative `values` of steps 1, 2, ...; the line is their trailing mean over `WINDOW` steps."""
    top = _ceiling(max(values))
    x = _scale(1, max(len(values), 2), LEFT, WIDTH - RIGHT)
    y = _scale(0, top, HEIGHT - BOTTOM, TOP)
    steps = range(1, len(values) + 1)
    means = [float(np.mean(values[max(0, step - WINDOW) : step])) for step in steps]
    line = " ".join(f"{x(step):.1f},{y(mean):.1f}" for step, mean in zip(steps, means, strict=True))
    parts = [
        f'<text class="title" x="{LEFT}" y="22">{title}</text>',
        *(_level(y(level), f"{level:g}") for level in np.linspace(0, top, TICKS + 1).round(6)),
        *(_below(x(step), str(step)) for step in steps if step == 1 or step % 5 == 0),
        _below((LEFT + WIDTH - RIGHT) / 2, f"step (line: mean of {WINDOW} steps)", HEIGHT - 8),
        *(
            f'<circle class="step" r="3.5" cx="{x(s):.1f}" cy="{y(v):.1f}"/>'
            for s, v in zip(steps, values, strict=True)
        ),
        f'<polyline class="mean" points="{line}"/>',
    ]
    body = "\n".join(parts)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    return f'{head}\n<style>{STYLE}</style>\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'


def _ceiling(highest: float) -> float:
    """The next value that divides into `TICKS` parts of a round number; 1 if no value is above 0."""
    if not highest > 0:
        return 1.0
    part = highest / TICKS
    power = 10.0 ** np.floor(np.log10(part))
    return float(TICKS * power * next(factor for factor in (1, 2, 5, 10) if factor * power >= part))


def _scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    return lambda value: first + (value - low) / (high - low) * (last - first)


def _level(y: float, label: str) -> str:
    grid = f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{grid}<text text-anchor="end" x="{LEFT - 8}" y="{y + 4:.1f}">{label}</text>'


def _below(x: float, label: str, y: float = HEIGHT - BOTTOM + 18) -> str:
    return f'<text text-anchor="middle" x="{x:.1f}" y="{y}">{label}</text>'
