//! From one HTTP request to the service it is for: stages 1 and 2 of the answer path, and the counting
//! at its end.

use std::convert::Infallible;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};
use scorer_proto::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use tokio::time::{Sleep, sleep};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Code, Status};
use tonic_health::pb::health_server::HealthServer;

use crate::answer::admit::Permit;
use crate::answer::arrive::Arrival;
use crate::config::Role;
use crate::health::Health;
use crate::metrics::Method;
use crate::oip::{self, Inference};
use crate::refusal::Refusal;
use crate::service::{self, Answering};
use crate::state::Shared;
use crate::status::corrected;

/// A request without a deadline is given up after this long; it can only be waiting for its own body or
/// for its twin.
const WITHOUT_DEADLINE: Duration = Duration::from_secs(5);
/// Health checks and reflection ask with a name.
const SMALL: usize = 4 << 10;
const GRPC_STATUS: &str = "grpc-status";
/// Who calls, where one connection carries several callers; without it, the connection's peer.
const CALLER: &str = "x-caller";
/// The services whose requests are stamped, admitted and counted, as their paths begin.
const SCORING: &str = "/scorer.v1.ScoringService/";
const INFERENCE: &str = "/inference.GRPCInferenceService/";
const SHADOW: &str = "/scorer.v1.ShadowService/";

/// Everything that is served on one listener; cheap to clone.
#[derive(Clone)]
pub(crate) struct Dispatch {
    shared: Arc<Shared>,
    /// Who is at the other end, hashed; callers may name themselves per request.
    peer: u64,
    inference: GrpcInferenceServiceServer<Inference>,
    health: HealthServer<Health>,
    reflection_v1: Plain,
    reflection_v1alpha: Plain,
}

/// A service whose type cannot be named.
type Plain = Arc<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>;

/// One request on its way; resolves to its reply.
pub(crate) struct Answer {
    state: State,
}

enum State {
    /// Refused at the door, or not ours to count. Empty once it has been given.
    Ready(Option<Response<Reply>>),
    Running(Running),
    Plain(Answering),
}

struct Running {
    answering: Answering,
    probe: Probe,
    polled: bool,
    /// Set up only when the request has to wait: most never do.
    timer: Option<Timer>,
}

/// Ends a request that waits for too long.
struct Timer {
    /// The limit it was set for; the message may bring a shorter one.
    limit: Duration,
    sleep: Pin<Box<Sleep>>,
}

/// The reply's body. The request ends when this is dropped: the reply is then handed over, or given up.
pub(crate) struct Reply {
    body: Body,
    probe: Option<Probe>,
}

/// The connection's peer, for what is counted message by message.
#[derive(Clone, Copy)]
pub(crate) struct Peer(pub(crate) u64);

/// Counts one request exactly once, whatever becomes of it.
pub(crate) struct Probe {
    shared: Arc<Shared>,
    pub(crate) arrival: Arc<Arrival>,
    code: Code,
    _permit: Option<Permit>,
}

// === impl Dispatch ===

impl Dispatch {
    pub(crate) fn new(shared: &Arc<Shared>) -> Result<Dispatch, tonic_reflection::server::Error> {
        let role = shared.config.role;
        let inference = GrpcInferenceServiceServer::new(Inference::new(Arc::clone(shared)))
            .max_decoding_message_size(shared.config.max_message_bytes);
        let v1 = reflection(role, "grpc.reflection.v1.ServerReflection")
            .build_v1()?
            .max_decoding_message_size(SMALL);
        let v1alpha = reflection(role, "grpc.reflection.v1alpha.ServerReflection")
            .build_v1alpha()?
            .max_decoding_message_size(SMALL);
        Ok(Dispatch {
            shared: Arc::clone(shared),
            peer: 0,
            inference,
            health: HealthServer::new(shared.health.clone()).max_decoding_message_size(SMALL),
            reflection_v1: Arc::new(move |request| v1.clone().call(request)),
            reflection_v1alpha: Arc::new(move |request| v1alpha.clone().call(request)),
        })
    }

