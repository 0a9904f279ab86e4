import pytest

from cascade_rl.rl_stages.rewards.verifiers.structured.schema_validator import schema_validator


@pytest.mark.parametrize(
    ("divisor", "right", "wrong"),
    [
        (0.01, [19.99, 0.07, 4.35, 1e16, 5], [19.999, 1e-3]),
        (0.1, [0.3, 1.1, -0.7], [0.30000000000000004, 0.35]),
        (1e-300, [1e300], []),
        (0.3, [0.9, 3], [1]),
        (7, [7, 7.0, 10**30 * 7], [8, 7.5, 10**30 * 7 + 1]),
    ],
)
def test_multiples_are_those_of_the_decimals_that_were_written(divisor, right, wrong):
    validator = schema_validator({"multipleOf": divisor})
    assert [value for value in right if not validator.is_valid(value)] == []
    assert [value for value in wrong if validator.is_valid(value)] == []
    assert validator.is_valid(True)


def test_formats_are_checked_at_every_depth():
    validator = schema_validator({"items": {"anyOf": [{"format": "date"}, {"const": "none"}]}})
    assert validator.is_valid(["2024-01-31", "none", 3])
    assert not validator.is_valid(["2024-01-32"])
