//! The status of a message that tonic's codec of streams rejects.

use tonic::{Code, Status};

/// Returns the status to report for an error of `Streaming::message`. tonic's codec has OUT_OF_RANGE for a message above
/// the limit, where gRPC's table of status codes has RESOURCE_EXHAUSTED, as [`crate::unary`] has. No other error of its
/// codec is OUT_OF_RANGE.
#[must_use]
pub fn of_stream(status: Status) -> Status {
    match status.code() {
        Code::OutOfRange => Status::resource_exhausted(status.message()),
        _ => status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_range_alone_is_changed() {
        for number in 0..=16 {
            let code = Code::from(number);
            let expected = if code == Code::OutOfRange { Code::ResourceExhausted } else { code };
            let status = of_stream(Status::new(code, "why"));
            assert_eq!((status.code(), status.message()), (expected, "why"));
        }
    }
}
