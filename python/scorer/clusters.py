"""Connections to Spark and Ray, which commands open and close, and which a program can have opened before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(
    name: str, address: str = "", options: Mapping[str, Any] | None = None
) -> Iterator[SparkSession]:
    """Provide the active session, which is not stopped, or a new one.

    Args:
        name: Name of the application.
        address: Spark's master, such as "spark://host:7077"; empty for what spark-submit gives, or else a
            local one.
        options: Spark's configuration by its keys.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    builder = SparkSession.builder.appName(name)
    if address:
        builder = builder.master(address)
    for key, value in (options or {}).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def ray_cluster(address: str = "", options: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Connect to a cluster, unless this process is connected; such a connection stays open.

    Args:
        address: Ray's address, such as "host:6379"; empty for RAY_ADDRESS, else a local cluster.
        options: Further arguments of `ray.init`.
    """
    import ray

    connected = ray.is_initialized()
    if not connected:
        ray.init(address=address or None, log_to_driver=False, **dict(options or {}))
    try:
        yield
    finally:
        if not connected:
            ray.shutdown()
