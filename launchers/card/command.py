"""`cascade doctor --gpu`: what a machine with cards must show before a run, and the script of its first ten minutes."""

import time

from cascade_rl.engine.backend import cards
from cascade_rl.engine.backend.machine import backend
from cascade_rl.launchers.card.check import Check
from cascade_rl.launchers.card.checks import CHECKS
from cascade_rl.launchers.card.on_cards import LAYOUTS, STEPS, codes, first_failure

NO_CARD = 10


def run() -> int:
    """The exit code of the first check that fails, and 0 if none does; NO_CARD without a card."""
    if not cards.count():
        print(
            f"no card here, exit code {NO_CARD}. With one, this command checks, and exits with the code of what fails:"
        )
        print("\n".join(f"{code:>4}  {name}: {looks_at}" for code, name, looks_at in table()))
        return NO_CARD
    failed = [check.code for check in CHECKS if not passes(check)]
    for ranks in LAYOUTS:
        if ranks <= cards.count():
            print(f"the first steps on {ranks} of {cards.count()} cards", flush=True)
            failed += filter(None, [first_failure(ranks, backend().precisions[0])])
    print("fit" if not failed else f"not fit: {', '.join(map(str, failed))} (docs/gpu.md says where to look)")
    return failed[0] if failed else 0


def table() -> list[tuple[int, str, str]]:
    """Exit code, name and object of every check, in their order."""
    first = [(check.code, check.name, check.looks_at) for check in CHECKS]
    steps = [
        (codes(ranks)[name], f"{name} on {ranks} card{'s' * (ranks > 1)}", looks_at)
        for ranks in LAYOUTS
        for name, looks_at in STEPS.items()
    ]
    return first + steps


def passes(check: Check) -> bool:
    """Says what the check found. Whatever goes wrong in it is its failure, and the others are made all the same."""
    began = time.monotonic()
    try:
        told = check.run()
    except Exception as error:
        print(f"{check.name}: FAILED ({check.code}): {type(error).__name__}: {error}", flush=True)
        return False
    print(f"{check.name}: {told} ({time.monotonic() - began:.1f} s)", flush=True)
    return True
