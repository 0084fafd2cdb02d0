//! The unary methods: hands each to its answer path and refusals to their status.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use prost::Message;
use scorer_http::unary;
use scorer_proto::v1::{NoopRequest, NoopResponse};
use tonic::Status;
use tonic::body::Body;

use crate::answer::arrive::Arrival;
use crate::answer::{batch, describe, outcome, score, select};
use crate::metrics::Method;
use crate::oip;
use crate::shadow;
use crate::state::Shared;

/// A reply under way.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Answers one request. Each method has a future of its own size: the largest would cost every other.
pub(crate) fn answer(shared: &Arc<Shared>, arrival: &Arc<Arrival>, request: Request<Incoming>) -> Answering {
    let (shared, arrival) = (Arc::clone(shared), Arc::clone(arrival));
    let limit = shared.config.max_message_bytes;
    match arrival.method {
        Method::Score => Box::pin(async move {
            answered(match unary::message(request, limit).await {
                Ok(message) => score::answer(&shared, &arrival, message).await.map_err(Status::from),
                Err(status) => Err(status),
            })
        }),
        Method::ScoreBatch => Box::pin(async move {
            answered(match unary::message(request, limit).await {
                Ok(message) => batch::answer(&shared, &arrival, message).await.map_err(Status::from),
                Err(status) => Err(status),
            })
        }),
        Method::SelectAction => Box::pin(async move {
            answered(match unary::message(request, limit).await {
                Ok(message) => select::answer(&shared, &arrival, message).await.map_err(Status::from),
                Err(status) => Err(status),
            })
        }),
        Method::ModelInfer => Box::pin(async move {
            answered(match unary::message(request, limit).await {
                Ok(message) => oip::infer(&shared, &arrival, message).await.map_err(Status::from),
                Err(status) => Err(status),
            })
        }),
        Method::ReportOutcome => Box::pin(async move {
            let message = unary::message(request, limit).await;
            answered(message.and_then(|message| Ok(outcome::answer(&shared, &arrival, message)?)))
        }),
        Method::Describe => Box::pin(async move {
            let message = unary::message(request, limit).await;
            answered(message.and_then(|message| Ok(describe::answer(&shared, &arrival, &message)?)))
        }),
        Method::Noop => Box::pin(async move {
            let message = unary::message::<NoopRequest>(request, limit).await;
            answered(message.map(|NoopRequest { payload }| NoopResponse { payload }))
        }),
        Method::Observe => Box::pin(async move {
            answered(match unary::message(request, shadow::MAX_MESSAGE).await {
                Ok(message) => shadow::answer(&shared, message).map_err(Status::from),
                Err(status) => Err(status),
            })
        }),
        Method::ModelStreamInfer | Method::Unknown => {
            let status = Status::unimplemented("no such method here; list them by reflection");
            Box::pin(std::future::ready(Ok(status.into_http())))
        }
    }
}

fn answered<M: Message>(answer: Result<M, Status>) -> Result<Response<Body>, Infallible> {
    Ok(match answer {
        Ok(message) => unary::reply(&message),
        Err(status) => status.into_http(),
    })
}
