//! Computed features: the columns of a bundle's schema whose values come from a source in the server instead of the
//! request.
//!
//! [`source`] is the interface of sources, [`bundle`] binds the columns of a loaded bundle to a source, and [`origins`]
//! states where the values of a row came from.

mod bundle;
mod origins;
mod source;

pub use bundle::Computed;
pub use origins::Origins;
pub use source::{
    EntityKeys, FeatureReader, FeatureSource, Found, LaterValues, Loading, MAX_ENTITIES, ReadColumn,
    SourceError, SourceRefusal,
};
