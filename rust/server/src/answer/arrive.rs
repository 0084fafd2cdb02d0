//! Stage 1: when the request came, and until when its caller waits.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use http::HeaderMap;

use crate::metrics::Method;
use crate::refusal::{Refusal, shortened};

/// No checkpoint known yet.
const NONE: u32 = u32::MAX;
/// Stands for no time limit: five hundred years.
const UNLIMITED: u64 = u64::MAX;

/// Travels with the request from the moment its HEADERS were decoded.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// Before the request's task was spawned: waiting for a thread counts.
    pub(crate) at: Instant,
    pub(crate) method: Method,
    /// Who calls, hashed: shares of the capacity are per caller.
    pub(crate) caller: u64,
    /// It waits to be asked about.
    waits: AtomicBool,
    /// What the caller allows, nanoseconds; [`UNLIMITED`] if it did not say.
    allowed: AtomicU64,
    /// Filled by the decode stage, read by the counters.
    checkpoint: AtomicU32,
    /// Arrival to first poll, nanoseconds; [`UNLIMITED`] before it.
    queued: AtomicU64,
    /// The answer is a fallback's.
    fallback: AtomicBool,
    /// Arrival to answer of one row, nanoseconds; [`UNLIMITED`] before it.
    ready: AtomicU64,
}

// === impl Arrival ===

impl Arrival {
    /// Stamps a request that arrived at `at`.
    ///
    /// # Errors
    /// A malformed `grpc-timeout` (tonic would take it for none), or one that is over already.
    pub(crate) fn stamp(method: Method, headers: &HeaderMap, at: Instant) -> (Arrival, Result<(), Refusal>) {
        let (timeout, verdict) = match timeout(headers) {
            Ok(Some(timeout)) if timeout.is_zero() => (Some(timeout), Err(Refusal::Deadline)),
            Ok(timeout) => (timeout, Ok(())),
            Err(refusal) => (None, Err(refusal)),
        };
        let arrival = Arrival {
            at,
            method,
            caller: 0,
            waits: AtomicBool::new(false),
            allowed: AtomicU64::new(timeout.map_or(UNLIMITED, nanos)),
            checkpoint: AtomicU32::new(NONE),
            queued: AtomicU64::new(UNLIMITED),
            fallback: AtomicBool::new(false),
            ready: AtomicU64::new(UNLIMITED),
        };
        (arrival, verdict)
    }

    /// What the caller allows, counted from the arrival, if it said so.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let allowed = self.allowed.load(Relaxed);
        (allowed != UNLIMITED).then(|| Duration::from_nanos(allowed))
    }

    /// The message itself may set a limit too; the shorter one holds.
    pub(crate) fn tighten(&self, timeout: Duration) {
        self.allowed.fetch_min(nanos(timeout), Relaxed);
    }

    /// The request is polled for the first time.
    pub(crate) fn started(&self) {
        self.queued.store(nanos(self.at.elapsed()), Relaxed);
    }

    /// How long it waited for that; `None` where it never came to it.
    pub(crate) fn queue_delay(&self) -> Option<Duration> {
        let queued = self.queued.load(Relaxed);
        (queued != UNLIMITED).then(|| Duration::from_nanos(queued))
    }

    /// The one row has its answer since `at`: what is left is to reply.
    pub(crate) fn ready(&self, at: Instant) {
        self.ready.store(nanos(at.saturating_duration_since(self.at)), Relaxed);
    }

    /// How long ago that was.
    pub(crate) fn ready_for(&self) -> Option<Duration> {
        let ready = self.ready.load(Relaxed);
        (ready != UNLIMITED).then(|| self.at.elapsed().saturating_sub(Duration::from_nanos(ready)))
    }

    /// What is answered is not the model's own, in whole or in part.
    pub(crate) fn fell_back(&self) {
        self.fallback.store(true, Relaxed);
    }

    pub(crate) fn has_fallen_back(&self) -> bool {
        self.fallback.load(Relaxed)
    }

    /// Refuses to start work for a caller that has given up.
    pub(crate) fn check_deadline(&self) -> Result<(), Refusal> {
        match self.timeout() {
            Some(timeout) if self.at.elapsed() >= timeout => Err(Refusal::Deadline),
            _ => Ok(()),
        }
    }

    /// Notes that it waits, or not any more; tells what it did before.
    pub(crate) fn entered(&self, waits: bool) -> bool {
        self.waits.swap(waits, Relaxed)
    }

    pub(crate) fn set_checkpoint(&self, index: usize) {
        self.checkpoint.store(index as u32, Relaxed);
    }

    pub(crate) fn checkpoint(&self) -> Option<usize> {
        let index = self.checkpoint.load(Relaxed);
        (index != NONE).then_some(index as usize)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(UNLIMITED)
}

/// Reads `grpc-timeout`: 1 to 8 digits and a unit, once.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Refusal> {
    let mut values = headers.get_all("grpc-timeout").iter();
    let Some(value) = values.next() else { return Ok(None) };
    let malformed = || Refusal::Timeout { value: shortened(&String::from_utf8_lossy(value.as_bytes())) };
    if values.next().is_some() {
        return Err(Refusal::Timeout { value: "given twice".to_owned() });
    }
    let Some((&unit, digits)) = value.as_bytes().split_last() else { return Err(malformed()) };
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return Err(malformed());
    }
    let number = digits.iter().fold(0, |number: u64, digit| number * 10 + u64::from(digit - b'0'));
    Ok(Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return Err(malformed()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Result<Option<Duration>, Refusal> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("grpc-timeout", value.parse().unwrap());
        }
        timeout(&headers)
    }

    #[test]
    fn reads_every_unit() {
        for (text, expected) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("10m", Duration::from_millis(10)),
            ("250u", Duration::from_micros(250)),
            ("0n", Duration::ZERO),
            ("99999999H", Duration::from_secs(99_999_999 * 3600)),
        ] {
            assert_eq!(read(&[text]), Ok(Some(expected)), "{text}");
        }
        assert_eq!(read(&[]), Ok(None));
    }

    #[test]
    fn refuses_what_the_protocol_does_not_allow() {
        for text in ["", "5x", "S", "-1S", "+1S", "123456789S", "1.5S", "1 S", "5", "١S"] {
            assert!(matches!(read(&[text]), Err(Refusal::Timeout { .. })), "{text:?}");
        }
        assert!(matches!(read(&["1S", "1S"]), Err(Refusal::Timeout { .. })));
    }

    #[test]
    fn the_shorter_limit_holds() {
        let mut headers = HeaderMap::new();
        let (arrival, _) = Arrival::stamp(Method::Score, &headers, Instant::now());
        assert_eq!(arrival.timeout(), None);
        arrival.tighten(Duration::from_secs(2));
        assert_eq!(arrival.timeout(), Some(Duration::from_secs(2)));
        headers.insert("grpc-timeout", "1S".parse().unwrap());
        let (arrival, _) = Arrival::stamp(Method::Score, &headers, Instant::now());
        arrival.tighten(Duration::from_secs(2));
        assert_eq!(arrival.timeout(), Some(Duration::from_secs(1)));
        arrival.tighten(Duration::from_nanos(1));
        assert_eq!(arrival.check_deadline(), Err(Refusal::Deadline));
    }

    #[test]
    fn an_expired_deadline_is_told_at_the_door() {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", "0m".parse().unwrap());
        let (arrival, verdict) = Arrival::stamp(Method::Score, &headers, Instant::now());
        assert_eq!(verdict, Err(Refusal::Deadline));
        assert_eq!(arrival.check_deadline(), Err(Refusal::Deadline));
    }
}
