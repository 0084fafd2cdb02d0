//! The plan of a specialised forest: which residuals are walked, and how their leaves are added in the training
//! library's order.

use super::super::layout::{Layout, PackedNode, Span};
use super::super::model::{BaseOrder, Target};
use super::lookup::{Lanes, NIBBLE, OVERHANG, PER_LANE, Packing, Trees};
use super::outcomes::Tests;
use super::residuals::{Family, Residuals};
use super::settle::Settled;
use super::specialise::{Part, Specialiser};
use super::split::SplitTrees;
use super::{Catalogue, Detected, Shape, set};
use crate::budget::{Budget, OutOfTime};

/// Number of trees between two checks of the budget.
const CHECK_EVERY: usize = 512;

/// Limits of the memory and work of specialising. A tree that exceeds them is split instead.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes that all residuals may take per node of the forest.
    pub(super) bytes_per_node: usize,
    /// Bytes that all residuals may take in addition.
    pub(super) free_bytes: usize,
    /// Greatest number of residual leaves per leaf of one tree.
    pub(super) growth: usize,
    /// Greatest number of classes of one tree.
    pub(super) classes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes_per_node: 24, free_bytes: 1 << 20, growth: 128, classes: super::specialise::MAX_CLASSES }
    }
}

/// The residuals, with test numbers of 16 bits if the forest has few enough tests.
#[derive(Debug)]
enum Walks<T> {
    Narrow(Residuals<u16, T>),
    Wide(Residuals<u32, T>),
}

/// Consecutive trees of one output whose leaves are added to the sums in the same way.
#[derive(Debug)]
struct Run {
    output: usize,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// Trees `first..first + count` of `tables`; class numbers of the first tile start at `words`.
    Look { packing: Packing, first: usize, count: usize, words: usize },
    /// One split tree, by its number.
    Split(u32),
}

#[derive(Debug)]
pub(super) struct Factored<T> {
    isa: Detected,
    actions: usize,
    tests: Tests,
    walks: Walks<T>,
    split: SplitTrees<T>,
    runs: Vec<Run>,
    /// For each specialised tree, in the order of the runs: the position of its first class in the table, and its
    /// number of classes.
    tables: Vec<(u32, u32)>,
    /// The packed class numbers, by run, tile and tree.
    words: Vec<u32>,
    /// The initial table, which holds the leaves that are the same for every context.
    table: Vec<T>,
    /// The profile of each action; empty if there are no split trees.
    profile_of: Vec<u32>,
    pub(super) shape: Shape,
}

/// Working memory.
#[derive(Debug, Clone)]
pub(super) struct Buffers<T> {
    outcomes: Vec<u8>,
    table: Vec<T>,
    sums: Vec<T>,
    stack: Vec<u64>,
    eligible: Vec<u64>,
    leaves: Vec<T>,
}

impl<T: Lanes> Factored<T> {
    pub(super) fn new(
        layout: &Layout,
        leaves: &[T],
        catalogue: &Catalogue<'_>,
        isa: Detected,
        limits: Limits,
    ) -> Option<Self> {
        if layout.trees.iter().any(|tree| tree.target == Target::All) {
            return None;
        }
        let settled = Settled::new(layout, catalogue)?;
        let mut build = Build {
            layout,
            leaves,
            settled: &settled,
            specialiser: Specialiser::new(&settled),
            isa,
            actions: catalogue.actions,
            limits,
            bytes: limits.free_bytes + limits.bytes_per_node * layout.nodes.len(),
            residuals: Residuals::new(),
            split: SplitTrees::new(settled.words),
            runs: Vec::new(),
            tables: Vec::new(),
            words: Vec::new(),
            table: Vec::new(),
        };
        for output in 0..layout.num_outputs {
            build.output(output)?;
        }
        let Build { specialiser, residuals, mut split, runs, tables, words, mut table, .. } = build;
        let classes = table.len();
        let (tests, renumbered) = Tests::new(&specialiser.into_tests());
        // Register loads read beyond the last tree's classes. Residuals that only complete a group write to the last
        // entry.
        table.resize(classes + OVERHANG, T::default());
        let spare = u32::try_from(table.len() - 1).ok()?;
        let walks = if tests.len() <= 1 << 16 {
            Walks::Narrow(residuals.finish(&renumbered, spare))
        } else {
            Walks::Wide(residuals.finish(&renumbered, spare))
        };
        let shape = Shape {
            specialised: tables.len(),
            split: split.len(),
            residuals: match &walks {
                Walks::Narrow(walks) => walks.count(),
                Walks::Wide(walks) => walks.count(),
            },
            classes,
            tests: tests.len() - super::outcomes::KNOWN,
            profiles: settled.profiles,
        };
        let profile_of = if split.len() > 0 { settled.profile_of.clone() } else { Vec::new() };
        split.finish(&renumbered, settled);
        let actions = catalogue.actions;
        Some(Self { isa, actions, tests, walks, split, runs, tables, words, table, profile_of, shape })
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let walks = match &self.walks {
            Walks::Narrow(walks) => walks.heap_bytes(),
            Walks::Wide(walks) => walks.heap_bytes(),
        };
        self.tests.heap_bytes()
            + walks
            + self.split.heap_bytes()
            + size_of::<Run>() * self.runs.len()
            + 8 * self.tables.len()
            + 4 * self.words.len()
            + size_of::<T>() * self.table.len()
            + 4 * self.profile_of.len()
    }

