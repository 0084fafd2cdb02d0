//! Exact Shapley values of the path-dependent game, by quadrature.
//!
//! In this game a leaf `l` has the value `v` times the product over the features of its path: for a feature in the
//! coalition 1 or 0, as the row passes all of the feature's tests or fails one (`o`); for a feature outside, the share
//! of training rows that pass them (`z`). The Shapley value of feature `i` is the integral from 0 to 1 of
//! `v (o_i - z_i)` times the product over the other features of `t o_j + (1 - t) z_j`. The integrand is a polynomial
//! whose degree is below the number of distinct features on the path, so a Gauss-Legendre rule of `N` points is exact
//! for paths of up to `2 N` features. The number of points is chosen by the forest: 4, 8, 16 or 32, which suffices for
//! the deepest allowed tree.
//!
//! The integral needs no division and no path by itself. Let `Q` of a node be the sum over the leaves below of `v` times
//! the factors of the edges below the node, and `P` the product of the factors of the edges above it. At a split of a
//! feature that does not occur above, the feature's share of all leaves below is `P` times the sum over both children of
//! `(o - z) Q`, and the node's own `Q` is the sum of `(t o + (1 - t) z) Q`. One walk down gives each node its `P`, one
//! walk up its `Q`. Of both children one is hot (`o` is 1) and one is cold (`o` is 0).
//!
//! Where the feature occurs above, its factor on this path is replaced:
//!
//! * If the row fails an earlier test of the feature, both children are cold. The factor changes by the share of the
//!   split alone, so the feature has had its share of these leaves already.
//! * Otherwise the earlier factor `E = t + (1 - t) z'` is divided out, and what the earlier split gives the feature for
//!   the leaves below, `(1 - z')` times the node's `Q`, is taken back.

use std::array::from_fn;
use std::sync::Arc;

use super::quadrature::gauss_legendre;
use super::{Covers, expectation, left_share};
use crate::budget::{Budget, OutOfTime, Unlimited};
#[cfg(target_arch = "x86_64")]
use crate::forest::Isa;
use crate::forest::{Forest, NodeView, TreeView};

/// Number of splits between two checks of the budget: about the work of ten small trees.
const SPLITS_PER_CHECK: usize = 512;
/// Stands for no earlier split of a feature.
const NONE: u32 = u32::MAX;

/// A forest prepared for exact contributions.
#[derive(Debug)]
pub struct TreeShap {
    forest: Arc<Forest>,
    trees: Box<[Tree]>,
    splits: Box<[Split]>,
    /// States of leaves beside a split; see [`Tree`].
    stubs: Box<[u32]>,
    /// Leaf values, `[leaf, values of the tree]`.
    values: Box<[f64]>,
    /// Expectation of each output's margin.
    expectations: Box<[f64]>,
    /// Greatest number of states of a tree.
    states: usize,
    points: Points,
}

/// Number of quadrature points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Points {
    Four,
    Eight,
    Sixteen,
    ThirtyTwo,
}

