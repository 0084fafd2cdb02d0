//! Programs with AVX2: half of a block's rows in a register.

use std::arch::x86_64::*;

use super::super::super::bits::Columns;
use super::super::super::operation::Operation;
use super::super::super::rank::{Column, ROWS};
use super::super::super::slots::CategoryTable;

const HALF: usize = ROWS / 2;

/// # Safety
/// The machine has AVX2, and every operand is below `work.len()`.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) unsafe fn execute(operations: &[Operation], work: &mut [Column]) {
    let work = work.as_mut_ptr();
    for operation in operations {
        let cut = _mm256_set1_epi32((!operation.cut).cast_signed());
        for half in [0, HALF] {
            // SAFETY: the caller's obligation; a column is two registers, aligned to 64 bytes.
            unsafe {
                let at =
                    |operand: u16| work.add(usize::from(operand)).cast::<u8>().add(half).cast::<__m256i>();
                let ranks = _mm256_load_si256(at(operation.ranks));
                let (left, right) =
                    (_mm256_load_si256(at(operation.left)), _mm256_load_si256(at(operation.right)));
                // The rounded mean of 255 - rank and cut is at least 128 if and only if rank <= cut.
                let is_left = _mm256_avg_epu8(ranks, cut);
                _mm256_store_si256(at(operation.out), _mm256_blendv_epi8(right, left, is_left));
            }
        }
    }
}

/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) unsafe fn expand(tables: &[u64], columns: &[u32], out: &mut [Column]) {
    let own = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    // Lane i reads byte i / 8 of the word.
    let bytes = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    for (out, &column) in out.iter_mut().zip(columns) {
        let word = tables[column as usize];
        for (out, half) in out.0.as_chunks_mut::<HALF>().0.iter_mut().zip([word as u32, (word >> 32) as u32])
        {
            let all = _mm256_shuffle_epi8(_mm256_set1_epi32(half.cast_signed()), bytes);
            let clear = _mm256_cmpeq_epi8(_mm256_and_si256(all, own), _mm256_setzero_si256());
            // SAFETY: 32 bytes are written to 32 bytes.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), clear) };
        }
    }
}

/// The compiler turns the transposition into vector instructions.
///
/// # Safety
/// The machine has [`super::super::Isa::Avx2`].
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) unsafe fn fill_tables(
    columns: Columns,
    tables: &[CategoryTable],
    rows: &[f32],
    width: usize,
    out: &mut [u64],
) {
    columns.fill_rows(tables, rows, width, out);
}
