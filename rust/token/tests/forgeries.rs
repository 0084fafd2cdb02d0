//! Tests that a token is accepted only unaltered, and only for the decision, checkpoint and tenant for which these keys
//! have signed it.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use proptest::prelude::*;
use scorer_token::{Claims, KeyFileError, KeyRing, Kind, MAX_TOKEN, Scope, Tenant, Token, TokenError};

const CHECKPOINT: &str = "action.authorise";

fn file(keys: &[(u32, u8)]) -> String {
    let keys: Vec<_> = keys
        .iter()
        .map(|(id, byte)| format!(r#"{{"id":"{id:08x}","secret":"{}"}}"#, format!("{byte:02x}").repeat(32)))
        .collect();
    format!(r#"{{"keys":[{}]}}"#, keys.join(","))
}

fn ring(keys: &[(u32, u8)]) -> KeyRing {
    KeyRing::from_json(file(keys).as_bytes()).unwrap()
}

fn claims() -> Claims {
    Claims {
        kind: Kind::Action,
        fallback: false,
        decided_at_ms: 1_795_400_000_123,
        bundle: *b"\x01\x02\x03\x04\x05\x06\x07\x08",
        index: 4095,
        propensity: 0.012_345_678_9,
    }
}

fn scope(tenant: &str) -> Scope<'_> {
    Scope::new(CHECKPOINT, Tenant::named(tenant.as_bytes()))
}

fn token(ring: &KeyRing, id: &str) -> Vec<u8> {
    ring.sign(&claims(), &scope("shop"), id).unwrap().as_bytes().to_vec()
}

/// Fault case 78.
#[test]
fn a_token_that_is_altered_in_any_bit_is_refused() {
    let ring = ring(&[(1, 1), (2, 2)]);
    let genuine = token(&ring, "order-1");
    let verified = ring.verify(&genuine, &scope("shop"), "order-1").unwrap();
    assert_eq!((verified.claims, verified.decision_id), (claims(), "order-1"));
    for bit in 0..genuine.len() * 8 {
        let mut forged = genuine.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert!(ring.verify(&forged, &scope("shop"), "order-1").is_err(), "bit {bit}");
    }
    for end in 0..genuine.len() {
        assert!(ring.verify(&genuine[..end], &scope("shop"), "order-1").is_err(), "cut at {end}");
    }
    let longer = [&genuine[..], b"x"].concat();
    assert!(ring.verify(&longer, &scope("shop"), "order-1").is_err());
}

/// Fault case 78.
#[test]
fn a_token_is_refused_outside_its_tenant_checkpoint_and_decision() {
    let ring = ring(&[(1, 1)]);
    let genuine = token(&ring, "order-1");
    let verify = |scope: &Scope<'_>, id: &str| ring.verify(&genuine, scope, id).map(|_| ());
    assert_eq!(verify(&scope("shop"), "order-1"), Ok(()));
    assert_eq!(verify(&scope("other"), "order-1"), Err(TokenError::Tenant));
    assert_eq!(verify(&scope(""), "order-1"), Err(TokenError::Tenant));
    let elsewhere = Scope::new("action.retry", Tenant::named(b"shop"));
    assert_eq!(verify(&elsewhere, "order-1"), Err(TokenError::Checkpoint));
    assert_eq!(verify(&scope("shop"), "order-2"), Err(TokenError::Decision));
    // The names are signed in full, so equal fingerprints are not enough.
    let same_print =
        Scope { checkpoint: "action.authorisf", ..Scope::new(CHECKPOINT, Tenant::named(b"shop")) };
    assert_eq!(verify(&same_print, "order-1"), Err(TokenError::Signature));
}

/// Fault case 78.
#[test]
fn a_key_verifies_for_as_long_as_it_is_in_the_file() {
    let before = ring(&[(1, 1)]);
    let old = token(&before, "d");
    for (keys, expected) in [
        (&[(1, 1), (2, 2)][..], Ok(())),
        (&[(2, 2), (1, 1)], Ok(())),
        (&[(2, 2)], Err(TokenError::Key(1))),
        // Another secret with the id of the old key.
        (&[(1, 3)], Err(TokenError::Signature)),
    ] {
        assert_eq!(ring(keys).verify(&old, &scope("shop"), "d").map(|_| ()), expected, "{keys:?}");
    }
    let both = ring(&[(2, 2), (1, 1)]);
    assert_eq!(Token::read(&token(&both, "d")).unwrap().key_id, 2, "the first key signs");
}

#[test]
fn a_token_is_within_its_length_limits() {
    let ring = ring(&[(1, 1)]);
    assert_eq!(token(&ring, &"x".repeat(64)).len(), MAX_TOKEN);
    const { assert!(MAX_TOKEN <= 120) };
    assert!(ring.sign(&claims(), &scope("shop"), &"x".repeat(65)).is_none());
    assert!(ring.sign(&claims(), &scope("shop"), "").is_none());
}

#[test]
fn an_incomplete_key_file_is_refused() {
    let whole = file(&[(1, 1), (2, 2)]);
    for end in 0..whole.len() {
        assert!(
            matches!(KeyRing::from_json(&whole.as_bytes()[..end]), Err(KeyFileError::Malformed(_))),
            "half written at {end}"
        );
    }
    let broken = |text: &str| KeyRing::from_json(text.as_bytes()).unwrap_err();
    assert_eq!(broken(r#"{"keys":[]}"#), KeyFileError::Count(0));
    let many: Vec<_> = (0..17).map(|at| (at, 1)).collect();
    assert_eq!(broken(&file(&many)), KeyFileError::Count(17));
    assert_eq!(broken(&file(&[(1, 1), (1, 2)])), KeyFileError::Repeated(1));
    assert_eq!(broken(&file(&[(1, 1)]).replace("0101", "01")), KeyFileError::Key(1));
    assert_eq!(broken(&file(&[(1, 0xab)]).replace("abab", "ABAB")), KeyFileError::Key(1));
    let typed = broken(&file(&[(1, 1)]).replace("secret", "sekret"));
    assert!(matches!(typed, KeyFileError::Malformed(_)));
    assert!(!typed.to_string().contains("0101"), "{typed}");
}

#[test]
fn no_secret_is_printed() {
    assert_eq!(format!("{:?}", ring(&[(0xabcd, 7)])), r#"["0000abcd"]"#);
}

proptest! {
    #[test]
    fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
        prop_assert!(ring(&[(1, 1)]).verify(&bytes, &scope("shop"), "d").is_err());
    }

    #[test]
    fn claims_are_decoded_unchanged(id in "[ -~]{1,64}", ms in 0_u64..1 << 48, index in 0_u32..1 << 24, p in any::<f64>()) {
        let ring = ring(&[(1, 1)]);
        let claims = Claims { decided_at_ms: ms, index, propensity: p, ..claims() };
        let signed = ring.sign(&claims, &scope("shop"), &id).unwrap();
        let token = ring.verify(signed.as_bytes(), &scope("shop"), &id).unwrap();
        prop_assert_eq!(token.claims.propensity.to_bits(), p.to_bits());
        prop_assert_eq!((token.claims.decided_at_ms, token.claims.index), (ms, index));
    }
}