    /// The same for one connection's requests; `peer` is its address or user.
    pub(crate) fn of_peer(mut self, peer: &str) -> Dispatch {
        self.peer = self.shared.admission.caller(peer.as_bytes());
        self
    }

    fn counted(&self, method: Method, request: Request<Incoming>) -> Answer {
        let (probe, verdict) = Probe::begin(&self.shared, method, request.headers(), self.peer);
        if let Err(refusal) = verdict.and_then(|()| self.check_role(method)) {
            return Answer { state: State::Ready(Some(refused(refusal, probe))) };
        }
        let answering = service::answer(&self.shared, &probe.arrival, request);
        Answer { state: State::Running(Running { answering, probe, polled: false, timer: None }) }
    }

    /// A shadow pool answers nobody, and a live server observes for nobody else.
    fn check_role(&self, method: Method) -> Result<(), Refusal> {
        match (self.shared.config.role, method) {
            (_, Method::Unknown) => Ok(()),
            (Role::Live, Method::Observe) => Err(Refusal::NotShadow),
            (Role::Shadow, method) if method != Method::Observe => Err(self.shadow()),
            (Role::Live | Role::Shadow, _) => Ok(()),
        }
    }

    fn shadow(&self) -> Refusal {
        Refusal::Shadow { sender: self.shared.senders.last() }
    }

    fn plain(&self, mut request: Request<Incoming>) -> Answer {
        request.extensions_mut().insert(Peer(self.peer));
        let path = request.uri().path();
        let state = if path.starts_with(INFERENCE) && self.shared.config.role == Role::Shadow {
            State::Ready(Some(Status::from(self.shadow()).into_http::<Body>().map(Reply::uncounted)))
        } else if let Some(method) = path.strip_prefix(INFERENCE) {
            match oip::not_offered(method) {
                Some(status) => State::Ready(Some(status.into_http::<Body>().map(Reply::uncounted))),
                None => State::Plain(self.inference.clone().call(request)),
            }
        } else if path.starts_with("/grpc.health.v1.Health/") {
            State::Plain(self.health.clone().call(request))
        } else if path.starts_with("/grpc.reflection.v1.ServerReflection/") {
            State::Plain((self.reflection_v1)(request))
        } else if path.starts_with("/grpc.reflection.v1alpha.ServerReflection/") {
            State::Plain((self.reflection_v1alpha)(request))
        } else {
            let status = Status::unimplemented("no such service here; list the services by reflection");
            State::Ready(Some(status.into_http::<Body>().map(Reply::uncounted)))
        };
        Answer { state }
    }
}

impl hyper::service::Service<Request<Incoming>> for Dispatch {
    type Response = Response<Reply>;
    type Error = Infallible;
    type Future = Answer;

    /// Runs on the connection's task, before the request's own task is spawned: the time stamped here is
    /// the request's arrival.
    fn call(&self, request: Request<Incoming>) -> Answer {
        if let Some(status) = not_grpc(&request) {
            let mut response = Response::new(Reply::uncounted(Body::empty()));
            *response.status_mut() = status;
            return Answer { state: State::Ready(Some(response)) };
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
            Some(method) => self.counted(method, request),
            None => self.plain(request),
        }
    }
}

/// What is not gRPC gets HTTP's own answer.
fn not_grpc(request: &Request<Incoming>) -> Option<StatusCode> {
    if request.method() != http::Method::POST {
        return Some(StatusCode::METHOD_NOT_ALLOWED);
    }
    let kind = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let rest = kind.strip_prefix(b"application/grpc");
    let grpc = rest.is_some_and(|rest| rest.first().is_none_or(|next| b"+;".contains(next)));
    (!grpc).then_some(StatusCode::UNSUPPORTED_MEDIA_TYPE)
}

