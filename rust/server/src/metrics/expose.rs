//! The counters as OpenMetrics text.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::{By, CheckpointMetrics, Histogram, Method, Miss, Reason, code_name};
use crate::error::Refused;
use crate::state::Shared;

/// Everything that is counted, as text. Made at each scrape from what the atomics hold then.
pub(crate) fn render(shared: &Arc<Shared>) -> Result<String, fmt::Error> {
    shared.tick();
    let mut registry = Registry::with_prefix("scorer");
    registry.register_collector(Box::new(Snapshot(Arc::clone(shared))));
    let mut text = String::with_capacity(16 << 10);
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

struct Snapshot(Arc<Shared>);

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Snapshot")
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        requests(&self.0, &mut encoder)?;
        promises(&self.0, &mut encoder)?;
        answers(&self.0, &mut encoder)?;
        transport(&self.0, &mut encoder)?;
        bundles(&self.0, &mut encoder)?;
        journeys(&self.0, &mut encoder)?;
        registry(&self.0, &mut encoder)?;
        super::enforced::encode(&self.0, &mut encoder)?;
        super::observe::encode(&self.0, &mut encoder)?;
        super::shadow::encode(&self.0, &mut encoder)?;
        log(&self.0, &mut encoder)
    }
}

fn requests(shared: &Shared, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let metrics = &shared.metrics;
    let mut family = encoder.encode_descriptor(
        "requests",
        "Requests ended, by method, checkpoint and gRPC code",
        None,
        MetricType::Counter,
    )?;
    for (it, method) in used(&metrics.checkpoints) {
        for (code, count) in it.codes[method as usize].iter().enumerate() {
            let count = count.load(Relaxed);
            if count > 0 {
                let labels =
                    [("method", method.as_str()), ("checkpoint", &it.name), ("code", code_name(code))];
                counter(&mut family, &labels, count)?;
            }
        }
    }
    let mut family = encoder.encode_descriptor(
        "request_seconds",
        "From the request's HEADERS to the reply handed over",
        None,
        MetricType::Histogram,
    )?;
    for (it, method) in used(&metrics.checkpoints) {
        let labels = [("method", method.as_str()), ("checkpoint", it.name.as_str())];
        histogram(&mut family, &labels, &it.latency[method as usize])?;
    }
    // Read first what ends a request, so that a request in mid-count is in flight and not twice.
    let (replied, cancelled) = (metrics.replied.load(Relaxed), metrics.cancelled.load(Relaxed));
    single(encoder, "requests_replied", "Requests that got a reply, an error included", replied)?;
    single(encoder, "requests_cancelled", "Requests that their caller gave up", cancelled)?;
    single(encoder, "requests_arrived", "Requests that came in", metrics.arrived.load(Relaxed))
}

