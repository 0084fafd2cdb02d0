//! AVX-512 and AVX2: selects leaves by permuting registers.
#![expect(unsafe_code, reason = "vector loads; `check` has proved the lengths")]

use std::arch::x86_64::*;

use super::{OVERHANG, PER_LANE, Packing, Trees};

/// Calls `$kernel` with the number of rows as a constant: the least of 1, 2, 4 and 8 that is enough.
macro_rules! with_rows {
    ($rows:expr, $kernel:ident, $($argument:expr),+) => {
        // SAFETY: the caller's obligations.
        unsafe {
            match $rows {
                0 => {}
                1 => $kernel::<1>($($argument),+),
                2 => $kernel::<2>($($argument),+),
                3 | 4 => $kernel::<4>($($argument),+),
                _ => $kernel::<PER_LANE>($($argument),+),
            }
        }
    };
}

/// # Safety
/// The processor has AVX-512 F, and `super::check` has passed with 16 lanes.
pub(super) unsafe fn avx512_f32(trees: Trees<'_, f32>, rows: usize, sums: &mut [f32]) {
    match trees.packing {
        Packing::Narrow | Packing::Nibbles => with_rows!(rows, f32x16_nibbles, trees, sums),
        Packing::Bytes => with_rows!(rows, f32x16_bytes, trees, sums),
    }
}

/// # Safety
/// As [`avx512_f32`].
#[target_feature(enable = "avx512f")]
unsafe fn f32x16_nibbles<const ROWS: usize>(trees: Trees<'_, f32>, sums: &mut [f32]) {
    let mut sum = [_mm512_setzero_ps(); ROWS];
    for (row, sum) in sum.iter_mut().enumerate() {
        // SAFETY: there are PER_LANE rows of 16 sums.
        *sum = unsafe { _mm512_loadu_ps(sums.as_ptr().add(16 * row)) };
    }
    for (&(first, _), words) in trees.tables.iter().zip(trees.words.chunks_exact(16)) {
        // SAFETY: a table starts OVERHANG values before the end, or earlier; a chunk is 16 words.
        let (table, words) = unsafe {
            (
                _mm512_loadu_ps(trees.table.as_ptr().add(first as usize)),
                _mm512_loadu_si512(words.as_ptr().cast()),
            )
        };
        for (row, sum) in sum.iter_mut().enumerate() {
            // The permutation reads the low four bits of an index alone.
            let class = _mm512_srlv_epi32(words, _mm512_set1_epi32(4 * row as i32));
            *sum = _mm512_add_ps(*sum, _mm512_permutexvar_ps(class, table));
        }
    }
    for (row, sum) in sum.into_iter().enumerate() {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(sums.as_mut_ptr().add(16 * row), sum) };
    }
}

/// # Safety
/// As [`avx512_f32`].
#[target_feature(enable = "avx512f")]
unsafe fn f32x16_bytes<const ROWS: usize>(trees: Trees<'_, f32>, sums: &mut [f32]) {
    let mut sum = [_mm512_setzero_ps(); ROWS];
    for (row, sum) in sum.iter_mut().enumerate() {
        // SAFETY: there are PER_LANE rows of 16 sums.
        *sum = unsafe { _mm512_loadu_ps(sums.as_ptr().add(16 * row)) };
    }
    const { assert!(OVERHANG >= 32) };
    for (&(first, count), words) in trees.tables.iter().zip(trees.words.chunks_exact(32)) {
        // SAFETY: a chunk is 32 words.
        let words = unsafe {
            [_mm512_loadu_si512(words.as_ptr().cast()), _mm512_loadu_si512(words.as_ptr().add(16).cast())]
        };
        let mut leaf = [_mm512_setzero_ps(); ROWS];
        for part in 0..count.div_ceil(32) {
            // SAFETY: a table ends OVERHANG values before the end, or earlier, and this part starts in it.
            let (low, high) = unsafe {
                let start = trees.table.as_ptr().add((first + 32 * part) as usize);
                (_mm512_loadu_ps(start), _mm512_loadu_ps(start.add(16)))
            };
            for (row, leaf) in leaf.iter_mut().enumerate() {
                let class = _mm512_srlv_epi32(words[row / 4], _mm512_set1_epi32(8 * (row % 4) as i32));
                let of_part = _mm512_and_si512(class, _mm512_set1_epi32(0xe0));
                let here = _mm512_cmpeq_epi32_mask(of_part, _mm512_set1_epi32(32 * part as i32));
                // The permutation reads the low five bits of an index alone.
                *leaf = _mm512_mask_blend_ps(here, *leaf, _mm512_permutex2var_ps(low, class, high));
            }
        }
        for (sum, leaf) in sum.iter_mut().zip(leaf) {
            *sum = _mm512_add_ps(*sum, leaf);
        }
    }
    for (row, sum) in sum.into_iter().enumerate() {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(sums.as_mut_ptr().add(16 * row), sum) };
    }
}

/// # Safety
/// The processor has AVX-512 F, and `super::check` has passed with 16 lanes.
pub(super) unsafe fn avx512_f64(trees: Trees<'_, f64>, rows: usize, sums: &mut [f64]) {
    match trees.packing {
        Packing::Narrow | Packing::Nibbles => with_rows!(rows, f64x8_nibbles, trees, sums),
        Packing::Bytes => super::portable::add(trees, 16, rows, sums),
    }
}

