"""Which prompts leave their answers enough room (rl_stages/config/room.py)."""

from collections.abc import Callable, Collection

from transformers import PreTrainedTokenizerBase

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.room import Room
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.data.tokenizer import encode_prompt


class PromptRoom:
    """Measures prompts as the stage's chat template shows them, in the longest of the modes in which they are asked.

    say      gets a message about the first prompt that is too long
    dropped  ids of the prompts that were too long, each with its number of tokens
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        room: Room,
        thinking_fraction: float | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self.tokenizer, self.room, self.say = tokenizer, room, say
        self.modes = modes_of(thinking_fraction)
        self.dropped: dict[str, int] = {}

    @property
    def metrics(self) -> dict[str, float]:
        """The number of dropped prompts, if there are any."""
        return {"overlong_prompts": len(self.dropped)} if self.dropped else {}

    def admits(self, task: Task) -> bool:
        """Whether the prompt fits. Raises UserError for one that does not if overlong prompts are errors."""
        tokens = prompt_tokens(self.tokenizer, task, self.modes)
        if tokens <= self.room.longest_prompt:
            return True
        if self.room.overlong == "error":
            raise UserError(f"{task.id}: {self.room.refusal(tokens)}, or set {self.room.owner}.overlong_prompts=drop")
        if not self.dropped:
            self.say(f"{self.room.owner}: {task.id} is left out, as all overlong prompts: {self.room.refusal(tokens)}")
        self.dropped[task.id] = tokens
        return False


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, task: Task, modes: Collection[bool | None] = (None,)) -> int:
    return max(len(encode_prompt(tokenizer, task.messages, task.tools, mode)) for mode in modes)


def modes_of(thinking_fraction: float | None) -> tuple[bool | None, ...]:
    """The values of `Task.thinking` that a stage asks for."""
    if thinking_fraction is None:
        return (None,)
    return tuple(mode for mode, share in ((True, thinking_fraction), (False, 1 - thinking_fraction)) if share > 0)
