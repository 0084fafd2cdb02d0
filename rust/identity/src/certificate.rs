//! Reads the principal and the end of validity from a certificate.

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::error::Unauthenticated;
use crate::principal::{MAX_NAME, Principal};

/// The end of a certificate's validity, in seconds since the Unix epoch; `None` if it cannot be read.
pub(crate) fn expires(der: &[u8]) -> Option<i64> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

/// Returns the principal of a verified certificate: its SPIFFE id, or its DNS name if it has no URI.
///
/// # Errors
/// It has several URIs, a URI that is no SPIFFE id, an id of another trust domain, or no single name.
pub(crate) fn principal(der: &[u8], trust_domain: Option<&str>) -> Result<Principal, Unauthenticated> {
    let refused = |problem: &str| Unauthenticated::Certificate(problem.to_owned());
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| refused("it cannot be read"))?;
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| refused("it has the extension subjectAltName twice or malformed"))?
        .map(|extension| extension.value.general_names.as_slice())
        .unwrap_or_default();
    let mut uris = Vec::new();
    let mut hosts = Vec::new();
    for name in names {
        match name {
            GeneralName::URI(uri) => uris.push(*uri),
            GeneralName::DNSName(host) => hosts.push(*host),
            GeneralName::Invalid(..) => return Err(refused("one of its names is malformed")),
            _ => {}
        }
    }
    match (uris.as_slice(), hosts.as_slice()) {
        ([uri], _) => {
            let domain = spiffe_domain(uri).ok_or_else(|| refused("its URI is no SPIFFE id"))?;
            match trust_domain {
                Some(trusted) if trusted != domain => Err(refused("it belongs to another trust domain")),
                _ => Ok(Principal::of_name((*uri).to_owned())),
            }
        }
        ([_, _, ..], _) => Err(refused("it names several URIs; a SPIFFE certificate names exactly one")),
        ([], [host]) if is_host(host) => Ok(Principal::of_name(format!("dns:{}", host.to_ascii_lowercase()))),
        ([], _) => Err(refused("it names neither one URI nor one DNS name")),
    }
}

/// The trust domain of a SPIFFE id; `None` if `uri` is not a SPIFFE id.
pub(crate) fn spiffe_domain(uri: &str) -> Option<&str> {
    let (domain, path) = uri.strip_prefix("spiffe://")?.split_once('/')?;
    let in_domain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    let in_path = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let segment = |text: &str| !matches!(text, "" | "." | "..") && text.bytes().all(in_path);
    let valid = uri.len() <= MAX_NAME
        && !domain.is_empty()
        && domain.bytes().all(in_domain)
        && path.split('/').all(segment);
    valid.then_some(domain)
}

fn is_host(host: &str) -> bool {
    !host.is_empty()
        && host.len() <= 253
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spiffe_id_has_a_trust_domain_and_a_plain_path() {
        for good in ["spiffe://example.org/checkout", "spiffe://a-b.c_d/ns/pay/sa/web.1"] {
            assert!(spiffe_domain(good).is_some(), "{good}");
        }
        for bad in [
            "spiffe://example.org",
            "spiffe://example.org/",
            "spiffe:///checkout",
            "spiffe://Example.org/a",
            "spiffe://example.org:443/a",
            "spiffe://user@example.org/a",
            "spiffe://example.org/a/../b",
            "spiffe://example.org/a//b",
            "spiffe://example.org/a?b",
            "spiffe://example.org/a#b",
            "spiffe://example.org/%61",
            "https://example.org/a",
            "SPIFFE://example.org/a",
        ] {
            assert_eq!(spiffe_domain(bad), None, "{bad}");
        }
        assert_eq!(spiffe_domain(&format!("spiffe://a/{}", "b".repeat(256))), None);
    }
}