/// Reflection of what is served here; the descriptors hold the control service as well, which is not.
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
            State::Ready(response) => return response.take().map_or(Poll::Pending, |it| Poll::Ready(Ok(it))),
            State::Plain(answering) => {
                let Ok(response) = ready!(answering.as_mut().poll(context));
                return Poll::Ready(Ok(response.map(Reply::uncounted)));
            }
            State::Running(running) => ready!(running.poll(context)),
        };
        match std::mem::replace(&mut self.state, State::Ready(None)) {
            State::Running(running) => Poll::Ready(Ok(counted(response, running.probe))),
            State::Ready(_) | State::Plain(_) => Poll::Pending,
        }
    }
}

// === impl Running ===

impl Running {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Response<Body>> {
        let Running { answering, probe, polled, timer } = self;
        let Probe { shared, arrival, .. } = probe;
        if !std::mem::replace(polled, true) {
            arrival.started();
            if let Err(late) = arrival.check_deadline() {
                // Its body is not even read.
                return Poll::Ready(Status::from(late).into_http());
            }
        }
        match catch_unwind(AssertUnwindSafe(|| answering.as_mut().poll(context))) {
            Ok(Poll::Ready(Ok(response))) => Poll::Ready(response),
            Ok(Poll::Pending) => {
                let limit = arrival.timeout().unwrap_or(WITHOUT_DEADLINE);
                let set = || {
                    let left = limit.saturating_sub(arrival.at.elapsed());
                    Timer { limit, sleep: Box::pin(sleep(left)) }
                };
                let timer = match timer {
                    Some(timer) if timer.limit == limit => timer,
                    other => other.insert(set()),
                };
                ready!(timer.sleep.as_mut().poll(context));
                Poll::Ready(Status::from(Refusal::Deadline).into_http())
            }
            Err(panic) => Poll::Ready(Status::from(shared.panicked("request", panic.as_ref())).into_http()),
        }
    }
}

fn refused(refusal: Refusal, probe: Probe) -> Response<Reply> {
    counted(Status::from(refusal).into_http(), probe)
}

/// Corrects the status where tonic's differs from gRPC's table, and hands the probe to the reply.
fn counted(mut response: Response<Body>, mut probe: Probe) -> Response<Reply> {
    let code = code_of(response.headers());
    let right = corrected(code);
    if right != code {
        response.headers_mut().insert(GRPC_STATUS, HeaderValue::from(right as i32));
    }
    probe.code = right;
    response.map(|body| Reply { body, probe: Some(probe) })
}

/// An error is in the headers; without one there the reply's trailers say OK.
fn code_of(headers: &HeaderMap) -> Code {
    headers.get(GRPC_STATUS).map_or(Code::Ok, |value| Code::from_bytes(value.as_bytes()))
}

// === impl Reply ===

impl Reply {
    fn uncounted(body: Body) -> Reply {
        Reply { body, probe: None }
    }
}

impl hyper::body::Body for Reply {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.as_ref().is_none_or(|frame| frame.as_ref().is_ok_and(Frame::is_trailers)) {
            // Handed over: this is where the request's time ends.
            if let Some(probe) = self.probe.take() {
                probe.shared.admission.replied(&probe.arrival);
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
            // The client went away before the last frame.
            probe.code = Code::Cancelled;
        }
    }
}

// === impl Probe ===

impl Probe {
    /// Stamps a request and asks whether the server takes it on.
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        method: Method,
        headers: &HeaderMap,
        peer: u64,
    ) -> (Probe, Result<(), Refusal>) {
        shared.metrics.arrived();
        let (mut arrival, verdict) = Arrival::stamp(method, headers);
        arrival.caller = headers.get(CALLER).map_or(peer, |name| shared.admission.caller(name.as_bytes()));
        let arrival = Arc::new(arrival);
        let mut probe = Probe { shared: Arc::clone(shared), arrival, code: Code::Cancelled, _permit: None };
        let verdict = verdict.and_then(|()| shared.admission.admit(&probe.arrival));
        let verdict = verdict.map(|permit| probe._permit = Some(permit));
        (probe, verdict)
    }

    /// The request has been answered with `code`.
    pub(crate) fn end(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.shared.admission.left(&self.arrival);
        self.shared.metrics.finished(&self.arrival, self.code);
    }
}
