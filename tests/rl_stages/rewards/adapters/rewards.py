"""Reward functions as users of TRL and verl write them."""

import asyncio
import os
import re
import time


def length(prompts, completions, **columns):
    print("a print is no reply")
    return [len(completion[0]["content"]) / columns["most"][0] for completion in completions]


def prompt_words(prompts, completions):
    return [float(len(prompt[-1]["content"].split())) for prompt in prompts]


async def later(completions, **columns):
    return [0.25] * len(completions)


def format_reward(completions, **kwargs):
    """As in huggingface/open-r1: the reasoning is part of what is scored."""
    pattern = r"^<think>.*?</think>\s*<answer>.*?</answer>$"
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(pattern, content, re.DOTALL) else 0.0 for content in contents]


def batch(completions, **columns):
    return [len(completions) + columns["most"].count(4) / 10] * len(completions)


def one_fails(completions, **columns):
    return [1.0 / len(completion[0]["content"]) for completion in completions]


def too_few(completions, **columns):
    return [1.0] if len(completions) > 1 else []


def where(completions, **columns):
    return [os.getpid() for _ in completions if not time.sleep(0.5)]


MET = asyncio.Barrier(2)


async def together(data_source, solution_str, ground_truth, extra_info=None):
    """Ends only if two answers are scored at once."""
    async with asyncio.timeout(240):
        await MET.wait()
    return 1.0


def unsure(completions, **columns):
    return [None]


def fails(completions, **columns):
    raise KeyError("solution")


def hangs(completions, **columns):
    time.sleep(600)


def dies(completions, **columns):
    os._exit(3)


def infinite(completions, **columns):
    return [float("inf")]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "length": len(solution_str), "source": data_source}


def neither(answer):
    return 1.0
