//! Metrics of the current state of admission control.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::expose::gauge;
use crate::services::Services;

/// Adds the metrics.
pub(super) fn encode(services: &Arc<Services>, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let now = services.engine.admission.snapshot();
    gauge(encoder, "pressure", "Pressure level: 0 (normal) to 5 (refusing)", now.pressure as i64)?;
    gauge(encoder, "admitted_waiting", "Admitted requests that wait", now.queued.iter().sum::<u64>() as i64)?;
    gauge(encoder, "admitted_running", "Admitted requests that are evaluated", now.running as i64)?;
    gauge(encoder, "unread_waiting", "Requests that arrived and were not read yet", now.waiting as i64)?;
    let help = "Time before its deadline at which an answer must be ready";
    let margin = encoder.encode_descriptor("reply_margin", help, Some(&Unit::Seconds), MetricType::Gauge)?;
    ConstGauge::new(now.margin.duration().as_secs_f64()).encode(margin)
}
