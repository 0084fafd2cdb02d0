//! How much memory a message takes once it is decoded, counted before that is done.
//!
//! Two bytes on the wire, an empty element of a repeated field, become a struct of some hundred bytes. The bytes of a
//! message therefore do not bound what it takes. One pass over the tags does: it stops at the limit, so it costs no more
//! than the memory that it allows.

use std::mem::size_of;

use prost::encoding::{WireType, decode_key, decode_varint};

use crate::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::inference::{InferParameter, InferTensorContents, ModelInferRequest};
use crate::v1::{
    ActionStep, AppliedRules, DecideRequest, DecisionRecord, DenseFeatures, EligibleActions, Event,
    ExplainRequest, Feature, FeatureDescription, FiredRule, NamedFeatures, ObserveRequest, ObservedRequest,
    ObservedSchema, Reason, RecordEventsRequest, RowKeys, ScoreBatchRequest, ScoreRequest, ScoreStep,
    SealedFeatures, SelectActionRequest,
};

/// What a string or byte field takes beside its bytes, with the allocator's share.
const TEXT: usize = 48;
/// The largest number of bytes that one byte of a packed field of varints becomes.
const VARINT: usize = 8;

/// What the fields of one message type become.
#[derive(Debug)]
pub struct Shape {
    /// Bytes of the struct.
    size: usize,
    /// The fields that are messages.
    messages: &'static [(u32, &'static Shape)],
    /// The fields of packed varints.
    varints: &'static [u32],
}

/// A message that clients send, whose size is checked before it is decoded.
pub trait Decoded {
    /// Its type.
    const SHAPE: &'static Shape;
}

const fn shape<M>(messages: &'static [(u32, &'static Shape)], varints: &'static [u32]) -> Shape {
    Shape { size: size_of::<M>(), messages, varints }
}

static FEATURE: Shape = shape::<Feature>(&[], &[]);
static NAMED: Shape = shape::<NamedFeatures>(&[(1, &FEATURE)], &[]);
static DENSE: Shape = shape::<DenseFeatures>(&[], &[]);
static ELIGIBLE: Shape = shape::<EligibleActions>(&[], &[]);
/// An entry of a map from entities to keys.
static KEY: Shape = shape::<(String, String)>(&[], &[]);
static ROW_KEYS: Shape = shape::<RowKeys>(&[], &[]);
/// An entry of a map from entities to the keys of the rows.
static KEYS_OF_ROWS: Shape = shape::<(String, RowKeys)>(&[(2, &ROW_KEYS)], &[]);
static SCORE: Shape = shape::<ScoreRequest>(&[(3, &NAMED), (4, &DENSE), (20, &KEY)], &[]);
static BATCH: Shape = shape::<ScoreBatchRequest>(&[(20, &KEYS_OF_ROWS)], &[]);
static SELECT: Shape =
    shape::<SelectActionRequest>(&[(3, &NAMED), (4, &DENSE), (6, &ELIGIBLE), (20, &KEY)], &[]);
static SCORE_STEP: Shape = shape::<ScoreStep>(&[(2, &DENSE)], &[]);
static ACTION_STEP: Shape = shape::<ActionStep>(&[(2, &DENSE), (3, &ELIGIBLE)], &[]);
static DECIDE: Shape =
    shape::<DecideRequest>(&[(1, &SCORE_STEP), (2, &ACTION_STEP), (5, &NAMED), (20, &KEY)], &[]);
/// An entry of a map from number fields to numbers.
static NUMBER: Shape = shape::<(String, f64)>(&[], &[]);
static EVENT: Shape = shape::<Event>(&[(4, &KEY), (5, &NUMBER), (6, &KEY)], &[]);
static EVENTS: Shape = shape::<RecordEventsRequest>(&[(1, &EVENT)], &[]);
static EXPLAIN: Shape = shape::<ExplainRequest>(&[(3, &NAMED), (4, &DENSE)], &[]);

static PARAMETER: Shape = shape::<InferParameter>(&[], &[]);
/// An entry of a map from names to parameters.
static ENTRY: Shape = shape::<(String, InferParameter)>(&[(2, &PARAMETER)], &[]);
static CONTENTS: Shape = shape::<InferTensorContents>(&[], &[1, 2, 3, 4, 5]);
static INPUT: Shape = shape::<InferInputTensor>(&[(4, &ENTRY), (5, &CONTENTS)], &[3]);
static OUTPUT: Shape = shape::<InferRequestedOutputTensor>(&[(2, &ENTRY)], &[]);
static INFER: Shape = shape::<ModelInferRequest>(&[(4, &ENTRY), (5, &INPUT), (6, &OUTPUT)], &[]);

