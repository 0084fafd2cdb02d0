//! The deterministic draw: a keyed hash of the decision gives a point, and inverting the cumulative sum of the pmf
//! gives the action.

use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

use super::SpecError;

/// The key of a draw: 16 bytes, written as 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Salt(pub [u8; 16]);

impl Salt {
    /// Parses 32 hexadecimal digits.
    ///
    /// # Errors
    /// Fails for any other text.
    pub fn parse(text: &str) -> Result<Salt, SpecError> {
        let digits = text.as_bytes();
        let mut salt = [0; 16];
        if digits.len() != 32 {
            return Err(SpecError::Salt);
        }
        for (byte, pair) in salt.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| SpecError::Salt)?;
            // `from_str_radix` would accept a sign.
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

/// Returns a point in `[0, 1)` with 53 bits, from SipHash-2-4-128 keyed by `salt` over `parts`.
///
/// Every part is preceded by its length in bytes as a little-endian u64, so that `("ab", "c")` and `("a", "bc")`
/// differ. Draws for different purposes are independent of each other if their first parts differ.
#[must_use]
pub fn unit(salt: &[u8; 16], parts: &[&[u8]]) -> f64 {
    let mut hasher = SipHasher24::new_with_key(salt);
    for part in parts {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part);
    }
    // An f64 has 53 significant bits, so multiples of 2^-53 in [0, 1) are exact.
    (hasher.finish128().h1 >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
}

/// Returns the point with which a decision's action is drawn: [`unit`] over `("action", checkpoint, decision id)`.
#[must_use]
pub fn draw(salt: &[u8; 16], checkpoint: &str, decision_id: &str) -> f64 {
    unit(salt, &[b"action", checkpoint.as_bytes(), decision_id.as_bytes()])
}

/// Returns the action at point `u` of the cumulative sum of `pmf`.
///
/// It never returns an action with probability 0. If `u` is beyond the sum because of rounding, it returns the last
/// action with a probability above 0. It returns `None` only if no entry is above 0.
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