/// The parts of a tree. Every node has a state, except the leaves of tips.
#[derive(Debug)]
struct Tree {
    /// Splits with a split below, parents before children.
    inner: std::ops::Range<usize>,
    /// Splits whose children are leaves. The values of both are at twice the position of the tip.
    tips: std::ops::Range<usize>,
    /// The other leaves. Their values come after those of the tips.
    stubs: std::ops::Range<usize>,
    /// First of its values.
    first_value: usize,
    /// The output, or all outputs.
    output: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Split {
    slot: u32,
    key: i32,
    feature: u32,
    /// The state of the split.
    node: u32,
    /// The state of the left child; that of the right one follows. Tips have none.
    left: u32,
    /// The state of the node below the nearest split of the same feature on the path, or [`NONE`].
    prior: u32,
    /// Shares of the split's training rows that went to the left and to the right child.
    shares: [f64; 2],
    /// Share of the training rows that passed all tests of the feature above.
    prior_share: f64,
}

/// Working memory of [`TreeShap::contributions`].
#[derive(Debug, Clone)]
pub struct ShapScratch {
    slots: Vec<i32>,
    memory: Memory,
}

#[derive(Debug, Clone)]
enum Memory {
    Four(Work<4>),
    Eight(Work<8>),
    Sixteen(Work<16>),
    ThirtyTwo(Box<Work<32>>),
}

#[derive(Debug, Clone)]
struct Work<const N: usize> {
    rule: Rule<N>,
    /// `P` of each state on the way down, `Q` on the way up.
    states: Vec<[f64; N]>,
    /// Whether the row passes all tests of the state's feature up to it.
    hot: Vec<bool>,
    /// The integrand of each feature.
    sums: Vec<[f64; N]>,
}

/// The quadrature rule.
#[derive(Debug, Clone, Copy)]
struct Rule<const N: usize> {
    points: [f64; N],
    /// 1 minus each point.
    rest: [f64; N],
    weights: [f64; N],
}

impl TreeShap {
    /// Prepares a forest.
    ///
    /// # Panics
    /// Panics if the covers belong to another forest.
    #[must_use]
    pub fn new(forest: &Arc<Forest>, covers: &Covers) -> TreeShap {
        let features = forest.slot_features();
        let outputs = forest.num_outputs();
        let mut parts = Parts::default();
        let mut trees = Vec::new();
        for tree in forest.trees() {
            let added: Vec<usize> = (0..outputs).filter(|&output| tree.adds_to(output)).collect();
            trees.push(Tree {
                output: match added[..] {
                    [output] if outputs > 1 => Some(output as u32),
                    _ => None,
                },
                ..parts.push(tree, covers.of(tree.first_node(), tree.len()), &features, &added)
            });
        }
        let expectations = (0..outputs).map(|output| expectation(forest, covers, output, |_, _| ()));
        TreeShap {
            forest: Arc::clone(forest),
            trees: trees.into_boxed_slice(),
            splits: parts.splits.into_boxed_slice(),
            stubs: parts.stubs.into_boxed_slice(),
            values: parts.values.into_boxed_slice(),
            expectations: expectations.collect(),
            states: parts.states,
            points: match parts.features {
                0..=8 => Points::Four,
                9..=16 => Points::Eight,
                17..=32 => Points::Sixteen,
                _ => Points::ThirtyTwo,
            },
        }
    }

    /// The forest.
    #[must_use]
    pub fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// The expectation of an output's margin over the training rows, to which all contributions add.
    ///
    /// # Panics
    /// Panics if there is no such output.
    #[must_use]
    pub fn expectation(&self, output: usize) -> f64 {
        self.expectations[output]
    }

    /// Heap memory in bytes, without that of the forest.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.trees)
            + size_of_val(&*self.splits)
            + size_of_val(&*self.stubs)
            + size_of_val(&*self.values)
            + size_of_val(&*self.expectations)
    }

    /// Computes the contribution of each feature of one row to one output. It allocates nothing.
    ///
    /// # Panics
    /// Panics if `row` or `contributions` has not one value per feature, there is no such output, or `scratch` belongs
    /// to another forest.
    pub fn contributions(
        &self,
        row: &[f32],
        output: usize,
        scratch: &mut ShapScratch,
        contributions: &mut [f64],
    ) {
        // Without a limit there is always enough time.
        let _ = self.contributions_within(row, output, &Unlimited, scratch, contributions);
    }

    /// Computes the contributions as [`TreeShap::contributions`] does, within a budget.
    ///
    /// # Errors
    /// Returns [`OutOfTime`] if the budget is spent before the end; the results are then unspecified.
    ///
    /// # Panics
    /// Panics as [`TreeShap::contributions`] does.
    pub fn contributions_within(
        &self,
        row: &[f32],
        output: usize,
        budget: &dyn Budget,
        scratch: &mut ShapScratch,
        contributions: &mut [f64],
    ) -> Result<(), OutOfTime> {
        assert_eq!(contributions.len(), self.forest.num_features(), "there is not one value per feature");
        assert!(output < self.expectations.len(), "the forest has no such output");
        let ShapScratch { slots, memory } = scratch;
        self.forest.fill_slots(row, slots);
        let task = Task { slots, output, budget };
        match memory {
            Memory::Four(work) => self.dispatch(&task, work, contributions),
            Memory::Eight(work) => self.dispatch(&task, work, contributions),
            Memory::Sixteen(work) => self.dispatch(&task, work, contributions),
            Memory::ThirtyTwo(work) => self.dispatch(&task, work, contributions),
        }
    }

