//! Compiles a raw model to a layout of slots and keys.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::error::ForestError;
use super::layout::{Layout, Leaves, PackedNode, Span, is_f32};
use super::model::{CategoryRule, Model, NanRule, Node, Precision, Side, Split, Test, Tree};
use super::slots::{CategoryTable, FIXED_ROWS, Numeric, SlotTable};
use super::{key, limits};

/// Compiles a model. The caller must validate the result by [`Layout::validate`].
pub(super) fn lower(model: &Model) -> Result<Layout, ForestError> {
    let mut orders = Vec::with_capacity(model.trees.len());
    let mut needs = Needs::default();
    for (t, tree) in model.trees.iter().enumerate() {
        let order = breadth_first(tree).map_err(|(i, rule)| named(t, i, rule))?;
        for &i in &order.nodes {
            if let Node::Split(split) = &tree.nodes[i as usize] {
                needs.add(tree, split).map_err(|rule| named(t, i as usize, rule))?;
            }
        }
        orders.push(order);
    }
    let places = Places::new(needs)?;
    let mut layout = Layout {
        num_features: model.num_features,
        num_outputs: model.num_outputs,
        base: model.base.clone(),
        base_order: model.base_order,
        divisor: model.divisor.clone(),
        link: model.link,
        slots: SlotTable::default(),
        trees: Vec::with_capacity(model.trees.len()),
        nodes: Vec::with_capacity(orders.iter().map(|order| order.nodes.len()).sum()),
        leaves: match model.precision {
            Precision::F32 => Leaves::F32(Vec::new()),
            Precision::F64 => Leaves::F64(Vec::new()),
        },
    };
    for (t, (tree, order)) in model.trees.iter().zip(&orders).enumerate() {
        let width = layout.width(tree.target);
        layout.trees.push(Span {
            first_node: layout.nodes.len(),
            nodes: order.nodes.len(),
            first_value: layout.leaves.len(),
            target: tree.target,
            depth: order.depth,
        });
        let (mut next_child, mut next_leaf) = (1_u32, 0_u32);
        for (place, &i) in order.nodes.iter().enumerate() {
            let packed = match &tree.nodes[i as usize] {
                Node::Split(split) => {
                    let (slot, key) = places.test(tree, split);
                    next_child += 2;
                    PackedNode { key, slot, left: next_child - 2 }
                }
                Node::Leaf(row) => {
                    let values = (*row as usize)
                        .checked_mul(width)
                        .and_then(|start| tree.leaves.get(start..start.checked_add(width)?))
                        .ok_or_else(|| named(t, i as usize, "its leaf has no values"))?;
                    push_values(&mut layout.leaves, values).map_err(|rule| named(t, i as usize, rule))?;
                    next_leaf += 1;
                    PackedNode::leaf(place as u32, next_leaf - 1)
                }
            };
            layout.nodes.push(packed);
        }
    }
    layout.slots = places.slots;
    Ok(layout)
}

/// Returns the cover of each node in the order of the layout's nodes; `None` if a tree does not state its covers.
pub(super) fn covers(model: &Model) -> Option<Vec<f64>> {
    let mut covers = Vec::new();
    for tree in &model.trees {
        for node in breadth_first(tree).ok()?.nodes {
            covers.push(*tree.covers.get(node as usize)?);
        }
    }
    Some(covers)
}

fn named(tree: usize, node: usize, rule: &str) -> ForestError {
    ForestError::invalid(format!("tree {tree}, node {node}"), rule)
}

fn push_values(leaves: &mut Leaves, values: &[f64]) -> Result<(), &'static str> {
    match leaves {
        Leaves::F64(all) => all.extend_from_slice(values),
        Leaves::F32(all) => {
            for &value in values {
                if !is_f32(value) {
                    return Err("its leaf value is not a finite float32, as the model's precision demands");
                }
                all.push(value as f32);
            }
        }
    }
    Ok(())
}

struct Order {
    /// Indices into the raw nodes.
    nodes: Vec<u32>,
    depth: u8,
}

/// Returns the nodes that can be reached from the root, breadth first. A node that is reached twice is an error.
fn breadth_first(tree: &Tree) -> Result<Order, (usize, &'static str)> {
    let mut reached = vec![false; tree.nodes.len()];
    let mut nodes = Vec::new();
    let mut queue = VecDeque::from([(0_u32, 0_u8)]);
    let mut depth = 0;
    while let Some((i, level)) = queue.pop_front() {
        let Some(reached) = reached.get_mut(i as usize) else {
            return Err((i as usize, "a child link leads out of the tree"));
        };
        if std::mem::replace(reached, true) {
            return Err((i as usize, "two links lead to it"));
        }
        depth = level;
        if usize::from(depth) > limits::DEPTH {
            return Err((i as usize, "it is deeper than 64 splits; train with a smaller max_depth"));
        }
        nodes.push(i);
        if let Node::Split(split) = &tree.nodes[i as usize] {
            queue.push_back((split.left, level + 1));
            queue.push_back((split.right, level + 1));
        }
    }
    Ok(Order { nodes, depth })
}

/// A column of a category table, which states the categories that go right.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Column {
    members: Vec<u32>,
    members_right: bool,
    nan_right: bool,
}

#[derive(Default)]
struct Columns {
    index: HashMap<Column, u32>,
    order: Vec<Column>,
}

/// The distinct tests of all trees.
#[derive(Default)]
struct Needs {
    numeric: BTreeSet<Numeric>,
    tables: BTreeMap<(u32, CategoryRule), Columns>,
}

