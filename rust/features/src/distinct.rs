//! A sketch of the number of distinct values (HyperLogLog with 1,024 registers).

use crate::md5;

/// Number of registers.
const REGISTERS: usize = 1024;
/// Number of registers from which on all are stored.
const DENSE_FROM: usize = 256;
/// Correction for this number of registers.
const ALPHA: f64 = 0.7213 / (1.0 + 1.079 / REGISTERS as f64);

/// The greatest rank seen by each register. A sketch of few values stores only the registers that are not 0.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sketch {
    /// Register and rank, by register.
    Sparse(Vec<(u16, u8)>),
    /// All registers.
    Dense(Box<[u8; REGISTERS]>),
}

/// The union of sketches, as a reader collects it.
pub(crate) struct Union([u8; REGISTERS]);

/// Register and rank of a value.
pub(crate) fn place(text: &str) -> (u16, u8) {
    let hash = md5::lower(text.as_bytes());
    let register = (hash & (REGISTERS as u64 - 1)) as u16;
    let rank = 1 + (hash >> 10).trailing_zeros().min(54) as u8;
    (register, rank)
}

// === impl Sketch ===

impl Default for Sketch {
    fn default() -> Sketch {
        Sketch::Sparse(Vec::new())
    }
}

impl Sketch {
    pub(crate) fn add(&mut self, (register, rank): (u16, u8)) {
        match self {
            Sketch::Dense(all) => {
                if let Some(known) = all.get_mut(usize::from(register)) {
                    *known = rank.max(*known);
                }
            }
            Sketch::Sparse(few) => match few.binary_search_by_key(&register, |(known, _)| *known) {
                Ok(at) => {
                    if let Some((_, known)) = few.get_mut(at) {
                        *known = rank.max(*known);
                    }
                }
                Err(at) => {
                    few.insert(at, (register, rank));
                    if few.len() >= DENSE_FROM {
                        let mut all = Box::new([0; REGISTERS]);
                        for (register, rank) in few.iter() {
                            if let Some(place) = all.get_mut(usize::from(*register)) {
                                *place = *rank;
                            }
                        }
                        *self = Sketch::Dense(all);
                    }
                }
            },
        }
    }

    /// Heap memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Sketch::Sparse(few) => few.capacity() * size_of::<(u16, u8)>(),
            Sketch::Dense(_) => REGISTERS,
        }
    }
}

// === impl Union ===

impl Union {
    pub(crate) fn new() -> Union {
        Union([0; REGISTERS])
    }

    pub(crate) fn add(&mut self, sketch: &Sketch) {
        match sketch {
            Sketch::Sparse(few) => {
                for (register, rank) in few {
                    if let Some(known) = self.0.get_mut(usize::from(*register)) {
                        *known = (*rank).max(*known);
                    }
                }
            }
            Sketch::Dense(all) => {
                for (known, rank) in self.0.iter_mut().zip(all.iter()) {
                    *known = (*rank).max(*known);
                }
            }
        }
    }

    /// The estimated number of distinct values.
    pub(crate) fn estimate(&self) -> f64 {
        let count = REGISTERS as f64;
        let sum: f64 = self.0.iter().map(|rank| (-f64::from(*rank)).exp2()).sum();
        let raw = ALPHA * count * count / sum;
        let zeros = self.0.iter().filter(|rank| **rank == 0).count();
        if raw <= 2.5 * count && zeros > 0 { count * (count / zeros as f64).ln() } else { raw }
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
            let mut sketch = Sketch::default();
            let mut dense = Sketch::Dense(Box::new([0; REGISTERS]));
            for number in 0..count {
                let place = place(&format!("merchant-{number}"));
                sketch.add(place);
                dense.add(place);
                sketch.add(place);
            }
            let of = |sketch: &Sketch| {
                let mut union = Union::new();
                union.add(sketch);
                union.estimate()
            };
            assert!((of(&sketch) - f64::from(count)).abs() <= tolerance, "{count}: {}", of(&sketch));
            assert_eq!(of(&sketch), of(&dense));
        }
    }
}
