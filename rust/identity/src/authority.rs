//! A certificate authority for trials and tests: issues a root certificate, certificates for servers and clients, and a
//! revocation list.
//!
//! A production fleet takes its certificates from SPIRE, cert-manager or another authority whose key is not stored with
//! the certificates.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType,
    SerialNumber,
};

use ring::rand::{SecureRandom as _, SystemRandom};

use crate::certificate::spiffe_domain;
use crate::error::IdentityError;

const DAY: Duration = Duration::from_secs(86_400);
/// The largest difference allowed between the clocks of the fleet's machines.
const SKEW: Duration = Duration::from_secs(300);

/// The contents of a certificate to issue.
#[derive(Clone, Debug)]
pub struct Request {
    /// The SPIFFE ids; usually one.
    pub uris: Vec<String>,
    /// Host names and IP addresses; a server needs those under which clients connect to it.
    pub hosts: Vec<String>,
    /// Usable by a server.
    pub server: bool,
    /// Usable by a client.
    pub client: bool,
    /// Start of its validity.
    pub from: SystemTime,
    /// End of its validity.
    pub until: SystemTime,
    /// Its serial number, for revocation lists.
    pub serial: u64,
}

/// A certificate with its key, PEM.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

/// A root certificate and its key, which sign certificates.
pub struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
    key: String,
}

fn failed(error: rcgen::Error) -> IdentityError {
    IdentityError::Rule(format!("the certificate cannot be made: {error}"))
}

// === impl Request ===

impl Request {
    /// A request for a certificate that is valid from now on for `days` days.
    #[must_use]
    pub fn of(uri: &str, hosts: &[&str], days: u32) -> Request {
        let now = SystemTime::now();
        Request {
            uris: vec![uri.to_owned()],
            hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
            server: !hosts.is_empty(),
            client: true,
            from: now - SKEW,
            until: now + DAY * days,
            serial: 0,
        }
    }
}

// === impl Authority ===

impl Authority {
    /// Creates a root with this name that is valid for `days` days.
    ///
    /// # Errors
    /// Fails if the system provides no random numbers.
    pub fn new(name: &str, days: u32) -> Result<Authority, IdentityError> {
        let key = KeyPair::generate().map_err(failed)?;
        let text = key.serialize_pem();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let now = SystemTime::now();
        params.not_before = (now - SKEW).into();
        params.not_after = (now + DAY * days).into();
        let certificate = params.self_signed(&key).map_err(failed)?;
        Ok(Authority { certificate, issuer: Issuer::new(params, key), key: text })
    }

    /// The certificate of the root, PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// The private key of the root, PEM.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Issues a certificate with a new key.
    ///
    /// # Errors
    /// Fails if a name is not allowed in a certificate.
    pub fn issue(&self, request: &Request) -> Result<Issued, IdentityError> {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new(request.hosts.clone()).map_err(failed)?;
        for uri in &request.uris {
            let uri = Ia5String::try_from(uri.as_str())
                .map_err(|_| IdentityError::Rule(format!("{uri:?} is not ASCII")))?;
            params.subject_alt_names.push(SanType::URI(uri));
        }
        params.distinguished_name = rcgen::DistinguishedName::new();
        if request.serial != 0 {
            params.serial_number = Some(SerialNumber::from(request.serial));
        }
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        if request.server {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        if request.client {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        params.not_before = request.from.into();
        params.not_after = request.until.into();
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Issues a revocation list of serial numbers, PEM, which is valid until `until`.
    ///
    /// # Errors
    /// Fails if the list cannot be signed.
    pub fn revoke(&self, serials: &[u64], number: u64, until: SystemTime) -> Result<String, IdentityError> {
        let now = SystemTime::now();
        let revoked = serials.iter().map(|&serial| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: (now - SKEW).into(),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: (now.min(until) - SKEW).into(),
            next_update: until.into(),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).and_then(|list| list.pem()).map_err(failed)
    }
}

/// Writes the files of a trial fleet into a directory: the authority, and the certificate and key of each member.
///
/// # Arguments
/// `members` are the names of the members, each with the hosts for its certificate; only a member that is called needs
/// hosts.
///
/// # Errors
/// Fails if the trust domain or a name breaks its rule, a file exists, or the directory cannot be written.
pub fn write_fleet(
    directory: &Path,
    trust_domain: &str,
    members: &[(String, Vec<String>)],
    days: u32,
) -> Result<(), IdentityError> {
    let uri = |name: &str| format!("spiffe://{trust_domain}/{name}");
    for (name, _) in members {
        if spiffe_domain(&uri(name)).is_none() || name.contains('/') {
            return Err(IdentityError::Rule(format!(
                "{:?} is no SPIFFE id; use letters, digits, '.', '_' and '-', and a lower-case trust domain",
                uri(name)
            )));
        }
    }
    let create = |directory: &Path| {
        fs::create_dir_all(directory).map_err(|error| IdentityError::Read {
            what: "directory",
            path: directory.to_owned(),
            error: error.to_string(),
        })
    };
    create(directory)?;
    // Verifiers select a revocation list by the name of its issuer, so two authorities must not have the same name.
    let mut unique = [0; 4];
    SystemRandom::new().fill(&mut unique).map_err(|_| IdentityError::Rule("no randomness".to_owned()))?;
    let number = u32::from_be_bytes(unique);
    let authority = Authority::new(&format!("scorer trial authority {number:08x} of {trust_domain}"), days)?;
    write(&directory.join("ca.pem"), &authority.pem(), 0o644)?;
    write(&directory.join("ca.key"), authority.key(), 0o600)?;
    let until = SystemTime::now() + DAY * days;
    write(&directory.join("revoked.pem"), &authority.revoke(&[], 1, until)?, 0o644)?;
    for (serial, (name, hosts)) in members.iter().enumerate() {
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let mut request = Request::of(&uri(name), &hosts, days);
        request.serial = serial as u64 + 2;
        let issued = authority.issue(&request)?;
        write(&directory.join(format!("{name}.pem")), &issued.certificate, 0o644)?;
        write(&directory.join(format!("{name}.key")), &issued.key, 0o600)?;
    }
    Ok(())
}

/// Writes a new file. An existing file is never replaced, because it may be the key of a fleet in use.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), IdentityError> {
    let fail = |error: std::io::Error| {
        let problem = match error.kind() {
            std::io::ErrorKind::AlreadyExists => "it exists already; choose an empty directory".to_owned(),
            _ => error.to_string(),
        };
        IdentityError::file("file", path, problem)
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(fail)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(fail)
}
