"""One call of the Python tool. `python -c` runs this text in a box, which cannot see our package.

stdin is the code. It runs in the module `__main__` of the calls before, which is kept in a file, and then kept again.
As in a notebook, the value of a last expression is shown. What cannot be kept, such as a generator, is named. The exit
code says that it came to its end.
"""

import ast
import linecache
import os
import sys
import traceback
import types
from io import BytesIO

STATE = ".interpreter"
ENDED = 87  # an exit code that code under test rarely has
HERE = "<call>"


def main() -> None:
    code = sys.stdin.read()
    cells = types.ModuleType("__main__")
    sys.modules["__main__"] = cells
    import dill  # reads which module is the main one

    if os.path.exists(STATE):
        dill.load_module(STATE, module=cells)
    _run(code, cells.__dict__)
    sys.stdout.flush()
    if lost := _keep(dill, cells):
        print(f"[not kept for later calls: {', '.join(lost)}]")
    sys.exit(ENDED)


def _run(code: str, names: dict[str, object]) -> None:
    linecache.cache[HERE] = (len(code), None, code.splitlines(keepends=True), HERE)
    try:
        tree = ast.parse(code, HERE)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, HERE, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), HERE, "eval"), names)
            if value is not None:
                print(repr(value))
    except BaseException as error:  # also SystemExit: the interpreter goes on
        trace = error.__traceback__ and error.__traceback__.tb_next
        print("".join(traceback.format_exception(type(error), error, trace)).rstrip())


def _keep(dill: types.ModuleType, cells: types.ModuleType) -> list[str]:
    """The names that could not be kept."""
    lost = []
    state = _pickled(dill, cells)
    if state is None:
        lost = [name for name, value in cells.__dict__.items() if not _can_be_kept(dill, value)]
        for name in lost:
            del cells.__dict__[name]
        state = _pickled(dill, cells)
    if state is None:
        return ["all that this call changed"]
    with open(f"{STATE}.new", "wb") as file:
        file.write(state)
    os.replace(f"{STATE}.new", STATE)
    return lost


def _pickled(dill: types.ModuleType, cells: types.ModuleType) -> bytes | None:
    file = BytesIO()
    try:
        dill.dump_module(file, module=cells)
    except Exception:  # an object's own code may raise anything
        return None
    return file.getvalue()


def _can_be_kept(dill: types.ModuleType, value: object) -> bool:
    try:
        dill.dumps(value)
    except Exception:
        return False
    return True


if __name__ == "__main__":
    main()
