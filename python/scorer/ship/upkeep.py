"""Maintenance of Delta tables in a child process: compaction, checkpoint, removal of unused files.

Compaction needs some hundred megabytes of memory for a moment, and seconds of processor time. A child process
returns the memory, and deliveries go on meanwhile: an append does not conflict with a compaction. The child
can be killed at any point, because each of its steps is a commit or removes files that no version within the
time limits uses.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Final

from scorer.ship.settings import DeltaSection

_LIMIT_SECONDS: Final = 900.0
"""Time after which a child is killed. It also ends itself then, in case its parent was killed."""
_LEASE_SECONDS: Final = 1800
"""Time for which a child reserves the maintenance of a table, against all other servers."""
_END_SECONDS: Final = 5.0
_FULL_HOURS: Final = 24.0
"""Interval between searches for files of commits that did not complete."""


class Upkeep:
    """Starts a child process when a table has had a number of commits, one at a time.

    Args:
        settings: The settings of the sink.
    """

    def __init__(self, settings: DeltaSection) -> None:
        self._settings = settings
        self._due: set[str] = set()
        self._child: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._searched: dict[str, float] = {}

    def committed(self, name: str, before: int, after: int) -> None:
        """Take a commit into account.

        Args:
            name: The table.
            before: Version of the table before the commit. Versions count the commits of all servers, so of
                the servers that ship to a table, it is the one whose commit reaches a multiple that maintains
                it.
            after: Version of the commit.
        """
        every = self._settings.compact_commits
        if before // every < after // every:
            self._due.add(name)

    def supervise(self) -> str:
        """Start a child if a table is due and no child runs, or take the result of one that has ended.

        Returns:
            The reason why a child has failed, once; otherwise empty.
        """
        problem = ""
        if self._child is not None:
            if self._child.poll() is None:
                if time.monotonic() - self._started > _LIMIT_SECONDS:
                    self._child.kill()
                return ""
            problem = self._problem(self._child)
            self._release()
        if self._due:
            self._start(sorted(self._due))
            self._due.clear()
        return problem

    def finish(self) -> str:
        """Maintain the tables that are due, and wait for the end."""
        problem = self.supervise()
        while self._child is not None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(_END_SECONDS)
            problem = self.supervise() or problem
        return problem

    def close(self) -> None:
        """End the child, by SIGKILL if it does not stop."""
        if self._child is not None:
            self._child.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(_END_SECONDS)
            if self._child.poll() is None:
                self._child.kill()
                self._child.wait()
            self._release()

    @staticmethod
    def _problem(child: subprocess.Popen[bytes]) -> str:
        """Return the reason why a child has failed; empty if it has not."""
        errors = child.stderr.read() if child.stderr else b""
        if not child.returncode:
            return ""
        lines = errors.decode(errors="replace").strip().splitlines() or [f"exit code {child.returncode}"]
        return f"the maintenance of the tables failed: {lines[-1][:300]}; it is repeated when it is due again"

    def _release(self) -> None:
        if self._child is not None and self._child.stderr is not None:
            self._child.stderr.close()
        self._child = None

    def _start(self, names: list[str]) -> None:
        now = time.monotonic()
        searched = {name: now - self._searched.get(name, -1e9) < _FULL_HOURS * 3600 for name in names}
        self._searched |= {name: now for name, recently in searched.items() if not recently}
        work = {"tables": {name: not recently for name, recently in searched.items()}}
        self._started = now
        self._child = subprocess.Popen(
            [sys.executable, "-m", "scorer.ship.upkeep"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        # The options hold secrets, which other users could read in arguments.
        assert self._child.stdin is not None  # noqa: S101 - it is a pipe
        with suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps(work | {"settings": self._settings.model_dump()}).encode())
            self._child.stdin.close()


def maintain(settings: DeltaSection, name: str, *, search: bool) -> None:
    """Merge the small files of a table, write a checkpoint, and remove what is no longer used.

    If another process maintains the table, nothing is done.

    Args:
        settings: The settings of the sink.
        name: The table.
        search: Whether to search the storage for files that belong to no version, such as those of a process
            that was killed before its commit.
    """
    from deltalake import CommitProperties, PostCommitHookProperties
    from deltalake.exceptions import CommitFailedError

    from scorer.ship.tables import Tables, writer_properties

    tables = Tables(settings, "")
    if not tables.lease(name, _LEASE_SECONDS):
        return
    table: Any = tables.load(name)
    no_hook = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
    # An append in between does not conflict; anything else leaves the small files for the next time.
    with suppress(CommitFailedError):
        table.optimize.compact(
            target_size=settings.file_mb << 20,
            max_concurrent_tasks=1,
            writer_properties=writer_properties(),
            commit_properties=CommitProperties(max_commit_retries=20),
            post_commithook_properties=no_hook,
        )
    table.update_incremental()
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(
        retention_hours=max(settings.keep_hours, 1) if search else settings.keep_hours,
        dry_run=False,
        enforce_retention_duration=False,
        post_commithook_properties=no_hook,
        full=search,
    )
    tables.end_lease(name)


def main() -> int:
    """Maintain the tables that standard input names."""
    import os

    # The lease of a child whose parent was killed must not end before the child.
    signal.alarm(int(_LIMIT_SECONDS))
    with suppress(OSError):
        os.nice(10)
    work = json.load(sys.stdin)
    settings = DeltaSection.model_construct(**work["settings"])
    for name, search in work["tables"].items():
        maintain(settings, name, search=search)
    return 0


if __name__ == "__main__":
    sys.exit(main())
