"""What a model is shown of a tool's output."""

MAX_OUTPUT = 10_000  # characters: half from its start, half from its end


def cut(output: str) -> str:
    if len(output) <= MAX_OUTPUT:
        return output
    half = MAX_OUTPUT // 2
    return f"{output[:half]}\n[{len(output) - 2 * half} characters left out]\n{output[-half:]}"
