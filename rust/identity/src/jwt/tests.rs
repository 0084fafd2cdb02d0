use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::grants::{GrantConfig, Grants, Role};
use crate::tls::Reloaded;

const NOW: u64 = 1_900_000_000;

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// An issuer with a key of each kind that ring can make, and the server's side.
struct Issuer {
    directory: TempDir,
    ed: Ed25519KeyPair,
    ec: EcdsaKeyPair,
    tokens: Tokens,
    grants: Grants,
}

impl Issuer {
    fn new() -> Issuer {
        Issuer::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut Value)) -> Issuer {
        let directory = tempfile::tempdir().unwrap();
        let random = SystemRandom::new();
        let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let ed = Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap();
        let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let ec = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, ec.as_ref(), &random).unwrap();
        let mut config = json!({"issuer": "https://issuer.example", "audience": "scorer",
            "algorithms": ["EdDSA", "ES256"], "keys": directory.path().join("keys.json"), "max_bytes": 4096});
        change(&mut config);
        let grants: Vec<GrantConfig> =
            serde_json::from_value(json!([{"principal": "jwt:checkout", "roles": ["score"]}])).unwrap();
        let tokens = Tokens::new(serde_json::from_value(config).unwrap());
        let issuer = Issuer { directory, ed, ec, tokens, grants: Grants::new(&grants) };
        issuer.publish(&issuer.keys());
        assert_eq!(issuer.tokens.reload(), Reloaded::Replaced);
        issuer
    }

    fn keys(&self) -> Value {
        let point = self.ec.public_key().as_ref();
        json!({"keys": [
            {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": encode(self.ed.public_key()), "use": "sig"},
            {"kty": "EC", "crv": "P-256", "kid": "ec", "x": encode(&point[1..33]), "y": encode(&point[33..])},
            {"kty": "oct", "kid": "shared", "k": "c2VjcmV0"},
            {"kty": "OKP", "crv": "Ed25519", "kid": "secret", "x": encode(self.ed.public_key()), "use": "enc"},
        ]})
    }

    fn publish(&self, keys: &Value) {
        fs::write(self.directory.path().join("keys.json"), keys.to_string()).unwrap();
    }

    fn signed(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", encode(header), encode(claims));
        let signature = if header.contains("ES256") {
            self.ec.sign(&SystemRandom::new(), signed.as_bytes()).unwrap().as_ref().to_vec()
        } else {
            self.ed.sign(signed.as_bytes()).as_ref().to_vec()
        };
        format!("{signed}.{}", encode(signature))
    }

    fn token(&self, change: impl FnOnce(&mut Value)) -> String {
        let mut claims = claims();
        change(&mut claims);
        self.signed(r#"{"alg":"EdDSA","kid":"ed","typ":"JWT"}"#, &claims.to_string())
    }

    fn check(&self, token: &str) -> Result<String, &'static str> {
        self.tokens.access_at(token, &self.grants, at(NOW)).map(|access| access.principal().to_string())
    }
}

fn claims() -> Value {
    json!({"iss": "https://issuer.example", "sub": "checkout", "aud": "scorer", "exp": NOW + 300, "iat": NOW - 5})
}

