//! Generated protobuf messages and gRPC stubs, and the names of gRPC's codes.
//!
//! `make proto` regenerates `generated/` from `protos/`; `tests/generated.rs` fails where they differ.

#![forbid(unsafe_code)]

pub mod decoded;

/// `scorer.v1`: scoring, control and decision-log messages.
#[expect(
    missing_docs,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code; the documentation stands in the .proto files"
)]
pub mod v1 {
    include!("generated/scorer.v1.rs");
}

/// `inference`: the Open Inference Protocol.
#[expect(
    missing_docs,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code; the documentation stands in the .proto files"
)]
pub mod inference {
    include!("generated/inference.rs");
}

/// The part of the OpenTelemetry protocol that exports traces.
#[expect(
    missing_docs,
    clippy::allow_attributes_without_reason,
    reason = "generated code; the documentation stands in the .proto files"
)]
#[allow(clippy::all, reason = "generated code")]
pub mod otlp {
    include!("generated/opentelemetry.proto.collector.trace.v1.rs");
}

/// The encoded `FileDescriptorSet` of the served protocols in `protos/`, for reflection and the contract test.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/descriptors.bin");

/// The names of gRPC's status codes, in order of their numbers.
pub const CODE_NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
