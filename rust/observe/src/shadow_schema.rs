//! Descriptions of rows of features, which a live server sends to the shadow pool.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use scorer_core::schema::{FeatureSpec, FeatureType, MissingRule, Schema, UnknownCategoryRule};
use scorer_engine::{ActionInfo, Sensitive, Shape};
use scorer_proto::v1::{FeatureDescription, ObservedSchema};

/// Number of live bundles' schemas that are kept. The oldest is removed for a new one.
const REMEMBERED: usize = 64;
/// Greatest number of actions of a catalogue.
const MAX_ACTIONS: usize = 65_536;
/// Length of the longest action name in bytes.
const MAX_ACTION: usize = 256;

/// A live bundle's schema that the pool has checked.
pub struct KnownSchema {
    given: ObservedSchema,
    /// The schema.
    pub schema: Schema,
    /// The shape that all rows of the schema share. Lanes keep their mappings by it.
    pub shape: Arc<Shape>,
}

/// A cache of checked schemas, because checking a schema takes far longer than comparing it.
#[derive(Default)]
pub struct SchemaCache {
    known: Mutex<Vec<Arc<KnownSchema>>>,
}

/// Describes a bundle's schema for the pool.
pub(crate) fn described(shape: &Shape) -> ObservedSchema {
    ObservedSchema {
        fingerprint: shape.fingerprint,
        features: shape.features.iter().map(describe_feature).collect(),
        actions: shape.actions.iter().map(|action| action.id.clone()).collect(),
    }
}

// === impl KnownSchema ===

impl KnownSchema {
    fn check(given: ObservedSchema) -> Result<KnownSchema, String> {
        let features = given.features.iter().map(specified).collect::<Result<_, _>>()?;
        let schema = Schema::new(features).map_err(|error| error.to_string())?;
        if schema.fingerprint() != given.fingerprint {
            return Err(format!(
                "fingerprint is {:#018x}, that of its features {:#018x}; send both from one bundle",
                given.fingerprint,
                schema.fingerprint()
            ));
        }
        if given.actions.len() > MAX_ACTIONS {
            return Err(format!("{} actions; at most {MAX_ACTIONS} are allowed", given.actions.len()));
        }
        if let Some(action) = given.actions.iter().find(|action| action.len() > MAX_ACTION) {
            return Err(format!("an action of {} bytes; at most {MAX_ACTION} are allowed", action.len()));
        }
        let action = |id: &String| ActionInfo { id: id.clone(), factors: HashMap::new() };
        let shape = Shape {
            fingerprint: given.fingerprint,
            features: schema.features().to_vec(),
            actions: given.actions.iter().map(action).collect(),
            // Rows of this shape are not stored: records hold the rows of the observing bundles.
            sensitive: Sensitive::default(),
            // A sender's answers arrive without reasons.
            reasons: Vec::new(),
            rules: Vec::new(),
            functions: Vec::new(),
            computed: None,
        };
        Ok(KnownSchema { given, schema, shape: Arc::new(shape) })
    }
}

// === impl SchemaCache ===

