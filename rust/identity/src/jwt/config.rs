//! The settings of accepted tokens.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A signature algorithm that a token may use. Symmetric algorithms and `none` are not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[allow(clippy::upper_case_acronyms, missing_docs, reason = "the names of RFC 7518 and RFC 8037")]
pub enum Algorithm {
    #[serde(rename = "EdDSA")]
    EdDsa,
    ES256,
    ES384,
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
}

/// The rules that an accepted token meets.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct JwtConfig {
    /// The value that the claim `iss` must have.
    pub issuer: String,
    /// The value that the claim `aud` must be or contain.
    pub audience: String,
    /// The accepted signature algorithms.
    pub algorithms: Vec<Algorithm>,
    /// The file of the issuer's keys, a JSON Web Key Set.
    pub keys: PathBuf,
    /// Seconds after its last modification for which the file is valid; absent: without limit. For a file that is
    /// fetched from the issuer, this is how long the issuer may be unreachable.
    #[serde(default)]
    pub max_age_s: Option<u64>,
    /// Interval at which the file is read again, in milliseconds.
    #[serde(default = "default_reload_ms")]
    pub reload_ms: u64,
    /// The allowed difference between clocks, in seconds, at most 30.
    #[serde(default = "default_leeway_s")]
    pub leeway_s: u64,
    /// Length of the longest accepted token, in bytes.
    #[serde(default = "default_max_bytes")]
    pub max_bytes: usize,
    /// Seconds for which a verified token is not verified again, at most 60; 0: it is verified each time.
    #[serde(default = "default_cache_s")]
    pub cache_s: u64,
    /// The largest number of verified tokens in the cache.
    #[serde(default = "default_cache_tokens")]
    pub cache_tokens: usize,
}

fn default_reload_ms() -> u64 {
    1000
}

fn default_leeway_s() -> u64 {
    10
}

fn default_max_bytes() -> usize {
    4096
}

fn default_cache_s() -> u64 {
    30
}

fn default_cache_tokens() -> usize {
    4096
}

// === impl JwtConfig ===

impl JwtConfig {
    pub(crate) fn check(&self, wrong: &mut Vec<String>) {
        for (key, value) in [("issuer", &self.issuer), ("audience", &self.audience)] {
            if value.is_empty() {
                wrong.push(format!("\"identity\": jwt.{key} is empty; write what the tokens hold"));
            }
        }
        if self.algorithms.is_empty() {
            wrong.push(
                "\"identity\": jwt.algorithms is empty; name those that the issuer signs with".to_owned(),
            );
        }
        for (key, value, low, high) in [
            ("leeway_s", self.leeway_s, 0, 30),
            ("cache_s", self.cache_s, 0, 60),
            ("max_bytes", self.max_bytes as u64, 256, 16 << 10),
            ("cache_tokens", self.cache_tokens as u64, 1, 1 << 20),
            ("max_age_s", self.max_age_s.unwrap_or(60), 1, 30 * 86_400),
            ("reload_ms", self.reload_ms, 10, 86_400_000),
        ] {
            if !(low..=high).contains(&value) {
                wrong.push(format!("\"identity\": jwt.{key} is {value}; use {low} to {high}"));
            }
        }
    }
}
