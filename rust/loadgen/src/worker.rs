//! A sending thread: walks its schedule, never waits for replies.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, TE};
use http::{Method as Verb, Request, Uri};
use http_body_util::Full;

use crate::codec::{frame, frame_with_id, request_id};
use crate::config::{Caller, LoadConfig, Protocol, Reply};
use crate::connection::Connection;
use crate::exchange::{read, unary};
use crate::http1::Pool;
use crate::record::{Ending, Finished, Record};
use crate::rng::Rng;
use crate::schedule::Merged;
use crate::target::Target;
use crate::timer::Timer;

/// Closer than this, arming a timer takes longer than the wait.
const SPIN: Duration = Duration::from_micros(10);
/// The pacing loop checks the stop flag at least this often.
const LOOK_UP: Duration = Duration::from_millis(50);
/// Behind its schedule, the pacing loop lets replies in after so many requests.
const BURST: u32 = 32;

/// One method, ready to be called.
pub(crate) struct Endpoint {
    /// How to read its replies.
    pub(crate) reply: Reply,
    /// Whether its requests carry an id.
    pub(crate) fresh_id: bool,
    /// What, in turn; framed already where nothing is added to it.
    pub(crate) payloads: Vec<Bytes>,
}

/// One caller, ready to call.
pub(crate) struct Calling {
    /// Per method, what its requests begin with.
    heads: Vec<Request<()>>,
    /// Per method, its weight and those of all before it, as a share of all; methods of other callers do not count.
    shares_up_to: Vec<f64>,
    /// Its last method: rounding may leave the sum of all shares just below 1.
    last: usize,
}

/// What all workers of a run share.
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) protocol: Protocol,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) callers: Vec<Calling>,
    pub(crate) timeout: Duration,
    pub(crate) warmup: Duration,
    /// Share of the requests that are called off.
    pub(crate) cancel: f64,
    pub(crate) cancel_within: Duration,
    /// First half of every request id: a run never repeats another's.
    pub(crate) nonce: u64,
    pub(crate) seed: u64,
    pub(crate) stop: AtomicBool,
}

/// One worker's part.
pub(crate) struct Part {
    pub(crate) index: usize,
    /// Of each caller.
    pub(crate) connections: usize,
    pub(crate) max_outstanding: usize,
    pub(crate) schedule: Merged,
    pub(crate) record: Arc<Mutex<Record>>,
}

/// One caller's connections on one thread.
pub(crate) enum Links {
    Grpc(Vec<Connection>),
    Http(Arc<Pool>),
}

impl Endpoint {
    pub(crate) fn all(config: &LoadConfig, payloads: Vec<Vec<Bytes>>) -> Vec<Endpoint> {
        let methods = config.methods.iter().zip(payloads);
        let ready = methods.map(|(method, mut payloads)| {
            if config.protocol == Protocol::Grpc && !method.fresh_id {
                payloads.iter_mut().for_each(|body| *body = frame(body));
            }
            Endpoint { reply: method.reply, fresh_id: method.fresh_id, payloads }
        });
        ready.collect()
    }
}

impl Calling {
    pub(crate) fn new(config: &LoadConfig, caller: &Caller, target: &Target) -> Result<Calling, http::Error> {
        let calls = |name: &String| caller.methods.is_empty() || caller.methods.contains(name);
        let weight = |method: &crate::config::Method| if calls(&method.name) { method.weight } else { 0.0 };
        let total: f64 = config.methods.iter().map(weight).sum();
        let mut up_to = 0.0;
        let shares_up_to = config.methods.iter().map(|method| {
            up_to += weight(method) / total;
            up_to
        });
        let shares_up_to = shares_up_to.collect();
        let heads = config.methods.iter().map(|method| head(config, caller, target, &method.path));
        let last = config.methods.iter().rposition(|method| calls(&method.name)).unwrap_or_default();
        Ok(Calling { heads: heads.collect::<Result<_, _>>()?, shares_up_to, last })
    }

    fn pick(&self, rng: &mut Rng) -> usize {
        if self.heads.len() == 1 {
            return 0;
        }
        let u = rng.unit();
        self.shares_up_to.iter().position(|up_to| u < *up_to).unwrap_or(self.last)
    }
}

