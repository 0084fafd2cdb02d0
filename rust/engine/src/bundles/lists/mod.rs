//! External lists: versions of named lists that change without another bundle.
//!
//! One table holds the newest version of every list and the lists of every bundle in memory. A load prepares another
//! table on a thread of its own and replaces it by one pointer store, so that all bundles change together and a request,
//! which takes its bundle's lists once, sees one version of each list. A set is built once for every key: bundles with
//! the same salt share it.

mod error;
mod read;
mod table;

pub use error::{ListError, ListRefusal};
pub use read::{verify_list, with_versions};
pub use table::{ListReport, ListRequest, ListStatus, ListTable};
