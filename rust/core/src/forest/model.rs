//! What an importer builds: raw trees with the semantics of the library that trained them.

use super::Link;

/// The precision in which a library sums leaf values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// XGBoost, and Treelite models with float32 leaves.
    F32,
    /// LightGBM, scikit-learn.
    F64,
}

/// When the base margin joins the sum. Floating-point addition is not associative, so this is observable.
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
    /// Values in a row.
    pub num_features: usize,
    /// Margins per row.
    pub num_outputs: usize,
    /// Precision of the sum.
    pub precision: Precision,
    /// Base margin per output; exact f32 values where `precision` is F32 and the order is `First`.
    pub base: Vec<f64>,
    /// When the base margin joins the sum.
    pub base_order: BaseOrder,
    /// What each output's sum of leaves is divided by (averaging ensembles); empty for no division.
    pub divisor: Vec<f64>,
    /// From margins to predictions.
    pub link: Link,
    /// The trees, in the order in which the library adds them.
    pub trees: Vec<Tree>,
}

/// Which outputs a tree adds to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// Leaves are scalars, added to this output.
    Output(u32),
    /// Leaves are vectors with one value per output.
    All,
}

/// A tree; node 0 is the root. Nodes that the root does not reach (XGBoost's deleted nodes) are ignored.
#[derive(Debug, Clone, PartialEq)]
pub struct Tree {
    /// Which outputs the leaves add to.
    pub target: Target,
    /// Splits and leaves.
    pub nodes: Vec<Node>,
    /// Leaf values, `[leaf, width]`, width 1 or the number of outputs.
    pub leaves: Vec<f64>,
    /// Category sets that splits refer to.
    pub sets: Vec<Vec<u32>>,
}

/// A node of a raw tree.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Node {
    /// A test and two children.
    Split(Split),
    /// The end of a path: a row of [`Tree::leaves`].
    Leaf(u32),
}

/// A test on one feature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Split {
    /// Column of the row.
    pub feature: u32,
    /// The test for a value that is present.
    pub test: Test,
    /// What happens to absent values.
    pub missing: Missing,
    /// Node to go to where the test holds.
    pub left: u32,
    /// Node to go to where it does not.
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
        /// How a float becomes a category.
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

/// How a float that is not NaN becomes a category. Values without a category are members of no set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CategoryRule {
    /// Negative values have no category, others are truncated (XGBoost: -0.5 is no category, 0.5 is 0).
    NonNegative,
    /// Truncated toward zero first, then negative values have no category (LightGBM: -0.5 is 0).
    Truncated,
    /// Only non-negative integers have a category (scikit-learn's encoder compares for equality).
    Exact,
}

/// What a split does with absent values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Missing {
    /// Where NaN goes.
    pub nan: NanRule,
    /// What zero means (ignored by category tests).
    pub zero: ZeroRule,
}

/// Where NaN goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NanRule {
    /// To the left child.
    Left,
    /// To the right child.
    Right,
    /// It is read as 0.0 and tested (LightGBM's missing type `None`).
    Zero,
}

/// What a value of (almost) zero means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ZeroRule {
    /// It is a number as any other.
    Keep,
    /// `|x| <= 1e-35` is read as 0.0 (LightGBM drops such values while it reads a row).
    Flush,
    /// `|x| <= 1e-35` goes where NaN goes (LightGBM's missing type `Zero`).
    Missing,
}
