//! Sends sampled requests of a live server to the shadow pool. They wait in one bounded queue, from which a thread of
//! low priority with its own runtime sends them in batches. A request for which there is no room is dropped and
//! counted.
//!
//! Every request that is taken is finally counted exactly once: as `accepted` or `refused`, as the pool replies, or as
//! `dropped`.

use std::io;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use prost::Message as _;
use scorer_engine::{Events, Level, Outcome, Pmf, Shape, fill_record};
use scorer_os::sched;
use scorer_outbound::Backoff;
use scorer_proto::v1::shadow_service_client::ShadowServiceClient;
use scorer_proto::v1::{
    DecisionRecord, Feature, ObserveRequest, ObserveResponse, ObservedRequest, feature as wire,
};
use serde::Serialize;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::config::{MAX_MESSAGE, ShadowPoolConfig};
use crate::job::Observed;
use crate::named::feature;
use crate::shadow_schema;

/// Size in bytes at which a batch is complete.
const BATCH_BYTES: usize = 1 << 20;
/// Interval at which an idle connection is checked.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Bytes that an entry of the queue takes in addition to its contents.
const ENTRY: usize = size_of::<Outgoing>() + 64;

/// One answered request to be sent to the pool.
struct Outgoing {
    shape: Arc<Shape>,
    /// The decision without its probabilities.
    decision: DecisionRecord,
    /// Features of the request, by name, that the shape does not have.
    others: Vec<Feature>,
}

/// The queue of requests for the pool, and its counters.
pub(crate) struct Forwarder {
    config: ShadowPoolConfig,
    server: String,
    queue: mpsc::Sender<Outgoing>,
    /// The receiving end, until the sending thread takes it.
    waiting: Mutex<Option<mpsc::Receiver<Outgoing>>>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    taken: AtomicU64,
    dropped: AtomicU64,
    sent: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
    bytes: AtomicUsize,
    connected: AtomicBool,
    error: Mutex<String>,
}

/// The state of the connection to the shadow pool, and the numbers of requests sent to it.
#[derive(Clone, Debug, Serialize)]
pub struct PoolStatus {
    /// `host:port`.
    pub address: String,
    /// Whether the pool answered the latest call.
    pub connected: bool,
    /// The latest error; empty while the pool answers.
    pub error: String,
    /// Requests that lanes of the pool took on this server. Each is counted in one of `accepted`, `refused`, `dropped`
    /// or `waiting`.
    pub taken: u64,
    /// Requests that were put into calls.
    pub sent: u64,
    /// Requests that were lost because the queue was full or the call failed.
    pub dropped: u64,
    /// Requests that the pool accepted.
    pub accepted: u64,
    /// Requests that the pool dropped or refused.
    pub refused: u64,
    /// Requests that wait to be sent or for the pool's reply.
    pub waiting: u64,
    /// Bytes of the waiting requests.
    pub waiting_bytes: u64,
}

/// The reason why a call failed.
enum Failure {
    /// The pool refused this call; the next one may succeed.
    Refused(Status),
    /// The pool cannot be reached, is not a pool, or did not answer in time; a new connection is needed.
    Gone(String),
}

// === impl Outgoing ===

impl Outgoing {
    /// Copies an answered request. `others` lists the features that lanes read and the row does not hold; of the
    /// request's named features only these are copied.
    fn of(observed: &Observed<'_>, others: &[String]) -> Outgoing {
        let is_other = |name: &str| others.binary_search_by(|other| other.as_str().cmp(name)).is_ok();
        let mut answered = *observed.answered;
        if let Outcome::Action { pmf, .. } = &mut answered.outcome {
            *pmf = Pmf::Omitted;
        }
        let mut decision = DecisionRecord::default();
        fill_record(&mut decision, observed.answered_at_us, &answered);
        let mut named = Vec::new();
        if !others.is_empty() {
            answered.named.visit(&mut |name, value| {
                if is_other(name) {
                    named.push(feature(name, value));
                }
            });
        }
        Outgoing { shape: Arc::clone(answered.shape), decision, others: named }
    }

