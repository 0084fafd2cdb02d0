use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tempfile::TempDir;

use super::*;
use crate::authority::{Authority, Issued, Request};

const SERVER: &str = "spiffe://example.org/server";
const HOUR: Duration = Duration::from_secs(3600);

/// A directory with the files of a server, and the authority that issued them.
struct Files {
    directory: TempDir,
    authority: Authority,
}

impl Files {
    fn new() -> Files {
        let files =
            Files { directory: tempfile::tempdir().unwrap(), authority: Authority::new("a", 1).unwrap() };
        files.write("ca.pem", &files.authority.pem());
        files.issue_server();
        files.write("crl.pem", &files.authority.revoke(&[7], 1, SystemTime::now() + HOUR).unwrap());
        files
    }

    fn issue_server(&self) -> Issued {
        let issued = self.authority.issue(&Request::of(SERVER, &["localhost"], 1)).unwrap();
        self.write("server.pem", &issued.certificate);
        self.write("server.key", &issued.key);
        issued
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn config(&self) -> ServerTlsConfig {
        let path = |name: &str| self.path(name).to_str().unwrap().to_owned();
        serde_json::from_value(serde_json::json!({
            "certificate": path("server.pem"), "key": path("server.key"), "client_ca": path("ca.pem"),
            "crl": [path("crl.pem")],
        }))
        .unwrap()
    }

    fn start(&self) -> ServerTls {
        ServerTls::new(self.config()).unwrap()
    }

    fn client(&self, change: impl FnOnce(&mut Request)) -> CertificateDer<'static> {
        let mut request = Request::of("spiffe://example.org/checkout", &[], 1);
        request.serial = 5;
        change(&mut request);
        der(&self.authority.issue(&request).unwrap())
    }
}

fn der(issued: &Issued) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()
}