/// What every request of a caller to a path begins with.
fn head(
    config: &LoadConfig,
    caller: &Caller,
    target: &Target,
    path: &str,
) -> Result<Request<()>, http::Error> {
    let uri = Uri::builder().path_and_query(path);
    let mut head = match config.protocol {
        Protocol::Grpc => {
            let deadline = config.deadline_ms.unwrap_or(config.timeout_ms);
            Request::builder()
                .uri(uri.scheme("http").authority(target.authority()).build()?)
                .header(TE, "trailers")
                .header(CONTENT_TYPE, "application/grpc")
                .header("grpc-timeout", grpc_timeout(deadline))
        }
        Protocol::Http => Request::builder()
            .uri(uri.build()?)
            .header(HOST, target.authority())
            .header(CONTENT_TYPE, "application/json"),
    };
    for (name, value) in &caller.metadata {
        head = head.header(HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
    }
    head.method(Verb::POST).body(())
}

/// At most eight digits and a unit.
fn grpc_timeout(ms: f64) -> String {
    let us = (ms * 1e3).round().max(1.0);
    if us < 1e8 { format!("{us:.0}u") } else { format!("{ms:.0}m") }
}

/// Opens the part's connections, for each caller its own.
pub(crate) async fn connect(plan: &Plan, part: &Part) -> std::io::Result<Vec<Links>> {
    let mut callers = Vec::with_capacity(plan.callers.len());
    for _ in &plan.callers {
        callers.push(match plan.protocol {
            Protocol::Http => Links::Http(Arc::new(Pool::open(&plan.target, part.connections).await?)),
            Protocol::Grpc => {
                let mut connections = Vec::with_capacity(part.connections);
                for _ in 0..part.connections {
                    connections.push(Connection::open(&plan.target).await?);
                }
                Links::Grpc(connections)
            }
        });
    }
    Ok(callers)
}

/// Sends the part's requests from `start` on, then waits for the replies.
pub(crate) async fn send_all(
    plan: Arc<Plan>,
    part: Part,
    links: Vec<Links>,
    start: Instant,
) -> std::io::Result<()> {
    let timer = Timer::new()?;
    let outstanding = Arc::new(AtomicUsize::new(0));
    let mut chance = Rng::new(plan.seed ^ 0x6D65_7468_6F64, part.index as u64);
    let mut number = 0_usize;
    let mut behind = 0;
    for (intended, caller) in part.schedule {
        let due = start + intended;
        if wait_until(&timer, due, &plan.stop).await? {
            behind = 0;
        } else {
            behind += 1;
            if behind % BURST == 0 {
                tokio::task::yield_now().await;
            }
        }
        if plan.stop.load(Ordering::Relaxed) {
            break;
        }
        let method = plan.callers[caller].pick(&mut chance);
        // `None` during the warm-up: sent, not measured.
        let measured = intended.checked_sub(plan.warmup);
        if outstanding.load(Ordering::Relaxed) >= part.max_outstanding {
            if let Some(intended) = measured {
                let (latency, ending) = (Duration::ZERO, Ending::Error("overflow"));
                lock(&part.record).finish(&Finished { method, caller, intended, latency, ending });
            }
            continue;
        }
        outstanding.fetch_add(1, Ordering::Relaxed);
        let one = One {
            plan: Arc::clone(&plan),
            route: Route::of(&links[caller], number),
            method,
            caller,
            number: (part.index as u64) << 48 | number as u64,
            due,
            measured,
            cancel: (plan.cancel > 0.0 && chance.unit() < plan.cancel)
                .then(|| plan.cancel_within.mul_f64(chance.unit())),
            record: Arc::clone(&part.record),
        };
        let counter = Arc::clone(&outstanding);
        tokio::spawn(async move {
            one.run().await;
            counter.fetch_sub(1, Ordering::Relaxed);
        });
        number += 1;
    }
    // Every request has a deadline, so this ends.
    while outstanding.load(Ordering::Relaxed) > 0 && !plan.stop.load(Ordering::Relaxed) {
        timer.sleep(Duration::from_millis(1)).await?;
    }
    Ok(())
}

/// Waits for a time; false if it was over already, so that no other task ran.
async fn wait_until(timer: &Timer, due: Instant, stop: &AtomicBool) -> std::io::Result<bool> {
    let mut waited = false;
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() || stop.load(Ordering::Relaxed) {
            return Ok(waited);
        }
        waited = true;
        if left > SPIN {
            timer.sleep(left.min(LOOK_UP)).await?;
        } else {
            tokio::task::yield_now().await;
        }
    }
}

/// The connection that a request takes.
enum Route {
    Grpc(Connection),
    Http(Arc<Pool>),
}