    /// Uses wide registers if the machine has them. The operations are the same, so the bits are too.
    fn dispatch<const N: usize>(
        &self,
        task: &Task<'_>,
        work: &mut Work<N>,
        out: &mut [f64],
    ) -> Result<(), OutOfTime> {
        #[cfg(target_arch = "x86_64")]
        if matches!(self.forest.isa(), Isa::Avx2 | Isa::Avx512) {
            #[expect(unsafe_code, reason = "the compiler cannot see that the machine has the instructions")]
            // SAFETY: a forest has an instruction set only if detection has found it, and AVX-512 includes AVX2.
            return unsafe { self.integrate_avx2(task, work, out) };
        }
        self.integrate(task, work, out)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn integrate_avx2<const N: usize>(
        &self,
        task: &Task<'_>,
        work: &mut Work<N>,
        out: &mut [f64],
    ) -> Result<(), OutOfTime> {
        self.integrate(task, work, out)
    }

    #[inline(always)]
    fn integrate<const N: usize>(
        &self,
        task: &Task<'_>,
        work: &mut Work<N>,
        out: &mut [f64],
    ) -> Result<(), OutOfTime> {
        work.sums.fill([0.0; N]);
        let mut unchecked = 0;
        for tree in &self.trees {
            let width = if tree.output.is_some() { 1 } else { self.expectations.len() };
            let column = match tree.output {
                Some(own) if own as usize != task.output => continue,
                Some(_) => 0,
                None => task.output,
            };
            let (inner, tips) = (&self.splits[tree.inner.clone()], &self.splits[tree.tips.clone()]);
            let stubs = &self.stubs[tree.stubs.clone()];
            let values = &self.values[tree.first_value..][..width * (2 * tips.len() + stubs.len())];
            let (of_tips, of_stubs) = values.split_at(width * 2 * tips.len());
            unchecked += inner.len() + tips.len();
            if unchecked >= SPLITS_PER_CHECK {
                unchecked = 0;
                if task.budget.spent() {
                    return Err(OutOfTime);
                }
            }
            work.down(inner, task.slots);
            for (&stub, values) in stubs.iter().zip(of_stubs.chunks_exact(width)) {
                work.states[stub as usize] = [values[column]; N];
            }
            work.tips(tips, of_tips, (width, column), task.slots);
            work.up(inner, task.slots);
        }
        for (out, sums) in out.iter_mut().zip(&work.sums) {
            *out = sums.iter().sum();
        }
        Ok(())
    }
}

/// One row to be explained.
struct Task<'a> {
    slots: &'a [i32],
    output: usize,
    budget: &'a dyn Budget,
}

/// The sides of a split in one row.
struct Sides {
    /// 0 or 1: which child is hot. The other one is cold.
    hot: usize,
    cold: usize,
    /// Share of the training rows that pass all tests of the feature up to the hot child.
    hot_share: f64,
    /// The same for the cold child.
    cold_share: f64,
    /// Whether the feature occurs above.
    repeats: bool,
}

impl Split {
    /// Returns the sides of the split, or `None` if both children are cold because of a test above. A processor cannot
    /// predict the side, so it is used as a number.
    #[inline(always)]
    fn sides(&self, slots: &[i32], hot: &[bool]) -> Option<Sides> {
        let repeats = self.prior != NONE;
        if repeats && !hot[self.prior as usize] {
            return None;
        }
        let right = usize::from(slots[self.slot as usize] >= self.key);
        Some(Sides {
            hot: right,
            cold: 1 - right,
            hot_share: self.prior_share * self.shares[right],
            cold_share: self.prior_share * self.shares[1 - right],
            repeats,
        })
    }
}

impl<const N: usize> Rule<N> {
    /// The factor of a hot edge with this share.
    #[inline(always)]
    fn hot(&self, share: f64) -> [f64; N] {
        from_fn(|k| self.points[k] + share * self.rest[k])
    }

    /// The factor of a cold edge with this share.
    #[inline(always)]
    fn cold(&self, share: f64) -> [f64; N] {
        from_fn(|k| share * self.rest[k])
    }
}

impl<const N: usize> Work<N> {
    /// Computes `P` of the children of all splits.
    #[inline(always)]
    fn down(&mut self, inner: &[Split], slots: &[i32]) {
        let Work { rule, states, hot, .. } = self;
        let (rule, states, hot) = (*rule, &mut states[..], &mut hot[..]);
        states[0] = rule.weights;
        for split in inner {
            let mut above = states[split.node as usize];
            let children = split.left as usize..split.left as usize + 2;
            let Some(sides) = split.sides(slots, hot) else {
                let Some([left, right]) = states[children.start..].first_chunk_mut() else { continue };
                *left = above.map(|above| above * split.shares[0]);
                *right = above.map(|above| above * split.shares[1]);
                hot[children].fill(false);
                continue;
            };
            if sides.repeats {
                let earlier = rule.hot(split.prior_share);
                above = from_fn(|k| above[k] / earlier[k]);
            }
            let (hot_factor, cold_factor) = (rule.hot(sides.hot_share), rule.cold(sides.cold_share));
            let Some(pair) = states[children.start..].first_chunk_mut::<2>() else { continue };
            pair[sides.hot] = from_fn(|k| above[k] * hot_factor[k]);
            pair[sides.cold] = from_fn(|k| above[k] * cold_factor[k]);
            let Some(flags) = hot[children.start..].first_chunk_mut::<2>() else { continue };
            flags[sides.hot] = true;
            flags[sides.cold] = false;
        }
    }

