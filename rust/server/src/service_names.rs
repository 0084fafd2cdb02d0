//! The names for which health checks ask, besides the names of checkpoints.

/// The gRPC service whose health is also the whole server's.
pub(crate) const SCORING_SERVICE: &str = "scorer.v1.ScoringService";

/// The service of the Open Inference Protocol; its health is the whole server's too.
pub(crate) const INFERENCE_SERVICE: &str = "inference.GRPCInferenceService";

/// The service of a shadow pool, which live servers call.
pub(crate) const SHADOW_SERVICE: &str = "scorer.v1.ShadowService";

/// The name for an orchestrator's liveness probe. Its health is SERVING for as long as the process answers, because a
/// server that waits for its bundles, or drains, must not be restarted.
pub(crate) const LIVENESS: &str = "liveness";

/// Whether a checkpoint cannot have this name.
pub(crate) fn is_reserved(name: &str) -> bool {
    [SCORING_SERVICE, INFERENCE_SERVICE, SHADOW_SERVICE, LIVENESS].contains(&name)
}
