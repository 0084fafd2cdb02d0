//! Computed features: the columns of a bundle's schema whose values come from a source in the server instead of the
//! request.
//!
//! [`source`] is the interface of sources, [`bundle`] binds the columns of a loaded bundle to a source, [`origins`]
//! states where the values of a row came from, and [`load`] reads them for a request.

mod bundle;
mod load;
mod origins;
mod source;

pub use bundle::Computed;
pub(crate) use load::{Filled, Preloaded, Waiting, read_all};
pub use origins::{Defaulted, Origins};
pub use source::{
    EntityKeys, FeatureReader, FeatureSource, Found, LaterValues, Loading, MAX_ENTITIES, ReadColumn,
    SourceError, SourceRefusal,
};
