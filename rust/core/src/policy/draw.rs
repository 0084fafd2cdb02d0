//! The deterministic draw: a keyed hash of the decision picks the point, inverting the cumulative sum the action.

use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

use super::SpecError;

/// The key of a draw: 16 bytes, written as 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Salt(pub [u8; 16]);

impl Salt {
    /// Reads 32 hexadecimal digits.
    ///
    /// # Errors
    /// Any other text.
    pub fn parse(text: &str) -> Result<Salt, SpecError> {
        let digits = text.as_bytes();
        let mut salt = [0; 16];
        if digits.len() != 32 {
            return Err(SpecError::Salt);
        }
        for (byte, pair) in salt.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| SpecError::Salt)?;
            // `from_str_radix` takes a sign, which is no digit.
            if !pair.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(SpecError::Salt);
            }
            *byte = u8::from_str_radix(pair, 16).map_err(|_| SpecError::Salt)?;
        }
        Ok(Salt(salt))
    }
}

impl fmt::Display for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A point in `[0, 1)` with 53 bits, from SipHash-2-4-128 keyed by `salt` over `parts`.
///
/// Every part is preceded by its length in bytes as a little-endian u64, so that `("ab", "c")` and `("a", "bc")`
/// differ. Use a first part of your own for draws of another purpose: they are then independent of each other.
#[must_use]
pub fn unit(salt: &[u8; 16], parts: &[&[u8]]) -> f64 {
    let mut hasher = SipHasher24::new_with_key(salt);
    for part in parts {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part);
    }
    // The upper 53 bits: as many as an f64 in [0, 1) has at even spacing.
    (hasher.finish128().h1 >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
}

/// The point that a decision's action is drawn with: [`unit`] over `("action", checkpoint, decision id)`.
#[must_use]
pub fn draw(salt: &[u8; 16], checkpoint: &str, decision_id: &str) -> f64 {
    unit(salt, &[b"action", checkpoint.as_bytes(), decision_id.as_bytes()])
}

/// The action at point `u` of the cumulative sum of `pmf`.
///
/// Never an action with probability 0, whatever rounding does: where `u` lies beyond the sum, the last action
/// that has a probability. `None` only if no entry is above 0.
#[must_use]
pub fn choose(pmf: &[f64], u: f64) -> Option<usize> {
    let mut below = 0.0;
    let mut last = None;
    for (index, &p) in pmf.iter().enumerate() {
        if p > 0.0 {
            last = Some(index);
            below += p;
            if u < below {
                break;
            }
        }
    }
    last
}