    /// Approximate number of bytes that the request holds.
    fn bytes(&self) -> usize {
        let DecisionRecord { decision_id, checkpoint, lane, bundle, entity, decision, action, .. } =
            &self.decision;
        let texts = [decision_id, checkpoint, lane, entity, decision, action].map(String::len);
        let others = self.others.iter().map(|other| {
            let value = match &other.value {
                Some(wire::Value::Category(category)) => category.len(),
                _ => 0,
            };
            size_of::<Feature>() + other.name.len() + value
        });
        ENTRY
            + texts.into_iter().sum::<usize>()
            + bundle.len()
            + self.decision.eligible_mask.len()
            + self.decision.features.len() * size_of::<f32>()
            + others.sum::<usize>()
    }
}

// === impl Forwarder ===

impl Forwarder {
    /// Creates the queue. `listens` is the name of this server if the configuration does not set one.
    pub(crate) fn new(config: &ShadowPoolConfig, listens: &str) -> Forwarder {
        let (queue, waiting) = mpsc::channel(config.queue);
        Forwarder {
            server: config.server.clone().unwrap_or_else(|| listens.to_owned()),
            config: config.clone(),
            queue,
            waiting: Mutex::new(Some(waiting)),
            counts: Counts::default(),
        }
    }

    /// Takes a copy of an answered request, if there is room. Called by the threads that answer: it neither blocks nor
    /// wakes a thread. `others` are the features, sorted, that lanes read and the row does not hold.
    pub(crate) fn try_send(&self, observed: &Observed<'_>, others: &[String]) -> bool {
        self.take(Outgoing::of(observed, others))
    }

    fn take(&self, request: Outgoing) -> bool {
        let counts = &self.counts;
        counts.taken.fetch_add(1, Relaxed);
        let bytes = request.bytes();
        let before = counts.bytes.fetch_add(bytes, AcqRel);
        let fits = before + bytes <= self.config.queue_bytes && bytes <= BATCH_BYTES;
        let taken = fits && self.queue.try_send(request).is_ok();
        if !taken {
            counts.bytes.fetch_sub(bytes, AcqRel);
            counts.dropped.fetch_add(1, Relaxed);
        }
        taken
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let counts = &self.counts;
        let read = |count: &AtomicU64| count.load(Relaxed);
        // Counters of finished requests are read before the counter of taken requests, so the difference is at least 0.
        let (dropped, accepted, refused) =
            (read(&counts.dropped), read(&counts.accepted), read(&counts.refused));
        let taken = read(&counts.taken);
        PoolStatus {
            address: self.config.address.clone(),
            connected: counts.connected.load(Relaxed),
            error: counts.error().clone(),
            taken,
            sent: read(&counts.sent),
            dropped,
            accepted,
            refused,
            waiting: taken.saturating_sub(dropped + accepted + refused),
            waiting_bytes: counts.bytes.load(Relaxed) as u64,
        }
    }

    /// Starts the sending thread. It ends when `stop` becomes true, and counts requests that are still waiting as
    /// dropped.
    pub(crate) fn start(
        self: &Arc<Forwarder>,
        events: Arc<Events>,
        stop: watch::Receiver<bool>,
    ) -> io::Result<Option<JoinHandle<()>>> {
        let taken = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(waiting) = taken else { return Ok(None) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let sending = Sending { forwarder: Arc::clone(self), events, waiting };
        let run = move || {
            sched::lower_priority();
            runtime.block_on(sending.run(stop));
            // A look-up of the pool's name can block for long, so the thread does not wait for it.
            runtime.shutdown_background();
        };
        thread::Builder::new().name("scorer-forward".to_owned()).spawn(run).map(Some)
    }
}

impl std::fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forwarder").field("address", &self.config.address).finish_non_exhaustive()
    }
}

// === impl Counts ===

