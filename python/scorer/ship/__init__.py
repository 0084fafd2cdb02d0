"""Shipping a decision log to sinks: a Delta table, Kafka, or both.

`scorer ship` is a process of its own beside a server. It reads the segments of the server's log, which the
server may be writing, and delivers every record to each sink. The position of a sink is part of the sink, so
that a record is delivered exactly once by (server, segment, sequence) whenever the process is killed.

Importing this package loads neither deltalake nor confluent-kafka.
"""

from __future__ import annotations
