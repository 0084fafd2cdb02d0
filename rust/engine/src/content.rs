//! Hashes the content of requests.

use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

/// Hashes a request's content field by field.
pub struct Content {
    hasher: SipHasher13,
    key: (u64, u64),
}

// === impl Content ===

impl Content {
    pub(crate) fn new(key: (u64, u64)) -> Content {
        Content { hasher: SipHasher13::new_with_keys(key.0, key.1), key }
    }

    /// Adds bytes, preceded by their number, so that different sequences of fields have different bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.hasher.write_u64(bytes.len() as u64);
        self.hasher.write(bytes);
    }

    /// Adds a number.
    pub fn number(&mut self, number: u64) {
        self.hasher.write_u64(number);
    }

    /// Adds items whose order has no meaning, as the sum of their hashes, which is the same in any order.
    pub fn set<T>(&mut self, items: impl ExactSizeIterator<Item = T>, each: impl Fn(&mut Content, T)) {
        self.number(items.len() as u64);
        let sum = items.fold(0_u128, |sum, item| {
            let mut one = Content::new(self.key);
            each(&mut one, item);
            sum.wrapping_add(one.finish())
        });
        self.hasher.write_u128(sum);
    }

    pub(crate) fn finish(&self) -> u128 {
        self.hasher.finish128().as_u128()
    }
}
