"""A real PostgreSQL server for tests, with its own cluster on a Unix socket and on the loopback address."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

PASSWORD = "correct horse"


def find(program: str) -> str | None:
    """Return the path of a program from PATH or from Debian's newest version; None if there is none."""
    result = shutil.which(program)
    if result:
        return result
    places = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{program}"), key=lambda path: int(path.parts[-3])
    )
    return str(places[-1]) if places else None


class Postgres:
    """A server that runs within `with`. Each call of `database()` creates a new database."""

    def __init__(self) -> None:
        # Not below pytest's directories: those of root are not readable by the user that runs the server.
        self.directory = Path(tempfile.mkdtemp(prefix="scorer-pg-"))
        self.port = 0
        self._user = _unprivileged()
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count(1)
        self._log = self.directory / "server.log"

    def __enter__(self) -> Postgres:
        try:
            self._initialise()
            for _ in range(5):
                if self._start():
                    return self
            raise RuntimeError(f"postgres does not start:\n{self._log.read_text()[-2000:]}")
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop(immediately=True)  # no data is kept, so no final checkpoint is needed
        shutil.rmtree(self.directory, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        """Return a URL over the Unix socket, without a password."""
        return f"postgresql://scorer@/{database}?host={self.directory}&port={self.port}"

    def tcp_url(self, database: str = "postgres", password: str = PASSWORD) -> str:
        """Return a URL over the loopback address, with a password."""
        return f"postgresql://scorer:{password.replace(' ', '%20')}@127.0.0.1:{self.port}/{database}"

    def database(self, template: str = "template1") -> str:
        """Create a database, empty or as a copy of another one; return its name."""
        import psycopg

        name = f"test_{next(self._names)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return name

    def drop(self, name: str) -> None:
        """Delete a database and end its connections. Deleting hundreds of databases at the end takes long."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def stop(self, *, immediately: bool = False) -> None:
        """End all sessions and shut down; `immediately`: as in a crash."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGQUIT if immediately else signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def start(self) -> None:
        """Start again after `stop`, on the same port."""
        if not self._start(self.port):
            raise RuntimeError(f"postgres does not start again:\n{self._log.read_text()[-2000:]}")

    def _initialise(self) -> None:
        secret = self.directory / "password"
        secret.write_text(PASSWORD)
        if self._user is not None:
            for path in (self.directory, secret):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)
        self._run(
            "initdb", "-D", "data", "-U", "scorer", "-E", "UTF8", "--locale=C", "--no-sync",
            "--auth-local=trust", "--auth-host=scram-sha-256", "--pwfile=password",
        )  # fmt: skip

    def _start(self, port: int | None = None) -> bool:
        self.port = port or _free_port()
        program = find("postgres")
        assert program is not None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    program, "-D", "data", "-k", str(self.directory), "-h", "127.0.0.1", "-p", str(self.port),
                    # The data of a test need not survive a power failure.
                    "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=60",
                    "-c", "shared_buffers=16MB", "-c", "autovacuum=off",
                    "-c", "wal_level=minimal", "-c", "max_wal_senders=0", "-c", "checkpoint_timeout=1h",
                ],
                cwd=self.directory, stdout=log, stderr=log, start_new_session=True, **self._as_user(),
            )  # fmt: skip
        ready = find("pg_isready")
        assert ready is not None
        for _ in range(600):
            if self._process.poll() is not None:
                self._process = None
                return False  # most likely another process took the port
            probe = subprocess.run(
                [ready, "-q", "-h", str(self.directory), "-p", str(self.port), "-t", "1"], check=False
            )
            if probe.returncode == 0:
                return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)
        self.stop(immediately=True)
        return False

    def _run(self, program: str, *arguments: str) -> None:
        path = find(program)
        assert path is not None
        subprocess.run(
            [path, *arguments], cwd=self.directory, check=True, capture_output=True, **self._as_user()
        )

    def _as_user(self) -> dict[str, object]:
        if self._user is None:
            return {}
        return {
            "user": self._user.pw_uid,
            "group": self._user.pw_gid,
            "extra_groups": [],
            "env": {"PATH": os.environ.get("PATH", ""), "HOME": str(self.directory), "LC_ALL": "C"},
        }


def _unprivileged() -> pwd.struct_passwd | None:
    """Return the user that root runs the server as, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("root needs a user `postgres` or `nobody` to run PostgreSQL as")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
