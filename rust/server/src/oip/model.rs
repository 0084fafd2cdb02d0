//! Describes checkpoints as models: their versions, tensors, configuration and statistics.

use std::sync::atomic::Ordering::Relaxed;

use scorer_engine::{ActiveLane, ActiveLanes, Checkpoint, Kind, Loaded, Rejection, quotable};
use scorer_proto::inference::model_metadata_response::TensorMetadata;
use scorer_proto::inference::repository_index_response::ModelIndex;
use scorer_proto::inference::{
    DataType, InferStatistics, ModelConfig, ModelInput, ModelMetadataResponse, ModelOutput, ModelParameter,
    ModelStatistics, ModelTransactionPolicy, StatisticDuration,
};

use super::error::InferError;
use super::inputs::{ELIGIBLE, POSITIONAL};
use super::outputs::Output;
use crate::services::Services;

/// Value of the fields that name the platform of a model.
const PLATFORM: &str = "scorer";
/// Number of digits of a digest that form a version: enough to distinguish bundles, and short enough to read.
const DIGITS: usize = 12;

/// A checkpoint with at least one answering lane.
pub(crate) struct Model<'a> {
    checkpoint: &'a Checkpoint,
    lanes: Vec<&'a ActiveLane>,
}

/// Returns a bundle's version: the first digits of its digest.
pub(crate) fn version(digest: &str) -> &str {
    let hex = digest.split_once(':').map_or(digest, |(_, hex)| hex);
    hex.get(..DIGITS).unwrap_or(hex)
}

/// Whether a caller's version names this bundle, by its short form or by its whole digest.
pub(crate) fn names(version_asked: &str, digest: &str) -> bool {
    version_asked == version(digest)
        || version_asked == digest
        || digest.split_once(':').is_some_and(|(_, hex)| hex == version_asked)
}

/// Creates the error for a version that does not answer.
pub(crate) fn no_version<'a>(
    model: &str,
    version_asked: &str,
    lanes: impl Iterator<Item = &'a ActiveLane>,
) -> InferError {
    let mut known: Vec<_> = lanes.map(|lane| version(&lane.loaded.digest_text)).collect();
    known.dedup();
    InferError::Version { model: model.to_owned(), version: quotable(version_asked), known: known.join(", ") }
}

/// Lists every checkpoint with its lanes for the repository index.
pub(crate) fn index(services: &Services, table: &ActiveLanes, only_ready: bool) -> Vec<ModelIndex> {
    let mut models = Vec::new();
    for checkpoint in services.engine.checkpoints.iter() {
        let ready = services.health.serves(&checkpoint.name);
        let (state, reason) = match (ready, table.of(checkpoint.index).is_empty()) {
            (true, _) => ("READY", ""),
            (false, true) => ("UNAVAILABLE", "no bundle yet"),
            (false, false) => ("UNAVAILABLE", "the server is stopping"),
        };
        if only_ready && !ready {
            continue;
        }
        let mut versions: Vec<_> =
            answering(table, checkpoint).map(|lane| version(&lane.loaded.digest_text)).collect();
        versions.dedup();
        if versions.is_empty() {
            versions.push("");
        }
        models.extend(versions.into_iter().map(|version| ModelIndex {
            name: checkpoint.name.clone(),
            version: version.to_owned(),
            state: state.to_owned(),
            reason: reason.to_owned(),
        }));
    }
    models
}

/// Returns the lanes that receive traffic, the one with the largest share first.
pub(crate) fn answering<'a>(
    table: &'a ActiveLanes,
    checkpoint: &Checkpoint,
) -> impl Iterator<Item = &'a ActiveLane> + use<'a> {
    let mut lanes: Vec<_> = table.of(checkpoint.index).iter().filter(|lane| lane.share > 0.0).collect();
    lanes.sort_by(|a, b| b.share.total_cmp(&a.share));
    lanes.into_iter()
}

// === impl Model ===

