//! Settles the tests on action features: computes for each of them the actions that pass it.

use std::collections::HashMap;

use super::super::key;
use super::super::layout::{Layout, PackedNode};
use super::{Catalogue, set};

/// Greatest memory of settled tests in bytes. A forest that needs more is evaluated row by row.
const MAX_BYTES: usize = 64 << 20;

/// Settled tests over the distinct action rows of a catalogue.
#[derive(Debug)]
pub(super) struct Settled {
    /// Number of 64-bit words per set of profiles.
    pub(super) words: usize,
    /// The profile of each action. Actions for which every test has the same outcome have the same profile.
    pub(super) profile_of: Vec<u32>,
    /// Number of profiles.
    pub(super) profiles: usize,
    /// Whether an action feature fills each slot.
    is_action: Vec<bool>,
    /// Position in `passing` of each test.
    numbers: HashMap<(u32, i32), u32>,
    /// For each test the set of profiles that go left.
    passing: Vec<u64>,
}

impl Settled {
    /// Settles the tests of a layout. Returns `None` if that would take too much memory.
    pub(super) fn new(layout: &Layout, catalogue: &Catalogue<'_>) -> Option<Self> {
        let is_action = action_slots(layout, catalogue.context);
        let used = used_slots(layout, &is_action);
        let (profile_of, profiles, keys) = profiles(layout, catalogue, &used);
        let mut settled = Self {
            words: profiles.div_ceil(64),
            profile_of,
            profiles,
            is_action,
            numbers: HashMap::new(),
            passing: Vec::new(),
        };
        let column: HashMap<u32, usize> = used.iter().enumerate().map(|(i, &slot)| (slot, i)).collect();
        for node in &layout.nodes {
            if !settled.is_action[node.slot as usize] {
                continue;
            }
            let next = settled.numbers.len() as u32;
            if let std::collections::hash_map::Entry::Vacant(entry) =
                settled.numbers.entry((node.slot, node.key))
            {
                entry.insert(next);
                let mut passing = vec![0; settled.words];
                for (profile, keys) in keys.chunks_exact(used.len().max(1)).enumerate() {
                    if keys[column[&node.slot]] < node.key {
                        set::insert(&mut passing, profile);
                    }
                }
                settled.passing.extend(passing);
                if 8 * settled.passing.len() > MAX_BYTES {
                    return None;
                }
            }
        }
        Some(settled)
    }

    /// Whether the catalogue settles this node's test.
    pub(super) fn is_settled(&self, node: PackedNode) -> bool {
        self.is_action[node.slot as usize]
    }

    /// Number of the settled test of this node.
    pub(super) fn number(&self, node: PackedNode) -> u32 {
        self.numbers.get(&(node.slot, node.key)).copied().unwrap_or_default()
    }

    /// The profiles that pass a settled test.
    pub(super) fn passing(&self, number: u32) -> &[u64] {
        &self.passing[number as usize * self.words..][..self.words]
    }

    /// The sets of all tests, one after the other.
    pub(super) fn into_passing(self) -> Vec<u64> {
        self.passing
    }
}

/// Returns for each slot whether an action feature fills it. No feature fills the sentinel, which leaves test.
fn action_slots(layout: &Layout, context: usize) -> Vec<bool> {
    let numeric = layout.slots.numeric.iter().map(|slot| slot.feature);
    let columns =
        layout.slots.tables.iter().flat_map(|table| std::iter::repeat_n(table.feature, table.columns));
    let features = numeric.chain(columns).map(|feature| feature as usize >= context);
    std::iter::once(false).chain(features).collect()
}

/// The action slots that some node tests, ascending.
fn used_slots(layout: &Layout, is_action: &[bool]) -> Vec<u32> {
    let mut used = vec![false; is_action.len()];
    for node in &layout.nodes {
        used[node.slot as usize] = true;
    }
    let used = used.iter().zip(is_action).enumerate().filter(|(_, (used, action))| **used && **action);
    used.map(|(slot, _)| slot as u32).collect()
}

/// Returns the profile of each action, the number of profiles, and the values of each profile in the used slots.
fn profiles(layout: &Layout, catalogue: &Catalogue<'_>, used: &[u32]) -> (Vec<u32>, usize, Vec<i32>) {
    let mut thresholds: HashMap<u32, Vec<i32>> = used.iter().map(|&slot| (slot, Vec::new())).collect();
    for node in &layout.nodes {
        if let Some(keys) = thresholds.get_mut(&node.slot) {
            keys.push(node.key);
        }
    }
    for keys in thresholds.values_mut() {
        keys.sort_unstable();
        keys.dedup();
    }
    let mut row = vec![f32::NAN; layout.num_features];
    let mut slots = vec![0; layout.slots.len()];
    slots[0] = key::HIGH;
    let mut known: HashMap<Vec<usize>, u32> = HashMap::new();
    let mut values = Vec::new();
    let profile_of = (0..catalogue.actions)
        .map(|action| {
            row[catalogue.context..].copy_from_slice(catalogue.row(action));
            layout.slots.fill(&row, &mut slots);
            let own = used.iter().map(|&slot| slots[slot as usize]);
            // Values between the same two thresholds pass the same tests.
            let between = used.iter().zip(own.clone());
            let between = between.map(|(slot, value)| thresholds[slot].partition_point(|&key| key <= value));
            let next = known.len() as u32;
            *known.entry(between.collect()).or_insert_with(|| {
                values.extend(own);
                next
            })
        })
        .collect();
    (profile_of, known.len(), values)
}
