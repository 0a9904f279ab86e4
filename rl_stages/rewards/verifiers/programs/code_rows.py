"""Rows of programming problems in the formats in which they are released.

- NeMo-Gym `code_gen`: `verifier_metadata.unit_tests` = {"inputs", "outputs", "fn_name"?}, or {"packed", "fn_name"?}
  with the first two as JSON, compressed
- TACO and APPS: `input_output`, the same as JSON text
- LiveCodeBench: `public_test_cases` and `private_test_cases`, JSON text, with `metadata.func_name`
- HumanEval: `prompt`, `test`, `entry_point`: assertions, which call the function and what the prompt defines before it

Printed outputs are compared by lines in the formats of LiveCodeBench and NeMo-Gym, as they do, and by words in those of
TACO and APPS. A function's input is its arguments in JSON, one per line; its output is JSON. An output may be a list of
texts, each of which is accepted. Our own optional fields, next to the tests: `language` (python, cpp), `cpu_seconds`
and `memory_mib` of a test, `checker` ({"kind", "tolerance"}, or {"kind": "judge", "language", "source"}).
"""

from __future__ import annotations

import re
import zlib
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.rewards.verifiers.programs.checkers import (
    CALL_RULES,
    CALL_TOLERANCE,
    STDIN_RULES,
    Checker,
    parse_checker,
    parsed,
    same_floats,
    same_json,
    same_lines,
)
from cascade_rl.rl_stages.sandbox import Limits
from cascade_rl.rl_stages.sandbox.limits import MIB

LANGUAGES = ("python", "cpp")
_SURROGATE = re.compile("[\ud800-\udfff]")
EXPECTED_MIB, PACKED_MIB = 32, 1024  # of one expected output; of the tests of one row
CPU_SECONDS, MEMORY_MIB = (0.1, 60), (16, 16384)  # what a row may ask for
TESTS_FORM = '{"inputs": [text], "outputs": [text], "fn_name": text or null}'


@dataclass(frozen=True)
class SpecialJudge:
    """A program that judges one output. It reads the JSON object {"input", "output", "answer"} on stdin.

    Its exit codes are testlib's: 0 accepts, 1 and 2 refuse, anything else means that the judge failed.
    """

    language: Literal["python", "cpp"]
    source: str


@dataclass(frozen=True)
class Problem:
    """A programming problem with its tests.

    function  the function that tests call; None for programs that read stdin
    inputs    the sandbox's input for each test: stdin, a JSON list of arguments, or the source of assertions
    accepted  outputs of each test, any of which is right; empty for assertions
    checker   compares outputs; None for assertions
    prologue  source that the answer continues, unless it defines `function` itself
    """

    language: Literal["python", "cpp"]
    mode: Literal["stdin", "call", "assert"]
    function: str | None
    inputs: tuple[bytes, ...]
    accepted: tuple[tuple[str, ...], ...]
    checker: Checker | SpecialJudge | None
    limits: Limits
    prologue: str = ""


def parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """`problem`, a Problem. UserError on a row of another format or without tests."""
    metadata = row.get("verifier_metadata")
    if isinstance(metadata, dict) and "unit_tests" in metadata:
        return {"problem": _io_problem(_unpacked(metadata["unit_tests"]), metadata, Checker(same_lines))}
    if "input_output" in row:
        return {"problem": _io_problem(_json(row["input_output"], "input_output"), row, Checker(same_floats))}
    if "public_test_cases" in row:
        return {"problem": _io_problem(_livecodebench(row), row, Checker(same_lines))}
    if "entry_point" in row:
        return {"problem": _human_eval(row)}
    raise UserError(
        "expected tests in 'verifier_metadata.unit_tests', 'input_output', 'public_test_cases' or "
        f"'prompt', 'test' and 'entry_point'; found the fields {sorted(row)}"
    )


def _unpacked(tests: object) -> object:
    """NeMo-Gym keeps LiveCodeBench's tests as zlib's bytes in base64 (its code_gen/app.py)."""
    if not isinstance(tests, dict) or "packed" not in tests:
        return tests
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(b64decode(_text(tests["packed"], "packed"), validate=True), PACKED_MIB * MIB)
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise ValueError(f"it ends early or has more than {PACKED_MIB} MiB")
        packed = _json(content.decode(), "packed")
    except (ValueError, zlib.error) as error:
        raise UserError(f"expected 'packed' to be compressed JSON; found {_shown(tests['packed'])} ({error})") from None
    return packed | {"fn_name": tests.get("fn_name")} if isinstance(packed, dict) else packed


def _io_problem(tests: object, options: Mapping[str, Any], standard: Checker) -> Problem:
    if not isinstance(tests, dict):
        raise UserError(f"expected tests as {TESTS_FORM}; found {_shown(tests)}")
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs or len(inputs) != len(outputs):
        raise UserError(
            f"expected as many 'outputs' as 'inputs', one or more; found {_shown(inputs)}, {_shown(outputs)}"
        )
    function = tests.get("fn_name")
    if function is not None and not (isinstance(function, str) and function.isidentifier()):
        raise UserError(f"expected 'fn_name' to be the name of a function or null; found {function!r}")
    language = _language(options.get("language", "python"))
    if function and language == "cpp":
        raise UserError("expected tests on stdin for C++; found 'fn_name', which only Python tests have")
    accepted = tuple(_outputs(output, is_json=bool(function)) for output in outputs)
    return Problem(
        language,
        "call" if function else "stdin",
        function,
        tuple(_arguments(text) if function else _text(text, "inputs").encode() for text in inputs),
        accepted,
        _checker(options.get("checker"), Checker(same_json, CALL_TOLERANCE) if function else standard),
        _limits(options, accepted),
    )


