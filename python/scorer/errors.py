"""Every error that scorer raises on purpose.

::

    ScorerError
    ├── ConfigError                 settings that cannot be used (exit code 64)
    ├── ForestError                 a model that cannot be converted, read or evaluated
    │   └── UnsupportedModelError   ... because it uses something that is refused by name
    ├── BundleError                 a bundle that cannot be built, read or trusted
    │   └── SignatureError          ... because of its signature, or a key that cannot be used
    ├── RegistryError               what a registry refuses
    │   ├── InvalidReferenceError   not a digest, prefix or name@alias
    │   ├── UnknownReferenceError   nothing in the registry is called that
    │   ├── AmbiguousReferenceError a prefix that fits several bundles
    │   └── RegistryUnavailableError  missing, unreadable or damaged; worth retrying
    ├── BatchError                  rows that cannot be scored in a batch, or an output that is refused
    ├── BackupError                 a backup that cannot be made, or not be trusted
    ├── LogError                    the decision log cannot be written or read
    ├── ShipError                   a decision log cannot be shipped to a sink
    │   └── SinkUnavailableError    ... because the sink does not answer; a later try may succeed
    ├── FeedError                   events that cannot be brought to the state of features
    │   ├── FeedUnavailableError    ... because a service does not answer; a later try may succeed
    │   └── PositionMovedError      ... because another process has moved the position, or it was lost
    ├── OperatorError               what the Kubernetes operator refuses, or cannot do
    │   └── ClusterError            a request that the Kubernetes API did not fulfil
    ├── ServerError                 the data plane cannot start, stop or do what is asked
    │   ├── LoadError               a bundle that the data plane refuses to load
    │   └── SwapError               a lane table that the data plane refuses
    ├── ControlError                a change that the control plane refuses
    │   ├── UnknownCheckpointError  the settings define no such checkpoint
    │   ├── CheckpointExistsError   a checkpoint of this name has other settings
    │   ├── InvalidLanesError       lanes that cannot be served
    │   ├── NothingToRestoreError   no earlier lanes to roll back to
    │   ├── StaleLaneTableError     decided on a lane table that has been replaced since
    │   ├── ManagedCheckpointError  a platform manages the checkpoint
    │   └── ControlUnavailableError the control service does not answer, or is stopping
    ├── ClientError                 a request to a server that did not succeed
    └── ForkedProcessError          a native object used in a forked child

The message names the thing, the rule and the remedy, in one line. The command line
prints it as ``error: <message>`` and exits with the class's ``exit_code``.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AmbiguousReferenceError",
    "BackupError",
    "BatchError",
    "BundleError",
    "CheckpointExistsError",
    "ClientError",
    "ClusterError",
    "ConfigError",
    "ControlError",
    "ControlUnavailableError",
    "FeedError",
    "FeedUnavailableError",
    "ForestError",
    "ForkedProcessError",
    "InvalidLanesError",
    "InvalidReferenceError",
    "LoadError",
    "LogError",
    "ManagedCheckpointError",
    "NothingToRestoreError",
    "OperatorError",
    "PositionMovedError",
    "RegistryError",
    "RegistryUnavailableError",
    "ScorerError",
    "ServerError",
    "ShipError",
    "SignatureError",
    "SinkUnavailableError",
    "StaleLaneTableError",
    "SwapError",
    "UnknownCheckpointError",
    "UnknownReferenceError",
    "UnsupportedModelError",
]


class ScorerError(Exception):
    """Base of every error that scorer raises on purpose."""

    exit_code: ClassVar[int] = 1


class ConfigError(ScorerError):
    """Settings that cannot be used. One line per mistake."""

    exit_code = 64


class BackupError(ScorerError):
    """A backup that cannot be made, or that is incomplete or altered."""


class BatchError(ScorerError):
    """Rows that cannot be scored in a batch, or an output that cannot be written or continued."""


class ForestError(ScorerError):
    """A model that cannot be converted, read or evaluated."""


class UnsupportedModelError(ForestError):
    """A model that uses something the forest engine refuses by name."""


class BundleError(ScorerError):
    """A bundle that cannot be built, read or trusted."""


class SignatureError(BundleError):
    """A signature that is missing or not accepted, or a key that cannot be used."""


class RegistryError(ScorerError):
    """A request that the registry rejected, or could not answer."""


class InvalidReferenceError(RegistryError):
    """Text that is neither a digest, a prefix of one, nor ``name@alias``."""


class UnknownReferenceError(RegistryError):
    """Nothing in the registry is called that."""


class AmbiguousReferenceError(RegistryError):
    """A prefix that fits several bundles."""


class AliasMovedError(RegistryError):
    """An alias was moved by another process since it was read."""


class RegistryUnavailableError(RegistryError):
    """The registry is missing, unreadable or damaged; a later try may succeed."""


class LogError(ScorerError):
    """The decision log cannot be written or read."""


class ShipError(ScorerError):
    """A decision log that cannot be shipped, or a sink that must not be written."""


class SinkUnavailableError(ShipError):
    """A sink, or the log's disk, that does not answer; a later try may succeed."""


