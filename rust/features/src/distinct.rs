//! A sketch of the number of distinct values (HyperLogLog with 1,024 registers), as bytes.
//!
//! A sketch of few values is their number (u16) and, by register, a u16 of ten bits of register and six bits of rank. A
//! sketch of many is [`DENSE`] and the rank of every register.

use crate::bytes::{insert_zeros, put, u16_at};
use crate::md5;

/// Number of registers.
const REGISTERS: usize = 1024;
/// Number of registers from which on all are stored.
const DENSE_FROM: u16 = 512;
/// In place of the number of registers: all are stored.
const DENSE: u16 = u16::MAX;
/// Bytes of the number of registers, and of a register of a sketch of few values.
const WORD: usize = 2;
/// Bits of a rank.
const RANK_BITS: u16 = 6;
/// Correction for this number of registers.
const ALPHA: f64 = 0.7213 / (1.0 + 1.079 / REGISTERS as f64);

/// The union of sketches, as a reader collects it.
pub(crate) struct Union([u8; REGISTERS]);

/// Register and rank of a value.
pub(crate) fn place(text: &str) -> (u16, u8) {
    let hash = md5::lower(text.as_bytes());
    let register = (hash & (REGISTERS as u64 - 1)) as u16;
    let rank = 1 + (hash >> 10).trailing_zeros().min(54) as u8;
    (register, rank)
}

/// Length of the sketch at the beginning of `bytes`.
pub(crate) fn length(bytes: &[u8]) -> usize {
    match u16_at(bytes, 0) {
        DENSE => WORD + REGISTERS,
        few => WORD + WORD * usize::from(few),
    }
}

/// Adds a value to the sketch that starts at `at`. A sketch without values is a 0.
pub(crate) fn add(data: &mut Vec<u8>, at: usize, (register, rank): (u16, u8)) {
    let few = u16_at(data, at);
    let start = at + WORD;
    if few == DENSE {
        if let Some(known) = data.get_mut(start + usize::from(register)) {
            *known = rank.max(*known);
        }
        return;
    }
    let word = register << RANK_BITS | u16::from(rank);
    let (mut low, mut high) = (0, usize::from(few));
    while low < high {
        let middle = low.midpoint(high);
        if u16_at(data, start + WORD * middle) >> RANK_BITS < register {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let place = start + WORD * low;
    let known = u16_at(data, place);
    if low < usize::from(few) && known >> RANK_BITS == register {
        put(data, place, word.max(known).to_le_bytes());
        return;
    }
    insert_zeros(data, place, WORD);
    put(data, place, word.to_le_bytes());
    put(data, at, (few + 1).to_le_bytes());
    if few + 1 >= DENSE_FROM {
        let mut all = Union::new();
        all.add(data.get(at..).unwrap_or_default());
        let end = start + WORD * usize::from(few + 1);
        data.splice(start..end, all.0);
        put(data, at, DENSE.to_le_bytes());
    }
}

// === impl Union ===

impl Union {
    pub(crate) fn new() -> Union {
        Union([0; REGISTERS])
    }

    /// Adds the sketch at the beginning of `bytes`.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let few = u16_at(bytes, 0);
        let registers = bytes.get(WORD..).unwrap_or_default();
        if few == DENSE {
            for (known, rank) in self.0.iter_mut().zip(registers) {
                *known = (*rank).max(*known);
            }
            return;
        }
        for at in 0..usize::from(few) {
            let word = u16_at(registers, WORD * at);
            if let Some(known) = self.0.get_mut(usize::from(word >> RANK_BITS)) {
                *known = (word as u8 & ((1 << RANK_BITS) - 1)).max(*known);
            }
        }
    }

    /// The estimated number of distinct values.
    pub(crate) fn estimate(&self) -> f64 {
        let mut ranks = [0_u32; 1 << RANK_BITS];
        for rank in &self.0 {
            if let Some(registers) = ranks.get_mut(usize::from(*rank)) {
                *registers += 1;
            }
        }
        let (count, zeros) = (REGISTERS as f64, f64::from(ranks[0]));
        // Horner's rule: every step halves the terms of the greater ranks.
        let sum = ranks.iter().rev().fold(0.0, |sum, registers| sum / 2.0 + f64::from(*registers));
        let raw = ALPHA * count * count / sum;
        if raw <= 2.5 * count && zeros > 0.0 { count * (count / zeros).ln() } else { raw }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_near_the_truth_and_the_same_for_both_forms() {
        for (count, tolerance) in
            [(0, 0.0), (1, 0.01), (10, 0.1), (200, 16.0), (1000, 100.0), (100_000, 9000.0)]
        {
            let mut sketch = vec![7, 0, 0, 7];
            let mut dense = Union::new();
            for number in 0..count {
                let (register, rank) = place(&format!("merchant-{number}"));
                // Between other bytes, which stay.
                add(&mut sketch, 1, (register, rank));
                add(&mut sketch, 1, (register, rank));
                dense.0[usize::from(register)] = rank.max(dense.0[usize::from(register)]);
            }
            assert_eq!((sketch[0], sketch.last()), (7, Some(&7)));
            assert_eq!(length(&sketch[1..]), sketch.len() - 2);
            let mut union = Union::new();
            union.add(&sketch[1..]);
            assert_eq!(union.0, dense.0, "{count}");
            let ranks = dense.0.iter().map(|rank| (-f64::from(*rank)).exp2());
            let raw = ALPHA * 1024.0 * 1024.0 / ranks.sum::<f64>();
            if raw > 2.5 * 1024.0 {
                assert!((union.estimate() / raw - 1.0).abs() < 1e-12);
            }
            assert!(
                (union.estimate() - f64::from(count)).abs() <= tolerance,
                "{count}: {}",
                union.estimate()
            );
        }
    }
}