/// What is held against each checkpoint's promise.
fn promises(shared: &Shared, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let checkpoints = &shared.metrics.checkpoints;
    let mut family = encoder.encode_descriptor(
        "sla_promise_seconds",
        "What 99 % of answers are promised within",
        None,
        MetricType::Gauge,
    )?;
    for it in named(checkpoints) {
        let promise = it.sla.promise().unwrap_or_default().as_secs_f64();
        ConstGauge::new(promise).encode(family.encode_family(&[("checkpoint", it.name.as_str())])?)?;
    }
    let mut family = encoder.encode_descriptor(
        "answer_seconds",
        "From the HEADERS of a request for an answer to the reply handed over, by who answered",
        None,
        MetricType::Histogram,
    )?;
    for it in named(checkpoints) {
        for by in By::ALL {
            let labels = [("checkpoint", it.name.as_str()), ("by", by.as_str())];
            histogram(&mut family, &labels, &it.sla.latency[by as usize])?;
        }
    }
    let mut family = encoder.encode_descriptor(
        "queue_delay_seconds",
        "From the request's HEADERS to its first poll",
        None,
        MetricType::Histogram,
    )?;
    for it in checkpoints.iter().filter(|it| !it.name.is_empty() || it.sla.queue_delay.read().1 > 0) {
        histogram(&mut family, &[("checkpoint", it.name.as_str())], &it.sla.queue_delay)?;
    }
    let mut family = encoder.encode_descriptor(
        "sla_misses",
        "Requests whose promise was not kept, by reason",
        None,
        MetricType::Counter,
    )?;
    for it in named(checkpoints) {
        for miss in Miss::ALL {
            let labels = [("checkpoint", it.name.as_str()), ("reason", miss.as_str())];
            counter(&mut family, &labels, it.sla.misses[miss as usize].load(Relaxed))?;
        }
    }
    let mut family = encoder.encode_descriptor(
        "sla_requests",
        "Requests that the promise is for",
        None,
        MetricType::Counter,
    )?;
    for it in named(checkpoints) {
        counter(&mut family, &[("checkpoint", &it.name)], it.sla.totals().0)?;
    }
    let mut family = encoder.encode_descriptor(
        "error_budget_remaining",
        "Part of the last 30 days' error budget that is left; below 0: overdrawn",
        None,
        MetricType::Gauge,
    )?;
    for it in named(checkpoints) {
        let left = it.sla.budget.rates().remaining;
        ConstGauge::new(left).encode(family.encode_family(&[("checkpoint", it.name.as_str())])?)?;
    }
    let mut family = encoder.encode_descriptor(
        "error_budget_burn_rate",
        "Misses in parts of what is allowed: 1 uses up the budget in 30 days",
        None,
        MetricType::Gauge,
    )?;
    for it in named(checkpoints) {
        let rates = it.sla.budget.rates();
        for (window, rate) in
            [("5m", rates.m5), ("30m", rates.m30), ("1h", rates.h1), ("6h", rates.h6), ("3d", rates.d3)]
        {
            let labels = [("checkpoint", it.name.as_str()), ("window", window)];
            ConstGauge::new(rate).encode(family.encode_family(&labels)?)?;
        }
    }
    let mut family = encoder.encode_descriptor(
        "late_results",
        "Results that came when another reply had been given, and were thrown away",
        None,
        MetricType::Counter,
    )?;
    for it in named(checkpoints) {
        counter(&mut family, &[("checkpoint", &it.name)], it.sla.late_results.load(Relaxed))?;
    }
    let mut family = encoder.encode_descriptor(
        "exposure_cap_hits",
        "Fallbacks not given because of their exposure, by cap",
        None,
        MetricType::Counter,
    )?;
    for it in named(checkpoints) {
        for (cap, count) in it.sla.caps() {
            counter(&mut family, &[("checkpoint", it.name.as_str()), ("cap", cap.as_str())], count)?;
        }
    }
    let mut family =
        encoder.encode_descriptor("shed", "Requests not worked on, by reason", None, MetricType::Counter)?;
    for it in named(checkpoints) {
        for (reason, count, _) in it.sla.sheds() {
            counter(&mut family, &[("checkpoint", it.name.as_str()), ("reason", reason.as_str())], count)?;
        }
    }
    let mut family = encoder.encode_descriptor(
        "would_shed",
        "In mode observe: requests that enforcing would have shed",
        None,
        MetricType::Counter,
    )?;
    for it in named(checkpoints) {
        for (reason, _, count) in it.sla.sheds() {
            counter(&mut family, &[("checkpoint", it.name.as_str()), ("reason", reason.as_str())], count)?;
        }
    }
    Ok(())
}

/// What the control plane knows of the registry.
fn registry(shared: &Shared, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let last_seen_ms = shared.metrics.registry_seen_ms.load(Relaxed);
    let reachable = shared.metrics.registry_reachable.load(Relaxed);
    gauge(
        encoder,
        "registry_reachable",
        "1 while the registry could be read last time",
        i64::from(reachable),
    )?;
    ConstGauge::new(last_seen_ms as f64 / 1e3).encode(encoder.encode_descriptor(
        "registry_last_seen_timestamp_seconds",
        "When it could be read last, since the Unix epoch; 0: never, or no registry is watched",
        None,
        MetricType::Gauge,
    )?)
}

