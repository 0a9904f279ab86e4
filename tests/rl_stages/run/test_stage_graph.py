"""The stage graph: what depends on what, and what changes a hash."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.config.text import from_plain, override, to_yaml
from cascade_rl.rl_stages.run.stage_graph import content_hashes, dependencies, selection
from tests.rl_stages.run.test_run_folder import CASCADE

SFT, RL = CASCADE.stages
SIDE = replace(RL, name="side", parent="sft", steps=2)
MOPD = MopdStage(
    name="mopd", domain="math", data=RL.data, steps=2, token_budget=512, sampling=RL.sampling, teachers={"math": "side"}
)
GRAPH = replace(CASCADE, stages=(SFT, RL, SIDE, replace(MOPD, parent="rl")))


def names(stages: tuple[Stage, ...]) -> list[str]:
    return [stage.name for stage in stages]


def changed(cascade: Cascade, graph: Cascade = GRAPH) -> set[str]:
    """The stages whose hash is not that of `graph`."""
    before, after = content_hashes(graph), content_hashes(cascade)
    return {name for name in after if after[name] != before.get(name)}


def test_a_stage_depends_on_its_parent_and_its_teachers() -> None:
    told = {stage.name: names(dependencies(GRAPH, stage)) for stage in GRAPH.stages}
    assert told == {"sft": [], "rl": ["sft"], "side": ["sft"], "mopd": ["rl", "side"]}
    best = replace(GRAPH, stages=(*GRAPH.stages[:3], replace(MOPD, teachers={"math": "best"}, parent="rl")))
    assert names(dependencies(best, best.stages[3])) == ["sft", "rl", "side"]


def test_without_a_parent_a_stage_goes_on_from_the_one_before() -> None:
    assert GRAPH.parent(SFT) is None
    assert GRAPH.parent(RL) == SFT
    assert replace(CASCADE, stages=(SFT, replace(RL, parent="base"))).parent(replace(RL, parent="base")) is None


def test_a_change_reaches_what_depends_on_it_and_nothing_else() -> None:
    assert changed(override(GRAPH, ["sft.steps=9"])) == {"sft", "rl", "side", "mopd"}
    assert changed(override(GRAPH, ["rl.optimizer.lr=1"])) == {"rl", "mopd"}
    assert changed(override(GRAPH, ["side.steps=9"])) == {"side", "mopd"}
    assert changed(override(GRAPH, ["mopd.steps=9"])) == {"mopd"}
    assert changed(override(GRAPH, ["seed=9"])) == {"sft", "rl", "side", "mopd"}
    assert changed(override(GRAPH, ["name=x", "nproc=4", "rl.checkpoint_every=3", "rollout.max_num_seqs=3"])) == set()
    assert changed(override(GRAPH, ["rollout.dtype=bfloat16"])) == {"sft", "rl", "side", "mopd"}
    assert changed(override(GRAPH, ["rollout.placement=disaggregated"])) == set()
    ahead = ["rollout.placement=disaggregated", "rollout.max_staleness=1"]
    assert changed(override(GRAPH, ahead)) == {"rl", "side", "mopd"}  # SFT learns from no samples
    kept = [ahead[0], "rollout.max_staleness=2", "rollout.cache_at_refit=kept"]
    assert changed(override(GRAPH, kept)) == {"rl", "side", "mopd"}
    in_flight = [ahead[0], "rollout.max_staleness=3"]
    graph = override(GRAPH, in_flight)
    assert changed(override(graph, ["rollout.batch_order=ending"]), graph) == {"rl", "side", "mopd"}
    buffered = override(GRAPH, [*kept, "rollout.weight_buffer=true"])
    assert content_hashes(buffered) == content_hashes(override(GRAPH, kept))
    passed = ["parallel.recompute=full", "parallel.megatron.overlap_grad_reduce=true", "rollout.vllm.block_size=32"]
    assert changed(override(GRAPH, passed)) == set()
    assert changed(override(GRAPH, ["rl.parallel.precision=bfloat16"])) == {"rl", "mopd"}
    assert changed(override(GRAPH, ["nproc=2", "parallel.tensor=2"])) == set()


def test_the_bytes_of_the_data_are_part_of_the_hash(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("{}")
    on_file = replace(GRAPH, stages=(SFT, replace(RL, data=(f"{data}*0.5",))))
    before = content_hashes(on_file)
    data.write_text("{ }")
    assert [name for name, digest in content_hashes(on_file).items() if digest != before[name]] == ["rl"]


def test_the_name_or_the_bytes_of_the_chat_template_are_part_of_the_hash(tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"

    def hashes(template: str, content: str = "") -> str:
        own.write_text(content)
        return content_hashes(override(CASCADE, [f"base.chat_template={template}"]))["sft"]

    found = [
        content_hashes(CASCADE)["sft"],
        hashes("cascade1"),
        hashes("cascade2"),
        hashes(str(own)),
        hashes(str(own), "x"),
    ]
    assert len(set(found)) == 5
    assert hashes("cascade1") == found[1] and hashes(str(own)) == found[3]


def test_a_parent_must_come_before() -> None:
    with pytest.raises(UserError, match=r"rl\.parent: expected an earlier stage or base \(base, sft\), found 'mopd'"):
        replace(CASCADE, stages=(SFT, replace(RL, parent="mopd")))
    with pytest.raises(UserError, match="names that are not keys"):
        replace(CASCADE, stages=(replace(SFT, name="best"),))


def test_a_stage_may_have_a_layout_of_its_own() -> None:
    wide = replace(RL, nproc=4, rollout=RolloutConfig(max_model_len=128, engines=2))
    cascade = replace(CASCADE, stages=(SFT, wide))
    assert (cascade.layout(SFT).nproc, cascade.layout(wide).nproc) == (1, 4)
    assert (cascade.layout(SFT).rollout.engines, cascade.layout(wide).rollout.engines) == (1, 2)
    assert from_plain(yaml.safe_load(to_yaml(cascade))) == cascade
    with pytest.raises(UserError, match=r"rl\.sampling\.max_new_tokens: expected at most 8"):
        replace(CASCADE, stages=(SFT, replace(RL, rollout=RolloutConfig(max_model_len=8))), evaluation=short())


def short() -> object:
    return replace(CASCADE.evaluation, max_new_tokens=4)


def test_a_gate_is_of_a_measured_domain_and_a_loss() -> None:
    with pytest.raises(UserError, match=r"rl\.gate: expected one of evaluation.domains"):
        replace(CASCADE, stages=(SFT, replace(RL, gate={"code": 0.1})))
    with pytest.raises(UserError, match=r"rl\.gate\.math: expected a loss in \[0, 1\], found 2"):
        replace(RL, gate={"math": 2})


def test_a_selection_is_one_stage_or_a_tail() -> None:
    assert names(selection(GRAPH)) == ["sft", "rl", "side", "mopd"]
    assert names(selection(GRAPH, only="side")) == ["side"]
    assert names(selection(GRAPH, first="side")) == ["side", "mopd"]
    with pytest.raises(UserError, match="Did you mean 'side'"):
        selection(GRAPH, only="sid")
    with pytest.raises(UserError, match="expected --only or --from, found both"):
        selection(GRAPH, only="side", first="rl")


def test_kinds_are_in_the_hash() -> None:
    """An SFT stage and an RL stage never pass for each other."""
    assert isinstance(RL, GrpoStage)
    assert len(set(content_hashes(GRAPH).values())) == 4
