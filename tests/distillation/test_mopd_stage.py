"""Who teaches what, as a launcher says it: the paper's defaults, what is refused and how, what the run folder tells."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cascade_rl.distillation.teacher_model import same_model, teacher_config
from cascade_rl.distillation.teacher_vocabulary import check_vocabulary
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import family_of
from cascade_rl.launchers.local.inputs import check_inputs
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.text import from_plain, override, to_yaml
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer
from cascade_rl.rl_stages.evaluation.heldout import heldout_tasks
from cascade_rl.rl_stages.run.run_folder import RunFolder
from tests.engine.models import tiny
from tests.rl_stages.tiny_cascade import ANSWER, CASCADE, NEMOTRON_H_SMALLEST, NUCLEUS

LLAMA = json.loads(tiny.llama(architectures=["LlamaForCausalLM"]).to_json_string(use_diff=False))
UNEVEN = (1, len(family_of(NEMOTRON_H_SMALLEST).pattern(NEMOTRON_H_SMALLEST)) - 1)
ODD_TEACHERS = {
    "few_ids": {"vocab_size": 500},
    "short": {"max_position_embeddings": 64},
    "odd": LLAMA | {"vocab_size": 512, "max_position_embeddings": 512},
    "unknown": {"architectures": ["MixtralForCausalLM"]},
}
TEACHERS = {"instruction_following": "if_rl", "math": "sft"}
DATA = ("generate:instruction_following", "generate:math")


def stage(teachers: Mapping[str, str] = TEACHERS, **changes: object) -> MopdStage:
    settings = {"data": DATA, "sampling": ANSWER, "steps": 2, "token_budget": 1024} | changes
    return MopdStage(name="mopd", domain="general", teachers=teachers, **settings)  # type: ignore[arg-type]


def cascade(teachers: Mapping[str, str] = TEACHERS, **changes: object) -> Cascade:
    return replace(CASCADE, stages=(*CASCADE.stages, stage(teachers, **changes)))


def test_defaults_are_the_papers() -> None:
    plain = MopdStage(name="mopd", domain="general", data=DATA, steps=52, token_budget=1024, teachers=TEACHERS)
    assert (plain.prompts_per_step, plain.rollouts_per_prompt) == (128, 4)
    assert (plain.importance_low, plain.importance_high) == (0.5, 2.0)
    assert plain.sampling.max_new_tokens == 98_304
    assert (plain.sampling.temperature, plain.sampling.top_p) == (1.0, 1.0)
    optimizer = plain.optimizer
    assert (optimizer.lr, optimizer.warmup_init_lr, optimizer.warmup_steps) == (2e-6, 2e-7, 30)
    assert optimizer.betas == (0.9, 0.95)


def test_yaml_and_settings_keep_the_teachers() -> None:
    assert from_plain(yaml.safe_load(to_yaml(cascade()))) == cascade()
    changed = override(cascade(), ["mopd.teachers.math=math_rl"])
    assert changed == cascade(TEACHERS | {"math": "math_rl"})


@pytest.mark.parametrize(
    ("teachers", "message"),
    [
        ({"math": "math_r1"}, 'math: expected the name of an earlier stage (sft, if_rl, math_rl), best or a'),
        ({"math": "mopd"}, "found 'mopd'."),
        ({"maths": "sft"}, "mopd.teachers: expected one of evaluation.domains (instruction_following, math), found"),
        ({}, "mopd.teachers: expected at least one teacher, found {}."),
    ],
)  # fmt: skip
def test_a_wrong_teacher_is_told_when_the_tree_is_built(teachers: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as error:
        cascade(teachers)
    assert message in str(error.value)


def test_a_student_draws_from_the_whole_vocabulary() -> None:
    with pytest.raises(UserError, match=r"mopd\.sampling\.top_k: expected 0: distillation is over the whole"):
        stage(sampling=NUCLEUS)


@pytest.mark.parametrize(
    ("objective", "divergence", "known"),
    [
        ("sampled", "forward", "reverse"),
        ("topk", "jsd", "reverse or forward"),
        ("exact", "kl", "reverse or forward or jsd"),
    ],
)
def test_an_objective_has_its_divergences(objective: str, divergence: str, known: str) -> None:
    with pytest.raises(UserError) as error:
        stage(objective=objective, divergence=divergence)
    assert str(error.value) == (f"mopd.divergence: expected {known} with objective={objective}, found {divergence!r}.")
    with pytest.raises(UserError, match=r"mopd\.objective: expected sampled, topk or exact, found 'top'"):
        stage(objective="top")


def test_a_later_stage_is_no_teacher() -> None:
    with pytest.raises(UserError, match=r"mopd\.teachers\.math: expected the name of an earlier stage \(sft\)"):
        replace(CASCADE, stages=(CASCADE.stages[0], stage({"math": "math_rl"}), *CASCADE.stages[1:]))


def test_a_teacher_of_another_type_is_told() -> None:
    with pytest.raises(UserError, match=r"mopd\.teachers\.math: expected text, found 3"):
        from_plain(yaml.safe_load(to_yaml(cascade()).replace("math: sft", "math: 3")))


@pytest.mark.parametrize(
    ("teachers", "data", "message"),
    [
        (
            {"math": "sft"},
            DATA,
            "mopd.teachers: expected a teacher for each domain of its data, found none for instruc",
        ),
        (TEACHERS, DATA[1:], "mopd.data: expected tasks of instruction_following, found only math."),
        ({"math": "./gone"}, DATA[1:], "mopd.teachers.math: expected a Hugging Face folder with a config.json, found"),
        ({"math": "./few_ids"}, DATA[1:], "mopd.teachers.math: expected a teacher with all 512 ids of the student"),
        ({"math": "./short"}, DATA[1:], "expected a teacher of at least rollout.max_model_len = 128 tokens, found one"),
        ({"math": "./odd"}, DATA[1:], "that the trainer can compute in the student's layout: pipeline_layers must be"),
        ({"math": "./unknown"}, DATA[1:], "expected an architecture among NemotronHForCausalLM"),
    ],
)
def test_a_wrong_teacher_is_told_before_the_run(
    teachers: dict[str, str], data: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, changes in ODD_TEACHERS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(NEMOTRON_H_SMALLEST | changes))
    wrong = cascade(teachers, data=data)
    if "./odd" in teachers.values():
        wrong = replace(wrong, nproc=2, parallel=ParallelConfig(pipeline=2, pipeline_layers=UNEVEN))
    with pytest.raises(UserError) as error:
        check_inputs(wrong)
    assert message in str(error.value)


def test_a_teacher_of_another_tokenizer_is_told_before_the_run(tmp_path: Path) -> None:
    """Where both have files to compare. Tokens that only the one has are padding of the other, or unused."""
    for name, words in {"student": "one two", "same": "one two", "other": "three four"}.items():
        train_tokenizer([[{"role": "user", "content": words}]]).save_pretrained(tmp_path / name)
    check_vocabulary("mopd.teachers.math", tmp_path / "same", tmp_path / "student")
    check_vocabulary("mopd.teachers.math", tmp_path / "without", tmp_path / "student")
    with pytest.raises(UserError, match=r"mopd\.teachers\.math: expected the student's tokenizer, found another one"):
        check_vocabulary("mopd.teachers.math", tmp_path / "other", tmp_path / "student")


def test_a_checkpoint_of_the_students_model_is_known_however_its_keys_are_spelt(tmp_path: Path) -> None:
    same = dict(NEMOTRON_H_SMALLEST, torch_dtype="bfloat16", eos_token_id=7)
    assert same_model(NEMOTRON_H_SMALLEST, same)
    assert not same_model(NEMOTRON_H_SMALLEST, NEMOTRON_H_SMALLEST | {"hidden_size": 96})
    wide = {**LLAMA, "vocab_size": LLAMA["vocab_size"] + 64}
    assert same_model(LLAMA, teacher_config("", wide, LLAMA))
    stretched = {**LLAMA, "rope_parameters": {**LLAMA["rope_parameters"], "factor": 8.0}}
    assert not same_model(LLAMA, stretched)
    older = {key: value for key, value in LLAMA.items() if key != "rope_parameters"}
    older |= {"rope_theta": 100.0, "rope_scaling": LLAMA["rope_parameters"]}
    assert same_model(LLAMA, older)
    yarn = json.loads(tiny.deepseek_v3(architectures=["DeepseekV3ForCausalLM"]).to_json_string(use_diff=False))
    assert yarn["rope_parameters"]["rope_type"] == "yarn" and same_model(yarn, dict(yarn))
    assert not same_model(yarn, yarn | {"rope_parameters": {**yarn["rope_parameters"], "factor": 2.0}})


def test_a_teacher_is_the_export_of_its_stage_or_a_folder(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, cascade(TEACHERS | {"math": "/models/math"}))
    mopd = run.stage("mopd")
    assert run.teacher(mopd, "instruction_following") == tmp_path / "stages/02_if_rl/export"
    assert run.teacher(mopd, "math") == Path("/models/math")


def test_the_best_teacher_is_the_one_with_the_best_held_out_score(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, cascade(dict.fromkeys(TEACHERS, "best")))
    mopd = run.stage("mopd")
    for name, scores in {"sft": (0.5, 0.5), "if_rl": (0.9, 0.4), "math_rl": (0.8, 0.5)}.items():
        run.stage(name).create()
        run.stage(name).record_scores("after", dict(zip(("instruction_following", "math"), scores, strict=True)))
    assert run.dependencies(mopd) == run.stages[:3]
    assert run.teacher(mopd, "instruction_following") == run.stage("if_rl").export
    assert run.teacher(mopd, "math") == run.stage("sft").export  # the first of equals


def test_lineage_names_the_teachers(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, cascade())
    for folder in run.stages:
        folder.create()
        (folder.root / "done").touch()
    run.record()
    told = json.loads((tmp_path / "lineage.json").read_text())["stages"]
    exports = {"instruction_following": "stages/02_if_rl/export", "math": "stages/01_sft/export"}
    assert [entry["teachers"] for entry in told] == [{}, {}, {}, exports]
    assert told[-1]["parents"] == ["math_rl"]


@pytest.mark.slow
def test_held_out_prompts_are_those_of_the_rl_stages() -> None:
    """The same with the stage as without it, so that its gains can be compared with theirs."""
    for domain in TEACHERS:
        tasks = heldout_tasks(cascade(), domain)
        assert tasks == heldout_tasks(CASCADE, domain)
        assert {task.domain for task in tasks} == {domain}
