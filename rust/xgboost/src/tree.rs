//! Conversion of one tree of the file.

use scorer_core::forest::{CategoryRule, Missing, NanRule, Node, Side, Split, Target, Test, Tree, ZeroRule};

use crate::error::ReadError;
use crate::reader::{At, Path};

/// XGBoost's value for "no child".
const NO_NODE: i64 = -1;
/// The values of categorical features are float32, which represents every integer only below this limit.
const MAX_CATEGORY: i64 = 1 << 24;

/// Reads a tree. It contributes to `output`, or to all `outputs` if its leaves are vectors. `weight` is DART's weight.
pub(crate) fn read(
    at: At<'_, '_>,
    output: u32,
    outputs: usize,
    weight: Option<f32>,
) -> Result<Tree, ReadError> {
    let columns = Columns::read(at)?;
    let (target, leaves, rows) = if columns.leaf_size > 1 {
        if columns.leaf_size != outputs {
            return at
                .fail(format!("leaves have {} values, the model has {outputs} outputs", columns.leaf_size));
        }
        if weight.is_some() {
            return at.fail("DART with vector leaves is not defined in XGBoost");
        }
        vector_leaves(at, &columns)?
    } else {
        scalar_leaves(&columns, output, weight)
    };
    let mut sets = Vec::new();
    let mut nodes = Vec::with_capacity(columns.left.len());
    for (i, &row) in rows.iter().enumerate() {
        if columns.left[i] == NO_NODE {
            nodes.push(Node::Leaf(row));
            continue;
        }
        let path = Path::Index(at.path(), i);
        let narrow = |what: &str, value: i64| {
            u32::try_from(value)
                .map_err(|_| ReadError::field(path.to_string(), format!("its {what} is out of range")))
        };
        let test = match columns.categories.get(&i) {
            Some(set) if columns.categorical[i] => {
                sets.push(set.clone());
                let set = narrow("number of category sets", sets.len() as i64 - 1)?;
                Test::Category { set, members: Side::Right, rule: CategoryRule::NonNegative }
            }
            None if !columns.categorical[i] => Test::Less(f64::from(columns.condition[i])),
            _ => return Err(ReadError::field(path.to_string(), "its split type and categories disagree")),
        };
        let nan = if columns.default_left[i] { NanRule::Left } else { NanRule::Right };
        nodes.push(Node::Split(Split {
            // Deleted nodes have markers in these fields. They are unreachable, and compilation refuses them otherwise.
            feature: u32::try_from(columns.feature[i]).unwrap_or(u32::MAX),
            test,
            missing: Missing { nan, zero: ZeroRule::Keep },
            left: u32::try_from(columns.left[i]).unwrap_or(u32::MAX),
            right: u32::try_from(columns.right[i]).unwrap_or(u32::MAX),
        }));
    }
    Ok(Tree { target, nodes, leaves, sets, covers: columns.covers })
}

type LeafValues = (Target, Vec<f64>, Vec<u32>);

/// Returns the values of the leaves, which are in their split conditions.
fn scalar_leaves(columns: &Columns, output: u32, weight: Option<f32>) -> LeafValues {
    let (mut values, mut rows) = (Vec::new(), Vec::with_capacity(columns.left.len()));
    for (&left, &value) in columns.left.iter().zip(&columns.condition) {
        rows.push(values.len() as u32);
        if left == NO_NODE {
            // DART adds the tree's value to 0 and then multiplies by the weight, both in float32.
            let value = weight.map_or(value, |weight| (0.0 + value) * weight);
            values.push(f64::from(value));
        }
    }
    (Target::Output(output), values, rows)
}

/// Returns the vectors of the leaves. Up to XGBoost 3.1 every node has a row in `base_weights`. From 3.2 on
/// `right_children` contains the row of a leaf in `leaf_weights`.
fn vector_leaves(at: At<'_, '_>, columns: &Columns) -> Result<LeafValues, ReadError> {
    let (key, rows): (_, Vec<u32>) = if at.find("leaf_weights").is_some() {
        ("leaf_weights", columns.right.iter().map(|&row| u32::try_from(row).unwrap_or(u32::MAX)).collect())
    } else {
        ("base_weights", (0..columns.left.len() as u32).collect())
    };
    let path = Path::Key(at.path(), key);
    let values = At::new(at.get(key)?, &path).f32s()?;
    if values.len() % columns.leaf_size != 0 {
        return Err(ReadError::field(path.to_string(), "its length is not a multiple of the leaf size"));
    }
    Ok((Target::All, values.into_iter().map(f64::from).collect(), rows))
}

