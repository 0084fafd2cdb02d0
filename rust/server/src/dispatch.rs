//! The adapter between HTTP and the services: the first stages of the answer path, and the counters at its end.

use std::any::Any;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use http::{HeaderMap, Request, Response};
use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};
use rustls::pki_types::CertificateDer;
use scorer_engine::{Level, Rejection};
use scorer_http::{ConnectionEnd, ConnectionEvents, Handler, Limit, not_grpc};
use scorer_identity::Role as Permission;
use scorer_proto::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use serde_json::json;
use tokio::time::{Sleep, sleep};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Code, Status};
use tonic_health::pb::health_server::HealthServer;

use crate::answering::Answering;
use crate::config::Role;
use crate::grpc_status;
use crate::health::Health;
use crate::metered::Metered;
use crate::method::Method;
use crate::oip::{self, Inference};
use crate::probe::{Caller, Peer, Probe};
use crate::service;
use crate::services::Services;
use crate::shadow::ShadowError;
use crate::share::ShareGuard;

/// Time after which a request without a deadline is cancelled. It can only be waiting for its own body or for a
/// concurrent duplicate.
const WITHOUT_DEADLINE: Duration = Duration::from_secs(5);
/// Longest effective deadline. No event for which a request waits takes longer.
const LONGEST: Duration = Duration::from_secs(60);
/// Greatest length of a message of health checks and reflection, which contains a name.
const SMALL: usize = 4 << 10;
const GRPC_STATUS: &str = "grpc-status";
/// Prefixes of the paths of services whose requests are admitted and counted.
const SCORING: &str = "/scorer.v1.ScoringService/";
const INFERENCE: &str = "/inference.GRPCInferenceService/";
const SHADOW: &str = "/scorer.v1.ShadowService/";

/// All services of one listener. Cloning it is cheap.
#[derive(Clone)]
pub(crate) struct Dispatch {
    services: Arc<Services>,
    /// The peer of the connection.
    peer: Peer,
    inference: GrpcInferenceServiceServer<Inference>,
    health: HealthServer<Health>,
    reflection_v1: Unnamed,
    reflection_v1alpha: Unnamed,
}

/// A service whose type cannot be named.
type Unnamed = Arc<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>;

/// The future of one request, which resolves to its reply.
pub(crate) struct Answer {
    state: State,
}

enum State {
    /// The request was rejected before its body is read, or answered at once. Empty after the reply has been returned.
    Ready(Option<Response<Reply>>),
    /// The request is answered with a status of HTTP.
    NotGrpc { response: Pin<Box<dyn Future<Output = Response<Body>> + Send>>, services: Arc<Services> },
    /// The request was admitted and is counted.
    Counted { request: Guarded, probe: Probe, polled: bool },
    /// A request for health, reflection or metadata of the Open Inference Protocol, which is neither subject to
    /// admission nor counted by method.
    Auxiliary { request: Guarded, services: Arc<Services>, arrived: Instant, share: ShareGuard },
}

/// A request whose panics are caught and whose time is limited.
struct Guarded {
    answering: Answering,
    /// The timer, which is created only if the request must wait. Most requests never wait.
    timer: Option<Timer>,
}

/// Ends a request that waits for too long.
struct Timer {
    /// The limit for which it was set. The message may contain a shorter one.
    limit: Duration,
    sleep: Pin<Box<Sleep>>,
}

/// The reason why a request ended without its own reply.
enum Cut {
    Late,
    Panicked(Box<dyn Any + Send>),
}

/// The body of a reply. Dropping it ends the request: the reply has then been passed to the transport or cancelled.
pub(crate) struct Reply {
    body: Body,
    services: Arc<Services>,
    probe: Option<Probe>,
    /// The share of a request without a probe.
    _share: Option<ShareGuard>,
}

// === impl Dispatch ===

impl Dispatch {
    pub(crate) fn new(services: &Arc<Services>) -> Result<Dispatch, tonic_reflection::server::Error> {
        let role = services.config.role;
        let inference = GrpcInferenceServiceServer::new(Inference::new(Arc::clone(services)))
            .max_decoding_message_size(services.config.max_batch_bytes);
        let v1 = reflection(role, "grpc.reflection.v1.ServerReflection")
            .build_v1()?
            .max_decoding_message_size(SMALL);
        let v1alpha = reflection(role, "grpc.reflection.v1alpha.ServerReflection")
            .build_v1alpha()?
            .max_decoding_message_size(SMALL);
        Ok(Dispatch {
            services: Arc::clone(services),
            peer: Peer::of(services, scorer_http::Peer::UnknownUser),
            inference,
            health: HealthServer::new(services.health.clone()).max_decoding_message_size(SMALL),
            reflection_v1: Arc::new(move |request| v1.clone().call(request)),
            reflection_v1alpha: Arc::new(move |request| v1alpha.clone().call(request)),
        })
    }

