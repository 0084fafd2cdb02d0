//! The bytes of a token.
//!
//! ```text
//! offset  0   1       5        11      15          19      27     30          38   len - 16
//!         │v k│key id │time ms │tenant │checkpoint │bundle │index │propensity │id  │tag
//! bytes     1       4        6       4           4       8      3           8  1-64    16
//! ```
//! Numbers are big-endian. The high half of the first byte is the version. Of the low half, the highest bit is 0, the
//! next one marks a fallback, and the two lowest bits are the kind.

use crate::claims::{Claims, Kind};

/// Length of the longest token, in bytes.
pub const MAX_TOKEN: usize = FIXED + MAX_ID + TAG;
/// Length of the truncated tag.
pub(crate) const TAG: usize = 16;
const FIXED: usize = 38;
const MAX_ID: usize = 64;
const VERSION: u8 = 1;
const FALLBACK: u8 = 0b100;

/// A token on the stack, so that signing one needs no allocation.
#[derive(Clone, Copy)]
pub struct LongestToken {
    bytes: [u8; MAX_TOKEN],
    len: usize,
}

/// A token whose bytes were read and whose signature was not yet verified.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token<'a> {
    /// The id of the key that signed it, according to the token.
    pub key_id: u32,
    /// Its claims.
    pub claims: Claims,
    /// The decision's id.
    pub decision_id: &'a str,
    /// Four bytes of the tenant's SHA-256.
    pub tenant: [u8; 4],
    /// Four bytes of the SHA-256 of the checkpoint's name.
    pub checkpoint: [u8; 4],
    /// The signed bytes.
    pub(crate) signed: &'a [u8],
    pub(crate) tag: [u8; TAG],
}

/// The bytes do not have the form of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a decision token of this version")]
pub struct Unreadable;

// === impl LongestToken ===

impl LongestToken {
    /// The unsigned token; `None` if the id is empty or longer than 64 bytes.
    pub(crate) fn unsigned(
        key_id: u32,
        claims: &Claims,
        tenant: [u8; 4],
        checkpoint: [u8; 4],
        id: &str,
    ) -> Option<LongestToken> {
        if id.is_empty() || id.len() > MAX_ID {
            return None;
        }
        let mut token = LongestToken { bytes: [0; MAX_TOKEN], len: 0 };
        token.push(&[VERSION << 4 | if claims.fallback { FALLBACK } else { 0 } | claims.kind as u8]);
        token.push(&key_id.to_be_bytes());
        token.push(&claims.decided_at_ms.to_be_bytes()[2..]);
        token.push(&tenant);
        token.push(&checkpoint);
        token.push(&claims.bundle);
        token.push(&claims.index.to_be_bytes()[1..]);
        token.push(&claims.propensity.to_be_bytes());
        token.push(id.as_bytes());
        Some(token)
    }

    pub(crate) fn push(&mut self, part: &[u8]) {
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
    }

    /// Returns the bytes of the token.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

// === impl Token ===

impl<'a> Token<'a> {
    /// Reads a token without verifying it. Its claims must not be used before the signature was verified.
    ///
    /// # Errors
    /// The bytes do not have the form of a token.
    pub fn read(bytes: &'a [u8]) -> Result<Token<'a>, Unreadable> {
        if bytes.len() > MAX_TOKEN {
            return Err(Unreadable);
        }
        let (signed, &tag) = bytes.split_last_chunk::<TAG>().ok_or(Unreadable)?;
        let mut rest = signed;
        let [head] = take::<1>(&mut rest)?;
        let key_id = u32::from_be_bytes(take(&mut rest)?);
        let [a, b, c, d, e, f] = take(&mut rest)?;
        let (tenant, checkpoint, bundle) = (take(&mut rest)?, take(&mut rest)?, take(&mut rest)?);
        let [high, middle, low] = take(&mut rest)?;
        let propensity = f64::from_be_bytes(take(&mut rest)?);
        let kind = match head & 0b11 {
            0 => Kind::Score,
            1 => Kind::Action,
            2 => Kind::Batch,
            _ => return Err(Unreadable),
        };
        let printable = rest.iter().all(|byte| (0x20..=0x7e).contains(byte));
        if head >> 4 != VERSION || head & 0b1000 != 0 || rest.is_empty() || !printable {
            return Err(Unreadable);
        }
        Ok(Token {
            key_id,
            claims: Claims {
                kind,
                fallback: head & FALLBACK != 0,
                decided_at_ms: u64::from_be_bytes([0, 0, a, b, c, d, e, f]),
                bundle,
                index: u32::from_be_bytes([0, high, middle, low]),
                propensity,
            },
            decision_id: std::str::from_utf8(rest).map_err(|_| Unreadable)?,
            tenant,
            checkpoint,
            signed,
            tag,
        })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Unreadable> {
    let (first, others) = rest.split_first_chunk::<N>().ok_or(Unreadable)?;
    *rest = others;
    Ok(*first)
}
