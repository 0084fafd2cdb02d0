//! Stage `arrive`: determines the arrival time of a request and its caller's deadline.

use std::time::{Duration, Instant};

use http::HeaderMap;
use scorer_engine::{Arrival, Rejection};

/// The reason why a request is not started.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum ArriveError {
    /// `grpc-timeout` does not follow the protocol.
    #[error("grpc-timeout is malformed: {what}; write 1 to 8 digits and one of H, M, S, m, u, n")]
    Timeout {
        /// The fault.
        what: &'static str,
    },
    /// A rejection of the engine.
    #[error(transparent)]
    Rejected(#[from] Rejection),
}

/// Creates the arrival of a request of `caller` that arrived at `at`.
///
/// # Errors
/// Fails if `grpc-timeout` is malformed (tonic would ignore it) or has passed already.
pub(crate) fn stamp(headers: &HeaderMap, at: Instant, caller: u64) -> (Arrival, Result<(), ArriveError>) {
    let (timeout, verdict) = match timeout(headers) {
        Ok(Some(timeout)) if timeout.is_zero() => (Some(timeout), Err(Rejection::Deadline.into())),
        Ok(timeout) => (timeout, Ok(())),
        Err(error) => (None, Err(error)),
    };
    (Arrival::new(at, timeout, caller), verdict)
}

/// Parses `grpc-timeout`: 1 to 8 digits and a unit, given at most once.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, ArriveError> {
    let mut values = headers.get_all("grpc-timeout").iter();
    let Some(value) = values.next() else { return Ok(None) };
    let malformed = || ArriveError::Timeout { what: "it does not follow the protocol" };
    if values.next().is_some() {
        return Err(ArriveError::Timeout { what: "it is given twice" });
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

    fn read(values: &[&str]) -> Result<Option<Duration>, ArriveError> {
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

    /// Fault case 3.
    #[test]
    fn refuses_what_the_protocol_does_not_allow() {
        for text in ["", "5x", "S", "-1S", "+1S", "123456789S", "1.5S", "1 S", "5", "١S"] {
            assert!(matches!(read(&[text]), Err(ArriveError::Timeout { .. })), "{text:?}");
        }
        assert!(matches!(read(&["1S", "1S"]), Err(ArriveError::Timeout { .. })));
    }

    /// Fault case 2.
    #[test]
    fn an_expired_deadline_is_rejected_on_arrival() {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", "0m".parse().unwrap());
        let (arrival, verdict) = stamp(&headers, Instant::now(), 0);
        assert!(matches!(verdict, Err(ArriveError::Rejected(Rejection::Deadline))));
        assert_eq!(arrival.check_deadline(), Err(Rejection::Deadline));
    }
}