def _checker(value: object, standard: Checker) -> Checker | SpecialJudge:
    if isinstance(value, dict) and value.get("kind") == "judge":
        if not value.keys() <= {"kind", "language", "source"}:
            raise UserError(f"expected a judge to have only a language and a source; found {sorted(value)}")
        return SpecialJudge(_language(value.get("language", "python")), _text(value.get("source"), "checker.source"))
    return parse_checker(value, CALL_RULES if standard.rule is same_json else STDIN_RULES, standard)


def _livecodebench(row: Mapping[str, Any]) -> dict[str, Any]:
    cases = [case for name in ("public_test_cases", "private_test_cases") for case in _cases(row, name)]
    kinds = {case.get("testtype") for case in cases}
    if len(kinds) != 1 or not kinds <= {"stdin", "functional"}:
        raise UserError(f"expected tests that are all 'stdin' or all 'functional'; found {sorted(map(str, kinds))}")
    function = None
    if kinds == {"functional"}:
        metadata = row.get("metadata") or {}
        metadata = _json(metadata, "metadata") if isinstance(metadata, str) else metadata
        function = metadata.get("func_name") if isinstance(metadata, dict) else None
        if function is None:
            raise UserError(f"expected 'metadata.func_name' with functional tests; found {_shown(metadata)}")
    inputs, outputs = ([case.get(name) for case in cases] for name in ("input", "output"))
    return {"inputs": inputs, "outputs": outputs, "fn_name": function}


def _cases(row: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Private tests are released as a pickle, which runs code when it is opened: convert them to JSON first."""
    cases = row.get(name) or []
    cases = _json(cases, name) if isinstance(cases, str) else cases
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise UserError(f"expected '{name}' to be a JSON list of tests; found {_shown(cases)}")
    for case in cases:
        if not isinstance(case.get("testtype"), str):
            raise UserError(f"expected each test's 'testtype' to be stdin or functional; found {_shown(case)}")
    return cases


def _human_eval(row: Mapping[str, Any]) -> Problem:
    prompt, test, function = (_text(row.get(name), name) for name in ("prompt", "test", "entry_point"))
    if not function.isidentifier():
        raise UserError(f"expected 'entry_point' to be the name of a function; found {function!r}")
    given = prompt[: match.start()] if (match := definition(function).search(prompt)) else prompt
    assertions = f"{given}\n{test}\ncheck({function})\n".encode()
    return Problem("python", "assert", function, (assertions,), (), None, _limits(row, ()), prologue=prompt + "\n")


def definition(function: str) -> re.Pattern[str]:
    """Where a module defines the function."""
    return re.compile(rf"^(?:(?:async[ \t]+)?def|class)[ \t]+{function}\b|^{function}[ \t]*=", re.MULTILINE)


def _arguments(text: object) -> bytes:
    """A JSON list of arguments, from one JSON value per line."""
    lines = [line for line in _text(text, "inputs").split("\n") if line.strip()]
    for line in lines:
        _json(line, "inputs")
    return f"[{', '.join(lines)}]".encode()


def _outputs(value: object, *, is_json: bool) -> tuple[str, ...]:
    texts = tuple(_text(text, "outputs") for text in (value if isinstance(value, list) else [value]))
    if not texts:
        raise UserError("expected an accepted output for each test; found an empty list")
    for text in texts:
        if len(text.encode()) > EXPECTED_MIB * MIB:
            raise UserError(f"expected outputs of at most {EXPECTED_MIB} MiB; found {len(text.encode())} bytes")
        if is_json:
            _json(text, "outputs")
    return texts


def _json(text: object, name: str) -> Any:
    try:
        return parsed(_text(text, name))
    except (ValueError, RecursionError) as error:
        raise UserError(f"expected '{name}' to be JSON text; found {_shown(text)} ({error})") from None


def _text(value: object, name: str) -> str:
    """The text, if UTF-8 can encode it: JSON allows half of a surrogate pair."""
    if not isinstance(value, str) or _SURROGATE.search(value):
        raise UserError(f"expected '{name}' to be Unicode text; found {_shown(value)}")
    return value


def _language(value: object) -> Literal["python", "cpp"]:
    if value == "python":
        return "python"
    if value == "cpp":
        return "cpp"
    raise UserError(f"expected 'language' to be one of {', '.join(LANGUAGES)}; found {value!r}")


def _limits(options: Mapping[str, Any], accepted: tuple[tuple[str, ...], ...]) -> Limits:
    """The row's limits. There is room for each accepted output, also with its numbers at greater length."""
    standard = Limits()
    seconds = _number(options, "cpu_seconds", standard.cpu_seconds, *CPU_SECONDS)
    memory = int(_number(options, "memory_mib", standard.memory_mib, *MEMORY_MIB))
    longest = max((len(text.encode()) for texts in accepted for text in texts), default=0)
    return Limits(cpu_seconds=seconds, memory_mib=memory, output_bytes=standard.output_bytes + 2 * longest)


def _number(options: Mapping[str, Any], name: str, standard: float, least: float, most: float) -> float:
    value = options.get(name)
    if value is None:
        return standard
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise UserError(f"expected '{name}' to be a number from {least} to {most}; found {value!r}")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."
