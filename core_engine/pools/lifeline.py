"""Become a command that cannot outlive the process that started it. Run as a file by `ChildProcess.spawn`.

`python lifeline.py PARENT_PID COMMAND ARGUMENT...` binds itself to its parent and then execs the command, so that the
command keeps this process id. On Linux the kernel does the killing (PR_SET_PDEATHSIG, which survives exec); elsewhere a
small fork watches. An exec wrapper rather than a `preexec_fn`: Python between fork and exec of a process with threads
can deadlock. Standard library only, so that it starts in milliseconds.

Trap: Linux sends the signal when the *thread* that forked ends, so children are started from a thread that lives as
long as they should (an event loop's, usually the main one).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
WATCH_S = 0.2


def main(argv: Sequence[str], platform: str = sys.platform) -> None:
    """`argv` is PARENT_PID, COMMAND, ARGUMENTS...; returns only by raising SystemExit."""
    parent, command = int(argv[0]), list(argv[1:])
    if platform == "linux":
        _ask_the_kernel()
    else:
        _watch_from_a_fork(parent)
    if os.getppid() != parent:  # it died before we were bound to it
        sys.exit(f"{command[0]}: the process that started it is gone")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would hand that on
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


def _ask_the_kernel() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")


def _watch_from_a_fork(parent: int) -> None:
    """The fork ends with the command, or ends the command with `parent`; the caller goes on."""
    command = os.getpid()
    if os.fork() != 0:
        return
    while os.getppid() == command:
        if not _is_alive(parent):
            os.kill(command, signal.SIGKILL)
            break
        time.sleep(WATCH_S)
    sys.exit(0)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
