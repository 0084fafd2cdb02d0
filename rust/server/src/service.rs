//! The unary methods: reads each message, hands it to its adapter, and writes the reply or the status.

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

use crate::grpc_status;
use crate::method::Method;
use crate::oip;
use crate::probe::Probe;
use crate::scoring;
use crate::shadow;

/// A reply under way.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Answers one request. Each method has a future of its own size: the largest would cost every other.
pub(crate) fn answer(probe: &Probe, method: Method, request: Request<Incoming>) -> Answering {
    let (services, arrival) = (Arc::clone(probe.services()), Arc::clone(&probe.arrival));
    let limit = services.config.max_message_bytes;
    match method {
        Method::Score => Box::pin(async move {
            answered(match unary::message(request, limit).await {
                Ok(message) => {
                    scoring::score(&services.engine, &arrival, message).await.map_err(grpc_status::of)
                }
                Err(status) => Err(status),
            })
        }),
        Method::ScoreBatch => Box::pin(async move {
            answered(match unary::message(request, limit).await {
                Ok(message) => {
                    scoring::score_batch(&services.engine, &arrival, message).await.map_err(grpc_status::of)
                }
                Err(status) => Err(status),
            })
        }),
        Method::SelectAction => Box::pin(async move {
            answered(match unary::message(request, limit).await {
                Ok(message) => {
                    scoring::select_action(&services.engine, &arrival, message).await.map_err(grpc_status::of)
                }
                Err(status) => Err(status),
            })
        }),
        Method::ModelInfer => Box::pin(async move {
            answered(match unary::message(request, limit).await {
                Ok(message) => oip::infer(&services.engine, &arrival, message).await.map_err(Status::from),
                Err(status) => Err(status),
            })
        }),
        Method::ReportOutcome => Box::pin(async move {
            answered(match unary::message(request, limit).await {
                Ok(message) => scoring::report_outcome(&services.engine, &arrival, message)
                    .await
                    .map_err(grpc_status::of),
                Err(status) => Err(status),
            })
        }),
        Method::Describe => Box::pin(async move {
            let message = unary::message(request, limit).await;
            answered(message.and_then(|message| {
                scoring::describe(&services.engine, &arrival, &message).map_err(grpc_status::of)
            }))
        }),
        Method::Noop => Box::pin(async move {
            let message = unary::message::<NoopRequest>(request, limit).await;
            answered(message.map(|NoopRequest { payload }| NoopResponse { payload }))
        }),
        Method::Observe => Box::pin(async move {
            answered(match unary::message(request, scorer_observe::MAX_MESSAGE).await {
                Ok(message) => shadow::receive(&services, message).map_err(Status::from),
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
