"""Stages as jobs: their size, what they wait for, what their scripts do, and golden files of both backends.

`UPDATE_GOLDEN=1 pytest FILE` writes the golden files anew.
"""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers import plan
from cascade_rl.launchers.cli.launch import run_file
from cascade_rl.launchers.plan import command
from cascade_rl.launchers.slurm import nemo_run_backend, sbatch_backend
from cascade_rl.launchers.slurm.cluster import Cluster
from cascade_rl.launchers.slurm.containers import check_container
from cascade_rl.launchers.slurm.dryrun import write_dryrun
from cascade_rl.launchers.slurm.jobs import Job, check_paths, check_precisions, make_jobs
from cascade_rl.launchers.slurm.submit import Submission, run_on_cluster
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.text import override
from cascade_rl.rl_stages.run.run_folder import CACHE_VARIABLE, RunFolder
from cascade_rl.rl_stages.run.upgrade.kept_folders import refuse
from tests.launchers.slurm import fake_cascade
from tests.rl_stages.run.test_run_folder import keep_step

CASCADE = override(fake_cascade.CASCADE, ["parallel.precision=bfloat16"])  # else no GPU trains it
GOLDEN = Path(__file__).with_name("golden")
LAUNCHERS = Path(__file__).parents[3] / "launchers"
LAUNCHES = [
    ("cascade2_30b_a3b", "example", ()),
    ("cascade2_30b_a3b", "example_b200", ()),
]
PLANNED = ("cascade2_30b_a3b", "example", "nemo-run")  # the others: the same plan, or in plan/test_plan.py
RENDER = {"nemo-run": nemo_run_backend.render, "sbatch": sbatch_backend.render}
CLUSTER = Cluster(partition="batch", gpus_per_node=8, max_requeues=5)
STAGE_COMMAND = (sys.executable, "-m", "stage")


