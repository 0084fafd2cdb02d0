//! The methods that are counted.

/// The methods that are counted: those of the scoring service, and inference by the open protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Score,
    ScoreBatch,
    SelectAction,
    ReportOutcome,
    Describe,
    Noop,
    /// `inference.GRPCInferenceService`.
    ModelInfer,
    /// One message of such a stream.
    ModelStreamInfer,
    /// `ShadowService`.
    Observe,
    /// A path of the service that is none of its methods.
    Unknown,
}

// === impl Method ===

impl Method {
    pub(crate) const COUNT: usize = 10;
    pub(crate) const ALL: [Method; Method::COUNT] = [
        Method::Score,
        Method::ScoreBatch,
        Method::SelectAction,
        Method::ReportOutcome,
        Method::Describe,
        Method::Noop,
        Method::ModelInfer,
        Method::ModelStreamInfer,
        Method::Observe,
        Method::Unknown,
    ];

    /// From the last part of a request's path to the scoring service.
    pub(crate) fn from_name(name: &str) -> Method {
        match name {
            "Score" => Method::Score,
            "ScoreBatch" => Method::ScoreBatch,
            "SelectAction" => Method::SelectAction,
            "ReportOutcome" => Method::ReportOutcome,
            "Describe" => Method::Describe,
            "Noop" => Method::Noop,
            _ => Method::Unknown,
        }
    }

    /// Whether it answers with the bundle.
    pub(crate) fn infers(self) -> bool {
        match self {
            Method::Score
            | Method::ScoreBatch
            | Method::SelectAction
            | Method::ModelInfer
            | Method::ModelStreamInfer => true,
            Method::ReportOutcome | Method::Describe | Method::Noop | Method::Observe | Method::Unknown => {
                false
            }
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Method::Score => "Score",
            Method::ScoreBatch => "ScoreBatch",
            Method::SelectAction => "SelectAction",
            Method::ReportOutcome => "ReportOutcome",
            Method::Describe => "Describe",
            Method::Noop => "Noop",
            Method::ModelInfer => "ModelInfer",
            Method::ModelStreamInfer => "ModelStreamInfer",
            Method::Observe => "Observe",
            Method::Unknown => "unknown",
        }
    }
}
