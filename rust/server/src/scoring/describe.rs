//! `Describe`: the bundle, the lanes and the limits with which a checkpoint answers now.

use scorer_engine::{ActiveLanes, Arrival, Checkpoint, Engine, Loaded, Rejection};
use scorer_observe::describe_feature;
use scorer_proto::v1::{
    ActionDescription, CheckpointDescription, DescribeRequest, DescribeResponse, LaneDescription,
    NodeDescription, ThresholdDescription,
};

/// Describes one checkpoint, or all of them.
pub(crate) fn describe(
    engine: &Engine,
    arrival: &Arrival,
    request: &DescribeRequest,
) -> Result<DescribeResponse, Rejection> {
    let table = engine.lanes();
    let checkpoints = if request.checkpoint.is_empty() {
        engine.checkpoints.iter().map(|checkpoint| description(&table, checkpoint)).collect()
    } else {
        vec![description(&table, engine.checkpoint_of(arrival, &request.checkpoint)?)]
    };
    Ok(DescribeResponse { checkpoints })
}

/// Describes the bundle of the lane with the largest share; of lanes with equal shares, the first.
fn description(table: &ActiveLanes, checkpoint: &Checkpoint) -> CheckpointDescription {
    let lanes = table.of(checkpoint.index);
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
        sla_p99_ms: checkpoint.config.p99_ms,
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
    to.features = bundle.schema().features().iter().map(describe_feature).collect();
    if let Some(computed) = &loaded.shape.computed {
        to.entities = computed.entities().to_vec();
        for (at, feature) in to.features.iter_mut().enumerate() {
            feature.computed = computed.feature_at(at).unwrap_or_default().to_owned();
        }
    }
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
    to.nodes = loaded
        .nodes
        .times()
        .map(|time| NodeDescription {
            name: time.node.name.clone(),
            kind: time.node.kind.to_owned(),
            timed: time.timed,
            mean_us: if time.timed == 0 { 0.0 } else { time.nanos as f64 / time.timed as f64 / 1e3 },
        })
        .collect();
    to.policy = bundle.policy().map_or_else(String::new, |policy| policy.spec().rule.name().to_owned());
}