fn answers(shared: &Shared, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let metrics = &shared.metrics;
    let mut family = encoder.encode_descriptor(
        "exec_seconds",
        "Evaluating the bundle, per request",
        None,
        MetricType::Histogram,
    )?;
    for it in named(&metrics.checkpoints) {
        histogram(&mut family, &[("checkpoint", &it.name)], &it.exec)?;
    }
    let mut family = encoder.encode_descriptor("decisions", "Decisions made", None, MetricType::Counter)?;
    for it in named(&metrics.checkpoints) {
        counter(&mut family, &[("checkpoint", &it.name)], it.rows.load(Relaxed))?;
    }
    let mut family = encoder.encode_descriptor(
        "fallbacks",
        "Decisions that the model did not make alone, by reason",
        None,
        MetricType::Counter,
    )?;
    for it in named(&metrics.checkpoints) {
        for reason in Reason::ALL {
            let count = it.fallbacks[reason as usize].load(Relaxed);
            let labels =
                [("checkpoint", it.name.as_str()), ("source", reason.source()), ("reason", reason.as_str())];
            counter(&mut family, &labels, count)?;
        }
    }
    for (name, help, value) in [
        ("panics", "Panics caught", &metrics.panics),
        ("replays", "Retries answered from memory", &metrics.replays),
        ("unlogged_decisions", "Decisions answered that are not in the log", &metrics.unlogged),
        ("swaps", "Lane tables put in force", &metrics.swaps),
        ("swaps_refused", "Lane tables refused", &metrics.swaps_refused),
        ("loads", "Bundles loaded", &metrics.loads),
    ] {
        single(encoder, name, help, value.load(Relaxed))?;
    }
    let mut family = encoder.encode_descriptor(
        "loads_refused",
        "Bundles refused, by what they were refused for",
        None,
        MetricType::Counter,
    )?;
    for reason in Refused::ALL {
        let count = metrics.loads_refused[reason as usize].load(Relaxed);
        counter(&mut family, &[("reason", reason.as_str())], count)?;
    }
    Ok(())
}

fn transport(shared: &Shared, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let connections = &shared.metrics.connections;
    for (name, help, value) in [
        ("connections_refused", "Connections closed at accept, at max_connections", &connections.refused),
        ("connections_no_preface", "Connections that never spoke HTTP/2", &connections.no_preface),
        ("connections_failed", "Connections ended by a protocol or socket error", &connections.failed),
        ("accept_errors", "Failed accepts", &connections.accept_errors),
    ] {
        single(encoder, name, help, value.load(Relaxed))?;
    }
    let mut family = encoder.encode_descriptor(
        "auxiliary_requests",
        "Replies of health, reflection and model metadata",
        None,
        MetricType::Counter,
    )?;
    for (code, count) in shared.metrics.auxiliary.iter().enumerate() {
        let count = count.load(Relaxed);
        if count > 0 {
            counter(&mut family, &[("code", code_name(code))], count)?;
        }
    }
    gauge(encoder, "connections", "Connections open", connections.open.load(Relaxed) as i64)?;
    gauge(encoder, "inflight", "Requests in flight", shared.admission.inflight() as i64)?;
    gauge(encoder, "ready", "1 while every checkpoint serves", i64::from(shared.health.is_ready()))
}

fn bundles(shared: &Shared, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let table = shared.lanes.load_full();
    gauge(encoder, "lane_table", "Version of the lane table in force", table.version as i64)?;
    let mut family = encoder.encode_descriptor(
        "lane_share",
        "Share of traffic of each lane, with the bundle behind it",
        None,
        MetricType::Gauge,
    )?;
    for (checkpoint, lane) in table.all() {
        let labels = [
            ("checkpoint", shared.checkpoints[checkpoint].name.as_str()),
            ("lane", &lane.source.lane),
            ("bundle", &lane.source.bundle),
            ("name", lane.loaded.bundle.name()),
        ];
        ConstGauge::new(lane.share).encode(family.encode_family(&labels)?)?;
    }
    let mut family = encoder.encode_descriptor(
        "bundle_warm_up_seconds",
        "One evaluation at warm-up, by quantile; bundles that answer only",
        None,
        MetricType::Gauge,
    )?;
    let mut seen = Vec::new();
    for (_, lane) in table.all() {
        let warmup = lane.loaded.warmup;
        if seen.contains(&lane.loaded.serial) {
            continue;
        }
        seen.push(lane.loaded.serial);
        for (quantile, time) in [("0.5", warmup.p50), ("0.99", warmup.p99)] {
            let labels = [("bundle", &*lane.source.bundle), ("quantile", quantile)];
            ConstGauge::new(time.as_secs_f64()).encode(family.encode_family(&labels)?)?;
        }
    }
    gauge(encoder, "bundles_loaded", "Bundles in memory", shared.bundles.all().len() as i64)?;
    gauge(
        encoder,
        "bundle_bytes",
        "Files of the bundles in memory, a shared forest once",
        file_bytes(shared),
    )?;
    let budget = shared.bundles.budget_bytes() as i64;
    gauge(encoder, "memory_budget_bytes", "What the process may hold once a bundle is loaded", budget)?;
    let resident = crate::bundles::resident().unwrap_or(0) as i64;
    gauge(encoder, "memory_resident_bytes", "What the process holds", resident)
}

