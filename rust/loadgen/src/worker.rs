//! A sending thread: walks its schedule, never waits for replies.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::uri::{PathAndQuery, Uri};
use prost::Message as _;
use scorer_proto::v1::{ScoreBatchResponse, ScoreResponse, SelectActionResponse, Served};
use tonic::{Code, Status};

use crate::codec::{Raw, Request, request_id};
use crate::config::{Method, Reply};
use crate::connection::Connection;
use crate::record::{Ending, Finished, Record};
use crate::rng::Rng;
use crate::schedule::Schedule;
use crate::target::Target;
use crate::timer::Timer;

/// Closer than this, arming a timer takes longer than the wait.
const SPIN: Duration = Duration::from_micros(10);
/// The pacing loop looks at the stop flag at least this often.
const LOOK_UP: Duration = Duration::from_millis(50);

/// One method, ready to be called.
pub(crate) struct Endpoint {
    /// Where.
    pub(crate) path: PathAndQuery,
    /// How to read its replies.
    pub(crate) reply: Reply,
    /// Whether its requests carry an id.
    pub(crate) fresh_id: bool,
    /// What, in turn.
    pub(crate) payloads: Vec<Bytes>,
    /// Weights of this and all endpoints before it, as a share of all.
    pub(crate) share_up_to: f64,
}

impl Endpoint {
    pub(crate) fn all(methods: &[Method], payloads: Vec<Vec<Bytes>>) -> Result<Vec<Endpoint>, http::Error> {
        let total: f64 = methods.iter().map(|method| method.weight).sum();
        let mut up_to = 0.0;
        let ready = methods.iter().zip(payloads).map(|(method, payloads)| {
            up_to += method.weight;
            let path = PathAndQuery::try_from(method.path.as_str())?;
            let share_up_to = up_to / total;
            Ok(Endpoint { path, reply: method.reply, fresh_id: method.fresh_id, payloads, share_up_to })
        });
        ready.collect()
    }
}

/// What all workers of a run share.
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) origin: Uri,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) timeout: Duration,
    pub(crate) warmup: Duration,
    /// First half of every request id: a run never repeats another's.
    pub(crate) nonce: u64,
    pub(crate) seed: u64,
    pub(crate) stop: AtomicBool,
}

/// One worker's part.
pub(crate) struct Part {
    pub(crate) index: usize,
    pub(crate) connections: usize,
    pub(crate) max_outstanding: usize,
    pub(crate) schedule: Schedule,
    pub(crate) record: Arc<Mutex<Record>>,
}

/// Opens the part's connections. Needs a `LocalSet`.
pub(crate) async fn connect(plan: &Plan, part: &Part) -> std::io::Result<Vec<Connection>> {
    let mut connections = Vec::with_capacity(part.connections);
    for _ in 0..part.connections {
        connections.push(Connection::open(&plan.target).await?);
    }
    Ok(connections)
}

/// Sends the part's requests from `start` on, then waits for the replies.
pub(crate) async fn send_all(
    plan: Arc<Plan>,
    part: Part,
    connections: Vec<Connection>,
    start: Instant,
) -> std::io::Result<()> {
    let timer = Timer::new()?;
    let outstanding = Rc::new(Cell::new(0_usize));
    let mut choice = Rng::new(plan.seed ^ 0x6D65_7468_6F64, part.index as u64);
    let mut number = 0_usize;
    for intended in part.schedule {
        wait_until(&timer, start + intended, &plan.stop).await?;
        if plan.stop.load(Ordering::Relaxed) {
            break;
        }
        let method = pick(&plan.endpoints, &mut choice);
        // `None` during the warm-up: sent, not measured.
        let measured = intended.checked_sub(plan.warmup);
        if outstanding.get() >= part.max_outstanding {
            if let Some(intended) = measured {
                let ending = Ending::Error("overflow");
                lock(&part.record).finish(&Finished { method, intended, latency: Duration::ZERO, ending });
            }
            continue;
        }
        outstanding.set(outstanding.get() + 1);
        let connection = connections[number % connections.len()].clone();
        let one = One {
            plan: Arc::clone(&plan),
            connection,
            method,
            number: (part.index as u64) << 48 | number as u64,
            due: start + intended,
            measured,
            record: Arc::clone(&part.record),
        };
        let counter = Rc::clone(&outstanding);
        tokio::task::spawn_local(async move {
            one.run().await;
            counter.set(counter.get() - 1);
        });
        number += 1;
    }
    // Every request has a deadline, so this ends.
    while outstanding.get() > 0 && !plan.stop.load(Ordering::Relaxed) {
        timer.sleep(Duration::from_millis(1)).await?;
    }
    Ok(())
}

async fn wait_until(timer: &Timer, due: Instant, stop: &AtomicBool) -> std::io::Result<()> {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() || stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        if left > SPIN {
            timer.sleep(left.min(LOOK_UP)).await?;
        } else {
            tokio::task::yield_now().await;
        }
    }
}

