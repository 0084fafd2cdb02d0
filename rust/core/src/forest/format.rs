//! Encodes and decodes packed forests, in little-endian order. `docs/forest-format.md` describes the format; change
//! both together.

use super::error::ForestError;
use super::layout::{Layout, Leaves, PackedNode, Span, tree_depth};
use super::model::{BaseOrder, CategoryRule, NanRule, Precision, Target, ZeroRule};
use super::slots::{CategoryTable, FIXED_ROWS, Numeric, SlotTable};
use super::{Link, limits};

const MAGIC: [u8; 8] = *b"SCFOREST";
const VERSION: u32 = 1;
const SECTIONS: usize = 5;
/// Magic, version, precision, base order, link, reserved; two link-free counts follow.
const HEAD: usize = 64 + 8 * SECTIONS;
const ALL_OUTPUTS: u32 = u32::MAX;
const NODE: usize = 12;

pub(super) fn encode(layout: &Layout) -> Vec<u8> {
    let sections = [
        outputs(layout),
        slots(&layout.slots),
        trees(&layout.trees),
        nodes(&layout.nodes),
        leaves(&layout.leaves),
    ];
    let mut bytes = Vec::with_capacity(HEAD + sections.iter().map(Vec::len).sum::<usize>() + 4);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.push(match layout.precision() {
        Precision::F32 => 0,
        Precision::F64 => 1,
    });
    bytes.push(match layout.base_order {
        BaseOrder::First => 0,
        BaseOrder::Last => 1,
    });
    let (link, parameter) = link_code(layout.link);
    bytes.push(link);
    bytes.push(u8::from(!layout.divisor.is_empty()));
    bytes.extend(parameter.to_le_bytes());
    let counts = [
        layout.num_features,
        layout.num_outputs,
        layout.trees.len(),
        layout.nodes.len(),
        layout.slots.numeric.len(),
    ];
    for count in counts {
        bytes.extend((count as u64).to_le_bytes());
    }
    for section in &sections {
        bytes.extend((section.len() as u64).to_le_bytes());
    }
    for section in &sections {
        bytes.extend(section);
    }
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

fn outputs(layout: &Layout) -> Vec<u8> {
    layout.base.iter().chain(&layout.divisor).flat_map(|value| value.to_le_bytes()).collect()
}

fn slots(slots: &SlotTable) -> Vec<u8> {
    let mut bytes = Vec::new();
    for slot in &slots.numeric {
        bytes.extend(slot.feature.to_le_bytes());
        bytes.extend([nan_code(slot.nan), zero_code(slot.zero), 0, 0]);
    }
    for table in &slots.tables {
        bytes.extend(table.feature.to_le_bytes());
        bytes.extend([rule_code(table.rule), 0, 0, 0]);
        bytes.extend((table.columns as u32).to_le_bytes());
        bytes.extend((table.categories.len() as u32).to_le_bytes());
        bytes.extend(table.categories.iter().flat_map(|category| category.to_le_bytes()));
        bytes.extend(table.rows.iter().flat_map(|word| word.to_le_bytes()));
    }
    bytes
}

fn trees(trees: &[Span]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 * trees.len());
    for tree in trees {
        bytes.extend((tree.nodes as u32).to_le_bytes());
        let target = match tree.target {
            Target::Output(output) => output,
            Target::All => ALL_OUTPUTS,
        };
        bytes.extend(target.to_le_bytes());
    }
    bytes
}

fn nodes(nodes: &[PackedNode]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(NODE * nodes.len());
    for node in nodes {
        bytes.extend(node.key.to_le_bytes());
        bytes.extend(node.slot.to_le_bytes());
        bytes.extend(node.left.to_le_bytes());
    }
    bytes
}

