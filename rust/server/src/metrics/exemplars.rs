//! Adds exemplars to the page: the trace of a request in each bucket of the latency histograms.
//!
//! The encoder's exemplars can be made only by its own histograms, so that they are added to the text.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::counters::{By, Exemplar, Latency};
use crate::services::Services;

use super::expose::used;

/// Adds the exemplars of all latency histograms to a page. A page without them is returned as it is.
pub(super) fn add(services: &Services, page: String) -> String {
    let mut found = HashMap::new();
    let mut note = |series: String, latency: &Latency| {
        let exemplars = latency.exemplars();
        if !exemplars.is_empty() {
            found.insert(series, exemplars);
        }
    };
    for (counters, method) in used(services.counters.all()) {
        let (method_name, name) = (method.as_str(), &counters.name);
        let series =
            format!("scorer_request_seconds_count{{method=\"{method_name}\",checkpoint=\"{name}\"}}");
        note(series, &counters.latency[method as usize]);
    }
    for counters in services.counters.named() {
        for by in By::ALL {
            let (name, by_name) = (&counters.name, by.as_str());
            let series = format!("scorer_answer_seconds_count{{checkpoint=\"{name}\",by=\"{by_name}\"}}");
            note(series, &counters.sla.latency[by as usize]);
        }
    }
    if found.is_empty() { page } else { annotate(&page, &found) }
}

/// Adds exemplars to the buckets that follow the `_count` sample of their series.
fn annotate(page: &str, found: &HashMap<String, Vec<(usize, Exemplar)>>) -> String {
    let mut out = String::with_capacity(page.len() + found.len() * 128);
    let mut current: Option<(&[(usize, Exemplar)], usize)> = None;
    for line in page.lines() {
        out.push_str(line);
        let name = line.split_once('{').map_or(line, |(name, _)| name);
        match &mut current {
            Some((exemplars, bucket)) if name.ends_with("_bucket") => {
                if let Some((_, exemplar)) = exemplars.iter().find(|(at, _)| at == bucket) {
                    write(&mut out, exemplar);
                }
                *bucket += 1;
            }
            _ => {
                let series = line.rsplit_once(' ').map_or(line, |(series, _)| series);
                current = found.get(series).map(|exemplars| (exemplars.as_slice(), 0));
            }
        }
        out.push('\n');
    }
    out
}

fn write(out: &mut String, exemplar: &Exemplar) {
    let Exemplar { trace_id, took, at_us } = exemplar;
    let (id, at) = (u128::from_be_bytes(*trace_id), *at_us as f64 / 1e6);
    // Writing to a string cannot fail.
    let _ = write!(out, " # {{trace_id=\"{id:032x}\"}} {} {at:.3}", took.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_exemplar_is_added_to_its_bucket_only() {
        let page = "# TYPE a histogram\na_sum{x=\"1\"} 3.0\na_count{x=\"1\"} 2\na_bucket{le=\"0.1\",x=\"1\"} 0\n\
                    a_bucket{le=\"+Inf\",x=\"1\"} 2\na_sum{x=\"2\"} 0.0\na_count{x=\"2\"} 1\n\
                    a_bucket{le=\"0.1\",x=\"2\"} 0\na_bucket{le=\"+Inf\",x=\"2\"} 1\n# EOF\n";
        let exemplar = Exemplar {
            trace_id: [0x0a; 16],
            took: Duration::from_millis(1500),
            at_us: 1_700_000_000_250_000,
        };
        let found = HashMap::from([("a_count{x=\"1\"}".to_owned(), vec![(1, exemplar)])]);
        let line = "a_bucket{le=\"+Inf\",x=\"1\"} 2";
        let id = "0a".repeat(16);
        let expected = page.replace(line, &format!("{line} # {{trace_id=\"{id}\"}} 1.5 1700000000.250"));
        assert_eq!(annotate(page, &found), expected);
    }
}
