//! Walks several trees at once on byte ranks, without branches that depend on the data.

use super::super::rank::{Column, Plain, ROWS, Ranks, RowRanks};
use super::super::slots::CategoryTable;
use super::{GROUP, Nodes, Positions};

/// Number of trees walked at once. The positions and outcomes of more trees do not fit in the registers of x86-64.
const HALF: usize = GROUP / 2;

pub(in super::super) fn rank_row(ranks: &Ranks, tables: &[CategoryTable], row: &[f32], out: &mut RowRanks) {
    ranks.fill_row(tables, row, Plain, out);
}

pub(in super::super) fn find(nodes: Nodes<'_>, ranks: &RowRanks, out: &mut Positions) {
    find_at_once::<HALF>(nodes, ranks, out);
}

/// Walks `TREES` trees at once. The size of a group is a multiple of it.
#[inline(always)]
pub(super) fn find_at_once<const TREES: usize>(nodes: Nodes<'_>, ranks: &RowRanks, out: &mut Positions) {
    match nodes.depth {
        3 => walk::<3, TREES>(nodes, ranks, out),
        4 => walk::<4, TREES>(nodes, ranks, out),
        5 => walk::<5, TREES>(nodes, ranks, out),
        6 => walk::<6, TREES>(nodes, ranks, out),
        7 => walk::<7, TREES>(nodes, ranks, out),
        _ => walk::<8, TREES>(nodes, ranks, out),
    }
}

fn walk<const DEPTH: usize, const TREES: usize>(nodes: Nodes<'_>, ranks: &RowRanks, out: &mut Positions) {
    let bytes = super::bytes(nodes.lines);
    let size = GROUP << DEPTH;
    // `black_box` hides the constant from the compiler, which would otherwise unroll the levels and spill registers.
    let levels = std::hint::black_box(DEPTH);
    for (group, out) in bytes.chunks_exact(2 * size).zip(out.as_chunks_mut::<GROUP>().0) {
        for (part, out) in out.as_chunks_mut::<TREES>().0.iter_mut().enumerate() {
            let trees = &group[(part * TREES) << DEPTH..];
            let mut at = [1_usize; TREES];
            for _ in 0..levels {
                for (lane, at) in at.iter_mut().enumerate() {
                    let node = (lane << DEPTH) + *at;
                    // SAFETY: `at` starts at 1 and has doubled, plus 0 or 1, fewer than DEPTH times, so it is below
                    // 2^DEPTH. A group has 2^DEPTH slots for each lane, and then as many cuts.
                    let (slot, cut) =
                        unsafe { (*trees.get_unchecked(node), *trees.get_unchecked(size + node)) };
                    *at = 2 * *at + usize::from(cut < ranks.0[usize::from(slot)]);
                }
            }
            *out = at.map(|at| (at - (1 << DEPTH)) as u8);
        }
    }
}

/// Computes the leaf positions of a block of rows one by one. Tests compare the other kernels with it.
pub(in super::super) fn positions(
    nodes: Nodes<'_>,
    tree: usize,
    columns: &[Column],
    rows: usize,
    out: &mut [u8; ROWS],
) {
    let size = 1 << nodes.depth;
    let (slots, cuts) = nodes.tree(tree);
    for (row, out) in out.iter_mut().enumerate().take(rows) {
        let mut at = 1;
        for _ in 0..nodes.depth {
            at = 2 * at + usize::from(cuts[at] < 255 - columns[usize::from(slots[at])].0[row]);
        }
        *out = (at - size) as u8;
    }
}