    fn counted(&self, method: Method, request: Request<Incoming>, arrived: Instant) -> Answer {
        let (probe, verdict) = Probe::begin(&self.services, method, request.headers(), &self.peer, arrived);
        if let Err(status) = verdict.and_then(|()| Ok(self.check_role(method)?)) {
            return Answer { state: State::Ready(Some(counted(status.into_http(), probe))) };
        }
        let answering = service::answer(&probe, method, request, self.peer.hold());
        Answer { state: State::Counted { request: Guarded::new(answering), probe, polled: false } }
    }

    /// Checks that the method is for the server's role: a shadow pool does not answer, and a live server does not
    /// receive observations.
    fn check_role(&self, method: Method) -> Result<(), ShadowError> {
        match (self.services.config.role, method) {
            (_, Method::Unknown) => Ok(()),
            (Role::Live, Method::Observe) => Err(ShadowError::NotShadow),
            (Role::Shadow, method) if method != Method::Observe => Err(self.shadow()),
            (Role::Live | Role::Shadow, _) => Ok(()),
        }
    }

    fn shadow(&self) -> ShadowError {
        ShadowError::Shadow { sender: self.services.senders.last() }
    }

    fn auxiliary(&self, mut request: Request<Incoming>, arrived: Instant) -> Answer {
        if !is_open(request.uri().path()) {
            let security = &self.services.security;
            let caller = security.caller(&self.peer.credential, request.headers()).and_then(|caller| {
                // The messages of a stream are checked one by one.
                if request.uri().path().strip_prefix(INFERENCE) != Some("ModelStreamInfer") {
                    security.check(caller.as_deref(), Permission::Describe, None)?;
                }
                Ok(caller)
            });
            match caller {
                Ok(caller) => _ = request.extensions_mut().insert(Caller(caller)),
                Err(status) => return self.ready(status),
            }
        }
        request.extensions_mut().insert(self.peer.clone());
        let path = request.uri().path();
        let answering: Answering = if path.starts_with(INFERENCE) && self.services.config.role == Role::Shadow
        {
            return self.ready(Status::from(self.shadow()));
        } else if let Some(method) = path.strip_prefix(INFERENCE) {
            match oip::not_offered(method) {
                Some(status) => return self.ready(status),
                None => {
                    let stream = method == "ModelStreamInfer";
                    let (services, held) = (Arc::clone(&self.services), self.peer.hold());
                    let arrived = Box::new(move |bytes| service::arrived(&services, &held, bytes));
                    let request = request.map(|body| Metered::new(body, arrived));
                    if stream {
                        oip::stream_infer(&self.services, request)
                    } else {
                        self.inference.clone().call(request)
                    }
                }
            }
        } else if path.starts_with("/grpc.health.v1.Health/") {
            self.health.clone().call(request)
        } else if path.starts_with("/grpc.reflection.v1.ServerReflection/") {
            (self.reflection_v1)(request)
        } else if path.starts_with("/grpc.reflection.v1alpha.ServerReflection/") {
            (self.reflection_v1alpha)(request)
        } else {
            return self
                .ready(Status::unimplemented("no such service here; list the services by reflection"));
        };
        // The reply may be an endless stream, so the guard of the share is kept with the reply.
        let share = match self.peer.enter() {
            Ok(share) => share,
            Err(rejection) => {
                self.services.counters.rejected(&rejection);
                return self.ready(grpc_status::of(rejection));
            }
        };
        let (request, services) = (Guarded::new(answering), Arc::clone(&self.services));
        Answer { state: State::Auxiliary { request, services, arrived, share } }
    }

    /// Creates a reply that contains only a status.
    fn ready(&self, status: Status) -> Answer {
        let response = status.into_http::<Body>();
        Answer { state: State::Ready(Some(auxiliary(&self.services, response, None))) }
    }
}

impl Handler for Dispatch {
    type Body = Reply;
    type Future = Answer;

    fn for_peer(&self, peer: scorer_http::Peer) -> Dispatch {
        Dispatch { peer: Peer::of(&self.services, peer), ..self.clone() }
    }

