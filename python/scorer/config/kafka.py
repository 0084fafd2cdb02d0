"""Settings of clients of Kafka, which shippers and feeds have."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from scorer.config.secrets import from_environment

KafkaName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,200}$")]
"""Name of a topic or of a group of consumers."""
KafkaOptions = Annotated[
    dict[str, str],
    Field(
        description="Further properties of the client (librdkafka), for example for TLS and SASL. $NAME "
        "stands for an environment variable.",
        examples=[{"security.protocol": "SASL_SSL", "sasl.password": "$KAFKA_PASSWORD"}],
    ),
    BeforeValidator(from_environment),
]
"""Further properties of a client."""
