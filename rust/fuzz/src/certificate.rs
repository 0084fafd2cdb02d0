//! Certificates: the principal that a certificate names, and the PEM files of TLS.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use scorer_identity::authority::{Authority, Request};
use scorer_identity::tls::{Reloaded, ServerTls, certificates};
use scorer_identity::{Identity, IdentityConfig};
use serde_json::json;
use tempfile::TempDir;

/// The trust domain that certificates must belong to.
pub const DOMAIN: &str = "example.org";
const DAY: Duration = Duration::from_secs(86_400);

/// Tests the input. Its first byte selects the meaning of the rest: a certificate (DER), the value of the extension
/// subjectAltName, the text of a SPIFFE id, or one of the four files of a listener.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 7 {
        0 => principal(rest),
        1 => principal(&with_names(rest)),
        2 => principal(&with_names(&tlv(0x30, &[&tlv(0x86, &[rest])]))),
        file => reload(usize::from(file - 3), rest),
    }
}

/// Determines the principal of a certificate. Checks that it is an id of the trust domain or a host.
fn principal(der: &[u8]) {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    let identity = IDENTITY.get_or_init(|| {
        let config = json!({"trust_domain": DOMAIN, "grants": []});
        Identity::new(&serde_json::from_value::<IdentityConfig>(config).expect("the configuration is valid"))
    });
    let Ok(access) = identity.of_certificate(&CertificateDer::from(der)) else { return };
    let name = access.principal().as_str();
    let path = name.strip_prefix("spiffe://example.org/");
    let host = name.strip_prefix("dns:").filter(|host| !host.bytes().any(|byte| byte.is_ascii_uppercase()));
    assert!(path.or(host).is_some_and(|rest| !rest.is_empty()), "{name:?}");
    assert!(name.len() <= 257 && name.bytes().all(|byte| byte.is_ascii_graphic()), "{name:?}");
    assert!(!name.split('/').any(|segment| segment == ".."), "{name:?}");
}

/// Replaces one file of a listener and reloads it. The file is used or rejected.
fn reload(file: usize, content: &[u8]) {
    static LISTENERS: OnceLock<[Mutex<Listener>; 4]> = OnceLock::new();
    let listeners = LISTENERS.get_or_init(|| std::array::from_fn(|file| Mutex::new(Listener::new(file))));
    let listener = listeners[file].lock().unwrap_or_else(PoisonError::into_inner);
    fs::write(&listener.file, content).expect("a file");
    if let Reloaded::Rejected(error) = listener.tls.reload() {
        assert!(!error.to_string().contains('\n'), "an error of several lines: {error}");
    }
    let _ = certificates(content);
}

struct Listener {
    tls: ServerTls,
    /// The file that is replaced.
    file: PathBuf,
    _directory: TempDir,
}

// === impl Listener ===

impl Listener {
    fn new(file: usize) -> Listener {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let paths = FILES.map(|name| directory.path().join(name));
        for (path, content) in paths.iter().zip(files()) {
            fs::write(path, content).expect("a file");
        }
        let [certificate, key, authority, revoked] = &paths;
        let config =
            json!({"certificate": certificate, "key": key, "client_ca": authority, "crl": [revoked]});
        let tls = ServerTls::new(serde_json::from_value(config).expect("the configuration is valid"))
            .expect("the files can be used");
        Listener { tls, file: paths[file].clone(), _directory: directory }
    }
}

/// The files of a listener, in the order of their numbers in the first byte of an input.
pub const FILES: [&str; 4] = ["certificate.pem", "key.pem", "authority.pem", "revoked.pem"];

/// The initial contents of the files.
pub fn files() -> [String; 4] {
    let authority = Authority::new("fuzz", 2).expect("an authority");
    let request = Request::of("spiffe://example.org/server", &["localhost"], 1);
    let issued = authority.issue(&request).expect("a certificate");
    let revoked = authority.revoke(&[7], 1, SystemTime::now() + DAY).expect("a revocation list");
    [issued.certificate, issued.key, authority.pem(), revoked]
}

/// Returns a certificate whose extension subjectAltName contains `names`. It has no valid signature, because principals
/// are determined from certificates that TLS has already verified.
pub fn with_names(names: &[u8]) -> Vec<u8> {
    let algorithm = tlv(0x30, &[&tlv(0x06, &[&[0x2b, 0x65, 0x70]])]);
    let time = tlv(0x17, &[b"300101000000Z"]);
    let name = tlv(0x30, &[]);
    let key = tlv(0x30, &[&algorithm, &tlv(0x03, &[&[0; 33]])]);
    let extension = tlv(0x30, &[&tlv(0x06, &[&[0x55, 0x1d, 0x11]]), &tlv(0x04, &[names])]);
    let extensions = tlv(0xa3, &[&tlv(0x30, &[&extension])]);
    let version = tlv(0xa0, &[&tlv(0x02, &[&[2]])]);
    let serial = tlv(0x02, &[&[1]]);
    let validity = tlv(0x30, &[&time, &time]);
    let body = tlv(0x30, &[&version, &serial, &algorithm, &name, &validity, &name, &key, &extensions]);
    tlv(0x30, &[&body, &algorithm, &tlv(0x03, &[&[0; 65]])])
}

/// Encodes a tag, a length and the parts in DER.
pub fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut bytes = vec![tag];
    match content.len() {
        short @ 0..=127 => bytes.push(short as u8),
        long => {
            let length = long.to_be_bytes();
            let digits = &length[length.iter().take_while(|byte| **byte == 0).count()..];
            bytes.push(0x80 | digits.len() as u8);
            bytes.extend(digits);
        }
    }
    bytes.extend(content);
    bytes
}
