//! Programs with AVX-512: all rows of a block in one register.

use std::arch::x86_64::*;

use super::super::super::bits::Columns;
use super::super::super::operation::Operation;
use super::super::super::rank::{Column, ROWS};
use super::super::super::slots::CategoryTable;

/// # Safety
/// The machine has [`super::super::Isa::Avx512`], and every operand is below `work.len()`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
pub(super) unsafe fn execute(operations: &[Operation], work: &mut [Column]) {
    let work = work.as_mut_ptr();
    for operation in operations {
        // SAFETY: the caller's obligation; a column is a register, aligned to 64 bytes.
        unsafe {
            let at = |operand: u16| work.add(usize::from(operand)).cast::<__m512i>();
            let cut = _mm512_set1_epi32(operation.cut.cast_signed());
            let is_right = _mm512_cmplt_epu8_mask(_mm512_load_si512(at(operation.ranks)), cut);
            let left = _mm512_load_si512(at(operation.left));
            let right = _mm512_load_si512(at(operation.right));
            _mm512_store_si512(at(operation.out), _mm512_mask_blend_epi8(is_right, left, right));
        }
    }
}

/// # Safety
/// The machine has [`super::super::Isa::Avx512`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
pub(super) unsafe fn expand(tables: &[u64], columns: &[u32], out: &mut [Column]) {
    for (out, &column) in out.iter_mut().zip(columns) {
        // SAFETY: a column is a register, aligned to 64 bytes.
        unsafe {
            _mm512_store_si512(out.0.as_mut_ptr().cast(), _mm512_movm_epi8(!tables[column as usize]));
        }
    }
}

/// Up to 64 leaves stay in registers: a permutation of floats selects from 32, and a bit of the number between two
/// results. More are gathered.
///
/// # Safety
/// The machine has [`super::super::Isa::Avx512`], and every number is below `leaves.len()`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
pub(super) unsafe fn add_f32(found: &Column, leaves: &[f32], sums: &mut [f32; ROWS]) {
    let register = |number: usize| -> __m512 {
        let rest = leaves.len().saturating_sub(16 * number).min(16);
        // SAFETY: as many lanes are read as there are leaves from this one.
        unsafe {
            _mm512_maskz_loadu_ps(((1_u32 << rest) - 1) as u16, leaves.as_ptr().wrapping_add(16 * number))
        }
    };
    let quarters = found.0.as_chunks::<16>().0.iter().zip(sums.as_chunks_mut::<16>().0);
    if leaves.len() <= 64 {
        let leaf = [register(0), register(1), register(2), register(3)];
        for (found, sums) in quarters {
            // SAFETY: sixteen numbers and sixteen sums.
            unsafe {
                let number = _mm512_cvtepu8_epi32(_mm_loadu_si128(found.as_ptr().cast()));
                let low = _mm512_permutex2var_ps(leaf[0], number, leaf[1]);
                let high = _mm512_permutex2var_ps(leaf[2], number, leaf[3]);
                let is_high = _mm512_test_epi32_mask(number, _mm512_set1_epi32(32));
                let value = _mm512_mask_blend_ps(is_high, low, high);
                _mm512_storeu_ps(sums.as_mut_ptr(), _mm512_add_ps(_mm512_loadu_ps(sums.as_ptr()), value));
            }
        }
        return;
    }
    for (found, sums) in quarters {
        // SAFETY: sixteen numbers below the number of leaves (the caller's obligation), and sixteen sums.
        unsafe {
            let number = _mm512_cvtepu8_epi32(_mm_loadu_si128(found.as_ptr().cast()));
            let value = _mm512_i32gather_ps::<4>(number, leaves.as_ptr().cast());
            _mm512_storeu_ps(sums.as_mut_ptr(), _mm512_add_ps(_mm512_loadu_ps(sums.as_ptr()), value));
        }
    }
}

/// # Safety
/// The machine has [`super::super::Isa::Avx512`], and every number is below `leaves.len()`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
pub(super) unsafe fn add_f64(found: &Column, leaves: &[f64], sums: &mut [f64; ROWS]) {
    for (found, sums) in found.0.as_chunks::<8>().0.iter().zip(sums.as_chunks_mut::<8>().0) {
        // SAFETY: eight numbers below the number of leaves (the caller's obligation), and eight sums.
        unsafe {
            let number = _mm256_cvtepu8_epi32(_mm_loadl_epi64(found.as_ptr().cast()));
            let value = _mm512_i32gather_pd::<8>(number, leaves.as_ptr().cast());
            _mm512_storeu_pd(sums.as_mut_ptr(), _mm512_add_pd(_mm512_loadu_pd(sums.as_ptr()), value));
        }
    }
}

/// The compiler turns the transposition into vector instructions.
///
/// # Safety
/// The machine has [`super::super::Isa::Avx512`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
pub(super) unsafe fn fill_tables(
    columns: Columns,
    tables: &[CategoryTable],
    rows: &[f32],
    width: usize,
    out: &mut [u64],
) {
    columns.fill_rows(tables, rows, width, out);
}
