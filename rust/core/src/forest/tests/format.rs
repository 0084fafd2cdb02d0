//! The decoder accepts only what the encoder writes.

use proptest::prelude::*;

use super::models;
use crate::forest::*;

/// The positions in the packed forest of [`sample`]; see docs/forest-format.md.
const HEAD: usize = 104;
const BASE: usize = HEAD;
const SLOTS: usize = BASE + 8;
const TABLE: usize = SLOTS + 2 * 8;
const TREES: usize = TABLE + 16 + 2 * 4 + 4 * 8;
const NODES: usize = TREES + 3 * 8;
const LEAVES: usize = NODES + 9 * 12;

fn sample() -> Vec<u8> {
    let keep = Missing { nan: NanRule::Left, zero: ZeroRule::Keep };
    let flush = Missing { nan: NanRule::Zero, zero: ZeroRule::Flush };
    let rule = CategoryRule::NonNegative;
    let model = models::of(vec![
        models::stump(0, Test::Less(1.0), keep),
        models::stump(1, Test::LessEqual(1.0), flush),
        models::stump(1, Test::Category { set: 0, members: Side::Right, rule }, keep),
    ]);
    let bytes = Forest::compile(&model).unwrap().to_bytes();
    assert_eq!(bytes.len(), LEAVES + 6 * 8 + 4);
    bytes
}

/// Corrects the checksum, so that only the structure is checked.
fn signed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 4;
    let checksum = crc32c::crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn refused(bytes: &[u8], part: &str) {
    let error = Forest::from_bytes(bytes).expect_err(part).to_string();
    assert!(error.contains(part), "{error:?} does not say {part:?}");
}

fn put(at: usize, value: &[u8]) -> Vec<u8> {
    let mut bytes = sample();
    assert_ne!(&bytes[at..at + value.len()], value, "nothing would change");
    bytes[at..at + value.len()].copy_from_slice(value);
    signed(bytes)
}

#[test]
fn frames() {
    let good = sample();
    assert!(Forest::from_bytes(&good).is_ok());
    assert_eq!(signed(good.clone()), good);
    refused(b"", "not a packed forest");
    refused(&put(0, b"X"), "not a packed forest");
    refused(&put(8, &2_u32.to_le_bytes()), "version 2 is not 1");
    for end in 8..good.len() {
        assert!(Forest::from_bytes(&good[..end]).is_err(), "{end} bytes");
    }
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        assert!(Forest::from_bytes(&bytes).is_err(), "byte {at}");
    }
    let mut longer = good.clone();
    longer.push(0);
    refused(&longer, "left over behind the checksum");
}

/// Fault case 59.
#[test]
fn every_rule_is_checked() {
    let u32 = |value: u32| value.to_le_bytes();
    let f64 = |value: f64| value.to_le_bytes();
    for (bytes, part) in [
        (put(12, &[7]), "precision"),
        (put(13, &[2]), "base order"),
        (put(14, &[99]), "link 99 is not known"),
        (put(14, &[1]), "link sigmoid"),
        (put(15, &[2]), "a flag is neither 0 nor 1"),
        (put(16, &f64(1.0)), "takes no parameter"),
        (put(24, &u64::MAX.to_le_bytes()), "above its limit"),
        (put(24, &1_u64.to_le_bytes()), "its feature is not below"),
        (put(24, &0_u64.to_le_bytes()), "number of features: 0"),
        (put(32, &2_u64.to_le_bytes()), "outputs needs 16 bytes"),
        (put(40, &4_u64.to_le_bytes()), "trees needs 32 bytes"),
        (put(48, &8_u64.to_le_bytes()), "section nodes"),
        (put(56, &3_u64.to_le_bytes()), ""),
        (put(64, &9_u64.to_le_bytes()), "content needs"),
        (put(BASE, &f64(f64::NAN)), "base margins"),
        (put(SLOTS, &u32(2)), "its feature is not below"),
        (put(SLOTS + 4, &[9]), "a NaN rule is not known"),
        (put(SLOTS + 5, &[9]), "a zero rule is not known"),
        (put(SLOTS + 5, &[2]), "strictly ascending"),
        (put(SLOTS + 6, &[1]), "reserved bytes must be 0"),
        (put(SLOTS + 8 + 5, &[2]), "zero cannot be missing"),
        (put(TABLE, &u32(2)), "its feature is not below"),
        (put(TABLE + 4, &[9]), "a category rule is not known"),
        (put(TABLE + 5, &[9]), "reserved bytes must be 0"),
        (put(TABLE + 8, &u32(0)), "slots needs 16 bytes"),
        (put(TABLE + 8, &u32(65)), "slots needs 64 bytes"),
        (put(TABLE + 12, &u32(u32::MAX)), "needs"),
        (put(TABLE + 16, &u32(4)), "categories must be strictly ascending"),
        (put(TABLE + 20, &u32(1 << 31)), "below 2^31"),
        (put(TABLE + 24, &2_u64.to_le_bytes()), "bits beyond the last column"),
        (put(TREES, &u32(1)), ""),
        (put(TREES, &u32(u32::MAX)), "it has more nodes than there are"),
        (put(TREES + 4, &u32(1)), "its output is not below"),
        (put(NODES, &i32::MIN.to_le_bytes()), "its key is not that of a number"),
        (put(NODES, &i32::MAX.to_le_bytes()), "its key is not that of a number"),
        (put(NODES + 4, &u32(4)), "its slot is not below"),
        (put(NODES + 4, &u32(0)), "a leaf must lead to itself"),
        (put(NODES + 8, &u32(0)), "its left child is not the next free node"),
        (put(NODES + 8, &u32(2)), "its left child is not the next free node"),
        (put(NODES + 12, &u32(1)), "leaves must be numbered in order"),
        (put(NODES + 12 + 4, &u32(1)), "its left child is not the next free node"),
        (put(NODES + 12 + 8, &u32(1)), "a leaf must lead to itself"),
        (put(NODES + 6 * 12, &u32(2)), "a categorical key must be 1"),
        (put(LEAVES, &f64(f64::INFINITY)), "its value must be finite"),
        (put(LEAVES, &f64(1e308)), "margins could overflow"),
    ] {
        refused(&bytes, part);
    }
}

