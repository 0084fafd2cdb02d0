//! The features of `scorer.v1` messages, decoded for the engine.

use scorer_core::schema::Value;
use scorer_engine::{
    ActiveLane, Content, Engine, Features, NamedValues, Rejection, Rows, check_dense, check_fingerprint,
    quotable,
};
use scorer_observe::{NamedList, value};
use scorer_proto::v1::{DenseFeatures, NamedFeatures};

use super::keys::BatchKeys;
use crate::content::{ABSENT, NAMED, hash_dense, hash_value};

/// The features of one row.
#[derive(Clone, Copy)]
pub(crate) enum Row<'a> {
    /// The request gives no features.
    Absent,
    /// Values by feature name.
    Named(NamedList<'a>),
    /// Values in schema order.
    Dense(&'a DenseFeatures),
}

/// The features of one of the two steps of a request, which share the named features.
pub(crate) struct StepRow<'a> {
    row: Row<'a>,
    /// The named features of the request.
    shared: NamedList<'a>,
    /// Whether the other step reads the shared features.
    shared_by_other: bool,
}

/// The rows of a batch.
pub(crate) struct DenseRows {
    pub(crate) schema_fingerprint: u64,
    pub(crate) values: Vec<f32>,
    pub(crate) rows: u32,
    pub(crate) keys: BatchKeys,
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

// === impl StepRow ===

impl<'a> StepRow<'a> {
    /// Creates the rows of both steps from the named features and the vector of each step, if it has one.
    ///
    /// # Errors
    /// A name or a category contains a card number.
    pub(crate) fn both(
        engine: &Engine,
        named: Option<&'a NamedFeatures>,
        dense: [Option<&'a DenseFeatures>; 2],
    ) -> Result<[StepRow<'a>; 2], Rejection> {
        let shared = named.map_or(Ok(Row::Absent), |named| Row::named(engine, named))?;
        let list = NamedList(named.map_or(&[], |named| &named.features));
        let [first, second] = dense;
        let row = |own: Option<&'a DenseFeatures>, other: Option<&DenseFeatures>| StepRow {
            row: own.map_or(shared, Row::Dense),
            shared: list,
            shared_by_other: other.is_none(),
        };
        Ok([row(first, second), row(second, first)])
    }
}

impl Features for StepRow<'_> {
    type Error = Rejection;

    fn encode(&self, lane: &ActiveLane, row: &mut Vec<f32>) -> Result<(), Rejection> {
        self.encode_with(lane, row, &[])
    }

    fn encode_with(
        &self,
        lane: &ActiveLane,
        row: &mut Vec<f32>,
        given: &[(&str, Value<'_>)],
    ) -> Result<(), Rejection> {
        let schema = lane.loaded.bundle.schema();
        let stated = |feature: &str| Rejection::PassedStated { feature: feature.to_owned() };
        match self.row {
            Row::Absent => Err(Rejection::NoFeatures),
            Row::Named(NamedList(named)) => {
                let own = named.iter().filter(|feature| schema.index_of(&feature.name).is_some());
                let own = own.map(|feature| (feature.name.as_str(), value(feature)));
                for (name, _) in given {
                    if named.iter().any(|feature| feature.name == *name) {
                        return Err(stated(name));
                    }
                }
                row.resize(schema.len(), 0.0);
                Ok(schema.encode_named(own.chain(given.iter().copied()), row)?)
            }
            Row::Dense(dense) => {
                check_fingerprint(dense.schema_fingerprint, &lane.loaded)?;
                row.clear();
                row.extend_from_slice(&dense.values);
                for (name, value) in given {
                    let at = schema.index_of(name).filter(|&at| at < row.len());
                    let Some((at, place)) = at.and_then(|at| Some((at, row.get_mut(at)?))) else { continue };
                    if !place.is_nan() {
                        return Err(stated(name));
                    }
                    *place = schema.encode_value(at, *value)?;
                }
                Ok(schema.check_dense(row)?)
            }
        }
    }

    fn check_read(&self, first: &ActiveLane, second: &ActiveLane) -> Result<(), Rejection> {
        let reads = |lane: &ActiveLane, name: &str| {
            lane.loaded.bundle.schema().index_of(name).is_some() || lane.observers_read(name)
        };
        let own = !matches!(self.row, Row::Dense(_));
        let unread = self
            .shared
            .0
            .iter()
            .map(|feature| feature.name.as_str())
            .find(|name| !(own && reads(first, name) || self.shared_by_other && reads(second, name)));
        unread.map_or(Ok(()), |name| Err(Rejection::UnreadFeature { feature: quotable(name) }))
    }

    fn hash(&self, content: &mut Content) {
        self.row.hash(content);
    }

    fn named(&self) -> &dyn NamedValues {
        self.row.named()
    }
}

impl Rows for DenseRows {
    type Error = Rejection;

    fn count(&self) -> u32 {
        self.rows
    }

    fn values(&mut self, lane: &ActiveLane) -> Result<Vec<f32>, Rejection> {
        check_fingerprint(self.schema_fingerprint, &lane.loaded)?;
        Ok(std::mem::take(&mut self.values))
    }

    fn key(&self, row: usize, entity: &str) -> Option<&str> {
        self.keys.key(row, entity)
    }
}
