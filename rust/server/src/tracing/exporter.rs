//! The thread that exports spans. It reads the queue at intervals, so that answering threads do not pay for waking it,
//! and sends one batch at a time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use scorer_engine::{Engine, Level};
use scorer_os::sched;
use scorer_outbound::Backoff;
use scorer_proto::CODE_NAMES;
use scorer_proto::otlp::ExportTraceServiceResponse;
use scorer_proto::otlp::trace_service_client::TraceServiceClient;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::{Ended, Tracer, spans};

/// Greatest number of requests in one call. Six spans of some hundred bytes each make less than 1 MiB, and collectors
/// read 4 MiB.
const BATCH: usize = 256;
/// Interval at which the queue is read.
const LINGER: Duration = Duration::from_millis(100);
/// Interval at which an idle connection is checked.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Number of attempts to export a batch.
const ATTEMPTS: u32 = 4;
/// Time to export the rest of the queue after the server has stopped.
const LAST: Duration = Duration::from_secs(1);

/// Starts the thread.
pub(super) fn start(
    tracer: Arc<Tracer>,
    engine: Arc<Engine>,
    waiting: mpsc::Receiver<Ended>,
    stop: watch::Receiver<bool>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exporter = Exporter { tracer, engine, waiting, client: None, error: String::new() };
    let run = move || {
        sched::lower_priority();
        runtime.block_on(exporter.run(stop));
        // A look-up of the collector's name can block for long, so the thread does not wait for it.
        runtime.shutdown_background();
    };
    thread::Builder::new().name("scorer-traces".to_owned()).spawn(run)
}

struct Exporter {
    tracer: Arc<Tracer>,
    engine: Arc<Engine>,
    waiting: mpsc::Receiver<Ended>,
    client: Option<TraceServiceClient<Channel>>,
    /// The latest error; empty while the collector answers.
    error: String,
}

/// The requests of one call. The spans are counted exactly once, also if the batch is dropped without a reply.
struct Batch {
    tracer: Arc<Tracer>,
    ended: Vec<Ended>,
    /// Number of spans that have not been counted yet.
    open: u64,
}

/// The reason why a call failed.
enum Failure {
    /// The collector does not accept this batch.
    Refused(String),
    /// Another attempt may succeed.
    Again(String),
}

// === impl Exporter ===

impl Exporter {
    async fn run(mut self, stop: watch::Receiver<bool>) {
        let mut stopped = stop.clone();
        let out_of_time = async {
            // An error means that the sender was dropped, which ends the thread too.
            let _ = stopped.wait_for(|stop| *stop).await;
            sleep(LAST).await;
        };
        tokio::select! {
            () = self.export(stop) => {}
            () = out_of_time => {}
        }
        self.waiting.close();
        let mut left = self.batch();
        while let Ok(ended) = self.waiting.try_recv() {
            left.add(ended);
        }
        drop(left);
        self.tracer.counts.connected.store(false, Relaxed);
    }

    /// Exports until the server has stopped and the queue is empty, or the collector fails after the stop.
    async fn export(&mut self, mut stop: watch::Receiver<bool>) {
        let mut backoff = Backoff::new();
        while let Some(mut batch) = self.gather(&mut stop).await {
            for attempt in 1..=ATTEMPTS {
                match self.call(&batch).await {
                    Ok(rejected) => {
                        batch.end(rejected);
                        backoff.reset();
                        break;
                    }
                    Err(Failure::Refused(error)) => {
                        batch.end(batch.open);
                        self.tracer.counts.connected.store(true, Relaxed);
                        self.tell("trace_collector_refused", error);
                        break;
                    }
                    Err(Failure::Again(error)) => {
                        self.client = None;
                        self.tracer.counts.connected.store(false, Relaxed);
                        self.tell("trace_collector_lost", error);
                    }
                }
                tokio::select! {
                    () = sleep(backoff.next_delay()) => {}
                    _ = stop.wait_for(|stop| *stop) => return,
                }
                if attempt == ATTEMPTS {
                    drop(batch);
                    break;
                }
            }
        }
    }

