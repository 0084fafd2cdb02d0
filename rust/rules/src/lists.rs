//! Named lists: sets of keyed 64-bit hashes that a caller replaces while requests run.

use std::fmt;
use std::hash::Hasher as _;
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use crate::environment::{Environment, ListId};
use crate::limits::MAX_KEYS;

/// The secret of the hashes of a program and its lists. Without it, nobody can choose keys that collide.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ListKey([u8; 16]);

impl fmt::Debug for ListKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ListKey")
    }
}

impl ListKey {
    /// Makes a key of 16 random bytes.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> ListKey {
        ListKey(bytes)
    }

    /// Hashes a string, for names of type key and for lists of strings.
    #[must_use]
    pub fn text(&self, text: &str) -> u64 {
        self.hash(text.as_bytes())
    }

    /// Hashes an integer, for lists of integers.
    #[must_use]
    pub fn int(&self, value: i64) -> u64 {
        self.hash(&value.to_le_bytes())
    }

    /// A hasher that has taken in some texts, each with its length.
    pub(crate) fn salted(&self, salts: &[&[u8]]) -> SipHasher13 {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        for salt in salts {
            hasher.write(&(salt.len() as u64).to_le_bytes());
            hasher.write(salt);
        }
        hasher
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish()
    }
}

/// A set of hashes with open addressing. Two different keys have the same hash with probability 2^-64, so a look-up
/// in a list of ten million keys is wrong once in 10^12.
pub struct KeySet {
    /// A power of two of places, about two thirds of them taken at most; 0 is free.
    places: Box<[u64]>,
    count: usize,
    /// The longest sequence of places that a look-up compares.
    longest: usize,
    version: u64,
}

impl fmt::Debug for KeySet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "KeySet({} keys, version {})", self.count, self.version)
    }
}

/// Too many keys for one list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyKeys;

impl fmt::Display for TooManyKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the list has more than {MAX_KEYS} keys; split it")
    }
}

impl std::error::Error for TooManyKeys {}

impl KeySet {
    /// Builds a set from hashes of [`ListKey`]; duplicates count once.
    ///
    /// # Errors
    /// Fails if there are too many.
    pub fn new(version: u64, hashes: &[u64]) -> Result<KeySet, TooManyKeys> {
        let mut builder = KeySetBuilder::new(version, hashes.len())?;
        for hash in hashes {
            builder.insert(*hash)?;
        }
        Ok(builder.finish())
    }

    /// Heap memory, in bytes, of a set that is built for `keys` keys.
    #[must_use]
    pub fn bytes_for(keys: usize) -> usize {
        places_for(keys).saturating_mul(size_of::<u64>())
    }

    fn insert(&mut self, hash: u64) {
        let hash = hash.max(1);
        let last = self.places.len() - 1;
        let start = hash as usize & last;
        for step in 0..self.places.len() {
            let place = &mut self.places[(start + step) & last];
            if *place == hash {
                return;
            }
            if *place == 0 {
                *place = hash;
                self.count += 1;
                self.longest = self.longest.max(step + 1);
                return;
            }
        }
    }

    /// Whether the set has a hash. It compares at most as many places as building the set did.
    #[inline]
    #[must_use]
    pub fn contains(&self, hash: u64) -> bool {
        let hash = hash.max(1);
        let last = self.places.len() - 1;
        let start = hash as usize & last;
        for step in 0..self.longest {
            let place = self.places[(start + step) & last];
            if place == hash {
                return true;
            }
            if place == 0 {
                return false;
            }
        }
        false
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The version that the caller gave the list.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The longest sequence of places that a look-up compares.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Heap memory in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.places)
    }
}

/// Builds a set from one hash after the other, in the memory of the set alone.
#[derive(Debug)]
pub struct KeySetBuilder {
    set: KeySet,
    most: usize,
}

impl KeySetBuilder {
    /// Starts a set for at most `keys` different keys.
    ///
    /// # Errors
    /// Fails if a list must not have that many.
    pub fn new(version: u64, keys: usize) -> Result<KeySetBuilder, TooManyKeys> {
        if keys > MAX_KEYS {
            return Err(TooManyKeys);
        }
        // The allocator gives zeroed pages for this, which take no memory before the first key is put into them.
        let places = vec![0; places_for(keys)].into_boxed_slice();
        Ok(KeySetBuilder { set: KeySet { places, count: 0, longest: 0, version }, most: keys })
    }

