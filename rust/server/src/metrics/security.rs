//! Metrics of TLS and identity: refusals, and the ages of certificates and keys.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use scorer_http::HandshakeFailure;

use super::expose::{counter, gauge, single};
use crate::services::Services;

pub(super) fn encode(services: &Services, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let security = &services.security;
    let counters = &security.counters;
    if security.identity().is_some() {
        let mut family = encoder.encode_descriptor(
            "calls_refused",
            "Calls refused because the caller is unknown or lacks the role, by code",
            None,
            MetricType::Counter,
        )?;
        for (code, count) in
            [("UNAUTHENTICATED", &counters.unauthenticated), ("PERMISSION_DENIED", &counters.denied)]
        {
            counter(&mut family, &[("code", code)], count.load(Relaxed))?;
        }
    }
    if let Some(tls) = security.tls() {
        let mut family = encoder.encode_descriptor(
            "handshakes_failed",
            "TLS handshakes that failed, by reason",
            None,
            MetricType::Counter,
        )?;
        for failure in HandshakeFailure::ALL {
            let count = counters.handshakes_failed[failure as usize].load(Relaxed);
            counter(&mut family, &[("reason", failure.as_str())], count)?;
        }
        gauge(
            encoder,
            "tls_certificate_expires_timestamp_seconds",
            "Time at which the certificate of the listener expires",
            tls.expires(),
        )?;
    }
    if let Some(tokens) = security.tokens() {
        let keys = tokens.keys();
        let age = i64::try_from(keys.age_s).unwrap_or(i64::MAX);
        gauge(
            encoder,
            "jwt_keys_age_seconds",
            "Time since the file of the token issuer's keys was written",
            age,
        )?;
        let usable = i64::from(!keys.expired);
        gauge(encoder, "jwt_keys_usable", "0 while the issuer's keys are missing or too old", usable)?;
        single(encoder, "jwt_verified", "Verified signatures of tokens", tokens.verified())?;
    }
    if security.has_files() {
        let mut family = encoder.encode_descriptor(
            "identity_files_read",
            "Changed files of certificates and keys, by result",
            None,
            MetricType::Counter,
        )?;
        for (result, count) in [("replaced", &counters.replaced), ("rejected", &counters.rejected)] {
            counter(&mut family, &[("result", result)], count.load(Relaxed))?;
        }
        gauge(
            encoder,
            "identity_files_outdated",
            "Kinds of files that cannot be used now, so that their previous contents are in use",
            i64::try_from(counters.outdated.load(Relaxed)).unwrap_or(i64::MAX),
        )?;
    }
    Ok(())
}
