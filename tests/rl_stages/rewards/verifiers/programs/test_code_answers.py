import time

import pytest

from cascade_rl.rl_stages.rewards.verifiers.programs.code_answers import program_in
from cascade_rl.rl_stages.rewards.verifiers.programs.code_rows import parse_row

TESTS = {"inputs": ["1"], "outputs": ["3"]}
STDIN, CPP, CALL = (
    parse_row({"verifier_metadata": {"unit_tests": TESTS | function, "language": language}})["problem"]
    for function, language in (({}, "python"), ({}, "cpp"), ({"fn_name": "add"}, "python"))
)
BODY = parse_row({"prompt": "def add(a, b):\n", "test": "", "entry_point": "add"})["problem"]
PROGRAM = "print(int(input()))"


def block(text, name="python", fence="```"):
    return f"{fence}{name}\n{text}\n{fence}\n"


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("Here:\n```python\nprint(1)\n```\nDone.", "print(1)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("```python\nwrong\n```\nno:\n```py\n  right\n```", "  right\n"),
        ("```\nprint(1)\n```\nit prints `x` and ```y``` too", "print(1)\n"),
        ("  ```python\n  print(1)\n  ```", "print(1)\n"),
        ("1. So:\n   ```python\n   if a:\n       b\n   ```", "if a:\n    b\n"),
        ("~~~python\nprint('```')\n~~~", "print('```')\n"),
        ("````python\nprint(1)\n~~~~\n````", "print(1)\n~~~~\n"),
        ("Code: ```python\nprint(1)\n```", "print(1)\n"),
        ("Put it in ``` please.\n```python\nprint(1)\n```", "print(1)\n"),
        ("```python\nprint(1)```", "print(1)"),
        ("```python\nprint(1)\n```\n```python\nprint(2)", "print(1)\n"),  # the last fence is not closed
        ("```python\nprint(1)", "print(1)"),
        ("```python\nprint(1)\n```python\nprint(2)\n```", "print(2)\n"),  # nor is the first
        ("````python\nprint('''\n```\n''')\n````", "print('''\n```\n''')\n"),
        ('```python\ndef f():\n    """\n    ```\n    f()\n    ```\n    """\nprint(1)\n```', None),
        ("print(1)", None),
        ("```\n\n```", None),
        ("", None),
    ],
)
def test_fences_are_read_as_a_reader_does(answer, program):
    if answer.startswith('```python\ndef f():\n    """'):
        program = answer.removeprefix("```python\n").removesuffix("```")
    assert program_in(answer, STDIN) == program


@pytest.mark.parametrize(
    "after",
    [
        block("7", ""),
        block("7", "text"),
        block("YES", "output"),
        block("x = 5", ""),
        block("python main.py < input.txt", "bash"),
        block("$ echo 3 | python main.py", ""),
        block("assert solve(3) == 4"),
        block("print(solve(3))"),
        block('{"time": "O(1)"}', "json"),
        block("#include <iostream>\nint main() { std::cin >> a; printf(a); }", "cpp"),
        block("System.out.print(new Scanner(System.in).nextInt());", "java"),
        "The whole takes O(n).\n```",
    ],
)
def test_what_stands_after_a_program_is_not_the_program(after):
    assert program_in(block("wrong") + block(PROGRAM) + after, STDIN) == PROGRAM + "\n"


@pytest.mark.parametrize(
    ("problem", "answer", "program"),
    [
        (STDIN, block(PROGRAM) + block("import sys\nprint(sys.stdin.read())"), "import sys\nprint(sys.stdin.read())\n"),
        (STDIN, block(PROGRAM) + "Shorter:\n" + block("print(input())", ""), "print(input())\n"),
        (STDIN, block("print(5)") + block("5", ""), "print(5)\n"),
        (STDIN, block("print(5)", "plaintext"), "print(5)\n"),  # better than nothing
        (STDIN, block("{.python .numberLines}\nprint(5)", "").replace("```\n{", "``` {"), "print(5)\n"),
        (
            CALL,
            block("def add(a, b): return a") + block("assert add(1, 2) == 3\nadd(3, 4)"),
            "def add(a, b): return a\n",
        ),
        (
            CALL,
            block("class Solution:\n    pass") + block("print(Solution().add(1, 2))"),
            "class Solution:\n    pass\n",
        ),
        (CALL, block("add = lambda a, b: a") + block("def test_add(): add(1, 2)"), "add = lambda a, b: a\n"),
        (CALL, block("@cache\ndef add(a, b): return a"), "@cache\ndef add(a, b): return a\n"),
        (BODY, block("    return a + b"), "    return a + b\n"),
        (BODY, block("def add(a, b): return 0") + block("print(add(1, 2))"), "def add(a, b): return 0\n"),
        (CPP, block("int main() {}", "cpp") + block("7", ""), "int main() {}\n"),
        (CPP, block(PROGRAM) + block("int main() {}", "c++") + block(PROGRAM), "int main() {}\n"),
    ],
)
def test_the_program_is_the_last_block_that_can_be_one(problem, answer, program):
    assert program_in(answer, problem) == program


@pytest.mark.parametrize(
    "piece",
    ["```\n", "````python\n", "`", "a```", " ", "```\nf ", "``` \n```x\n", "class ", "def add", "```\nx\n```\n"],
)
def test_the_search_is_linear_in_the_answer(piece):
    start = time.process_time()
    program_in(piece * (200_000 // len(piece)), CALL)
    assert time.process_time() - start < 2.0
