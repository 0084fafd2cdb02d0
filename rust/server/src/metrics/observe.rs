//! What the observe lanes in force do.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::expose::{counter, histogram};
use crate::condition::ObserverStatus;
use crate::state::Shared;

fn labels(it: &ObserverStatus) -> [(&str, &str); 2] {
    [("checkpoint", &it.checkpoint), ("lane", &it.lane)]
}

/// Adds the families, by checkpoint and lane.
pub(super) fn encode(shared: &Arc<Shared>, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let table = shared.lanes.load_full();
    // Without lanes there is nothing to say, and an empty family is not worth a line.
    let lanes: Vec<_> = table.observers().map(|lane| (lane, lane.status())).collect();
    if lanes.is_empty() {
        return Ok(());
    }
    let help = "Requests that came by an observe lane, by what became of them";
    let mut family = encoder.encode_descriptor("observe_requests", help, None, MetricType::Counter)?;
    for (_, it) in &lanes {
        let failed: u64 = it.failed.values().sum();
        let ends = [
            ("left_out", it.left_out),
            ("dropped", it.dropped),
            ("shed", it.shed),
            ("scored", it.evaluated.saturating_sub(failed)),
        ];
        let failures = it.failed.iter().map(|(&reason, &count)| (reason, count));
        for (outcome, count) in ends.into_iter().chain(failures) {
            let labels = [("checkpoint", &*it.checkpoint), ("lane", &*it.lane), ("outcome", outcome)];
            counter(&mut family, &labels, count)?;
        }
    }
    let help = "Observations that the decision log could not take";
    let mut family = encoder.encode_descriptor("observe_unlogged", help, None, MetricType::Counter)?;
    for (_, it) in &lanes {
        counter(&mut family, &labels(it), it.unlogged)?;
    }
    let help = "Processor time of a lane's thread";
    let mut family =
        encoder.encode_descriptor("observe_cpu", help, Some(&Unit::Seconds), MetricType::Counter)?;
    for (_, it) in &lanes {
        ConstCounter::new(it.cpu_seconds).encode(family.encode_family(&labels(it))?)?;
    }
    let help = "Requests in a lane's queue";
    let mut family = encoder.encode_descriptor("observe_waiting", help, None, MetricType::Gauge)?;
    for (_, it) in &lanes {
        ConstGauge::new(it.waiting as i64).encode(family.encode_family(&labels(it))?)?;
    }
    let help = "1 while a lane has not come back from one evaluation for seconds";
    let mut family = encoder.encode_descriptor("observe_stuck", help, None, MetricType::Gauge)?;
    for (_, it) in &lanes {
        ConstGauge::new(i64::from(it.stuck)).encode(family.encode_family(&labels(it))?)?;
    }
    let help = "Share of requests that a lane observes, with the bundle behind it";
    let mut family = encoder.encode_descriptor("observe_sample", help, None, MetricType::Gauge)?;
    for (lane, it) in &lanes {
        let labels = [("checkpoint", &*it.checkpoint), ("lane", &*it.lane), ("bundle", &*it.bundle)];
        ConstGauge::new(lane.table.sample).encode(family.encode_family(&labels)?)?;
    }
    let help = "Evaluating an observing bundle, per request, in its thread's processor time";
    let mut family = encoder.encode_descriptor("observe_exec_seconds", help, None, MetricType::Histogram)?;
    for (lane, it) in &lanes {
        histogram(&mut family, &labels(it), &lane.counters.done.exec)?;
    }
    Ok(())
}
