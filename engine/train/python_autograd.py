"""torch's backward pass, walked in Python, for tensors that claim to be on a card where there is none.

torch's engine asks the CUDA driver for the context of a tensor's device. The nodes of the graph do not: they are
torch's own, and are called here in the engine's order. What the engine does between them is done here too: it adds
gradients that meet, gives them shape and dtype of what they belong to, runs hooks, and frees what a node kept.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any
from unittest import mock

import torch
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.autograd.graph import saved_tensors_hooks

Node = Any
Edge = tuple[Node, int]
"""A node, and which of its inputs; the node is None where no gradient is wanted."""

Cell = list[Tensor]
"""A tensor that a node keeps; empty when it is freed."""


class PythonAutograd:
    """`started` is called at the start of each backward pass that is not part of another. `reached` are the ids of the
    leaves that got a gradient."""

    def __init__(self, started: Callable[[], None]) -> None:
        self._started = started
        self.reached: set[int] = set()
        self._running: list[list[Cell]] = []  # cells that the nodes which run now have opened
        self._hooks: dict[tuple[int, int], list[Callable]] = defaultdict(list)  # of an input of a node
        self._leaf_hooks: dict[int, Callable] = {}  # Megatron's, by parameter

    @contextmanager
    def installed(self) -> Iterator[None]:
        """All backward passes of the block are walked here, if their forward pass is in the block too."""
        register, make = Tensor.register_hook, DistributedDataParallel._make_backward_post_hook
        materialize = FunctionCtx.set_materialize_grads

        def register_hook(tensor: Tensor, hook: Callable) -> Any:
            self._hooks[_key(tensor.grad_fn), tensor.output_nr].append(hook)
            with torch._C.DisableTorchFunction():  # a mode would be given this function, and call it again
                return register(tensor, hook)

        def make_post_hook(ddp: DistributedDataParallel, parameter: Tensor) -> Callable:
            self._leaf_hooks[id(parameter)] = hook = make(ddp, parameter)
            return hook

        def set_materialize_grads(context: Any, value: bool) -> None:
            context.gets_none = not value  # torch's own flag cannot be read
            materialize(context, value)

        with (
            saved_tensors_hooks(lambda tensor: [tensor], self._open),
            mock.patch.object(Tensor, "register_hook", register_hook),
            mock.patch.object(DistributedDataParallel, "_make_backward_post_hook", make_post_hook),
            mock.patch.object(FunctionCtx, "set_materialize_grads", set_materialize_grads),
            mock.patch.object(torch.autograd, "backward", self.backward),
        ):
            yield

    def backward(self, tensors: Tensor | Sequence[Tensor], grad_tensors: Any = None) -> None:
        """As `torch.autograd.backward`."""
        if not self._running:
            self._started()
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        given = grad_tensors if isinstance(grad_tensors, Sequence) else [grad_tensors] * len(tensors)
        edges = [(tensor.grad_fn, tensor.output_nr) for tensor in tensors]
        walk = _Walk([node for node, _ in edges])
        with torch.no_grad():
            ones = (torch.ones_like(tensor) if one is None else one for tensor, one in zip(tensors, given, strict=True))
            walk.deliver(edges, list(ones))
            while walk.ready:
                self._visit(walk, *walk.next())

    def _visit(self, walk: "_Walk", node: Node, gradients: list[Tensor | None]) -> None:
        for place in range(len(gradients)):
            for hook in self._hooks.get((_key(node), place), ()):
                if (changed := hook(gradients[place])) is not None:
                    gradients[place] = changed
        if hasattr(node, "variable"):
            self._accumulate(node.variable, gradients[0])
            return
        self._running.append([])
        made = _call(node, gradients)
        for cell in self._running.pop():
            cell.clear()
        walk.deliver(node.next_functions, made)

    def _accumulate(self, leaf: Tensor, gradient: Tensor | None) -> None:
        if gradient is None:
            return
        self.reached.add(id(leaf))
        if leaf.grad is None:
            leaf.grad = gradient
        else:
            leaf.grad += gradient
        if hook := self._leaf_hooks.get(id(leaf)):
            hook()

    def _open(self, cell: Cell) -> Tensor:
        if self._running:
            self._running[-1].append(cell)
        return cell[0]


class _Walk:
    """One backward pass: the nodes that it reaches, each ready when all gradients of its outputs have arrived."""

    def __init__(self, roots: Sequence[Node]) -> None:
        self.ready: list[tuple[int, int]] = []
        self._nodes: dict[int, Node] = {}
        self._waiting: Counter[int] = Counter(map(_key, roots))
        self._arrived: dict[int, dict[int, Tensor]] = defaultdict(dict)
        found = list(roots)
        while found:
            node = found.pop()
            if _key(node) not in self._nodes:
                self._nodes[_key(node)] = node
                further = [other for other, _ in node.next_functions if other is not None]
                self._waiting.update(map(_key, further))
                found += further

    def deliver(self, edges: Sequence[Edge], gradients: Sequence[Tensor | None]) -> None:
        """Brings each gradient to its edge."""
        for (node, place), gradient in zip(edges, gradients, strict=True):
            if node is None:
                continue
            key = _key(node)
            if gradient is not None:
                arrived, gradient = self._arrived[key], _fitted(gradient, node._input_metadata[place])
                arrived[place] = arrived[place] + gradient if place in arrived else gradient
            self._waiting[key] -= 1
            if not self._waiting[key]:
                heappush(self.ready, (-node._sequence_nr(), key))

    def next(self) -> tuple[Node, list[Tensor | None]]:
        """Of the nodes that are ready, the one that was made last, and the gradients of its outputs."""
        _, key = heappop(self.ready)
        node, arrived = self._nodes[key], self._arrived.pop(key, {})
        return node, [arrived.get(place) for place in range(len(node._input_metadata))]


def _key(node: Node) -> int:
    """Nodes are numbered as they are made, but all that sum a leaf's gradient have the same number."""
    return id(node.variable) if hasattr(node, "variable") else -node._sequence_nr()


def _fitted(gradient: Tensor, of: Any) -> Tensor:
    """The gradient with shape and dtype of the tensor that it belongs to."""
    if gradient.device != of.device:
        raise RuntimeError(f"expected a gradient on {of.device}, where its tensor is, found one on {gradient.device}")
    summed = gradient if gradient.shape == of.shape else gradient.sum_to_size(of.shape)
    return summed.to(of.dtype)


def _call(node: Node, gradients: list[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradients of the node's inputs."""
    made = _call_function(node, gradients) if isinstance(node, BackwardCFunction) else node(*gradients)
    return made if isinstance(made, tuple) else (made,)


def _call_function(node: Node, gradients: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Of a torch.autograd.Function in Python."""
    if not getattr(node, "gets_none", False):
        gradients = [
            torch.zeros(of.shape, dtype=of.dtype, device=of.device) if gradient is None else gradient
            for gradient, of in zip(gradients, node._input_metadata, strict=True)
        ]
    made = node.apply(*gradients)
    made = made if isinstance(made, tuple) else (made,)
    # of all arguments, where edges are of tensors alone
    wanted = (gradient for gradient, needed in zip(made, node.needs_input_grad, strict=False) if needed)
    return tuple(None if other is None else next(wanted) for other, _ in node.next_functions)