fn pick(endpoints: &[Endpoint], rng: &mut Rng) -> usize {
    if endpoints.len() == 1 {
        return 0;
    }
    let u = rng.unit();
    endpoints.iter().position(|endpoint| u < endpoint.share_up_to).unwrap_or(endpoints.len() - 1)
}

/// One request.
struct One {
    plan: Arc<Plan>,
    connection: Connection,
    method: usize,
    number: u64,
    due: Instant,
    measured: Option<Duration>,
    record: Arc<Mutex<Record>>,
}

impl One {
    async fn run(self) {
        let endpoint = &self.plan.endpoints[self.method];
        let body =
            endpoint.payloads[(self.number & 0xFFFF_FFFF_FFFF) as usize % endpoint.payloads.len()].clone();
        let id = endpoint.fresh_id.then(|| request_id(self.plan.nonce, self.number));
        let lag = self.due.elapsed();
        let ending = match self.connection.client(&self.plan.origin) {
            None => Ending::Error("not_connected"),
            Some(mut client) => {
                let mut request = tonic::Request::new(Request { body, id });
                request.set_timeout(self.plan.timeout);
                let call = async {
                    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
                    client.unary(request, endpoint.path.clone(), Raw).await
                };
                match tokio::time::timeout(self.plan.timeout, call).await {
                    Err(_elapsed) => Ending::Error("client_timeout"),
                    Ok(Err(status)) => Ending::Error(name(status.code())),
                    Ok(Ok(reply)) => read(endpoint.reply, reply.into_inner()),
                }
            }
        };
        let latency = self.due.elapsed();
        if let Some(intended) = self.measured {
            let mut record = lock(&self.record);
            record.sent(lag);
            record.finish(&Finished { method: self.method, intended, latency, ending });
        }
    }
}

fn read(kind: Reply, reply: Bytes) -> Ending {
    let served: Result<Option<Served>, prost::DecodeError> = match kind {
        Reply::Opaque => return Ending::Reply { fallback: None, exec_us: None },
        Reply::Score => ScoreResponse::decode(reply).map(|reply| reply.served),
        Reply::Batch => ScoreBatchResponse::decode(reply).map(|reply| reply.served),
        Reply::Action => SelectActionResponse::decode(reply).map(|reply| reply.served),
    };
    match served {
        Err(_) => Ending::Error("undecodable_reply"),
        Ok(served) => {
            let served = served.unwrap_or_default();
            let by_model = served.fallback_source.is_empty();
            let reason = if served.fallback_reason.is_empty() {
                served.fallback_source
            } else {
                served.fallback_reason
            };
            Ending::Reply {
                fallback: (!by_model).then_some(reason),
                exec_us: by_model.then_some(served.exec_us),
            }
        }
    }
}

/// The name as gRPC spells it.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// A panicking holder leaves counts behind, nothing that must not be read.
pub(crate) fn lock(record: &Mutex<Record>) -> MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_picked_by_weight() {
        let method = |name: &str, weight| Method {
            name: name.into(),
            path: format!("/s/{name}"),
            weight,
            reply: Reply::Opaque,
            fresh_id: false,
        };
        let payloads = vec![vec![Bytes::new()]; 3];
        let endpoints =
            Endpoint::all(&[method("a", 6.0), method("b", 3.0), method("c", 1.0)], payloads).unwrap();
        let mut rng = Rng::new(5, 0);
        let mut counts = [0_u32; 3];
        for _ in 0..100_000 {
            counts[pick(&endpoints, &mut rng)] += 1;
        }
        for (count, share) in counts.iter().zip([0.6, 0.3, 0.1]) {
            assert!((f64::from(*count) / 1e5 - share).abs() < 0.01, "{counts:?}");
        }
    }

    #[test]
    fn a_fallback_is_told_from_the_model() {
        let reply = |served: Option<Served>| {
            Bytes::from(ScoreResponse { served, ..Default::default() }.encode_to_vec())
        };
        let model = Served { exec_us: 9, ..Default::default() };
        let fallback =
            Served { fallback_source: "checkpoint".into(), fallback_reason: "late".into(), ..model.clone() };
        assert_eq!(
            read(Reply::Score, reply(Some(model))),
            Ending::Reply { fallback: None, exec_us: Some(9) }
        );
        let expected = Ending::Reply { fallback: Some("late".into()), exec_us: None };
        assert_eq!(read(Reply::Score, reply(Some(fallback))), expected);
        assert_eq!(read(Reply::Score, Bytes::from_static(b"\xFF")), Ending::Error("undecodable_reply"));
        assert_eq!(
            read(Reply::Opaque, Bytes::from_static(b"\xFF")),
            Ending::Reply { fallback: None, exec_us: None }
        );
    }
}
