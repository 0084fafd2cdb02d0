//! The covers of a forest's nodes: the weight of the training rows that reached each of them.

use crate::forest::{Forest, NodeView};

const MAGIC: [u8; 8] = *b"SCCOVERS";
const VERSION: u32 = 1;
/// Magic, version, four reserved bytes and the number of nodes.
const HEAD: usize = 24;
const CHECKSUM: usize = 4;
/// The children of a split may exceed it by this share, because libraries store rounded sums.
const TOLERANCE: f64 = 0.01;

/// The cover of every node of one forest, in the order of the packed forest.
#[derive(Debug, Clone, PartialEq)]
pub struct Covers {
    values: Box<[f32]>,
}

/// The reason why covers were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoversError {
    /// The bytes are not those of a file of covers.
    #[error("the content is not a file of covers of version 1, or is truncated or altered")]
    Format,
    /// The number of covers is not that of the forest's nodes.
    #[error("it has {covers} covers, the forest has {nodes} nodes")]
    Count {
        /// Number of covers.
        covers: usize,
        /// Number of nodes of the forest.
        nodes: usize,
    },
    /// A cover is negative, infinite or NaN.
    #[error("the cover of node {node} is not a finite number from 0 on")]
    Value {
        /// Position of the node in the packed forest.
        node: usize,
    },
    /// The children of a split have a greater cover than the split.
    #[error("the covers of the children of node {node} add up to more than its own")]
    Sum {
        /// Position of the node in the packed forest.
        node: usize,
    },
}

impl Covers {
    /// Checks the covers of a forest.
    ///
    /// # Errors
    /// Fails if there is not one cover per node, a cover is not a finite number from 0 on, or the children of a split
    /// have a greater cover than the split itself.
    pub fn new(forest: &Forest, covers: &[f64]) -> Result<Covers, CoversError> {
        Covers::checked(forest, covers.iter().map(|&cover| cover as f32).collect())
    }

    /// Reads and checks a file of covers (see `docs/bundle-format.md`).
    ///
    /// # Errors
    /// Fails as [`Covers::new`] does, and if the bytes are not a result of [`Covers::to_bytes`].
    pub fn from_bytes(forest: &Forest, bytes: &[u8]) -> Result<Covers, CoversError> {
        let (content, checksum) = bytes.split_last_chunk::<CHECKSUM>().ok_or(CoversError::Format)?;
        let (head, values) = content.split_at_checked(HEAD).ok_or(CoversError::Format)?;
        let (values, rest) = values.as_chunks::<4>();
        if head != Covers::head(values.len())
            || !rest.is_empty()
            || u32::from_le_bytes(*checksum) != crc32c::crc32c(content)
        {
            return Err(CoversError::Format);
        }
        Covers::checked(forest, values.iter().map(|&value| f32::from_le_bytes(value)).collect())
    }

    /// Encodes the covers.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Covers::head(self.values.len()).to_vec();
        bytes.extend(self.values.iter().flat_map(|value| value.to_le_bytes()));
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }

    fn head(count: usize) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        head[16..].copy_from_slice(&(count as u64).to_le_bytes());
        head
    }

    fn checked(forest: &Forest, values: Box<[f32]>) -> Result<Covers, CoversError> {
        if values.len() != forest.num_nodes() {
            return Err(CoversError::Count { covers: values.len(), nodes: forest.num_nodes() });
        }
        if let Some(node) = values.iter().position(|value| !value.is_finite() || *value < 0.0) {
            return Err(CoversError::Value { node });
        }
        let covers = Covers { values };
        for tree in forest.trees() {
            let own = covers.of(tree.first_node(), tree.len());
            for (at, node) in tree.nodes().enumerate() {
                let NodeView::Split { left, .. } = node else { continue };
                let children = f64::from(own[left]) + f64::from(own[left + 1]);
                if children > f64::from(own[at]) * (1.0 + TOLERANCE) {
                    return Err(CoversError::Sum { node: tree.first_node() + at });
                }
            }
        }
        Ok(covers)
    }

    /// Heap memory in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.values)
    }

    /// The covers of one tree.
    pub(super) fn of(&self, first_node: usize, nodes: usize) -> &[f32] {
        &self.values[first_node..first_node + nodes]
    }
}
