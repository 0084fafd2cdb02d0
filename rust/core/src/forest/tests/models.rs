//! Random models, and rows that distinguish their rules.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::forest::*;

/// Floats at which the results of comparisons, keys and rules for missing values change.
pub(crate) const ODD: [f32; 20] = [
    0.0,
    -0.0,
    1e-45,
    -1e-45,
    f32::MIN_POSITIVE,
    1e-35,
    1.000_000_1e-35,
    -1e-35,
    0.5,
    -0.5,
    1.0,
    -1.0,
    3.0,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    2_147_483_648.0,
    16_777_216.0,
    f32::NAN,
];

#[derive(Debug, Clone)]
enum Shape {
    Leaf,
    Split(Box<(Split, Vec<u32>, Shape, Shape)>),
}

/// Thresholds are common floats, floats that are not exact in float32, and neighbours of special floats.
fn threshold() -> impl Strategy<Value = f64> {
    prop_oneof![
        select(&ODD[..ODD.len() - 1]).prop_map(f64::from),
        select(&ODD[..ODD.len() - 1]).prop_map(|x| f64::from(x).next_up()),
        select(&ODD[..ODD.len() - 1]).prop_map(|x| f64::from(x).next_down()),
        -3.0..3.0_f64,
        (-3..4_i32).prop_map(f64::from),
        Just(1e300),
        Just(-1e-300),
    ]
    .prop_filter("no NaN", |x| !x.is_nan())
}

fn split(features: u32) -> impl Strategy<Value = (Split, Vec<u32>)> {
    let missing = select(vec![
        (NanRule::Left, ZeroRule::Keep),
        (NanRule::Right, ZeroRule::Keep),
        (NanRule::Zero, ZeroRule::Keep),
        (NanRule::Left, ZeroRule::Flush),
        (NanRule::Zero, ZeroRule::Flush),
        (NanRule::Left, ZeroRule::Missing),
        (NanRule::Right, ZeroRule::Missing),
    ]);
    let side = select(vec![Side::Left, Side::Right]);
    let rule = select(vec![CategoryRule::NonNegative, CategoryRule::Truncated, CategoryRule::Exact]);
    let test = prop_oneof![
        3 => threshold().prop_map(Test::Less),
        3 => threshold().prop_map(Test::LessEqual),
        2 => (side, rule).prop_map(|(members, rule)| Test::Category { set: 0, members, rule }),
    ];
    let set = vec(prop_oneof![0..6_u32, Just(16_777_216), Just(1000)], 0..5);
    (0..features, test, missing, set).prop_map(|(feature, test, (nan, zero), set)| {
        (Split { feature, test, missing: Missing { nan, zero }, left: 0, right: 0 }, set)
    })
}

fn shape(features: u32, depth: u32) -> impl Strategy<Value = Shape> {
    Just(Shape::Leaf).prop_recursive(depth, 40, 2, move |inner| {
        (split(features), inner.clone(), inner)
            .prop_map(|((split, set), left, right)| Shape::Split(Box::new((split, set, left, right))))
    })
}

/// A complete tree, as boosting produces it. Evaluators pad such trees.
fn complete(features: u32) -> impl Strategy<Value = Shape> {
    (1..6_u32, vec(split(features), 63)).prop_map(|(depth, splits)| {
        fn grow(depth: u32, splits: &mut std::vec::IntoIter<(Split, Vec<u32>)>) -> Shape {
            match splits.next() {
                Some((split, set)) if depth > 0 => {
                    let (left, right) = (grow(depth - 1, splits), grow(depth - 1, splits));
                    Shape::Split(Box::new((split, set, left, right)))
                }
                _ => Shape::Leaf,
            }
        }
        grow(depth, &mut splits.into_iter())
    })
}

struct Flat {
    nodes: Vec<Node>,
    sets: Vec<Vec<u32>>,
    leaves: u32,
}