    fn for_certificates(&self, certificates: &[CertificateDer<'static>]) -> Dispatch {
        let credential = self.services.security.of_certificates(certificates);
        Dispatch { peer: self.peer.with(credential), ..self.clone() }
    }

    fn principal(&self) -> Option<u64> {
        self.peer.credential.key()
    }

    fn handle(&self, request: Request<Incoming>, arrived: Instant) -> Answer {
        if let Some(status) = not_grpc::status(&request) {
            let response = Box::pin(not_grpc::answer(status, request.into_body()));
            return Answer { state: State::NotGrpc { response, services: Arc::clone(&self.services) } };
        }
        let path = request.uri().path();
        let method = match path.strip_prefix(SCORING) {
            Some(name) => Some(Method::from_name(name)),
            None if path.strip_prefix(INFERENCE) == Some("ModelInfer") => Some(Method::ModelInfer),
            None => path.strip_prefix(SHADOW).map(|name| match name {
                "Observe" => Method::Observe,
                _ => Method::Unknown,
            }),
        };
        match method {
            Some(method) => self.counted(method, request, arrived),
            None => self.auxiliary(request, arrived),
        }
    }
}

impl ConnectionEvents for Services {
    fn accept_failed(&self, error: &io::Error, exhausted: bool) {
        self.counters.connections.accept_errors.fetch_add(1, Relaxed);
        if exhausted {
            let remedy = "raise the limit of open files or lower max_connections";
            let fields = json!({"error": error.to_string(), "remedy": remedy});
            self.engine.events.push(Level::Error, "accept_failed", fields);
        }
    }

    fn limited(&self, limit: Limit) {
        self.counters.limited(limit);
        if limit.is_at_accept() {
            self.counters.connections.refused.fetch_add(1, Relaxed);
        }
    }

    fn misused(&self, peer: scorer_http::Peer, limit: Limit) {
        self.security.misused(peer, limit, self.config.misuse_pause_seconds);
    }

    fn opened(&self) {
        self.counters.connections.open.fetch_add(1, Relaxed);
    }

    fn closed(&self, end: ConnectionEnd) {
        let connections = &self.counters.connections;
        connections.open.fetch_sub(1, Relaxed);
        match end {
            ConnectionEnd::Closed => {}
            ConnectionEnd::NoHandshake(failure) => self.security.no_handshake(failure),
            ConnectionEnd::NoPreface => _ = connections.no_preface.fetch_add(1, Relaxed),
            ConnectionEnd::Failed | ConnectionEnd::Limited(_) => _ = connections.failed.fetch_add(1, Relaxed),
            ConnectionEnd::Panicked(panic) => {
                connections.failed.fetch_add(1, Relaxed);
                // There is no request to which the id could be returned; the event contains it.
                let _ = self.engine.panicked("connection", panic.as_ref());
            }
        }
    }
}

/// Whether a path is answered without a credential. This is the case for health checks, because probes have none, and
/// the reply states only whether a name serves.
fn is_open(path: &str) -> bool {
    path.starts_with("/grpc.health.v1.Health/")
        || path.strip_prefix(INFERENCE).is_some_and(|method| matches!(method, "ServerLive" | "ServerReady"))
}

/// Creates the reflection service of the served services. The descriptors also contain the control service, which is
/// not served here.
fn reflection(role: Role, own_name: &str) -> tonic_reflection::server::Builder<'static> {
    let builder = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(scorer_proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name("grpc.health.v1.Health")
        .with_service_name(own_name);
    crate::health::services(role).iter().fold(builder, |builder, &name| builder.with_service_name(name))
}

// === impl Answer ===

impl Future for Answer {
    type Output = Result<Response<Reply>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let response = match &mut self.state {
            State::Ready(response) => {
                return response.take().map_or(Poll::Pending, |response| Poll::Ready(Ok(response)));
            }
            State::NotGrpc { response, services } => {
                let response = ready!(response.as_mut().poll(context));
                return Poll::Ready(Ok(response.map(|body| Reply::uncounted(services, body, None))));
            }
            State::Auxiliary { request, services, arrived, .. } => {
                ready!(request.poll(*arrived, || WITHOUT_DEADLINE, context))
                    .unwrap_or_else(|cut| cut.response(services))
            }
            State::Counted { request, probe, polled } => {
                let (services, arrival) = (Arc::clone(probe.services()), &*probe.arrival);
                let late = if std::mem::replace(polled, true) {
                    None
                } else {
                    arrival.started();
                    arrival.check_deadline().err()
                };
                match late {
                    // The body of a late request is not read.
                    Some(late) => grpc_status::of(late).into_http(),
                    None => {
                        let limit = || arrival.timeout().unwrap_or(WITHOUT_DEADLINE).min(LONGEST);
                        ready!(request.poll(arrival.at, limit, context))
                            .unwrap_or_else(|cut| cut.response(&services))
                    }
                }
            }
        };
        Poll::Ready(Ok(match std::mem::replace(&mut self.state, State::Ready(None)) {
            State::Counted { probe, .. } => counted(response, probe),
            State::Auxiliary { services, share, .. } => auxiliary(&services, response, Some(share)),
            State::Ready(_) | State::NotGrpc { .. } => return Poll::Pending,
        }))
    }
}

