"""An office of our own, drawn from a seed and written in the layout of nemo-gym's wheel: a boatyard and its customers.

It is for all tests of NeMo-Gym's tools that must pass without the wheel.
"""

import csv
import random
from collections.abc import Sequence
from pathlib import Path

from cascade_rl.rl_stages.environments.nemo_gym_office import CHOICES, CUSTOMER
from cascade_rl.rl_stages.environments.nemo_gym_tables import (
    CALENDAR,
    CUSTOMERS,
    DIRECTORY_FILE,
    EMAIL,
    FILES,
    FOLDER,
    TASKS,
    VISITS_FILE,
)

PEOPLE = (
    *("wren.calder", "otis.brandt", "juno.adeyemi", "tamsin.roe"),
    *("ravi.nair", "ingrid.moe", "abel.costa", "lio.park"),
)
COLLEAGUES = tuple(f"{person}@quay.example" for person in PEOPLE)
BOATS = ("ferry", "cutter", "dinghy", "trawler", "barge", "sloop")
PARTS = ("hull", "rudder", "mast", "engine", "winch")
SHOPS = ("Heron", "Anchor", "Lantern", "Tide", "Gannet")
TRADES = ("Bakery", "Tours", "Chandlery", "Fish", "Rentals")
SOURCES = ("direct", "referral", "search engine", "social media")


def write(gym: Path) -> None:
    """What `CASCADE_NEMO_GYM` may name: 40 emails, 30 events, 30 tasks, 20 customers, 60 visits and 8 addresses."""
    draw = random.Random(0)
    _write(gym, FILES[EMAIL][0], [_email(draw, number) for number in range(40)])
    _write(gym, FILES[CALENDAR][0], [_event(draw, number) for number in range(30)])
    _write(gym, FILES[TASKS][0], [_task(draw, number) for number in range(30)])
    _write(gym, FILES[CUSTOMERS][0], [_customer(draw, number) for number in range(20)])
    _write(gym, VISITS_FILE, [_visit(draw, number) for number in range(60)])
    (gym / FOLDER / DIRECTORY_FILE).parent.mkdir()
    (gym / FOLDER / DIRECTORY_FILE).write_text("\n".join(COLLEAGUES) + "\n")


def _write(gym: Path, file: str, rows: Sequence[dict[str, str]]) -> None:
    path = gym / FOLDER / file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def _email(draw: random.Random, number: int) -> dict[str, str]:
    boat, part = draw.choice(BOATS), draw.choice(PARTS)
    return {
        "email_id": f"{number:08}",
        "inbox/outbox": draw.choice(("inbox", "outbox")),
        "sender/recipient": draw.choice(COLLEAGUES),
        "subject": f"The {part} of the {boat}",
        "sent_datetime": f"{_day(draw)} {_time(draw)}",
        "body": f"Can we look at the {part}?\\n\\nThe {boat} leaves on {draw.choice(('Monday', 'Thursday'))}.",
    }


def _event(draw: random.Random, number: int) -> dict[str, str]:
    return {
        "event_id": f"{number:08}",
        "event_name": f"{draw.choice(('Launch', 'Survey', 'Sea trial'))} of the {draw.choice(BOATS)}",
        "participant_email": draw.choice(COLLEAGUES),
        "event_start": f"{_day(draw)} {_time(draw)}",
        "duration": draw.choice(("30", "60", "90")),
    }


def _task(draw: random.Random, number: int) -> dict[str, str]:
    work = draw.choice(("Paint", "Repair", "Order"))
    return {
        "task_id": f"{number:08}",
        "task_name": f"{work} the {draw.choice(PARTS)} of the {draw.choice(BOATS)}",
        "assigned_to_email": COLLEAGUES[number % len(COLLEAGUES)],
        "list_name": draw.choice(CHOICES["list_name"]),
        "due_date": _day(draw),
        "board": draw.choice(CHOICES["board"]),
    }


def _customer(draw: random.Random, number: int) -> dict[str, str]:
    """Every fourth has no email address, every third no phone."""
    shop, trade = SHOPS[number % len(SHOPS)], draw.choice(TRADES)
    address, phone = f"office@{shop}-{trade}.example".lower(), f"555-{number:04}"
    values = (
        *(draw.choice(COLLEAGUES), f"{shop} {trade}", address if number % 4 else "", phone if number % 3 else ""),
        *(f"{_day(draw)} {_time(draw)}", draw.choice(CHOICES["product_interest"]), draw.choice(CHOICES["status"])),
        *(f"2023-12-{draw.randrange(1, 29):02} {_time(draw)}", f"Asked for a {draw.choice(BOATS)}."),
    )
    return {"customer_id": f"{number:08}", **dict(zip(CUSTOMER, values, strict=True))}


def _visit(draw: random.Random, number: int) -> dict[str, str]:
    return {
        "date_of_visit": f"2023-11-{1 + number % 10:02}",
        "visitor_id": f"{draw.randrange(40):04}",
        "page_views": str(draw.randrange(1, 20)),
        "session_duration_seconds": str(draw.randrange(1, 100)),
        "traffic_source": draw.choice(SOURCES),
        "user_engaged": str(draw.random() < 0.5),
    }


def _day(draw: random.Random) -> str:
    return f"2023-11-{draw.randrange(1, 31):02}"


def _time(draw: random.Random) -> str:
    return f"{draw.randrange(8, 18):02}:{draw.choice((0, 30)):02}:00"
