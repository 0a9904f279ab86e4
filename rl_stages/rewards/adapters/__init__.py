"""Other people's rewards as verifiers, named in a row's `agent_ref`: `kind:target`."""

from collections.abc import Callable
from dataclasses import dataclass

from cascade_rl.rl_stages.core.verdict import Verifier
from cascade_rl.rl_stages.rewards.adapters import nemo_gym, python_function, verifiers_package


@dataclass(frozen=True)
class Adapter:
    """`check` raises UserError on a target that it cannot reach; `verifier` makes one that the caller closes."""

    check: Callable[[str], None]
    verifier: Callable[[str], Verifier]


ADAPTERS = {
    "python": Adapter(python_function.check, python_function.verifier),
    "nemo-gym": Adapter(nemo_gym.check, nemo_gym.NemoGymVerifier),
    "verifiers": Adapter(verifiers_package.check, verifiers_package.verifier),
}
