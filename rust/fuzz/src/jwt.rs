//! Signed tokens (JWT) and the issuer's key set.

use std::fs;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use scorer_identity::Grants;
use scorer_identity::jwt::Tokens;
use scorer_identity::tls::Reloaded;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The issuer of accepted tokens.
pub const ISSUER: &str = "https://issuer.example";
/// The audience of accepted tokens.
pub const AUDIENCE: &str = "scorer";

struct Verifier {
    tokens: Tokens,
    keys: TempDir,
    grants: Grants,
}

/// Tests the input. Its first byte selects the meaning of the rest: a complete token, a header and claims that are to
/// be signed, or a key set.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 3 {
        0 => as_sent(rest),
        1 => signed(rest),
        _ => key_set(rest),
    }
}

fn as_sent(data: &[u8]) {
    let Ok(token) = std::str::from_utf8(data) else { return };
    if let Ok(access) = issuer().access(token) {
        assert!(access.starts_with("jwt:"), "{access}");
    }
}

/// Signs a header and claims, which a zero byte separates. If the token is accepted, the conditions are checked again
/// with another JSON parser.
fn signed(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let (Some(header), Some(claims)) = (parts.next(), parts.next()) else { return };
    let Ok(access) = issuer().access(&token(header, claims)) else { return };
    let header: Value = serde_json::from_slice(header).expect("an accepted header is JSON");
    let claims: Value = serde_json::from_slice(claims).expect("accepted claims are JSON");
    assert_eq!(header["alg"], "EdDSA");
    assert!(header["crit"].is_null() && header["b64"].is_null());
    assert_eq!(claims["iss"], ISSUER);
    assert!(
        claims["aud"] == AUDIENCE
            || claims["aud"].as_array().is_some_and(|all| all.contains(&json!(AUDIENCE)))
    );
    assert!(claims["exp"].as_f64().is_some_and(|end| end > 1e9));
    assert_eq!(Some(access.as_str()), claims["sub"].as_str().map(|sub| format!("jwt:{sub}")).as_deref());
    assert!(access.len() <= 260 && access.bytes().all(|byte| byte.is_ascii_graphic()), "{access:?}");
}

/// Reads a key set and verifies a token of the issuer with it.
fn key_set(data: &[u8]) {
    static OTHER: OnceLock<Verifier> = OnceLock::new();
    let other = OTHER.get_or_init(Verifier::new);
    other.publish(data);
    if let Reloaded::Rejected(error) = other.tokens.reload() {
        assert!(!error.to_string().contains('\n'), "an error of several lines: {error}");
    }
    let _ = other.access(&token(HEADER, claims().to_string().as_bytes()));
}

/// The header of the issuer's tokens.
pub const HEADER: &[u8] = br#"{"alg":"EdDSA","kid":"ed"}"#;

/// The claims of the issuer's tokens.
pub fn claims() -> Value {
    json!({"iss": ISSUER, "sub": "checkout", "aud": AUDIENCE, "exp": 4_000_000_000_u64, "iat": 1_700_000_000})
}

/// The issuer's key set.
pub fn keys() -> Value {
    let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    json!({"keys": [
        {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "use": "sig", "x": text(pair().public_key().as_ref())},
        {"kty": "EC", "crv": "P-256", "kid": "ec", "alg": "ES256", "x": text(&[1; 32]), "y": text(&[2; 32])},
        {"kty": "RSA", "kid": "rsa", "n": text(&[0xc1; 256]), "e": "AQAB"},
    ]})
}

/// Returns a header and claims with the signature of the issuer.
pub fn token(header: &[u8], claims: &[u8]) -> String {
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(pair().sign(signed.as_bytes())))
}

fn pair() -> &'static Ed25519KeyPair {
    static PAIR: OnceLock<Ed25519KeyPair> = OnceLock::new();
    PAIR.get_or_init(|| Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a seed of 32 bytes"))
}

fn issuer() -> &'static Verifier {
    static ISSUER: OnceLock<Verifier> = OnceLock::new();
    ISSUER.get_or_init(Verifier::new)
}

// === impl Verifier ===

impl Verifier {
    fn new() -> Verifier {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let config = json!({"issuer": ISSUER, "audience": AUDIENCE, "algorithms": ["EdDSA", "ES256", "RS256"],
            "keys": directory.path().join("keys.json"), "max_bytes": 16384, "cache_tokens": 64});
        let tokens = Tokens::new(serde_json::from_value(config).expect("the configuration is valid"));
        let verifier = Verifier { tokens, keys: directory, grants: Grants::new(&[]) };
        verifier.publish(keys().to_string().as_bytes());
        assert_eq!(verifier.tokens.reload(), Reloaded::Replaced);
        verifier
    }

    fn publish(&self, keys: &[u8]) {
        fs::write(self.keys.path().join("keys.json"), keys).expect("a file");
    }

    fn access(&self, token: &str) -> Result<String, String> {
        let access = self.tokens.access(token, &self.grants).map_err(|error| error.to_string())?;
        Ok(access.principal().to_string())
    }
}
