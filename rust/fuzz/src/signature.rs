//! Signatures of bundles, and the keys that create and verify them.

use std::fs;
use std::sync::OnceLock;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use scorer_core::bundle::Digest;
use scorer_signing::{Floors, PrivateKey, PublicKey, Trust, Verification, sign};
use serde_json::json;
use tempfile::TempDir;

/// The trusted key.
pub const KEY: &str = include_str!("../../signing/src/trust/testdata/ed25519.pem");
/// The name of the bundle, and its lowest accepted release.
const NAME: &str = "fraud";
const FLOOR: u64 = 3;
const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

struct Store {
    trust: Trust,
    _directory: TempDir,
}

/// Tests the input. Its first byte selects the meaning of the rest: an envelope, a statement that is to be signed, or
/// keys in PEM.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 3 {
        0 => verify(rest),
        1 => verify(envelope(rest).as_bytes()),
        _ => keys(rest),
    }
}

/// Verifies an envelope. Checks that an accepted envelope is by the trusted key, of this name and not below the floor.
fn verify(envelope: &[u8]) {
    let wanted = Verification {
        digest: &digest(),
        name: Some(NAME),
        floors: &Floors::from([(NAME.to_owned(), FLOOR)]),
        known: false,
        now: SystemTime::now(),
    };
    match store().trust.verify(Some(envelope), &wanted) {
        Ok(signed) => {
            let signed = signed.expect("an envelope is not ignored where keys are trusted");
            assert_eq!((signed.name.as_str(), signed.key), (NAME, key().id()));
            assert!(signed.release >= FLOOR);
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "an error of several lines: {error}"),
    }
}

/// Returns an envelope with a statement and the signature of the trusted key.
pub fn envelope(payload: &[u8]) -> String {
    let mut message = format!("DSSEv1 {} {PAYLOAD_TYPE} {} ", PAYLOAD_TYPE.len(), payload.len()).into_bytes();
    message.extend_from_slice(payload);
    let signature = key().sign(&message).expect("the key signs");
    json!({"payloadType": PAYLOAD_TYPE, "payload": STANDARD.encode(payload),
        "signatures": [{"keyid": key().id(), "sig": STANDARD.encode(signature)}]})
    .to_string()
}

/// Returns an envelope written by `scorer_signing`.
pub fn written() -> String {
    sign(NAME, &digest(), FLOOR, std::slice::from_ref(key()), SystemTime::now()).expect("the key signs")
}

/// Reads keys. Checks that a public key can be written and read again, and that it verifies what its private key signs.
fn keys(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(public) = PublicKey::from_pem(text) {
        let again = PublicKey::from_pem(&public.to_pem()).expect("a key that was written can be read");
        assert_eq!(again.id, public.id);
        assert_eq!(again.not_after_text(), public.not_after_text());
        assert!(!public.verifies(b"message", &[0; 64]));
    }
    if let Ok(private) = PrivateKey::from_pem(text) {
        let signature = private.sign(b"message").expect("the key signs");
        let public = private.public(None).expect("the public key can be read");
        assert!(public.verifies(b"message", &signature) && !public.verifies(b"massage", &signature));
    }
}

/// Digest of the bundle to be loaded.
pub fn digest() -> Digest {
    Digest::of(b"a bundle")
}

/// The file of the public key of [`KEY`].
pub fn public() -> String {
    key().public(Some("2099-01-01T00:00:00Z")).expect("the time is valid").to_pem()
}

fn key() -> &'static PrivateKey {
    static PRIVATE: OnceLock<PrivateKey> = OnceLock::new();
    PRIVATE.get_or_init(|| PrivateKey::from_pem(KEY).expect("the key can be read"))
}

fn store() -> &'static Store {
    static STORE: OnceLock<Store> = OnceLock::new();
    STORE.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a temporary directory");
        fs::write(directory.path().join("key.pem"), public()).expect("a file");
        let trust = Trust { trusted_keys: vec![directory.path().to_owned()], unsigned: None };
        Store { trust, _directory: directory }
    })
}
