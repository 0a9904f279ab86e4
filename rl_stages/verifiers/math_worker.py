"""The process in which math-verify runs: one JSON request a line on stdin, one JSON reply a line on stdout.

Its parent kills it at a deadline. It ends by itself with its stdin, and, should the parent die while an
answer hangs, by an alarm whose default action no interpreter lock can delay.
"""

import json
import logging
import resource
import signal
import sys

READY = b"ready\n"
MEMORY_BYTES = 3 << 30


def compare(answer: str, expected: str) -> bool:
    from math_verify import parse, verify

    gold, given = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (expected, answer))
    return bool(verify(gold, given, timeout_seconds=None))


def reply(request: dict[str, str]) -> dict[str, object]:
    """`equal`, and why when the answer could not be evaluated: the answer's fault, so it is wrong."""
    try:
        return {"equal": compare(request["answer"], request["expected"]), "detail": ""}
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        return {"equal": False, "detail": f"math-verify: {type(error).__name__}"}


def main() -> None:
    import math_verify  # noqa: F401  before READY, so that no answer pays for the import

    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        signal.alarm(int(request["seconds"]) + 10)
        sys.stdout.write(json.dumps(reply(request)) + "\n")
        sys.stdout.flush()
        signal.alarm(0)


if __name__ == "__main__":
    main()