    /// Computes `Q` of tips. `values` has `2 width` values per tip, of which `column` and `width + column` are added.
    #[inline(always)]
    fn tips(&mut self, tips: &[Split], values: &[f64], (width, column): (usize, usize), slots: &[i32]) {
        let Work { rule, states, hot, sums } = self;
        let (rule, states, hot, sums) = (*rule, &mut states[..], &hot[..], &mut sums[..]);
        for (tip, values) in tips.iter().zip(values.chunks_exact(2 * width)) {
            let state = &mut states[tip.node as usize];
            let Some(sides) = tip.sides(slots, hot) else {
                *state = [tip.shares[0] * values[column] + tip.shares[1] * values[width + column]; N];
                continue;
            };
            let Sides { hot_share, cold_share, .. } = sides;
            let (hot, cold) = (values[sides.hot * width + column], values[sides.cold * width + column]);
            let of_rest = hot_share * hot + cold_share * cold;
            let below = from_fn(|k| rule.points[k] * hot + rule.rest[k] * of_rest);
            let surplus = (1.0 - hot_share) * hot - cold_share * cold;
            let sum = &mut sums[tip.feature as usize];
            give(tip, &rule, sides.repeats, (below, [surplus; N]), state, sum);
        }
    }

    /// Computes `Q` of all other splits.
    #[inline(always)]
    fn up(&mut self, inner: &[Split], slots: &[i32]) {
        let Work { rule, states, hot, sums } = self;
        let (rule, states, hot, sums) = (*rule, &mut states[..], &hot[..], &mut sums[..]);
        for split in inner.iter().rev() {
            let Some(children) = states[split.left as usize..].first_chunk::<2>() else { continue };
            let Some(sides) = split.sides(slots, hot) else {
                let (left, right) = (children[0], children[1]);
                states[split.node as usize] =
                    from_fn(|k| split.shares[0] * left[k] + split.shares[1] * right[k]);
                continue;
            };
            let Sides { hot_share, cold_share, .. } = sides;
            let (hot, cold) = (children[sides.hot], children[sides.cold]);
            let (hot_factor, cold_factor) = (rule.hot(hot_share), rule.cold(cold_share));
            let below = from_fn(|k| hot_factor[k] * hot[k] + cold_factor[k] * cold[k]);
            let surplus = from_fn(|k| (1.0 - hot_share) * hot[k] - cold_share * cold[k]);
            let (state, sum) = (&mut states[split.node as usize], &mut sums[split.feature as usize]);
            give(split, &rule, sides.repeats, (below, surplus), state, sum);
        }
    }
}

/// Gives a split's feature its share, and stores `Q` of the split. `below` is `Q` with the feature's own factors, and
/// `surplus` the sum of `(o - z) Q` of the children.
#[inline(always)]
fn give<const N: usize>(
    split: &Split,
    rule: &Rule<N>,
    repeats: bool,
    (below, surplus): ([f64; N], [f64; N]),
    state: &mut [f64; N],
    sum: &mut [f64; N],
) {
    let above = *state;
    if repeats {
        let inverse = rule.hot(split.prior_share).map(f64::recip);
        let below: [f64; N] = from_fn(|k| below[k] * inverse[k]);
        let given = 1.0 - split.prior_share;
        *sum = from_fn(|k| sum[k] + above[k] * inverse[k] * (surplus[k] - given * below[k]));
        *state = below;
    } else {
        *sum = from_fn(|k| sum[k] + above[k] * surplus[k]);
        *state = below;
    }
}

/// The parts of the trees so far.
#[derive(Default)]
struct Parts {
    splits: Vec<Split>,
    stubs: Vec<u32>,
    values: Vec<f64>,
    /// Greatest number of states of a tree.
    states: usize,
    /// Greatest number of distinct features on a path.
    features: usize,
}

/// The edge to a node.
#[derive(Clone, Copy)]
struct Edge {
    parent: usize,
    /// Number of edges from the root.
    level: usize,
    feature: u32,
    /// Share of the training rows that pass all tests of the feature up to the node.
    share: f64,
    /// Number of distinct features on the path.
    distinct: usize,
    state: u32,
}

