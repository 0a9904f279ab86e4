"""Reward functions as users of TRL and verl write them."""

import os
import time


def length(prompts, completions, **columns):
    print("a print is no reply")
    return [len(completion[0]["content"]) / columns["most"][0] for completion in completions]


def prompt_words(prompts, completions):
    return [float(len(prompt[-1]["content"].split())) for prompt in prompts]


async def later(completions, **columns):
    return [0.25]


def unsure(completions, **columns):
    return [None]


def fails(completions, **columns):
    raise KeyError("solution")


def hangs(completions, **columns):
    time.sleep(60)


def dies(completions, **columns):
    os._exit(3)


def infinite(completions, **columns):
    return [float("inf")]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "length": len(solution_str), "source": data_source}


def neither(answer):
    return 1.0
