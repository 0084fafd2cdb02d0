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
//! The walk visits every node twice. On the way down a node takes its parent's product at each point, times the factor
//! of the edge; if the feature occurred before, its former factor is replaced. On the way up the sums of leaves give
//! each edge's feature its share.

use std::array::from_fn;
use std::sync::Arc;

use super::quadrature::gauss_legendre;
use super::{Covers, expectations, left_share};
#[cfg(target_arch = "x86_64")]
use crate::forest::Isa;
use crate::forest::{Forest, NodeView, TreeView};

/// The least share that is used, so that no factor is 0. It changes contributions by less than one part in 10^250.
const LEAST: f64 = 1e-280;

/// A forest prepared for exact contributions.
#[derive(Debug)]
pub struct TreeShap {
    forest: Arc<Forest>,
    trees: Box<[Tree]>,
    splits: Box<[Split]>,
    /// Leaf values, `[leaf, values of the tree]`.
    leaves: Box<[Leaf]>,
    values: Box<[f64]>,
    /// Expectation of each output's margin.
    expectations: Box<[f64]>,
    /// Greatest number of nodes of a tree.
    nodes: usize,
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

#[derive(Debug)]
struct Tree {
    splits: std::ops::Range<usize>,
    leaves: std::ops::Range<usize>,
    /// First of its values.
    first_value: usize,
    /// The output, or all outputs.
    output: Option<u32>,
}

/// A split, in the order of the layout: parents come before their children.
#[derive(Debug, Clone, Copy)]
struct Split {
    node: u32,
    /// The left child. The right child follows.
    left: u32,
    slot: u32,
    key: i32,
    feature: u32,
    /// The node below the nearest split of the same feature on the path; 0, the root, if there is none.
    prior: u32,
    /// Shares of the training rows that pass all tests of the feature up to the left and to the right child.
    shares: [f64; 2],
}

#[derive(Debug, Clone, Copy)]
struct Leaf {
    node: u32,
    number: u32,
}

/// The state of a node at each point.
#[derive(Debug, Clone, Copy)]
struct State<const N: usize> {
    /// The product of the path's factors; on the way up the sum over the leaves below, with their values.
    product: [f64; N],
    /// The reciprocal of the factor of the node's feature.
    reciprocal: [f64; N],
    /// 1 if the row passes all tests of the node's feature, otherwise 0.
    passes: f64,
    /// `passes` minus the share.
    surplus: f64,
}

/// Working memory of [`TreeShap::contributions`].
#[derive(Debug)]
pub struct ShapScratch {
    slots: Vec<i32>,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Four(Work<4>),
    Eight(Work<8>),
    Sixteen(Work<16>),
    ThirtyTwo(Box<Work<32>>),
}

#[derive(Debug)]
struct Work<const N: usize> {
    points: [f64; N],
    weights: [f64; N],
    states: Vec<State<N>>,
    /// The integrand of each feature.
    sums: Vec<[f64; N]>,
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
        let (mut trees, mut splits, mut leaves, mut values) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut expected: Vec<f64> = (0..outputs).map(|output| forest.base(output)).collect();
        let (mut nodes, mut most) = (1, 0);
        for tree in forest.trees() {
            let own = covers.of(tree.first_node(), tree.len());
            let (first_split, first_leaf, first_value) = (splits.len(), leaves.len(), values.len());
            let added: Vec<usize> = (0..outputs).filter(|&output| tree.adds_to(output)).collect();
            for &output in &added {
                expected[output] += expectations(tree, own, output)[0];
            }
            most = most.max(push_splits(tree, own, &features, &mut splits));
            for (at, node) in tree.nodes().enumerate() {
                if let NodeView::Leaf(number) = node {
                    leaves.push(Leaf { node: at as u32, number: number as u32 });
                    values.extend(added.iter().map(|&output| tree.value(number, output)));
                }
            }
            nodes = nodes.max(tree.len());
            trees.push(Tree {
                splits: first_split..splits.len(),
                leaves: first_leaf..leaves.len(),
                first_value,
                output: match added[..] {
                    [output] if outputs > 1 => Some(output as u32),
                    _ => None,
                },
            });
        }
        TreeShap {
            forest: Arc::clone(forest),
            trees: trees.into_boxed_slice(),
            splits: splits.into_boxed_slice(),
            leaves: leaves.into_boxed_slice(),
            values: values.into_boxed_slice(),
            expectations: expected.into_boxed_slice(),
            nodes,
            points: match most {
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
            + size_of_val(&*self.leaves)
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
        assert_eq!(contributions.len(), self.forest.num_features(), "there is not one value per feature");
        assert!(output < self.expectations.len(), "the forest has no such output");
        let ShapScratch { slots, memory } = scratch;
        self.forest.fill_slots(row, slots);
        match memory {
            Memory::Four(work) => self.dispatch(slots, output, work, contributions),
            Memory::Eight(work) => self.dispatch(slots, output, work, contributions),
            Memory::Sixteen(work) => self.dispatch(slots, output, work, contributions),
            Memory::ThirtyTwo(work) => self.dispatch(slots, output, work, contributions),
        }
    }

    /// Uses wide registers if the machine has them. The operations are the same, so the bits are too.
    fn dispatch<const N: usize>(&self, slots: &[i32], output: usize, work: &mut Work<N>, out: &mut [f64]) {
        #[cfg(target_arch = "x86_64")]
        if matches!(self.forest.isa(), Isa::Avx2 | Isa::Avx512) {
            #[expect(unsafe_code, reason = "the compiler cannot see that the machine has the instructions")]
            // SAFETY: a forest has an instruction set only if detection has found it, and AVX-512 includes AVX2.
            return unsafe { self.integrate_avx2(slots, output, work, out) };
        }
        self.integrate(slots, output, work, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn integrate_avx2<const N: usize>(
        &self,
        slots: &[i32],
        output: usize,
        work: &mut Work<N>,
        out: &mut [f64],
    ) {
        self.integrate(slots, output, work, out);
    }

    #[inline(always)]
    fn integrate<const N: usize>(&self, slots: &[i32], output: usize, work: &mut Work<N>, out: &mut [f64]) {
        work.sums.fill([0.0; N]);
        for tree in &self.trees {
            let width = if tree.output.is_some() { 1 } else { self.expectations.len() };
            let column = match tree.output {
                Some(own) if own as usize != output => continue,
                Some(_) => 0,
                None => output,
            };
            let splits = &self.splits[tree.splits.clone()];
            let leaves = &self.leaves[tree.leaves.clone()];
            let values = &self.values[tree.first_value..][..width * leaves.len()];
            down(splits, slots, work);
            for leaf in leaves {
                let value = values[leaf.number as usize * width + column];
                work.states[leaf.node as usize].product.iter_mut().for_each(|product| *product *= value);
            }
            up(splits, work);
        }
        for (out, sums) in out.iter_mut().zip(&work.sums) {
            *out = sums.iter().sum();
        }
    }
}

/// Computes the products of the path to every node.
#[inline(always)]
fn down<const N: usize>(splits: &[Split], slots: &[i32], work: &mut Work<N>) {
    let Work { points, weights, states, .. } = work;
    states[0] = State { product: *weights, reciprocal: [1.0; N], passes: 1.0, surplus: 0.0 };
    for split in splits {
        let right = f64::from(u8::from(slots[split.slot as usize] >= split.key));
        let prior = &states[split.prior as usize];
        let (passes, former) = (prior.passes, prior.reciprocal);
        let above = &states[split.node as usize].product;
        let product: [f64; N] = from_fn(|k| above[k] * former[k]);
        let children = &mut states[split.left as usize..][..2];
        for (side, child) in children.iter_mut().enumerate() {
            let taken = if side == 0 { 1.0 - right } else { right };
            let (passes, share) = (passes * taken, split.shares[side]);
            let factors: [f64; N] = from_fn(|k| passes * points[k] + share * (1.0 - points[k]));
            child.product = from_fn(|k| product[k] * factors[k]);
            child.reciprocal = factors.map(|factor| 1.0 / factor);
            child.passes = passes;
            child.surplus = passes - share;
        }
    }
}

/// Adds up the leaves below every node and gives each edge's feature its share.
#[inline(always)]
fn up<const N: usize>(splits: &[Split], work: &mut Work<N>) {
    let Work { states, sums, .. } = work;
    for split in splits.iter().rev() {
        let prior = &states[split.prior as usize];
        let (former, former_surplus) = (prior.reciprocal, prior.surplus);
        let [left, right] = &states[split.left as usize..][..2] else { continue };
        let sum = &mut sums[split.feature as usize];
        let below: [f64; N] = from_fn(|k| left.product[k] + right.product[k]);
        *sum = from_fn(|k| {
            sum[k]
                + left.product[k] * (left.surplus * left.reciprocal[k])
                + right.product[k] * (right.surplus * right.reciprocal[k])
                - below[k] * (former_surplus * former[k])
        });
        states[split.node as usize].product = below;
    }
}

/// Appends the splits of a tree. Returns the greatest number of distinct features on a path.
fn push_splits(tree: TreeView<'_>, covers: &[f32], features: &[u32], splits: &mut Vec<Split>) -> usize {
    // For each node: its parent, the feature of the edge, the share, and the number of distinct features.
    let mut edges = vec![(0_usize, u32::MAX, 1.0_f64, 0_usize); tree.len()];
    let mut most = 0;
    for (at, node) in tree.nodes().enumerate() {
        let NodeView::Split { slot, key, left } = node else { continue };
        let feature = features[slot];
        let mut prior = at;
        while prior != 0 && edges[prior].1 != feature {
            prior = edges[prior].0;
        }
        let share = left_share(covers[left], covers[left + 1]);
        // The root's share is 1, so a feature that did not occur before has the share of this split alone.
        let shares = [share, 1.0 - share].map(|share| (edges[prior].2 * share).max(LEAST));
        let distinct = edges[at].3 + usize::from(prior == 0);
        most = most.max(distinct);
        for (child, share) in [left, left + 1].into_iter().zip(shares) {
            edges[child] = (at, feature, share, distinct);
        }
        splits.push(Split {
            node: at as u32,
            left: left as u32,
            slot: slot as u32,
            key,
            feature,
            prior: prior as u32,
            shares,
        });
    }
    most
}

impl ShapScratch {
    /// Allocates the memory that [`TreeShap::contributions`] needs.
    #[must_use]
    pub fn new(shap: &TreeShap) -> ShapScratch {
        let (nodes, features) = (shap.nodes, shap.forest.num_features());
        ShapScratch {
            slots: shap.forest.new_slots(),
            memory: match shap.points {
                Points::Four => Memory::Four(Work::new(nodes, features)),
                Points::Eight => Memory::Eight(Work::new(nodes, features)),
                Points::Sixteen => Memory::Sixteen(Work::new(nodes, features)),
                Points::ThirtyTwo => Memory::ThirtyTwo(Box::new(Work::new(nodes, features))),
            },
        }
    }
}

impl<const N: usize> Work<N> {
    fn new(nodes: usize, features: usize) -> Work<N> {
        let (points, weights) = gauss_legendre();
        let state = State { product: [0.0; N], reciprocal: [1.0; N], passes: 1.0, surplus: 0.0 };
        Work { points, weights, states: vec![state; nodes], sums: vec![[0.0; N]; features] }
    }
}
