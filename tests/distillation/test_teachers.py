"""Where teachers are between steps: in host memory if they fit, otherwise on disk, with the same bits."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cascade_rl.distillation import read_ahead
from cascade_rl.distillation import teachers as pool
from cascade_rl.distillation.read_ahead import ReadAhead
from cascade_rl.distillation.teachers import TeacherChanged, Teachers
from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.backend.ranks import is_rank0
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.train.trainer import read_logprob
from tests.engine.models import tiny
from tests.gloo import run_ranks

from .test_mopd import DOMAINS, WIDER, free, make_models, sequences, trainer

STEPS, ENOUGH = 3, 1 << 40


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_models(tmp_path_factory, other=True)


def taught(models: dict[str, Path], parallel: ParallelConfig, budgets: list[int]) -> tuple[bool, list[str], list, list]:
    """Whether teachers stayed, what was loaded, with a mark at each step, the log-probs of each step, which only rank 0
    asks for, and the student's before and after."""
    initialize_distributed(parallel, seed=1)
    policy = trainer(models["student"], parallel, 64)
    loads, load = list[str](), pool.load_hf

    def recorded(module: Any, path: Path, **more: Any) -> None:
        loads.append(path.name.rstrip("0123456789"))
        load(module, path, **more)

    pool.load_hf = recorded  # type: ignore[assignment]
    folders = {"math": models["math"], "code": models["code"]}
    teachers = Teachers(policy, folders, memory_bytes=budgets[int(os.environ["RANK"])])
    told, student, given = [], [policy.log_probs(sequences())], free(sequences()) if is_rank0() else []
    for _ in range(STEPS):
        loads.append("step")
        teachers.prefetch()
        told.append([each["logprob"] for each in teachers.read(given, DOMAINS, read_logprob)])
    student.append(policy.log_probs(sequences()))
    return teachers.stay, loads, told, student


def loads_of_steps(loads: list[str]) -> list[list[str]]:
    text = " ".join(loads)
    return [part.split() for part in text.split("step")[1:]]


@pytest.mark.parametrize("parallel", [ParallelConfig(), ParallelConfig(expert=2)], ids=["one rank", "expert 2"])
def test_teachers_that_fit_are_loaded_once_and_give_the_bits_of_a_load_from_disk(
    models: dict[str, Path], parallel: ParallelConfig
) -> None:
    ranks = max(parallel.expert, 1)
    found = zip(*(run_ranks(ranks, taught, models, parallel, [budget] * ranks) for budget in (ENOUGH, 0)), strict=True)
    for rank, (kept, read) in enumerate(found):
        assert [sorted(step) for step in loads_of_steps(kept[1])] == [["code", "math"], [], []]
        assert [len(step) for step in loads_of_steps(read[1])] == [2, 1, 1]  # the one that is there goes first
        assert (kept[0], read[0]) == (True, False)
        for step in range(STEPS):
            assert len(kept[2][step]) == (0 if rank else len(DOMAINS))
            np.testing.assert_equal(kept[2][step], read[2][0])
            np.testing.assert_equal(read[2][step], read[2][0])
        np.testing.assert_array_equal(np.concatenate(kept[3][0]), np.concatenate(kept[3][1]))


def test_all_ranks_keep_teachers_or_none_does(models: dict[str, Path]) -> None:
    found = run_ranks(2, taught, models, ParallelConfig(expert=2), [ENOUGH, 0])
    assert [stay for stay, *_ in found] == [False, False]


def changed_in_memory(models: dict[str, Path]) -> None:
    initialize_distributed(ParallelConfig(), seed=1)
    teachers = Teachers(
        trainer(models["student"], ParallelConfig(), 64),
        {"math": models["math"], "code": models["code"]},
        memory_bytes=ENOUGH,
    )
    for _ in range(2):
        teachers.read(free(sequences()), DOMAINS, read_logprob)
        for teacher in teachers.teachers:
            assert teacher.kept
            teacher.kept.tensors[0] += 1e-3


def test_a_teacher_that_changed_in_memory_is_refused(models: dict[str, Path]) -> None:
    with pytest.raises(TeacherChanged, match="or its weights in memory, changed"):
        run_ranks(1, changed_in_memory, models)


def ahead(models: dict[str, Path]) -> list[str]:
    """What is read ahead, with a mark where a teacher is loaded."""
    initialize_distributed(ParallelConfig(), seed=1)
    told = list[str]()
    teachers = Teachers(
        trainer(models["student"], ParallelConfig(), 64), {"math": models["math"], "code": models["code"]}
    )
    teachers._ahead.start = lambda path: told.append(f"ahead {path}")  # type: ignore[method-assign]
    load = pool.load_hf
    pool.load_hf = lambda module, path, **more: (told.append(f"load {path}"), load(module, path, **more))  # type: ignore[assignment]
    for _ in range(2):
        teachers.prefetch()
        teachers.read(free(sequences()), DOMAINS, read_logprob)
    return told


def test_the_next_checkpoint_is_read_ahead(models: dict[str, Path]) -> None:
    (told,) = run_ranks(1, ahead, models)
    first, second = (told[place].removeprefix("load ") for place in (1, 3))
    assert told == [
        f"ahead {first}", f"load {first}", f"ahead {second}", f"load {second}",
        f"ahead {first}", f"load {first}",  # the second is there
    ]  # fmt: skip


def test_one_rank_of_a_node_reads_ahead_and_a_missing_checkpoint_is_left_to_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[Path]()
    monkeypatch.setattr(read_ahead, "_read", read.append)
    for rank in ("1", "0"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        reader = ReadAhead()
        reader.start(tmp_path)
        if reader._thread:
            reader._thread.join()
    assert read == [tmp_path]
    monkeypatch.undo()
    (tmp_path / "gone.safetensors").symlink_to(tmp_path / "nowhere")
    read_ahead._read(tmp_path)


def scored(student: Path, teacher: Path, parallel: ParallelConfig) -> list[np.ndarray]:
    initialize_distributed(parallel, seed=1)
    teachers = Teachers(trainer(student, parallel, 64), dict.fromkeys(DOMAINS, teacher))
    return [told["logprob"] for told in teachers.read(free(sequences()), DOMAINS, read_logprob)]


@pytest.mark.long
@pytest.mark.parametrize(
    "parallel",
    [ParallelConfig(), ParallelConfig(tensor=2, sequence=True), ParallelConfig(pipeline=2), ParallelConfig(context=2)],
    ids=["one rank", "tensor 2", "pipeline 2", "context 2"],
)
def test_a_teacher_with_experts_and_states_scores_for_a_student_without(
    models: dict[str, Path], tmp_path: Path, parallel: ParallelConfig
) -> None:
    """Its log-probs are transformers' in float64."""
    tiny.save(tiny.nemotron_h(vocab_size=WIDER["vocab_size"]), tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, experts_implementation="eager").double()
    for found in run_ranks(
        parallel.tensor * parallel.pipeline * parallel.context, scored, models["math"], tmp_path, parallel
    ):
        for sequence, logprob in zip(sequences(), found, strict=True):
            ids = torch.from_numpy(sequence.token_ids)
            with torch.no_grad():
                expected = (model(ids[None, :-1]).logits[0] / sequence.temperature).log_softmax(-1)
            np.testing.assert_allclose(logprob, expected.gather(1, ids[1:, None])[:, 0].numpy(), atol=5e-5)
