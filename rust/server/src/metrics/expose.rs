//! Renders the counters as OpenMetrics text.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use scorer_engine::{
    BudgetUse, Checkpoint, CheckpointCounters as Decisions, Histogram, LoadErrorKind, Loaded, NodeTime,
    resident,
};
use scorer_http::Limit;
use scorer_proto::CODE_NAMES;

use super::exemplars;
use crate::counters::{By, CheckpointCounters, Miss};
use crate::method::Method;
use crate::services::Services;

/// Renders the current values of all counters.
pub(crate) fn render(services: &Arc<Services>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("scorer");
    registry.register_collector(Box::new(Snapshot(Arc::clone(services))));
    let mut text = String::with_capacity(16 << 10);
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(exemplars::add(services, text))
}

struct Snapshot(Arc<Services>);

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Snapshot")
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        requests(&self.0, &mut encoder)?;
        slas(&self.0, &mut encoder)?;
        answers(&self.0, &mut encoder)?;
        transport(&self.0, &mut encoder)?;
        bundles(&self.0, &mut encoder)?;
        rollouts(&self.0, &mut encoder)?;
        registry(&self.0, &mut encoder)?;
        super::security::encode(&self.0, &mut encoder)?;
        super::admission::encode(&self.0, &mut encoder)?;
        super::observe::encode(&self.0, &mut encoder)?;
        super::shadow::encode(&self.0, &mut encoder)?;
        super::outcomes::encode(&self.0, &mut encoder)?;
        super::explanations::encode(&self.0, &mut encoder)?;
        super::features::encode(&self.0, &mut encoder)?;
        super::tracing::encode(&self.0, &mut encoder)?;
        log(&self.0, &mut encoder)
    }
}

fn requests(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let counters = &services.counters;
    let mut family = encoder.encode_descriptor(
        "requests",
        "Requests ended, by method, checkpoint and gRPC code",
        None,
        MetricType::Counter,
    )?;
    for (counters, method) in used(counters.all()) {
        for (code, count) in counters.codes[method as usize].iter().enumerate() {
            let count = count.load(Relaxed);
            if count > 0 {
                let labels =
                    [("method", method.as_str()), ("checkpoint", &counters.name), ("code", CODE_NAMES[code])];
                counter(&mut family, &labels, count)?;
            }
        }
    }
    let mut family = encoder.encode_descriptor(
        "request_seconds",
        "Time from the request's HEADERS to the reply",
        None,
        MetricType::Histogram,
    )?;
    for (counters, method) in used(counters.all()) {
        let labels = [("method", method.as_str()), ("checkpoint", counters.name.as_str())];
        histogram(&mut family, &labels, &counters.latency[method as usize].histogram)?;
    }
    // Counters of ended requests are read first, so that a request that is being counted appears as in flight.
    let (replied, cancelled) = (counters.replied.load(Relaxed), counters.cancelled.load(Relaxed));
    single(encoder, "requests_replied", "Requests with a reply, including errors", replied)?;
    single(encoder, "requests_cancelled", "Requests cancelled by their caller", cancelled)?;
    single(encoder, "requests_arrived", "Requests that arrived", counters.arrived.load(Relaxed))
}

