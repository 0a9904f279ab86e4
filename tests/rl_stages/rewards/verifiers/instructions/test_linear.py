"""No check takes a time that grows faster than the answer, whatever the answer repeats."""

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints import CHECKS
from tests.rl_stages.rewards.verifiers.growth import superlinear
from tests.rl_stages.rewards.verifiers.instructions.test_constraints import IFBENCH, LANGUAGE, RLVR
from tests.rl_stages.rewards.verifiers.instructions.test_instruction_following import CASES as IFEVAL

KWARGS = {name: kwargs for name, kwargs, _, _ in (*IFEVAL, *RLVR, *IFBENCH, *LANGUAGE)}
# Every sign that a check looks for, alone and before what may follow it
PIECES = (
    *(
        " ",
        "\n",
        "\t",
        " \n",
        "\n\n",
        "a",
        "A",
        "1",
        ".",
        "...",
        "!",
        "?!",
        "\u2026 ",
        "-",
        "*",
        "***",
        "_",
        "`",
        "#",
        ",",
    ),
    *(
        "(",
        ")",
        "([{",
        "[",
        "]",
        "[a",
        "<",
        "<<",
        "<<a",
        ">>",
        "<i>",
        "<i>a",
        "</i>",
        "<em> ",
        '"',
        "'",
        ',"',
        '"&',
        ', "',
    ),
    *(
        "a ",
        "a. ",
        "A. ",
        "B. ",
        "etc. ",
        "e.g. ",
        "a! ",
        '." ',
        "...) ",
        ". . ",
        "a-",
        "a'",
        "\n*",
        "\n* a",
        "\n-",
        "\n\n* ",
    ),
    *(
        "p.",
        "p. ",
        "P.S",
        "My Answer:",
        "Question 1",
        "Question 1\n",
        "\nA) a",
        "Zimbabwe\n",
        "14, ",
        "1796-04-12,",
        "{",
        '{"a":',
    ),
    *(
        "\U0001f600",
        "\U0001f600. ",
        "\u732b ",
        "\u0928\u092e\u094d",
        "\u200d",
        "\u00e9",
        "\ufb01",
        "******",
        "e" * 50 + " ",
        "@",
        "a@",
    ),
)


def pieces(name):
    words = [word for value in KWARGS[name].values() if isinstance(value, str) for word in value.split()]
    return dict.fromkeys([*PIECES, *words, *(f"{word} " for word in words)])


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_takes_a_time_linear_in_the_answer(name):
    check = partial(CHECKS[name], **KWARGS[name])
    assert [piece for piece in pieces(name) if superlinear(check, piece, "\nz")] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", [". ", "! ", "a ", "\n* ", "["]
)  # copies of the text are cheap, so they show only here
def test_an_answer_of_200_000_characters_is_no_exception(piece):
    checks = {name: partial(check, **KWARGS[name]) for name, check in CHECKS.items()}
    assert [name for name, check in checks.items() if superlinear(check, piece, "\nz", 25_000)] == []


@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(PIECES), min_size=2, max_size=3).map("".join), st.sampled_from(("", "z", "\n z")))
def test_so_do_all_of_them_on_mixed_pieces(piece, tail):
    assert [name for name, check in CHECKS.items() if superlinear(partial(check, **KWARGS[name]), piece, tail)] == []
