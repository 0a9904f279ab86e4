"""Up to a half for digits, and the other half for the right number: a reward that is not all or nothing."""


def short_and_right(completions, answer, **columns):
    texts = [completion[0]["content"] for completion in completions]
    return [0.5 * digits(text) + 0.5 * (text.strip() == right) for text, right in zip(texts, answer, strict=True)]


def digits(text):
    return sum(map(str.isdigit, text)) / max(len(text), 1)
