//! The one place where a refusal becomes a gRPC status.

use tonic::{Code, Status};

use crate::refusal::Refusal;

/// Tells clients that retry by themselves when to, as gRPC's retry design has it.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// The status code of a refusal. Exhaustive on purpose: a new refusal has to be placed here.
#[must_use]
pub(crate) fn code(refusal: &Refusal) -> Code {
    match refusal {
        Refusal::Timeout { .. }
        | Refusal::WrongKind { .. }
        | Refusal::Id { .. }
        | Refusal::TooLong { .. }
        | Refusal::NoFeatures
        | Refusal::Schema(_)
        | Refusal::Row { .. }
        | Refusal::NoRows
        | Refusal::TooManyRows { .. }
        | Refusal::Shape { .. }
        | Refusal::NothingEligible
        | Refusal::BothForms
        | Refusal::EmptyMask
        | Refusal::Mask(_)
        | Refusal::UnknownAction { .. }
        | Refusal::RepeatedAction { .. }
        | Refusal::TooManyActions { .. }
        | Refusal::Observe { .. }
        | Refusal::OutcomeKind { .. }
        | Refusal::OutcomeValue { .. } => Code::InvalidArgument,
        Refusal::Fingerprint { .. } | Refusal::Shadow { .. } | Refusal::NotShadow => Code::FailedPrecondition,
        Refusal::UnknownCheckpoint { .. } => Code::NotFound,
        Refusal::ContentDiffers { .. } | Refusal::OutcomeConflict { .. } => Code::AlreadyExists,
        Refusal::Deadline => Code::DeadlineExceeded,
        Refusal::Overloaded { .. } | Refusal::Shed { .. } | Refusal::Capped => Code::ResourceExhausted,
        Refusal::BreakerOpen { .. }
        | Refusal::Draining
        | Refusal::NoBundle { .. }
        | Refusal::NoLog
        | Refusal::Log(_) => Code::Unavailable,
        Refusal::Internal { .. } => Code::Internal,
        Refusal::Inference(error) => error.code(),
    }
}

/// A code's name, as gRPC writes it.
pub(crate) fn name(code: Code) -> &'static str {
    crate::metrics::code_name(code as usize)
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        let mut status = Status::new(code(&refusal), refusal.to_string());
        if let Some(ms) = refusal.retry_pushback_ms() {
            status.metadata_mut().insert(PUSHBACK, ms.into());
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use scorer_admission::ShedReason;

    use super::*;

    #[test]
    fn every_family_has_its_code() {
        let text = String::new;
        for (refusal, expected) in [
            (Refusal::Timeout { value: text() }, Code::InvalidArgument),
            (Refusal::Deadline, Code::DeadlineExceeded),
            (Refusal::Overloaded { limit: 1 }, Code::ResourceExhausted),
            (Refusal::Shed { reason: ShedReason::Wait, retry_after_ms: None }, Code::ResourceExhausted),
            (Refusal::Capped, Code::ResourceExhausted),
            (Refusal::BreakerOpen { bundle: text() }, Code::Unavailable),
            (Refusal::Draining, Code::Unavailable),
            (Refusal::UnknownCheckpoint { name: text(), known: text() }, Code::NotFound),
            (Refusal::Fingerprint { got: 1, expected: 2, bundle: text() }, Code::FailedPrecondition),
            (Refusal::NoBundle { name: text() }, Code::Unavailable),
            (Refusal::NothingEligible, Code::InvalidArgument),
            (Refusal::ContentDiffers { checkpoint: text() }, Code::AlreadyExists),
            (
                Refusal::OutcomeConflict { kind: text(), revision: 0, recorded: 0.0, reported: 1.0 },
                Code::AlreadyExists,
            ),
            (Refusal::OutcomeValue { value: f64::NAN }, Code::InvalidArgument),
            (Refusal::NoLog, Code::Unavailable),
            (Refusal::Internal { id: text() }, Code::Internal),
        ] {
            let status = Status::from(refusal.clone());
            assert_eq!(status.code(), expected, "{refusal:?}");
            assert_eq!(status.message(), refusal.to_string());
        }
    }

    #[test]
    fn who_is_shed_is_told_when_to_retry() {
        let pushback = |refusal: Refusal| {
            Status::from(refusal).metadata().get(PUSHBACK).map(|ms| ms.to_str().unwrap().to_owned())
        };
        let shed = |retry_after_ms| Refusal::Shed { reason: ShedReason::Limit, retry_after_ms };
        assert_eq!(pushback(shed(Some(7))).as_deref(), Some("7"));
        assert_eq!(pushback(shed(None)).as_deref(), Some("-1"));
        assert_eq!(pushback(Refusal::Overloaded { limit: 1 }).as_deref(), Some("-1"));
        assert_eq!(pushback(Refusal::Deadline), None);
    }

    #[test]
    fn an_internal_error_tells_its_id_and_nothing_else() {
        let status = Status::from(Refusal::Internal { id: "0190-abcd".to_owned() });
        assert_eq!(
            status.message(),
            "internal error, id 0190-abcd; the server's log has the details under this id"
        );
    }
}
