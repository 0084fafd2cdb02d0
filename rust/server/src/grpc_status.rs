//! Converts rejections and protocol errors to gRPC statuses.

use scorer_engine::Rejection;
use scorer_http::Limit;
use tonic::{Code, Status};

use crate::arrive::ArriveError;
use crate::oip::InferError;
use crate::rejection_code::code;
use crate::shadow::ShadowError;

/// The metadata key of the delay after which clients may retry, according to gRPC's retry design.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Returns the status of a rejection.
pub(crate) fn of(rejection: Rejection) -> Status {
    let mut status = Status::new(code(&rejection), rejection.to_string());
    if let Some(ms) = rejection.retry_pushback_ms() {
        status.metadata_mut().insert(PUSHBACK, ms.into());
    }
    status
}

/// Returns the status of a message that exceeds a limit on the bytes in flight.
pub(crate) fn of_bytes(limit: Limit) -> Status {
    let whose = if limit == Limit::InflightBytesPerPeer { "of this peer" } else { "of all peers" };
    let mut status = Status::resource_exhausted(format!(
        "the messages {whose} in flight have too many bytes; retry with back-off, send fewer at once or raise {}",
        limit.as_str()
    ));
    status.metadata_mut().insert(PUSHBACK, (-1).into());
    status
}

impl From<ArriveError> for Status {
    fn from(error: ArriveError) -> Status {
        match error {
            ArriveError::Rejected(rejection) => of(rejection),
            ArriveError::Timeout { .. } => Status::invalid_argument(error.to_string()),
        }
    }
}

impl From<ShadowError> for Status {
    fn from(error: ShadowError) -> Status {
        let code = match error {
            ShadowError::Shadow { .. } | ShadowError::NotShadow => Code::FailedPrecondition,
            ShadowError::Observe { .. } => Code::InvalidArgument,
        };
        Status::new(code, error.to_string())
    }
}

impl From<InferError> for Status {
    fn from(error: InferError) -> Status {
        let code = match error {
            InferError::Rejected(rejection) => return of(rejection),
            InferError::Version { .. } => Code::NotFound,
            InferError::NotOffered { .. } => Code::Unimplemented,
            InferError::NoInputs
            | InferError::RawCount { .. }
            | InferError::BothContents { .. }
            | InferError::Repeated { .. }
            | InferError::PositionalAndNamed { .. }
            | InferError::Datatype { .. }
            | InferError::Shape { .. }
            | InferError::RawLength { .. }
            | InferError::Length { .. }
            | InferError::Bytes { .. }
            | InferError::Text { .. }
            | InferError::Rows { .. }
            | InferError::ActionRows { .. }
            | InferError::Output { .. }
            | InferError::RepeatedOutput { .. }
            | InferError::Parameter { .. } => Code::InvalidArgument,
        };
        Status::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use scorer_admission::ShedReason;
    use scorer_engine::TokenError;

    use super::*;

    #[test]
    fn every_family_has_its_code() {
        let text = String::new;
        for (rejection, expected) in [
            (Rejection::Deadline, Code::DeadlineExceeded),
            (Rejection::Overloaded { limit: 1 }, Code::ResourceExhausted),
            (Rejection::ShareUsed { got: 1, of: "peer" }, Code::ResourceExhausted),
            (Rejection::Shed { reason: ShedReason::Wait, retry_after_ms: None }, Code::ResourceExhausted),
            (Rejection::Capped, Code::ResourceExhausted),
            (Rejection::BreakerOpen { bundle: text() }, Code::Unavailable),
            (Rejection::Draining, Code::Unavailable),
            (Rejection::UnknownCheckpoint { name: text(), known: text() }, Code::NotFound),
            (Rejection::Fingerprint { got: 1, expected: 2, bundle: text() }, Code::FailedPrecondition),
            (Rejection::NoBundle { name: text() }, Code::Unavailable),
            (Rejection::NothingEligible, Code::InvalidArgument),
            (Rejection::NothingAllowed { bundle: text() }, Code::InvalidArgument),
            (Rejection::ContentDiffers { checkpoint: text() }, Code::AlreadyExists),
            (Rejection::OutcomeConflict { kind: text(), revision: 0 }, Code::AlreadyExists),
            (Rejection::OutcomeValue, Code::InvalidArgument),
            (Rejection::OutcomeSourceKind { got: 9 }, Code::InvalidArgument),
            (Rejection::OutcomeSourceId { got: text(), max: 1 }, Code::InvalidArgument),
            (Rejection::CardNumber { field: "entity" }, Code::InvalidArgument),
            (Rejection::OutcomeRevision { revision: 2, max: 1 }, Code::InvalidArgument),
            (Rejection::OutcomeRate { kind: text(), most: 1 }, Code::ResourceExhausted),
            (Rejection::CallerRate { most: 1, retry_after_ms: 1 }, Code::ResourceExhausted),
            (Rejection::Token(TokenError::Signature), Code::PermissionDenied),
            (Rejection::Unproven, Code::PermissionDenied),
            (Rejection::BundleDigest, Code::InvalidArgument),
            (Rejection::BundleNotHeld { bundle: text(), checkpoint: text() }, Code::NotFound),
            (Rejection::NoCovers { bundle: text() }, Code::FailedPrecondition),
            (Rejection::ExplainedAction { field: "action", rule: text() }, Code::InvalidArgument),
            (Rejection::ExplanationsFull { limit: 1 }, Code::ResourceExhausted),
            (Rejection::ExplanationsStopped, Code::ResourceExhausted),
            (Rejection::NoLog, Code::Unavailable),
            (Rejection::Internal { id: text() }, Code::Internal),
        ] {
            let status = of(rejection.clone());
            assert_eq!(status.code(), expected, "{rejection:?}");
            assert_eq!(status.message(), rejection.to_string());
        }
    }

    #[test]
    fn errors_of_the_protocols_have_their_codes() {
        let timeout = ArriveError::Timeout { what: "it is given twice" };
        assert_eq!(Status::from(timeout).code(), Code::InvalidArgument);
        assert_eq!(Status::from(ArriveError::from(Rejection::Deadline)).code(), Code::DeadlineExceeded);
        assert_eq!(Status::from(ShadowError::NotShadow).code(), Code::FailedPrecondition);
        assert_eq!(Status::from(InferError::NoInputs).code(), Code::InvalidArgument);
        assert_eq!(Status::from(InferError::from(Rejection::Draining)).code(), Code::Unavailable);
    }

    #[test]
    fn a_shed_request_says_when_to_retry() {
        let pushback = |rejection: Rejection| {
            of(rejection).metadata().get(PUSHBACK).map(|ms| ms.to_str().unwrap().to_owned())
        };
        let shed = |retry_after_ms| Rejection::Shed { reason: ShedReason::Limit, retry_after_ms };
        assert_eq!(pushback(shed(Some(7))).as_deref(), Some("7"));
        assert_eq!(pushback(shed(None)).as_deref(), Some("-1"));
        assert_eq!(pushback(Rejection::Overloaded { limit: 1 }).as_deref(), Some("-1"));
        assert_eq!(pushback(Rejection::Deadline), None);
    }

    #[test]
    fn an_internal_error_has_its_id_and_nothing_else() {
        let status = of(Rejection::Internal { id: "0190-abcd".to_owned() });
        assert_eq!(
            status.message(),
            "internal error, id 0190-abcd; the server's log has the details under this id"
        );
    }
}
