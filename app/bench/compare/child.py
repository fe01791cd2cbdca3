"""The process of a server: ``flare run``, which ends when the comparison that started it is killed.

python -m app.bench.compare.child PARENT CORE [OPTION...]
"""

import ctypes
import os
import signal
import sys

from app import cli

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have the system end this process when its parent dies, by SIGKILL too; end it now when that
    has happened already. Linux alone (prctl(2)); elsewhere a server outlives a killed parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    sys.exit(cli.main(["run", *sys.argv[2:]]))
