//! Metrics of the external lists of rules.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use scorer_engine::ListStatus;

use super::expose::counter;
use crate::services::Services;

/// The name, the help and the value of a gauge of each list.
type ListGauge<'a> = (&'a str, &'a str, &'a dyn Fn(&ListStatus) -> i64);

/// Adds version, size, age and failed loads of each list.
pub(super) fn lists(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let engine = &services.engine;
    let status = engine.lists.status(&engine.bundles);
    let now_ms = engine.clock.unix_us() / 1000;
    let age = |list: &ListStatus| {
        if list.version == 0 { 0 } else { (now_ms - list.published_at_ms).max(0) / 1000 }
    };
    let gauges: [ListGauge<'_>; 5] = [
        ("list_version", "Version of an external list in use; 0 if none is loaded", &|list| {
            i64::try_from(list.version).unwrap_or(i64::MAX)
        }),
        ("list_elements", "Elements of the version in use, duplicates included", &|list| {
            i64::try_from(list.elements).unwrap_or(i64::MAX)
        }),
        ("list_bytes", "Memory of the version in use", &|list| i64::try_from(list.bytes).unwrap_or(i64::MAX)),
        ("list_age_seconds", "Seconds since the version in use was published; 0 if none is loaded", &age),
        ("list_unfit_bundles", "Bundles for which the version is too old or of another type", &|list| {
            i64::try_from(list.unfit.len()).unwrap_or(i64::MAX)
        }),
    ];
    for (name, help, value) in gauges {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for list in &status {
            let labels = [("list", list.name.as_str())];
            ConstGauge::new(value(list)).encode(family.encode_family(&labels)?)?;
        }
    }
    let mut family = encoder.encode_descriptor(
        "list_loads",
        "Versions of external lists that came into use",
        None,
        MetricType::Counter,
    )?;
    for list in &status {
        counter(&mut family, &[("list", list.name.as_str())], list.loads)?;
    }
    let mut family = encoder.encode_descriptor(
        "list_loads_refused",
        "Versions of external lists that did not come into use, by cause",
        None,
        MetricType::Counter,
    )?;
    for list in &status {
        for (reason, count) in &list.refused {
            counter(&mut family, &[("list", list.name.as_str()), ("reason", *reason)], *count)?;
        }
    }
    Ok(())
}
