//! The tenant and the checkpoint for which a token is valid. Both are signed in full. The token contains only four
//! bytes of each, by which a refusal can state which of them differs.

use sha2::{Digest as _, Sha256};

/// The tenant for which a request is made. A token issued to one tenant is refused if another tenant returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant(pub(crate) [u8; 32]);

/// The checkpoint and the tenant for which a token is valid.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The checkpoint's name.
    pub checkpoint: &'a str,
    /// [`fingerprint`] of the checkpoint's name, which need not be computed for every request.
    pub checkpoint_fingerprint: [u8; 4],
    /// The tenant that received the answer.
    pub tenant: Tenant,
}

// === impl Tenant ===

impl Tenant {
    /// The tenant of requests that name none: the SHA-256 of the empty name.
    pub const UNNAMED: Tenant = Tenant([
        0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27,
        0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
    ]);

    /// The tenant with this name.
    #[must_use]
    pub fn named(name: &[u8]) -> Tenant {
        if name.is_empty() { Tenant::UNNAMED } else { Tenant(Sha256::digest(name).into()) }
    }

    /// The four bytes of the tenant that a token and the log's records contain.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 4] {
        first(&self.0)
    }
}

// === impl Scope ===

impl<'a> Scope<'a> {
    /// The scope of a checkpoint and a tenant.
    #[must_use]
    pub fn new(checkpoint: &'a str, tenant: Tenant) -> Scope<'a> {
        Scope { checkpoint, checkpoint_fingerprint: fingerprint(checkpoint.as_bytes()), tenant }
    }
}

/// The first four bytes of the SHA-256 of a name.
#[must_use]
pub fn fingerprint(name: &[u8]) -> [u8; 4] {
    first(&Sha256::digest(name).into())
}

fn first(digest: &[u8; 32]) -> [u8; 4] {
    let [a, b, c, d, ..] = *digest;
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_a_tenant_of_its_own() {
        assert_eq!(Tenant::UNNAMED.0, <[u8; 32]>::from(Sha256::digest(b"")));
        assert_eq!(Tenant::named(b""), Tenant::UNNAMED);
        assert_ne!(Tenant::named(b"a"), Tenant::UNNAMED);
    }
}
