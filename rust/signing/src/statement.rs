//! The payload of a signature: an in-toto statement about one bundle.

use std::collections::BTreeMap;

use scorer_core::bundle::Digest;
use serde::{Deserialize, Serialize};

use crate::error::{SignatureError, place};

const STATEMENT: &str = "https://in-toto.io/Statement/v1";
const PREDICATE: &str = "urn:scorer:bundle-release:v1";

/// An in-toto statement (version 1) with the predicate [`Release`].
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    subject: Vec<Subject>,
    #[serde(rename = "predicateType")]
    predicate_type: String,
    pub(crate) predicate: Release,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Subject {
    name: String,
    digest: BTreeMap<String, String>,
}

/// The predicate: the number of the release of the bundle's name, and the time of signing (RFC 3339).
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Release {
    pub(crate) release: u64,
    #[serde(rename = "signedAt")]
    pub(crate) signed_at: String,
}

// === impl Statement ===

impl Statement {
    pub(crate) fn new(name: &str, digest: &Digest, release: u64, signed_at: String) -> Statement {
        Statement {
            kind: STATEMENT.to_owned(),
            subject: vec![Subject {
                name: name.to_owned(),
                digest: BTreeMap::from([("sha256".to_owned(), digest.hex())]),
            }],
            predicate_type: PREDICATE.to_owned(),
            predicate: Release { release, signed_at },
        }
    }

    /// Reads a statement whose signature has been verified. Returns the bundle's name, its digest and the predicate.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(String, Digest, Release), SignatureError> {
        let malformed = |what: &str| SignatureError::Malformed(format!("the signed statement {what}"));
        let Statement { kind, subject, predicate_type, predicate } = serde_json::from_slice(bytes)
            .map_err(|error| malformed(&format!("cannot be read ({})", place(&error))))?;
        if kind != STATEMENT || predicate_type != PREDICATE {
            return Err(malformed(&format!("is no {PREDICATE}")));
        }
        let Ok([subject]) = <[Subject; 1]>::try_from(subject) else {
            return Err(malformed("must name exactly one bundle"));
        };
        let digest = subject.digest.get("sha256").map(|hex| format!("sha256:{hex}").parse());
        let Some(Ok(digest)) = digest else { return Err(malformed("names no digest")) };
        Ok((subject.name, digest, predicate))
    }
}
