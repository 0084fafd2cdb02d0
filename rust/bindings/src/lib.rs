//! The extension module `scorer._scorer`, the only interface between Rust and Python. It is not a public API.

mod bundle;
mod enter;
mod error;
mod features;
mod feed;
mod forest;
mod hex;
mod identity;
mod list;
mod load;
mod log;
mod privacy;
mod process;
mod server;
mod signing;
mod token;

use pyo3::prelude::*;

#[pymodule]
mod _scorer {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::bundle::{
        Bundle, Policy, RuleSet, build_golden, compile_action_rules, compile_rules, draft_bundle, draw,
        golden_rows, measure_bundles, revise_bundle, rule_costs, rules_of, score_columns, seal_manifest,
        select_columns, transform_rows,
    };
    #[pymodule_export]
    use crate::features::{FeatureStore, canonical_features, feature_digests};
    #[pymodule_export]
    use crate::feed::FeatureFeed;
    #[pymodule_export]
    use crate::forest::Forest;
    #[pymodule_export]
    use crate::identity::{check_client_tls, check_server_tls, write_fleet};
    #[pymodule_export]
    use crate::list::verify_list;
    #[pymodule_export]
    use crate::load::run_load;
    #[pymodule_export]
    use crate::log::{LogReader, RuleReplay, mark_shipped, prune_log};
    #[pymodule_export]
    use crate::privacy::entity_pseudonym;
    #[pymodule_export]
    use crate::process::forbid_core_dumps;
    #[pymodule_export]
    use crate::server::Server;
    #[pymodule_export]
    use crate::signing::{generate_key, public_key, sign_bundle, verify_signature};
    #[pymodule_export]
    use crate::token::{read_token, token_keys, verify_token};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("build_profile", if cfg!(debug_assertions) { "debug" } else { "release" })?;
        module.add(
            "FILE_DESCRIPTOR_SET",
            pyo3::types::PyBytes::new(module.py(), scorer_proto::FILE_DESCRIPTOR_SET),
        )
    }
}