impl<'a> Model<'a> {
    /// Finds a model by name and, unless it is empty, version.
    pub(crate) fn find(
        checkpoint: &'a Checkpoint,
        table: &'a ActiveLanes,
        version: &str,
    ) -> Result<Model<'a>, InferError> {
        let mut lanes: Vec<_> = answering(table, checkpoint).collect();
        if lanes.is_empty() {
            return Err(Rejection::NoBundle { name: checkpoint.name.clone() }.into());
        }
        if !version.is_empty() {
            let at = lanes.iter().position(|lane| names(version, &lane.loaded.digest_text));
            let Some(at) = at else {
                return Err(no_version(&checkpoint.name, version, lanes.into_iter()));
            };
            lanes = vec![lanes[at]];
        }
        Ok(Model { checkpoint, lanes })
    }

    /// The described bundle: that of the requested version, or else of the lane with the largest share.
    fn loaded(&self) -> &'a Loaded {
        &self.lanes[0].loaded
    }

    pub(crate) fn metadata(&self) -> ModelMetadataResponse {
        let mut versions: Vec<_> =
            self.lanes.iter().map(|lane| version(&lane.loaded.digest_text).to_owned()).collect();
        versions.dedup();
        let rows = match self.checkpoint.kind {
            Kind::Score => -1,
            Kind::Action => 1,
        };
        let loaded = self.loaded();
        ModelMetadataResponse {
            name: self.checkpoint.name.clone(),
            versions,
            platform: PLATFORM.to_owned(),
            inputs: vec![TensorMetadata {
                name: POSITIONAL.to_owned(),
                datatype: "FP32".to_owned(),
                shape: vec![rows, width(loaded)],
            }],
            outputs: Output::of(self.checkpoint.kind)
                .iter()
                .map(|output| TensorMetadata {
                    name: output.name().to_owned(),
                    datatype: output.datatype().to_owned(),
                    shape: match output.per_action() {
                        true => vec![rows, loaded.actions.len() as i64],
                        false => vec![rows],
                    },
                })
                .collect(),
        }
    }

    pub(crate) fn config(&self) -> ModelConfig {
        let loaded = self.loaded();
        let mut input = vec![ModelInput {
            name: POSITIONAL.to_owned(),
            data_type: DataType::TypeFp32.into(),
            dims: vec![width(loaded)],
            optional: false,
        }];
        if self.checkpoint.kind == Kind::Action {
            input.push(ModelInput {
                name: ELIGIBLE.to_owned(),
                data_type: DataType::TypeString.into(),
                dims: vec![-1],
                optional: true,
            });
        }
        let output = Output::of(self.checkpoint.kind)
            .iter()
            .map(|output| ModelOutput {
                name: output.name().to_owned(),
                data_type: output.data_type().into(),
                dims: vec![if output.per_action() { loaded.actions.len() as i64 } else { 1 }],
            })
            .collect();
        let schema = loaded.bundle.schema();
        let parameters = [
            ("bundle", loaded.digest_text.to_string()),
            ("bundle_name", loaded.bundle.name().to_owned()),
            // Rows by position have no names, so callers use this list to check their order.
            ("features", serde_json::to_string(schema.features()).unwrap_or_default()),
            ("schema_fingerprint", format!("{:#018x}", schema.fingerprint())),
        ];
        ModelConfig {
            name: self.checkpoint.name.clone(),
            platform: PLATFORM.to_owned(),
            backend: PLATFORM.to_owned(),
            max_batch_size: match self.checkpoint.kind {
                Kind::Score => i32::try_from(self.checkpoint.max_batch_rows).unwrap_or(i32::MAX),
                Kind::Action => 1,
            },
            input,
            output,
            parameters: parameters
                .map(|(key, string_value)| (key.to_owned(), ModelParameter { string_value }))
                .into(),
            model_transaction_policy: Some(ModelTransactionPolicy { decoupled: false }),
        }
    }

    /// Returns the statistics of the checkpoint, over all its lanes and protocols.
    pub(crate) fn statistics(&self, services: &Services) -> ModelStatistics {
        let totals = services.counters.checkpoint(self.checkpoint.index).totals();
        let decisions = services.engine.counters.checkpoint(self.checkpoint.index);
        let (exec_seconds, executions, _) = decisions.exec.read();
        let exec = (executions, (exec_seconds * 1e9) as u64);
        let duration = |(count, ns): (u64, u64)| Some(StatisticDuration { count, ns });
        let last = match totals.last.as_millis() {
            0 => 0,
            millis => u64::try_from(services.started_at_us / 1000).unwrap_or_default() + millis as u64,
        };
        ModelStatistics {
            name: self.checkpoint.name.clone(),
            version: version(&self.loaded().digest_text).to_owned(),
            last_inference: last,
            inference_count: decisions.rows.load(Relaxed),
            execution_count: executions,
            inference_stats: Some(InferStatistics {
                success: duration(totals.ok),
                fail: duration(totals.failed),
                queue: duration((0, 0)),
                compute_input: duration((0, 0)),
                compute_infer: duration(exec),
                compute_output: duration((0, 0)),
                cache_hit: duration((0, 0)),
                cache_miss: duration((0, 0)),
            }),
            batch_stats: Vec::new(),
        }
    }
}

fn width(loaded: &Loaded) -> i64 {
    loaded.bundle.schema().len() as i64
}

#[cfg(test)]
mod tests {
    use scorer_core::bundle::Digest;

    use super::*;

    #[test]
    fn a_version_is_the_beginning_of_a_digest() {
        let digest = Digest([0xab; 32]).to_string();
        assert_eq!(version(&digest), "abababababab");
        assert!(names("abababababab", &digest));
        assert!(names(&digest, &digest));
        assert!(names(&"ab".repeat(32), &digest));
        for other in ["", "1", "ab", "abababababac", "sha256:abababababab"] {
            assert!(!names(other, &digest), "{other:?}");
        }
    }
}