impl Counts {
    fn error(&self) -> std::sync::MutexGuard<'_, String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending thread's state.
struct Sending {
    forwarder: Arc<Forwarder>,
    events: Arc<Events>,
    waiting: mpsc::Receiver<Outgoing>,
}

/// The requests of one call. Each is counted exactly once, also if the batch is dropped without a reply.
struct Batch {
    forwarder: Arc<Forwarder>,
    requests: Vec<Outgoing>,
    /// Number of requests that have not been counted yet.
    open: u64,
    /// Bytes of all requests.
    bytes: usize,
}

// === impl Sending ===

impl Sending {
    async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            () = self.send() => {}
            // An error means that the sender was dropped, which ends the thread too.
            _ = stop.wait_for(|stop| *stop) => {}
        }
        self.waiting.close();
        let mut left = self.batch();
        while let Ok(request) = self.waiting.try_recv() {
            left.add(request);
        }
        drop(left);
        self.forwarder.counts.connected.store(false, Relaxed);
    }

    async fn send(&mut self) {
        let mut backoff = Backoff::new();
        loop {
            let error = self.send_over_one_connection(&mut backoff).await;
            self.lost(error);
            sleep(backoff.next_delay()).await;
        }
    }

    /// Sends batches until the connection fails, and returns the reason.
    async fn send_over_one_connection(&mut self, backoff: &mut Backoff) -> String {
        let within = Duration::from_millis(self.forwarder.config.timeout_ms);
        let mut client = match connect(&self.forwarder.config, within).await {
            Ok(client) => client,
            Err(error) => return error,
        };
        // An empty batch checks whether the pool answers: first, and whenever there has been nothing to send.
        let mut batch = self.batch();
        let mut greeted = false;
        loop {
            match call(&mut client, batch, within).await {
                Ok(()) => {
                    // The backoff is reset only after the second reply, so that a pool that answers the first call and
                    // then fails is tried with growing delays.
                    if std::mem::replace(&mut greeted, true) {
                        backoff.reset();
                    }
                    self.found();
                }
                Err(Failure::Refused(status)) => self.refused(&status),
                Err(Failure::Gone(error)) => return error,
            }
            batch = self.gather().await;
        }
    }

    /// Returns the next batch; an empty one if no request arrives for a while. It polls the queue, so that answering
    /// threads do not pay for waking this thread.
    async fn gather(&mut self) -> Batch {
        let mut batch = self.batch();
        let ShadowPoolConfig { batch: most, linger_ms, .. } = self.forwarder.config;
        let mut checks = HEARTBEAT.as_millis() as u64 / linger_ms;
        while batch.requests.is_empty() && checks > 0 {
            if self.waiting.len() < most {
                sleep(Duration::from_millis(linger_ms)).await;
            }
            while batch.requests.len() < most && batch.bytes < BATCH_BYTES {
                let Ok(next) = self.waiting.try_recv() else { break };
                batch.add(next);
            }
            checks -= 1;
        }
        batch
    }

    fn batch(&self) -> Batch {
        Batch { forwarder: Arc::clone(&self.forwarder), requests: Vec::new(), open: 0, bytes: 0 }
    }

    fn found(&self) {
        let counts = &self.forwarder.counts;
        counts.error().clear();
        if !counts.connected.swap(true, Relaxed) {
            let fields = json!({"address": &self.forwarder.config.address});
            self.events.push(Level::Info, "shadow_pool_connected", fields);
        }
    }

    fn refused(&self, status: &Status) {
        self.forwarder.counts.connected.store(true, Relaxed);
        self.tell("shadow_pool_refused", described(status));
    }

    fn lost(&self, error: String) {
        self.forwarder.counts.connected.store(false, Relaxed);
        self.tell("shadow_pool_lost", error);
    }

    /// Reports an error as an event, unless it is the same as the latest one.
    fn tell(&self, event: &str, error: String) {
        let mut last = self.forwarder.counts.error();
        if *last != error {
            let fields = json!({"address": &self.forwarder.config.address, "error": &error});
            self.events.push(Level::Warning, event, fields);
            *last = error;
        }
    }
}

