"""What an answer says against what is expected, by the kinds of issues that users of math-verify have met."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cascade_rl.rl_stages.rewards.verifiers.maths.comparison import right
from cascade_rl.rl_stages.rewards.verifiers.maths.names import has_variable
from cascade_rl.rl_stages.rewards.verifiers.maths.symbolic import MathVerify

# kind -> (expected, answer); the sources are issues of huggingface/Math-Verify
RIGHT = {
    "spaces and thousands": [
        ("5", r"5\,\text{cm}"), ("12", r"12\,\text{m/s}"), (r"70\sqrt{2}", r"70\,\sqrt{2}"), ("2x", r"2\,x"),
        ("3", r"\$\,3"),
        ("1234.5", "1,234.5"), ("1234.56", r"\$1,234.56"), ("12000", r"12,000\text{ dollars}"), ("32349", r"32,\! 349"),
        (r"2000\sqrt{3}", r"2,000\sqrt{3}"), ("1234567.5", "1,234,567.50"), ("12000", r"12\,000"), ("0.5", "0,5"),
        (r"\frac{1,000}{3}", r"\frac{1000}{3}"), ("1000, 2000", "1,000, 2,000"), ("100, 200", "100,200"),
    ],
    "units": [
        ("90", r"90^\circ"), ("90", "90°"), (r"90^\circ", "90"), (r"\frac{\pi}{2}", r"90^\circ"),
        (r"90^\circ", r"\frac{\pi}{2}"),
        (r"10 \text{ m}", r"1000 \text{ cm}"), (r"10 \text{ m}", "10"),
        (r"60 \text{ mph}", r"60 \text{ miles per hour}"),
        (r"2\sqrt{3} \text{ cm}", r"\sqrt{12}"), ("5000000", r"5 \text{ million}"), (r"5 \text{ million}", "5000000"),
    ],
    "names (#14, #75)": [
        ("5", r"\theta = 5"), ("5", "AB = 5"), (r"\frac{1}{3}", r"P(A) = \frac{1}{3}"), ("n^2", "S_n = n^2"),
        ("2x+1", "f(x) = 2x+1"),
        ("2x+1", "y=2x+1"), ("5", r"\begin{aligned}x&=5\end{aligned}"), ("5", r"\angle ABC = 5"), ("5", "f(2)=5"),
        ("5", "|AB| = 5"),
        ("5", r"\text{Area} = 5"), ("5", r"\overline{AB}=5"), ("5", "x+y = 5"),
        (r"\frac{2}{3}", r"P(A \mid B) = \frac{2}{3}"),
        ("(3,2)", "(p,q)=(3,2)"), ("(p,q)=(3,2)", "(3,2)"), ("5", "= 5"), ("x=5", "5"), ("5", r"\text{Answer: } 5"),
    ],
    "equations that work out a value": [
        ("391", r"17 \cdot 23 = 391"), ("5", "x = 2+3 = 5"), (r"25\pi", r"A = \pi r^2 = 25\pi"),
        (r"\frac{1}{2}", r"\frac{1}{2} = 0.5"),
        (r"\sqrt{10}", r"\sqrt{10} \approx 3.16"), ("3.16", r"\sqrt{10} \approx 3.16"), ("11", r"x \approx 11"),
    ],
    "lists (#47)": [
        ("2, 3", r"2 \text{ and } 3"), ("2,3", r"x = 2 \text{ or } x = 3"), (r"2 \text{ and } 3", "2, 3"),
        ("2,3", "3,2"),
        (r"x=2 \text{ or } x=3", "2,3"), ("-12;-11;-10", "-12,-11,-10"), ("2,3", r"\{2,3\}"), (r"\{1,2,3\}", "1,2,3"),
        ("2,3", "x_1 = 2, x_2 = 3"), ("1,2,3", "1, 2, and 3"), ("(11,7)or(7,11)", r"(7,11),\ (11,7)"),
        (r"\pm 2", r"2 \text{ and } -2"),
        (r"1 \pm \sqrt{2}", r"1+\sqrt2, 1-\sqrt2"), (r"\{1\pm\sqrt{5},-2\}", r"\{-2, 1+\sqrt5, 1-\sqrt5\}"),
        ("2, 3", "2, 3, 3.0"),
    ],
    "order": [
        ("(2,3)", "x=2, y=3"), ("(2,3)", "y=3, x=2"), ("x=2,y=3", "(2,3)"), ("x=2,y=3", "y=3, x=2"),
        ("AB=4,CD=5", "4, 5"),
        ("1,2", "(1,2)"), ("(2,3,4)", r"\langle 2,3,4 \rangle"), ("(0;0;0)", "(0,0,0)"),
        ("(5, 8), (8, 5)", r"(x, y) = (8, 5) \quad \text{and} \quad (5, 8)"),
    ],
    "typography": [
        ("5", r"\therefore x = 5"), ("5", r"\implies 5"), ("5", r"5 \quad \checkmark"), ("5", r"{\tiny 5}"),
        ("5", r"\hspace{2mm}5 \tag{1}"), ("5", "*5*"), ("5", "“5”"), ("5", r"\num{5}"), ("5", r"\qty{5}{cm}"),
        ("12.5", "12{.}5"), ("12", "12_{10}"), ("x^{10}", "x¹⁰"), ("x_1", "x₁"), (r"\sqrt[3]{2}", "∛2"),
        (r"\frac{1}{2}", r"{1 \over 2}"), (r"\frac{1}{2}", r"\nicefrac{1}{2}"), (r"\frac{a}{b}", r"\frac ab"),
        ("x^2", "x**2"), (r"\mathbb{R}", r"\R"), (r"\mathbb{R}", r"\text{all real numbers}"),
        (r"\emptyset", r"\{ \}"), (r"\emptyset", r"\text{no solution}"), ("-5", "-(5)"), ("-5", r"\text{minus } 5"),
        ("12000", "USD 12,000"), ("12000", "12,000₫"), ("3", r"\text{only } 3"),
    ],
    "units of signs": [
        ("5", r"5\,\frac{\text{m}}{\text{s}}"), ("5", r"5\,\text{m}\cdot\text{s}^{-1}"), ("5", r"5\,\Omega"),
        ("5", r"5\,\mu\text{m}"), ("5", r"5\,\text{N}\cdot\text{m}"),
    ],
    "more names": [
        ("5", r"v_{\text{max}} = 5"), ("5", "x := 5"), ("5", "5 = x"), ("5", r"\lim_{x\to0} f(x) = 5"),
    ],
    "conditions": [
        ("2x+1", r"f(x) = 2x+1, x \in \mathbb{R}"), ("2x+1", r"f(x) = 2x+1 \text{ for all real } x"),
        ("f(x)=2x", r"f(x) = 2x \text{ for every } x \in \mathbb{R}"), (r"[0,\infty)", r"\{x \mid x \ge 0\}"),
        (r"[0,\infty)", r"\{x \in \mathbb{R} : x \ge 0\}"), (r"(-\infty,0)\cup(0,\infty)", r"\mathbb{R} - \{0\}"),
    ],
    "more lists": [
        ("2,3", r"S = \{2,3\}"), ("2,3", r"2\text{, }3"), ("2,3", r"2 \& 3"), ("2,3", r"2 \\ 3"),
        ("(2,3),(3,2)", r"(x,y) \in \{(2,3),(3,2)\}"), (r"\text{A and B}", "A, B"),
        (r"\text{red, blue}", r"\text{blue and red}"),
    ],
    "one value in two forms": [
        (r"0.5\%", "0.5"), ("28", r"28\%"), ("0.28", r"28\%"), ("12.5", r"12.5\%"),
        (r"\frac{1}{2}", r"0.5 \text{ or } \frac{1}{2}"), ("0.5", r"50\%"), (r"50\%", "50"),
        ("1500", r"1.5 \times 10^3"),
    ],
    "sets": [
        (r"\mathbb{R}\setminus\{0\}", r"(-\infty,0)\cup(0,\infty)"), (r"(-\infty,5)", "x < 5"), ("x<5", r"(-\infty,5)"),
        ("[1,2]", r"1 \le x \le 2"),
        (r"x \neq 3", r"x \ne 3"), (r"\emptyset", r"\varnothing"), (r"\emptyset", "∅"),
    ],
    "typography (#76)": [
        ("5", r"\large 5"), ("12.5", r"\pounds 12.5"),
        ("5", "**5**"), ("5", "5\\"), ("5", r"\color{red}{5}"), ("5", r"\textcolor{red}{5}"), (r"\sqrt{2}", "√2"),
        ("12.5", "€12.5"), ("5", r"\mathbf{5}"),
        ("5", r"\text{5}"), ("5", "{5}"), ("5", "5."), ("5", "$5$"), ("5", r"\(5\)"), ("-5", "\u22125"),
        (r"2\pi", "2π"), ("x^2", "x²"),
        (r"\left(\frac12, 1\right)", r"\\left(\\frac12, 1\\right)"), (r"1-\frac{1}{\mathrm{e}}", r"1-\frac1e"),
        (r"\frac{1}{3}", r"0.\overline{3}"), ("5", r"5 \square"), ("-3", "\uff0d\uff13"),
        ("(1,2)", "\uff081\uff0c2\uff09"),
        (r"\{1,2,\ldots,10\}", r"\{1, 2, ..., 10\}"), (r"1+\cdots+n", r"1+\dots+n"), ("1000000", "1'000'000"),
    ],
    "repeating decimals": [
        (r"\frac{1}{3}", "0.(3)"), (r"\frac{1}{3}", "0.333..."), (r"\frac{1}{6}", r"0.1666\ldots"),
        (r"\frac{1}{7}", "0.(142857)"), (r"\frac{1}{7}", r"0.142857142857\dots"), ("1", r"0.\overline{9}"),
        (r"\frac{7}{6}", "1.1(6)"),
    ],
    "the imaginary unit": [
        (r"e^{i\pi/3}", r"\frac12+\frac{\sqrt3}{2}i"), ("2i", r"\sqrt{-4}"), ("(1+i)^2", "2i"),
        (r"\frac{1}{1+i}", r"\frac{1-i}{2}"), (r"\{i, -i\}", r"\pm i"), ("a_i", "a_{i}"),
        (r"\sum_{i=1}^n x_i", r"\sum_{i=1}^{n} x_i"),
        (r"\begin{pmatrix}i\\1\end{pmatrix}", r"\begin{bmatrix}i\\1\end{bmatrix}"),
    ],
    "points and columns": [
        (r"(1,2)", r"\begin{pmatrix}1\\2\end{pmatrix}"), (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)"),
        ("(1,-2)", "A(1,-2)"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"v = \begin{bmatrix}1\\2\end{bmatrix}"), ("1,2,3", "[1,2,3]"),
        (r"\begin{pmatrix}2\\4\end{pmatrix}", r"2\begin{pmatrix}1\\2\end{pmatrix}"),
    ],
    "bases": [
        ("1010_2", "(1010)_2"), ("1010_2", r"1010 \text{ base } 2"), ("1010_2", r"1010 \text{ (base two)}"),
        ("(1010)_2", "1010_2"),
        (r"\text{A3}_{16}", "A3_{16}"),
    ],
    "words around": [
        ("5", r"\text{The number of apples is } 5"), ("5", r"\text{it is } 5"),
        (r"\text{hyperbola}", r"\text{a hyperbola}"),
        (r"\text{The Hague}", r"\text{Hague}"),
    ],
    "chains, parameters and domains": [
        ("1<x<2", "2>x>1"), (r"1 \le x < 2", r"2 > x \geq 1"), ("[0,2]", r"0\leq x\leq 2, x\in\mathbb{R}"),
        (r"x=\frac{\pi}{4}+k\pi", r"\frac{\pi}{4}+n\pi, n\in\mathbb{Z}"),
        (r"2k\pi, k \in \mathbb{Z}", r"2\pi n \text{ where } n \in \mathbb{Z}"),
        (r"\{2k: k\in\mathbb{Z}\}", r"\{2k \mid k\in\mathbb{Z}\}"),
    ],
    "closed forms": [
        (r"2\sqrt{3}", r"\sqrt{12}"), (r"\ln 6", r"\ln 2 + \ln 3"), ("e^2", "e^{2}"), (r"\log 2", r"\log 2"),
        ("7!", "7!"), ("7!", "5040"), (r"\binom{5}{2}", "10"),
        (r"\sqrt{2}", r"2^{\frac12}"), ("x^2-1", "(x-1)(x+1)"), (r"\tan^2(y)+1", r"\sec^2(y)"),
        ("4.123105625617661", r"\sqrt{17}"), ("2x+3y=6", "3y+2x=6"),
        ("y=2x+1", "2x-y+1=0"),
    ],
    "words, bases, residues, times": [
        (r"\text{Monday}", "monday"), ("B", r"\text{(B)}"), (r"101_2", r"101_{\text{two}}"), ("101_2", "101"),
        (r"5 \pmod 7", r"x \equiv 5 \pmod{7}"),
        (r"5 \pmod 7", r"-2 \pmod 7"), (r"3:00 \text{ p.m.}", "15:00"), ("3:4", r"\frac{3}{4}"),
    ],
    "numbers in words": [
        ("12", r"\text{twelve}"), (r"\text{Twelve}", "12"), ("21", "twenty-one"), ("5000000", "five million"),
        ("12", r"x = \text{twelve}"), ("3", "three apples"), ("2, 3", "two and three"),
    ],
    "lists that quads space": [
        ("2, 3", r"2 \quad 3"), ("2, 3", r"2 \qquad 3"), ("x=2, y=3", r"x=2 \quad y=3"), (r"2\quad 3", "3, 2"),
        ("2, 3", r"2,\quad 3"), ("5", r"5 \quad \text{cm}"), (r"\sqrt{2}, \pi", r"\sqrt{2} \quad \pi"),
    ],
    "inequalities and intervals": [
        (r"(-\infty,-1)\cup(1,\infty)", "x<-1 or x>1"), (r"x<-1 \text{ or } x>1", r"(-\infty,-1)\cup(1,\infty)"),
        (r"(-\infty,-\sqrt{2}]\cup[3,\infty)", r"3 \le x \lor x \leqslant -\sqrt{2}"),
        (r"[0,1)\cup(2,\infty)", r"0 \le x < 1 \text{ or } x > 2"), ("x<-1 or x>1", "x>1 or x<-1"),
    ],
    "decimal commas": [
        ("1234.5", "1.234,5"), ("1234567.5", "1.234.567,5"), ("1,22", "1.22"), ("0,111", "0.111"),
        ("-0,5", r"-\frac{1}{2}"), ("1,22", "22, 1"), ("1,234", "1234"),
    ],
}  # fmt: skip
WRONG = {
    "exact constants (#14)": [
        ("2^{140}-1", "2^{140}"), ("50!-1", "50!"), (r"2023 \cdot 2^{2024}+1", r"2023 \cdot 2^{2024}"),
        ("1-2^{-200}", "1"), ("10^{-18}", "-10^{-18}"),
        (r"6.6 \times 10^{-34}", r"6.6 \times 10^{-35}"),
        (r"\frac{2^{100}+1}{3 \cdot 2^{101}}", r"\frac{1}{3 \cdot 2^{101}}"), (r"\pi", "3.14159265358979"),
        (r"\frac{1}{3}", "0.3333333333"), ("0.5", "0.4999999"), (r"2^{200}\pi", r"2^{200}\pi+1"),
        ("(10^{-18},1)", "(-10^{-18},1)"), ("3.14", r"\sqrt{9}"),
    ],
    "the question's expression": [
        ("391", r"17 \cdot 23"), ("391", "17*23"), ("7", "3+4"), ("120", "5!"), ("10", r"\binom{5}{2}"),
        ("55", r"\sum_{k=1}^{10} k"), ("12", r"\sqrt{144}"),
        ("1024", "2^{10}"), ("6", r"\gcd(12,18)"), ("3", r"\lfloor 3.7 \rfloor"), ("3", "|-3|"),
        ("0", r"\lim_{x\to\infty} \frac1x"), ("1", r"\sin 90^\circ"),
        (r"\frac{1}{3}", r"\int_0^1 x^2 dx"), ("-2", r"\det \begin{pmatrix}1&2\\3&4\end{pmatrix}"), ("3", r"\log_2 8"),
        ("5", r"\max(3,5)"), ("1", r"7 \bmod 3"),
        (r"\frac{\pi}{4}", r"\int_0^1 \frac{1}{1+x^2}dx"), (r"\frac{\pi}{4}", r"\arctan 1"),
        (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^n k"), (r"\frac12", "2^{-1}"),
        ("0.5", r"\sin 30^\circ"), ("0.5", "1-0.5"), ("0.1234", "1-0.8766"), ("(2,3)", "(1+1,3)"), ("2,3", "1+1,3"),
        ("2x", r"\frac{d}{dx} x^2"), ("1", r"\sin^2 x + \cos^2 x"),
    ],
    "signs and words around the number": [
        ("5", r"\neq 5"), ("5", r"x \neq 5"), ("5", "< 5"), ("5", r"\leq 5"), ("5", "≥ 5"), ("5", r"\text{at most } 5"),
        ("5", r"\text{not } 5"), ("5", r"5 \text{ million}"),
        ("0.5", r"0.5\%"), (r"\frac12", r"\frac12\%"), ("5", "-(-5)"), ("5", r"5 \times 10^6"), ("5", "5_8"),
        ("101_2", "101_3"), ("101_2", "5"), ("5", r"5 \pmod 7"),
        (r"5 \pmod 7", r"5 \pmod 8"), ("5", r"500\%"), ("5", r"\pm 5"),
        ("5", "-5"), ("5", "5!"), ("5", "5x"), ("5", r"5\pi"), ("5", "5^2"), ("5", r"5 \text{ squared}"),
        ("5", r"\text{minus } 5"), ("5", r"5 \text{ out of } 6"),
        (r"9:30 \text{ a.m.}", r"9:30 \text{ p.m.}"), ("12:00", "1:00"), (r"10 \text{ m}", r"10 \text{ cm}"),
        (r"2\sqrt{3} \text{ m}", r"2\sqrt{3} \text{ cm}"), ("0.4", "12:30"),
        (r"5 \text{ million}", "5"), (r"2\sqrt{3}", r"2\sqrt{3} \text{ million}"),
    ],
    "hedges": [
        ("42", "41, 42"), ("42", r"42 \text{ or not}"), ("42", r"\{41,42\}"), ("42", "x=41, x=42"),
        ("42", r"x=41 \text{ or } 42"), ("42", r"\text{either } 41 \text{ or } 42"),
        ("42", "41; 42"), ("42", r"41 \quad 42"), ("42", "41 | 42"), ("42", r"41 \lor 42"), ("42", r"41 \approx 42"),
        ("42", r"42 \approx 43"), ("42", "[41,42]"), ("42", "(41,42)"),
        ("42", r"41 \le x \le 42"), ("42", r"x \in \{41,42\}"), ("42", r"\begin{aligned} 41\\42 \end{aligned}"),
        ("42", "41=42"), ("42", r"41 \text{ and } 42"), ("2,3", "2,3,4"),
        ("2,3", "2"), (r"\pm 2", "-2, 2, 3"), ("2.5", "2, 5"), ("B", "A, B"), ("x^2", "x^2, x^3"),
        ("42", r"\text{maybe } 42"), ("42", "42?"), ("x^2", "x^2=x^2"),
    ],
    "order": [
        ("1,2", "(2,1)"), ("(1,2)", "2,1"), ("x=2,y=3", "x=3,y=2"), ("x=2,y=3", "(3,2)"), ("(3,1)", r"\{1,3\}"),
        (r"\{0,1\}", "[0,1]"), ("0, 1", "[0,1]"), ("[0,1]", "0, 1"), ("(1,-2)", "[1,-2]"), ("[5,2]", "(9,3)"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", "(2,1)"), (r"\begin{pmatrix}1&2\end{pmatrix}", "(1,2)"),
        ("C(5,2)", "P(5,2)"),
        ("[1,2)", "(1,2]"), ("(1,2)", r"\{1,2\}"), ("[2,3]", r"x \in \{2,3\}"),
    ],
    "what typography must not hide": [
        ("5", r"5 \Rightarrow 6"), ("5", r"5 \text{ for all } x > 0"), ("x", r"f(x) = x, x \in \mathbb{Z}"),
        ("5", r"\{x \mid x > 5\}"), (r"5^\circ C", r"5^\circ F"), (r"\emptyset", r"\{\emptyset\}"),
        ("(1,234)", "1234"), (r"\text{A}", r"\text{A or B}"), ("5", r"\text{negative } 5"), ("5", "5 m = 6"),
        ("12", "12_{9}"), ("5", "6 = x"),
    ],
    "other": [
        (r"\text{no}", r"\text{on}"), (r"\text{Monday}", r"\text{Tuesday}"), ("x<5", "x>5"),
        (r"(-\infty,5)", r"x \le 5"), (r"1 - \frac{1}{\mathrm{e}}", r"1 + \frac{1}{\mathrm{e}}"),
        ("56", "5 6"), ("5", r"5 \text{ tens}"),
        ("1000", "10,00"), ("1000", "1.000"), ("32349", "32, 349"), ("1", r"\frac{1}{0}"), ("7 = 11a+c", "11a+c"),
        ("1", "-[0,1)"), (r"\infty", r"-\infty"), ("5", r"\text{five or six}"),
    ],
    "numbers in words": [
        ("12", "thirteen"), ("6", "sixty"), ("7", "seventh"), ("1", "one fourth"), ("1", "one-half"),
        ("4", "four fifths"),
        ("5", "five six"), ("11", "five six"), ("12", "not twelve"), ("12", "twelve squared"), ("2", "two or three"),
        ("22", "twenty twenty"), ("1", "one of them"), ("1", "oneself"), ("1", "1 fourth"),
    ],
    "lists that quads space": [("23", r"2 \quad 3"), ("2", r"2 \quad 3"), ("2, 3", r"2 \quad 4")],
    "inequalities and intervals": [
        (r"(-\infty,-1)\cup(1,\infty)", r"x \le -1 \text{ or } x>1"), (r"(-\infty,-1)\cup(1,\infty)", "x<-1 or x>2"),
        (r"(-\infty,-1)\cup(1,\infty)", "x<-1"), (r"(-\infty,-1)\cup(1,\infty)", "x<-1 or y>1"),
        (r"(-\infty,-1)\cup(1,\infty)", "x<-1 and x>1"), (r"(-\infty,-1)\cup(1,\infty)", "x>-1 or x<1"),
    ],
    "dots, bases, radians": [
        ("5", "5..."), ("5", "...,5,..."), ("0.33", "0.33..."), (r"\frac13", "0.33..."), ("0.3", "0.(3)"),
        (r"\frac19", "0.(3)"),
        (r"1, 2, \ldots, n", r"1, 3, 5, \ldots, 2n-1"), ("42", r"4\,2"), ("1010_2", "(1010)_3"), ("10", "(1010)_2"),
        (r"30^\circ", r"30\text{ rad}"), ("2i", "2"), ("1+i", "1-i"), ("-1", "i^2"),
        (r"k\pi, k \in \mathbb{Z}", r"2n\pi, n \in \mathbb{Z}"), (r"k\pi, k \in \mathbb{Z}", r"n\pi, n \in \mathbb{N}"),
    ],
    "nothing": [
        (r"\emptyset", "5<6"), (r"\emptyset", "6<5"), (r"\emptyset", "(3,2)"), ("(3,2)", r"\emptyset"),
        ("[5,2]", r"\emptyset"),
    ],
    "words around": [
        ("5", r"\text{half of it is } 5"), ("5", r"\text{not it is } 5"), ("5", r"\text{twelve minus it is } 5"),
        (r"\text{hyperbola}", r"\text{no hyperbola}"),
    ],
    "decimal commas": [("1234.5", "1.234,6"), ("1234", "1.234,5"), ("0,111", "111"), ("1,22", "1.23"),
        ("1, 2", "1.2"), ("1,234", "1.234"), ("1,22", "122")],
}  # fmt: skip


def says(answer: str, expected: str) -> bool:
    return right(answer, expected, MathVerify())


@pytest.mark.parametrize("kind", RIGHT)
def test_right_answers(kind):
    assert not [(expected, answer) for expected, answer in RIGHT[kind] if not says(answer, expected)]


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_answers(kind):
    assert not [(expected, answer) for expected, answer in WRONG[kind] if says(answer, expected)]


@pytest.mark.parametrize("kind", RIGHT)
def test_everything_says_itself(kind):
    assert all(says(text, text) for pair in RIGHT[kind] for text in pair)


NUMBERS = st.integers(-(10**50), 10**50)
VALUES = st.sampled_from(
    ["5", "-5", "0.5", r"\frac{1}{2}", r"\sqrt{2}", r"2\pi", "x", "x^2+1", "n", r"\frac{x}{2}", "7", "1,000"]
)
HEDGE = st.sampled_from(
    [
        "{}, {}",
        r"{} \text{{ or }} {}",
        "{} or {}",
        "{}; {}",
        r"\{{{}, {}\}}",
        "{} = {}",
        r"{} \text{{ and }} {}",
        "x={}, x={}",
    ]
)


@given(NUMBERS)
def test_the_next_number_is_wrong(number):
    assert says(f"{number:,}", str(number))
    assert not says(str(number + 1), str(number)) and not says(str(-number - 1), str(number))


@settings(max_examples=60, deadline=None)
@given(VALUES, VALUES, HEDGE)
def test_a_hedge_of_two_different_values_is_wrong(one, other, hedge):
    assume(not says(one, other) and not ("=" in hedge and has_variable(f"{one} {other}")))  # `x = 5` names a value
    assert not says(hedge.format(one, other), one)
    assert not says(hedge.format(one, other), other)


@given(st.integers(2, 10**9), st.integers(2, 10**9), st.sampled_from([r"\cdot", r"\times", "*", "+", "-", "^"]))
def test_an_expression_is_no_value(one, other, operator):
    assume((one, operator) != (10, "^"))  # a power of ten is a numeral
    value = {"+": one + other, "-": one - other}.get(operator, one * other if operator != "^" else one**2)
    expression = f"{one}^2" if operator == "^" else f"{one} {operator} {other}"
    assert not says(expression, str(value))
    assert says(f"x = {value}", str(value))