impl Parts {
    /// Appends a tree, whose output is left open.
    fn push(&mut self, tree: TreeView<'_>, covers: &[f32], features: &[u32], outputs: &[usize]) -> Tree {
        let nodes: Vec<NodeView> = tree.nodes().collect();
        let leaf = |at: usize| match nodes.get(at) {
            Some(NodeView::Leaf(number)) => Some(*number),
            _ => None,
        };
        let root = Edge { parent: 0, level: 0, feature: NONE, share: 1.0, distinct: 0, state: 0 };
        let mut edges = vec![root; nodes.len()];
        let (mut states, first_value) = (1, self.values.len());
        let (mut inner, mut tips) = (Vec::new(), Vec::new());
        let (mut stubs, mut of_stubs) = (Vec::new(), Vec::new());
        let add = |values: &mut Vec<f64>, leaf| {
            values.extend(outputs.iter().map(|&output| tree.value(leaf, output)));
        };
        // A tree that is one leaf gives nothing to any feature, so it has no parts.
        for (at, node) in nodes.iter().enumerate() {
            let &NodeView::Split { slot, key, left } = node else { continue };
            let (own, feature) = (edges[at], features[slot]);
            let mut prior = at;
            while prior != 0 && edges[prior].feature != feature {
                prior = edges[prior].parent;
            }
            let share = left_share(covers[left], covers[left + 1]);
            let shares = [share, 1.0 - share];
            // The root's share is 1, so a feature that did not occur before has the share of this split alone.
            let prior_share = edges[prior].share;
            let distinct = own.distinct + usize::from(prior == 0);
            self.features = self.features.max(distinct);
            for (child, share) in [left, left + 1].into_iter().zip(shares) {
                let share = prior_share * share;
                edges[child] =
                    Edge { parent: at, level: own.level + 1, feature, share, distinct, state: NONE };
            }
            let prior = if prior == 0 { NONE } else { edges[prior].state };
            let (slot, node) = (slot as u32, own.state);
            let mut split = Split { slot, key, feature, node, left: 0, prior, shares, prior_share };
            let repeats = prior != NONE;
            if let (Some(left), Some(right)) = (leaf(left), leaf(left + 1)) {
                tips.push((repeats, split, [left, right]));
                continue;
            }
            split.left = states;
            inner.push((own.level, repeats, split));
            for child in [left, left + 1] {
                edges[child].state = states;
                if let Some(leaf) = leaf(child) {
                    stubs.push(states);
                    add(&mut of_stubs, leaf);
                }
                states += 1;
            }
        }
        // Within a level the order is free. A processor can predict whether a feature repeats if equal cases are
        // together.
        inner.sort_by_key(|&(level, repeats, _)| (level, repeats));
        tips.sort_by_key(|&(repeats, ..)| repeats);
        let (first, first_stub) = (self.splits.len(), self.stubs.len());
        self.splits.extend(inner.iter().map(|&(.., split)| split));
        let first_tip = self.splits.len();
        for (_, tip, leaves) in tips {
            self.splits.push(tip);
            leaves.into_iter().for_each(|leaf| add(&mut self.values, leaf));
        }
        self.values.append(&mut of_stubs);
        self.states = self.states.max(states as usize);
        self.stubs.append(&mut stubs);
        Tree {
            inner: first..first_tip,
            tips: first_tip..self.splits.len(),
            stubs: first_stub..self.stubs.len(),
            first_value,
            output: None,
        }
    }
}

impl ShapScratch {
    /// Allocates the memory that [`TreeShap::contributions`] needs.
    #[must_use]
    pub fn new(shap: &TreeShap) -> ShapScratch {
        let (states, features) = (shap.states.max(1), shap.forest.num_features());
        ShapScratch {
            slots: shap.forest.new_slots(),
            memory: match shap.points {
                Points::Four => Memory::Four(Work::new(states, features)),
                Points::Eight => Memory::Eight(Work::new(states, features)),
                Points::Sixteen => Memory::Sixteen(Work::new(states, features)),
                Points::ThirtyTwo => Memory::ThirtyTwo(Box::new(Work::new(states, features))),
            },
        }
    }
}

impl<const N: usize> Work<N> {
    fn new(states: usize, features: usize) -> Work<N> {
        let (points, weights) = gauss_legendre();
        let rule = Rule { points, rest: points.map(|point| 1.0 - point), weights };
        Work {
            rule,
            states: vec![[0.0; N]; states],
            hot: vec![false; states],
            sums: vec![[0.0; N]; features],
        }
    }
}
