import pytest

from cascade_rl.rl_stages.rewards.verifiers.maths.inequalities import same_sets

UNION = r"(-\infty,0) \cup (1,\infty)"


@pytest.mark.parametrize(
    ("text", "intervals"),
    [
        ("x<-1 or x>1", r"(-\infty,-1) \cup (1,\infty)"),
        (r"x \leq -1 \text{ or } x \geqslant 1", r"(-\infty,-1] \cup [1,\infty)"),
        (r"-1 > t \lor 1 <= t", r"(-\infty,-1) \cup [1,\infty)"),
        (r"0 \le x < 1 \vee 2 \lt x", r"[0,1) \cup (2,\infty)"),
    ],
)
def test_inequalities_are_a_union_where_intervals_are_expected(text, intervals):
    assert same_sets(text, UNION) == intervals
    assert same_sets(text, "x > 1 or x < 0") == text


@pytest.mark.parametrize(
    "text", ["x<-1", "x<-1 or y>1", "x<-1 or 5", "x<-1, x>1", "a<b<c or a>1", "x< or x>1", "1<2 or x>1"]
)
def test_what_is_no_such_union_stays(text):
    assert same_sets(text, UNION) == text
