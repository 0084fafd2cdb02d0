"""Our server in a Python process that holds the interpreter lock (GIL) on command.

Usage: `held.py CONFIG LANES BUNDLE DIGEST`. CONFIG and LANES are JSON texts. The program prints the address
of the server. On the line `hold 5` of standard input it holds the lock for 5 s in one C call that uses no
processor time; on `burn 5` it runs Python code for 5 s. After that it prints `done`.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

from scorer import bridge


def hold(seconds: float) -> None:
    """Hold the lock in one foreign call, during which no other Python thread can run."""
    # PyDLL, unlike CDLL, does not release the lock.
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def burn(seconds: float) -> None:
    """Run Python code that never waits."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def main(config: str, lanes: str, bundle: str, digest: str) -> None:
    """Serve until standard input ends."""
    server = bridge.Server(config)
    server.load(bundle, digest)
    server.swap(lanes)
    sys.stdout.write(json.loads(server.addresses())["grpc"][0] + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        what, seconds = line.split()
        {"hold": hold, "burn": burn}[what](float(seconds))
        sys.stdout.write("done\n")
        sys.stdout.flush()
    server.drain(1.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