def jobs_of(cluster: Cluster, root: Path, nproc: int = 1) -> tuple[Job, ...]:
    nodes = -(-nproc // cluster.gpus_per_node)
    rollout = dataclasses.replace(CASCADE.rollout, engines=nodes)
    run = RunFolder(root, dataclasses.replace(CASCADE, nproc=nproc, rollout=rollout))
    return make_jobs(run, run.stages, cluster, STAGE_COMMAND, Path("/work"))


def test_a_stage_gets_the_nodes_that_its_ranks_fill() -> None:
    def size(nproc: int) -> tuple[int, str]:
        job = jobs_of(CLUSTER, Path("/run"), nproc)[0]
        return job.nodes, job.command[job.command.index("--nproc-per-node") + 1]

    assert {nproc: size(nproc) for nproc in (1, 8, 10, 16, 24)} == {
        1: (1, "1"),
        8: (1, "8"),
        10: (2, "5"),
        16: (2, "8"),
        24: (3, "8"),
    }
    with pytest.raises(UserError, match=r"sft.nproc: expected ranks that divide over 3 nodes of 8, found 17"):
        jobs_of(CLUSTER, Path("/run"), 17)


def test_float32_is_refused_before_a_job_for_gpus_is_made(tmp_path: Path) -> None:
    sft = CASCADE.stages[0]
    plain = override(CASCADE, ["parallel.precision=float32"])
    check_precisions(CLUSTER, CASCADE, CASCADE.stages)
    check_precisions(dataclasses.replace(CLUSTER, gpus=False), plain, plain.stages)
    told = "sft: parallel.precision: expected bfloat16 on a GPU, found float32. .*: set parallel.precision=bfloat16"
    how = Submission(CLUSTER, "sbatch", STAGE_COMMAND, True, refuse)
    with pytest.raises(UserError, match=told):
        run_on_cluster(plain, tmp_path / "run", [sft], how)
    with pytest.raises(UserError, match=told):
        write_dryrun(plain, tmp_path / "run", [sft], how, tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_a_job_reads_nemo_gym_from_where_its_launcher_did(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def told(cluster: Cluster) -> str | None:
        return jobs_of(cluster, Path("/run"))[0].env.get("CASCADE_NEMO_GYM")

    assert told(CLUSTER) is None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CASCADE_NEMO_GYM", "build/published")
    assert told(CLUSTER) == f"{tmp_path}/build/published"
    assert told(dataclasses.replace(CLUSTER, env={"CASCADE_NEMO_GYM": "/in/the/image"})) == "/in/the/image"


def test_engines_that_do_not_divide_over_the_nodes_are_told() -> None:
    run = RunFolder(Path("/run"), dataclasses.replace(CASCADE, nproc=16))
    with pytest.raises(UserError, match=r"sft.rollout.engines: expected a multiple of 2, .*; found 1"):
        make_jobs(run, run.stages, CLUSTER, STAGE_COMMAND, Path("/work"))


APART = (
    *("if_rl.nproc=16", "if_rl.rollout.placement=disaggregated", "if_rl.rollout.max_staleness=2"),
    *("if_rl.rollout.engines=28", "if_rl.rollout.sleep=false"),  # of four H100 each
)


@pytest.fixture(scope="module")
def nano() -> Cascade:
    return command.load_cascade(LAUNCHERS / "cascade2_30b_a3b.py")


def jobs_apart(cascade: Cascade, *settings: str) -> dict[str, Job]:
    run = RunFolder(Path("/run"), override(cascade, [*APART, *settings]))
    return {job.stage.config.name: job for job in make_jobs(run, run.stages, CLUSTER, STAGE_COMMAND, Path("/work"))}


def test_engines_of_their_own_are_nodes_of_the_job(nano: Cascade) -> None:
    jobs = jobs_apart(nano)
    told = " ".join(jobs["if_rl"].command)
    assert (jobs["if_rl"].nodes, jobs["sft"].nodes, jobs["code_rl"].nodes) == (16, 32, 16)
    assert "--nproc-per-node 8 --engine-nodes 14 --engine-cards 8 --devices gpu" in told
    assert "--engine" not in " ".join(jobs["code_rl"].command)
    script = sbatch_backend.render([jobs["if_rl"]], Path("/out"))["if_rl"]
    assert "#SBATCH --nodes=16\n" in script and "--engine-nodes 14 --engine-cards 8" in script


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["if_rl.rollout.engines=27"], "if_rl.rollout.engines: expected whole nodes, a multiple of 2, .*; found 27"),
        (["if_rl.nproc=4", "if_rl.parallel.context=1", "if_rl.parallel.expert=4"], "if_rl.nproc: expected whole nodes"),
    ],
)
def test_nodes_that_ranks_and_engines_would_share_are_refused(nano: Cascade, settings: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        jobs_apart(nano, *settings)


def test_a_stage_without_engines_gets_no_nodes_for_them() -> None:
    silent = dataclasses.replace(CASCADE.evaluation, domains=())
    rollout = dataclasses.replace(CASCADE.rollout, placement="disaggregated", engines=8)
    sft = dataclasses.replace(CASCADE, nproc=8, rollout=rollout, evaluation=silent, stages=CASCADE.stages[:1])
    run = RunFolder(Path("/run"), sft)
    (job,) = make_jobs(run, run.stages, CLUSTER, STAGE_COMMAND, Path("/work"))
    assert job.nodes == 1 and "--engine-nodes" not in job.command


def test_what_waits_for_what_is_the_stage_graph() -> None:
    needs = {job.stage.config.name: job.needs for job in jobs_of(CLUSTER, Path("/run"))}
    assert needs == {"sft": (), "math_rl": ("sft",), "last_rl": ("math_rl",), "side_rl": ("sft",)}


def test_run_folders_of_one_name_do_not_share_job_names() -> None:
    assert len({jobs_of(CLUSTER, Path(folder))[0].name for folder in ("/a/run", "/b/run", "/a/run")}) == 2


STUB = """#!{python}
import json, os, sys
told = {{"command": sys.argv[1:], "value": os.environ.get("VALUE"), "secret": os.environ.get("API_KEY")}}
with open("{log}", "a") as log:
    print(json.dumps(told), file=log)
if "{name}" == "srun" and "hostname" not in sys.argv:
    sys.exit({code})
if sys.argv[1:3] == ["show", "hostnames"]:
    print("node7")
"""


@pytest.fixture(scope="module", params=sorted(RENDER))
def script(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The script of a job with awkward values, and its folder."""
    folder = tmp_path_factory.mktemp("a b")
    secrets = folder / "secrets"
    secrets.write_text("API_KEY=hush\n")
    cluster = dataclasses.replace(CLUSTER, env={"VALUE": "a b $HOME 'c'"}, secrets_file=str(secrets))
    jobs = jobs_of(cluster, folder / "runs" / "x")
    path = folder / "job.sh"
    path.write_text(RENDER[request.param](jobs, folder / "scripts")["sft"])
    (jobs[0].stage.logs).mkdir(parents=True)
    return path, jobs[0].stage.logs


def run_script(path: Path, code: int, restarts: int = 0) -> tuple[list[dict], str]:
    """What it called, and what it printed, where its tasks end with `code`."""
    stubs, log = path.parent / "stubs", path.parent / "calls"
    stubs.mkdir(exist_ok=True)
    log.write_text("")
    for name in ("srun", "scontrol"):
        stub = STUB.format(python=sys.executable, log=log, name=name, code=code)
        (stubs / name).write_text(stub)
        (stubs / name).chmod(0o755)
    env = {"PATH": f"{stubs}:{os.environ['PATH']}", "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "node[7-8]"}
    told = subprocess.run(
        ["bash", path],
        env={**env, "SLURM_RESTART_COUNT": str(restarts), "HOME": "/home"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == code
    return [json.loads(line) for line in log.read_text().splitlines()], told.stdout + told.stderr


def requeues(calls: list[dict]) -> int:
    return sum(call["command"][:1] == ["requeue"] for call in calls)


def test_values_reach_the_tasks_as_they_are_and_secrets_are_not_told(script: tuple[Path, Path]) -> None:
    path, _ = script
    calls, told = run_script(path, 0)
    (task,) = [call for call in calls if "--output" in call["command"]]
    assert task["value"] == "a b $HOME 'c'"
    assert task["secret"] == "hush"
    assert str(path.parent / "runs" / "x") in task["command"]
    assert "hush" not in told and "hush" not in path.read_text()
    assert requeues(calls) == 0


def test_a_job_is_queued_again_unless_its_end_is_final(script: tuple[Path, Path]) -> None:
    path, logs = script
    began, final = logs / "began_12", logs / "final_12"
    for restarts, expected in ((0, 1), (4, 1), (5, 0)):
        began.write_text(str(restarts))
        assert requeues(run_script(path, 75, restarts)[0]) == expected
        assert not final.exists()
    final.write_text("gate closed")
    began.write_text("0")
    assert requeues(run_script(path, 3)[0]) == 0
    final.unlink()
    began.unlink()


@pytest.mark.parametrize("last", [None, 1])
def test_a_job_whose_task_never_begins_is_not_queued_again_for_ever(
    script: tuple[Path, Path], last: int | None
) -> None:
    path, logs = script
    began, final = logs / "began_12", logs / "final_12"
    if last is not None:
        began.write_text(str(last))
    first = 0 if last is None else last + 1
    assert [requeues(run_script(path, 1, restarts)[0]) for restarts in range(first, first + 3)] == [1, 1, 0]
    assert "the job started 3 times, but its task never began" in final.read_text()
    final.unlink()
    began.unlink(missing_ok=True)


def sbatch_flags(script: str) -> dict[str, str]:
    pairs = (line.removeprefix("#SBATCH --").partition("=") for line in script.splitlines() if "#SBATCH" in line)
    return {name: value for name, _, value in pairs}


@pytest.mark.process
def test_both_backends_ask_for_the_same(tmp_path: Path) -> None:
    cluster = dataclasses.replace(CLUSTER, account="us", cpus_per_node=96, container_image="image", mounts=("/a:/b",))
    jobs = jobs_of(cluster, tmp_path / "run", nproc=16)
    ours, theirs = (RENDER[name](jobs, tmp_path)["math_rl"] for name in ("sbatch", "nemo-run"))
    on_the_command_line, of_nemo_run = {"requeue": ""}, {"dependency": "singleton"}
    assert sbatch_flags(theirs) | on_the_command_line == sbatch_flags(ours) | of_nemo_run

    def task(script: str) -> list[str]:
        (line,) = (line for line in script.splitlines() if line.startswith("srun --output"))
        return line.split()

    assert set(task(ours)) - set(task(theirs)) == {f"/a:/b,{tmp_path}/run:{tmp_path}/run"}
    assert set(task(theirs)) - set(task(ours)) >= {"--container-workdir", "/nemo_run/code"}


def test_paths_that_nemo_run_rewrites_are_refused(tmp_path: Path) -> None:
    jobs = jobs_of(CLUSTER, tmp_path / "nemo_run" / "x")
    with pytest.raises(UserError, match="expected paths without '/nemo_run'"):
        nemo_run_backend.render(jobs, tmp_path)
    assert sbatch_backend.render(jobs, tmp_path)


@pytest.mark.parametrize(
    "name", ["sp ace", "tab\t", "new\nline", "a$b", "it's", 'a"b', "a;b", "a&b", "a\\b", "%j", "(x)"]
)
@pytest.mark.parametrize("backend", sorted(RENDER))
def test_folders_that_a_script_cannot_name_are_refused_before_anything_is_written(
    tmp_path: Path, name: str, backend: str
) -> None:
    how = Submission(CLUSTER, backend, STAGE_COMMAND, detach=True, agree=refuse)
    for root, folder in ((tmp_path / name, tmp_path / "out"), (tmp_path / "run", tmp_path / name / "out")):
        with pytest.raises(UserError, match="expected a folder that a Slurm script can name"):
            write_dryrun(CASCADE, root, CASCADE.stages, how, folder)
    with pytest.raises(UserError, match="expected a folder that a Slurm script can name"):
        run_on_cluster(CASCADE, tmp_path / name, CASCADE.stages, how)
    assert not list(tmp_path.iterdir())


def test_a_profile_may_name_the_folder_of_compiled_kernels(tmp_path: Path) -> None:
    shared = dataclasses.replace(CLUSTER, cache_dir="/shared/kernels")
    for cluster, told in ((CLUSTER, None), (shared, "/shared/kernels")):
        job, *_ = jobs_of(cluster, tmp_path / "run")
        assert job.env.get(CACHE_VARIABLE) == told


def test_a_container_mounts_no_folder_with_a_colon() -> None:
    contained = dataclasses.replace(CLUSTER, container_image="image")
    check_paths(CLUSTER, Path("/runs/2026-11-29T14:00,a+b=c@d~1/ünner"))
    with pytest.raises(UserError, match="found ':' in '/runs/14:00'"):
        check_paths(contained, Path("/runs/14:00"))


def test_containers_are_checked_before_anything_is_submitted(tmp_path: Path) -> None:
    def check(image: str, *mounts: str, caches: str | None = None) -> Callable[[], None]:
        cluster = dataclasses.replace(CLUSTER, container_image=image, mounts=mounts, cache_dir=caches)
        return lambda: check_container(cluster, CASCADE, tmp_path / "work")

    check("team#image:1", f"{tmp_path}:{tmp_path}")()
    for wrong, message in (
        (check(f"{tmp_path}/gone.sqsh"), "container_image: no such file"),
        (check("image", f"{tmp_path}/gone:/gone"), "mounts: no such file"),
        (check("image", "relative:/a"), "expected SOURCE:TARGET"),
        (check("image"), f"mounts: expected one that contains '{tmp_path}/work', found only none"),
        (check("image", f"{tmp_path}:{tmp_path}", caches="/c"), "mounts: expected one that contains '/c', found only"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            wrong()


@pytest.mark.process
@pytest.mark.parametrize("backend", sorted(RENDER))
@pytest.mark.parametrize(("launcher", "cluster", "settings"), LAUNCHES)
def test_golden_scripts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launcher: str,
    cluster: str,
    settings: tuple[str, ...],
    backend: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # a launch sets handlers, pytest has its own
    if (launcher, cluster, backend) != PLANNED:
        monkeypatch.setattr(plan, "text", lambda cascade, _: " ".join(stage.name for stage in cascade.stages))
    arguments = ["--cluster", cluster, "--backend", backend, "--runs", "/shared/runs", "--dryrun", "out", *settings]
    with pytest.raises(SystemExit) as ended:
        run_file([str(LAUNCHERS / f"{launcher}.py"), *arguments])
    assert ended.value.code == 0
    out = tmp_path / "out"
    text = "".join(f"### {path.name}\n{path.read_text()}" for path in sorted(out.glob("*.sh")))
    # NeMo-Run reads its home once a process: of a later case it is the folder of an earlier one
    text = re.sub(rf"{tmp_path.parent}/[^/]+/[^/]+/experiments", "/work/out/experiments", text)
    text = text.replace(str(tmp_path), "/work").replace(sys.executable, "/venv/bin/python")
    text = re.sub(r"_\d{19}/", "_ID/", text)
    golden = GOLDEN / f"{launcher}.{cluster}.{backend}.sh"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()
    stages = [stage["name"] for stage in yaml.safe_load((out / "cascade.yaml").read_text())["stages"]]
    assert [row["stage"] for row in json.loads((out / "jobs.json").read_text())] == stages
    assert all(name in (out / "plan.txt").read_text() for name in stages)
    assert not re.search(r"TODO|FIXME|<[A-Z_]+>|placeholder", text)


def test_a_dry_run_says_what_would_be_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "text", lambda *_: "")
    with RunFolder.claim(tmp_path / "run", CASCADE) as (run, _):
        keep_step(run.stage("sft"), 1)
        keep_step(run.stage("side_rl"), 1)
    how = Submission(CLUSTER, "sbatch", STAGE_COMMAND, detach=False, agree=refuse)
    write_dryrun(override(CASCADE, ["sft.optimizer.lr=1e-4"]), run.root, CASCADE.stages, how, tmp_path / "out")
    assert capsys.readouterr().out == (
        "would be set aside: 01_sft (at step 1): sft.optimizer.lr 5e-05 -> 0.0001\n"
        "would be set aside: 04_side_rl (at step 1): its parent 01_sft\n"
    )
    assert (run.stage("sft").last_step(), (run.root / "superseded").exists()) == (1, False)
