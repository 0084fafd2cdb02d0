//! Metrics of the active observe lanes.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use scorer_observe::ObserverStatus;

use super::expose::{counter, histogram};
use crate::services::Services;

fn labels(counts: &ObserverStatus) -> [(&str, &str); 2] {
    [("checkpoint", &counts.checkpoint), ("lane", &counts.lane)]
}

/// Adds the families, by checkpoint and lane.
pub(super) fn encode(services: &Arc<Services>, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let active = services.observers.active();
    // Without lanes there are no samples, and empty families are omitted.
    let lanes: Vec<_> = active.all().map(|lane| (lane, lane.status())).collect();
    if lanes.is_empty() {
        return Ok(());
    }
    let help = "Requests at an observe lane, by outcome";
    let mut family = encoder.encode_descriptor("observe_requests", help, None, MetricType::Counter)?;
    for (_, counts) in &lanes {
        let failed: u64 = counts.failed.values().sum();
        let ends = [
            ("left_out", counts.left_out),
            ("dropped", counts.dropped),
            ("shed", counts.shed),
            ("scored", counts.evaluated.saturating_sub(failed)),
        ];
        let failures = counts.failed.iter().map(|(&reason, &count)| (reason, count));
        for (outcome, count) in ends.into_iter().chain(failures) {
            let labels = [("checkpoint", &*counts.checkpoint), ("lane", &*counts.lane), ("outcome", outcome)];
            counter(&mut family, &labels, count)?;
        }
    }
    let help = "Observations that were not written to the decision log";
    let mut family = encoder.encode_descriptor("observe_unlogged", help, None, MetricType::Counter)?;
    for (_, counts) in &lanes {
        counter(&mut family, &labels(counts), counts.unlogged)?;
    }
    let help = "CPU time of a lane's thread";
    let mut family =
        encoder.encode_descriptor("observe_cpu", help, Some(&Unit::Seconds), MetricType::Counter)?;
    for (_, counts) in &lanes {
        ConstCounter::new(counts.cpu_seconds).encode(family.encode_family(&labels(counts))?)?;
    }
    let help = "Requests in a lane's queue";
    let mut family = encoder.encode_descriptor("observe_waiting", help, None, MetricType::Gauge)?;
    for (_, counts) in &lanes {
        ConstGauge::new(counts.waiting as i64).encode(family.encode_family(&labels(counts))?)?;
    }
    let help = "1 while an evaluation of a lane has been running for more than 2 s";
    let mut family = encoder.encode_descriptor("observe_stuck", help, None, MetricType::Gauge)?;
    for (_, counts) in &lanes {
        ConstGauge::new(i64::from(counts.stuck)).encode(family.encode_family(&labels(counts))?)?;
    }
    let help = "Share of requests that a lane observes, with its bundle";
    let mut family = encoder.encode_descriptor("observe_sample", help, None, MetricType::Gauge)?;
    for (lane, counts) in &lanes {
        let labels =
            [("checkpoint", &*counts.checkpoint), ("lane", &*counts.lane), ("bundle", &*counts.bundle)];
        ConstGauge::new(lane.table.sample).encode(family.encode_family(&labels)?)?;
    }
    let help = "CPU time of evaluating an observing bundle, per request";
    let mut family = encoder.encode_descriptor("observe_exec_seconds", help, None, MetricType::Histogram)?;
    for (lane, counts) in &lanes {
        histogram(&mut family, &labels(counts), lane.exec())?;
    }
    Ok(())
}