impl Route {
    fn of(links: &Links, number: usize) -> Route {
        match links {
            Links::Grpc(connections) => Route::Grpc(connections[number % connections.len()].clone()),
            Links::Http(pool) => Route::Http(Arc::clone(pool)),
        }
    }
}

/// One request.
struct One {
    plan: Arc<Plan>,
    route: Route,
    method: usize,
    caller: usize,
    number: u64,
    due: Instant,
    measured: Option<Duration>,
    /// After this it is called off.
    cancel: Option<Duration>,
    record: Arc<Mutex<Record>>,
}

impl One {
    async fn run(self) {
        let lag = self.due.elapsed();
        let patience = self.cancel.unwrap_or(self.plan.timeout).min(self.plan.timeout);
        let ending = match tokio::time::timeout(patience, self.call()).await {
            Err(_elapsed) if self.cancel.is_some() => Ending::Cancelled,
            Err(_elapsed) => Ending::Error("client_timeout"),
            Ok(Err(name)) => Ending::Error(name),
            Ok(Ok(message)) => read(self.plan.endpoints[self.method].reply, message),
        };
        let latency = self.due.elapsed();
        if let Some(intended) = self.measured {
            let (method, caller) = (self.method, self.caller);
            let mut record = lock(&self.record);
            record.sent(lag);
            record.finish(&Finished { method, caller, intended, latency, ending });
        }
    }

    async fn call(&self) -> Result<Bytes, &'static str> {
        let endpoint = &self.plan.endpoints[self.method];
        let turn = (self.number & 0xFFFF_FFFF_FFFF) as usize % endpoint.payloads.len();
        let payload = &endpoint.payloads[turn];
        let head = self.plan.callers[self.caller].heads[self.method].clone();
        match &self.route {
            Route::Http(pool) => pool.call(head.map(|()| Full::new(payload.clone()))).await,
            Route::Grpc(connection) => {
                let sender = connection.sender().ok_or("not_connected")?;
                let body = if endpoint.fresh_id {
                    frame_with_id(payload, &request_id(self.plan.nonce, self.number))
                } else {
                    payload.clone()
                };
                unary(sender, head, body).await
            }
        }
    }
}

/// A panicking holder leaves counts behind, nothing that must not be read.
pub(crate) fn lock(record: &Mutex<Record>) -> MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Method;

    fn calling(caller: &Caller) -> Calling {
        let method = |name: &str, weight| Method {
            name: name.into(),
            path: format!("/s/{name}"),
            weight,
            reply: Reply::Opaque,
            fresh_id: false,
        };
        let methods = vec![method("a", 6.0), method("b", 3.0), method("c", 1.0)];
        let given = serde_json::json!({"target": "h:1", "rate": 1.0, "seconds": 1.0, "connections": 1,
            "timeout_ms": 250.5, "methods": methods});
        let config: LoadConfig = serde_json::from_value(given).unwrap();
        Calling::new(&config, caller, &Target::parse(&config.target, None)).unwrap()
    }

    #[test]
    fn methods_are_picked_by_weight_among_the_callers_own() {
        let only = |methods: &[&str]| Caller {
            methods: methods.iter().map(|name| (*name).to_owned()).collect(),
            ..Caller::default()
        };
        for (caller, shares) in [
            (only(&[]), [0.6, 0.3, 0.1]),
            (only(&["b", "c"]), [0.0, 0.75, 0.25]),
            (only(&["a"]), [1.0, 0.0, 0.0]),
            (only(&["c"]), [0.0, 0.0, 1.0]),
        ] {
            let calling = calling(&caller);
            let mut rng = Rng::new(5, 0);
            let mut counts = [0_u32; 3];
            for _ in 0..100_000 {
                counts[calling.pick(&mut rng)] += 1;
            }
            for (count, share) in counts.iter().zip(shares) {
                assert!((f64::from(*count) / 1e5 - share).abs() < 0.01, "{counts:?}");
                assert!(share > 0.0 || *count == 0, "{counts:?}");
            }
        }
    }

    #[test]
    fn a_request_says_where_by_when_and_who() {
        let metadata = [("x-caller".to_owned(), "noisy".to_owned())].into();
        let head = &calling(&Caller { metadata, ..Caller::default() }).heads[1];
        assert_eq!(head.uri(), "http://h:1/s/b");
        assert_eq!(head.headers()["grpc-timeout"], "250500u");
        assert_eq!(head.headers()["x-caller"], "noisy");
        assert_eq!(grpc_timeout(60_000.0), "60000000u");
        assert_eq!(grpc_timeout(600_000.0), "600000m");
    }
}
