//! The unary methods: reads each message, passes it to the adapter of its method, and writes the reply or the status.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use http::{Request, Response};
use hyper::body::Incoming;
use prost::Message;
use scorer_http::unary;
use scorer_identity::Role;
use scorer_observe::MAX_MESSAGE;
use scorer_proto::decoded::{Decoded, is_within};
use scorer_proto::inference::ModelInferRequest;
use scorer_proto::v1::{
    DecideRequest, DescribeRequest, ExplainRequest, NoopRequest, NoopResponse, ObserveRequest,
    OutcomeSourceKind, RecordEventsRequest, ReportOutcomeRequest, ScoreBatchRequest, ScoreRequest,
    SelectActionRequest,
};
use tonic::Status;
use tonic::body::Body;

use crate::answering::{Answering, DECODED};
use crate::features::record_events;
use crate::grpc_status;
use crate::method::Method;
use crate::oip;
use crate::probe::{Caller, Probe};
use crate::scoring;
use crate::services::Services;
use crate::shadow;
use crate::share::Held;

/// Answers one request. Each method has its own boxed future: one common future would have the size of the largest for
/// all methods.
pub(crate) fn answer(probe: &Probe, method: Method, request: Request<Incoming>, held: Held) -> Answering {
    let (services, arrival) = (Arc::clone(probe.services()), Arc::clone(&probe.arrival));
    let caller = probe.caller();
    let reader = Reader { services: Arc::clone(&services), arrived: arrival.at, held };
    match method {
        Method::Score => Box::pin(async move {
            let message = reader.row::<ScoreRequest>(request).await;
            answered(match at(&services, &caller, Role::Score, message, |message| &message.checkpoint) {
                Ok(message) => {
                    scoring::score(&services.engine, &arrival, message).await.map_err(grpc_status::of)
                }
                Err(status) => Err(status),
            })
        }),
        Method::ScoreBatch => Box::pin(async move {
            let message = reader.batch::<ScoreBatchRequest>(request).await;
            answered(match at(&services, &caller, Role::Score, message, |message| &message.checkpoint) {
                Ok(message) => {
                    scoring::score_batch(&services.engine, &arrival, message).await.map_err(grpc_status::of)
                }
                Err(status) => Err(status),
            })
        }),
        Method::SelectAction => Box::pin(async move {
            let message = reader.row::<SelectActionRequest>(request).await;
            answered(match at(&services, &caller, Role::Select, message, |message| &message.checkpoint) {
                Ok(message) => {
                    scoring::select_action(&services.engine, &arrival, message).await.map_err(grpc_status::of)
                }
                Err(status) => Err(status),
            })
        }),
        Method::Decide => Box::pin(async move {
            let message = reader.row::<DecideRequest>(request).await;
            answered(match decide_permitted(&services, &caller, message) {
                Ok(message) => {
                    scoring::decide(&services.engine, &arrival, message).await.map_err(grpc_status::of)
                }
                Err(status) => Err(status),
            })
        }),
        Method::ModelInfer => Box::pin(async move {
            let message = reader.batch::<ModelInferRequest>(request).await;
            answered(match oip::permitted(&services, &caller, message) {
                Ok(message) => oip::infer(&services.engine, &arrival, message).await.map_err(Status::from),
                Err(status) => Err(status),
            })
        }),
        Method::ReportOutcome => Box::pin(async move {
            let message = reader.flat::<ReportOutcomeRequest>(request).await;
            answered(match report_permitted(&services, &caller, message) {
                Ok(message) => scoring::report_outcome(&services.engine, &arrival, message)
                    .await
                    .map_err(grpc_status::of),
                Err(status) => Err(status),
            })
        }),
        Method::RecordEvents => Box::pin(async move {
            let message = reader.batch::<RecordEventsRequest>(request).await.and_then(|message| {
                services.security.check(caller.0.as_deref(), Role::RecordEvents, None)?;
                Ok(message)
            });
            answered(match message {
                Ok(message) => {
                    let store = services.features.as_deref();
                    record_events(&services.engine, store, services.redis.is_some(), &arrival, message)
                        .await
                        .map_err(grpc_status::of)
                }
                Err(status) => Err(status),
            })
        }),
        Method::Describe => Box::pin(async move {
            let message = reader.flat::<DescribeRequest>(request).await;
            answered(message.and_then(|message| {
                if !message.checkpoint.is_empty() {
                    services.security.check(
                        caller.0.as_deref(),
                        Role::Describe,
                        Some(&message.checkpoint),
                    )?;
                }
                let mut response =
                    scoring::describe(&services.engine, &arrival, &message).map_err(grpc_status::of)?;
                if let Some(access) = &caller.0 {
                    response.checkpoints.retain(|known| access.allows(Role::Describe, &known.checkpoint));
                }
                Ok(response)
            }))
        }),
        Method::Explain => Box::pin(async move {
            let message = reader.row::<ExplainRequest>(request).await;
            answered(match at(&services, &caller, Role::Explain, message, |message| &message.checkpoint) {
                Ok(message) => scoring::explain(&services, &arrival, message).await.map_err(grpc_status::of),
                Err(status) => Err(status),
            })
        }),
        Method::Noop => Box::pin(async move {
            let message = reader.flat::<NoopRequest>(request).await;
            answered(message.map(|NoopRequest { payload }| NoopResponse { payload }))
        }),
        Method::Observe => Box::pin(async move {
            let message = reader.observation(request).await;
            answered(match shadow::permitted(&services, &caller, message) {
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

/// Reads the message of one request, within the limits of its method.
struct Reader {
    services: Arc<Services>,
    arrived: Instant,
    /// Counts the bytes of the message until the request is answered.
    held: Held,
}

// === impl Reader ===

impl Reader {
    /// Reads a message about one row.
    async fn row<M: Message + Default + Decoded>(&self, request: Request<Incoming>) -> Result<M, Status> {
        self.bounded(request, self.services.config.max_message_bytes, is_within::<M>).await
    }

    /// Reads a message of many rows.
    async fn batch<M: Message + Default + Decoded>(&self, request: Request<Incoming>) -> Result<M, Status> {
        self.bounded(request, self.services.config.max_batch_bytes, is_within::<M>).await
    }

    /// Reads a message without repeated elements.
    async fn flat<M: Message + Default>(&self, request: Request<Incoming>) -> Result<M, Status> {
        self.bounded(request, self.services.config.max_message_bytes, |_, _| true).await
    }

    /// Reads a message that a live server sends to a shadow pool.
    async fn observation(&self, request: Request<Incoming>) -> Result<ObserveRequest, Status> {
        self.bounded(request, MAX_MESSAGE, is_within::<ObserveRequest>).await
    }

    async fn bounded<M: Message + Default>(
        &self,
        request: Request<Incoming>,
        length: usize,
        is_within: fn(&[u8], usize) -> bool,
    ) -> Result<M, Status> {
        let Services { config, counters, .. } = &*self.services;
        let bounds = unary::Bounds {
            length,
            decoded: length.saturating_mul(DECODED),
            is_within,
            arrived: &|bytes| arrived(&self.services, &self.held, bytes),
            until: self.arrived + config.body_timeout(),
            limited: &|limit| counters.limited(limit),
        };
        unary::message(request, bounds).await
    }
}

/// Counts the bytes of a message that have arrived.
///
/// # Errors
/// RESOURCE_EXHAUSTED if they exceed the limit of the peer or of the server.
pub(crate) fn arrived(services: &Services, held: &Held, bytes: usize) -> Result<(), Status> {
    held.set(bytes).map_err(|limit| {
        services.counters.limited(limit);
        grpc_status::of_bytes(limit)
    })
}

/// Returns the message if its caller has the role at the checkpoint that the message names.
fn at<M>(
    services: &Services,
    caller: &Caller,
    role: Role,
    message: Result<M, Status>,
    checkpoint: impl FnOnce(&M) -> &str,
) -> Result<M, Status> {
    let message = message?;
    services.security.check(caller.0.as_deref(), role, Some(checkpoint(&message)))?;
    Ok(message)
}

/// Returns the message if its caller may score at the first checkpoint and select at the second.
fn decide_permitted(
    services: &Services,
    caller: &Caller,
    message: Result<DecideRequest, Status>,
) -> Result<DecideRequest, Status> {
    let message = message?;
    let checkpoints = [
        (Role::Score, message.score.as_ref().map(|step| &*step.checkpoint)),
        (Role::Select, message.action.as_ref().map(|step| &*step.checkpoint)),
    ];
    for (role, checkpoint) in checkpoints {
        // A request without one of the steps is rejected afterwards.
        services.security.check(caller.0.as_deref(), role, checkpoint)?;
    }
    Ok(message)
}

/// Returns the report if its caller may report outcomes of its source at the checkpoint.
fn report_permitted(
    services: &Services,
    caller: &Caller,
    message: Result<ReportOutcomeRequest, Status>,
) -> Result<ReportOutcomeRequest, Status> {
    let message = message?;
    let is_review =
        message.source.as_ref().is_some_and(|source| source.kind() == OutcomeSourceKind::Reviewer);
    let role = if is_review { Role::ReportReviews } else { Role::ReportOutcomes };
    services.security.check(caller.0.as_deref(), role, Some(&message.checkpoint))?;
    Ok(message)
}

fn answered<M: Message>(answer: Result<M, Status>) -> Result<Response<Body>, Infallible> {
    Ok(match answer {
        Ok(message) => unary::reply(&message),
        Err(status) => status.into_http(),
    })
}
