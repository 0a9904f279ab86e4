r"""Whether an answer says what is expected: every value that it gives is expected, and every expected one is given.

So a hedge is wrong without being recognised, while `\frac{1}{2} = 0.5` is right where a half is expected. Numbers are
compared here, exactly. `Symbolic` compares everything else.
"""

import re
from collections.abc import Sequence
from typing import Protocol

from cascade_rl.rl_stages.rewards.verifiers.maths.forms import other_statement, unevaluated
from cascade_rl.rl_stages.rewards.verifiers.maths.inequalities import condition, same_sets
from cascade_rl.rl_stages.rewards.verifiers.maths.names import (
    approximations,
    has_variable,
    is_name,
    name_of,
    sides,
    without_domain,
)
from cascade_rl.rl_stages.rewards.verifiers.maths.notation import one_notation
from cascade_rl.rl_stages.rewards.verifiers.maths.numerals import same_decimal, with_decimal_point, without_thousands
from cascade_rl.rl_stages.rewards.verifiers.maths.parts import as_tuple, listed_elements, set_of, tuple_elements, values
from cascade_rl.rl_stages.rewards.verifiers.maths.quantities import (
    other_unit,
    read_quantity,
    same_quantity,
    same_time,
)
from cascade_rl.rl_stages.rewards.verifiers.maths.residues import residue, same_in_base, same_residue
from cascade_rl.rl_stages.rewards.verifiers.maths.words import listed_words, same_words

_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")  # `5 6` is not 56
FEWEST_PLACES = 4  # of a decimal that may be a rounded closed form


class Symbolic(Protocol):
    """equal   whether two expressions are equal
    rounds  whether `exact` is `decimal` in as many places as `decimal` has
    """

    def equal(self, expected: str, given: str) -> bool: ...

    def rounds(self, exact: str, decimal: str) -> bool: ...


def right(answer: str, expected: str, symbolic: Symbolic) -> bool:
    """Whether `answer` says what `expected` does. A comma may separate thousands, decimals or values."""
    wanted, text = _read(expected), _read(answer)
    if text == wanted or same_decimal(wanted, text):
        return True
    text, wanted = same_sets(text, wanted), same_sets(wanted, text)
    if other_statement(text, wanted):
        return False
    golds, plain = values(without_thousands(wanted)), without_thousands(text)
    if tuple_elements(wanted) and (given := set_of(text)) and len(values(given)) > 1:
        return False
    readings = (plain, text) if len(golds) > 1 else (plain, with_decimal_point(plain))
    return any(_same_values(golds, values(reading), symbolic) for reading in dict.fromkeys(readings))


def _read(text: str) -> str:
    return listed_words(condition(without_domain(one_notation(text))))


def _same_values(golds: Sequence[str], given: Sequence[str], symbolic: Symbolic) -> bool:
    if (pairs := _in_order(golds, given)) is not None:
        return len(pairs[0]) == len(pairs[1]) and all(
            _same(gold, one, symbolic) for gold, one in zip(*pairs, strict=True)
        )
    if len(golds) > 1 and all(map(name_of, golds)):
        golds = [sides(gold)[-1] for gold in golds]
    found = [[_same(gold, one, symbolic) for gold in golds] for one in given]
    return bool(found) and all(map(any, found)) and all(map(any, zip(*found, strict=True)))


def _in_order(golds: Sequence[str], given: Sequence[str]) -> tuple[Sequence[str], Sequence[str]] | None:
    """Expected and given values in one order, where order counts: of different names, or of a tuple. None elsewhere."""
    names = [name_of(gold) for gold in golds]
    if len(golds) > 1 and all(names) and len(set(names)) == len(names):
        return [sides(gold)[-1] for gold in golds], _ordered(given, names)
    if len(golds) == 1 and len(given) > 1 and (elements := listed_elements(sides(golds[0])[-1])):
        return elements, _ordered(given, sorted(filter(None, map(name_of, given))))
    if len(golds) > 1 and len(given) == 1 and not any(map(tuple_elements, golds)):
        elements = listed_elements(sides(given[0])[-1])
        return (golds, elements) if elements else None
    return None


