//! `ModelStreamInfer`: one request after another on one stream. Each is admitted, counted and answered
//! separately. An error of one request is reported in its answer and leaves the stream open.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use http::HeaderMap;
use scorer_engine::Rejection;
use scorer_http::message_status;
use scorer_proto::CODE_NAMES;
use scorer_proto::inference::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::error::InferError;
use super::infer::infer;
use super::permitted;
use crate::method::Method;
use crate::probe::{Peer, Probe};
use crate::services::Services;

/// How many answers may wait for a slow reader. While so many wait, the next request is not read.
const AHEAD: usize = 16;
/// Time limit of a message without a deadline, as for a single request.
const WITHOUT_DEADLINE: Duration = Duration::from_secs(5);

/// The answers to a stream.
pub(crate) type Answers = ReceiverStream<Result<ModelStreamInferResponse, Status>>;

/// Answers requests until the caller closes its side, its deadline passes, or the server drains.
pub(crate) fn answers(
    services: Arc<Services>,
    until: Option<Instant>,
    peer: Peer,
    mut headers: HeaderMap,
    mut requests: Streaming<ModelInferRequest>,
) -> Answers {
    // The deadline of a message is that of the stream, not `grpc-timeout` after its own arrival.
    headers.remove("grpc-timeout");
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        let mut draining = pin!(services.health.draining());
        let mut late = pin!(async {
            match until {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        });
        loop {
            let next = tokio::select! {
                next = requests.message() => next,
                () = draining.as_mut() => Err(InferError::from(Rejection::Draining).into()),
                () = late.as_mut() => Err(InferError::from(Rejection::Deadline).into()),
                () = sender.closed() => return,
            };
            let answer = match next {
                Ok(Some(request)) => Ok(answer(&services, until, &peer, &headers, request).await),
                Ok(None) => return,
                Err(status) => Err(message_status::of_stream(status)),
            };
            let last = answer.is_err();
            if sender.send(answer).await.is_err() || last {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

async fn answer(
    services: &Arc<Services>,
    until: Option<Instant>,
    peer: &Peer,
    headers: &HeaderMap,
    request: ModelInferRequest,
) -> ModelStreamInferResponse {
    let (probe, verdict) = Probe::begin(services, Method::ModelStreamInfer, headers, peer, Instant::now());
    if let Some(until) = until {
        probe.arrival.tighten(until.saturating_duration_since(probe.arrival.at));
    }
    let (id, model_name) = (request.id.clone(), request.model_name.clone());
    let answered = match verdict {
        Ok(()) => match permitted(services, &probe.caller(), Ok(request)) {
            Ok(request) => guarded(services, &probe, request).await,
            Err(status) => Err(status),
        },
        Err(status) => Err(status),
    };
    probe.end(answered.as_ref().err().map_or(tonic::Code::Ok, Status::code));
    match answered {
        Ok(response) => {
            ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) }
        }
        Err(status) => {
            // The stream has no field for a code, so the code is put before the text.
            let error_message = format!("[{}] {}", CODE_NAMES[status.code() as usize], status.message());
            let response = ModelInferResponse { id, model_name, ..ModelInferResponse::default() };
            ModelStreamInferResponse { error_message, infer_response: Some(response) }
        }
    }
}

/// Returns the answer, or the status after a panic or at the deadline.
async fn guarded(
    services: &Arc<Services>,
    probe: &Probe,
    request: ModelInferRequest,
) -> Result<ModelInferResponse, Status> {
    let arrival = &*probe.arrival;
    arrival.started();
    let mut answering = pin!(infer(&services.engine, arrival, request));
    let caught = std::future::poll_fn(|context| {
        match catch_unwind(AssertUnwindSafe(|| answering.as_mut().poll(context))) {
            Ok(Poll::Ready(answered)) => Poll::Ready(answered.map_err(Status::from)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panic) => {
                Poll::Ready(Err(InferError::from(services.engine.panicked("request", panic.as_ref())).into()))
            }
        }
    });
    let left = arrival.timeout().unwrap_or(WITHOUT_DEADLINE).saturating_sub(arrival.at.elapsed());
    match tokio::time::timeout(left, caught).await {
        Ok(answered) => answered,
        Err(_) => Err(InferError::from(Rejection::Deadline).into()),
    }
}