class FeedError(ScorerError):
    """Events that a feed cannot bring to the state of features."""


class FeedUnavailableError(FeedError):
    """A broker, a server or Redis that does not answer; a later try may succeed."""


class PositionMovedError(FeedError):
    """The position of a partition was moved by another process or lost; it must be read again."""


class OperatorError(ScorerError):
    """A custom resource that the Kubernetes operator refuses, or a step that it cannot take."""


class ClusterError(OperatorError):
    """A request that the Kubernetes API did not fulfil.

    Attributes:
        status: HTTP status; 0 if there was no answer.
        fields: Of a conflict, the fields that another manager has changed.
    """

    def __init__(self, message: str, status: int = 0, fields: tuple[str, ...] = ()) -> None:
        self.status, self.fields = status, fields
        super().__init__(message)


class ServerError(ScorerError):
    """The data plane cannot start, stop or do what is asked."""


class LoadError(ServerError):
    """A bundle that the data plane refuses to load."""


class SwapError(ServerError):
    """A lane table that the data plane refuses."""


class ControlError(ScorerError):
    """A change that the control plane refuses."""


class UnknownCheckpointError(ControlError):
    """The settings define no such checkpoint."""


class CheckpointExistsError(ControlError):
    """A checkpoint of this name has other settings."""


class InvalidLanesError(ControlError):
    """Lanes that cannot be served."""


class NothingToRestoreError(ControlError):
    """There are no earlier lanes to roll back to."""


class StaleLaneTableError(ControlError):
    """The lane table that a change was decided on has been replaced since."""


class ManagedCheckpointError(ControlError):
    """A platform manages the checkpoint; its answer lanes are changed by change requests."""


class ControlUnavailableError(ControlError):
    """The control service does not answer, or is stopping."""


class ClientError(ScorerError):
    """A call that gave no answer. `str()` is one line: what, the rule, the remedy.

    Attributes:
        message: What went wrong, in the server's words where it has spoken.
        code: The gRPC status name, such as "UNAVAILABLE"; "" where nothing was sent.
        checkpoint: The checkpoint that was asked, or "".
        request_id: The id that every attempt carried, or "".
        remedy: What to do about it, or "".
        attempts: How many times the request was sent.
    """

    default_remedy = ""

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        checkpoint: str = "",
        request_id: str = "",
        remedy: str | None = None,
        attempts: int = 0,
    ) -> None:
        self.message = message
        self.code = code
        self.checkpoint = checkpoint
        self.request_id = request_id
        self.remedy = self.default_remedy if remedy is None else remedy
        self.attempts = attempts
        super().__init__(message)

    def __str__(self) -> str:
        """One line: what went wrong, the known facts, the remedy."""
        parts = [f"{self.checkpoint}: {self.message}" if self.checkpoint else self.message]
        facts = [
            self.code,
            f"request {self.request_id}" if self.request_id else "",
            f"{self.attempts} attempts" if self.attempts > 1 else "",
        ]
        known = ", ".join(fact for fact in facts if fact)
        if known:
            parts.append(f" ({known})")
        if self.remedy:
            parts.append(f"; {self.remedy}")
        return " ".join("".join(parts).split())


class FeatureStoreError(ScorerError):
    """The store of computed features is absent, or cannot write what a call asks for."""


class ForkedProcessError(ScorerError):
    """A native object was used in a forked child process."""