fn rejected(tls: &ServerTls) -> String {
    match tls.reload() {
        Reloaded::Rejected(error) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Fault case 46.
#[test]
fn files_that_cannot_be_used_leave_those_in_use() {
    let files = Files::new();
    let tls = files.start();
    let first = tls.current();
    assert_eq!(tls.reload(), Reloaded::Unchanged);

    let whole = fs::read_to_string(files.path("server.pem")).unwrap();
    files.write("server.pem", &whole[..whole.len() / 2]);
    assert!(rejected(&tls).contains("cut off"), "{}", rejected(&tls));
    assert_eq!(tls.reload(), Reloaded::Unchanged, "reported once for each content");
    files.write("server.pem", "");
    assert!(rejected(&tls).contains("holds no certificate"));
    let other = files.authority.issue(&Request::of(SERVER, &["localhost"], 1)).unwrap();
    files.write("server.pem", &other.certificate);
    assert!(rejected(&tls).contains("does not belong to the certificate"));
    fs::remove_file(files.path("server.pem")).unwrap();
    assert!(rejected(&tls).contains("server.pem"));
    assert!(Arc::ptr_eq(&first, &tls.current()), "the first certificate is in use throughout");

    files.write("server.pem", &other.certificate);
    files.write("server.key", &other.key);
    assert_eq!(tls.reload(), Reloaded::Replaced);
    assert!(!Arc::ptr_eq(&first, &tls.current()));
}

#[test]
fn an_error_names_the_file_and_holds_nothing_of_it() {
    let files = Files::new();
    let key = fs::read_to_string(files.path("server.key")).unwrap();
    files.write("server.key", &key.replace("END PRIVATE", "FIN PRIVATE"));
    let error = ServerTls::new(files.config()).unwrap_err().to_string();
    assert!(
        error.contains("server.key") && !error.contains(&key[40..60]) && !error.contains('\n'),
        "{error}"
    );
}

/// Fault case 45.
#[test]
fn a_client_certificate_has_to_be_valid_and_for_clients() {
    let files = Files::new();
    let tls = files.start();
    let now = SystemTime::now();
    let refused = |certificate: CertificateDer<'static>, says: &str| {
        let error = tls.verify(&[certificate]).unwrap_err().to_string();
        assert!(error.to_lowercase().contains(says), "{says} not in {error}");
    };
    tls.verify(&[files.client(|_| ())]).unwrap();
    refused(files.client(|request| request.until = now - HOUR), "expired");
    refused(files.client(|request| request.from = now + HOUR), "not valid yet");
    refused(files.client(|request| request.serial = 7), "revoked");
    refused(
        files.client(|request| {
            request.client = false;
            request.server = true;
        }),
        "not trusted",
    );
    let other = Authority::new("a", 1).unwrap();
    refused(der(&other.issue(&Request::of("spiffe://example.org/checkout", &[], 1)).unwrap()), "not trusted");
    assert!(tls.verify(&[]).is_err());
    assert!(tls.verify(&[CertificateDer::from(vec![0x30, 0x03, 1, 2])]).is_err());
}

/// Fault case 47.
#[test]
fn an_expired_revocation_list_refuses_or_is_used_by_setting() {
    let files = Files::new();
    files.write("crl.pem", &files.authority.revoke(&[7], 2, SystemTime::now() - HOUR).unwrap());
    let refusing = files.start();
    assert!(refusing.verify(&[files.client(|_| ())]).unwrap_err().to_string().contains("expired"));
    let accepting =
        ServerTls::new(ServerTlsConfig { expired_crl: ExpiredCrl::Accept, ..files.config() }).unwrap();
    accepting.verify(&[files.client(|_| ())]).unwrap();
    assert!(
        accepting.verify(&[files.client(|request| request.serial = 7)]).is_err(),
        "it revokes all the same"
    );
}

/// Fault case 47.
#[test]
fn a_revocation_list_that_cannot_be_read_is_an_error_and_not_a_panic() {
    let files = Files::new();
    let tls = files.start();
    let list = files.authority.revoke(&[7], 3, SystemTime::now() + HOUR).unwrap();
    let body: String = list.lines().filter(|line| !line.starts_with("--")).collect();
    for broken in [
        "nothing".to_owned(),
        "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n".to_owned(),
        "-----BEGIN X509 CRL-----\nMAAw\n-----END X509 CRL-----\n".to_owned(),
        format!("-----BEGIN X509 CRL-----\n{}\n-----END X509 CRL-----\n", &body[..body.len() / 8 * 4]),
    ] {
        files.write("crl.pem", &broken);
        assert!(rejected(&tls).contains("crl.pem"));
    }
    tls.verify(&[files.client(|_| ())]).unwrap();
    assert!(tls.verify(&[files.client(|request| request.serial = 7)]).is_err(), "the list before is in use");
}

#[test]
fn a_certificate_of_an_issuer_without_a_list_is_refused_where_there_are_lists() {
    let files = Files::new();
    let other = Authority::new("other", 1).unwrap();
    files.write("ca.pem", &(files.authority.pem() + &other.pem()));
    let tls = files.start();
    let certificate = der(&other.issue(&Request::of("spiffe://example.org/checkout", &[], 1)).unwrap());
    assert!(tls.verify(&[certificate]).is_err());
}

/// Fault case 45.
#[test]
fn a_principal_is_one_spiffe_id_of_the_trust_domain_or_one_dns_name() {
    use crate::certificate::principal;
    let files = Files::new();
    let of = |uris: &[&str], hosts: &[&str]| {
        let certificate = files.client(|request| {
            request.uris = uris.iter().map(|&uri| uri.to_owned()).collect();
            request.hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        });
        principal(&certificate, Some("example.org")).map(|principal| principal.to_string())
    };
    assert_eq!(of(&["spiffe://example.org/a"], &["b"]).unwrap(), "spiffe://example.org/a");
    assert_eq!(of(&[], &["Checkout.internal"]).unwrap(), "dns:checkout.internal");
    for (uris, hosts, says) in [
        (&["spiffe://example.org/a", "spiffe://example.org/b"][..], &[][..], "several URIs"),
        (&["spiffe://example.net/a"], &[], "another trust domain"),
        (&["https://example.org/a"], &["b"], "no SPIFFE id"),
        (&["spiffe://example.org/a/../b"], &[], "no SPIFFE id"),
        (&[], &["a", "b"], "neither one URI nor one DNS name"),
        (&[], &[], "neither one URI nor one DNS name"),
        (&[], &["*.example.org"], "neither one URI nor one DNS name"),
    ] {
        let error = of(uris, hosts).unwrap_err().to_string();
        assert!(error.contains(says), "{says} not in {error}");
    }
    assert!(principal(b"no certificate", None).is_err());
}

#[test]
fn a_fleet_is_written_once_and_its_keys_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("fleet");
    let members = [
        ("server".to_owned(), vec!["localhost".to_owned(), "127.0.0.1".to_owned()]),
        ("checkout".to_owned(), vec![]),
    ];
    crate::authority::write_fleet(&at, "example.org", &members, 30).unwrap();
    for (name, mode) in
        [("ca.key", 0o600), ("server.key", 0o600), ("server.pem", 0o644), ("revoked.pem", 0o644)]
    {
        assert_eq!(fs::metadata(at.join(name)).unwrap().permissions().mode() & 0o777, mode, "{name}");
    }
    let path = |name: &str| at.join(name);
    let config = serde_json::json!({"certificate": path("server.pem"), "key": path("server.key"),
        "client_ca": path("ca.pem"), "crl": [path("revoked.pem")]});
    let tls = ServerTls::new(serde_json::from_value(config).unwrap()).unwrap();
    let checkout = fs::read(path("checkout.pem")).unwrap();
    tls.verify(&[CertificateDer::from_pem_slice(&checkout).unwrap()]).unwrap();
    let error = crate::authority::write_fleet(&at, "example.org", &members, 30).unwrap_err().to_string();
    assert!(error.contains("exists already"), "{error}");
    let bad = [("../up".to_owned(), vec![])];
    assert!(crate::authority::write_fleet(Path::new("/nonexistent"), "example.org", &bad, 1).is_err());
}
