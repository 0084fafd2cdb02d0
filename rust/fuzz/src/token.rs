//! Decision tokens and their key file.

use scorer_token::{Claims, KeyRing, Kind, Scope, Tenant, Token};

/// The key file of the keys that sign and verify.
pub const KEYS: &str = r#"{"keys": [
    {"id": "00000001", "secret": "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"},
    {"id": "00000002", "secret": "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"}]}"#;
/// The checkpoint of every token.
pub const CHECKPOINT: &str = "action.authorise";
/// The bytes between a token and the id of the reported decision.
const REPORTED: &[u8] = b"\0\0";

/// Reads a key file. Reads a token, verifies it for the reported decision, and signs its claims again. Checks that the
/// signed token verifies, and that it does not after a change of one bit.
pub fn run(data: &[u8]) {
    if let Err(error) = KeyRing::from_json(data) {
        assert!(!error.to_string().contains('\n'), "an error of several lines: {error}");
    }
    let ring = KeyRing::from_json(KEYS.as_bytes()).expect("the key file is valid");
    let scope = Scope::new(CHECKPOINT, Tenant::named(b"shop"));
    let end = data.windows(REPORTED.len()).rposition(|window| window == REPORTED).unwrap_or(data.len());
    let (token, reported) = data.split_at(end);
    let reported = String::from_utf8_lossy(reported.get(REPORTED.len()..).unwrap_or_default());
    if let Ok(verified) = ring.verify(token, &scope, &reported) {
        assert!(verified.claims.covers(verified.decision_id, &reported));
    }
    if let Ok(read) = Token::read(token) {
        round_trip(&ring, &scope, &read, token.iter().map(|byte| usize::from(*byte)).sum());
    }
}

fn round_trip(ring: &KeyRing, scope: &Scope<'_>, read: &Token<'_>, at: usize) {
    let signed = ring.sign(&read.claims, scope, read.decision_id).expect("an id that was read can be signed");
    let reported = match read.claims.kind {
        Kind::Batch if read.claims.index == 0 => return,
        Kind::Batch => format!("{}/{}", read.decision_id, read.claims.index - 1),
        Kind::Score | Kind::Action => read.decision_id.to_owned(),
    };
    let again = ring.verify(signed.as_bytes(), scope, &reported).expect("a token that was signed verifies");
    assert_eq!(bits(&again.claims), bits(&read.claims));
    assert_eq!(again.decision_id, read.decision_id);
    let mut altered = signed.as_bytes().to_vec();
    let bit = at % (altered.len() * 8);
    altered[bit / 8] ^= 1 << (bit % 8);
    assert!(ring.verify(&altered, scope, &reported).is_err(), "a token with an altered bit verifies");
}

/// The claims as values that can be compared even if the propensity is NaN.
fn bits(claims: &Claims) -> (u8, bool, u64, [u8; 8], u32, u64) {
    let Claims { kind, fallback, decided_at_ms, bundle, index, propensity } = *claims;
    (kind as u8, fallback, decided_at_ms, bundle, index, propensity.to_bits())
}
