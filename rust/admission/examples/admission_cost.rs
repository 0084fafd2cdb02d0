//! What admission adds to one request, and prints one JSON line.
//!
//! `cargo run --release -p scorer-admission --example admission_cost`
//!
//! The least of many rounds counts: everything else on the machine can only add to it. Of two threads at once the
//! median counts: in the least of their rounds one ran after the other.

use std::error::Error;
use std::hint::black_box;
use std::io::Write as _;
use std::sync::Barrier;
use std::time::Instant;

use scorer_admission::{
    Admission, Ask, CheckpointSettings, Mode, Nanos, Outcome, Permit, Reply, ReplyCell, Served, Settings,
    Verdict, WINDOW,
};

const REQUESTS: u64 = 20_000;
const ROUNDS: u64 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let admitted = measure(1, true)?;
    let pressed = measure(1, false)?;
    let contended = measure(2, true)?;
    writeln!(
        out,
        "{{\"name\": \"admission_ns_per_request\", \"admit_start_finish_reply\": {admitted:.1}, \"shed\": {pressed:.1}, \
         \"two_threads_median\": {contended:.1}, \"target\": 200, \"met\": {}}}",
        admitted < 200.0
    )?;
    Ok(())
}

/// Nanoseconds per request and thread.
fn measure(threads: usize, idle: bool) -> Result<f64, Box<dyn Error>> {
    let point = CheckpointSettings { mode: Mode::Enforce, ..CheckpointSettings::new(Nanos::from_millis(10)) };
    let admission = Admission::new(Settings::new(threads, vec![point]))?;
    admission.expect(0, 1, Nanos::from_micros(if idle { 3 } else { 9_800 }));
    // Long enough that threads that were started one after the other do run at once.
    let (mut rounds, repeats) = (Vec::new(), if threads > 1 { 20 } else { 1 });
    let mut now = Nanos::from_secs(1);
    if !idle {
        // Fills the worker and its queue, so that what follows is looked at by every gate and shed.
        for caller in 0..1_000 {
            if let Verdict::Admit(ticket) = admission.ask(now, &ask(now, caller)) {
                let mut permit = Permit::new(&admission, ticket);
                let _ = permit.start(now);
                std::mem::forget(permit);
            }
        }
    }
    for _ in 0..ROUNDS / repeats {
        let barrier = Barrier::new(threads);
        let times: Vec<f64> = std::thread::scope(|scope| {
            let run = |thread: usize| {
                barrier.wait();
                let began = Instant::now();
                for _ in 0..repeats {
                    for request in 0..REQUESTS {
                        one(&admission, now.plus(Nanos(request * 4_000)), request ^ (thread as u64) << 32);
                    }
                }
                began.elapsed().as_nanos() as f64 / (repeats * REQUESTS) as f64
            };
            let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
            let own = run(0);
            others.into_iter().map(|thread| thread.join().unwrap_or(f64::INFINITY)).chain([own]).collect()
        });
        rounds.push(times.into_iter().fold(0.0, f64::max));
        now = now.plus(WINDOW);
        if idle {
            admission.tick(now);
        }
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[if threads == 1 { 0 } else { rounds.len() / 2 }])
}

fn ask(now: Nanos, caller: u64) -> Ask {
    let hash = caller.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Ask {
        checkpoint: 0,
        bundle: 1,
        rows: 1,
        arrived: now,
        timeout: None,
        caller: hash % 50,
        cohort: hash,
        then: None,
    }
}

/// All that one request asks of admission.
fn one(admission: &Admission, now: Nanos, caller: u64) {
    match admission.ask(now, &ask(now, caller)) {
        Verdict::Admit(ticket) => {
            let mut permit = Permit::new(admission, ticket);
            let cell: ReplyCell = ReplyCell::new();
            let _ = black_box(permit.start(now));
            let _ = black_box(cell.claim(Reply::Model));
            permit.finish(now.plus(Nanos(3_000)), Served { exec: Nanos(3_000), outcome: Outcome::Model });
        }
        Verdict::Shed(shed) => {
            black_box(shed);
        }
    }
}
