//! Ranks of a block of rows with AVX-512: sixteen rows are searched in the lanes of a register.
//!
//! The last numbers of the 32 buckets of a feature's sorted cuts are in two registers, where five permutations find each
//! row's bucket. A bucket of several numbers is searched in memory.

use std::arch::x86_64::*;

use super::super::super::key;
use super::super::super::rank::{BUCKETS, Column, ROWS, Ranks, Search};

/// Computes 255 minus the ranks of a block for every numeric byte slot. Lanes without a row are unspecified.
///
/// # Safety
/// The machine has [`super::super::Isa::Avx512`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
pub(super) unsafe fn rank_rows(ranks: &Ranks, rows: &[f32], width: usize, out: &mut [Column]) {
    let mut values = [0_u32; ROWS];
    for search in &ranks.searches {
        for (row, value) in rows.chunks_exact(width).zip(&mut values) {
            *value = row[search.feature as usize].to_bits();
        }
        let first = search.first_slot as usize;
        let slots = &ranks.slots[first..first + search.slots as usize];
        let out = &mut out[first..first + slots.len()];
        for (quarter, values) in values.as_chunks::<16>().0.iter().enumerate() {
            // SAFETY: sixteen values.
            let bits = unsafe { _mm512_loadu_si512(values.as_ptr().cast()) };
            let size = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fff_ffff));
            let is_nan = _mm512_cmpgt_epi32_mask(size, int(f32::INFINITY));
            let is_zero = _mm512_cmple_epi32_mask(size, int(key::ZERO_BOUND));
            let sign = _mm512_srli_epi32::<1>(_mm512_srai_epi32::<31>(bits));
            // -0 has the key of +0, which is 0.
            let is_number = _mm512_test_epi32_mask(size, size);
            let value = _mm512_maskz_xor_epi32(is_number, bits, sign);
            // SAFETY: as this function.
            let rank = unsafe { find(&ranks.sorted, search, value) };
            for (slot, out) in slots.iter().zip(out.iter_mut()) {
                let own = _mm512_sub_epi32(rank, _mm512_set1_epi32(slot.start));
                let own = _mm512_max_epi32(own, _mm512_setzero_si512());
                let mut own = _mm512_min_epi32(own, _mm512_set1_epi32(255));
                if let Some(zero) = slot.zero {
                    own = _mm512_mask_blend_epi32(is_zero, own, _mm512_set1_epi32(i32::from(zero)));
                }
                own = _mm512_mask_blend_epi32(is_nan, own, _mm512_set1_epi32(i32::from(slot.nan)));
                let inverted = _mm512_sub_epi32(_mm512_set1_epi32(255), own);
                let out = &mut out.0.as_chunks_mut::<16>().0[quarter];
                // SAFETY: sixteen bytes are written to sixteen bytes.
                unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(inverted)) };
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
#[inline]
fn int(value: f32) -> __m512i {
    _mm512_set1_epi32(value.to_bits().cast_signed())
}

/// Returns the number of a feature's cuts that are not above each value.
///
/// # Safety
/// The machine has [`super::super::Isa::Avx512`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
#[inline]
unsafe fn find(sorted: &[i32], search: &Search, value: __m512i) -> __m512i {
    let own = &sorted[search.first_sorted as usize..];
    let pivots = &own[..BUCKETS];
    // SAFETY: a feature has 32 pivots.
    let (low, high) = unsafe {
        (_mm512_loadu_si512(pivots.as_ptr().cast()), _mm512_loadu_si512(pivots.as_ptr().add(16).cast()))
    };
    let mut at = _mm512_setzero_si512();
    for step in [16, 8, 4, 2, 1] {
        let probe = _mm512_add_epi32(at, _mm512_set1_epi32(step - 1));
        let is_above = _mm512_cmpgt_epi32_mask(value, _mm512_permutex2var_epi32(low, probe, high));
        at = _mm512_mask_add_epi32(at, is_above, at, _mm512_set1_epi32(step));
    }
    if search.shift == 0 {
        return at;
    }
    let numbers = &own[BUCKETS..BUCKETS + (BUCKETS << search.shift)];
    let mut at = _mm512_sll_epi32(at, _mm_cvtsi32_si128(i32::from(search.shift)));
    let mut step = 1 << search.shift;
    while step > 1 {
        step /= 2;
        let probe = _mm512_add_epi32(at, _mm512_set1_epi32(step - 1));
        // SAFETY: the bucket is below 32 and a place in it below its size, so the place is one of the numbers.
        let number = unsafe { _mm512_i32gather_epi32::<4>(probe, numbers.as_ptr().cast()) };
        let is_above = _mm512_cmpgt_epi32_mask(value, number);
        at = _mm512_mask_add_epi32(at, is_above, at, _mm512_set1_epi32(step));
    }
    at
}
