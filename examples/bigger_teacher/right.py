"""Whether an answer is the expected one."""


def right(completions, answer, **columns):
    return [
        float(completion[0]["content"].strip() == wanted)
        for completion, wanted in zip(completions, answer, strict=True)
    ]