fn leaves(leaves: &Leaves) -> Vec<u8> {
    match leaves {
        Leaves::F32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Leaves::F64(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

/// Decodes a packed forest. Every count is checked against the remaining bytes before memory is allocated for it.
/// [`Layout::validate`] checks the relations between the parts.
pub(super) fn decode(bytes: &[u8]) -> Result<Layout, ForestError> {
    if bytes.len() > limits::BYTES {
        return Err(ForestError::unsupported(
            "packed forest",
            format!("{} bytes are above the limit of {}", bytes.len(), limits::BYTES),
            "use a smaller model",
        ));
    }
    let mut head = Reader { bytes, what: "header" };
    if head.array::<8>().map_err(|_| ForestError::Magic)? != MAGIC {
        return Err(ForestError::Magic);
    }
    let found = head.u32()?;
    if found != VERSION {
        return Err(ForestError::Version { found, supported: VERSION });
    }
    let [precision, base_order, link, divided] = head.array()?;
    let parameter = head.f64()?;
    let num_features = head.count(limits::FEATURES)?;
    let num_outputs = head.count(limits::OUTPUTS)?;
    let num_trees = head.count(limits::TREES)?;
    let num_nodes = head.count(limits::NODES)?;
    let num_numeric = head.count(limits::SLOTS)?;
    let mut lengths = [0; SECTIONS];
    for length in &mut lengths {
        *length = head.count(limits::BYTES)?;
    }
    let body = head.bytes;
    let expected = lengths.iter().sum::<usize>() + 4;
    if body.len() < expected {
        let (needed, remaining) = (expected as u64, body.len() as u64);
        return Err(ForestError::Truncated { what: "content", needed, remaining });
    }
    if body.len() > expected {
        return Err(ForestError::invalid("packed forest", "bytes are left over behind the checksum"));
    }
    let (content, stored) = bytes.split_at(bytes.len() - 4);
    let found = Reader { bytes: stored, what: "checksum" }.u32()?;
    let computed = crc32c::crc32c(content);
    if found != computed {
        return Err(ForestError::Checksum { found, computed });
    }
    let mut rest = Reader { bytes: body, what: "sections" };
    let mut section = |what, i: usize| -> Result<Reader<'_>, ForestError> {
        Ok(Reader { bytes: rest.take(lengths[i])?, what })
    };
    let mut outputs = section("outputs", 0)?;
    let base = outputs.f64s(num_outputs)?;
    let divisor = if flag(divided)? { outputs.f64s(num_outputs)? } else { Vec::new() };
    outputs.finish()?;
    let slots = read_slots(section("slots", 1)?, num_numeric)?;
    let mut spans = read_trees(section("trees", 2)?, num_trees, num_outputs)?;
    let nodes = read_nodes(section("nodes", 3)?, num_nodes)?;
    let mut values = section("leaves", 4)?;
    let leaves = match precision {
        0 => Leaves::F32(values.all(f32::from_le_bytes)?),
        1 => Leaves::F64(values.all(f64::from_le_bytes)?),
        _ => return Err(ForestError::invalid("packed forest", "its precision is neither 0 nor 1")),
    };
    let (numeric_end, slot_count) = (slots.first_column(), slots.len());
    for (t, span) in spans.iter_mut().enumerate() {
        let Some(tree) = nodes.get(span.first_node..span.first_node + span.nodes) else {
            return Err(ForestError::invalid(format!("tree {t}"), "it has more nodes than there are"));
        };
        span.depth = tree_depth(tree, numeric_end, slot_count)
            .map_err(|(i, rule)| ForestError::invalid(format!("tree {t}, node {i}"), rule))?;
    }
    Ok(Layout {
        num_features,
        num_outputs,
        base,
        base_order: match base_order {
            0 => BaseOrder::First,
            1 => BaseOrder::Last,
            _ => return Err(ForestError::invalid("packed forest", "its base order is neither 0 nor 1")),
        },
        divisor,
        link: link_from(link, parameter)?,
        slots,
        trees: spans,
        nodes,
        leaves,
    })
}

fn flag(code: u8) -> Result<bool, ForestError> {
    match code {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(ForestError::invalid("packed forest", "a flag is neither 0 nor 1")),
    }
}

fn read_slots(mut reader: Reader<'_>, num_numeric: usize) -> Result<SlotTable, ForestError> {
    reader.need(num_numeric, 8)?;
    let mut numeric = Vec::with_capacity(num_numeric);
    for _ in 0..num_numeric {
        let feature = reader.u32()?;
        let [nan, zero, 0, 0] = reader.array()? else {
            return Err(ForestError::invalid("numeric slots", "reserved bytes must be 0"));
        };
        numeric.push(Numeric { zero: zero_from(zero)?, nan: nan_from(nan)?, feature });
    }
    let mut tables = Vec::new();
    while !reader.bytes.is_empty() {
        let feature = reader.u32()?;
        let [rule, 0, 0, 0] = reader.array()? else {
            return Err(ForestError::invalid("category tables", "reserved bytes must be 0"));
        };
        let columns = reader.u32()? as usize;
        let count = reader.u32()? as usize;
        let categories = reader.many(count, u32::from_le_bytes)?;
        let rows = (FIXED_ROWS + count).saturating_mul(CategoryTable::words(columns));
        let rows = reader.many(rows, u64::from_le_bytes)?;
        tables.push(CategoryTable { feature, rule: rule_from(rule)?, columns, categories, rows });
    }
    Ok(SlotTable { numeric, tables })
}

fn read_trees(mut reader: Reader<'_>, count: usize, num_outputs: usize) -> Result<Vec<Span>, ForestError> {
    reader.need(count, 8)?;
    let mut spans = Vec::with_capacity(count);
    let (mut first_node, mut first_value) = (0, 0);
    for _ in 0..count {
        let nodes = reader.u32()? as usize;
        let (target, width) = match reader.u32()? {
            ALL_OUTPUTS => (Target::All, num_outputs),
            output => (Target::Output(output), 1),
        };
        let span = Span { first_node, nodes, first_value, target, depth: 0 };
        first_node += nodes;
        first_value += span.leaves() * width;
        spans.push(span);
    }
    reader.finish()?;
    Ok(spans)
}

fn read_nodes(mut reader: Reader<'_>, count: usize) -> Result<Vec<PackedNode>, ForestError> {
    let nodes = reader.many(count, |bytes: [u8; NODE]| {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        PackedNode {
            key: i32::from_le_bytes([a, b, c, d]),
            slot: u32::from_le_bytes([e, f, g, h]),
            left: u32::from_le_bytes([i, j, k, l]),
        }
    })?;
    reader.finish()?;
    Ok(nodes)
}

fn link_code(link: Link) -> (u8, f64) {
    match link {
        Link::Identity => (0, 0.0),
        Link::Sigmoid { alpha } => (1, alpha),
        Link::Softmax => (2, 0.0),
        Link::ArgMax => (3, 0.0),
        Link::Exp => (4, 0.0),
        Link::Hinge => (5, 0.0),
        Link::LogOnePlusExp => (6, 0.0),
        Link::SignedSquare => (7, 0.0),
        Link::ExpBase2 { scale } => (8, scale),
        Link::Normalize => (9, 0.0),
    }
}

fn link_from(code: u8, parameter: f64) -> Result<Link, ForestError> {
    let link = match code {
        0 => Link::Identity,
        1 => Link::Sigmoid { alpha: parameter },
        2 => Link::Softmax,
        3 => Link::ArgMax,
        4 => Link::Exp,
        5 => Link::Hinge,
        6 => Link::LogOnePlusExp,
        7 => Link::SignedSquare,
        8 => Link::ExpBase2 { scale: parameter },
        9 => Link::Normalize,
        _ => return Err(ForestError::invalid("packed forest", format!("link {code} is not known"))),
    };
    if link_code(link).1.to_bits() != parameter.to_bits() {
        return Err(ForestError::invalid("packed forest", "its link takes no parameter"));
    }
    Ok(link)
}

fn nan_code(rule: NanRule) -> u8 {
    match rule {
        NanRule::Left => 0,
        NanRule::Right => 1,
        NanRule::Zero => 2,
    }
}

fn nan_from(code: u8) -> Result<NanRule, ForestError> {
    match code {
        0 => Ok(NanRule::Left),
        1 => Ok(NanRule::Right),
        2 => Ok(NanRule::Zero),
        _ => Err(ForestError::invalid("numeric slots", "a NaN rule is not known")),
    }
}

fn zero_code(rule: ZeroRule) -> u8 {
    match rule {
        ZeroRule::Keep => 0,
        ZeroRule::Flush => 1,
        ZeroRule::Missing => 2,
    }
}

fn zero_from(code: u8) -> Result<ZeroRule, ForestError> {
    match code {
        0 => Ok(ZeroRule::Keep),
        1 => Ok(ZeroRule::Flush),
        2 => Ok(ZeroRule::Missing),
        _ => Err(ForestError::invalid("numeric slots", "a zero rule is not known")),
    }
}

fn rule_code(rule: CategoryRule) -> u8 {
    match rule {
        CategoryRule::NonNegative => 0,
        CategoryRule::Truncated => 1,
        CategoryRule::Exact => 2,
    }
}

fn rule_from(code: u8) -> Result<CategoryRule, ForestError> {
    match code {
        0 => Ok(CategoryRule::NonNegative),
        1 => Ok(CategoryRule::Truncated),
        2 => Ok(CategoryRule::Exact),
        _ => Err(ForestError::invalid("category tables", "a category rule is not known")),
    }
}

/// A reader that consumes a slice from its front.
struct Reader<'a> {
    bytes: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], ForestError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(ForestError::Truncated {
            what: self.what,
            needed: count as u64,
            remaining: self.bytes.len() as u64,
        })?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ForestError> {
        let (array, rest) = self.bytes.split_first_chunk::<N>().ok_or(ForestError::Truncated {
            what: self.what,
            needed: N as u64,
            remaining: self.bytes.len() as u64,
        })?;
        self.bytes = rest;
        Ok(*array)
    }

    fn u32(&mut self) -> Result<u32, ForestError> {
        self.array().map(u32::from_le_bytes)
    }

    fn f64(&mut self) -> Result<f64, ForestError> {
        self.array().map(f64::from_le_bytes)
    }

    /// Reads a count or length of at most `limit`.
    fn count(&mut self, limit: usize) -> Result<usize, ForestError> {
        let value = u64::from_le_bytes(self.array()?);
        usize::try_from(value).ok().filter(|&value| value <= limit).ok_or_else(|| {
            ForestError::invalid("packed forest", format!("a count of {value} is above its limit of {limit}"))
        })
    }

    fn need(&self, count: usize, size: usize) -> Result<(), ForestError> {
        let needed = count.saturating_mul(size);
        if needed > self.bytes.len() {
            let (needed, remaining) = (needed as u64, self.bytes.len() as u64);
            return Err(ForestError::Truncated { what: self.what, needed, remaining });
        }
        Ok(())
    }

    fn many<const N: usize, T>(
        &mut self,
        count: usize,
        parse: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, ForestError> {
        self.need(count, N)?;
        let (chunks, _) = self.take(count * N)?.as_chunks::<N>();
        Ok(chunks.iter().map(|&chunk| parse(chunk)).collect())
    }

    fn f64s(&mut self, count: usize) -> Result<Vec<f64>, ForestError> {
        self.many(count, f64::from_le_bytes)
    }

    /// Reads all remaining bytes, which must be whole values.
    fn all<const N: usize, T>(&mut self, parse: impl Fn([u8; N]) -> T) -> Result<Vec<T>, ForestError> {
        let values = self.many(self.bytes.len() / N, parse)?;
        self.finish()?;
        Ok(values)
    }

    fn finish(&self) -> Result<(), ForestError> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        Err(ForestError::invalid(format!("section {}", self.what), "bytes are left over"))
    }
}
