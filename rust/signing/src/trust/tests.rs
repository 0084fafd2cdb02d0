use std::time::Duration;

use super::*;
use crate::envelope::sign;
use crate::key::PrivateKey;

const NAME: &str = "fraud-checkout";
/// A P-256 key as `openssl genpkey` writes it.
const P256: &str = include_str!("testdata/p256.pem");
/// An Ed25519 key as `openssl genpkey` writes it, and the public key that openssl derives.
const ED25519: &str = include_str!("testdata/ed25519.pem");
const ED25519_PUBLIC: &str = include_str!("testdata/ed25519.pub.pem");

struct Store {
    directory: tempfile::TempDir,
}

impl Store {
    fn new() -> Store {
        Store { directory: tempfile::tempdir().unwrap() }
    }

    /// Trusts a key under a file name.
    fn put(&self, file: &str, key: &PrivateKey, not_after: Option<&str>) {
        self.write(file, &key.public(not_after).unwrap().to_pem());
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.directory.path().join(file), text).unwrap();
    }

    fn trust(&self) -> Trust {
        Trust { trusted_keys: vec![self.directory.path().to_owned()], unsigned: None }
    }
}

fn key() -> PrivateKey {
    PrivateKey::from_pem(&PrivateKey::generate_pem().unwrap()).unwrap()
}

fn digest() -> Digest {
    Digest::of(b"a bundle")
}

fn envelope(release: u64, keys: &[PrivateKey]) -> String {
    sign(NAME, &digest(), release, keys, SystemTime::now()).unwrap()
}

fn verify(trust: &Trust, envelope: &str) -> Result<Option<Signed>, SignatureError> {
    verify_at(trust, envelope, &Floors::new(), false, SystemTime::now())
}

fn verify_at(
    trust: &Trust,
    envelope: &str,
    floors: &Floors,
    known: bool,
    now: SystemTime,
) -> Result<Option<Signed>, SignatureError> {
    trust.verify(
        Some(envelope.as_bytes()),
        &Verification { digest: &digest(), name: None, floors, known, now },
    )
}

fn later() -> SystemTime {
    SystemTime::now() + Duration::from_secs(3600 * 24 * 365 * 40)
}

/// Fault case 55.
#[test]
fn a_trusted_keys_signature_is_accepted_and_tells_what_was_signed() {
    let (store, signer) = (Store::new(), key());
    store.put("a.pem", &signer, None);
    let signed = verify(&store.trust(), &envelope(7, std::slice::from_ref(&signer))).unwrap().unwrap();
    assert_eq!((signed.name.as_str(), signed.release, signed.key), (NAME, 7, signer.id()));
}

#[test]
fn keys_of_openssl_of_both_kinds_sign_and_verify() {
    let store = Store::new();
    let (ed25519, p256) = (PrivateKey::from_pem(ED25519).unwrap(), PrivateKey::from_pem(P256).unwrap());
    store.write("a.pem", ED25519_PUBLIC);
    store.put("b.pem", &p256, None);
    assert_eq!(PublicKey::from_pem(ED25519_PUBLIC).unwrap().id, ed25519.id());
    for signer in [ed25519, p256] {
        let signed = verify(&store.trust(), &envelope(1, std::slice::from_ref(&signer))).unwrap().unwrap();
        assert_eq!(signed.key, signer.id());
    }
}

/// Fault case 55.
#[test]
fn a_missing_signature_is_refused_once_a_key_is_configured() {
    let store = Store::new();
    let wanted = Verification {
        digest: &digest(),
        name: None,
        floors: &Floors::new(),
        known: false,
        now: SystemTime::now(),
    };
    // Even where no key is left: an emptied directory must not open the door.
    assert_eq!(store.trust().verify(None, &wanted), Err(SignatureError::Missing));
    assert_eq!(Trust::default().verify(None, &wanted), Ok(None));
    let allowed = Trust { unsigned: Some(Unsigned::Allow), ..store.trust() };
    assert_eq!(allowed.verify(None, &wanted), Ok(None));
    let refused = Trust { unsigned: Some(Unsigned::Refuse), ..Trust::default() };
    assert_eq!(refused.verify(None, &wanted), Err(SignatureError::Missing));
}

/// Fault case 55.
#[test]
fn every_altered_byte_of_an_envelope_is_refused() {
    let (store, signer) = (Store::new(), key());
    store.put("a.pem", &signer, None);
    let whole = envelope(7, std::slice::from_ref(&signer));
    let truth = verify(&store.trust(), &whole).unwrap().unwrap();
    for at in 0..whole.len() {
        for bit in [0x01, 0x20] {
            let mut bytes = whole.clone().into_bytes();
            bytes[at] ^= bit;
            let verification = Verification {
                digest: &digest(),
                name: None,
                floors: &Floors::new(),
                known: false,
                now: SystemTime::now(),
            };
            // A change that leaves the meaning alone (white space) may be accepted; another meaning never is.
            if let Ok(found) = store.trust().verify(Some(&bytes), &verification) {
                assert_eq!(found.unwrap(), truth, "byte {at}");
            }
        }
    }
}

