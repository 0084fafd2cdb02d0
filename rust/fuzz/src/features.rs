//! Files of the feature store and definitions of feature sets. The first byte chooses the parser.

use scorer_features::{FeatureSet, fuzzing};

/// The set of the seeds' snapshots.
pub const SET: &str = r#"{"name": "s", "version": 1,
    "events": {"e": {"entities": ["card"], "numbers": ["amount"], "texts": ["country"], "accept_late": 86400}},
    "features": [
        {"name": "n", "entity": "card", "event": "e", "aggregate": "count", "window": 86400},
        {"name": "d", "entity": "card", "event": "e", "aggregate": "distinct", "of": "country", "window": 86400},
        {"name": "h", "entity": "card", "event": "e", "aggregate": "decayed_sum", "of": "amount", "half_life": 60}]}"#;

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    let mut bytes = rest.to_vec();
    match choice % 4 {
        0 => {
            if let Ok(set) = FeatureSet::parse(rest) {
                let again = FeatureSet::parse(&set.canonical()).map(|set| set.digest());
                assert_eq!(again, Ok(set.digest()), "the canonical form has the same meaning");
            }
        }
        1 => {
            fuzzing::seal(&mut bytes);
            fuzzing::journal(&bytes);
        }
        2 => {
            fuzzing::seal(&mut bytes);
            if let Ok(set) = FeatureSet::parse(SET.as_bytes()) {
                fuzzing::snapshot(&set, &bytes);
            }
        }
        _ => {
            fuzzing::seal(&mut bytes);
            fuzzing::erasures(&bytes);
        }
    }
}