/// Bytes of the files of all bundles in memory, those of a forest that several share once.
fn file_bytes(shared: &Shared) -> i64 {
    let all = shared.bundles.all();
    let mut before = Vec::with_capacity(all.len());
    let mut bytes = 0;
    for loaded in &all {
        bytes += loaded.bytes - loaded.bundle.shared_bytes(&before);
        before.push(&loaded.bundle);
    }
    bytes as i64
}

/// From an alias change to the first answer.
fn journeys(shared: &Shared, encoder: &mut DescriptorEncoder) -> fmt::Result {
    shared.bundles.journeys.read(|known| {
        let mut family = encoder.encode_descriptor(
            "data_load_seconds",
            "From an alias change to the first answer by its bundle",
            None,
            MetricType::Histogram,
        )?;
        for (checkpoint, it) in known {
            histogram(&mut family, &[("checkpoint", checkpoint)], &it.total)?;
        }
        let mut family = encoder.encode_descriptor(
            "data_load_stage_seconds",
            "The same by stage, of the newest bundle",
            None,
            MetricType::Gauge,
        )?;
        for (checkpoint, it) in known {
            for &(stage, seconds) in &it.stages {
                let labels = [("checkpoint", checkpoint.as_str()), ("stage", stage)];
                ConstGauge::new(seconds).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    })
}

fn log(shared: &Shared, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let Some(log) = &shared.log else { return Ok(()) };
    let status = log.status();
    gauge(encoder, "log_available", "1 while decisions can be recorded", i64::from(log.available()))?;
    gauge(encoder, "log_unsynced_bytes", "Written, not yet on the device", status.unsynced_bytes as i64)?;
    gauge(encoder, "log_queued_records", "Waiting to be written", status.queued as i64)?;
    gauge(encoder, "log_next_sequence", "The next record's sequence", status.next_sequence as i64)?;
    single(encoder, "log_dropped_records", "Dropped because the queue was full", status.dropped)?;
    single(encoder, "log_refused_records", "Refused while the log was unavailable", status.refused)
}

/// What was called at least once; the others would only lengthen the page.
fn used(checkpoints: &[CheckpointMetrics]) -> impl Iterator<Item = (&CheckpointMetrics, Method)> {
    checkpoints
        .iter()
        .flat_map(|it| Method::ALL.map(|method| (it, method)))
        .filter(|(it, method)| it.codes[*method as usize].iter().any(|count| count.load(Relaxed) > 0))
}

pub(super) fn named(checkpoints: &[CheckpointMetrics]) -> impl Iterator<Item = &CheckpointMetrics> {
    checkpoints.iter().filter(|it| !it.name.is_empty())
}

pub(super) fn counter(family: &mut MetricEncoder, labels: &[(&str, &str)], value: u64) -> fmt::Result {
    ConstCounter::new(value).encode(family.encode_family(&labels)?)
}

pub(super) fn histogram(
    family: &mut MetricEncoder,
    labels: &[(&str, &str)],
    value: &Histogram,
) -> fmt::Result {
    let (sum, count, buckets) = value.read();
    family.encode_family(&labels)?.encode_histogram::<[(&str, &str); 0]>(sum, count, &buckets, None)
}

fn single(encoder: &mut DescriptorEncoder, name: &str, help: &str, value: u64) -> fmt::Result {
    ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
}

pub(super) fn gauge(encoder: &mut DescriptorEncoder, name: &str, help: &str, value: i64) -> fmt::Result {
    ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}
