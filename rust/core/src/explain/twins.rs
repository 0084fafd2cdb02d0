//! The contributions of two neighbouring leaves of a complete tree, in one cache line, for AVX-512.
//!
//! The paths to two leaves with the same parent test the same features, and only the amount of the last step differs. A
//! twin has the amounts, and for each feature of the forest four bits that state which of them is its own. A permutation
//! of the amounts by these bits gives the additions of all features at once, so the work does not depend on the number
//! of levels, and no addition waits for a sum to be written to memory.
//!
//! The bits of features 0 to 15 and 16 to 31 are in the low and high halves of the same 16 bytes, those of features 32
//! to 43 and 44 to 55 in the low and high halves of the 12 bytes after them.

use super::complete::MAX_DEPTH;
use super::quads::Banks;
use crate::forest::HasAvx512;

/// The amounts of the last steps of both leaves, then one for each other feature of their path.
const AMOUNTS: usize = 2 + MAX_DEPTH - 1;
const SLOTS: usize = 64 - 4 * AMOUNTS;
/// Number of sums, all in the first bank: four registers of 16. Four sums each of the last two registers are of features
/// that the first two have as well.
const LANES: usize = 64;
/// The amount of features that the path does not test. There is none at this place, which is read as 0.
const NOTHING: u8 = 15;

/// The steps of two leaves. Amounts are multiples of the unit.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Twin {
    amounts: [i32; AMOUNTS],
    /// Four bits for each feature: the place of its amount.
    slots: [u8; SLOTS],
}

impl Twin {
    /// Greatest number of features.
    pub(super) const FEATURES: usize = 2 * SLOTS;
    /// Returns the twin of the two leaves below a node of a tree. `step` returns the number of the feature and the
    /// amount of the step to a node.
    pub(super) fn new(depth: usize, node: usize, step: impl Fn(usize) -> Option<(u8, i32)>) -> Twin {
        let mut path: Vec<(u8, i32)> = Vec::with_capacity(depth);
        let shared = depth - 1;
        for (feature, amount) in (0..shared).filter_map(|level| step(node >> (shared - 1 - level))) {
            match path.iter_mut().find(|(known, _)| *known == feature) {
                Some((_, sum)) => *sum = sum.wrapping_add(amount),
                None => path.push((feature, amount)),
            }
        }
        let mut twin = Twin { amounts: [0; AMOUNTS], slots: [NOTHING | NOTHING << 4; SLOTS] };
        if let (Some((feature, left)), Some((_, right))) = (step(2 * node), step(2 * node + 1)) {
            let before: i32 = path.extract_if(.., |(known, _)| *known == feature).map(|(_, sum)| sum).sum();
            twin.set(feature, 0, before.wrapping_add(left));
            twin.amounts[1] = before.wrapping_add(right);
        }
        for (at, (feature, amount)) in path.into_iter().enumerate() {
            twin.set(feature, at + 2, amount);
        }
        twin
    }

    fn set(&mut self, feature: u8, at: usize, amount: i32) {
        self.amounts[at] = amount;
        let feature = usize::from(feature);
        let (byte, is_high) = match feature {
            0..16 => (feature, false),
            16..32 => (feature - 16, true),
            32..44 => (feature - 16, false),
            _ => (feature - 28, true),
        };
        let slot = &mut self.slots[byte];
        *slot = if is_high { *slot & 0x0f | (at as u8) << 4 } else { *slot & 0xf0 | at as u8 };
    }

    /// Adds leaves, counted over all twins.
    #[inline(always)]
    pub(super) fn add(has: HasAvx512, twins: &[Twin], features: usize, leaves: &[u32], sums: &mut Banks) {
        #[cfg(target_arch = "x86_64")]
        avx512::add(has, twins, features, leaves, sums);
        // There is no proof of AVX-512 on other machines, so nothing calls this there.
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (has, twins, features, leaves, sums);
    }

    /// Sets all sums to 0.
    pub(super) fn clear(sums: &mut Banks) {
        sums.0[0][..LANES].fill(0);
    }

    /// Moves the sums to the places of their features.
    pub(super) fn unite(sums: &mut Banks) -> &[i32] {
        let lanes = &mut sums.0[0];
        lanes.copy_within(36..48, 32);
        lanes.copy_within(52..64, 44);
        &lanes[..Self::FEATURES]
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(
    unsafe_code,
    reason = "calls of instructions that not every machine has, and loads and stores of registers"
)]
mod avx512 {
    use std::arch::x86_64::*;

    use super::{AMOUNTS, Banks, HasAvx512, SLOTS, Twin};

    #[inline(always)]
    pub(super) fn add(_: HasAvx512, twins: &[Twin], features: usize, leaves: &[u32], sums: &mut Banks) {
        // SAFETY: the argument proves that the machine has the instructions.
        unsafe {
            match features {
                0..=16 => add_in::<1>(twins, leaves, sums),
                17..=32 => add_in::<2>(twins, leaves, sums),
                33..=44 => add_in::<3>(twins, leaves, sums),
                _ => add_in::<4>(twins, leaves, sums),
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
    fn add_in<const REGISTERS: usize>(twins: &[Twin], leaves: &[u32], sums: &mut Banks) {
        let lanes = sums.0[0].as_chunks_mut::<16>().0;
        let mut registers = [_mm512_setzero_si512(); REGISTERS];
        for (register, lanes) in registers.iter_mut().zip(&*lanes) {
            // SAFETY: sixteen sums are read.
            *register = unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) };
        }
        for &leaf in leaves {
            let leaf = leaf as usize;
            let twin = &twins[leaf / 2];
            // SAFETY: the mask selects the amounts and no more.
            let amounts = unsafe { _mm512_maskz_loadu_epi32((1 << AMOUNTS) - 1, twin.amounts.as_ptr()) };
            let amounts = _mm512_mask_set1_epi32(amounts, 1, twin.amounts[leaf % 2]);
            for (half, registers) in registers.chunks_mut(2).enumerate() {
                // SAFETY: the first 16 and the last 16 bytes of the slots are read.
                let slots = unsafe { _mm_loadu_si128(twin.slots.as_ptr().add((SLOTS - 16) * half).cast()) };
                let mut places = _mm512_cvtepu8_epi32(slots);
                for register in registers {
                    // The permutation ignores the bits above the low four.
                    *register = _mm512_add_epi32(*register, _mm512_permutexvar_epi32(places, amounts));
                    places = _mm512_srli_epi32::<4>(places);
                }
            }
        }
        for (register, lanes) in registers.iter().zip(lanes) {
            // SAFETY: sixteen sums are written.
            unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), *register) };
        }
    }
}