impl Flat {
    /// Depth first, with unreachable nodes in between, as deleted ones are.
    fn push(&mut self, shape: Shape) -> u32 {
        let at = self.nodes.len() as u32;
        match shape {
            Shape::Leaf => {
                self.nodes.push(Node::Leaf(self.leaves));
                self.leaves += 1;
            }
            Shape::Split(parts) => {
                let (mut split, set, left, right) = *parts;
                self.nodes.push(Node::Leaf(u32::MAX));
                if let Test::Category { set: index, .. } = &mut split.test {
                    *index = self.sets.len() as u32;
                    self.sets.push(set);
                }
                split.left = self.push(left);
                self.nodes.push(Node::Leaf(u32::MAX));
                split.right = self.push(right);
                self.nodes[at as usize] = Node::Split(split);
            }
        }
        at
    }
}

fn tree(features: u32, outputs: u32, precision: Precision) -> impl Strategy<Value = Tree> {
    let shape = prop_oneof![shape(features, 4), shape(features, 14), complete(features)];
    let target = prop_oneof![3 => (0..outputs).prop_map(Target::Output), 1 => Just(Target::All)];
    (shape, target, vec(-10.0..10.0_f32, 16)).prop_map(move |(shape, target, values)| {
        let mut flat = Flat { nodes: Vec::new(), sets: Vec::new(), leaves: 0 };
        flat.push(shape);
        let width = if target == Target::All { outputs } else { 1 };
        let leaves = (0..flat.leaves * width)
            .map(|i| {
                let value = values[i as usize % values.len()] * (i + 1) as f32;
                match precision {
                    Precision::F32 => f64::from(value),
                    Precision::F64 => f64::from(value) / 3.0,
                }
            })
            .collect();
        Tree { target, nodes: flat.nodes, leaves, sets: flat.sets, covers: Vec::new() }
    })
}

/// Any model.
pub(crate) fn model() -> impl Strategy<Value = Model> {
    (1..5_u32, 1..4_u32, any::<bool>(), any::<bool>(), any::<bool>()).prop_flat_map(
        |(features, outputs, float32, last, divided)| {
            let precision = if float32 { Precision::F32 } else { Precision::F64 };
            let base = vec(-2.0..2.0_f32, outputs as usize);
            let trees = vec(tree(features, outputs, precision), 0..20);
            (base, trees).prop_map(move |(base, trees)| Model {
                num_features: features as usize,
                num_outputs: outputs as usize,
                precision,
                base: base.into_iter().map(f64::from).collect(),
                base_order: if last { BaseOrder::Last } else { BaseOrder::First },
                divisor: if divided { vec![7.0; outputs as usize] } else { Vec::new() },
                link: Link::Identity,
                trees,
            })
        },
    )
}

/// Values at every threshold of the model, one unit in the last place to either side, and special floats.
pub(crate) fn values(model: &Model) -> Vec<f32> {
    let mut values = ODD.to_vec();
    values.extend([4.5, 5.0, 999.5, 1000.0]);
    for tree in &model.trees {
        for node in &tree.nodes {
            if let Node::Split(Split { test: Test::Less(t) | Test::LessEqual(t), .. }) = node {
                let nearest = *t as f32;
                values.extend([nearest, nearest.next_up(), nearest.next_down()]);
            }
        }
    }
    values
}

/// Rows whose values are drawn from [`values`].
pub(crate) fn rows(model: &Model, seed: u64, count: usize) -> Vec<f32> {
    let values = values(model);
    let mut state = seed | 1;
    (0..count * model.num_features)
        .map(|_| {
            // xorshift64. Its distribution is not important.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            values[(state % values.len() as u64) as usize]
        })
        .collect()
}

/// One numeric split and two leaves, in float64.
pub(crate) fn stump(feature: u32, test: Test, missing: Missing) -> Tree {
    Tree {
        target: Target::Output(0),
        nodes: vec![
            Node::Split(Split { feature, test, missing, left: 1, right: 2 }),
            Node::Leaf(0),
            Node::Leaf(1),
        ],
        leaves: vec![1.0, 2.0],
        sets: vec![vec![2, 4]],
        covers: Vec::new(),
    }
}

/// A model of such trees.
pub(crate) fn of(trees: Vec<Tree>) -> Model {
    Model {
        num_features: 2,
        num_outputs: 1,
        precision: Precision::F64,
        base: vec![0.0],
        base_order: BaseOrder::First,
        divisor: Vec::new(),
        link: Link::Identity,
        trees,
    }
}
