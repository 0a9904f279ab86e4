"""Third-party rewards as verifiers. A row's `agent_ref` names them as `kind:target`."""

from collections.abc import Callable
from dataclasses import dataclass

from cascade_rl.rl_stages.core.verdict import Verifier
from cascade_rl.rl_stages.rewards.adapters import nemo_gym, python_function, verifiers_package


@dataclass(frozen=True)
class Adapter:
    """`verifier` makes a verifier that the caller closes.

    check   raises UserError on an invalid target
    prove   also runs its code, without an answer; None where it may still have to be started
    """

    check: Callable[[str], None]
    verifier: Callable[[str], Verifier]
    prove: Callable[[str], None] | None = None


ADAPTERS = {
    "python": Adapter(python_function.check, python_function.whole, python_function.prove_function),
    "python-answer": Adapter(python_function.check, python_function.answer, python_function.prove_function),
    "nemo-gym": Adapter(nemo_gym.check, nemo_gym.NemoGymVerifier),
    "verifiers": Adapter(verifiers_package.check, verifiers_package.verifier),
}