/// Adds the metrics of each checkpoint's SLA.
fn slas(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let checkpoints = || services.counters.named();
    let mut family = encoder.encode_descriptor(
        "sla_promise_seconds",
        "The SLA: the limit on the 99th percentile of latencies",
        None,
        MetricType::Gauge,
    )?;
    for counters in checkpoints() {
        let sla = counters.sla.sla().unwrap_or_default().as_secs_f64();
        ConstGauge::new(sla).encode(family.encode_family(&[("checkpoint", counters.name.as_str())])?)?;
    }
    let mut family = encoder.encode_descriptor(
        "answer_seconds",
        "Time from the HEADERS of a request for an answer to the reply, by the source of the answer",
        None,
        MetricType::Histogram,
    )?;
    for counters in checkpoints() {
        for by in By::ALL {
            let labels = [("checkpoint", counters.name.as_str()), ("by", by.as_str())];
            histogram(&mut family, &labels, &counters.sla.latency[by as usize].histogram)?;
        }
    }
    let mut family = encoder.encode_descriptor(
        "queue_delay_seconds",
        "Time from the request's HEADERS to its first poll",
        None,
        MetricType::Histogram,
    )?;
    let with_queue =
        |counters: &&CheckpointCounters| !counters.name.is_empty() || counters.sla.queue_delay.read().1 > 0;
    for counters in services.counters.all().filter(with_queue) {
        histogram(&mut family, &[("checkpoint", counters.name.as_str())], &counters.sla.queue_delay)?;
    }
    let mut family = encoder.encode_descriptor(
        "sla_misses",
        "Requests that violated the SLA, by reason",
        None,
        MetricType::Counter,
    )?;
    for counters in checkpoints() {
        for miss in Miss::ALL {
            let labels = [("checkpoint", counters.name.as_str()), ("reason", miss.as_str())];
            counter(&mut family, &labels, counters.sla.misses[miss as usize].load(Relaxed))?;
        }
    }
    let mut family = encoder.encode_descriptor(
        "sla_requests",
        "Requests to which the SLA applies",
        None,
        MetricType::Counter,
    )?;
    for counters in checkpoints() {
        counter(&mut family, &[("checkpoint", &counters.name)], counters.sla.totals().0)?;
    }
    let mut family = encoder.encode_descriptor(
        "error_budget_remaining",
        "Remaining part of the last 30 days' error budget; negative if it is exceeded",
        None,
        MetricType::Gauge,
    )?;
    for counters in checkpoints() {
        let left = counters.sla.budget.rates().remaining;
        ConstGauge::new(left).encode(family.encode_family(&[("checkpoint", counters.name.as_str())])?)?;
    }
    let mut family = encoder.encode_descriptor(
        "error_budget_burn_rate",
        "Rate of violations relative to the allowed rate; 1 uses up the budget in 30 days",
        None,
        MetricType::Gauge,
    )?;
    for counters in checkpoints() {
        let rates = counters.sla.budget.rates();
        for (window, rate) in
            [("5m", rates.m5), ("30m", rates.m30), ("1h", rates.h1), ("6h", rates.h6), ("3d", rates.d3)]
        {
            let labels = [("checkpoint", counters.name.as_str()), ("window", window)];
            ConstGauge::new(rate).encode(family.encode_family(&labels)?)?;
        }
    }
    let mut family = encoder.encode_descriptor(
        "late_results",
        "Results that were discarded because the request had been answered otherwise",
        None,
        MetricType::Counter,
    )?;
    for (name, counters) in decisions(services) {
        counter(&mut family, &[("checkpoint", name)], counters.late_results.load(Relaxed))?;
    }
    let mut family = encoder.encode_descriptor(
        "exposure_cap_hits",
        "Fallbacks not given because of an exposure cap, by cap",
        None,
        MetricType::Counter,
    )?;
    for (name, counters) in decisions(services) {
        for (cap, count) in counters.caps() {
            counter(&mut family, &[("checkpoint", name), ("cap", cap.as_str())], count)?;
        }
    }
    let mut family =
        encoder.encode_descriptor("shed", "Requests that were shed, by reason", None, MetricType::Counter)?;
    for (name, counters) in decisions(services) {
        for (reason, count, _) in counters.sheds() {
            counter(&mut family, &[("checkpoint", name), ("reason", reason.as_str())], count)?;
        }
    }
    let mut family = encoder.encode_descriptor(
        "would_shed",
        "Requests in mode observe that mode enforce would have shed",
        None,
        MetricType::Counter,
    )?;
    for (name, counters) in decisions(services) {
        for (reason, _, count) in counters.sheds() {
            counter(&mut family, &[("checkpoint", name), ("reason", reason.as_str())], count)?;
        }
    }
    let mut family = encoder.encode_descriptor(
        "answers_without_reasons",
        "Answers without the reasons that were asked for, by cause",
        None,
        MetricType::Counter,
    )?;
    for (name, counters) in decisions(services) {
        for (cause, count) in counters.without_reasons() {
            counter(&mut family, &[("checkpoint", name), ("cause", cause.as_str())], count)?;
        }
    }
    rules(services, encoder)?;
    functions(services, encoder)?;
    nodes(services, encoder)?;
    super::lists::lists(services, encoder)
}