    /// Waits for the next batch; `None` if the server has stopped and the queue is empty.
    async fn gather(&mut self, stop: &mut watch::Receiver<bool>) -> Option<Batch> {
        let mut batch = self.batch();
        loop {
            // An error means that the sender was dropped, and the server with it.
            let stopped = *stop.borrow() || stop.has_changed().is_err();
            if !stopped && self.waiting.len() < BATCH {
                tokio::select! {
                    () = sleep(LINGER) => {}
                    _ = stop.wait_for(|stop| *stop) => {}
                }
            }
            while batch.ended.len() < BATCH {
                let Ok(ended) = self.waiting.try_recv() else { break };
                batch.add(ended);
            }
            if !batch.ended.is_empty() {
                return Some(batch);
            }
            if stopped {
                return None;
            }
        }
    }

    /// Sends a batch, over a new connection if there is none. Returns the number of spans that the collector rejected.
    async fn call(&mut self, batch: &Batch) -> Result<u64, Failure> {
        let config = &self.tracer.config;
        let within = Duration::from_millis(config.timeout_ms);
        let client = match &mut self.client {
            Some(client) => client,
            none => {
                let (address, tls) = (&config.endpoint, config.tls.as_ref());
                let channel = scorer_outbound::connect(address, tls, within, HEARTBEAT).await;
                none.insert(TraceServiceClient::new(channel.map_err(Failure::Again)?))
            }
        };
        let mut request = tonic::Request::new(spans::message(&self.tracer, &self.engine, &batch.ended));
        request.set_timeout(within);
        let reply = match timeout(within, client.export(request)).await {
            Ok(Ok(reply)) => reply.into_inner(),
            Ok(Err(status)) if is_final(status.code()) => return Err(Failure::Refused(described(&status))),
            Ok(Err(status)) => return Err(Failure::Again(described(&status))),
            Err(_) => return Err(Failure::Again(format!("no answer within {} ms", within.as_millis()))),
        };
        Ok(self.answered(reply, batch.open))
    }

    /// Reports that the collector answers, and returns how many of the spans it rejected.
    fn answered(&mut self, reply: ExportTraceServiceResponse, sent: u64) -> u64 {
        let partial = reply.partial_success.unwrap_or_default();
        let rejected = u64::try_from(partial.rejected_spans).unwrap_or(0).min(sent);
        if !self.tracer.counts.connected.swap(true, Relaxed) {
            let fields = json!({"endpoint": &self.tracer.config.endpoint});
            self.engine.events.push(Level::Info, "trace_collector_connected", fields);
        }
        if rejected > 0 {
            self.tell("trace_collector_refused", partial.error_message.chars().take(200).collect());
        } else {
            self.error.clear();
        }
        rejected
    }

    /// Reports an error as an event, unless it is the same as the latest one.
    fn tell(&mut self, event: &str, error: String) {
        if self.error != error {
            let fields = json!({"endpoint": &self.tracer.config.endpoint, "error": &error});
            self.engine.events.push(Level::Warning, event, fields);
            self.error = error;
        }
    }

    fn batch(&self) -> Batch {
        Batch { tracer: Arc::clone(&self.tracer), ended: Vec::new(), open: 0 }
    }
}

// === impl Batch ===

impl Batch {
    fn add(&mut self, ended: Ended) {
        self.open += spans::count(&ended);
        self.ended.push(ended);
    }

    /// Counts the spans of a batch that was answered.
    fn end(&mut self, rejected: u64) {
        let counts = &self.tracer.counts;
        counts.refused.fetch_add(rejected, AcqRel);
        counts.exported.fetch_add(self.open - rejected, AcqRel);
        self.open = 0;
    }
}

impl Drop for Batch {
    /// Counts spans that have not been counted yet as dropped.
    fn drop(&mut self) {
        self.tracer.counts.dropped.fetch_add(self.open, AcqRel);
    }
}

/// Whether a status says that the same batch would be refused again. The protocol lists the other codes as transient,
/// and UNKNOWN is the code of a broken connection.
fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::Unimplemented
            | Code::Internal
            | Code::Unauthenticated
    )
}

fn described(status: &Status) -> String {
    let message: String = status.message().chars().take(200).collect();
    format!("{}: {message}", CODE_NAMES[status.code() as usize])
}
