//! The codec of `ModelStreamInfer`: that of prost, after a check that the decoded message stays within its memory
//! limit.

use std::pin::Pin;
use std::sync::Arc;

use http::Request as HttpRequest;
use prost::Message as _;
use prost::bytes::Buf as _;
use scorer_http::Limit;
use scorer_proto::decoded::is_within;
use scorer_proto::inference::grpc_inference_service_server::GrpcInferenceService as _;
use scorer_proto::inference::{ModelInferRequest, ModelStreamInferResponse};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, StreamingService};
use tonic::{Request, Response, Status, Streaming};

use super::{Inference, stream};
use crate::answering::{Answering, DECODED};
use crate::metered::Metered;
use crate::services::Services;

/// Answers a call of `ModelStreamInfer`.
pub(crate) fn stream_infer(services: &Arc<Services>, request: HttpRequest<Metered>) -> Answering {
    let length = services.config.max_batch_bytes;
    let codec = Checked { services: Arc::clone(services), decoded: length.saturating_mul(DECODED) };
    let called = Called(Arc::new(Inference::new(Arc::clone(services))));
    Box::pin(async move {
        let mut grpc = Grpc::new(codec).apply_max_message_size_config(Some(length), None);
        Ok(grpc.streaming(called, request).await)
    })
}

struct Called(Arc<Inference>);

impl StreamingService<ModelInferRequest> for Called {
    type Response = ModelStreamInferResponse;
    type ResponseStream = stream::Answers;
    type Future = Pin<Box<dyn Future<Output = Result<Response<stream::Answers>, Status>> + Send>>;

    fn call(&mut self, request: Request<Streaming<ModelInferRequest>>) -> Self::Future {
        let inference = Arc::clone(&self.0);
        Box::pin(async move { inference.model_stream_infer(request).await })
    }
}

#[derive(Clone)]
struct Checked {
    services: Arc<Services>,
    /// Limit on the memory of a decoded message in bytes.
    decoded: usize,
}

/// The encoder of answers.
struct Plain;

impl Codec for Checked {
    type Encode = ModelStreamInferResponse;
    type Decode = ModelInferRequest;
    type Encoder = Plain;
    type Decoder = Checked;

    fn encoder(&mut self) -> Plain {
        Plain
    }

    fn decoder(&mut self) -> Checked {
        self.clone()
    }
}

impl Encoder for Plain {
    type Item = ModelStreamInferResponse;
    type Error = Status;

    fn encode(&mut self, answer: ModelStreamInferResponse, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        answer.encode(to).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for Checked {
    type Item = ModelInferRequest;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<ModelInferRequest>, Status> {
        let message = from.copy_to_bytes(from.remaining());
        if !is_within::<ModelInferRequest>(&message, self.decoded) {
            self.services.counters.limited(Limit::DecodedBytes);
            return Err(Status::resource_exhausted(format!(
                "the message has so many elements that it would take more than {} bytes of memory; send fewer at once",
                self.decoded
            )));
        }
        ModelInferRequest::decode(message).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
