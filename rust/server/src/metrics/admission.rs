//! What admission holds now.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::expose::gauge;
use crate::services::Services;

/// Adds the gauges.
pub(super) fn encode(services: &Arc<Services>, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let now = services.engine.admission.snapshot();
    gauge(encoder, "pressure", "Step of the ladder: 0 normal to 5 refusing", now.pressure as i64)?;
    gauge(encoder, "admitted_waiting", "Admitted requests that wait", now.queued.iter().sum::<u64>() as i64)?;
    gauge(encoder, "admitted_running", "Admitted requests that are evaluated", now.running as i64)?;
    gauge(encoder, "unread_waiting", "Requests taken in and not read yet", now.waiting as i64)?;
    let help = "How long before its deadline an answer has to be ready";
    let margin = encoder.encode_descriptor("reply_margin", help, Some(&Unit::Seconds), MetricType::Gauge)?;
    ConstGauge::new(now.margin.duration().as_secs_f64()).encode(margin)
}
