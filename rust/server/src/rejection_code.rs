//! The gRPC code of each rejection.

use scorer_engine::Rejection;
use tonic::Code;

/// Returns the code of a rejection. The match is exhaustive, so that every new rejection must be added here.
pub(crate) fn code(rejection: &Rejection) -> Code {
    match rejection {
        Rejection::Step { rejection, .. } => code(rejection),
        Rejection::NoStep { .. }
        | Rejection::UnreadFeature { .. }
        | Rejection::PassedType { .. }
        | Rejection::PassedTwice { .. }
        | Rejection::PassedStated { .. }
        | Rejection::NotPassed { .. }
        | Rejection::WrongKind { .. }
        | Rejection::Id { .. }
        | Rejection::TooLong { .. }
        | Rejection::TooManyReasons { .. }
        | Rejection::NoFeatures
        | Rejection::TooManyKeys { .. }
        | Rejection::KeysPerRow { .. }
        | Rejection::EventCount { .. }
        | Rejection::Schema(_)
        | Rejection::Row { .. }
        | Rejection::NoRows
        | Rejection::TooManyRows { .. }
        | Rejection::Shape { .. }
        | Rejection::NothingEligible
        | Rejection::BothForms
        | Rejection::EmptyMask
        | Rejection::NothingAllowed { .. }
        | Rejection::Mask(_)
        | Rejection::UnknownAction { .. }
        | Rejection::RepeatedAction { .. }
        | Rejection::TooManyActions { .. }
        | Rejection::OutcomeKind { .. }
        | Rejection::OutcomeSourceKind { .. }
        | Rejection::OutcomeSourceId { .. }
        | Rejection::OutcomeValue
        | Rejection::OccurredAt
        | Rejection::CardNumber { .. }
        | Rejection::BundleDigest
        | Rejection::ExplainedAction { .. }
        | Rejection::OutcomeRange { .. }
        | Rejection::OutcomeRevision { .. } => Code::InvalidArgument,
        Rejection::Token(_) | Rejection::Unproven => Code::PermissionDenied,
        Rejection::Fingerprint { .. }
        | Rejection::NoCovers { .. }
        | Rejection::NoFeatureSets
        | Rejection::EventsElsewhere => Code::FailedPrecondition,
        Rejection::UnknownCheckpoint { .. } | Rejection::BundleNotHeld { .. } => Code::NotFound,
        Rejection::ContentDiffers { .. } | Rejection::OutcomeConflict { .. } => Code::AlreadyExists,
        Rejection::Deadline => Code::DeadlineExceeded,
        Rejection::Overloaded { .. }
        | Rejection::ShareUsed { .. }
        | Rejection::Shed { .. }
        | Rejection::Capped
        | Rejection::OutcomeRate { .. }
        | Rejection::CallerRate { .. }
        | Rejection::ExplanationsFull { .. }
        | Rejection::EventsBusy { .. }
        | Rejection::ExplanationsStopped => Code::ResourceExhausted,
        Rejection::BreakerOpen { .. }
        | Rejection::Draining
        | Rejection::NoBundle { .. }
        | Rejection::NoLog
        | Rejection::Journal(_)
        | Rejection::Log(_) => Code::Unavailable,
        Rejection::Internal { .. } => Code::Internal,
    }
}
