"""A real Kafka broker, one node in KRaft mode, on ports that the system chooses."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import components
from real_server import RealServer, free_port
from waiting import wait_until

_LOG4J = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="ERROR"><Appenders>
<Console name="out"><PatternLayout pattern="%d %p %m%n"/></Console></Appenders>
<Loggers><Root level="INFO"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""
_START_SECONDS = 90.0


class KafkaBroker(RealServer):
    """A broker with its data in a directory of its own, which outlives a kill."""

    def __init__(self) -> None:
        super().__init__("kafka", "broker.log", seconds=_START_SECONDS)
        (self.directory / "log4j2.xml").write_text(_LOG4J)

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.delete_topics([name])[name].result(30)
        wait_until(lambda: name not in admin.list_topics(timeout=10).topics, f"the end of topic {name}")

    def messages(self, topic: str, *, committed: bool = True) -> list[Any]:
        """Return the messages of a topic up to its present end, in the order of each partition."""
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": f"test-{os.urandom(4).hex()}",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            known = consumer.list_topics(topic, 30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, one, 0) for one in known])
            ends, found = set(), []
            deadline = time.monotonic() + 60
            while ends != set(known):
                assert time.monotonic() < deadline, f"topic {topic} cannot be read"
                message = consumer.poll(1)
                if message is None:
                    continue
                if message.error() is None:
                    found.append(message)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ends.add(message.partition())
                else:
                    raise AssertionError(message.error())
            return found
        finally:
            consumer.close()

    def _prepare(self) -> None:
        shutil.rmtree(self.directory / "data", ignore_errors=True)
        self.port, controller = free_port(), free_port()
        (self.directory / "server.properties").write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{self.port}\n"
            "controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n"
            f"log.dirs={self.directory}/data\n"
            "offsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n"
            "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
            "transaction.state.log.num.partitions=1\n"
            "share.coordinator.state.topic.replication.factor=1\nshare.coordinator.state.topic.min.isr=1\n"
            "group.initial.rebalance.delay.ms=0\nauto.create.topics.enable=false\n"
            # A broker that was killed comes back within seconds.
            "broker.session.timeout.ms=1500\nbroker.heartbeat.interval.ms=300\n"
        )
        cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        self._java("-Xmx128m", "kafka.tools.StorageTool", "format", "-t", cluster).wait(60)

    def _spawn(self) -> subprocess.Popen[bytes]:
        return self._java("-Xms256m", "-Xmx256m", "kafka.Kafka")

    def _is_up(self, offset: int) -> bool:
        return "Kafka Server started" in self._text()[offset:]

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        options = [one for one in arguments if one.startswith("-X")]
        program = arguments[len(options) :]
        after = [
            program[0],
            *program[1:],
            *([] if program[0] == "kafka.Kafka" else ["-c"]),
            "server.properties",
        ]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [
                    components.program_path("java") or "java",
                    *options,
                    "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1",
                    "-Dlog4j2.configurationFile=file:log4j2.xml",
                    "-cp",
                    f"{components.BUILD}/kafka/libs/*",
                    *after,
                ],
                cwd=self.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def headers_of(messages: Iterator[Any] | list[Any]) -> list[dict[str, str]]:
    """The headers of messages as texts."""
    return [{name: value.decode() for name, value in one.headers()} for one in messages]


def positions_of(messages: list[Any]) -> list[dict[str, int]]:
    """The positions in messages of the topic of positions."""
    return [json.loads(one.value()) for one in messages]
