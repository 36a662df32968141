"""The process that keeps a lab's namespaces, and takes them and all that runs in them along when it goes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from dovetail.errors import DovetailError

# `cat` lives until our end of its input is closed, by us or by our death. As process 1 of a process namespace it takes
# every process of the lab with it, and with the last of them the network goes. The mount makes the names private.
_HOLD = """
mount -t tmpfs tmpfs /run/netns 2>/dev/null || mount -t tmpfs tmpfs /run || exit 1
ip link set lo up || exit 1
echo ready
exec cat
"""
_AS_ROOT: list[str] = []
_AS_USER = ["--user", "--map-root-user"]


class LabError(DovetailError):
    """A lab cannot be made or changed here."""


class Keeper:
    """Namespaces for network, mounts and processes: as root, or else as root of an own user namespace."""

    def __init__(self) -> None:
        for user in [_AS_ROOT, _AS_USER] if os.geteuid() == 0 else [_AS_USER]:
            process, reason = _start(user)
            if process is not None:
                break
        if process is None:
            raise LabError(f"network namespaces are not allowed here: {reason}")
        self._process = process
        self.pid = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
        into_user = ["--user", "--preserve-credentials"] if user else []
        self.enter = ["nsenter", f"--target={self.pid}", *into_user]  # a command line's beginning

    def close(self) -> None:
        """End every process in the namespaces, and the namespaces."""
        self._process.kill()  # --kill-child: the kernel ends `cat`, and with it all the others
        self._process.communicate()


def _start(user: list[str]) -> tuple[subprocess.Popen[bytes] | None, str]:
    argv = ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", _HOLD]
    try:
        # A session of its own: Ctrl-C in a terminal is for the lab's owner, who then closes the lab in order.
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except FileNotFoundError:
        return None, "`unshare` is not found (Debian: apt-get install util-linux)"
    assert process.stdout is not None
    if process.stdout.readline() == b"ready\n":
        return process, ""
    process.kill()
    complaints = process.communicate()[1].decode(errors="replace").strip().splitlines()
    return None, complaints[-1] if complaints else "no reason given"
