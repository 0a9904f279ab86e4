import pytest

from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.lessons.swe_executed import lessons
from cascade_rl.rl_stages.rewards.swe.instance import parse_instance
from cascade_rl.rl_stages.rewards.swe.workspace import Workspace
from cascade_rl.rl_stages.sandbox.outside.folder import MAX_FILE_BYTES

LESSON = next(lesson for lesson in lessons() if lesson.fields["instance_id"] == "double-3-a-4")
TASK = Task("double", "swe_executed", ({"role": "user", "content": LESSON.prompt},), parse_instance(LESSON.fields))


@pytest.fixture
def workspace(sandbox):
    with Workspace.create(TASK, sandbox) as workspace:
        yield workspace


def test_commands_change_the_checkout_and_its_diff_is_graded(workspace):
    assert workspace.act("ls -A; exit 3") == ("f.py\n", 3)
    assert workspace.patch() == "" and workspace.grade().score == 0.0
    assert workspace.act("sed -i 's/a \\* 3/a * 2/' f.py") == ("", 0)
    assert workspace.patch() == TASK.metadata["gold_patch"]
    assert workspace.grade().score == 1.0


def test_files_stay_from_one_command_to_the_next_and_processes_do_not(workspace):
    workspace.act("sleep 100 & echo $! > pid; X=1")
    output, _ = workspace.act('cat pid && kill -0 "$(cat pid)"; echo "$X"')
    assert output.splitlines()[0].isdigit() and "1" not in output.splitlines()[-1]


@pytest.mark.parametrize(
    "command",
    [
        "rm f.py && ln -s /etc/hostname f.py",
        f"head -c {MAX_FILE_BYTES + 1} /dev/full > f.py",
        "rm f.py && mkfifo f.py",
        "rm f.py && ln -s f.py f.py",
        "chmod 0 f.py .",
        "printf '\\377' > f.py",
        "rm f.py",
        "echo 'def double(a): return a * 2' > new.py",
    ],
)
def test_what_is_no_file_of_the_repository_is_not_read(workspace, command):
    assert workspace.act(command) == ("", 0)
    assert "hostname" not in workspace.patch()
    assert workspace.grade().score == 0.0


def test_close_removes_the_folder(sandbox):
    workspace = Workspace.create(TASK, sandbox)
    workspace.act("mkdir -p a/b && touch a/b/c")
    folder = workspace._folder.path
    workspace.close()
    workspace.close()
    assert not folder.exists()
