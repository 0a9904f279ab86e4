from cascade_rl.rl_stages.rewards.verifiers.maths.residues import residue, same_in_base, same_residue


def test_digits_in_a_base():
    assert (
        same_in_base("101_2", "101_{2}")
        and same_in_base("101_{(2)}", r"101_{\text{two}}")
        and same_in_base("101_2", "101")
    )
    assert same_in_base("101_2", "101_3") is False and same_in_base("101_2", "5") is False
    assert same_in_base("101", "101_2") is None


def test_residues():
    assert residue(r"x \equiv 5 \pmod{7}") == ("x = 5", "7")
    assert residue("5") == ("5", None)
    assert same_residue("5", "-2", "7") is True and same_residue("5", "4", "7") is False
    assert same_residue("x", "5", "7") is None and same_residue("5", "5", "0") is None
