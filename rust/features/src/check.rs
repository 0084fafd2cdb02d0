//! The rules of a feature set that its types do not express.

use std::collections::BTreeSet;

use crate::definition::{EventDefinition, Feature, FeatureSet, Ratio, Window};
use crate::error::DefinitionError;

const MAX_FEATURES: usize = 256;
const MAX_EVENTS: usize = 16;
const MAX_ENTITIES: usize = 16;
const MAX_FIELDS: usize = 64;
const MAX_VALUES: usize = 8;
/// Greatest number of tiles of a window, which bounds the state of an entity.
const MAX_TILES: i64 = 4096;
/// Greatest duration in seconds: ten years.
const MAX_SECONDS: i64 = 3650 * 86_400;

pub(crate) fn check(set: &FeatureSet) -> Result<(), DefinitionError> {
    let fail = |rule: String| Err(DefinitionError(rule));
    let named = |name: &str| {
        (1..=64).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    if !named(&set.name) {
        return fail("name: use 1 to 64 of a-z, 0-9 and -".to_owned());
    }
    if set.features.is_empty() || set.features.len() > MAX_FEATURES {
        return fail(format!("{} features; declare 1 to {MAX_FEATURES}", set.features.len()));
    }
    if set.events.is_empty() || set.events.len() > MAX_EVENTS {
        return fail(format!("{} kinds of events; declare 1 to {MAX_EVENTS}", set.events.len()));
    }
    if set.entities().len() > MAX_ENTITIES {
        return fail(format!("{} entities; declare at most {MAX_ENTITIES}", set.entities().len()));
    }
    for (kind, event) in &set.events {
        check_event(kind, event)?;
    }
    let mut names = BTreeSet::new();
    for feature in &set.features {
        let name = feature.name();
        if !identifier(name) {
            return fail(format!("feature {name:?}: a name is 1 to 64 of a-z, A-Z, 0-9, _, - and ."));
        }
        if !names.insert(name) {
            return fail(format!("feature {name:?}: the name occurs twice; rename one"));
        }
        match feature {
            Feature::Window(window) => check_window(set, window)?,
            Feature::Ratio(ratio) => check_ratio(set, ratio)?,
        }
    }
    Ok(())
}

fn identifier(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

fn check_event(kind: &str, event: &EventDefinition) -> Result<(), DefinitionError> {
    let fail = |rule: &str| Err(DefinitionError(format!("event {kind:?}: {rule}")));
    if !identifier(kind) {
        return fail("a name is 1 to 64 of a-z, A-Z, 0-9, _, - and .");
    }
    if event.entities.is_empty() {
        return fail("declares no entity; name at least one");
    }
    let mut names = BTreeSet::new();
    let all = || event.entities.iter().chain(&event.numbers).chain(&event.texts);
    if all().count() > MAX_FIELDS {
        return fail("has more than 64 entities and fields; remove some");
    }
    if all().any(|name| !identifier(name)) {
        return fail("names of entities and fields are 1 to 64 of a-z, A-Z, 0-9, _, - and .");
    }
    if all().any(|name| !names.insert(name)) {
        return fail("an entity or field occurs twice; rename one");
    }
    if !(1..=MAX_SECONDS).contains(&event.accept_late) {
        return fail("accept_late is 1 second to 10 years");
    }
    Ok(())
}

fn check_window(set: &FeatureSet, window: &Window) -> Result<(), DefinitionError> {
    let fail = |rule: String| Err(DefinitionError(format!("feature {:?}: {rule}", window.name)));
    let Some(event) = set.events.get(&window.event) else {
        return fail(format!("event {:?} is not declared; declare it", window.event));
    };
    if !event.entities.contains(&window.entity) {
        return fail(format!("event {:?} has no entity {:?}; correct it", window.event, window.entity));
    }
    let of = &window.of;
    let aggregate = window.aggregate;
    if aggregate.of_number() && !event.numbers.contains(of) {
        return fail(format!("of: {} needs a number field of event {:?}", aggregate.as_str(), window.event));
    }
    let is_distinct = aggregate == crate::definition::Aggregate::Distinct;
    if is_distinct && !event.texts.contains(of) && (!event.entities.contains(of) || *of == window.entity) {
        return fail(format!(
            "of: distinct needs a text field or another entity of event {:?}",
            window.event
        ));
    }
    if !aggregate.of_number() && !is_distinct && !of.is_empty() {
        return fail(format!("of: {} is of no field; remove it", aggregate.as_str()));
    }
    if !(1..=MAX_SECONDS).contains(&window.window) || !(0..=MAX_SECONDS).contains(&window.delay) {
        return fail(
            "window, half_life and delay are at most 10 years, window and half_life at least 1 s".to_owned(),
        );
    }
    if aggregate.is_decayed() {
        if window.delay != 0 {
            return fail("a decayed aggregate has no delay; remove it".to_owned());
        }
    } else {
        let tile = window.tile;
        if tile < 1 || window.window % tile != 0 || window.delay % tile != 0 {
            return fail(format!(
                "window and delay must be multiples of the tile, {tile} s; change them or tile"
            ));
        }
        if (window.window + window.delay) / tile >= i64::from(u16::MAX) {
            return fail("window and delay have more than 65,534 tiles; use longer tiles".to_owned());
        }
        if window.window / tile > MAX_TILES {
            return fail(format!("the window has more than {MAX_TILES} tiles; use longer tiles"));
        }
    }
    if let Some(field) = window.conditions.keys().find(|field| !event.texts.contains(field)) {
        return fail(format!("where: event {:?} has no text field {field:?}", window.event));
    }
    if window.conditions.values().any(|values| values.is_empty() || values.len() > MAX_VALUES) {
        return fail(format!("where: a field has 1 to {MAX_VALUES} values"));
    }
    Ok(())
}

fn check_ratio(set: &FeatureSet, ratio: &Ratio) -> Result<(), DefinitionError> {
    for part in &ratio.parts {
        if !matches!(set.feature(part), Some(Feature::Window(_))) {
            return Err(DefinitionError(format!(
                "feature {:?}: ratio: {part:?} is not a feature of the set that aggregates events",
                ratio.name
            )));
        }
    }
    Ok(())
}
