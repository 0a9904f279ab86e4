"""Bad input, as a person gives it: one clear message, exit code 2, at once, and nothing is written, let alone over."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import check_layout
from tests.until import LIMIT_S

LAUNCHER = Path(__file__).parents[1] / "fake_launcher.py"
NEMO_RUN = Path(sys.executable).with_name("nemo-run")

GOOD = {
    "responses_create_params": {"input": [{"role": "user", "content": "What is 3 + 4?"}]},
    "agent_ref": {"name": "math"},
    "expected_answer": "7",
}
OFFICE = {
    "responses_create_params": {"input": [{"role": "user", "content": "Delete the newest email."}]},
    "agent_ref": {"name": "workplace_assistant_simple_agent"},
    "ground_truth": [{"name": "email_delete_email", "arguments": '{"email_id": "00000001"}'}],
}
FOREIGN = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 512, "n_embd": 64}
JUDGED = [f"math_rl.reward_model.{setting}" for setting in ("kind=server", "model=judge", "url=http://127.0.0.1:9")]
SCORED = ["math_rl.reward_model.kind=bradley_terry", "math_rl.reward_model.model=gone/model"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the launcher is called: data files good and bad, a checkpoint of another kind, an earlier run."""
    no_answer = GOOD | {"expected_answer": None}
    (tmp_path / "math.jsonl").write_text(f"{json.dumps(GOOD)}\n\n{json.dumps(no_answer)}\n")
    called = GOOD | {"agent_ref": {"name": "python:json:dumps"}}
    (tmp_path / "called.jsonl").write_text(f"{json.dumps(GOOD)}\n{json.dumps(called)}\n")
    (tmp_path / "torn.jsonl").write_text(json.dumps(GOOD)[:40] + "\n")
    (tmp_path / "office.jsonl").write_text(json.dumps(OFFICE) + "\n")
    (tmp_path / "sft.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "Hello."}]}) + "\n")
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2/config.json").write_text(json.dumps(FOREIGN))
    (tmp_path / "runs/fake").mkdir(parents=True)
    (tmp_path / "runs/fake/cascade.yaml").write_text("name: fake\n")
    return tmp_path


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["math_rl.stepz=3"], "Unknown key 'math_rl.stepz'. Did you mean 'math_rl.steps'?"),
        (["math_rl.data=gone.jsonl"], "math_rl.data: no such file: gone.jsonl"),
        (["math_rl.heldout=gone.jsonl"], "math_rl.heldout: no such file: gone.jsonl"),
        (["math_rl.heldout=math.jsonl"], "math.jsonl:3: expected 'expected_answer' to be non-empty text"),
        (["math_rl.heldout=generate:instruction_following"], "math_rl.heldout: expected tasks of math, found only"),
        (["sft.heldout=sft.jsonl"], "sft.jsonl:1: messages: expected the last message to be the assistant's"),
        (["math_rl.data=generate:maths"], "found 'maths'; did you mean 'math'?"),
        (["math_rl.data=math.jsonl"], "math.jsonl:3: expected 'expected_answer' to be non-empty text"),
        (["math_rl.data=called.jsonl"], "called.jsonl:2: expected 'agent_ref' to name a domain, or somebody else's"),
        (["math_rl.data=torn.jsonl"], "torn.jsonl:1: expected one JSON object a line; found text that is not JSON"),
        (["math_rl.data=office.jsonl"], "office.jsonl:1: expected NVIDIA's workplace tables"),
        (["sft.data=sft.jsonl"], "sft.jsonl:1: messages: expected the last message to be the assistant's"),
        (["sft.data=generate:math@2"], "expected generate:math@<fraction that is right, in [0, 1]>; found '2'"),
        (["evaluation.domains=math,chess"], "found 'chess'"),
        (["base.hf_config=null", "base.hf=gpt2"], "ForCausalLM; config.json has GPT2LMHeadModel"),
        (
            ["base.chat_template=nemotron4"],
            "expected one of nemotron3, cascade2, cascade1 or the path of a .jinja file",
        ),
        (["nproc=3", "parallel.tensor=3"], "tensor parallel size must divide the 4 query heads of "),
        (["parallel.expert=2"], "expert parallel size must be 1 in a model without experts; found 2"),
        (["nproc=3", "parallel.pipeline=2"], "nproc: expected a multiple of 2"),
        (["math_rl.data=generate:instruction_following"], "math_rl.data: expected tasks of math, found only instruc"),
        (
            SCORED,
            "math_rl.reward_model.model: expected a Hugging Face folder with a config.json, found none in 'gone/m",
        ),
        (JUDGED, "math_rl.reward_model: expected none: 'math' is not scored by a judge"),
    ],
)
def test_bad_input_is_told_before_anything_is_written(folder: Path, settings: list[str], message: str) -> None:
    before = contents(folder)
    told = subprocess.run([NEMO_RUN, LAUNCHER, *settings], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    assert told.returncode == 2
    assert told.stdout == ""
    assert told.stderr.startswith("nemo-run: ") and message in told.stderr
    assert told.stderr.count("\n") == 1
    assert contents(folder) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_experts_under_tensor_parallelism_need_sequence_parallelism() -> None:
    from tests.rl_stages.tiny_cascade import NEMOTRON_H_SMALLEST as hf

    check_layout(hf, ParallelConfig(tensor=2, sequence=True))
    with pytest.raises(UserError, match="need sequence parallelism; found tensor = 2"):
        check_layout(hf, ParallelConfig(tensor=2))
