//! Programs with the instructions that the compiler's target guarantees.

use std::ops::AddAssign;

use super::super::super::operation::Operation;
use super::super::super::rank::{Column, ROWS};

pub(super) fn execute(operations: &[Operation], work: &mut [Column]) {
    for operation in operations {
        let ranks = work[usize::from(operation.ranks)].0;
        let (left, right) = (work[usize::from(operation.left)].0, work[usize::from(operation.right)].0);
        let out = &mut work[usize::from(operation.out)].0;
        let cut = operation.cut as u8;
        for (row, out) in out.iter_mut().enumerate() {
            // A mask instead of a condition, so that the compiler uses vector instructions.
            let mask = if ranks[row] < cut { u8::MAX } else { 0 };
            *out = (right[row] & mask) | (left[row] & !mask);
        }
    }
}

pub(super) fn expand(tables: &[u64], columns: &[u32], out: &mut [Column]) {
    for (out, &column) in out.iter_mut().zip(columns) {
        let mut bits = [0; ROWS];
        super::super::super::bits::spread(tables[column as usize], &mut bits);
        // 1 becomes 0, and 0 becomes 255.
        out.0 = bits.map(|bit| bit.wrapping_sub(1));
    }
}

pub(super) fn add<T: Copy + AddAssign>(found: &Column, leaves: &[T], sums: &mut [T; ROWS]) {
    for (sum, &number) in sums.iter_mut().zip(&found.0) {
        *sum += leaves[usize::from(number)];
    }
}
