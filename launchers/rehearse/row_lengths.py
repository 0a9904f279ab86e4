"""How long the prompts of the published data are, in tokens with the chat template, by domain."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Length:
    """Tokens of a usual prompt, and of the longest one."""

    typical: int
    longest: int


# Cascade 2 if nothing else is said. "Ours": no source states it.
LENGTHS = {
    # Ours: the 4,096 tokens that the launchers leave for a prompt.
    "instruction_following": Length(512, 4_000),
    "code": Length(768, 4_000),
    # Ours: stems of a paragraph and of a page.
    "mcqa": Length(384, 2_048),
    "math": Length(256, 1_024),
    # Rows of nemo-gym 0.4.0, data/example.jsonl of both servers, with nemotron3.jinja and Tekken (issue 13): workplace
    # 5,100 to 5,116, all of it tools; structured outputs 7,470 to 14,522.
    "workplace": Length(5_100, 5_116),
    "structured_output": Length(7_470, 14_522),
    # Ours: conversations of HelpSteer3 with a pasted document.
    "rlhf": Length(1_024, 8_192),
    # arXiv 2603.19220, Table 9: inputs of at most 32K.
    "long_context": Length(16_384, 32_768),
    # arXiv 2512.13607, section 4: prompts of less than 8K are dropped. The longest is ours: two thirds of the 98,304
    # tokens that arXiv 2603.19220 has for prompt and answer.
    "swe_agentless": Length(8_192, 65_536),
    # Ours: issues with a log.
    "swe_agentic": Length(1_024, 8_192),
}

# arXiv 2512.13607, appendix D: prompts of SWE RL grow to 24K in the 8B models and are 32K in the 14B.
OF_MODEL = {
    "qwen3_8b": {"swe_agentless": Length(8_192, 24_576)},
    "qwen3_14b": {"swe_agentless": Length(8_192, 32_768)},
}


def lengths(published: str | None) -> dict[str, Length]:
    """By domain, for the data of a base model, which `BaseModel.published` names."""
    return LENGTHS | OF_MODEL.get(published or "", {})
