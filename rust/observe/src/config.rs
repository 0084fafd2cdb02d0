//! The configuration of a live server's connection to the shadow pool.

use scorer_identity::tls::ClientTlsConfig;
use serde::{Deserialize, Serialize};

/// Greatest number of requests in one call.
pub const MAX_REQUESTS: usize = 4096;
/// Size of the largest call that the pool reads, in bytes: a batch of at most half of that, and the dictionaries of the
/// schemas.
pub const MAX_MESSAGE: usize = 2 << 20;

/// The connection to the shadow pool.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ShadowPoolConfig {
    /// `host:port` of a server of role `shadow`. A host name is resolved for each connection.
    pub address: String,
    /// TLS settings of the connection. Without them the connection is plaintext.
    #[serde(default)]
    pub tls: Option<ClientTlsConfig>,
    /// Name of this server in the pool's counters. The default is the address on which it listens.
    #[serde(default)]
    pub server: Option<String>,
    /// Number of requests that may wait to be sent. Further requests are dropped and counted.
    #[serde(default = "default_queue")]
    pub queue: usize,
    /// Number of bytes that the waiting requests may hold.
    #[serde(default = "default_queue_bytes")]
    pub queue_bytes: usize,
    /// Greatest number of requests in one call.
    #[serde(default = "default_batch")]
    pub batch: usize,
    /// Interval, in milliseconds, at which the queue is read. Requests that arrive in one interval are sent together.
    #[serde(default = "default_linger_ms")]
    pub linger_ms: u64,
    /// Timeout of one call, in milliseconds.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
}

// === impl ShadowPoolConfig ===

impl ShadowPoolConfig {
    /// Appends a message for each invalid setting to `wrong`.
    pub fn check(&self, wrong: &mut Vec<String>) {
        if !is_target(&self.address) {
            wrong.push(format!(
                "\"shadow_pool\": address {:?}; write host:port with a port from 1 to 65535",
                self.address
            ));
        }
        if let Some(tls) = &self.tls {
            tls.check("shadow_pool.tls", wrong);
        }
        for (key, value, low, high) in [
            ("queue", self.queue, 1, 1 << 24),
            ("queue_bytes", self.queue_bytes, 1 << 10, 1 << 34),
            ("batch", self.batch, 1, MAX_REQUESTS),
            ("linger_ms", self.linger_ms as usize, 1, 1000),
            ("timeout_ms", self.timeout_ms as usize, 1, 60_000),
        ] {
            if !(low..=high).contains(&value) {
                wrong.push(format!("\"shadow_pool\": {key} is {value}; use {low} to {high}"));
            }
        }
    }
}

/// Whether `address` is a `host:port` that a URI can contain without escapes.
fn is_target(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let plain = |host: &str| {
        !host.is_empty()
            && host.len() <= 253
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host_fits = bracketed.map_or_else(|| plain(host), |host| host.parse::<std::net::Ipv6Addr>().is_ok());
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    host_fits && digits && port.parse::<u16>().is_ok_and(|port| port > 0)
}

fn default_queue() -> usize {
    65_536
}

fn default_queue_bytes() -> usize {
    16 << 20
}

fn default_batch() -> usize {
    256
}

fn default_linger_ms() -> u64 {
    20
}

fn default_timeout_ms() -> u64 {
    2000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_host_and_a_port() {
        for good in ["127.0.0.1:7700", "[::1]:1", "scorer-shadow.pay.svc.cluster.local:7700", "a:65535"] {
            assert!(is_target(good), "{good}");
        }
        for bad in
            ["", "a", "a:", ":1", "a:0", "a:65536", "a:+1", "::1:7700", "[::1:7700", "http://a:1", "a b:1"]
        {
            assert!(!is_target(bad), "{bad}");
        }
    }
}
