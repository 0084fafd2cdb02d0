//! The raw model that an importer builds: trees with the semantics of the library that trained them.

use super::Link;

/// The precision in which a library sums leaf values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// XGBoost, and Treelite models with float32 leaves.
    F32,
    /// LightGBM, scikit-learn.
    F64,
}

/// When the base margin is added to the sum. Floating-point addition is not associative, so the order changes results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BaseOrder {
    /// The accumulator starts at the base margin (XGBoost, scikit-learn).
    First,
    /// The accumulator starts at zero, is divided, and the base margin is added to it (Treelite).
    Last,
}

/// A raw model.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Number of values in a row.
    pub num_features: usize,
    /// Number of margins per row.
    pub num_outputs: usize,
    /// Precision of the sum.
    pub precision: Precision,
    /// Base margin of each output; exact f32 values if `precision` is F32 and the order is `First`.
    pub base: Vec<f64>,
    /// When the base margin is added to the sum.
    pub base_order: BaseOrder,
    /// Divisor of each output's sum of leaves, for averaging ensembles; empty if there is no division.
    pub divisor: Vec<f64>,
    /// The function that computes predictions from margins.
    pub link: Link,
    /// The trees, in the order in which the library adds them.
    pub trees: Vec<Tree>,
}

/// The outputs to which a tree's leaves are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// Leaves are scalars, added to this output.
    Output(u32),
    /// Leaves are vectors with one value per output.
    All,
}

/// A tree. Node 0 is the root. Nodes that cannot be reached from the root (XGBoost's deleted nodes) are ignored.
#[derive(Debug, Clone, PartialEq)]
pub struct Tree {
    /// The outputs to which the leaves are added.
    pub target: Target,
    /// Splits and leaves.
    pub nodes: Vec<Node>,
    /// Leaf values, `[leaf, width]`; the width is 1 or the number of outputs.
    pub leaves: Vec<f64>,
    /// Category sets that splits refer to.
    pub sets: Vec<Vec<u32>>,
    /// Weight of the training rows that reached each node, which explanations need; empty if it is not known.
    pub covers: Vec<f64>,
}

/// A node of a raw tree.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Node {
    /// A test and two children.
    Split(Split),
    /// The end of a path, with the index of its row in [`Tree::leaves`].
    Leaf(u32),
}

/// A test on one feature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Split {
    /// Column of the row.
    pub feature: u32,
    /// The test of a value that is present.
    pub test: Test,
    /// How missing values are treated.
    pub missing: Missing,
    /// Index of the left child, to which a `Less` or `LessEqual` test goes if it holds.
    pub left: u32,
    /// Index of the right child.
    pub right: u32,
}

/// The comparison of a split.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Test {
    /// `x < threshold` goes left; for float32 `x` and any float64 threshold.
    Less(f64),
    /// `x <= threshold` goes left; for float32 `x` and any float64 threshold.
    LessEqual(f64),
    /// A member of `set` goes to `members`, any other value to the opposite side.
    Category {
        /// Index into [`Tree::sets`].
        set: u32,
        /// Side of the members.
        members: Side,
        /// How a float is converted to a category.
        rule: CategoryRule,
    },
}

/// One of the two children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The left child.
    Left,
    /// The right child.
    Right,
}

/// How a float that is not NaN is converted to a category. Values without a category are in no set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CategoryRule {
    /// Negative values have no category, others are truncated (XGBoost: -0.5 is no category, 0.5 is 0).
    NonNegative,
    /// Truncated toward zero first, then negative values have no category (LightGBM: -0.5 is 0).
    Truncated,
    /// Only non-negative integers have a category (scikit-learn's encoder compares for equality).
    Exact,
}

/// How a split treats missing values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Missing {
    /// The side for NaN.
    pub nan: NanRule,
    /// How zero is treated; category tests ignore it.
    pub zero: ZeroRule,
}

/// The side for NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NanRule {
    /// To the left child.
    Left,
    /// To the right child.
    Right,
    /// NaN is tested as 0.0 (LightGBM's missing type `None`).
    Zero,
}

/// How a value of (almost) zero is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ZeroRule {
    /// It is tested like any other number.
    Keep,
    /// `|x| <= 1e-35` is tested as 0.0 (LightGBM drops such values when it reads a row).
    Flush,
    /// `|x| <= 1e-35` is treated like NaN (LightGBM's missing type `Zero`).
    Missing,
}