/// Fault case 59.
#[test]
fn trees_must_be_trees() {
    // An orphan that is its own parent: leaf, split (1, 2), leaf.
    let mut bytes = sample();
    let (split, leaf) = (bytes[NODES..NODES + 12].to_vec(), bytes[NODES + 12..NODES + 24].to_vec());
    bytes[NODES..NODES + 12].copy_from_slice(&leaf);
    bytes[NODES + 8..NODES + 12].copy_from_slice(&u32::MAX.to_le_bytes());
    bytes[NODES + 12..NODES + 24].copy_from_slice(&split);
    refused(&signed(bytes), "it has no parent");
    // A split whose children would be those of the next tree.
    let mut bytes = sample();
    bytes[TREES..TREES + 4].copy_from_slice(&1_u32.to_le_bytes());
    bytes[TREES + 8..TREES + 12].copy_from_slice(&5_u32.to_le_bytes());
    refused(&signed(bytes), "its children are beyond the end of the tree");
}

/// Every forest that is decoded can be evaluated on any row.
fn evaluate(forest: &Forest) {
    let rows: Vec<f32> = models::ODD.iter().flat_map(|&x| vec![x; forest.num_features()]).collect();
    if rows.len() < 1 << 16 {
        let mut out = vec![0.0; models::ODD.len() * forest.num_outputs()];
        forest.predict(&rows, models::ODD.len(), true, &mut out).unwrap();
        assert!(out.iter().all(|margin| margin.is_finite()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Fault case 59.
    #[test]
    fn altered_bytes_never_panic(
        model in models::model(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let good = Forest::compile(&model).unwrap().to_bytes();
        let mut bytes = good.clone();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(forest) = Forest::from_bytes(&signed(bytes)) {
            evaluate(&forest);
        }
        let cut = cut.index(good.len());
        prop_assert!(Forest::from_bytes(&good[..cut]).is_err());
        if cut >= 4 {
            prop_assert!(Forest::from_bytes(&signed(good[..cut].to_vec())).is_err());
        }
    }

    /// Fault case 59.
    #[test]
    fn words_of_nodes_never_panic(model in models::model(), at in any::<prop::sample::Index>(), word in any::<u32>()) {
        let mut bytes = Forest::compile(&model).unwrap().to_bytes();
        let words = (bytes.len() - HEAD - 4) / 4;
        prop_assume!(words > 0);
        let at = HEAD + 4 * at.index(words);
        for value in [word, word % 8, u32::MAX, i32::MIN.cast_unsigned()] {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            bytes = signed(bytes);
            if let Ok(forest) = Forest::from_bytes(&bytes) {
                evaluate(&forest);
            }
        }
    }
}
