"""Each token that an engine draws, also of samples that nobody ever gets: what a kill makes the engines draw again.

A plugin of vLLM (`record`) writes what each step has drawn, a line a sample, to a file of its process in the folder
`drawn` of the launch: the time, the sample's id, and the places of the first new token and of the one behind the last,
among all tokens of the sample. A line survives every kill of the process that wrote it.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

LAUNCH = "CASCADE_TEST_RUN"  # tests/rl_stages/launched.py: what a launch starts inherits its folder
DRAWN = "drawn"


class Draw(NamedTuple):
    time: float
    sample_id: str
    first: int
    end: int


def record() -> None:
    """Called by vLLM in the engine's process."""
    from vllm.v1.engine.llm_engine import LLMEngine

    folder = Path(os.environ[LAUNCH]) / DRAWN
    folder.mkdir(exist_ok=True)
    file = (folder / str(os.getpid())).open("ab", buffering=0)
    step, known = LLMEngine.step, dict[str, int]()

    def recorded_step(engine: Any) -> Any:
        outputs = step(engine)
        states = engine.output_processor.request_states.values()
        places = {state.external_req_id: (state.prompt_len, state.detokenizer.output_token_ids) for state in states}
        places |= {one.request_id: (len(one.prompt_token_ids), one.outputs[0].token_ids) for one in outputs}
        for name, (prompt, tokens) in places.items():
            first, end = known.get(name, prompt), prompt + len(tokens)
            if end > first and not name.startswith("score/"):
                file.write(f"{time.time():.3f} {name} {first} {end}\n".encode())
            known[name] = end
        for one in outputs:
            del known[one.request_id]
        return outputs

    LLMEngine.step = recorded_step


def install(folder: Path) -> None:
    """Makes the plugin known to every vLLM that has `folder` on its path."""
    about = folder / "drawn_tokens-0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: drawn_tokens\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\ndrawn_tokens = drawn_tokens:record\n")


def drawn(folder: Path) -> list[Draw]:
    """What all engines of the launches in `folder` have drawn, in the order of time."""
    return sorted(_draws(folder))


def _draws(folder: Path) -> Iterator[Draw]:
    for path in (folder / DRAWN).glob("*"):
        for line in path.read_text().splitlines():
            when, name, first, end = line.split(" ")
            yield Draw(float(when), name, int(first), int(end))


def lost(draws: list[Draw]) -> list[float]:
    """Of each token that was drawn again, when it had been drawn before: what came next has lost it. Samples of
    held-out prompts are left out: each evaluation draws them, under the same names."""
    known, found = dict[tuple[str, int], float](), list[float]()
    for draw in [draw for draw in draws if not draw.sample_id.startswith("heldout")]:
        for place in range(draw.first, draw.end):
            if (draw.sample_id, place) in known:
                found.append(known[draw.sample_id, place])
            known[draw.sample_id, place] = draw.time
    return found