#[test]
fn a_token_of_the_issuer_names_its_subject() {
    let issuer = Issuer::new();
    assert_eq!(issuer.check(&issuer.token(|_| ())).unwrap(), "jwt:checkout");
    let by_ec = issuer.signed(r#"{"alg":"ES256","kid":"ec"}"#, &claims().to_string());
    assert_eq!(issuer.check(&by_ec).unwrap(), "jwt:checkout");
    let several = issuer.token(|claims| claims["aud"] = json!(["other", "scorer"]));
    let access = issuer.tokens.access_at(&several, &issuer.grants, at(NOW)).unwrap();
    assert!(access.check(Role::Score).is_ok() && access.check(Role::Select).is_err());
}

/// Fault case 48.
#[test]
fn forged_and_unfit_tokens_are_refused_for_their_reason() {
    let issuer = Issuer::new();
    let plain = |header: &str| format!("{}.{}.", encode(header), encode(claims().to_string()));
    // The public key as the secret of an HMAC: what a verifier accepts that lets the token choose.
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, issuer.ed.public_key().as_ref());
    let signed = format!("{}.{}", encode(r#"{"alg":"HS256","kid":"ed"}"#), encode(claims().to_string()));
    let hs256 = format!("{signed}.{}", encode(ring::hmac::sign(&key, signed.as_bytes())));
    let header = r#"{"alg":"EdDSA","kid":"ed"}"#;
    let twice = |from: &str, to: &str| issuer.signed(header, &claims().to_string().replacen(from, to, 1));
    let good = issuer.token(|_| ());
    let (rest, signature) = good.rsplit_once('.').unwrap();
    for (token, says) in [
        (plain(r#"{"alg":"none"}"#), "algorithm"),
        (plain(r#"{"alg":"None","kid":"ed"}"#), "algorithm"),
        (hs256, "algorithm"),
        (issuer.signed(r#"{"alg":"EdDSA","kid":"shared"}"#, &claims().to_string()), "kid"),
        (issuer.signed(r#"{"alg":"EdDSA","kid":"secret"}"#, &claims().to_string()), "kid"),
        (issuer.signed(r#"{"alg":"EdDSA","kid":"unknown"}"#, &claims().to_string()), "kid"),
        (issuer.signed(r#"{"alg":"EdDSA"}"#, &claims().to_string()), "kid"),
        (issuer.signed(r#"{"alg":"ES256","kid":"ed"}"#, &claims().to_string()), "another kind"),
        (issuer.signed(r#"{"alg":"EdDSA","kid":"ed","crit":["exp"]}"#, &claims().to_string()), "extension"),
        (issuer.signed(r#"{"alg":"EdDSA","kid":"ed","b64":false}"#, &claims().to_string()), "extension"),
        (issuer.signed(r#"{"alg":"EdDSA","alg":"none","kid":"ed"}"#, &claims().to_string()), "header"),
        (issuer.token(|claims| claims["exp"] = json!(NOW - 11)), "expired"),
        (issuer.token(|claims| claims["exp"] = json!("4000000000")), "claims"),
        (issuer.token(|claims| claims["exp"] = json!(null)), "claims"),
        (issuer.token(|claims| _ = claims.as_object_mut().unwrap().remove("exp")), "claims"),
        (issuer.token(|claims| claims["nbf"] = json!(NOW + 60)), "not valid yet"),
        (issuer.token(|claims| claims["nbf"] = json!("0")), "claims"),
        (issuer.token(|claims| claims["iat"] = json!(NOW + 60)), "not valid yet"),
        (issuer.token(|claims| claims["aud"] = json!("scorer2")), "audience"),
        (issuer.token(|claims| claims["aud"] = json!([])), "audience"),
        (issuer.token(|claims| claims["iss"] = json!("https://issuer.example/")), "issuer"),
        (issuer.token(|claims| claims["sub"] = json!("")), "sub"),
        (issuer.token(|claims| claims["sub"] = json!("a\nb")), "sub"),
        (issuer.token(|claims| claims["sub"] = json!("x".repeat(257))), "sub"),
        (twice(r#""sub":"checkout""#, r#""sub":"checkout","sub":"ops""#), "given twice"),
        (twice(r#""aud":"scorer""#, r#""aud":"scorer","aud":"scorer""#), "given twice"),
        (issuer.token(|claims| claims["more"] = json!("x".repeat(64 << 10))), "longer"),
        (format!("{rest}."), "signature"),
        (format!("{rest}.{}", encode([0; 64])), "signature"),
        (format!("{rest}.{signature}="), "form"),
        (format!("{good}.a"), "form"),
        (String::new(), "form"),
        ("a".to_owned(), "form"),
        ("..".to_owned(), "header"),
        ("e30.e30.".to_owned(), "header"),
    ] {
        let error = issuer.check(&token).unwrap_err();
        assert!(error.contains(says), "{says:?} not in {error:?} for {}", &token[..token.len().min(80)]);
    }
}

/// Fault case 48.
#[test]
fn a_token_altered_in_any_character_is_refused() {
    let issuer = Issuer::new();
    let good = issuer.token(|_| ());
    for at in 0..good.len() {
        let mut altered = good.clone().into_bytes();
        altered[at] = if altered[at] == b'A' { b'B' } else { b'A' };
        let altered = String::from_utf8(altered).unwrap();
        assert!(issuer.check(&altered).is_err(), "character {at}");
    }
}

#[test]
fn clocks_may_differ_by_the_leeway_and_no_more() {
    let issuer = Issuer::new();
    assert!(issuer.check(&issuer.token(|claims| claims["exp"] = json!(NOW - 9))).is_ok());
    assert!(issuer.check(&issuer.token(|claims| claims["exp"] = json!(NOW - 10))).is_err());
    assert!(issuer.check(&issuer.token(|claims| claims["nbf"] = json!(NOW + 10))).is_ok());
    assert!(issuer.check(&issuer.token(|claims| claims["nbf"] = json!(NOW + 11))).is_err());
}

#[test]
fn a_verified_token_is_verified_again_once_the_keys_change() {
    let issuer = Issuer::new();
    let token = issuer.token(|_| ());
    for _ in 0..10 {
        issuer.check(&token).unwrap();
    }
    assert_eq!(issuer.tokens.verified(), 1);
    let mut keys = issuer.keys();
    keys["keys"].as_array_mut().unwrap().remove(0);
    issuer.publish(&keys);
    assert_eq!(issuer.tokens.reload(), Reloaded::Replaced);
    assert!(issuer.check(&token).unwrap_err().contains("kid"), "its key was withdrawn");
}

#[test]
fn remembered_tokens_are_bounded() {
    let issuer = Issuer::with(|config| config["cache_tokens"] = json!(64));
    for number in 0..400 {
        issuer.check(&issuer.token(|claims| claims["jti"] = json!(number))).unwrap();
    }
    assert!(issuer.tokens.remembered() <= 64, "{}", issuer.tokens.remembered());
}

/// Fault case 49.
#[test]
fn keys_are_used_until_they_are_too_old_and_a_broken_set_changes_nothing() {
    let issuer = Issuer::with(|config| config["max_age_s"] = json!(3600));
    let path = issuer.directory.path().join("keys.json");
    let written = |ago: u64| {
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(at(NOW - ago)).unwrap();
        issuer.tokens.reload();
    };
    written(3599);
    let token = issuer.token(|_| ());
    assert!(issuer.check(&token).is_ok());
    fs::write(&path, "<html>issuer is away</html>").unwrap();
    assert!(matches!(issuer.tokens.reload(), Reloaded::Rejected(_)));
    assert!(issuer.check(&token).is_ok(), "the set before is in use");
    fs::write(&path, format!(r#"{{"keys": "{}"}}"#, "a".repeat(40_000))).unwrap();
    let Reloaded::Rejected(error) = issuer.tokens.reload() else { panic!("it is no key set") };
    assert!(error.to_string().len() < 500, "the text is not repeated");
    fs::remove_file(&path).unwrap();
    assert!(matches!(issuer.tokens.reload(), Reloaded::Rejected(_)));
    assert_eq!(issuer.tokens.reload(), Reloaded::Unchanged, "reported once");
    assert!(issuer.check(&token).is_ok());
    issuer.publish(&issuer.keys());
    written(3601);
    let error = issuer.check(&token).unwrap_err();
    assert!(error.contains("too old"), "{error}");
    written(0);
    assert!(issuer.check(&token).is_ok(), "the issuer is back");
}

#[test]
fn without_keys_every_token_is_refused() {
    let issuer = Issuer::new();
    let config =
        json!({"issuer": "a", "audience": "b", "algorithms": ["EdDSA"], "keys": "/nonexistent/keys.json"});
    let tokens = Tokens::new(serde_json::from_value(config).unwrap());
    assert!(matches!(tokens.reload(), Reloaded::Rejected(_)));
    assert!(tokens.keys().expired);
    assert!(tokens.access_at(&issuer.token(|_| ()), &issuer.grants, at(NOW)).is_err());
}