/// Adds the faults of the functions of the bundles that answer or observe.
fn functions(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let (answering, observing) = (services.engine.lanes(), services.observers.active());
    let answers = answering.all().map(|(_, lane)| &*lane.loaded);
    let bundles =
        each_once(answers.chain(observing.all().filter_map(|lane| lane.loaded().map(|own| &**own))));
    let mut family = encoder.encode_descriptor(
        "function_faults",
        "Calls of a function of a bundle that failed, so that the value is missing",
        None,
        MetricType::Counter,
    )?;
    for loaded in &bundles {
        for (function, faults) in loaded.shape.functions.iter().zip(loaded.functions.faults()) {
            let labels = [("name", loaded.bundle.name()), ("bundle", short(loaded)), ("function", function)];
            counter(&mut family, &labels, faults)?;
        }
    }
    Ok(())
}

/// The bundles, each once.
fn each_once<'a>(bundles: impl Iterator<Item = &'a Loaded>) -> Vec<&'a Loaded> {
    let mut seen: Vec<&Loaded> = Vec::new();
    for loaded in bundles {
        if !seen.iter().any(|known| known.serial == loaded.serial) {
            seen.push(loaded);
        }
    }
    seen
}

/// Adds the times of the nodes of the bundles that answer.
fn nodes(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let table = services.engine.lanes();
    let bundles = each_once(table.all().map(|(_, lane)| &*lane.loaded));
    for (name, help, value) in [
        ("node_seconds", "Time of the timed evaluations of a node of a bundle's program", NODE_SECONDS),
        ("node_timed", "Number of evaluations in which a node was timed, of one decision in 61", NODE_TIMED),
    ] {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for loaded in &bundles {
            for time in loaded.nodes.times() {
                let labels = [
                    ("name", loaded.bundle.name()),
                    ("bundle", short(loaded)),
                    ("node", time.node.name.as_str()),
                    ("kind", time.node.kind),
                ];
                ConstCounter::new(value(&time)).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

const NODE_SECONDS: fn(&NodeTime<'_>) -> f64 = |time| time.nanos as f64 / 1e9;
const NODE_TIMED: fn(&NodeTime<'_>) -> f64 = |time| time.timed as f64;

/// Adds the counters of the rules of the bundles that answer.
fn rules(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let table = services.engine.lanes();
    let mut with_rules: Vec<&Loaded> = Vec::new();
    for (_, lane) in table.all().filter(|(_, lane)| !lane.loaded.shape.rules.is_empty()) {
        // Two lanes may have the same bundle.
        if !with_rules.iter().any(|known| known.serial == lane.loaded.serial) {
            with_rules.push(&lane.loaded);
        }
    }
    let mut family = encoder.encode_descriptor(
        "rule_hits",
        "Decisions on which a rule of a bundle had an effect, by rule",
        None,
        MetricType::Counter,
    )?;
    for loaded in &with_rules {
        for (rule, hits) in loaded.shape.rules.iter().zip(loaded.rules.hits()) {
            let labels =
                [("name", loaded.bundle.name()), ("bundle", short(loaded)), ("rule", rule.id.as_str())];
            counter(&mut family, &labels, hits)?;
        }
    }
    let mut family = encoder.encode_descriptor(
        "rules_without_effect",
        "Rules and groups of rules that had no effect on a decision, by cause",
        None,
        MetricType::Counter,
    )?;
    for loaded in &with_rules {
        for (cause, count) in loaded.rules.without_value() {
            let labels = [("name", loaded.bundle.name()), ("bundle", short(loaded)), ("cause", cause)];
            counter(&mut family, &labels, count)?;
        }
    }
    budgets(services, encoder)
}

/// Adds what is used and left of the daily budgets of rules, which lanes of a checkpoint share. The limit is that of
/// the bundle that answers most requests among those with the rule.
fn budgets(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let engine = &services.engine;
    let table = engine.lanes();
    let seconds = engine.clock.unix_us().div_euclid(1_000_000);
    let mut lanes: Vec<_> = table.all().collect();
    lanes.sort_by(|(at, one), (other_at, other)| at.cmp(other_at).then(other.share.total_cmp(&one.share)));
    let mut uses: Vec<(&str, BudgetUse<'_>)> = Vec::new();
    for (at, lane) in lanes {
        let checkpoint = engine.checkpoints.at(at);
        for budget in checkpoint.budgets(&lane.loaded, seconds) {
            let same = |(name, known): &(&str, BudgetUse<'_>)| {
                *name == checkpoint.name && (known.rule, known.of) == (budget.rule, budget.of)
            };
            if !uses.iter().any(same) {
                uses.push((&checkpoint.name, budget));
            }
        }
    }
    for (name, help, value) in [
        ("rule_budget_used", "Part of a rule's daily budget that is used on this UTC day", USED),
        ("rule_budget_remaining", "Part of a rule's daily budget that is left on this UTC day", REMAINING),
    ] {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (checkpoint, budget) in &uses {
            let labels = [("checkpoint", *checkpoint), ("rule", budget.rule), ("of", budget.of)];
            ConstGauge::new(value(budget)).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

const USED: fn(&BudgetUse<'_>) -> f64 = |budget| budget.used;
const REMAINING: fn(&BudgetUse<'_>) -> f64 = |budget| (budget.most - budget.used).max(0.0);

/// The digest of a bundle without `sha256:`, shortened to 12 digits.
fn short(loaded: &Loaded) -> &str {
    loaded.digest_text.get(7..19).unwrap_or(&loaded.digest_text)
}

/// Adds the state of the registry that the control plane has reported.
fn registry(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let last_seen_ms = services.counters.registry_seen_ms.load(Relaxed);
    let reachable = services.counters.registry_reachable.load(Relaxed);
    gauge(
        encoder,
        "registry_reachable",
        "1 if the latest read of the registry succeeded",
        i64::from(reachable),
    )?;
    ConstGauge::new(last_seen_ms as f64 / 1e3).encode(encoder.encode_descriptor(
        "registry_last_seen_timestamp_seconds",
        "Time of the latest successful read of the registry since the Unix epoch; 0 if there was none",
        None,
        MetricType::Gauge,
    )?)
}

fn answers(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let counters = &services.counters;
    let mut family = encoder.encode_descriptor(
        "exec_seconds",
        "Time of evaluating the bundle, per request",
        None,
        MetricType::Histogram,
    )?;
    for (name, counters) in decisions(services) {
        histogram(&mut family, &[("checkpoint", name)], &counters.exec)?;
    }
    let mut family = encoder.encode_descriptor("decisions", "Decisions made", None, MetricType::Counter)?;
    for (name, counters) in decisions(services) {
        counter(&mut family, &[("checkpoint", name)], counters.rows.load(Relaxed))?;
    }
    let mut family = encoder.encode_descriptor(
        "fallbacks",
        "Decisions that the drawn lane's model and policy did not make, by reason",
        None,
        MetricType::Counter,
    )?;
    for (name, counters) in decisions(services) {
        for (reason, count) in counters.fallbacks() {
            let labels = [("checkpoint", name), ("source", reason.source()), ("reason", reason.as_str())];
            counter(&mut family, &labels, count)?;
        }
    }
    for (name, help, value) in [
        ("panics", "Panics caught", &services.engine.counters.panics),
        ("replays", "Retries answered from the idempotency cache", &services.engine.counters.replays),
        (
            "undelivered_decisions",
            "Decisions whose caller was gone before it was given the reply",
            &services.engine.counters.undelivered,
        ),
        (
            "unlogged_decisions",
            "Answered decisions that are not in the log",
            &services.engine.counters.unlogged,
        ),
        (
            "card_numbers_refused",
            "Requests refused because a field held a card number",
            &services.engine.privacy.refused,
        ),
        (
            "card_numbers_masked",
            "Fields in which a card number was replaced by a pseudonym",
            &services.engine.privacy.masked,
        ),
        (
            "features_unsealed",
            "Records whose sensitive features were masked because they could not be encrypted",
            &services.engine.privacy.unsealed,
        ),
        ("swaps", "Lane tables activated", &counters.swaps),
        ("swaps_refused", "Lane tables rejected", &counters.swaps_rejected),
        ("loads", "Bundles loaded", &counters.loads),
    ] {
        single(encoder, name, help, value.load(Relaxed))?;
    }
    let mut family = encoder.encode_descriptor(
        "loads_refused",
        "Bundles rejected, by reason",
        None,
        MetricType::Counter,
    )?;
    for reason in LoadErrorKind::ALL {
        let count = counters.loads_rejected[reason as usize].load(Relaxed);
        counter(&mut family, &[("reason", reason.as_str())], count)?;
    }
    Ok(())
}

fn transport(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let connections = &services.counters.connections;
    for (name, help, value) in [
        (
            "connections_refused",
            "Connections closed at accept because of a limit on their number or rate",
            &connections.refused,
        ),
        ("connections_no_preface", "Connections without an HTTP/2 preface", &connections.no_preface),
        ("connections_failed", "Connections ended by a protocol or socket error", &connections.failed),
        ("accept_errors", "Failed accepts", &connections.accept_errors),
    ] {
        single(encoder, name, help, value.load(Relaxed))?;
    }
    let mut family = encoder.encode_descriptor(
        "limit_hits",
        "Number of times that a limit was applied to a client, by limit",
        None,
        MetricType::Counter,
    )?;
    for limit in Limit::ALL {
        let count = services.counters.limits[limit as usize].load(Relaxed);
        counter(&mut family, &[("limit", limit.as_str())], count)?;
    }
    let mut family = encoder.encode_descriptor(
        "auxiliary_requests",
        "Replies of health, reflection and model metadata",
        None,
        MetricType::Counter,
    )?;
    for (code, count) in services.counters.auxiliary.iter().enumerate() {
        let count = count.load(Relaxed);
        if count > 0 {
            counter(&mut family, &[("code", CODE_NAMES[code])], count)?;
        }
    }
    gauge(encoder, "connections", "Open connections", connections.open.load(Relaxed) as i64)?;
    gauge(encoder, "inflight", "Requests in flight", services.engine.admission.inflight() as i64)?;
    gauge(encoder, "ready", "1 while every checkpoint serves", i64::from(services.health.is_ready()))
}

fn bundles(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let table = services.engine.lanes();
    gauge(encoder, "lane_table", "Revision of the active lane table", table.version as i64)?;
    let mut family = encoder.encode_descriptor(
        "lane_share",
        "Share of traffic of each lane, with the bundle behind it",
        None,
        MetricType::Gauge,
    )?;
    for (checkpoint, lane) in table.all() {
        let labels = [
            ("checkpoint", services.engine.checkpoints.at(checkpoint).name.as_str()),
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
    gauge(encoder, "bundles_loaded", "Bundles in memory", services.engine.bundles.all().len() as i64)?;
    let quarantined = services.counters.quarantined.load(Relaxed) as i64;
    gauge(encoder, "bundles_quarantined", "Bundles that are not loaded again", quarantined)?;
    gauge(
        encoder,
        "bundle_bytes",
        "Size of the files of all bundles in memory; a shared forest counts once",
        services.engine.bundles.file_bytes() as i64,
    )?;
    let budget = services.engine.bundles.budget_bytes() as i64;
    gauge(encoder, "memory_budget_bytes", "Memory limit of the process for loading bundles", budget)?;
    let resident = resident().unwrap_or(0) as i64;
    gauge(encoder, "memory_resident_bytes", "Resident memory of the process", resident)
}

/// Adds the times from the change of an alias to the first answer.
fn rollouts(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    services.rollouts.read(|known| {
        let mut family = encoder.encode_descriptor(
            "data_load_seconds",
            "Time from the change of an alias to the first answer of its bundle",
            None,
            MetricType::Histogram,
        )?;
        for (checkpoint, counters) in known {
            histogram(&mut family, &[("checkpoint", checkpoint)], &counters.total)?;
        }
        let mut family = encoder.encode_descriptor(
            "data_load_stage_seconds",
            "Time of each stage from the change of an alias to the first answer, of the newest bundle",
            None,
            MetricType::Gauge,
        )?;
        for (checkpoint, counters) in known {
            for &(stage, seconds) in &counters.stages {
                let labels = [("checkpoint", checkpoint.as_str()), ("stage", stage)];
                ConstGauge::new(seconds).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    })
}

fn log(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let Some(log) = &services.engine.log else { return Ok(()) };
    let status = log.status();
    gauge(encoder, "log_available", "1 while decisions can be recorded", i64::from(log.available()))?;
    gauge(encoder, "log_unsynced_bytes", "Bytes not yet on stable storage", status.unsynced_bytes as i64)?;
    gauge(encoder, "log_queued_records", "Records waiting to be written", status.queued as i64)?;
    gauge(encoder, "log_next_sequence", "Sequence of the next record", status.next_sequence as i64)?;
    single(encoder, "log_dropped_records", "Records dropped because the queue was full", status.dropped)?;
    single(encoder, "log_refused_records", "Records refused while the log was unavailable", status.refused)?;
    let upkeep = log.upkeep();
    let retention = &upkeep.retention;
    gauge(encoder, "log_bytes", "Size of all segments", retention.bytes as i64)?;
    gauge(encoder, "log_segments", "Number of segments", retention.segments as i64)?;
    gauge(
        encoder,
        "log_shipped_sequence",
        "Records below this are marked as shipped",
        retention.shipped as i64,
    )?;
    let blocked = retention.blocked_bytes as i64;
    gauge(
        encoder,
        "log_retention_blocked_bytes",
        "Bytes beyond a limit of retention that are kept",
        blocked,
    )?;
    single(encoder, "log_pruned_segments", "Segments removed by retention", upkeep.removed_segments)?;
    single(encoder, "log_pruned_bytes", "Bytes removed by retention", upkeep.removed_bytes)?;
    if let Some(free) = upkeep.free_bytes {
        gauge(encoder, "log_free_bytes", "Bytes that can still be written to the log's disk", free as i64)?;
    }
    let until_full = upkeep.full_in_seconds.unwrap_or(f64::INFINITY);
    let help = "Time until the log's disk is full at the rate of the last hour";
    ConstGauge::new(until_full).encode(encoder.encode_descriptor(
        "log_full_seconds",
        help,
        None,
        MetricType::Gauge,
    )?)
}

/// Returns the checkpoints and methods that were called at least once. The page omits the others.
pub(super) fn used<'a>(
    checkpoints: impl Iterator<Item = &'a CheckpointCounters>,
) -> impl Iterator<Item = (&'a CheckpointCounters, Method)> {
    checkpoints.flat_map(|counters| Method::ALL.map(|method| (counters, method))).filter(
        |(counters, method)| counters.codes[*method as usize].iter().any(|count| count.load(Relaxed) > 0),
    )
}

/// Returns every checkpoint's name with its counters of the engine.
fn decisions(services: &Services) -> impl Iterator<Item = (&str, &Decisions)> {
    let counted = |checkpoint: &Checkpoint| services.engine.counters.checkpoint(checkpoint.index);
    let checkpoints = services.engine.checkpoints.iter();
    checkpoints.map(move |checkpoint| (checkpoint.name.as_str(), counted(checkpoint)))
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

pub(super) fn single(encoder: &mut DescriptorEncoder, name: &str, help: &str, value: u64) -> fmt::Result {
    ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
}

pub(super) fn gauge(encoder: &mut DescriptorEncoder, name: &str, help: &str, value: i64) -> fmt::Result {
    ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}
