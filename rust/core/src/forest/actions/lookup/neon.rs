//! NEON: selects leaves by table look-ups in registers, four bytes per leaf.
#![expect(unsafe_code, reason = "vector loads; `check` has proved the lengths")]

use std::arch::aarch64::*;

use super::{PER_LANE, Packing, Trees};

/// Words of a tree; they fill two registers.
const LANES: usize = 8;

/// # Safety
/// `super::check` has passed with [`LANES`] lanes.
pub(super) unsafe fn f32(trees: Trees<'_, f32>, rows: usize, sums: &mut [f32]) {
    if trees.packing == Packing::Bytes {
        return super::portable::add(trees, LANES, rows, sums);
    }
    // SAFETY: the caller's obligations.
    unsafe {
        match (trees.packing, rows) {
            (_, 0) => {}
            (Packing::Narrow, 1) => nibbles::<1, true>(trees, sums),
            (Packing::Narrow, 2) => nibbles::<2, true>(trees, sums),
            (Packing::Narrow, 3 | 4) => nibbles::<4, true>(trees, sums),
            (Packing::Narrow, _) => nibbles::<PER_LANE, true>(trees, sums),
            (_, 1) => nibbles::<1, false>(trees, sums),
            (_, 2) => nibbles::<2, false>(trees, sums),
            (_, 3 | 4) => nibbles::<4, false>(trees, sums),
            (..) => nibbles::<PER_LANE, false>(trees, sums),
        }
    }
}

/// Trees of at most 16 classes, or of at most 8 where `NARROW`.
///
/// # Safety
/// As [`f32`].
unsafe fn nibbles<const ROWS: usize, const NARROW: bool>(trees: Trees<'_, f32>, sums: &mut [f32]) {
    // SAFETY: AArch64 has NEON. `check` has proved that there are PER_LANE rows of 8 sums and that at least OVERHANG
    // values follow each table. A chunk has 8 words.
    unsafe {
        let mut sum = [[vdupq_n_f32(0.0); 2]; ROWS];
        for (row, sum) in sum.iter_mut().enumerate() {
            for (half, sum) in sum.iter_mut().enumerate() {
                *sum = vld1q_f32(sums.as_ptr().add(LANES * row + 4 * half));
            }
        }
        // Turns a class into the positions of its leaf's four bytes.
        let (times, plus) = (vdupq_n_u32(0x0404_0404), vdupq_n_u32(0x0302_0100));
        for (&(first, _), words) in trees.tables.iter().zip(trees.words.chunks_exact(LANES)) {
            let table = trees.table.as_ptr().add(first as usize).cast::<u8>();
            let at = |register: usize| vld1q_u8(table.add(16 * register));
            let narrow = uint8x16x2_t(at(0), at(1));
            let (wide, classes) =
                if NARROW { (None, 7) } else { (Some(uint8x16x4_t(narrow.0, narrow.1, at(2), at(3))), 15) };
            let words = [vld1q_u32(words.as_ptr()), vld1q_u32(words.as_ptr().add(4))];
            for (row, sum) in sum.iter_mut().enumerate() {
                for (sum, words) in sum.iter_mut().zip(words) {
                    let class = vshlq_u32(words, vdupq_n_s32(-4 * row as i32));
                    let class = vandq_u32(class, vdupq_n_u32(classes));
                    let bytes = vreinterpretq_u8_u32(vmlaq_u32(plus, class, times));
                    let leaf = match wide {
                        Some(wide) => vqtbl4q_u8(wide, bytes),
                        None => vqtbl2q_u8(narrow, bytes),
                    };
                    *sum = vaddq_f32(*sum, vreinterpretq_f32_u8(leaf));
                }
            }
        }
        for (row, sum) in sum.into_iter().enumerate() {
            for (half, sum) in sum.into_iter().enumerate() {
                vst1q_f32(sums.as_mut_ptr().add(LANES * row + 4 * half), sum);
            }
        }
    }
}
