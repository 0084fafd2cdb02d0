//! Raw trees from Python: flat arrays, written by `scorer.importers.raw` and validated while they are read.

use pyo3::FromPyObject;
use pyo3::pybacked::PyBackedBytes;
use scorer_core::forest::{
    BaseOrder, CategoryRule, ForestError, Link, Missing, Model, NanRule, Node, Precision, Side, Split,
    Target, Test, Tree, ZeroRule,
};

/// The properties of the whole model.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct Head {
    num_features: usize,
    num_outputs: usize,
    float32: bool,
    base: Vec<f64>,
    base_last: bool,
    divisor: Vec<f64>,
    link: String,
    link_parameter: f64,
}

/// The trees in flat little-endian arrays.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct Trees {
    /// `TREE` bytes per tree: target (`u32::MAX` for all outputs), and the numbers of nodes, leaf values and sets.
    trees: PyBackedBytes,
    /// `NODE` bytes per node.
    nodes: PyBackedBytes,
    /// One f64 per leaf value.
    leaves: PyBackedBytes,
    /// One u32 per set: its number of members.
    set_sizes: PyBackedBytes,
    /// One u32 per member.
    members: PyBackedBytes,
    /// One f64 per node: its cover. Empty if the covers are not known.
    covers: PyBackedBytes,
}

const TREE: usize = 16;
const NODE: usize = 28;

/// The kinds of nodes.
const LEAF: u8 = 0;
const LESS: u8 = 1;
const LESS_EQUAL: u8 = 2;
const MEMBERS_LEFT: u8 = 3;
const MEMBERS_RIGHT: u8 = 4;

pub(super) fn model(head: Head, trees: &Trees) -> Result<Model, ForestError> {
    let mut arrays = Arrays {
        nodes: &trees.nodes,
        leaves: &trees.leaves,
        set_sizes: &trees.set_sizes,
        members: &trees.members,
        covers: &trees.covers,
        covered: !trees.covers.is_empty(),
    };
    let (spans, rest) = trees.trees.as_chunks::<TREE>();
    let trees = spans.iter().map(|span| arrays.tree(span)).collect::<Option<Vec<_>>>();
    let trees = match trees {
        Some(trees) if rest.is_empty() && arrays.is_empty() => trees,
        _ => {
            return Err(ForestError::invalid(
                "raw trees",
                "the arrays are malformed or their lengths disagree",
            ));
        }
    };
    Ok(Model {
        num_features: head.num_features,
        num_outputs: head.num_outputs,
        precision: if head.float32 { Precision::F32 } else { Precision::F64 },
        base: head.base,
        base_order: if head.base_last { BaseOrder::Last } else { BaseOrder::First },
        divisor: head.divisor,
        link: link(&head.link, head.link_parameter)?,
        trees,
    })
}

struct Arrays<'a> {
    nodes: &'a [u8],
    leaves: &'a [u8],
    set_sizes: &'a [u8],
    members: &'a [u8],
    covers: &'a [u8],
    covered: bool,
}

impl Arrays<'_> {
    fn is_empty(&self) -> bool {
        self.nodes.is_empty()
            && self.leaves.is_empty()
            && self.set_sizes.is_empty()
            && self.members.is_empty()
            && self.covers.is_empty()
    }

    fn tree(&mut self, span: &[u8; TREE]) -> Option<Tree> {
        let mut span: &[u8] = span;
        let target = match u32s(&mut span, 1)?[..] {
            [u32::MAX] => Target::All,
            [output] => Target::Output(output),
            _ => return None,
        };
        let counts: Vec<usize> = u32s(&mut span, 3)?.into_iter().map(|count| count as usize).collect();
        let [nodes, leaves, sets] = counts[..] else { return None };
        let covers = many(&mut self.covers, if self.covered { nodes } else { 0 }, f64::from_le_bytes)?;
        let nodes = many(&mut self.nodes, nodes, node)?.into_iter().collect::<Option<Vec<_>>>()?;
        let leaves = many(&mut self.leaves, leaves, f64::from_le_bytes)?;
        let sizes = u32s(&mut self.set_sizes, sets)?;
        let sets =
            sizes.into_iter().map(|size| u32s(&mut self.members, size as usize)).collect::<Option<_>>()?;
        Some(Tree { target, nodes, leaves, sets, covers })
    }
}

/// Reads a node: feature, kind, nan, zero, rule, left (in a leaf: its row), right, set, threshold.
fn node(bytes: [u8; NODE]) -> Option<Node> {
    let mut rest: &[u8] = &bytes;
    let feature = u32s(&mut rest, 1)?[0];
    let [kind, nan, zero, rule] = *take(&mut rest, 4)?.first_chunk()?;
    let [left, right, set] = *u32s(&mut rest, 3)?.first_chunk()?;
    let threshold = f64::from_le_bytes(*rest.first_chunk()?);
    if kind == LEAF {
        return Some(Node::Leaf(left));
    }
    let rule = match rule {
        0 => CategoryRule::NonNegative,
        1 => CategoryRule::Truncated,
        2 => CategoryRule::Exact,
        _ => return None,
    };
    let test = match kind {
        LESS => Test::Less(threshold),
        LESS_EQUAL => Test::LessEqual(threshold),
        MEMBERS_LEFT => Test::Category { set, members: Side::Left, rule },
        MEMBERS_RIGHT => Test::Category { set, members: Side::Right, rule },
        _ => return None,
    };
    let nan = match nan {
        0 => NanRule::Left,
        1 => NanRule::Right,
        2 => NanRule::Zero,
        _ => return None,
    };
    let zero = match zero {
        0 => ZeroRule::Keep,
        1 => ZeroRule::Flush,
        2 => ZeroRule::Missing,
        _ => return None,
    };
    Some(Node::Split(Split { feature, test, missing: Missing { nan, zero }, left, right }))
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

fn many<const N: usize, T>(bytes: &mut &[u8], count: usize, parse: impl Fn([u8; N]) -> T) -> Option<Vec<T>> {
    let (chunks, _) = take(bytes, count.checked_mul(N)?)?.as_chunks::<N>();
    Some(chunks.iter().map(|&chunk| parse(chunk)).collect())
}

fn u32s(bytes: &mut &[u8], count: usize) -> Option<Vec<u32>> {
    many(bytes, count, u32::from_le_bytes)
}

fn link(name: &str, parameter: f64) -> Result<Link, ForestError> {
    let all = [
        Link::Identity,
        Link::Sigmoid { alpha: parameter },
        Link::Softmax,
        Link::ArgMax,
        Link::Exp,
        Link::Hinge,
        Link::LogOnePlusExp,
        Link::SignedSquare,
        Link::ExpBase2 { scale: parameter },
        Link::Normalize,
    ];
    all.into_iter()
        .find(|&link| link_name(link) == name)
        .ok_or_else(|| ForestError::invalid(format!("link {name:?}"), "it is not known"))
}

pub(super) fn link_name(link: Link) -> &'static str {
    match link {
        Link::Identity => "identity",
        Link::Sigmoid { .. } => "sigmoid",
        Link::Softmax => "softmax",
        Link::ArgMax => "argmax",
        Link::Exp => "exp",
        Link::Hinge => "hinge",
        Link::LogOnePlusExp => "log_one_plus_exp",
        Link::SignedSquare => "signed_square",
        Link::ExpBase2 { .. } => "exp_base2",
        Link::Normalize => "normalize",
    }
}
