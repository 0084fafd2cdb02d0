//! The features of `scorer.v1` messages, decoded for the engine.

use scorer_core::schema::Value;
use scorer_engine::{
    ActiveLane, Content, Engine, Features, NamedValues, Rejection, Rows, check_dense, check_fingerprint,
};
use scorer_observe::{NamedList, value};
use scorer_proto::v1::{DenseFeatures, NamedFeatures};

use crate::content::{ABSENT, NAMED, hash_dense, hash_value};

/// The features of one row.
pub(crate) enum Row<'a> {
    /// The request gives no features.
    Absent,
    /// Values by feature name.
    Named(NamedList<'a>),
    /// Values in schema order.
    Dense(&'a DenseFeatures),
}

/// The rows of a batch.
pub(crate) struct DenseRows {
    pub(crate) schema_fingerprint: u64,
    pub(crate) values: Vec<f32>,
    pub(crate) rows: u32,
}

// === impl Row ===

impl<'a> Row<'a> {
    /// # Errors
    /// A name or a category contains a card number. Numbers are not searched, because a row keeps only 24 bits of
    /// each.
    pub(crate) fn named(engine: &Engine, named: &'a NamedFeatures) -> Result<Row<'a>, Rejection> {
        for feature in &named.features {
            engine.privacy.plain("features", &feature.name)?;
            if let Value::Category(category) = value(feature) {
                engine.privacy.plain("features", category)?;
            }
        }
        Ok(Row::Named(NamedList(&named.features)))
    }
}

impl Features for Row<'_> {
    type Error = Rejection;

    fn encode(&self, lane: &ActiveLane, row: &mut Vec<f32>) -> Result<(), Rejection> {
        match self {
            Row::Absent => Err(Rejection::NoFeatures),
            Row::Named(NamedList(named)) => {
                let schema = lane.loaded.bundle.schema();
                // A name that only observe lanes read is not a feature of this schema: they get it separately.
                let own = named.iter().filter(|feature| !lane.observers_read(&feature.name));
                row.resize(schema.len(), 0.0);
                Ok(schema.encode_named(own.map(|feature| (feature.name.as_str(), value(feature))), row)?)
            }
            Row::Dense(dense) => check_dense(dense.schema_fingerprint, &dense.values, &lane.loaded, row),
        }
    }

    /// Adds the features to the hash of the request's content. The order of named values does not change the hash.
    fn hash(&self, content: &mut Content) {
        match self {
            Row::Absent => content.number(ABSENT),
            Row::Named(NamedList(named)) => {
                content.number(NAMED);
                content.set(named.iter(), |content, feature| {
                    content.bytes(feature.name.as_bytes());
                    hash_value(value(feature), content);
                });
            }
            Row::Dense(dense) => hash_dense(&dense.values, content),
        }
    }

    fn named(&self) -> &dyn NamedValues {
        match self {
            Row::Named(named) => named,
            Row::Absent | Row::Dense(_) => &(),
        }
    }
}

impl Rows for DenseRows {
    type Error = Rejection;

    fn count(&self) -> u32 {
        self.rows
    }

    fn values(self, lane: &ActiveLane) -> Result<Vec<f32>, Rejection> {
        check_fingerprint(self.schema_fingerprint, &lane.loaded)?;
        Ok(self.values)
    }
}
