//! Reads of several features.

use crate::definition::{Feature, Ratio, Window};
use crate::entity::{EntityKind, EntityState};
use crate::error::PlanError;
use crate::state::SetState;
use crate::value;

/// Greatest number of features of a plan.
const MAX_FEATURES: usize = 256;
/// Greatest number of aggregates that a plan reads: two for each ratio.
const MAX_VALUES: usize = 2 * MAX_FEATURES;
/// Greatest number of entities of a plan.
const MAX_ENTITIES: usize = 16;

/// A prepared read.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    entities: Vec<String>,
    groups: Vec<Group>,
    values: usize,
    outputs: Vec<Output>,
}

/// The aggregates of one entity of one set.
#[derive(Debug, Clone, PartialEq)]
struct Group {
    /// Position of the set.
    set: usize,
    /// Position of the kind of entities in the set.
    kind: usize,
    /// Position in the plan's entities.
    entity: usize,
    /// By the position of the slot.
    reads: Vec<Read>,
}

/// The read of one aggregate.
#[derive(Debug, Clone, PartialEq)]
struct Read {
    /// Position of its slot in the kind.
    slot: usize,
    /// Position of the feature in the kind.
    feature: usize,
    /// Place of the value.
    place: usize,
    /// The value if no event counts.
    empty: f64,
}

/// A feature of a plan.
#[derive(Debug, Clone, PartialEq)]
struct Output {
    digest: [u8; 32],
    /// One bit for each entity that it needs.
    entities: u16,
    /// The places of its value, or of numerator and denominator.
    places: (usize, Option<usize>),
    default: f64,
}

/// The features of a read whose entities had a key and state: one bit each, in the order of the plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known([u64; MAX_FEATURES / 64]);

// === impl Known ===

impl Known {
    /// Whether the entities of a feature had a key and state.
    #[must_use]
    pub fn has(&self, feature: usize) -> bool {
        self.0.get(feature / 64).is_some_and(|word| word & (1 << (feature % 64)) != 0)
    }

    fn set(&mut self, feature: usize) {
        if let Some(word) = self.0.get_mut(feature / 64) {
            *word |= 1 << (feature % 64);
        }
    }
}

// === impl Group ===

impl Group {
    /// Reads the aggregates from the state of a key, slot by slot.
    fn read(&self, kind: &EntityKind, state: Option<&EntityState>, now_us: i64, values: &mut [f64]) {
        let mut put = |read: &Read, value: Option<f64>| {
            if let Some(to) = values.get_mut(read.place) {
                *to = value.unwrap_or(read.empty);
            }
        };
        let mut reads = self.reads.iter().peekable();
        for (position, slot, bytes) in state.into_iter().flat_map(|state| state.slots(kind)) {
            while let Some(read) = reads.next_if(|read| read.slot == position) {
                let window = kind.features.get(read.feature);
                put(read, window.and_then(|window| value::of(window, slot, bytes, now_us)));
            }
        }
        reads.for_each(|read| put(read, None));
    }
}

// === impl Plan ===

impl Plan {
    /// Finds features by name and digest.
    pub(crate) fn new(sets: &[SetState], features: &[(&str, [u8; 32])]) -> Result<Plan, PlanError> {
        if features.len() > MAX_FEATURES {
            return Err(PlanError::Limit("more than 256 are read; split the bundle"));
        }
        let mut plan = Plan { entities: Vec::new(), groups: Vec::new(), values: 0, outputs: Vec::new() };
        for (name, digest) in features {
            let mut other = None;
            let found = sets.iter().enumerate().find_map(|(at, state)| {
                let feature = state.set.feature(name)?;
                if state.set.feature_digest(name) == Some(*digest) {
                    return Some((at, state, feature));
                }
                other = Some(state.set.label());
                None
            });
            let Some((at, state, feature)) = found else {
                let name = (*name).to_owned();
                return Err(match other {
                    Some(set) => PlanError::Defined { name, set },
                    None => PlanError::Unknown { name },
                });
            };
            let output = match feature {
                Feature::Window(window) => {
                    let (place, bit) = plan.add(at, state, window)?;
                    Output { digest: *digest, entities: bit, places: (place, None), default: window.default }
                }
                Feature::Ratio(Ratio { parts: [above, below], default, .. }) => {
                    let unknown = || PlanError::Unknown { name: (*name).to_owned() };
                    let window = |part: &String| match state.set.feature(part) {
                        Some(Feature::Window(window)) => Ok(window),
                        _ => Err(unknown()),
                    };
                    let (above, bit) = plan.add(at, state, window(above)?)?;
                    let (below, other) = plan.add(at, state, window(below)?)?;
                    let places = (above, Some(below));
                    Output { digest: *digest, entities: bit | other, places, default: *default }
                }
            };
            plan.outputs.push(output);
        }
        Ok(plan)
    }

