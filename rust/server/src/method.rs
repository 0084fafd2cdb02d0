//! The methods that are counted.

use scorer_identity::{Access, Role};
use tonic::Status;

use crate::security::Security;

/// The roles that a caller needs. If the list is empty, any authenticated caller is accepted.
pub(crate) enum Roles {
    /// At least one of them.
    Any(&'static [Role]),
    /// All of them.
    All(&'static [Role]),
}

// === impl Roles ===

impl Roles {
    /// Checks that a caller has the roles at any checkpoint.
    pub(crate) fn check(&self, security: &Security, caller: Option<&Access>) -> Result<(), Status> {
        let roles = match self {
            Roles::All(roles) => {
                return roles.iter().try_for_each(|&role| security.check(caller, role, None));
            }
            Roles::Any(roles) => roles,
        };
        let Some((last, others)) = roles.split_last() else { return Ok(()) };
        let has = |role: &Role| caller.is_some_and(|access| access.check(*role).is_ok());
        if others.iter().any(has) {
            return Ok(());
        }
        security.check(caller, *last, None)
    }
}

/// The methods that are counted: those of the scoring service, and inference by the Open Inference Protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Score,
    ScoreBatch,
    SelectAction,
    Decide,
    ReportOutcome,
    RecordEvents,
    Describe,
    Explain,
    Noop,
    /// `inference.GRPCInferenceService`.
    ModelInfer,
    /// One message of a `ModelStreamInfer` stream.
    ModelStreamInfer,
    /// `ShadowService`.
    Observe,
    /// A path of the service that is not one of its methods.
    Unknown,
}

// === impl Method ===

impl Method {
    pub(crate) const COUNT: usize = 13;
    pub(crate) const ALL: [Method; Method::COUNT] = [
        Method::Score,
        Method::ScoreBatch,
        Method::SelectAction,
        Method::Decide,
        Method::ReportOutcome,
        Method::RecordEvents,
        Method::Describe,
        Method::Explain,
        Method::Noop,
        Method::ModelInfer,
        Method::ModelStreamInfer,
        Method::Observe,
        Method::Unknown,
    ];

    /// Returns the method for the last part of a path of the scoring service.
    pub(crate) fn from_name(name: &str) -> Method {
        match name {
            "Score" => Method::Score,
            "ScoreBatch" => Method::ScoreBatch,
            "SelectAction" => Method::SelectAction,
            "Decide" => Method::Decide,
            "ReportOutcome" => Method::ReportOutcome,
            "RecordEvents" => Method::RecordEvents,
            "Describe" => Method::Describe,
            "Explain" => Method::Explain,
            "Noop" => Method::Noop,
            _ => Method::Unknown,
        }
    }

    /// Whether the method asks for a bundle's answer, for which admission control reserves capacity.
    pub(crate) fn infers(self) -> bool {
        match self {
            Method::Score
            | Method::ScoreBatch
            | Method::SelectAction
            | Method::Decide
            | Method::ModelInfer
            | Method::ModelStreamInfer => true,
            Method::ReportOutcome
            | Method::RecordEvents
            | Method::Describe
            | Method::Explain
            | Method::Noop
            | Method::Observe
            | Method::Unknown => false,
        }
    }

    /// Returns the roles that a caller needs. They are checked before the message with its checkpoint is read.
    pub(crate) fn roles(self) -> Roles {
        match self {
            Method::Score | Method::ScoreBatch => Roles::Any(&[Role::Score]),
            Method::SelectAction => Roles::Any(&[Role::Select]),
            Method::Decide => Roles::All(&[Role::Score, Role::Select]),
            Method::ModelInfer | Method::ModelStreamInfer => Roles::Any(&[Role::Score, Role::Select]),
            Method::ReportOutcome => Roles::Any(&[Role::ReportReviews, Role::ReportOutcomes]),
            Method::RecordEvents => Roles::Any(&[Role::RecordEvents]),
            Method::Describe => Roles::Any(&[Role::Describe]),
            Method::Explain => Roles::Any(&[Role::Explain]),
            Method::Observe => Roles::Any(&[Role::Observe]),
            Method::Noop | Method::Unknown => Roles::Any(&[]),
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Method::Score => "Score",
            Method::ScoreBatch => "ScoreBatch",
            Method::SelectAction => "SelectAction",
            Method::Decide => "Decide",
            Method::ReportOutcome => "ReportOutcome",
            Method::RecordEvents => "RecordEvents",
            Method::Describe => "Describe",
            Method::Explain => "Explain",
            Method::Noop => "Noop",
            Method::ModelInfer => "ModelInfer",
            Method::ModelStreamInfer => "ModelStreamInfer",
            Method::Observe => "Observe",
            Method::Unknown => "unknown",
        }
    }

    /// Returns the full name of the method, `package.Service/Method`; `None` for a path that is not a method.
    pub(crate) fn full_name(self) -> Option<&'static str> {
        Some(match self {
            Method::Score => "scorer.v1.ScoringService/Score",
            Method::ScoreBatch => "scorer.v1.ScoringService/ScoreBatch",
            Method::SelectAction => "scorer.v1.ScoringService/SelectAction",
            Method::Decide => "scorer.v1.ScoringService/Decide",
            Method::ReportOutcome => "scorer.v1.ScoringService/ReportOutcome",
            Method::RecordEvents => "scorer.v1.ScoringService/RecordEvents",
            Method::Describe => "scorer.v1.ScoringService/Describe",
            Method::Explain => "scorer.v1.ScoringService/Explain",
            Method::Noop => "scorer.v1.ScoringService/Noop",
            Method::ModelInfer => "inference.GRPCInferenceService/ModelInfer",
            Method::ModelStreamInfer => "inference.GRPCInferenceService/ModelStreamInfer",
            Method::Observe => "scorer.v1.ShadowService/Observe",
            Method::Unknown => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_has_the_name_of_its_service() {
        for method in Method::ALL {
            let name = method.full_name().map(|path| path.rsplit_once('/').unwrap().1);
            assert_eq!(name.unwrap_or("unknown"), method.as_str());
        }
    }
}