    pub(super) fn buffers(&self) -> Buffers<T> {
        let splits = self.split.len() > 0;
        Buffers {
            outcomes: vec![0; self.tests.len()],
            table: self.table.clone(),
            sums: vec![T::default(); self.actions.next_multiple_of(tile::<T>(self.isa))],
            stack: vec![0; self.split.stack()],
            eligible: vec![0; if splits { self.shape.profiles.div_ceil(64) } else { 0 }],
            leaves: vec![T::default(); if splits { self.shape.profiles } else { 0 }],
        }
    }

    pub(super) fn margins(
        &self,
        layout: &Layout,
        slots: &[i32],
        eligible: &[u64],
        budget: &dyn Budget,
        buffers: &mut Buffers<T>,
        out: &mut [f64],
    ) -> Result<(), OutOfTime> {
        assert!(
            buffers.outcomes.len() == self.tests.len() && buffers.table.len() == self.table.len(),
            "the scratch belongs to another forest"
        );
        self.tests.fill(self.isa, slots, &mut buffers.outcomes);
        match &self.walks {
            Walks::Narrow(walks) => walks.walk(&buffers.outcomes, budget, &mut buffers.table)?,
            Walks::Wide(walks) => walks.walk(&buffers.outcomes, budget, &mut buffers.table)?,
        }
        if self.split.len() > 0 {
            buffers.eligible.fill(0);
            for action in set::members(eligible) {
                set::insert(&mut buffers.eligible, self.profile_of[action] as usize);
            }
        }
        let mut runs = self.runs.as_slice();
        for (output, out) in out.chunks_exact_mut(self.actions).enumerate() {
            let base = T::from_f64(layout.base[output]);
            let starts_at_base = layout.base_order == BaseOrder::First;
            buffers.sums.fill(if starts_at_base { base } else { T::default() });
            let count = runs.iter().take_while(|run| run.output == output).count();
            let (own, rest) = runs.split_at(count);
            runs = rest;
            for run in own {
                if budget.spent() {
                    return Err(OutOfTime);
                }
                self.run(run, eligible, buffers);
            }
            let divisor = layout.divisor.get(output).map(|&divisor| T::from_f64(divisor));
            for (out, &sum) in out.iter_mut().zip(&buffers.sums) {
                let mut sum = sum;
                if let Some(divisor) = divisor {
                    sum /= divisor;
                }
                if !starts_at_base {
                    sum = T::from_f64(sum.to_f64() + layout.base[output]);
                }
                *out = sum.to_f64();
            }
        }
        Ok(())
    }

    fn run(&self, run: &Run, eligible: &[u64], buffers: &mut Buffers<T>) {
        match run.step {
            Step::Look { packing, first, count, words } => {
                let lanes = T::lanes(self.isa);
                let per_tile = count * packing.words() * lanes;
                let words = self.words[words..].chunks_exact(per_tile);
                for (t, (sums, words)) in
                    buffers.sums.chunks_exact_mut(lanes * PER_LANE).zip(words).enumerate()
                {
                    let tables = &self.tables[first..first + count];
                    let trees = Trees { packing, tables, words, table: &buffers.table };
                    // Rows after the last eligible action need no sums.
                    let rows = eligible_rows(eligible, t * lanes * PER_LANE, lanes);
                    T::add(self.isa, trees, rows, sums);
                }
            }
            Step::Split(tree) => {
                let Buffers { outcomes, sums, stack, eligible, leaves, .. } = buffers;
                self.split.walk(tree, outcomes, eligible, stack, leaves);
                for (sum, &profile) in sums.iter_mut().zip(&self.profile_of) {
                    *sum += leaves[profile as usize];
                }
            }
        }
    }
}

/// Number of actions of a tile.
fn tile<T: Lanes>(isa: Detected) -> usize {
    T::lanes(isa) * PER_LANE
}

/// Number of rows of the tile at action `first`, up to the last row with an eligible action.
fn eligible_rows(eligible: &[u64], first: usize, lanes: usize) -> usize {
    (0..PER_LANE)
        .rev()
        .find(|row| {
            let at = first + row * lanes;
            let word = eligible.get(at / 64).copied().unwrap_or(0);
            word >> (at % 64) & ((1 << lanes) - 1) != 0
        })
        .map_or(0, |row| row + 1)
}