impl Needs {
    fn add(&mut self, tree: &Tree, split: &Split) -> Result<(), &'static str> {
        match split.test {
            Test::Less(threshold) | Test::LessEqual(threshold) if threshold.is_nan() => {
                Err("its threshold is NaN")
            }
            Test::Less(_) | Test::LessEqual(_) => {
                self.numeric.insert(numeric(split));
                Ok(())
            }
            Test::Category { set, members, rule } => {
                let column = column(tree, set, members, split.missing.nan)?;
                let columns = self.tables.entry((split.feature, rule)).or_default();
                if !columns.index.contains_key(&column) {
                    let next = u32::try_from(columns.order.len()).map_err(|_| "too many category sets")?;
                    columns.index.insert(column.clone(), next);
                    columns.order.push(column);
                }
                Ok(())
            }
        }
    }
}

fn numeric(split: &Split) -> Numeric {
    Numeric { feature: split.feature, nan: split.missing.nan, zero: split.missing.zero }
}

fn column(tree: &Tree, set: u32, members: Side, nan: NanRule) -> Result<Column, &'static str> {
    let mut categories = tree.sets.get(set as usize).ok_or("its category set does not exist")?.clone();
    categories.sort_unstable();
    categories.dedup();
    if categories.last().is_some_and(|&last| last >= 1 << 31) {
        return Err("a category is not below 2^31");
    }
    let members_right = members == Side::Right;
    let nan_right = match nan {
        NanRule::Left => false,
        NanRule::Right => true,
        NanRule::Zero => members_right == categories.contains(&0),
    };
    Ok(Column { members: categories, members_right, nan_right })
}

/// The slots of the tests.
struct Places {
    slots: SlotTable,
    numeric: HashMap<Numeric, u32>,
    /// First slot and columns of each table.
    tables: BTreeMap<(u32, CategoryRule), (u32, HashMap<Column, u32>)>,
}

impl Places {
    fn new(needs: Needs) -> Result<Self, ForestError> {
        let numeric: Vec<Numeric> = needs.numeric.into_iter().collect();
        let columns: usize = needs.tables.values().map(|columns| columns.order.len()).sum();
        if numeric.len() + columns >= limits::SLOTS {
            return Err(ForestError::unsupported(
                "slots",
                format!("{} are above the limit of {}", numeric.len() + columns, limits::SLOTS),
                "train with fewer features or fewer categorical splits",
            ));
        }
        let mut next = 1 + numeric.len() as u32;
        let index = numeric.iter().zip(1_u32..).map(|(&numeric, slot)| (numeric, slot)).collect();
        let mut tables = Vec::new();
        let mut places = BTreeMap::new();
        let mut budget = limits::CATEGORY_BYTES;
        for ((feature, rule), columns) in needs.tables {
            let table = table(feature, rule, &columns.order, &mut budget)?;
            places.insert((feature, rule), (next, columns.index));
            next += table.columns as u32;
            tables.push(table);
        }
        Ok(Self { slots: SlotTable { numeric, tables }, numeric: index, tables: places })
    }

    /// Returns the slot and key of a split that was passed to [`Needs::add`].
    fn test(&self, tree: &Tree, split: &Split) -> (u32, i32) {
        match split.test {
            Test::Less(threshold) => (self.numeric_slot(split), key::less(threshold)),
            Test::LessEqual(threshold) => (self.numeric_slot(split), key::less_equal(threshold)),
            Test::Category { set, members, rule } => {
                let place = self.tables.get(&(split.feature, rule)).and_then(|(first, index)| {
                    let column = column(tree, set, members, split.missing.nan).ok()?;
                    Some(first + index.get(&column)?)
                });
                (place.unwrap_or(0), 1)
            }
        }
    }

    fn numeric_slot(&self, split: &Split) -> u32 {
        self.numeric.get(&numeric(split)).copied().unwrap_or(0)
    }
}

fn table(
    feature: u32,
    rule: CategoryRule,
    columns: &[Column],
    budget: &mut usize,
) -> Result<CategoryTable, ForestError> {
    let categories: BTreeSet<u32> = columns.iter().flat_map(|column| &column.members).copied().collect();
    let categories: Vec<u32> = categories.into_iter().collect();
    let words = CategoryTable::words(columns.len());
    let count = (FIXED_ROWS + categories.len()).saturating_mul(words);
    *budget = budget.checked_sub(count.saturating_mul(8)).ok_or_else(|| {
        ForestError::unsupported(
            format!("categorical feature {feature}"),
            format!(
                "its {} categories in {} sets exceed the limit of memory",
                categories.len(),
                columns.len()
            ),
            "train with fewer categories, or encode it as a number",
        )
    })?;
    let mut rows = vec![0_u64; count];
    for (c, column) in columns.iter().enumerate() {
        let (word, bit) = (c / 64, 1_u64 << (c % 64));
        let mut right = |row: usize| rows[row * words + word] |= bit;
        if column.nan_right {
            right(0);
        }
        if !column.members_right {
            right(1);
        }
        let mut members = column.members.iter().peekable();
        for (i, category) in categories.iter().enumerate() {
            let member = members.next_if_eq(&category).is_some();
            if member == column.members_right {
                right(FIXED_ROWS + i);
            }
        }
    }
    Ok(CategoryTable { feature, rule, columns: columns.len(), categories, rows })
}