/// Fault case 55.
#[test]
fn another_key_and_another_bundle_are_refused() {
    let (store, signer, stranger) = (Store::new(), key(), key());
    store.put("a.pem", &signer, None);
    let error =
        verify(&store.trust(), &envelope(7, std::slice::from_ref(&stranger))).unwrap_err().to_string();
    assert!(error.contains(&stranger.id()) && error.contains(&signer.id()), "{error}");
    // A stranger who claims the trusted key's id.
    let forged = envelope(7, std::slice::from_ref(&stranger)).replace(&stranger.id(), &signer.id());
    assert_eq!(verify(&store.trust(), &forged), Err(SignatureError::Mismatch { key: signer.id() }));
    let other = sign(NAME, &Digest::of(b"another"), 7, &[signer], SystemTime::now()).unwrap();
    assert!(matches!(verify(&store.trust(), &other), Err(SignatureError::OtherBundle { .. })));
    // Signed for another alias: a person who can move aliases must not be able to exchange models.
    let text = envelope(7, &[PrivateKey::from_pem(ED25519).unwrap()]);
    store.write("b.pem", ED25519_PUBLIC);
    let at = |name| {
        let (digest, floors, now) = (digest(), Floors::new(), SystemTime::now());
        let wanted = Verification { digest: &digest, name: Some(name), floors: &floors, known: false, now };
        store.trust().verify(Some(text.as_bytes()), &wanted)
    };
    assert!(at(NAME).is_ok());
    assert!(matches!(at("action"), Err(SignatureError::OtherName { .. })));
}

/// Fault case 55.
#[test]
fn an_expired_key_signs_nothing_new_and_what_is_known_stays() {
    let (store, signer) = (Store::new(), key());
    store.put("a.pem", &signer, Some("2030-01-01T00:00:00Z"));
    let text = envelope(7, std::slice::from_ref(&signer));
    assert!(verify(&store.trust(), &text).is_ok());
    let error = verify_at(&store.trust(), &text, &Floors::new(), false, later()).unwrap_err();
    assert_eq!(
        error,
        SignatureError::ExpiredKey { key: signer.id(), not_after: "2030-01-01T00:00:00Z".to_owned() }
    );
    assert!(verify_at(&store.trust(), &text, &Floors::new(), true, later()).is_ok());
}

#[test]
fn two_keys_rotate_without_a_gap() {
    let (store, old, new) = (Store::new(), key(), key());
    store.put("old.pem", &old, None);
    let before = envelope(7, std::slice::from_ref(&old));
    store.put("new.pem", &new, None);
    let new_id = new.id();
    let both = envelope(8, &[old, new]);
    assert!(verify(&store.trust(), &before).is_ok() && verify(&store.trust(), &both).is_ok());
    fs::remove_file(store.directory.path().join("old.pem")).unwrap();
    assert!(matches!(verify(&store.trust(), &before), Err(SignatureError::Untrusted { .. })));
    assert_eq!(verify(&store.trust(), &both).unwrap().unwrap().key, new_id);
}

/// Fault case 57.
#[test]
fn a_release_below_the_floor_of_its_name_is_refused() {
    let (store, signer) = (Store::new(), key());
    store.put("a.pem", &signer, None);
    let text = envelope(7, std::slice::from_ref(&signer));
    let at = |name: &str, floor| {
        let floors = Floors::from([(name.to_owned(), floor)]);
        verify_at(&store.trust(), &text, &floors, false, SystemTime::now())
    };
    assert!(at(NAME, 7).is_ok() && at("another", 9).is_ok());
    assert_eq!(at(NAME, 8), Err(SignatureError::Older { name: NAME.to_owned(), release: 7, floor: 8 }));
}

#[test]
fn key_files_that_cannot_be_used_are_named_and_do_not_spoil_the_others() {
    let (store, signer) = (Store::new(), key());
    let whole = signer.public(None).unwrap().to_pem();
    let text = envelope(7, std::slice::from_ref(&signer));
    for broken in ["", &whole[..whole.len() / 2], "Not-After: soon\n", "\u{0}"] {
        store.write("a.pem", broken);
        let error = verify(&store.trust(), &text).unwrap_err().to_string();
        assert!(error.contains("a.pem") && !error.contains('\n'), "{error}");
        store.put("b.pem", &signer, None);
        assert!(verify(&store.trust(), &text).is_ok());
        fs::remove_file(store.directory.path().join("b.pem")).unwrap();
    }
    let absent = Trust { trusted_keys: vec![PathBuf::from("/nonexistent/keys")], unsigned: None };
    assert!(verify(&absent, &text).unwrap_err().to_string().contains("/nonexistent/keys"));
    for number in 0..=MAX_KEYS {
        store.put(&format!("{number}.pem"), &signer, None);
    }
    assert!(verify(&store.trust(), &text).unwrap_err().to_string().contains("more than 64"));
}

#[test]
fn hostile_envelopes_are_refused_in_one_line() {
    let (store, signer) = (Store::new(), key());
    store.put("a.pem", &signer, None);
    let whole = envelope(7, std::slice::from_ref(&signer));
    let nested = "[".repeat(40_000);
    let lines = format!(r#"{{"a\nb{}": 0}}"#, "c".repeat(40_000));
    for text in [
        "",
        "{}",
        "null",
        &nested,
        &lines,
        &whole.replace("payload\"", "payl\""),
        &whole.replace("in-toto", "jwt"),
    ] {
        let error = verify(&store.trust(), text).unwrap_err().to_string();
        assert!(error.starts_with("signature.json: ") && !error.contains('\n'), "{error}");
        assert!(error.len() < 200, "{} characters", error.len());
    }
}