static DESCRIPTION: Shape = shape::<FeatureDescription>(&[], &[]);
static SCHEMA: Shape = shape::<ObservedSchema>(&[(2, &DESCRIPTION)], &[]);
static SEALED: Shape = shape::<SealedFeatures>(&[], &[1]);
static REASON: Shape = shape::<Reason>(&[], &[]);
static FIRED: Shape = shape::<FiredRule>(&[], &[]);
static RULES: Shape = shape::<AppliedRules>(&[(1, &FIRED)], &[]);
static DECISION: Shape = shape::<DecisionRecord>(&[(25, &SEALED), (40, &REASON), (60, &RULES)], &[24, 81]);
static OBSERVED: Shape = shape::<ObservedRequest>(&[(2, &DECISION), (3, &FEATURE)], &[]);
static OBSERVE: Shape = shape::<ObserveRequest>(&[(2, &SCHEMA), (3, &OBSERVED)], &[]);

impl Decoded for ScoreRequest {
    const SHAPE: &'static Shape = &SCORE;
}

impl Decoded for ScoreBatchRequest {
    const SHAPE: &'static Shape = &BATCH;
}

impl Decoded for SelectActionRequest {
    const SHAPE: &'static Shape = &SELECT;
}

impl Decoded for DecideRequest {
    const SHAPE: &'static Shape = &DECIDE;
}

impl Decoded for RecordEventsRequest {
    const SHAPE: &'static Shape = &EVENTS;
}

impl Decoded for ExplainRequest {
    const SHAPE: &'static Shape = &EXPLAIN;
}

impl Decoded for ModelInferRequest {
    const SHAPE: &'static Shape = &INFER;
}

impl Decoded for ObserveRequest {
    const SHAPE: &'static Shape = &OBSERVE;
}

/// Whether a message of type `M` takes at most `limit` bytes once it is decoded. Of the first part of a message, what is
/// there counts: it never takes more than the whole. Bytes that are no message of that type are counted up to where that
/// shows; decoding them reports the error.
#[must_use]
pub fn is_within<M: Decoded>(message: &[u8], limit: usize) -> bool {
    let mut left = limit;
    count(M::SHAPE, message, &mut left).is_some()
}

/// Takes what a message needs from `left`; `None` if that is too little.
fn count(shape: &Shape, mut bytes: &[u8], left: &mut usize) -> Option<()> {
    take(left, shape.size)?;
    while !bytes.is_empty() {
        let Ok((field, wire)) = decode_key(&mut bytes) else { return Some(()) };
        let skipped = match wire {
            WireType::Varint => {
                take(left, VARINT)?;
                if decode_varint(&mut bytes).is_err() {
                    return Some(());
                }
                0
            }
            WireType::SixtyFourBit => 8,
            WireType::ThirtyTwoBit => 4,
            WireType::LengthDelimited => {
                let Ok(length) = decode_varint(&mut bytes) else { return Some(()) };
                // A field that goes on behind the end of the bytes counts as far as it is there.
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                let content = bytes.get(..length).unwrap_or(bytes);
                if let Some((_, inner)) = shape.messages.iter().find(|(number, _)| *number == field) {
                    count(inner, content, left)?;
                } else if shape.varints.contains(&field) {
                    take(left, content.len().saturating_mul(VARINT))?;
                } else {
                    take(left, TEXT + content.len())?;
                }
                content.len()
            }
            // No message has groups; decoding them takes no memory.
            WireType::StartGroup | WireType::EndGroup => 0,
        };
        let fixed = matches!(wire, WireType::SixtyFourBit | WireType::ThirtyTwoBit);
        take(left, if fixed { skipped } else { 0 })?;
        let Some(rest) = bytes.get(skipped..) else { return Some(()) };
        bytes = rest;
    }
    Some(())
}

