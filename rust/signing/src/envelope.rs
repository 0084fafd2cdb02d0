//! DSSE envelopes: a payload, its type, and signatures over both.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use scorer_core::bundle::Digest;
use serde::{Deserialize, Serialize};

use crate::error::{KeyError, SignatureError, place};
use crate::key::PrivateKey;
use crate::statement::Statement;
use crate::time;

/// Size of the largest accepted envelope in bytes.
pub const MAX_ENVELOPE_BYTES: u64 = 64 << 10;
/// Largest accepted number of signatures in one envelope.
const MAX_SIGNATURES: usize = 8;
const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

/// An envelope in its stored form (JSON).
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Envelope {
    #[serde(rename = "payloadType")]
    payload_type: String,
    payload: String,
    signatures: Vec<Signature>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Signature {
    keyid: String,
    sig: String,
}

/// A parsed envelope whose signatures have not been checked yet.
pub(crate) struct Unverified {
    pub(crate) payload: Vec<u8>,
    /// The bytes that are signed: DSSE's pre-authentication encoding of type and payload.
    pub(crate) message: Vec<u8>,
    /// Each signature with the key id that the envelope names for it. The id is not signed and only selects keys to
    /// try.
    pub(crate) signatures: Vec<(String, Vec<u8>)>,
}

// === impl Envelope ===

impl Envelope {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Unverified, SignatureError> {
        let malformed = |what: String| SignatureError::Malformed(what);
        let envelope: Envelope = serde_json::from_slice(bytes)
            .map_err(|error| malformed(format!("it is no signature envelope ({})", place(&error))))?;
        if envelope.payload_type != PAYLOAD_TYPE {
            return Err(malformed(format!("its payloadType is not {PAYLOAD_TYPE}")));
        }
        if envelope.signatures.is_empty() || envelope.signatures.len() > MAX_SIGNATURES {
            return Err(malformed(format!("it must hold 1 to {MAX_SIGNATURES} signatures")));
        }
        let decode = |text: &str| {
            STANDARD.decode(text).map_err(|_| malformed("it holds text that is no Base64".to_owned()))
        };
        let payload = decode(&envelope.payload)?;
        let signatures = envelope
            .signatures
            .iter()
            .map(|signature| Ok((key_id(&signature.keyid), decode(&signature.sig)?)))
            .collect::<Result<_, SignatureError>>()?;
        Ok(Unverified { message: pre_authentication(&payload), payload, signatures })
    }
}

/// Signs a statement that the bundle `digest` is release `release` of the bundle name `name`, with each of `keys`, and
/// returns the envelope as JSON text. `now` is the recorded time of signing.
///
/// # Errors
/// Fails if the system provides no random numbers, which ECDSA needs.
pub fn sign(
    name: &str,
    digest: &Digest,
    release: u64,
    keys: &[PrivateKey],
    now: SystemTime,
) -> Result<String, KeyError> {
    let statement = Statement::new(name, digest, release, time::text(now));
    let render = |_| KeyError::Text("the statement cannot be written");
    let payload = serde_json::to_vec(&statement).map_err(render)?;
    let message = pre_authentication(&payload);
    let signatures = keys
        .iter()
        .map(|key| Ok(Signature { keyid: key.id(), sig: STANDARD.encode(key.sign(&message)?) }))
        .collect::<Result<_, KeyError>>()?;
    let envelope =
        Envelope { payload_type: PAYLOAD_TYPE.to_owned(), payload: STANDARD.encode(&payload), signatures };
    let mut text = serde_json::to_string_pretty(&envelope).map_err(render)?;
    text.push('\n');
    Ok(text)
}

/// DSSE's pre-authentication encoding: type and payload, each preceded by its length.
fn pre_authentication(payload: &[u8]) -> Vec<u8> {
    let mut message = format!("DSSEv1 {} {PAYLOAD_TYPE} {} ", PAYLOAD_TYPE.len(), payload.len()).into_bytes();
    message.extend_from_slice(payload);
    message
}

/// Reduces a key id to at most 64 ASCII letters and digits, so that it can be part of a log line or an error message.
fn key_id(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).take(64).collect()
}