// === impl Guarded ===

impl Guarded {
    fn new(answering: Answering) -> Guarded {
        Guarded { answering, timer: None }
    }

    /// Polls the request, at most until `limit` after `arrived`.
    fn poll(
        &mut self,
        arrived: Instant,
        limit: impl FnOnce() -> Duration,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<Body>, Cut>> {
        let Guarded { answering, timer } = self;
        match catch_unwind(AssertUnwindSafe(|| answering.as_mut().poll(context))) {
            Ok(Poll::Ready(Ok(response))) => Poll::Ready(Ok(response)),
            Ok(Poll::Pending) => {
                let limit = limit();
                let set = || {
                    let left = limit.saturating_sub(arrived.elapsed());
                    Timer { limit, sleep: Box::pin(sleep(left)) }
                };
                let timer = match timer {
                    Some(timer) if timer.limit == limit => timer,
                    other => other.insert(set()),
                };
                ready!(timer.sleep.as_mut().poll(context));
                Poll::Ready(Err(Cut::Late))
            }
            Err(panic) => Poll::Ready(Err(Cut::Panicked(panic))),
        }
    }
}

// === impl Cut ===

impl Cut {
    fn response(self, services: &Services) -> Response<Body> {
        grpc_status::of(match self {
            Cut::Late => Rejection::Deadline,
            Cut::Panicked(panic) => services.engine.panicked("request", panic.as_ref()),
        })
        .into_http()
    }
}

/// Counts a reply of a service other than scoring.
fn auxiliary(
    services: &Arc<Services>,
    response: Response<Body>,
    share: Option<ShareGuard>,
) -> Response<Reply> {
    services.counters.auxiliary(code_of(response.headers()));
    response.map(|body| Reply::uncounted(services, body, share))
}

/// Moves the probe into the reply.
fn counted(response: Response<Body>, mut probe: Probe) -> Response<Reply> {
    probe.set_code(code_of(response.headers()));
    let services = Arc::clone(probe.services());
    response.map(|body| Reply { body, services, probe: Some(probe), _share: None })
}

/// Returns the code of a reply. Errors are in the headers; without an error there, the trailers of the reply contain
/// OK.
fn code_of(headers: &HeaderMap) -> Code {
    headers.get(GRPC_STATUS).map_or(Code::Ok, |value| Code::from_bytes(value.as_bytes()))
}

// === impl Reply ===

impl Reply {
    fn uncounted(services: &Arc<Services>, body: Body, share: Option<ShareGuard>) -> Reply {
        Reply { body, services: Arc::clone(services), probe: None, _share: share }
    }
}

impl hyper::body::Body for Reply {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut self.body).poll_frame(context)));
        let frame = match polled {
            Ok(frame) => ready!(frame),
            Err(panic) => {
                self.body = Body::empty();
                Some(Err(grpc_status::of(self.services.engine.panicked("reply", panic.as_ref()))))
            }
        };
        if frame.as_ref().is_none_or(|frame| frame.as_ref().is_ok_and(Frame::is_trailers)) {
            // The reply has been passed to the transport, which ends the request's time.
            if let Some(probe) = self.probe.take() {
                probe.replied();
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(probe) = &mut self.probe
            && !self.body.is_end_stream()
        {
            // The client was gone before the last frame.
            probe.set_code(Code::Cancelled);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_panic_and_a_request_that_never_ends_are_cut() {
        let arrived = Instant::now();
        let mut ends = Vec::new();
        let panics =
            poll_fn(|_| -> Poll<Result<Response<Body>, Infallible>> { panic!("as the test demands") });
        for answering in [Box::pin(panics) as Answering, Box::pin(pending())] {
            let mut request = Guarded::new(answering);
            ends.push(poll_fn(|context| request.poll(arrived, || Duration::from_secs(5), context)).await);
        }
        assert!(matches!(&ends[0], Err(Cut::Panicked(panic)) if panic.is::<&str>()));
        assert!(matches!(&ends[1], Err(Cut::Late)));
    }
}