    /// Adds an aggregate. Returns its place and the bit of its entity.
    fn add(&mut self, set: usize, state: &SetState, window: &Window) -> Result<(usize, u16), PlanError> {
        let kind = state.kinds.iter().position(|kind| kind.name == window.entity);
        let feature = kind.and_then(|kind| {
            state.kinds.get(kind)?.features.iter().position(|known| known.name == window.name)
        });
        let (Some(kind), Some(feature)) = (kind, feature) else {
            return Err(PlanError::Unknown { name: window.name.clone() });
        };
        let entity = self.entities.iter().position(|known| *known == window.entity).unwrap_or_else(|| {
            self.entities.push(window.entity.clone());
            self.entities.len() - 1
        });
        if self.entities.len() > MAX_ENTITIES {
            return Err(PlanError::Limit("more than 16 entities are needed; split the bundle"));
        }
        let bit = 1 << entity;
        let group = self.groups.iter().position(|group| (group.set, group.kind) == (set, kind));
        let group = group.unwrap_or_else(|| {
            self.groups.push(Group { set, kind, entity, reads: Vec::new() });
            self.groups.len() - 1
        });
        let place = self.values;
        let Some(group) = self.groups.get_mut(group) else { return Ok((place, bit)) };
        if let Some(known) = group.reads.iter().find(|known| known.feature == feature) {
            return Ok((known.place, bit));
        }
        let empty = if window.aggregate.is_zero_without_events() { 0.0 } else { f64::NAN };
        let slot = state.kinds.get(kind).map_or(usize::MAX, |kind| kind.slot_of(feature));
        let after = group.reads.partition_point(|known| known.slot <= slot);
        group.reads.insert(after, Read { slot, feature, place, empty });
        self.values += 1;
        Ok((place, bit))
    }

    /// Names of the entities whose keys a read takes.
    #[must_use]
    pub fn entities(&self) -> &[String] {
        &self.entities
    }

    /// The digest of each feature, and one bit for each entity that it needs.
    pub fn features(&self) -> impl ExactSizeIterator<Item = ([u8; 32], u16)> {
        self.outputs.iter().map(|output| (output.digest, output.entities))
    }

    /// Reads the features. It does not allocate.
    pub(crate) fn read(
        &self,
        sets: &[SetState],
        keys: &[Option<&str>],
        now_us: i64,
        out: &mut [f32],
    ) -> Known {
        self.read_groups(sets, keys, out, |_, group, state, kind, key, values| {
            Some(state.with(group.kind, key, |state| group.read(kind, state, now_us, values)))
        })
    }

    /// Reads the features from states by the position of their group. `state` returns `None` for one that cannot be
    /// used: the entity then counts as one without key.
    pub(crate) fn read_states<'a>(
        &self,
        sets: &[SetState],
        keys: &[Option<&str>],
        now_us: i64,
        out: &mut [f32],
        state: impl Fn(usize) -> Option<Option<&'a EntityState>>,
    ) -> Known {
        self.read_groups(sets, keys, out, |at, group, _, kind, _, values| {
            let state = state(at)?;
            group.read(kind, state, now_us, values);
            Some(state.is_some())
        })
    }

    /// Positions of set, kind of entities and entity, for each state that a read needs.
    pub(crate) fn groups(&self) -> impl ExactSizeIterator<Item = (usize, usize, usize)> {
        self.groups.iter().map(|group| (group.set, group.kind, group.entity))
    }

    /// Reads the groups by `read`, which returns whether there is state, and `None` if it cannot be used.
    fn read_groups(
        &self,
        sets: &[SetState],
        keys: &[Option<&str>],
        out: &mut [f32],
        read: impl Fn(usize, &Group, &SetState, &EntityKind, &str, &mut [f64]) -> Option<bool>,
    ) -> Known {
        let mut values = [f64::NAN; MAX_VALUES];
        let (mut with_key, mut with_state, mut unusable) = (0_u16, 0_u16, 0_u16);
        for (at, group) in self.groups.iter().enumerate() {
            let Some(key) = keys.get(group.entity).copied().flatten() else { continue };
            let Some((state, kind)) =
                sets.get(group.set).and_then(|state| Some((state, state.kinds.get(group.kind)?)))
            else {
                continue;
            };
            with_key |= 1 << group.entity;
            match read(at, group, state, kind, key, &mut values) {
                Some(true) => with_state |= 1 << group.entity,
                Some(false) => {}
                None => unusable |= 1 << group.entity,
            }
        }
        with_key &= !unusable;
        let value = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
        let mut known = Known::default();
        for (number, (output, to)) in self.outputs.iter().zip(out).enumerate() {
            let read = if output.entities & with_key == output.entities {
                match output.places {
                    (place, None) => value(place),
                    (above, Some(below)) => match value(below) {
                        0.0 => f64::NAN,
                        below => value(above) / below,
                    },
                }
            } else {
                f64::NAN
            };
            if output.entities & with_state == output.entities {
                known.set(number);
            }
            *to = if read.is_nan() { output.default } else { read } as f32;
        }
        known
    }
}
