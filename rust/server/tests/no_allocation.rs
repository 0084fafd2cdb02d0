//! Observe lanes do not allocate memory in the thread that answers, whether they take a request or not. Requests that
//! are not traced do not either.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]
#![expect(unsafe_code, reason = "an allocator that counts has to implement GlobalAlloc")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use scorer_proto::v1::ScoreRequest;
use serde_json::json;
use support::*;
use tonic::Request;

/// Allocations of the thread that answers.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static THREAD: AtomicI32 = AtomicI32::new(0);

struct Counting;

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let thread = THREAD.load(Ordering::Relaxed);
        if thread != 0 && rustix::thread::gettid().as_raw_nonzero().get() == thread {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's obligations are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Requests of one measurement, and measurements.
const REQUESTS: u32 = 100;
const MEASUREMENTS: u32 = 20;

/// Returns the number of the thread that answers; the server must have one.
fn answering_thread() -> i32 {
    let answers = fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|task| task.unwrap().path())
        .find(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "scorer-data-0"));
    answers.unwrap().file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Both tests count on one thread at a time.
static ONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Returns the fewest allocations per request of any measurement.
///
/// The reads and writes of a connection allocate more often when they are split differently, on a busy machine for
/// half of the requests. What every request allocates is part of every measurement, and of the fewest too.
async fn fewest_per_request(client: &mut Client, request: impl Fn() -> Request<ScoreRequest>) -> f64 {
    let mut fewest = u64::MAX;
    for _ in 0..MEASUREMENTS {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..REQUESTS {
            client.score(request()).await.unwrap();
        }
        fewest = fewest.min(ALLOCATIONS.load(Ordering::Relaxed) - before);
    }
    fewest as f64 / f64::from(REQUESTS)
}

#[tokio::test]
async fn neither_taken_nor_omitted_requests_allocate() {
    let _one = ONE.lock().await;
    let setup = start_with(|config| {
        config["threads"] = json!(1);
        config["observe_queue"] = json!(4);
    });
    let thread = answering_thread();
    let mut client = setup.client().await;
    let fingerprint = fingerprint(&mut client, FRAUD).await;
    let mut per_request = async |version: u64, sample: f64| -> f64 {
        let lanes = ["a", "b", "c"].map(|name| observer(name, &setup.fraud, sample));
        let lanes = if sample > 0.0 { lanes.to_vec() } else { Vec::new() };
        setup.server.swap(&observed(&setup, version, FRAUD, lanes)).unwrap();
        let request = || Request::new(score_dense("", fingerprint, &[1.0, 1.0, 0.0]));
        fewest_per_request(&mut client, request).await
    };
    THREAD.store(thread, Ordering::Relaxed);
    let none = per_request(2, 0.0).await;
    let left_out = per_request(3, 1e-12).await;
    let taken = per_request(4, 1.0).await;
    THREAD.store(0, Ordering::Relaxed);
    let status = setup.server.status();
    assert!(none > 1.0 && status.observers.iter().all(|lane| lane.taken == lane.seen), "{status:?}");
    // One allocation per request and lane would add 3.
    assert!((left_out - none).abs() < 0.7, "{none} without, {left_out} left out");
    assert!((taken - none).abs() < 0.7, "{none} without, {taken} taken");
}

/// Contexts of callers that do not ask for a trace.
const PARENTS: [Option<&str>; 4] = [
    None,
    Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"),
    Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02"),
    Some("malformed"),
];

/// Returns the allocations per request for each of [`PARENTS`].
async fn per_request(tracing: Option<serde_json::Value>) -> [f64; PARENTS.len()] {
    let setup = start_with(|config| {
        config["threads"] = json!(1);
        if let Some(tracing) = tracing {
            config["tracing"] = tracing;
        }
    });
    let thread = answering_thread();
    let mut client = setup.client().await;
    let fingerprint = fingerprint(&mut client, FRAUD).await;
    let mut counts = [0.0; PARENTS.len()];
    THREAD.store(thread, Ordering::Relaxed);
    for (parent, count) in PARENTS.iter().zip(&mut counts) {
        *count = fewest_per_request(&mut client, || {
            let mut request = Request::new(score_dense("", fingerprint, &[1.0, 1.0, 0.0]));
            if let Some(parent) = parent {
                request.metadata_mut().insert("traceparent", parent.parse().unwrap());
                request.metadata_mut().insert("tracestate", "vendor=value".parse().unwrap());
            }
            request
        })
        .await;
    }
    THREAD.store(0, Ordering::Relaxed);
    counts
}

#[tokio::test]
async fn a_request_that_is_not_traced_allocates_nothing_for_it() {
    let _one = ONE.lock().await;
    let off = per_request(None).await;
    let unsampled = per_request(Some(json!({"endpoint": "127.0.0.1:1", "ratio": 0.0}))).await;
    let all =
        json!({"endpoint": "127.0.0.1:1", "ratio": 1.0, "follow_callers": false, "most_per_second": 1 << 20});
    let sampled = per_request(Some(all)).await;
    for ((off, unsampled), (sampled, parent)) in off.iter().zip(unsampled).zip(sampled.iter().zip(PARENTS)) {
        // One allocation per request would add 1.
        assert!((unsampled - off).abs() < 0.7, "{off} without traces, {unsampled} with, parent {parent:?}");
        assert!(
            sampled > &(off + 1.0),
            "{off} without traces, {sampled} traced: the test sees none, parent {parent:?}"
        );
    }
}
