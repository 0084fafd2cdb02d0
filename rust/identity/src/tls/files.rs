//! Reads PEM files, with a bound on their size.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use crate::error::IdentityError;

/// The largest file, in bytes. The largest files are revocation lists: the limit allows about 400,000 entries.
const MAX_FILE: u64 = 16 << 20;

/// The bytes of a file, read once, with its setting and its path for messages.
pub(super) struct Source<'a> {
    what: &'static str,
    path: &'a Path,
    pub(super) bytes: Vec<u8>,
}

// === impl Source ===

impl<'a> Source<'a> {
    pub(super) fn read(what: &'static str, path: &'a Path) -> Result<Source<'a>, IdentityError> {
        let fail = |error: String| IdentityError::Read { what, path: path.to_owned(), error };
        let file = File::open(path).map_err(|error| fail(error.to_string()))?;
        if !file.metadata().map_err(|error| fail(error.to_string()))?.is_file() {
            return Err(fail("it is not a regular file".to_owned()));
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| fail(error.to_string()))?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(fail(format!("it is larger than {MAX_FILE} bytes")));
        }
        Ok(Source { what, path, bytes })
    }

    pub(super) fn fail(&self, problem: impl Into<String>) -> IdentityError {
        IdentityError::file(self.what, self.path, problem)
    }

    /// Reads all objects of one kind, at least one. A truncated object is an error and not the end of the list.
    fn all<T: PemObject>(&self, kind: &str) -> Result<Vec<T>, IdentityError> {
        let found: Result<Vec<T>, Error> = T::pem_slice_iter(&self.bytes).collect();
        let found = found.map_err(|error| self.malformed(&error, kind))?;
        // The reader ignores a block that has no end line.
        let (begins, ends) = (self.count(b"-----BEGIN "), self.count(b"-----END "));
        if begins != ends {
            return Err(self.fail("a PEM block is cut off; write the file under another name and rename it"));
        }
        if found.is_empty() {
            return Err(self.fail(format!("it holds no {kind} in PEM form")));
        }
        Ok(found)
    }

    fn count(&self, mark: &[u8]) -> usize {
        self.bytes.windows(mark.len()).filter(|window| *window == mark).count()
    }

    fn malformed(&self, error: &Error, kind: &str) -> IdentityError {
        self.fail(match error {
            Error::MissingSectionEnd { .. } => {
                "a PEM block is cut off; write the file under another name and rename it".to_owned()
            }
            Error::NoItemsFound => format!("it holds no {kind} in PEM form"),
            _ => "it is no valid PEM".to_owned(),
        })
    }

    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
        self.all("certificate")
    }

    pub(super) fn revocation_lists(
        &self,
    ) -> Result<Vec<CertificateRevocationListDer<'static>>, IdentityError> {
        self.all("revocation list")
    }

    pub(super) fn key(&self) -> Result<PrivateKeyDer<'static>, IdentityError> {
        let mut keys: Vec<PrivateKeyDer<'static>> = self.all("private key")?;
        match (keys.pop(), keys.is_empty()) {
            (Some(key), true) => Ok(key),
            _ => Err(self.fail("it holds several private keys; keep one")),
        }
    }

    pub(super) fn roots(&self) -> Result<RootCertStore, IdentityError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots
                .add(certificate)
                .map_err(|_| self.fail("one of its certificates cannot be an authority"))?;
        }
        Ok(roots)
    }
}