impl SchemaCache {
    /// Returns the schema, and checks it if it is new.
    ///
    /// # Errors
    /// Returns the rule that the schema breaks.
    pub fn get(&self, given: ObservedSchema) -> Result<Arc<KnownSchema>, String> {
        if let Some(known) = self.lock().iter().find(|known| known.given == given) {
            return Ok(Arc::clone(known));
        }
        let known = Arc::new(KnownSchema::check(given)?);
        let mut all = self.lock();
        if all.len() == REMEMBERED {
            all.remove(0);
        }
        all.push(Arc::clone(&known));
        Ok(known)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<KnownSchema>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Describes a feature for replies of `Describe` and for the shadow pool.
#[must_use]
pub fn describe_feature(spec: &FeatureSpec) -> FeatureDescription {
    FeatureDescription {
        name: spec.name.clone(),
        r#type: spec.kind.name().to_owned(),
        categories: spec.categories.clone(),
        missing: match spec.missing {
            MissingRule::Allow => "allow",
            MissingRule::Refuse => "refuse",
        }
        .to_owned(),
        unknown_category: match spec.unknown_category {
            UnknownCategoryRule::Refuse => "refuse",
            UnknownCategoryRule::Missing => "missing",
        }
        .to_owned(),
        minimum: spec.minimum,
        maximum: spec.maximum,
        computed: String::new(),
    }
}

/// The reverse of [`describe_feature`].
fn specified(given: &FeatureDescription) -> Result<FeatureSpec, String> {
    let unknown = |what: &str, got: &str, known: &str| {
        Err(format!("feature {:?}: {what} {got:?} is not known; use {known}", given.name))
    };
    Ok(FeatureSpec {
        name: given.name.clone(),
        kind: match given.r#type.as_str() {
            "number" => FeatureType::Number,
            "category" => FeatureType::Category,
            "flag" => FeatureType::Flag,
            other => return unknown("type", other, "number, category or flag"),
        },
        categories: given.categories.clone(),
        missing: match given.missing.as_str() {
            "allow" => MissingRule::Allow,
            "refuse" => MissingRule::Refuse,
            other => return unknown("missing", other, "allow or refuse"),
        },
        unknown_category: match given.unknown_category.as_str() {
            "refuse" => UnknownCategoryRule::Refuse,
            "missing" => UnknownCategoryRule::Missing,
            other => return unknown("unknown_category", other, "refuse or missing"),
        },
        minimum: given.minimum,
        maximum: given.maximum,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        let number = FeatureSpec {
            name: "amount".to_owned(),
            kind: FeatureType::Number,
            categories: Vec::new(),
            missing: MissingRule::Refuse,
            unknown_category: UnknownCategoryRule::Refuse,
            minimum: Some(0.0),
            maximum: None,
        };
        let category = FeatureSpec {
            name: "country".to_owned(),
            kind: FeatureType::Category,
            categories: vec!["NL".to_owned(), "US".to_owned()],
            missing: MissingRule::Allow,
            unknown_category: UnknownCategoryRule::Missing,
            minimum: None,
            maximum: None,
        };
        let flag = FeatureSpec {
            name: "night".to_owned(),
            kind: FeatureType::Flag,
            categories: Vec::new(),
            ..category.clone()
        };
        Schema::new(vec![number, category, flag]).unwrap()
    }

    fn given() -> ObservedSchema {
        let schema = schema();
        let action = ActionInfo { id: "a".to_owned(), factors: HashMap::new() };
        let features = schema.features().to_vec();
        described(&Shape {
            fingerprint: schema.fingerprint(),
            features,
            actions: [action].into(),
            sensitive: Sensitive::default(),
            reasons: Vec::new(),
            rules: Vec::new(),
            functions: Vec::new(),
            computed: None,
        })
    }

    #[test]
    fn a_schema_comes_back_as_it_was_sent() {
        let known = SchemaCache::default().get(given()).unwrap();
        assert_eq!(known.schema.features(), schema().features());
        assert_eq!(known.shape.features, schema().features());
        assert_eq!(known.shape.actions[0].id, "a");
    }

    #[test]
    fn the_same_is_checked_once_and_memory_is_bounded() {
        let cache = SchemaCache::default();
        let first = cache.get(given()).unwrap();
        assert!(Arc::ptr_eq(&first, &cache.get(given()).unwrap()));
        for number in 0..REMEMBERED {
            // Ranges are part of the schema, but not of the fingerprint.
            let mut other = given();
            other.features[0].minimum = Some(-1.0 - number as f64);
            assert!(!Arc::ptr_eq(&first, &cache.get(other).unwrap()));
        }
        assert_eq!(cache.lock().len(), REMEMBERED);
        assert!(!Arc::ptr_eq(&first, &cache.get(given()).unwrap()), "the oldest is forgotten");
    }

    #[test]
    fn what_no_bundle_has_is_refused_by_its_rule() {
        let cache = SchemaCache::default();
        for (change, says) in [
            (
                Box::new(|schema: &mut ObservedSchema| schema.fingerprint ^= 1)
                    as Box<dyn Fn(&mut ObservedSchema)>,
                "fingerprint is",
            ),
            (Box::new(|schema| schema.features[1].categories.clear()), "country"),
            (Box::new(|schema| schema.features[2].name = "amount".to_owned()), "amount"),
            (Box::new(|schema| schema.features[0].r#type = "text".to_owned()), "type \"text\" is not known"),
            (Box::new(|schema| schema.features[0].missing = String::new()), "missing \"\" is not known"),
            (Box::new(|schema| schema.features[0].unknown_category = "?".to_owned()), "unknown_category"),
            (Box::new(|schema| schema.features[0].minimum = Some(f64::NAN)), "amount"),
            (Box::new(|schema| schema.actions[0] = "x".repeat(257)), "257 bytes"),
        ] {
            let mut wrong = given();
            change(&mut wrong);
            let error = cache.get(wrong).err().unwrap();
            assert!(error.contains(says), "{says:?} is not in {error:?}");
        }
        assert!(cache.lock().is_empty());
    }
}
