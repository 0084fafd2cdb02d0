"""Our server in a Python process that holds the interpreter's lock when it is told to.

`held.py CONFIG LANES BUNDLE DIGEST`, the first two JSON texts. Prints the address. A line `hold 5` on
standard input holds the lock for five seconds in one C call that needs no processor; `burn 5` keeps a
processor busy as well. `done` is printed when it is over.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

from scorer import bridge


def hold(seconds: float) -> None:
    """One foreign call during which no Python thread can run."""
    # PyDLL, unlike CDLL, keeps the lock.
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def burn(seconds: float) -> None:
    """Python that never waits."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def main(config: str, lanes: str, bundle: str, digest: str) -> None:
    """Serves until standard input ends."""
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
