//! Metrics of explanations on demand.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::expose::{counter, gauge};
use crate::services::Services;

/// Adds the metrics.
pub(super) fn encode(services: &Arc<Services>, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let engine = &services.engine;
    let counters = &engine.counters.explanations;
    let help = "Time to compute an explanation on demand";
    let family = encoder.encode_descriptor("explanation_seconds", help, None, MetricType::Histogram);
    let (sum, count, buckets) = counters.exec.read();
    family?.encode_histogram::<[(&str, &str); 0]>(sum, count, &buckets, None)?;
    let help = "Explanations on demand that were refused, by reason";
    let mut family = encoder.encode_descriptor("explanations_refused", help, None, MetricType::Counter)?;
    for (reason, count) in counters.by_refusal() {
        counter(&mut family, &[("reason", reason)], count)?;
    }
    gauge(
        encoder,
        "explanations_inflight",
        "Explanations on demand that wait or run",
        engine.explaining() as i64,
    )?;
    let limit = services.config.explain_queue as i64;
    gauge(encoder, "explanations_limit", "Greatest number of explanations that wait or run", limit)
}
