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
    """From PATH, or where Debian keeps versions of it."""
    found = shutil.which(program)
    if found:
        return found
    places = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{program}"), key=lambda path: int(path.parts[-3])
    )
    return str(places[-1]) if places else None


class Postgres:
    """Started by `with`; each `database()` is a fresh one."""

    def __init__(self) -> None:
        # Not below pytest's own directories: root's are closed to the user that the server runs as.
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
        self.stop(immediately=True)  # nothing is kept, so nothing needs a last checkpoint
        shutil.rmtree(self.directory, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        """Over the Unix socket, without a password."""
        return f"postgresql://scorer@/{database}?host={self.directory}&port={self.port}"

    def tcp_url(self, database: str = "postgres", password: str = PASSWORD) -> str:
        """Over the loopback address, with a password."""
        return f"postgresql://scorer:{password.replace(' ', '%20')}@127.0.0.1:{self.port}/{database}"

    def database(self, template: str = "template1") -> str:
        """The name of a new database: empty, or a copy."""
        import psycopg

        name = f"test_{next(self._names)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return name

    def drop(self, name: str) -> None:
        """Deletes it, whoever is still connected: hundreds of them take long to delete at the end."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def stop(self, *, immediately: bool = False) -> None:
        """Ends sessions and shuts down; `immediately` as a crash would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGQUIT if immediately else signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def start(self) -> None:
        """After `stop`, on the same port."""
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
                    # Nothing of a test outlives the machine's power.
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
                return False  # most likely somebody else took the port
            asked = subprocess.run(
                [ready, "-q", "-h", str(self.directory), "-p", str(self.port), "-t", "1"], check=False
            )
            if asked.returncode == 0:
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
    """Whom root runs it as: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("root needs a user `postgres` or `nobody` to run PostgreSQL as")


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])