fn take(left: &mut usize, bytes: usize) -> Option<()> {
    *left = left.checked_sub(bytes)?;
    Some(())
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::v1::{feature, score_request};

    /// Field `number` with an empty content, `count` times.
    fn empties(number: u8, count: usize) -> Vec<u8> {
        [number << 3 | 2, 0].repeat(count)
    }

    /// Fault case 28.
    #[test]
    fn empty_elements_are_counted_as_what_they_become() {
        let limit = 4 << 20;
        assert!(!is_within::<ModelInferRequest>(&empties(5, 524_280), limit));
        assert!(!is_within::<ObserveRequest>(&empties(3, 1 << 20), limit));
        assert!(!is_within::<ObserveRequest>(&empties(2, 1 << 20), limit));
        assert!(!is_within::<ScoreRequest>(
            &{
                let features = empties(1, 100_000);
                let mut message = vec![3 << 3 | 2];
                prost::encoding::encode_varint(features.len() as u64, &mut message);
                message.extend_from_slice(&features);
                message
            },
            limit
        ));
        let few = empties(5, 100);
        assert!(is_within::<ModelInferRequest>(&few, limit));
        let needs = 100 * size_of::<InferInputTensor>() + size_of::<ModelInferRequest>();
        assert!(is_within::<ModelInferRequest>(&few, needs));
        assert!(!is_within::<ModelInferRequest>(&few, needs - 1));
    }

    #[test]
    fn the_reasons_of_an_observed_decision_are_counted_as_what_they_become() {
        let decision =
            DecisionRecord { feature_reasons: vec![Reason::default(); 1000], ..Default::default() };
        let observed = ObservedRequest { decision: Some(decision), ..Default::default() };
        let message = ObserveRequest { requests: vec![observed], ..Default::default() }.encode_to_vec();
        assert!(!is_within::<ObserveRequest>(&message, 1000 * size_of::<Reason>()));
        assert!(is_within::<ObserveRequest>(&message, 1000 * size_of::<Reason>() + 4096));
    }

    #[test]
    fn the_rules_of_an_observed_decision_are_counted_as_what_they_become() {
        let rules = AppliedRules { fired: vec![FiredRule::default(); 1000], ..Default::default() };
        let decision = DecisionRecord { rules: Some(rules), ..Default::default() };
        let observed = ObservedRequest { decision: Some(decision), ..Default::default() };
        let message = ObserveRequest { requests: vec![observed], ..Default::default() }.encode_to_vec();
        assert!(!is_within::<ObserveRequest>(&message, 1000 * size_of::<FiredRule>()));
        assert!(is_within::<ObserveRequest>(&message, 1000 * size_of::<FiredRule>() + 4096));
    }

    /// A partial message that is refused would also be refused as a complete one.
    #[test]
    fn the_first_part_of_a_message_takes_no_more_than_the_whole() {
        let decision =
            DecisionRecord { features: vec![1.0; 20], eligible_mask: vec![7; 9], ..Default::default() };
        let feature = Feature { name: "amount".to_owned(), value: Some(feature::Value::Number(1.0)) };
        let observed = ObservedRequest { schema: 1, decision: Some(decision), others: vec![feature; 3] };
        let message = ObserveRequest { requests: vec![observed; 3], ..Default::default() }.encode_to_vec();
        let needs = |part: &[u8]| {
            let mut left = usize::MAX;
            count(ObserveRequest::SHAPE, part, &mut left).unwrap();
            usize::MAX - left
        };
        let parts: Vec<usize> = (0..=message.len()).map(|length| needs(&message[..length])).collect();
        assert!(parts.is_sorted(), "{parts:?}");
        // Elements are counted within an element that has not arrived completely.
        let mut bomb = vec![3 << 3 | 2];
        prost::encoding::encode_varint(1 << 20, &mut bomb);
        bomb.extend(empties(3, 100));
        assert!(!is_within::<ObserveRequest>(&bomb, 100 * size_of::<Feature>()));
    }

    #[test]
    fn honest_messages_are_within_a_few_times_their_length() {
        let feature = |number: usize| Feature {
            name: format!("transaction_amount_{number}"),
            value: Some(feature::Value::Number(number as f64)),
        };
        let named = NamedFeatures { features: (0..1024).map(feature).collect() };
        let request = ScoreRequest {
            checkpoint: "fraud.checkout".to_owned(),
            features: Some(score_request::Features::Named(named)),
            ..ScoreRequest::default()
        };
        let bytes = request.encode_to_vec();
        assert!(is_within::<ScoreRequest>(&bytes, 6 * bytes.len()), "{}", bytes.len());
        let batch = ScoreBatchRequest { values: vec![1.0; 200_000], ..ScoreBatchRequest::default() };
        let bytes = batch.encode_to_vec();
        assert!(is_within::<ScoreBatchRequest>(&bytes, bytes.len() + 1024));
    }

    #[test]
    fn packed_varints_and_broken_messages_are_bounded() {
        let shape = vec![1_u8; 1000];
        let mut tensor = vec![3 << 3 | 2];
        prost::encoding::encode_varint(1000, &mut tensor);
        tensor.extend_from_slice(&shape);
        let mut message = vec![5 << 3 | 2];
        prost::encoding::encode_varint(tensor.len() as u64, &mut message);
        message.extend_from_slice(&tensor);
        assert!(is_within::<ModelInferRequest>(&message, 10_000));
        assert!(!is_within::<ModelInferRequest>(&message, 8000));
        for broken in
            [&[0x2a, 0xff, 0xff, 0xff, 0xff, 0x0f][..], &[0xff; 20], &[0x2a], &[0x0d, 1], &[0x2b, 0x2b]]
        {
            assert!(is_within::<ModelInferRequest>(broken, 10_000));
        }
    }
}
