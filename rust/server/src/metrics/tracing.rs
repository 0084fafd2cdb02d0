//! Metrics of traces and of their export.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::expose::{counter, gauge};
use crate::services::Services;

/// Adds the metrics if traces are configured.
pub(super) fn encode(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let Some(tracer) = &services.tracer else { return Ok(()) };
    let counts = &tracer.counts;
    // The waiting spans are read first, because the other counters only grow.
    let waiting = counts.waiting();
    let help = "Requests sampled for traces, by what decided it";
    let mut family = encoder.encode_descriptor("traced_requests", help, None, MetricType::Counter)?;
    for (decision, count) in
        [("caller", &counts.by_caller), ("ratio", &counts.by_ratio), ("limited", &counts.limited)]
    {
        counter(&mut family, &[("decision", decision)], count.load(Relaxed))?;
    }
    let help = "Malformed headers of trace context, which were ignored";
    let mut family = encoder.encode_descriptor("trace_contexts_ignored", help, None, MetricType::Counter)?;
    for (header, count) in
        [("traceparent", &counts.malformed_parents), ("tracestate", &counts.malformed_states)]
    {
        counter(&mut family, &[("header", header)], count.load(Relaxed))?;
    }
    let help = "Spans of traced requests, by outcome";
    let mut family = encoder.encode_descriptor("trace_spans", help, None, MetricType::Counter)?;
    for (outcome, count) in
        [("exported", &counts.exported), ("refused", &counts.refused), ("dropped", &counts.dropped)]
    {
        counter(&mut family, &[("outcome", outcome)], count.load(Relaxed))?;
    }
    gauge(encoder, "trace_spans_waiting", "Spans that wait to be exported", waiting as i64)?;
    let connected = i64::from(counts.connected.load(Relaxed));
    gauge(encoder, "trace_collector_connected", "1 while the collector of traces answers", connected)
}
