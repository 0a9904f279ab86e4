"""What the verifiers that run untrusted code have in common."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Self

from cascade_rl.engine.cluster.node import Node
from cascade_rl.rl_stages.rewards.verifiers.remembered import RememberedVerdicts
from cascade_rl.rl_stages.sandbox import Sandbox, cores


class SandboxedVerifier:
    """A sandbox on this node and on the nodes `others`, and the verdicts on what ran there.

    Safe to use from several threads. Raises SandboxUnavailable if no isolation works.

    others  further nodes, on all cores of which programs run; expected outputs do not leave this process
    """

    def __init__(self, slots: int | None = None, others: Sequence[Node] = ()) -> None:
        self._sandbox = Sandbox(slots or cores(), others=others)
        self.concurrency = self._sandbox.slots
        self._remembered = RememberedVerdicts()

    def on(self, node: Node) -> Self:
        """This verifier on one of its nodes, without the verdicts that it remembers. It is closed with this one."""
        part = copy(self)
        part._sandbox, part._remembered = self._sandbox.on(node), RememberedVerdicts()
        return part

    def close(self) -> None:
        """Ends the sandbox's workers."""
        self._sandbox.close()
