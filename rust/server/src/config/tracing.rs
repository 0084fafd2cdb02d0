//! The configuration of traces.

use scorer_identity::tls::ClientTlsConfig;
use scorer_outbound::is_target;
use serde::{Deserialize, Serialize};

/// Greatest length of a name in the resource of the spans, in bytes.
const NAME: usize = 255;

/// Which requests are traced, and where their spans are sent.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct TracingConfig {
    /// `host:port` of a collector that receives OTLP over gRPC. A host name is resolved for each connection.
    pub endpoint: String,
    /// TLS settings of the connection. Without them the connection is plaintext.
    #[serde(default)]
    pub tls: Option<ClientTlsConfig>,
    /// Share of the requests to trace, from 0 to 1.
    #[serde(default = "default_ratio")]
    pub ratio: f64,
    /// Whether a request is traced, or not, as the `traceparent` of its caller says. `ratio` then applies to requests
    /// without a `traceparent` only.
    #[serde(default = "default_follow_callers")]
    pub follow_callers: bool,
    /// Greatest number of requests that are traced per second.
    #[serde(default = "default_most_per_second")]
    pub most_per_second: u32,
    /// Number of traced requests that may wait to be sent. The spans of further requests are dropped and counted.
    #[serde(default = "default_queue")]
    pub queue: usize,
    /// Timeout of a connection attempt and of a call, in milliseconds.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
    /// The `service.name` of the spans.
    #[serde(default = "default_service")]
    pub service: String,
    /// The `service.instance.id` of the spans. The default is the address on which the server listens.
    #[serde(default)]
    pub instance: Option<String>,
}

// === impl TracingConfig ===

impl TracingConfig {
    /// Appends a message for each invalid setting to `wrong`.
    pub(super) fn check(&self, wrong: &mut Vec<String>) {
        if !is_target(&self.endpoint) {
            wrong.push(format!(
                "\"tracing\": endpoint {:?}; write host:port with a port from 1 to 65535",
                self.endpoint
            ));
        }
        if let Some(tls) = &self.tls {
            tls.check("tracing.tls", wrong);
        }
        if !(0.0..=1.0).contains(&self.ratio) {
            wrong.push(format!("\"tracing\": ratio is {}; use a number from 0 to 1", self.ratio));
        }
        let names = [("service", Some(&self.service)), ("instance", self.instance.as_ref())];
        for (key, name) in names.into_iter().filter_map(|(key, name)| Some((key, name?))) {
            if !(1..=NAME).contains(&name.len()) {
                wrong.push(format!("\"tracing\": {key} has {} bytes; use 1 to {NAME}", name.len()));
            }
        }
        for (key, value, low, high) in [
            ("most_per_second", self.most_per_second as usize, 1, 1 << 20),
            ("queue", self.queue, 1, 1 << 16),
            ("timeout_ms", usize::try_from(self.timeout_ms).unwrap_or(usize::MAX), 1, 60_000),
        ] {
            if !(low..=high).contains(&value) {
                wrong.push(format!("\"tracing\": {key} is {value}; use {low} to {high}"));
            }
        }
    }
}

fn default_ratio() -> f64 {
    0.01
}

fn default_follow_callers() -> bool {
    true
}

fn default_most_per_second() -> u32 {
    1000
}

fn default_queue() -> usize {
    2048
}

fn default_timeout_ms() -> u64 {
    5000
}

fn default_service() -> String {
    "scorer".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(json: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        serde_json::from_str::<TracingConfig>(json).unwrap().check(&mut wrong);
        wrong
    }

    #[test]
    fn every_mistake_is_named() {
        assert_eq!(faults(r#"{"endpoint":"collector:4317"}"#), [""; 0]);
        let wrong = faults(
            r#"{"endpoint":"http://collector:4317","ratio":1.5,"queue":0,"timeout_ms":0,"most_per_second":0,
                "service":"","tls":{"ca":"ca.pem","key":"k.pem"}}"#,
        );
        let says = [
            "endpoint \"http://collector:4317\"",
            "certificate and key go together",
            "ratio is 1.5",
            "service has 0 bytes",
            "most_per_second is 0",
            "queue is 0",
            "timeout_ms is 0",
        ];
        assert_eq!(wrong.len(), says.len(), "{wrong:?}");
        for (wrong, says) in wrong.iter().zip(says) {
            assert!(wrong.contains(says), "{says:?} not in {wrong:?}");
        }
        assert!(faults(r#"{"endpoint":"a:1","ratio":-0.1}"#)[0].contains("ratio is -0.1"));
    }
}
