"""Arguments and results of functions under test as JSON. This module runs in the process of the program."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class ListNode:
    """LeetCode's linked list."""

    def __init__(self, val: Any = 0, next: ListNode | None = None) -> None:
        self.val, self.next = val, next


class TreeNode:
    """LeetCode's binary tree."""

    def __init__(self, val: Any = 0, left: TreeNode | None = None, right: TreeNode | None = None) -> None:
        self.val, self.left, self.right = val, left, right


def argument(value: Any, annotation: object) -> Any:
    """`value` as the type that a parameter with this annotation expects."""
    build = next((build for name, build in _nodes().items() if name in str(annotation)), None)
    if build is None or not isinstance(value, list):
        return value
    return [build(item) for item in value] if "list[" in str(annotation).lower() else build(value)


def result(value: Any, annotation: object) -> Any:
    """`plain(value)` of a function with this annotation: LeetCode writes a list or tree without a node as []."""
    if not any(name in str(annotation) for name in _nodes()):
        return plain(value)
    if isinstance(value, list):
        return [result(item, annotation) for item in value]
    return [] if value is None else plain(value)


def plain(value: Any) -> Any:
    """`value` in the types of JSON. A fraction or decimal is a number. Raises TypeError if it has no such form."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return _sorted_where_possible([plain(item) for item in value])
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if hasattr(value, "val") and hasattr(value, "next"):
        return [plain(item) for item in _chain(value)]
    if hasattr(value, "val") and hasattr(value, "left"):
        return _levels(value)
    if isinstance(value, list | tuple | deque | range) or hasattr(value, "__next__") or hasattr(value, "mapping"):
        return [plain(item) for item in value]
    if hasattr(value, "as_integer_ratio"):
        return rational(value)
    raise TypeError(f"a result of type {type(value).__name__} has no form in JSON")


def rational(value: Any) -> float:
    """A number with an exact ratio: an integer if it is one, else the nearest float."""
    above, below = value.as_integer_ratio()
    return above if below == 1 else above / below


def linked_list(values: list[Any]) -> ListNode | None:
    head = None
    for value in reversed(values):
        head = ListNode(value, head)
    return head


def tree(values: list[Any]) -> TreeNode | None:
    """A binary tree from its values level by level, with None for a missing child."""
    if not values or values[0] is None:
        return None
    root = TreeNode(values[0])
    rest, parents = iter(values[1:]), deque([root])
    while parents:
        parent = parents.popleft()
        for side in ("left", "right"):
            value = next(rest, None)
            if value is not None:
                child = TreeNode(value)
                setattr(parent, side, child)
                parents.append(child)
    return root


def _nodes() -> dict[str, Callable[[list[Any]], Any]]:
    return {"ListNode": linked_list, "TreeNode": tree}


def _key(key: Any) -> Any:
    return key if key is None or isinstance(key, str | bool | int | float) else str(key)


def _sorted_where_possible(values: list[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return values


def _chain(node: Any) -> list[Any]:
    values = []
    while node is not None:
        values.append(node.val)
        node = node.next
    return values


def _levels(root: Any) -> list[Any]:
    values: list[Any] = []
    nodes = deque([root])
    while nodes:
        node = nodes.popleft()
        values.append(None if node is None else plain(node.val))
        nodes.extend(() if node is None else (node.left, node.right))
    while values and values[-1] is None:
        values.pop()
    return values
