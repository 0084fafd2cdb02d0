"""The lock that keeps a second shipper from a log."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scorer.errors import ShipError


@contextmanager
def shipping(directory: Path) -> Iterator[None]:
    """Hold the lock on a log's directory. The system releases it when the process ends.

    The lock is on the directory itself, because its files belong to the server.

    Raises:
        ShipError: Another process ships the log, or the directory cannot be opened.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ShipError(
            f'log "{directory}": {error.strerror}; give the directory that the server\'s [log] dir names'
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ShipError(
                f'log "{directory}" is shipped by another process; stop it first, or add the sink to its '
                "settings"
            ) from None
        except OSError as error:
            raise ShipError(
                f'log "{directory}" cannot be locked: {error.strerror}; the log must be on a local disk'
            ) from None
        yield
    finally:
        os.close(descriptor)