    /// Adds a hash of [`ListKey`]; duplicates count once.
    ///
    /// # Errors
    /// Fails if the set would have more keys than it was started for.
    pub fn insert(&mut self, hash: u64) -> Result<(), TooManyKeys> {
        if self.set.count == self.most && !self.set.contains(hash) {
            return Err(TooManyKeys);
        }
        self.set.insert(hash);
        Ok(())
    }

    /// The set.
    #[must_use]
    pub fn finish(self) -> KeySet {
        self.set
    }
}

fn places_for(keys: usize) -> usize {
    keys.saturating_add(keys / 2).checked_next_power_of_two().unwrap_or(usize::MAX / 8).max(2)
}

/// The lists of an environment. It is immutable: a caller replaces one list by making new `Lists`, which share the
/// others, and gives them to later evaluations.
#[derive(Debug, Clone)]
pub struct Lists {
    key: ListKey,
    sets: Vec<Option<Arc<KeySet>>>,
}

impl Lists {
    /// Makes lists of which none is loaded. A look-up in a list that is not loaded is an error of the rule.
    #[must_use]
    pub fn new(key: ListKey, environment: &Environment) -> Lists {
        Lists { key, sets: vec![None; environment.list_count()] }
    }

    /// Returns lists with one list replaced; the others are shared.
    #[must_use]
    pub fn with(&self, list: ListId, set: Arc<KeySet>) -> Lists {
        let mut lists = self.clone();
        if let Some(place) = lists.sets.get_mut(usize::from(list.0)) {
            *place = Some(set);
        }
        lists
    }

    /// Returns a list that is loaded.
    #[must_use]
    pub fn get(&self, list: ListId) -> Option<&KeySet> {
        self.set(list.0)
    }

    /// Heap memory of the loaded lists in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.sets.iter().flatten().map(|set| set.heap_bytes()).sum()
    }

    /// The key of the hashes.
    #[must_use]
    pub fn key(&self) -> ListKey {
        self.key
    }

    #[inline]
    pub(crate) fn set(&self, list: u16) -> Option<&KeySet> {
        self.sets.get(usize::from(list)).and_then(Option::as_deref)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::random::Random;

    #[test]
    fn a_set_has_what_was_put_in() {
        for seed in 0..300 {
            let mut random = Random(seed);
            let (count, low) = (random.below(80), random.next() & 3);
            // Few different low bits make long sequences of places.
            let hash = |key: u64| (key << 40) | low;
            let hashes: Vec<u64> = (0..count).map(|_| hash(random.next() % 64)).collect();
            let set = KeySet::new(3, &hashes).unwrap();
            let expected: HashSet<u64> = hashes.iter().map(|hash| (*hash).max(1)).collect();
            assert_eq!((set.len(), set.version()), (expected.len(), 3), "seed {seed}");
            for key in 0..64 {
                for hash in [hash(key), hash(key) ^ (1 << 63)] {
                    assert_eq!(set.contains(hash), expected.contains(&hash.max(1)), "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn a_builder_takes_as_many_different_keys_as_it_was_started_for() {
        let mut builder = KeySetBuilder::new(4, 2).unwrap();
        for hash in [7, 9, 7, 9] {
            builder.insert(hash).unwrap();
        }
        assert_eq!(builder.insert(11), Err(TooManyKeys));
        let set = builder.finish();
        assert_eq!((set.len(), set.version(), set.heap_bytes()), (2, 4, KeySet::bytes_for(2)));
        assert!(set.contains(7) && set.contains(9) && !set.contains(11));
        assert!(KeySetBuilder::new(1, MAX_KEYS + 1).is_err());
        assert_eq!(KeySet::bytes_for(10_000_000), 128 << 20);
    }

    #[test]
    fn keys_of_other_secrets_differ() {
        let (one, other) = (ListKey::new([1; 16]), ListKey::new([2; 16]));
        assert_ne!(one.text("a"), other.text("a"));
        assert_ne!(one.text("a"), one.text("b"));
        assert_ne!(one.int(1), one.int(2));
        assert_eq!(format!("{one:?}"), "ListKey");
    }
}
