import pytest

from cascade_rl.rl_stages.rewards.verifiers.maths.notation import one_notation


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (r"5\,\text{cm}", r"5 \text{cm}"),
        (r"32,\! 349", "32,349"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"\mathrm{cm}", r"\text{cm}"),
        (r"\frac{1}{\mathrm{e}}", r"\frac{1}{ e}"),
        (r"10\text{ m}", r"10\text{ m}"),
        (r"\left[ 1, 2 \right)", "[ 1, 2 )"),
        ("√10", r"\sqrt{10}"),
        ("**`5`**", "5"),
        ("$5$", "5"),
        (r"\$5", "$5"),
        (r"\begin{cases} x=1 \\ y=2 \end{cases}", "x=1 , y=2"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    ],
)
def test_one_notation(text, plain):
    assert one_notation(text) == plain