/// A row of 16 words fills two registers: words 0 to 7, and 8 to 15.
///
/// # Safety
/// As [`avx512_f64`].
#[target_feature(enable = "avx512f")]
unsafe fn f64x8_nibbles<const ROWS: usize>(trees: Trees<'_, f64>, sums: &mut [f64]) {
    let mut sum = [[_mm512_setzero_pd(); 2]; ROWS];
    for (row, sum) in sum.iter_mut().enumerate() {
        for (half, sum) in sum.iter_mut().enumerate() {
            // SAFETY: there are PER_LANE rows of 16 sums.
            *sum = unsafe { _mm512_loadu_pd(sums.as_ptr().add(16 * row + 8 * half)) };
        }
    }
    for (&(first, _), words) in trees.tables.iter().zip(trees.words.chunks_exact(16)) {
        // SAFETY: a table starts OVERHANG values before the end, or earlier; a chunk is 16 words.
        let (low, high, words) = unsafe {
            let start = trees.table.as_ptr().add(first as usize);
            let words = words.as_ptr();
            (
                _mm512_loadu_pd(start),
                _mm512_loadu_pd(start.add(8)),
                [_mm256_loadu_si256(words.cast()), _mm256_loadu_si256(words.add(8).cast())],
            )
        };
        let words = words.map(|words| _mm512_cvtepu32_epi64(words));
        for (row, sum) in sum.iter_mut().enumerate() {
            for (sum, words) in sum.iter_mut().zip(words) {
                // The permutation reads the low four bits of an index alone.
                let class = _mm512_srlv_epi64(words, _mm512_set1_epi64(4 * row as i64));
                *sum = _mm512_add_pd(*sum, _mm512_permutex2var_pd(low, class, high));
            }
        }
    }
    for (row, sum) in sum.into_iter().enumerate() {
        for (half, sum) in sum.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm512_storeu_pd(sums.as_mut_ptr().add(16 * row + 8 * half), sum) };
        }
    }
}

/// # Safety
/// The processor has AVX2, and `super::check` has passed with 8 lanes.
pub(super) unsafe fn avx2_f32(trees: Trees<'_, f32>, rows: usize, sums: &mut [f32]) {
    match trees.packing {
        Packing::Narrow => with_rows!(rows, f32x8_narrow, trees, sums),
        Packing::Nibbles => with_rows!(rows, f32x8_nibbles, trees, sums),
        Packing::Bytes => super::portable::add(trees, 8, rows, sums),
    }
}

/// # Safety
/// As [`avx2_f32`].
#[target_feature(enable = "avx2")]
unsafe fn f32x8_narrow<const ROWS: usize>(trees: Trees<'_, f32>, sums: &mut [f32]) {
    let mut sum = [_mm256_setzero_ps(); ROWS];
    for (row, sum) in sum.iter_mut().enumerate() {
        // SAFETY: there are PER_LANE rows of 8 sums.
        *sum = unsafe { _mm256_loadu_ps(sums.as_ptr().add(8 * row)) };
    }
    for (&(first, _), words) in trees.tables.iter().zip(trees.words.chunks_exact(8)) {
        // SAFETY: a table starts OVERHANG values before the end, or earlier; a chunk is 8 words.
        let (table, words) = unsafe {
            (
                _mm256_loadu_ps(trees.table.as_ptr().add(first as usize)),
                _mm256_loadu_si256(words.as_ptr().cast()),
            )
        };
        for (row, sum) in sum.iter_mut().enumerate() {
            // The permutation reads the low three bits of an index alone.
            let class = _mm256_srlv_epi32(words, _mm256_set1_epi32(4 * row as i32));
            *sum = _mm256_add_ps(*sum, _mm256_permutevar8x32_ps(table, class));
        }
    }
    for (row, sum) in sum.into_iter().enumerate() {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(sums.as_mut_ptr().add(8 * row), sum) };
    }
}

/// # Safety
/// As [`avx2_f32`].
#[target_feature(enable = "avx2")]
unsafe fn f32x8_nibbles<const ROWS: usize>(trees: Trees<'_, f32>, sums: &mut [f32]) {
    let mut sum = [_mm256_setzero_ps(); ROWS];
    for (row, sum) in sum.iter_mut().enumerate() {
        // SAFETY: there are PER_LANE rows of 8 sums.
        *sum = unsafe { _mm256_loadu_ps(sums.as_ptr().add(8 * row)) };
    }
    for (&(first, _), words) in trees.tables.iter().zip(trees.words.chunks_exact(8)) {
        // SAFETY: a table starts OVERHANG values before the end, or earlier; a chunk is 8 words.
        let (low, high, words) = unsafe {
            let start = trees.table.as_ptr().add(first as usize);
            (_mm256_loadu_ps(start), _mm256_loadu_ps(start.add(8)), _mm256_loadu_si256(words.as_ptr().cast()))
        };
        for (row, sum) in sum.iter_mut().enumerate() {
            let class = _mm256_srlv_epi32(words, _mm256_set1_epi32(4 * row as i32));
            // The blend uses the sign bit, so bit 3 of the class is moved there.
            let upper = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(class));
            let leaf = _mm256_blendv_ps(
                _mm256_permutevar8x32_ps(low, class),
                _mm256_permutevar8x32_ps(high, class),
                upper,
            );
            *sum = _mm256_add_ps(*sum, leaf);
        }
    }
    for (row, sum) in sum.into_iter().enumerate() {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(sums.as_mut_ptr().add(8 * row), sum) };
    }
}
