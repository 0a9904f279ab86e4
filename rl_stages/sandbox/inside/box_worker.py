"""The worker process of a sandbox slot. It has one thread, starts boxes and watches them.

It reads frames from the client on stdin and answers on stdout. Both may be the same socket. It is long-lived, because
bwrap dies with the thread that started it. When the client is gone, killed or not, it ends all its descendants.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.parent_death import die_with_parent
from cascade_rl.rl_stages.sandbox import process_tree
from cascade_rl.rl_stages.sandbox.disk import Held
from cascade_rl.rl_stages.sandbox.inside import precompiled, program_job
from cascade_rl.rl_stages.sandbox.inside.box import BoxLost, NotExecutable, open_box
from cascade_rl.rl_stages.sandbox.inside.command_job import Command, Disk, not_executable, refusal
from cascade_rl.rl_stages.sandbox.inside.frames import Frame, read_frame, write_frame
from cascade_rl.rl_stages.sandbox.inside.watch import ClientGone, Watch, client_gone
from cascade_rl.rl_stages.sandbox.limits import Limits
from cascade_rl.rl_stages.sandbox.memory_file import memory_file
from cascade_rl.rl_stages.sandbox.tier import Tier
from cascade_rl.rl_stages.sandbox.walls import bubblewrap, confinement, interpreter, landlock, seccomp
from cascade_rl.rl_stages.sandbox.walls.host_view import HostView, slot_user

_PR_SET_CHILD_SUBREAPER, _PR_SET_THP_DISABLE = 36, 41


class Worker:
    def __init__(self, tier: Tier, client: int, landlock_abi: int) -> None:
        self._tier, self._client = tier, client
        self._namespaces = tier is not Tier.LANDLOCK
        self._landlock_abi = 0 if self._namespaces else min(landlock.abi(), landlock_abi)
        self._driver, self._driver_code = interpreter.driver()
        self._driver_filter = seccomp.namespaces_filter(driver=True)
        self._command_filter = seccomp.namespaces_filter(driver=False)
        self._host = HostView(slot_user(), interpreter.prefixes())
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)  # of all descendants: see seccomp.py

    def serve(self) -> None:
        """Serves requests. Raises ClientGone or ConnectionError once the client is gone."""
        while True:
            head, body = self._request()
            try:
                getattr(self, f"_serve_{head['kind']}")(head, body)
            except (BoxLost, OSError) as failure:
                write_frame(1, {"lost": f"{type(failure).__name__}: {failure}"})

    def _request(self) -> Frame:
        while not select.select([0], [], [], 1.0)[0]:
            if client_gone(self._client):
                raise ClientGone
        try:
            return read_frame(0)
        except (EOFError, ConnectionError):
            raise ClientGone from None

    def _serve_program(self, head: dict[str, Any], source: bytes) -> None:
        is_cpp = head["language"] == "cpp"
        if is_cpp and not shutil.which("g++"):
            write_frame(
                1, {"unavailable": "C++ programs need g++, which is not in PATH (Debian: apt-get install g++)."}
            )
            return
        extra = [precompiled.header()] if is_cpp else []
        limits = self._limits(head)
        with self._scratch(needed=is_cpp) as scratch:
            head |= {"limits": vars(limits), "namespaces": self._namespaces, "scratch": scratch, "include": extra}
            head |= {"readable": interpreter.readable(extra), "packages": interpreter.PACKAGES}
            head |= {"landlock_abi": self._landlock_abi}
            self._run_program(head, source, limits, scratch, extra)

    def _run_program(self, head: dict[str, Any], source: bytes, limits: Limits, scratch: str, extra: list[str]) -> None:
        filter_file = memory_file(self._driver_filter)
        outer = self._bubblewrap(limits, filter_file, extra=extra, first=True) if self._namespaces else []
        environment = {} if self._namespaces else interpreter.environment("/", scratch)
        try:
            with open_box(
                [*outer, *self._driver],
                environment=environment,
                user=self._host.user,
                confine=die_with_parent,
                pass_fds=[filter_file],
            ) as box:
                within = confinement.COMPILER if head["language"] == "cpp" else limits
                watch = Watch(self._client, within, program_job.SPARE_SECONDS)
                program_job.start(box, self._driver_code, watch)
                answer = program_job.compile_program(box, head, source, within, watch)
                write_frame(1, *answer)
                last = answer[0]["compile_error"] is not None
                while not last:
                    request, test = self._request()
                    if request["kind"] == "end":
                        return
                    answer = program_job.run_test(box, test, limits, self._client)
                    write_frame(1, *answer)
                    last = answer[0]["last"]
        finally:
            os.close(filter_file)

    def _serve_command(self, head: dict[str, Any], stdin: bytes) -> None:
        limits = self._limits(head)
        with (
            self._scratch(needed=True) as scratch,
            self._host.workspace(Path(head["workspace"]).resolve(strict=True)) as workspace,
        ):
            own_scratch = None if self._namespaces else scratch
            disk = Disk(workspace, own_scratch, Held(**head["first"]), limits)
            why = disk.overfull()
            answer = refusal(why) if why else self._run_command(head, limits, workspace, scratch, stdin, disk)
        write_frame(1, *answer)

    def _run_command(
        self, head: dict[str, Any], limits: Limits, workspace: str, scratch: str, stdin: bytes, disk: Disk
    ) -> Frame:
        files = [memory_file(self._command_filter), memory_file(stdin)]
        try:
            with self._command_box(head, limits, workspace, scratch, files) as box:
                return Command(box, limits, disk, Watch(self._client, limits)).run()
        except NotExecutable as why:
            return not_executable(str(why))
        finally:
            for descriptor in files:
                os.close(descriptor)

    def _command_box(self, head: dict[str, Any], limits: Limits, workspace: str, scratch: str, files: list[int]) -> Any:
        filter_file, stdin = files
        command, environment, confine, hidden = head["argv"], {}, die_with_parent, head["hidden"]
        if self._namespaces:
            places = {"workspace": workspace, "hidden": hidden}
            outer = self._bubblewrap(limits, filter_file, environment=head["environment"], **places)
            command = [*outer, *bubblewrap.prlimit(limits), *command]
        else:
            command = ["/usr/bin/env", "--", *command]
            environment = interpreter.environment(workspace, scratch) | head["environment"]
            confine = confinement.command_confinement(
                interpreter.readable(),
                [workspace, scratch],
                limits,
                self._landlock_abi,
                hidden,
                own_user=self._host.user is not None,
            )
        return open_box(
            command,
            environment=environment,
            user=self._host.user,
            confine=confine,
            stdin=stdin,
            folder="/" if self._namespaces else workspace,
            pass_fds=[filter_file] if self._namespaces else [],
        )

    def _limits(self, head: dict[str, Any]) -> Limits:
        """The limits of a request. The process limit grows by the threads of this user if the box runs as this user.

        The kernel counts all processes of a user, unless the box has its own user or user namespace.
        """
        limits = Limits(**head["limits"])
        if self._namespaces or self._host.user is not None:
            return limits
        return replace(limits, processes=limits.processes + process_tree.threads_of_this_user())

    def _bubblewrap(self, limits: Limits, filter_file: int, **places: Any) -> list[str]:
        return bubblewrap.command_line(limits, filter_file, proc=self._tier is Tier.NAMESPACES, **places)

    @contextmanager
    def _scratch(self, needed: bool) -> Iterator[str]:
        """A folder for compilers and temporary files. A box in namespaces has its own /tmp."""
        if self._namespaces or not needed:
            yield "/tmp"
        else:
            with self._host.scratch() as folder:
                yield str(folder)


def main() -> None:
    tier, client, landlock_abi = Tier(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    try:
        worker = Worker(tier, client, landlock_abi)
    except OSError as failure:
        write_frame(1, {"lost": f"{type(failure).__name__}: {failure}"})
        return
    try:
        write_frame(1, {"ready": True})
        worker.serve()
    except (ClientGone, ConnectionError):
        return


if __name__ == "__main__":
    main()