def _ordered(given: Sequence[str], names: Sequence[str]) -> list[str]:
    """The values in the order of `names`, or as they stand if they have other names or none."""
    own = {name_of(one): sides(one)[-1] for one in given}
    if len(own) == len(given) and set(own) == set(names):
        return [own[name] for name in names]
    if len(given) == 1 and (pair := tuple_elements(sides(given[0])[-1])):
        return pair[1]
    return [sides(one)[-1] if name_of(one) else one for one in given]


def _same(gold: str, given: str, symbolic: Symbolic) -> bool:
    """Whether one value is the expected one."""
    (gold, modulus), (given, own) = residue(gold), residue(given)
    if own is not None and (own != modulus):
        return False
    first, *rest = sides(gold)
    if rest and not (is_name(first) and (len(sides(given)) == 1 or name_of(given) == name_of(gold))):
        return symbolic.equal(gold, given)
    if own is not None and (same := same_residue([first, *rest][-1], sides(given)[-1], own)) is not None:
        return same
    return _same_equation([first, *rest][-1], sides(given), symbolic)


def _same_equation(gold: str, given: Sequence[str], symbolic: Symbolic) -> bool:
    """Whether the last side is `gold`, and each other one a name, a formula, or something equal that is worked out."""
    *claims, value = given
    if claims and is_name(claims[0]):
        claims = claims[1:]
    if not has_variable(gold):
        claims = [claim for claim in claims if not has_variable(claim)]
    if value in claims:
        return False  # an equation that says nothing
    return _same_or_rounded(gold, value, symbolic) and all(_equal(gold, claim, symbolic) for claim in claims)


def _same_or_rounded(gold: str, given: str, symbolic: Symbolic) -> bool:
    r"""`_same_value`, also of one side of `\sqrt{10} \approx 3.16` if the other one is rounded to it."""
    about = [side for side in approximations(given) if not is_name(side)] or [given]
    if len(about) != 2:
        return len(about) == 1 and _same_value(gold, about[0], symbolic)
    exact, decimal = about
    if not read_quantity(decimal) or not symbolic.rounds(exact, decimal):
        return False
    return any(_same_value(gold, side, symbolic) for side in about)


def _equal(gold: str, claim: str, symbolic: Symbolic) -> bool:
    """Whether a side in the middle, which may be unevaluated, equals `gold`."""
    expected, given = read_quantity(gold), read_quantity(claim)
    return same_quantity(expected, given) if expected and given else symbolic.equal(gold, claim)


def _same_value(gold: str, given: str, symbolic: Symbolic) -> bool:
    if _SPACE.sub("", gold) == _SPACE.sub("", given):
        return True
    if "\\emptyset" in (gold.strip(), given.strip()):
        return False
    gold, given = as_tuple(gold, given), as_tuple(given, gold)
    gold, given = _in_radians(gold, given), _in_radians(given, gold)
    for compare in (same_time, same_in_base, same_words):
        if (same := compare(gold, given)) is not None:
            return same
    expected, number = read_quantity(gold), read_quantity(given)
    if expected and number:
        return same_quantity(expected, number)
    if (expected and expected.value.denominator == 1) or unevaluated(given, gold) or other_unit(gold, given):
        return False
    if expected:
        return _is_rounded(gold, given, symbolic)
    return _same_expression(gold, given, symbolic)


def _is_rounded(gold: str, given: str, symbolic: Symbolic) -> bool:
    """Whether a closed form is what a decimal was rounded from. One that equals it is an unevaluated number."""
    precise = len(gold.partition(".")[2]) >= FEWEST_PLACES
    return precise and symbolic.rounds(given, gold) and not symbolic.equal(gold, given)


def _in_radians(text: str, other: str) -> str:
    """`text` without its degree sign, if `other` is an angle in radians."""
    return text.replace("^\\circ", " \\cdot \\frac{\\pi}{180}") if "\\pi" in other and "\\circ" not in other else text


def _same_expression(gold: str, given: str, symbolic: Symbolic) -> bool:
    pair, other = tuple_elements(gold), tuple_elements(given)
    if not pair or not other:
        return symbolic.equal(gold, given)
    same_form = pair[0] == other[0] and len(pair[1]) == len(other[1])
    return same_form and all(_same_value(*both, symbolic) for both in zip(pair[1], other[1], strict=True))
