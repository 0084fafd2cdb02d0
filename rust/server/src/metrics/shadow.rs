//! Metrics of the connection to the shadow pool, and of the requests that a shadow pool receives.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use scorer_observe::PoolStatus;

use super::expose::{counter, gauge};
use crate::config::Role;
use crate::services::Services;

/// Adds the role, and the metrics of the shadow pool if the server is one or sends to one.
pub(super) fn encode(services: &Arc<Services>, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let help = "1, with the role of the server";
    let role = [("role", services.config.role.as_str())];
    let mut family = encoder.encode_descriptor("role", help, None, MetricType::Gauge)?;
    ConstGauge::new(1_i64).encode(family.encode_family(&role)?)?;
    match (services.observers.pool_status(), services.config.role) {
        (Some(status), _) => sent(&status, encoder),
        (None, Role::Shadow) => received(services, encoder),
        (None, Role::Live) => Ok(()),
    }
}

fn sent(status: &PoolStatus, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let help = "Requests for the shadow pool, by outcome";
    let mut family = encoder.encode_descriptor("shadow_pool_requests", help, None, MetricType::Counter)?;
    let ends = [("accepted", status.accepted), ("refused", status.refused), ("dropped", status.dropped)];
    for (outcome, count) in ends {
        counter(&mut family, &[("outcome", outcome)], count)?;
    }
    let connected = i64::from(status.connected);
    gauge(encoder, "shadow_pool_connected", "1 while the shadow pool answers", connected)?;
    let help = "Requests that wait to be sent to the shadow pool or for its reply";
    gauge(encoder, "shadow_pool_waiting", help, status.waiting as i64)?;
    let help = "Bytes of the requests that wait for the shadow pool";
    gauge(encoder, "shadow_pool_waiting_bytes", help, status.waiting_bytes as i64)
}

fn received(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let help = "Requests that live servers sent, by server and outcome";
    let mut family = encoder.encode_descriptor("shadow_received", help, None, MetricType::Counter)?;
    for (server, received) in services.senders.all() {
        for (outcome, count) in [("accepted", received.accepted), ("dropped", received.dropped)] {
            counter(&mut family, &[("server", &*server), ("outcome", outcome)], count)?;
        }
    }
    Ok(())
}