// === impl Batch ===

impl Batch {
    fn add(&mut self, request: Outgoing) {
        self.open += 1;
        self.bytes += request.bytes();
        self.requests.push(request);
    }

    /// Adds `requests` of the batch to one of the counters.
    fn ended(&mut self, count: impl Fn(&Counts) -> &AtomicU64, requests: u64) {
        count(&self.forwarder.counts).fetch_add(requests, Relaxed);
        self.open = self.open.saturating_sub(requests);
    }
}

impl Drop for Batch {
    /// Counts requests that have not been counted yet as dropped.
    fn drop(&mut self) {
        let counts = &self.forwarder.counts;
        counts.bytes.fetch_sub(self.bytes, AcqRel);
        counts.dropped.fetch_add(self.open, Relaxed);
    }
}

async fn call(
    client: &mut ShadowServiceClient<Channel>,
    mut batch: Batch,
    within: Duration,
) -> Result<(), Failure> {
    let message = message(&batch.forwarder.server, batch.requests.drain(..));
    let bytes = message.encoded_len();
    if bytes > MAX_MESSAGE {
        return Err(Failure::Refused(Status::out_of_range(format!(
            "a call of {bytes} bytes, schemas included; the pool reads at most {MAX_MESSAGE}: send fewer at once"
        ))));
    }
    let mut request = tonic::Request::new(message);
    request.set_timeout(within);
    let sent = batch.open;
    batch.forwarder.counts.sent.fetch_add(sent, Relaxed);
    match timeout(within, client.observe(request)).await {
        Ok(Ok(answer)) => {
            let ObserveResponse { accepted, dropped } = answer.into_inner();
            if accepted.checked_add(dropped) != Some(sent) {
                return Err(Failure::Gone(format!(
                    "the pool was sent {sent} requests and reports {accepted} accepted and {dropped} dropped"
                )));
            }
            batch.ended(|counts| &counts.accepted, accepted);
            batch.ended(|counts| &counts.refused, dropped);
            Ok(())
        }
        Ok(Err(status)) if says_no(status.code()) => {
            batch.ended(|counts| &counts.refused, sent);
            Err(Failure::Refused(status))
        }
        Ok(Err(status)) => Err(Failure::Gone(described(&status))),
        Err(_) => Err(Failure::Gone(format!("no answer within {} ms", within.as_millis()))),
    }
}

async fn connect(
    config: &ShadowPoolConfig,
    within: Duration,
) -> Result<ShadowServiceClient<Channel>, String> {
    let channel = scorer_outbound::connect(&config.address, config.tls.as_ref(), within, HEARTBEAT).await?;
    Ok(ShadowServiceClient::new(channel))
}

/// Builds the message of a call, which contains each schema once.
fn message(server: &str, batch: impl Iterator<Item = Outgoing>) -> ObserveRequest {
    let mut shapes: Vec<Arc<Shape>> = Vec::new();
    let requests = batch
        .map(|Outgoing { shape, decision, others }| {
            let known = shapes.iter().position(|known| Arc::ptr_eq(known, &shape));
            let schema = known.unwrap_or_else(|| {
                shapes.push(shape);
                shapes.len() - 1
            });
            ObservedRequest { schema: schema as u32, decision: Some(decision), others }
        })
        .collect();
    let schemas = shapes.iter().map(|shape| shadow_schema::described(shape)).collect();
    ObserveRequest { server: server.to_owned(), schemas, requests }
}

/// Whether a status means that the pool works and refused this call, so that another call may succeed. Other statuses
/// mean that the pool is gone, is stopping or is not a pool.
fn says_no(code: Code) -> bool {
    matches!(code, Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted)
}

fn described(status: &Status) -> String {
    format!("{}: {}", scorer_proto::CODE_NAMES[status.code() as usize], status.message())
}

#[cfg(test)]
mod tests;
