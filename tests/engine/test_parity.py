"""The command that says whether transformers, Megatron and vLLM are one model."""

import os
import re
import subprocess
import sys
from pathlib import Path

from cascade_rl.engine.parity import SENTENCES
from cascade_rl.rl_stages.tokenizer import train_tokenizer
from tests.engine.models import tiny


def test_a_tiny_llama_is_the_same_model_in_all_three(tmp_path: Path) -> None:
    tokenizer = train_tokenizer([[{"role": "user", "content": text}] for text in SENTENCES])
    tiny.save(tiny.llama(vocab_size=len(tokenizer), head_dim=32), tmp_path)  # vLLM has no kernel for 16
    tokenizer.save_pretrained(tmp_path)
    command = [sys.executable, "-m", "cascade_rl.launchers.cascade", "parity", str(tmp_path), "--bound", "1e-12"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=180, env=dict(os.environ))
    assert told.returncode == 1, told.stderr  # nothing agrees to 1e-12
    found = re.search(r"at most (\S+) from transformers and (\S+) from vLLM: beyond", told.stdout)
    assert found is not None
    transformers, vllm = map(float, found.groups())
    assert 0 < transformers < 1e-5
    assert 0 < vllm < 1e-4