/// The arrays of a tree, one element per node.
struct Columns {
    leaf_size: usize,
    left: Vec<i64>,
    right: Vec<i64>,
    feature: Vec<i64>,
    condition: Vec<f32>,
    default_left: Vec<bool>,
    categorical: Vec<bool>,
    /// Sum of the training rows' hessians; empty if the file has none.
    covers: Vec<f64>,
    /// The members of the category set of each categorical node.
    categories: std::collections::HashMap<usize, Vec<u32>>,
}

impl Columns {
    fn read(at: At<'_, '_>) -> Result<Self, ReadError> {
        let i64s = |key: &str| -> Result<Vec<i64>, ReadError> {
            let path = Path::Key(at.path(), key);
            At::new(at.get(key)?, &path).i64s()
        };
        let flags = |key: &str| -> Result<Vec<bool>, ReadError> {
            i64s(key)?
                .into_iter()
                .map(|flag| match flag {
                    0 => Ok(false),
                    1 => Ok(true),
                    _ => {
                        Err(ReadError::field(Path::Key(at.path(), key).to_string(), "values must be 0 or 1"))
                    }
                })
                .collect()
        };
        let param_path = Path::Key(at.path(), "tree_param");
        let param = At::new(at.get("tree_param")?, &param_path);
        let size_path = Path::Key(&param_path, "size_leaf_vector");
        let leaf_size = match param.find("size_leaf_vector") {
            Some(size) => At::new(size, &size_path).count()?,
            None => 1,
        };
        let condition_path = Path::Key(at.path(), "split_conditions");
        let left = i64s("left_children")?;
        let categorical = match at.find("split_type") {
            Some(_) => flags("split_type")?,
            None => vec![false; left.len()],
        };
        let covers_path = Path::Key(at.path(), "sum_hessian");
        let covers = match at.find("sum_hessian") {
            Some(covers) => At::new(covers, &covers_path).f32s()?.into_iter().map(f64::from).collect(),
            None => Vec::new(),
        };
        let columns = Self {
            leaf_size,
            covers,
            right: i64s("right_children")?,
            feature: i64s("split_indices")?,
            condition: At::new(at.get("split_conditions")?, &condition_path).f32s()?,
            default_left: flags("default_left")?,
            categories: if categorical.contains(&true) { categories(at, &i64s)? } else { Default::default() },
            categorical,
            left,
        };
        let count = columns.left.len();
        let lengths = [
            columns.right.len(),
            columns.feature.len(),
            columns.condition.len(),
            columns.default_left.len(),
            columns.categorical.len(),
        ];
        if count == 0 || lengths.iter().any(|&length| length != count) {
            return at.fail("its arrays must have one element per node, and one node at least");
        }
        let nodes_path = Path::Key(&param_path, "num_nodes");
        if At::new(param.get("num_nodes")?, &nodes_path).count()? != count {
            return at.fail("num_nodes is not the length of its arrays");
        }
        Ok(columns)
    }
}

fn categories(
    at: At<'_, '_>,
    i64s: &dyn Fn(&str) -> Result<Vec<i64>, ReadError>,
) -> Result<std::collections::HashMap<usize, Vec<u32>>, ReadError> {
    let (nodes, starts) = (i64s("categories_nodes")?, i64s("categories_segments")?);
    let (sizes, all) = (i64s("categories_sizes")?, i64s("categories")?);
    if nodes.len() != starts.len() || nodes.len() != sizes.len() {
        return at.fail("its category arrays must have one element per categorical node");
    }
    let mut sets = std::collections::HashMap::with_capacity(nodes.len());
    for ((&node, &start), &size) in nodes.iter().zip(&starts).zip(&sizes) {
        let segment = (|| {
            let (start, size) = (usize::try_from(start).ok()?, usize::try_from(size).ok()?);
            let members = all.get(start..start.checked_add(size)?)?;
            members
                .iter()
                .map(|&c| u32::try_from(c).ok().filter(|_| c < MAX_CATEGORY))
                .collect::<Option<Vec<u32>>>()
        })();
        match (usize::try_from(node), segment) {
            (Ok(node), Some(set)) if !set.is_empty() => {
                if sets.insert(node, set).is_some() {
                    return at.fail(format!("node {node} has two category sets"));
                }
            }
            _ => return at.fail(format!("the categories of node {node} are malformed")),
        }
    }
    Ok(sets)
}
