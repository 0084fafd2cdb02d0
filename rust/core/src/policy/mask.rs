//! The eligible set: one bit per action of the catalogue.

/// The reason why a mask could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MaskError {
    /// The byte string is too short or too long.
    #[error(
        "eligible.mask: {got} bytes, {actions} actions take {expected}; least significant bit of the first byte first"
    )]
    Length {
        /// Number of bytes given.
        got: usize,
        /// Number of bytes needed.
        expected: usize,
        /// Number of actions in the catalogue.
        actions: usize,
    },
    /// A bit beyond the last action is set.
    #[error(
        "eligible.mask: bit {bit} is set, the catalogue has {actions} actions; clear the bits beyond the last action"
    )]
    Beyond {
        /// The first such bit.
        bit: usize,
        /// Actions in the catalogue.
        actions: usize,
    },
}

/// A set of actions. Its size is fixed, and changing its content never allocates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    words: Box<[u64]>,
    len: usize,
}

impl Mask {
    /// Creates an empty set for a catalogue of `len` actions.
    #[must_use]
    pub fn none(len: usize) -> Mask {
        Mask { words: vec![0; len.div_ceil(64)].into(), len }
    }

    /// Creates the set of all actions of a catalogue of `len` actions.
    #[must_use]
    pub fn all(len: usize) -> Mask {
        let mut mask = Mask::none(len);
        mask.fill();
        mask
    }

    /// Parses the wire format: one bit per action, the least significant bit of the first byte first.
    ///
    /// # Errors
    /// Fails if the number of bytes is wrong or a bit beyond the last action is set.
    pub fn from_bytes(len: usize, bytes: &[u8]) -> Result<Mask, MaskError> {
        let mut mask = Mask::none(len);
        mask.read(bytes)?;
        Ok(mask)
    }

    /// Replaces the content by the set that `bytes` represent; see [`Mask::from_bytes`]. On an error the content is
    /// unspecified.
    ///
    /// # Errors
    /// Fails as [`Mask::from_bytes`] does.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), MaskError> {
        let expected = self.len.div_ceil(8);
        if bytes.len() != expected {
            return Err(MaskError::Length { got: bytes.len(), expected, actions: self.len });
        }
        for (word, chunk) in self.words.iter_mut().zip(bytes.chunks(8)) {
            let mut raw = [0; 8];
            raw[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(raw);
        }
        let used = self.len % 64;
        if used != 0
            && let Some(last) = self.words.last()
            && last >> used != 0
        {
            let bit = (self.len / 64) * 64 + used + (last >> used).trailing_zeros() as usize;
            return Err(MaskError::Beyond { bit, actions: self.len });
        }
        Ok(())
    }

    /// Returns the wire format, `ceil(len / 8)` bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(self.len.div_ceil(8));
        bytes
    }

    /// The set as one bit per action, the least significant bit of the first word first. Bits beyond the last action
    /// are 0.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Number of actions in the catalogue, eligible or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no action is eligible.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// Whether every action is eligible.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.count() == self.len
    }

    /// Number of eligible actions.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether an action is eligible; false for positions beyond the last action.
    #[must_use]
    pub fn contains(&self, action: usize) -> bool {
        action < self.len && self.words[action / 64] >> (action % 64) & 1 == 1
    }

    /// Makes an action eligible. Returns false if it already was, or if its position is beyond the last action.
    pub fn insert(&mut self, action: usize) -> bool {
        if action >= self.len || self.contains(action) {
            return false;
        }
        self.words[action / 64] |= 1 << (action % 64);
        true
    }

    /// Makes no action eligible.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Makes every action eligible.
    pub fn fill(&mut self) {
        self.words.fill(u64::MAX);
        let used = self.len % 64;
        if used != 0
            && let Some(last) = self.words.last_mut()
        {
            *last = (1 << used) - 1;
        }
    }

    /// Removes the actions that are not in `allowed`, one bit per action as in [`Mask::words`]. Returns false, and leaves
    /// the set as it is, if no action would be left.
    #[must_use]
    pub fn retain(&mut self, allowed: &[u64]) -> bool {
        if self.words.iter().zip(allowed).all(|(word, allowed)| word & allowed == 0) {
            return false;
        }
        for (at, word) in self.words.iter_mut().enumerate() {
            *word &= allowed.get(at).copied().unwrap_or(0);
        }
        true
    }

    /// The eligible actions in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            std::iter::successors((word != 0).then_some(word), |&rest| {
                let rest = rest & (rest - 1);
                (rest != 0).then_some(rest)
            })
            .map(move |rest| at * 64 + rest.trailing_zeros() as usize)
        })
    }
}
