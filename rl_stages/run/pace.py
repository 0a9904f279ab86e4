"""How long a stage still takes, at the pace of its last steps."""

from collections.abc import Sequence

WINDOW = 10  # steps: enough for a mean, few enough to follow answers that get longer


def pace(ends: Sequence[float]) -> float | None:
    """Seconds of a step with all that lies between steps, from the times at which they ended. None for a single one."""
    last = ends[-WINDOW - 1 :]
    return (last[-1] - last[0]) / (len(last) - 1) if len(last) > 1 else None


def duration(seconds: float) -> str:
    """In the two largest units of days, hours, minutes and seconds."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds % 60)} s" if minutes else f"{seconds:.0f} s"
