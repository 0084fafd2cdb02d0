//! The messages of `connectrpc.conformance.v1`, as far as a server of gRPC needs them.
#![allow(missing_docs, reason = "the conformance suite documents the fields")]

use prost_types::Any;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ServerCompatRequest {
    #[prost(bool, tag = "4")]
    pub(crate) use_tls: bool,
    #[prost(uint32, tag = "6")]
    pub(crate) message_receive_limit: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ServerCompatResponse {
    #[prost(string, tag = "1")]
    pub(crate) host: String,
    #[prost(uint32, tag = "2")]
    pub(crate) port: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Header {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) value: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Error {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, optional, tag = "2")]
    pub(crate) message: Option<String>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) details: Vec<Any>,
}

/// What a unary reply consists of: data, or an error.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UnaryDefinition {
    #[prost(message, repeated, tag = "1")]
    pub(crate) response_headers: Vec<Header>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) response_data: Vec<u8>,
    #[prost(message, optional, tag = "3")]
    pub(crate) error: Option<Error>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) response_trailers: Vec<Header>,
    #[prost(uint32, tag = "6")]
    pub(crate) response_delay_ms: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StreamDefinition {
    #[prost(message, repeated, tag = "1")]
    pub(crate) response_headers: Vec<Header>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(crate) response_data: Vec<Vec<u8>>,
    #[prost(uint32, tag = "3")]
    pub(crate) response_delay_ms: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) error: Option<Error>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) response_trailers: Vec<Header>,
}

/// `UnaryRequest` and `ClientStreamRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UnaryRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) response_definition: Option<UnaryDefinition>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) request_data: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ServerStreamRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) response_definition: Option<StreamDefinition>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) request_data: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct BidiStreamRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) response_definition: Option<StreamDefinition>,
    #[prost(bool, tag = "2")]
    pub(crate) full_duplex: bool,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) request_data: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RequestInfo {
    #[prost(message, repeated, tag = "1")]
    pub(crate) request_headers: Vec<Header>,
    #[prost(int64, optional, tag = "2")]
    pub(crate) timeout_ms: Option<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) requests: Vec<Any>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Payload {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) data: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    pub(crate) request_info: Option<RequestInfo>,
}

/// The reply of every method.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Reply {
    #[prost(message, optional, tag = "1")]
    pub(crate) payload: Option<Payload>,
}

/// `google.rpc.Status`, which `grpc-status-details-bin` carries.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) details: Vec<Any>,
}
