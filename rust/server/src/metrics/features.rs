//! Metrics of computed features: the reads of the answer path and the store of their state.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::expose::{counter, gauge, histogram, single};
use crate::services::Services;

/// Adds the metrics.
pub(super) fn encode(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let sets = services.engine.counters.features.all();
    let help = "Reads of computed features, by feature set";
    let mut family = encoder.encode_descriptor("feature_loads", help, None, MetricType::Counter)?;
    for (set, counters) in &sets {
        counter(&mut family, &[("set", set.as_str())], counters.loads.load(Relaxed))?;
    }
    let help = "Time of a read of computed features";
    let mut family = encoder.encode_descriptor("feature_load_seconds", help, None, MetricType::Histogram)?;
    for (set, counters) in &sets {
        histogram(&mut family, &[("set", set.as_str())], &counters.times)?;
    }
    let help = "Rows with declared defaults in place of computed features, by reason";
    let mut family = encoder.encode_descriptor("features_defaulted", help, None, MetricType::Counter)?;
    for (set, counters) in &sets {
        for (reason, count) in counters.by_reason() {
            counter(&mut family, &[("set", set.as_str()), ("reason", reason.as_str())], count)?;
        }
    }
    let help = "Values of computed features that requests stated themselves";
    let mut family = encoder.encode_descriptor("features_stated", help, None, MetricType::Counter)?;
    for (set, counters) in &sets {
        counter(&mut family, &[("set", set.as_str())], counters.stated.load(Relaxed))?;
    }
    let help = "Reads of computed features with an entity that the store has never seen";
    let mut family =
        encoder.encode_descriptor("feature_unknown_entities", help, None, MetricType::Counter)?;
    for (set, counters) in &sets {
        counter(&mut family, &[("set", set.as_str())], counters.unknown_entities.load(Relaxed))?;
    }
    // Without a store all are 0, so that dashboards find the same metrics on every server.
    let status = services.features.as_ref().map(|store| store.status()).unwrap_or_default();
    let help = "Events of computed features, by result";
    let mut family = encoder.encode_descriptor("feature_events", help, None, MetricType::Counter)?;
    for (result, count) in [("recorded", status.recorded), ("duplicate", status.duplicates)] {
        counter(&mut family, &[("result", result)], count)?;
    }
    let help = "Refused events of computed features, by reason";
    let mut family = encoder.encode_descriptor("feature_events_refused", help, None, MetricType::Counter)?;
    for (reason, count) in &status.refused {
        counter(&mut family, &[("reason", *reason)], *count)?;
    }
    let help = "Entities removed from the store of computed features to keep its memory limit";
    single(encoder, "feature_evictions", help, status.evicted)?;
    let whole = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let help = "Entities with state in the store of computed features";
    gauge(encoder, "feature_entities", help, whole(status.entities))?;
    gauge(encoder, "feature_bytes", "Memory of the store of computed features", whole(status.bytes))?;
    let help = "Limit of the memory of the store of computed features";
    gauge(encoder, "feature_max_bytes", help, whole(status.max_bytes))?;
    let help = "Size of the journal of the store of computed features";
    gauge(encoder, "feature_journal_bytes", help, whole(status.journal_bytes))?;
    let help = "Size of the events that a start reads after the snapshot of the store of computed features";
    gauge(encoder, "feature_replay_bytes", help, whole(status.replay_bytes))?;
    let help = "Size of the latest snapshot of the store of computed features";
    gauge(encoder, "feature_snapshot_bytes", help, whole(status.snapshot_bytes))?;
    let age_s = |at_ms: i64| {
        if at_ms == 0 {
            0
        } else {
            (services.engine.clock.unix_us() / 1000).saturating_sub(at_ms).max(0) / 1000
        }
    };
    let help = "Time since the latest snapshot of the store of computed features; 0 before the first";
    gauge(encoder, "feature_snapshot_age_seconds", help, age_s(status.snapshot_at_ms))?;
    let help = "Erased entities whose keys are still in files of the store of computed features";
    gauge(encoder, "feature_erasures_pending", help, whole(status.erasures))?;
    let help = "Time since the oldest erasure whose key is still in a file; 0 if there is none";
    gauge(encoder, "feature_erasure_age_seconds", help, age_s(status.oldest_erasure_ms))?;
    redis(services, encoder)
}

/// Adds the metrics of reads from Redis. Without it there are none.
fn redis(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let Some(redis) = &services.redis else { return Ok(()) };
    let (pool, counters) = (&redis.pool, redis.pool.counters());
    let help = "Reads of features from Redis, by result";
    let mut family = encoder.encode_descriptor("feature_redis_reads", help, None, MetricType::Counter)?;
    for (result, count) in redis.reads() {
        counter(&mut family, &[("result", result)], count)?;
    }
    let help = "Time from a read of Redis to its values";
    let mut family = encoder.encode_descriptor("feature_redis_seconds", help, None, MetricType::Histogram)?;
    histogram(&mut family, &[], &redis.times)?;
    let help = "States of entities that reads of Redis found, by result";
    let mut family = encoder.encode_descriptor("feature_redis_states", help, None, MetricType::Counter)?;
    for (result, count) in counters.blobs() {
        counter(&mut family, &[("result", result.as_str())], count)?;
    }
    let help = "Reads of Redis that were slow: repeated, answered by the repetition, or over the limit of repetitions";
    let mut family = encoder.encode_descriptor("feature_redis_hedges", help, None, MetricType::Counter)?;
    let hedges =
        [("sent", &counters.hedges), ("won", &counters.hedges_won), ("refused", &counters.hedges_refused)];
    for (result, count) in hedges {
        counter(&mut family, &[("result", result)], count.load(Relaxed))?;
    }
    let whole = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
    gauge(encoder, "feature_redis_connections", "Open connections to Redis", whole(pool.connected()))?;
    gauge(encoder, "feature_redis_in_flight", "Reads of Redis without a reply", whole(pool.in_flight()))?;
    let help = "Connections to Redis that ended or could not be opened";
    single(encoder, "feature_redis_disconnects", help, counters.disconnects.load(Relaxed))?;
    let help = "Keys that Redis has evicted since its start, as it reported last";
    let evicted = i64::try_from(counters.evicted_keys.load(Relaxed)).unwrap_or(i64::MAX);
    gauge(encoder, "feature_redis_evicted_keys", help, evicted)
}