struct Build<'a, T> {
    layout: &'a Layout,
    leaves: &'a [T],
    settled: &'a Settled,
    specialiser: Specialiser<'a>,
    isa: Detected,
    actions: usize,
    limits: Limits,
    /// Bytes that residuals may still take.
    bytes: usize,
    residuals: Residuals<u32, T>,
    split: SplitTrees<T>,
    runs: Vec<Run>,
    tables: Vec<(u32, u32)>,
    words: Vec<u32>,
    table: Vec<T>,
}

/// A specialised tree before its class numbers are packed.
struct Classes {
    packing: Packing,
    table: (u32, u32),
    /// The class number of each profile.
    numbers: Vec<u8>,
}

impl<'a, T: Lanes> Build<'a, T> {
    /// Adds the trees of one output, in order.
    fn output(&mut self, output: usize) -> Option<()> {
        let mut pending: Vec<Classes> = Vec::new();
        let layout = self.layout;
        for tree in layout.trees.iter().filter(|tree| tree.target == Target::Output(output as u32)) {
            match self.specialise(tree)? {
                Ok(classes) => {
                    if pending.first().is_some_and(|first| first.packing != classes.packing)
                        || pending.len() == CHECK_EVERY
                    {
                        self.look(output, &mut pending);
                    }
                    pending.push(classes);
                }
                Err(split) => {
                    self.look(output, &mut pending);
                    self.runs.push(Run { output, step: Step::Split(split) });
                }
            }
        }
        self.look(output, &mut pending);
        Some(())
    }

    /// Returns the tree's classes, or its number among the split trees; `None` if the table would get too long.
    fn specialise(&mut self, tree: &Span) -> Option<Result<Classes, u32>> {
        let nodes = &self.layout.nodes[tree.first_node..tree.first_node + tree.nodes];
        let leaves = &self.leaves[tree.first_value..tree.first_value + tree.leaves()];
        let first = u32::try_from(self.table.len()).ok()?;
        let Some((numbers, count)) = self.residuals(nodes, leaves) else {
            self.table.truncate(first as usize);
            let split = self.split.push(nodes, leaves, tree.depth, self.settled, &mut self.specialiser);
            return Some(Err(split));
        };
        let packing = match count {
            count if count <= T::narrow(self.isa) => Packing::Narrow,
            count if count <= NIBBLE => Packing::Nibbles,
            _ => Packing::Bytes,
        };
        Some(Ok(Classes { packing, table: (first, count as u32), numbers }))
    }

    /// Adds the residuals of a tree and table entries for their leaves. Returns the class of each profile and the
    /// number of classes.
    fn residuals(&mut self, nodes: &'a [PackedNode], leaves: &[T]) -> Option<(Vec<u8>, usize)> {
        let (parts, sets) = self.specialiser.tree(nodes).ok()?;
        let grown: usize = parts.iter().map(|&part| self.specialiser.size(part).leaves as usize).sum();
        if parts.len() > self.limits.classes || grown > self.limits.growth * leaves.len() {
            return None;
        }
        let mut numbers = vec![0; self.settled.profiles];
        let mut members = Vec::new();
        for (class, (&part, set)) in parts.iter().zip(sets.chunks_exact(self.settled.words)).enumerate() {
            let place = self.table.len() as u32;
            match part {
                Part::Source(at) if nodes[at as usize].is_leaf() => {
                    self.table.push(leaves[nodes[at as usize].leaf_number()]);
                }
                _ => {
                    self.table.push(T::default());
                    members.push((part, place));
                }
            }
            set::members(set).for_each(|profile| numbers[profile] = class as u8);
        }
        let family = Family { source: nodes, leaves, members: &members };
        self.bytes -= self.residuals.push(&family, &mut self.specialiser, self.bytes)?;
        Some((numbers, parts.len()))
    }

    /// Packs the class numbers of consecutive trees and adds their run.
    fn look(&mut self, output: usize, pending: &mut Vec<Classes>) {
        let Some(&Classes { packing, .. }) = pending.first() else { return };
        let (lanes, tile) = (T::lanes(self.isa), tile::<T>(self.isa));
        let step =
            Step::Look { packing, first: self.tables.len(), count: pending.len(), words: self.words.len() };
        self.runs.push(Run { output, step });
        let per_tree = packing.words() * lanes;
        for first in (0..self.actions).step_by(tile) {
            let profiles = &self.settled.profile_of[first..self.actions.min(first + tile)];
            for classes in &*pending {
                let start = self.words.len();
                self.words.resize(start + per_tree, 0);
                for (at, &profile) in profiles.iter().enumerate() {
                    let class = usize::from(classes.numbers[profile as usize]);
                    packing.set(&mut self.words[start..], lanes, at, class);
                }
            }
        }
        self.tables.extend(pending.drain(..).map(|classes| classes.table));
    }
}
