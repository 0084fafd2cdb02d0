//! `Describe`: what a checkpoint serves now.

use scorer_core::schema::{FeatureSpec, MissingRule, UnknownCategoryRule};
use scorer_proto::v1::{
    ActionDescription, CheckpointDescription, DescribeRequest, DescribeResponse, FeatureDescription,
    LaneDescription, ThresholdDescription,
};

use super::arrive::Arrival;
use super::decode;
use crate::bundles::Loaded;
use crate::lanes::LanesInForce;
use crate::refusal::Refusal;
use crate::state::{Checkpoint, Shared};

/// Describes one checkpoint, or all of them.
pub(crate) fn answer(
    shared: &Shared,
    arrival: &Arrival,
    request: &DescribeRequest,
) -> Result<DescribeResponse, Refusal> {
    let table = shared.lanes.load_full();
    let checkpoints = if request.checkpoint.is_empty() {
        shared.checkpoints.iter().map(|checkpoint| describe(shared, &table, checkpoint)).collect()
    } else {
        let checkpoint = decode::any_checkpoint(shared, arrival, &request.checkpoint)?;
        vec![describe(shared, &table, checkpoint)]
    };
    Ok(DescribeResponse { checkpoints })
}

/// The bundle described is that of the lane with the largest share, the first of them at a tie.
fn describe(shared: &Shared, table: &LanesInForce, checkpoint: &Checkpoint) -> CheckpointDescription {
    let lanes = table.of(checkpoint.index);
    let config = shared.config.checkpoints.get(&checkpoint.name);
    let mut description = CheckpointDescription {
        checkpoint: checkpoint.name.clone(),
        kind: checkpoint.kind.as_str().to_owned(),
        lane_table: table.version,
        lanes: lanes
            .iter()
            .map(|lane| LaneDescription {
                name: lane.source.lane.clone(),
                bundle: lane.source.bundle.to_string(),
                share: lane.share,
            })
            .collect(),
        sla_p99_ms: config.map_or(0.0, |config| config.p99_ms),
        max_batch_rows: checkpoint.max_batch_rows,
        ..CheckpointDescription::default()
    };
    let largest = lanes.iter().reduce(|best, lane| if lane.share > best.share { lane } else { best });
    if let Some(lane) = largest {
        add_bundle(&mut description, &lane.loaded);
    }
    description
}

fn add_bundle(to: &mut CheckpointDescription, loaded: &Loaded) {
    let bundle = &loaded.bundle;
    to.bundle = loaded.digest_text.to_string();
    to.bundle_name = bundle.name().to_owned();
    to.schema_fingerprint = bundle.schema().fingerprint();
    to.features = bundle.schema().features().iter().map(feature).collect();
    to.actions = loaded
        .actions
        .iter()
        .map(|action| ActionDescription { id: action.id.clone(), factors: action.factors.clone() })
        .collect();
    to.thresholds = bundle
        .bands()
        .iter()
        .map(|band| ThresholdDescription { from: band.from, label: band.label.clone() })
        .collect();
    to.policy = bundle.policy().map_or_else(String::new, |policy| policy.spec().rule.name().to_owned());
}

pub(crate) fn feature(spec: &FeatureSpec) -> FeatureDescription {
    FeatureDescription {
        name: spec.name.clone(),
        r#type: spec.kind.name().to_owned(),
        categories: spec.categories.clone(),
        missing: match spec.missing {
            MissingRule::Allow => "allow",
            MissingRule::Refuse => "refuse",
        }
        .to_owned(),
        unknown_category: match spec.unknown_category {
            UnknownCategoryRule::Refuse => "refuse",
            UnknownCategoryRule::Missing => "missing",
        }
        .to_owned(),
        minimum: spec.minimum,
        maximum: spec.maximum,
    }
}
