//! The name of a caller.

use std::fmt;
use std::sync::Arc;

/// Length of the longest name of a principal, in bytes.
pub(crate) const MAX_NAME: usize = 256;

/// The name of a caller: `spiffe://…` or `dns:…` from a certificate, `jwt:…` from a token, `uid:…` from a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal(Arc<str>);

// === impl Principal ===

impl Principal {
    /// The principal of a Unix socket's user.
    #[must_use]
    pub fn of_uid(uid: u32) -> Principal {
        Principal(format!("uid:{uid}").into())
    }

    /// The principal of a token's subject.
    ///
    /// # Errors
    /// The subject is empty, too long or not printable ASCII.
    pub(crate) fn of_subject(subject: &str) -> Result<Principal, &'static str> {
        if subject.is_empty()
            || subject.len() > MAX_NAME
            || !subject.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err("sub is not 1 to 256 printable ASCII characters");
        }
        Ok(Principal(format!("jwt:{subject}").into()))
    }

    pub(crate) fn of_name(name: String) -> Principal {
        Principal(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
