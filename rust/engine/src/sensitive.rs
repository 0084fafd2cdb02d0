//! Sensitive features, whose values are masked or encrypted in records.

use std::collections::{BTreeMap, BTreeSet};

use scorer_core::schema::FeatureSpec;
use scorer_privacy::{SealError, Sealer};
use scorer_proto::v1::{DecisionRecord, SealedFeatures};
use serde::{Deserialize, Serialize};

/// The name that stands for every feature without a rule of its own.
const OTHERS: &str = "*";

/// The rules by feature name. `*` stands for all other features.
pub type FeatureRules = BTreeMap<String, FeatureRule>;

/// How the values of a feature are stored.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum FeatureRule {
    /// Values are stored unchanged.
    Clear,
    /// Values are not stored.
    Mask,
    /// Values are stored encrypted to a public key.
    Encrypt,
}

/// The rules, compiled for the rows of one bundle, so that requests need no look-ups by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sensitive {
    /// Positions whose values are withheld, ascending.
    withheld: Box<[u32]>,
    /// The withheld positions whose values are encrypted, ascending.
    sealed: Box<[u32]>,
}

// === impl Sensitive ===

impl Sensitive {
    /// Applies the rules to the features of a row.
    #[must_use]
    pub fn of(features: &[FeatureSpec], rules: &FeatureRules) -> Sensitive {
        let others = rules.get(OTHERS).copied().unwrap_or(FeatureRule::Clear);
        let rule = |feature: &FeatureSpec| rules.get(&feature.name).copied().unwrap_or(others);
        let positions = |wanted: &dyn Fn(FeatureRule) -> bool| {
            (0_u32..).zip(features).filter(|(_, feature)| wanted(rule(feature))).map(|(at, _)| at).collect()
        };
        Sensitive {
            withheld: positions(&|rule| rule != FeatureRule::Clear),
            sealed: positions(&|rule| rule == FeatureRule::Encrypt),
        }
    }

    /// Whether the value at this position of a row is withheld.
    #[must_use]
    pub fn is_sensitive(&self, position: usize) -> bool {
        u32::try_from(position).is_ok_and(|position| self.withheld.binary_search(&position).is_ok())
    }

    /// Replaces the sensitive values of a record by NaN, lists their positions in it, and adds the encrypted values.
    /// `scratch` is working memory.
    ///
    /// # Errors
    /// Fails if values cannot be encrypted; they are then masked.
    pub fn withhold(
        &self,
        record: &mut DecisionRecord,
        sealer: Option<&Sealer>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        record.withheld.clear();
        let sealing = !self.sealed.is_empty() && !record.features.is_empty();
        let sealed = if sealing { self.seal(record, sealer, scratch) } else { Ok(()) };
        if !sealing || sealed.is_err() {
            record.sealed = None;
        }
        for &at in &self.withheld {
            if let Some(value) = record.features.get_mut(at as usize) {
                *value = f32::NAN;
                record.withheld.push(at);
            }
        }
        sealed
    }

    fn seal(
        &self,
        record: &mut DecisionRecord,
        sealer: Option<&Sealer>,
        bound: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        let sealer = sealer.ok_or(SealError)?;
        let SealedFeatures { positions, key_id, encapsulated_key, number, ciphertext } =
            record.sealed.get_or_insert_default();
        positions.clear();
        ciphertext.clear();
        bound.clear();
        for text in [&record.checkpoint, &record.decision_id] {
            bound.extend_from_slice(&(text.len() as u64).to_le_bytes());
            bound.extend_from_slice(text.as_bytes());
        }
        bound.extend_from_slice(&record.schema_fingerprint.to_le_bytes());
        for &at in &self.sealed {
            let Some(value) = record.features.get(at as usize) else { continue };
            positions.push(at);
            bound.extend_from_slice(&at.to_le_bytes());
            ciphertext.extend_from_slice(&value.to_le_bytes());
        }
        *number = sealer.seal(bound, ciphertext)?;
        *key_id = sealer.key_id();
        encapsulated_key.clear();
        encapsulated_key.extend_from_slice(sealer.encapsulated_key());
        Ok(())
    }
}

/// Returns the names in withholding rules that none of these features has, because a misspelt name protects no feature.
pub(crate) fn unknown<'a>(
    rules: &'a FeatureRules,
    features: impl Iterator<Item = &'a FeatureSpec>,
) -> Vec<&'a str> {
    let known: BTreeSet<&str> = features.map(|feature| feature.name.as_str()).collect();
    let protects = |(name, rule): &(&'a String, &FeatureRule)| {
        **rule != FeatureRule::Clear && name.as_str() != OTHERS && !known.contains(name.as_str())
    };
    rules.iter().filter(protects).map(|(name, _)| name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn features() -> Vec<FeatureSpec> {
        let number = |name: &str| json!({"name": name, "type": "number"});
        serde_json::from_value(json!([number("amount"), number("income"), number("age")])).unwrap()
    }

    fn rules(rules: &[(&str, FeatureRule)]) -> FeatureRules {
        rules.iter().map(|(name, rule)| ((*name).to_owned(), *rule)).collect()
    }

    fn withheld(given: &[(&str, FeatureRule)]) -> Vec<u32> {
        Sensitive::of(&features(), &rules(given)).withheld.into()
    }

    #[test]
    fn a_rule_is_of_a_name_or_of_all_that_are_not_named() {
        assert!(withheld(&[]).is_empty());
        assert_eq!(withheld(&[("income", FeatureRule::Mask), ("other", FeatureRule::Mask)]), [1]);
        assert_eq!(withheld(&[("*", FeatureRule::Mask), ("amount", FeatureRule::Clear)]), [1, 2]);
    }

    #[test]
    fn a_masked_value_is_missing_and_listed() {
        let sensitive = Sensitive::of(&features(), &rules(&[("income", FeatureRule::Mask)]));
        // The buffers of the previous record are used again.
        let mut record = DecisionRecord { withheld: vec![7], ..DecisionRecord::default() };
        record.features = vec![1.0, 2.0, 3.0];
        sensitive.withhold(&mut record, None, &mut Vec::new()).unwrap();
        assert!(record.features[1].is_nan() && record.features[0] == 1.0 && record.features[2] == 3.0);
        assert_eq!(record.withheld, [1]);
        record.features.clear();
        sensitive.withhold(&mut record, None, &mut Vec::new()).unwrap();
        assert!(record.withheld.is_empty(), "an observation without a row has nothing to withhold");
    }

    #[test]
    fn a_value_that_cannot_be_encrypted_is_masked() {
        let sensitive = Sensitive::of(&features(), &rules(&[("income", FeatureRule::Encrypt)]));
        let sealed = Some(SealedFeatures { ciphertext: vec![1], ..SealedFeatures::default() });
        let mut record =
            DecisionRecord { features: vec![1.0, 2.0, 3.0], sealed, ..DecisionRecord::default() };
        assert_eq!(sensitive.withhold(&mut record, None, &mut Vec::new()), Err(SealError));
        assert!(record.features[1].is_nan() && record.sealed.is_none());
        assert_eq!(record.withheld, [1]);
    }

    #[test]
    fn names_that_no_bundle_has_are_found() {
        let given = rules(&[
            ("*", FeatureRule::Mask),
            ("incme", FeatureRule::Mask),
            ("age", FeatureRule::Mask),
            ("gone", FeatureRule::Clear),
        ]);
        assert_eq!(unknown(&given, features().iter()), ["incme"]);
    }
}
