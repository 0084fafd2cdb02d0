//! The canonical form of definitions: objects with sorted keys, all defaults filled in.

use serde_json::{Map, Number, Value, json};

use crate::definition::{EventDefinition, Feature, FeatureSet, Window};

/// The canonical form of a set. Its text has sorted keys and no spaces.
pub(crate) fn set(set: &FeatureSet) -> Value {
    let events: Map<String, Value> =
        set.events.iter().map(|(kind, definition)| (kind.clone(), event(definition))).collect();
    json!({
        "name": set.name,
        "version": set.version,
        "owner": set.owner,
        "text": set.text,
        "events": events,
        "features": set.features.iter().map(feature).collect::<Vec<_>>(),
    })
}

/// What determines the values of a feature.
pub(crate) fn meaning(set: &FeatureSet, of: &Feature) -> Option<Value> {
    let mut definition = feature(of);
    if let Value::Object(fields) = &mut definition {
        fields.remove("name");
        fields.remove("text");
    }
    match of {
        Feature::Window(window) => {
            let event = event(set.events.get(&window.event)?);
            Some(json!({"event": event, "feature": definition}))
        }
        Feature::Ratio(ratio) => {
            if let Value::Object(fields) = &mut definition {
                fields.remove("ratio");
            }
            let part = |name: &String| meaning(set, set.feature(name)?);
            let parts: Option<Vec<Value>> = ratio.parts.iter().map(part).collect();
            Some(json!({"feature": definition, "parts": parts?}))
        }
    }
}

fn event(event: &EventDefinition) -> Value {
    json!({
        "entities": event.entities,
        "numbers": event.numbers,
        "texts": event.texts,
        "accept_late": event.accept_late,
    })
}

fn feature(feature: &Feature) -> Value {
    match feature {
        Feature::Window(of) => window(of),
        Feature::Ratio(ratio) => json!({
            "name": ratio.name,
            "text": ratio.text,
            "ratio": ratio.parts,
            "default": number(ratio.default),
        }),
    }
}

fn window(window: &Window) -> Value {
    let decayed = window.aggregate.is_decayed();
    json!({
        "name": window.name,
        "text": window.text,
        "entity": window.entity,
        "event": window.event,
        "aggregate": window.aggregate.as_str(),
        "of": if window.of.is_empty() { Value::Null } else { json!(window.of) },
        "window": if decayed { Value::Null } else { json!(window.window) },
        "half_life": if decayed { json!(window.window) } else { Value::Null },
        "delay": window.delay,
        "tile": if decayed { Value::Null } else { json!(window.tile) },
        "where": window.conditions,
        "default": number(window.default),
    })
}

/// A whole number without a fraction, so that 0 and 0.0 have the same form; NaN is null.
fn number(value: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT {
        return json!(value as i64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}
