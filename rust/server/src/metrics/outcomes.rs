//! Metrics of reported outcomes and of the keys of decision tokens.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::expose::{counter, gauge};
use crate::services::Services;

/// Adds the metrics.
pub(super) fn encode(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let outcomes = &services.engine.counters.outcomes;
    let help = "Outcomes recorded, by proof";
    let mut family = encoder.encode_descriptor("outcomes_recorded", help, None, MetricType::Counter)?;
    for (proof, count) in outcomes.by_proof() {
        counter(&mut family, &[("proof", proof)], count)?;
    }
    let help = "Outcomes recorded, by the kind of their source";
    let mut family =
        encoder.encode_descriptor("outcomes_recorded_by_source", help, None, MetricType::Counter)?;
    for (source, count) in outcomes.by_source() {
        counter(&mut family, &[("source", source)], count)?;
    }
    let help = "Outcomes refused by their token or a limit, by reason";
    let mut family = encoder.encode_descriptor("outcomes_refused", help, None, MetricType::Counter)?;
    for (reason, count) in outcomes.by_refusal() {
        counter(&mut family, &[("reason", reason)], count)?;
    }
    let tokens = &services.engine.tokens;
    let help = "Keys that verify decision tokens; 0 if no tokens are issued";
    gauge(encoder, "token_keys", help, tokens.keys() as i64)?;
    let help = "Key files of decision tokens that were read, by result";
    let mut family = encoder.encode_descriptor("token_key_files", help, None, MetricType::Counter)?;
    for (result, count) in [("in_force", &tokens.loads), ("refused", &tokens.refusals)] {
        counter(&mut family, &[("result", result)], count.load(Relaxed))?;
    }
    Ok(())
}
