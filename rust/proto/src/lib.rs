//! Generated protobuf messages and gRPC stubs, and the names of gRPC's codes.

#![forbid(unsafe_code)]

/// `scorer.v1`: scoring, control and decision-log messages.
#[expect(
    missing_docs,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code; the documentation stands in the .proto files"
)]
pub mod v1 {
    tonic::include_proto!("scorer.v1");
}

/// `inference`: the Open Inference Protocol.
#[expect(
    missing_docs,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code; the documentation stands in the .proto files"
)]
pub mod inference {
    tonic::include_proto!("inference");
}

/// The encoded `FileDescriptorSet` of `protos/`, for reflection and the contract test.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

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
