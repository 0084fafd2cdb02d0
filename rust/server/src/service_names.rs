//! The names that health checks ask for, beside those of checkpoints.

/// The gRPC service whose health is also the whole server's.
pub(crate) const SCORING_SERVICE: &str = "scorer.v1.ScoringService";

/// The same over the Open Inference Protocol.
pub(crate) const INFERENCE_SERVICE: &str = "inference.GRPCInferenceService";

/// What live servers send to a shadow pool.
pub(crate) const SHADOW_SERVICE: &str = "scorer.v1.ShadowService";

/// The name by which an orchestrator's liveness probe asks for the process itself: it serves for as long as the process
/// answers. A server that waits for its bundles, or drains, must not be restarted for it.
pub(crate) const LIVENESS: &str = "liveness";

/// Whether a checkpoint cannot have this name.
pub(crate) fn is_reserved(name: &str) -> bool {
    [SCORING_SERVICE, INFERENCE_SERVICE, SHADOW_SERVICE, LIVENESS].contains(&name)
}
