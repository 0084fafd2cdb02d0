//! One conformance test for all rules, and tests of each rule.

use std::collections::BTreeMap;

use super::*;

const SALT: &str = "000102030405060708090a0b0c0d0e0f";

fn rules() -> Vec<Rule> {
    vec![
        Rule::Uniform,
        Rule::EpsilonGreedy { epsilon: 0.1 },
        Rule::EpsilonGreedy { epsilon: 0.0 },
        Rule::EpsilonGreedy { epsilon: 1.0 },
        Rule::Softmax { inverse_temperature: 0.0 },
        Rule::Softmax { inverse_temperature: 50.0 },
        Rule::Softmax { inverse_temperature: 1e300 },
        Rule::SquareCb { gamma: 0.0 },
        Rule::SquareCb { gamma: 100.0 },
        Rule::SquareCb { gamma: 1e300 },
        Rule::FastCb { gamma: 0.0 },
        Rule::FastCb { gamma: 100.0 },
        Rule::FastCb { gamma: 1e300 },
        Rule::LossRatio { exponent: 0.0 },
        Rule::LossRatio { exponent: 100.0 },
        Rule::LossRatio { exponent: 1e300 },
        Rule::Bagging { voters: 2 },
        Rule::Bagging { voters: 7 },
    ]
}

fn spec(rule: Rule) -> PolicySpec {
    PolicySpec { rule, floor: 0.0, action_floors: BTreeMap::new(), caps: Vec::new(), salt: SALT.to_owned() }
}

fn catalogue(actions: usize) -> ActionCatalogue {
    let action = |index: usize| Action {
        id: format!("a{index}"),
        factors: BTreeMap::new(),
        features: Vec::new(),
        attributes: BTreeMap::from([("cost".to_owned(), index as f64)]),
    };
    ActionCatalogue::new((0..actions).map(action).collect()).unwrap()
}

fn pmf(spec: &PolicySpec, scores: &[f64], eligible: &Mask) -> Result<Vec<f64>, PolicyError> {
    let policy = Policy::compile(spec, &catalogue(eligible.len())).unwrap();
    let mut out = vec![f64::NAN; eligible.len()];
    policy.pmf(scores, eligible, &mut out, &mut PolicyScratch::new(&policy)).map(|()| out)
}

fn mask(actions: usize, eligible: &[usize]) -> Mask {
    let mut mask = Mask::none(actions);
    eligible.iter().for_each(|&action| assert!(mask.insert(action)));
    mask
}

/// Scores of the oracle and, if needed, of each voter (the row is rotated by one action per voter).
fn rows(rule: Rule, oracle: &[f64]) -> Vec<f64> {
    let mut all = oracle.to_vec();
    for voter in 0..rule.voters() {
        let mut row = oracle.to_vec();
        row.rotate_right(voter % oracle.len());
        all.extend(row);
    }
    all
}

#[test]
fn every_rule_conforms() {
    let oracles: [&[f64]; 6] = [
        &[0.9, 0.8, 0.95, 0.1, 0.5],
        &[0.5; 5],
        &[0.0, 0.0, 1.0, 1.0, 0.0],
        &[1.0, 1.0, 1.0, 1.0, 1.0],
        &[0.3, 0.3 + 1e-16, 0.3 + 2e-16, 5e-324, -0.0],
        &[-1e308, 1.0, 0.0, -1e-308, -5.0],
    ];
    for rule in rules() {
        for oracle in oracles {
            for eligible in [&[0, 1, 2, 3, 4][..], &[1, 3], &[4], &[2, 0]] {
                for floor in [0.0, 0.05, 1.0] {
                    let spec = PolicySpec { floor, ..spec(rule) };
                    let mask = mask(5, eligible);
                    let p = pmf(&spec, &rows(rule, oracle), &mask).unwrap();
                    let context = format!("{rule:?} {oracle:?} {eligible:?} floor {floor}: {p:?}");
                    assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{context}");
                    for (action, &p) in p.iter().enumerate() {
                        if eligible.contains(&action) {
                            assert!(p >= floor / eligible.len() as f64 && p <= 1.0, "{context}");
                        } else {
                            assert_eq!(p.to_bits(), 0.0_f64.to_bits(), "{context}");
                        }
                    }
                    // A rotation of the catalogue rotates the pmf, so nothing depends on the order.
                    let mut turned = oracle.to_vec();
                    turned.rotate_right(1);
                    let places: Vec<usize> = eligible.iter().map(|action| (action + 1) % 5).collect();
                    let mut back = pmf(&spec, &rows(rule, &turned), &self::mask(5, &places)).unwrap();
                    back.rotate_left(1);
                    for (a, b) in p.iter().zip(&back) {
                        assert!((a - b).abs() < 1e-12, "{context} turned {back:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_rule_refuses_what_it_cannot_weigh() {
    for rule in rules() {
        let good = rows(rule, &[0.1, 0.2, 0.3]);
        let all = Mask::all(3);
        assert_eq!(pmf(&spec(rule), &good, &Mask::none(3)), Err(PolicyError::NoEligibleAction));
        assert!(matches!(
            pmf(&spec(rule), &good[1..], &all),
            Err(PolicyError::Length { what: "scores", .. })
        ));
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for voter in 0..=rule.voters() {
                let mut scores = good.clone();
                scores[voter * 3 + 1] = bad;
                let refused = pmf(&spec(rule), &scores, &all).unwrap_err();
                assert!(
                    matches!(refused, PolicyError::NonFiniteScore { action: 1, voter: v, .. } if v == voter)
                );
                // The score of an ineligible action is not read.
                assert!(pmf(&spec(rule), &scores, &mask(3, &[0, 2])).is_ok());
            }
        }
    }
    let policy = Policy::compile(&spec(Rule::Uniform), &catalogue(3)).unwrap();
    let mut scratch = PolicyScratch::new(&policy);
    let refused = policy.pmf(&[0.0; 3], &Mask::all(4), &mut [0.0; 3], &mut scratch);
    assert_eq!(refused, Err(PolicyError::MaskLength { mask: 4, catalogue: 3 }));
}

#[track_caller]
fn close(got: &[f64], expected: &[f64]) {
    assert!(
        got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12),
        "{got:?} {expected:?}"
    );
}

#[test]
fn formulas_by_hand() {
    let scores = [0.9, 0.8, 0.5, 0.8];
    let of = |rule| pmf(&spec(rule), &scores, &Mask::all(4)).unwrap();
    close(&of(Rule::Uniform), &[0.25; 4]);
    close(&of(Rule::EpsilonGreedy { epsilon: 0.2 }), &[0.85, 0.05, 0.05, 0.05]);
    let e = |gap: f64| (-10.0 * gap).exp();
    let sum = 1.0 + 2.0 * e(0.1) + e(0.4);
    close(
        &of(Rule::Softmax { inverse_temperature: 10.0 }),
        &[1.0 / sum, e(0.1) / sum, e(0.4) / sum, e(0.1) / sum],
    );
    // 1 / (4 + 20 gap): gaps .1, .4, .1.
    close(
        &of(Rule::SquareCb { gamma: 20.0 }),
        &[1.0 - 2.0 / 6.0 - 1.0 / 12.0, 1.0 / 6.0, 1.0 / 12.0, 1.0 / 6.0],
    );
    // Losses .1, .2, .5, .2: .1 / (.4 + 20 gap).
    let (near, far) = (0.1 / 2.4, 0.1 / 8.4);
    close(&of(Rule::FastCb { gamma: 20.0 }), &[1.0 - 2.0 * near - far, near, far, near]);
    // Losses .1, .2, .5, .2: (.1 / .2)² = 1/4, (.1 / .5)² = 1/25.
    close(&of(Rule::LossRatio { exponent: 2.0 }), &[100.0 / 154.0, 25.0 / 154.0, 4.0 / 154.0, 25.0 / 154.0]);
    // The voters prefer action 0, action 1, and actions 1 and 3 equally.
    let votes = [&scores[..], &[1.0, 0.0, 0.0, 0.0], &[0.0, 1.0, 0.0, 0.5], &[0.0, 1.0, 0.0, 1.0]].concat();
    let p = pmf(&spec(Rule::Bagging { voters: 3 }), &votes, &Mask::all(4)).unwrap();
    close(&p, &[1.0 / 3.0, 0.5, 0.0, 1.0 / 6.0]);
}

#[test]
fn tied_best_actions_share() {
    let scores = [0.7, 0.2, 0.7];
    for rule in rules().into_iter().filter(|rule| rule.voters() == 0) {
        let p = pmf(&spec(rule), &scores, &Mask::all(3)).unwrap();
        assert_eq!(p[0], p[2], "{rule:?}");
        assert!(p[0] >= p[1], "{rule:?}");
    }
}

#[test]
fn fastcb_explores_less_where_the_best_action_hardly_fails() {
    let explored = |rule: fn(f64) -> Rule, best: f64| {
        1.0 - pmf(&spec(rule(50.0)), &[best, best - 0.1, best - 0.1], &Mask::all(3)).unwrap()[0]
    };
    let fast = |gamma| Rule::FastCb { gamma };
    let square = |gamma| Rule::SquareCb { gamma };
    assert!(explored(fast, 0.99) < 0.1 * explored(fast, 0.5));
    assert!((explored(square, 0.99) - explored(square, 0.5)).abs() < 1e-9);
    let refused = pmf(&spec(fast(1.0)), &[0.5, 1.5, 0.5], &Mask::all(3));
    assert_eq!(refused, Err(PolicyError::ScoreAboveOne { action: 1, value: 1.5 }));
}

#[test]
fn loss_ratios_explore_by_the_gap_where_all_fail_and_hardly_where_one_never_does() {
    let rule = Rule::LossRatio { exponent: 100.0 };
    let of = |scores: &[f64]| pmf(&spec(rule), scores, &Mask::all(scores.len())).unwrap();
    // Losses near 1: softmax on the scores, to the first order.
    let soft =
        pmf(&spec(Rule::Softmax { inverse_temperature: 100.0 }), &[2e-3, 1e-3], &Mask::all(2)).unwrap();
    assert!((of(&[2e-3, 1e-3])[0] - soft[0]).abs() < 1e-4);
    // The same gap with smaller and smaller losses.
    let explored: Vec<f64> = [0.5, 0.9, 0.97].iter().map(|&best| of(&[best, best - 0.01])[1]).collect();
    assert!(explored.windows(2).all(|pair| pair[1] < 0.5 * pair[0]), "{explored:?}");
    // Without a loss, nothing can be gained.
    assert_eq!(of(&[1.0, 1.0_f64.next_down(), 0.3]), [1.0, 0.0, 0.0]);
    assert_eq!(of(&[1.0, 1.0, 0.3]), [0.5, 0.5, 0.0]);
    let refused = pmf(&spec(rule), &[0.5, 1.5], &Mask::all(2));
    assert_eq!(refused, Err(PolicyError::ScoreAboveOne { action: 1, value: 1.5 }));
}

#[test]
fn caps_take_their_price_off_the_score() {
    let caps = vec![Cap { attribute: "cost".to_owned(), lambda: 0.1, limit: None }];
    // Costs are 0, 1, 2: scores .5, .55, .4 become .5, .45, .2.
    let spec = PolicySpec { caps, ..spec(Rule::EpsilonGreedy { epsilon: 0.0 }) };
    close(&pmf(&spec, &[0.5, 0.55, 0.4], &Mask::all(3)).unwrap(), &[1.0, 0.0, 0.0]);
    let policy = Policy::compile(&spec, &catalogue(3)).unwrap();
    let best = policy.best(&[0.5, 0.55, 0.4], &Mask::all(3), &mut PolicyScratch::new(&policy));
    assert_eq!(best, Ok(0));
}

#[test]
fn floors_by_hand() {
    // Shares .9, .1, 0, 0 with a floor of .05 each: .05 has to come from the two above it, .025 from each.
    let votes = [1.0, 0.0, 0.0, 0.0];
    let mut scores = votes.to_vec();
    for voter in 0..10 {
        scores.extend(if voter < 9 { [1.0, 0.0, 0.0, 0.0] } else { [0.0, 1.0, 0.0, 0.0] });
    }
    let bag = PolicySpec { floor: 0.2, ..spec(Rule::Bagging { voters: 10 }) };
    close(&pmf(&bag, &scores, &Mask::all(4)).unwrap(), &[0.85, 0.05, 0.05, 0.05]);
    let own = BTreeMap::from([("a2".to_owned(), 0.3)]);
    let greedy = PolicySpec { action_floors: own, ..spec(Rule::EpsilonGreedy { epsilon: 0.0 }) };
    close(&pmf(&greedy, &votes, &Mask::all(4)).unwrap(), &[0.7, 0.0, 0.3, 0.0]);
    // The floor of an ineligible action has no effect.
    close(&pmf(&greedy, &votes, &mask(4, &[0, 1])).unwrap(), &[1.0, 0.0, 0.0, 0.0]);
    // A pmf that satisfies its floors is unchanged, bit for bit.
    let square = spec(Rule::SquareCb { gamma: 3.0 });
    let low = PolicySpec { floor: 0.01, ..square.clone() };
    assert_eq!(pmf(&square, &votes, &Mask::all(4)), pmf(&low, &votes, &Mask::all(4)));
}

#[test]
fn specifications_are_refused_by_name() {
    let json = |text: &str| serde_json::from_str::<PolicySpec>(text).map_err(|error| error.to_string());
    let salt = format!("\"salt\": \"{SALT}\"");
    for (text, message) in [
        (format!("{{\"rule\": \"ucb\", {salt}}}"), "unknown rule \"ucb\""),
        (format!("{{\"rule\": \"softmax\", {salt}}}"), "rule softmax needs `inverse_temperature`"),
        (format!("{{\"rule\": \"uniform\", \"gamma\": 1, {salt}}}"), "rule uniform does not take `gamma`"),
        (format!("{{\"rule\": \"squarecb\", \"gamma\": -1, {salt}}}"), "gamma is -1, it must be finite"),
        (format!("{{\"rule\": \"epsilon_greedy\", \"epsilon\": 1.5, {salt}}}"), "epsilon is 1.5"),
        (format!("{{\"rule\": \"bagging\", \"voters\": 1, {salt}}}"), "voters is 1, it must be 2 to 64"),
        (format!("{{\"rule\": \"uniform\", \"flor\": 1, {salt}}}"), "unknown field `flor`"),
        ("{\"rule\": \"uniform\"}".to_owned(), "missing field `salt`"),
    ] {
        let refused = json(&text).unwrap_err();
        assert!(refused.contains(message), "{refused}");
    }
    let base = spec(Rule::Uniform);
    let cap = |attribute: &str, lambda| Cap { attribute: attribute.to_owned(), lambda, limit: None };
    let floors = |id: &str, floor| BTreeMap::from([(id.to_owned(), floor)]);
    for (spec, message) in [
        (PolicySpec { floor: -0.1, ..base.clone() }, "floor is -0.1"),
        (PolicySpec { floor: f64::NAN, ..base.clone() }, "floor is NaN"),
        (
            PolicySpec { floor: 0.5, action_floors: floors("a1", 0.6), ..base.clone() },
            "is 1.1, above 1; lower them",
        ),
        (PolicySpec { action_floors: floors("b", 0.1), ..base.clone() }, "names action \"b\""),
        (PolicySpec { action_floors: floors("a1", 2.0), ..base.clone() }, "floor of action \"a1\" is 2"),
        (
            PolicySpec { caps: vec![cap("fee", 1.0)], ..base.clone() },
            "\"fee\", an attribute that no action has",
        ),
        (PolicySpec { caps: vec![cap("cost", -1.0)], ..base.clone() }, "lambda -1"),
        (
            PolicySpec { caps: vec![cap("cost", 1.0), cap("cost", 2.0)], ..base.clone() },
            "two caps on \"cost\"",
        ),
        (PolicySpec { salt: "abc".to_owned(), ..base.clone() }, "32 hexadecimal digits"),
        (PolicySpec { salt: "+0".repeat(16), ..base.clone() }, "32 hexadecimal digits"),
    ] {
        let refused = Policy::compile(&spec, &catalogue(3)).unwrap_err().to_string();
        assert!(refused.contains(message) && !refused.contains('\n'), "{refused}");
    }
}

#[test]
fn a_specification_survives_json() {
    for rule in rules() {
        let caps = vec![Cap { attribute: "cost".to_owned(), lambda: 0.1, limit: Some(0.3) }];
        let spec = PolicySpec {
            floor: 0.1,
            caps,
            action_floors: BTreeMap::from([("a".to_owned(), 0.1)]),
            ..spec(rule)
        };
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<PolicySpec>(&text).unwrap(), spec, "{text}");
    }
}

#[test]
fn masks_read_the_wire_and_refuse_stray_bits() {
    let mask = Mask::from_bytes(10, &[0b0000_0101, 0b10]).unwrap();
    assert_eq!(mask.iter().collect::<Vec<_>>(), [0, 2, 9]);
    assert_eq!(mask.to_bytes(), [5, 2]);
    assert_eq!((mask.count(), mask.len(), mask.contains(9), mask.contains(10)), (3, 10, true, false));
    assert_eq!(Mask::from_bytes(10, &[1, 4]), Err(MaskError::Beyond { bit: 10, actions: 10 }));
    assert_eq!(Mask::from_bytes(10, &[1]), Err(MaskError::Length { got: 1, expected: 2, actions: 10 }));
    for len in [0, 1, 63, 64, 65, 128, 4096] {
        let all = Mask::all(len);
        assert_eq!(all.iter().count(), len);
        assert_eq!(Mask::from_bytes(len, &all.to_bytes()), Ok(all));
    }
}

#[test]
fn the_draw_is_pinned() {
    // SipHash-2-4-128 of the three framed parts, computed by an independent implementation; see the comment in
    // tests/property/test_policy_draw.py.
    let key: [u8; 16] = std::array::from_fn(|byte| byte as u8);
    assert_eq!(unit(&key, &[]).to_bits(), DRAW_OF_NOTHING.to_bits());
    assert_eq!(draw(&key, "action.authorise", "order-1").to_bits(), DRAW_OF_ORDER_1.to_bits());
    // The boundary between two parts matters.
    assert_ne!(draw(&key, "ab", "c"), draw(&key, "a", "bc"));
    assert_ne!(draw(&key, "a", "b"), draw(&[0; 16], "a", "b"));
}

/// From the reference vectors of the SipHash authors (`vectors_sip128`, first entry, empty input):
/// a3 81 7f 04 ba 25 a8 e6 ..., read as little-endian u64, upper 53 bits.
const DRAW_OF_NOTHING: f64 = (0xe6a8_25ba_047f_81a3_u64 >> 11) as f64 / 9_007_199_254_740_992.0;
const DRAW_OF_ORDER_1: f64 = 0.09864925614006792;

#[test]
fn choosing_never_takes_an_impossible_action() {
    assert_eq!(choose(&[0.0, 0.25, 0.0, 0.75, 0.0], 0.0), Some(1));
    assert_eq!(choose(&[0.0, 0.25, 0.0, 0.75, 0.0], 0.25_f64.next_down()), Some(1));
    assert_eq!(choose(&[0.0, 0.25, 0.0, 0.75, 0.0], 0.25), Some(3));
    assert_eq!(choose(&[0.0, 0.25, 0.0, 0.75, 0.0], 1.0_f64.next_down()), Some(3));
    // Ten times 0.1 is below 1. A point beyond the sum belongs to the last possible action.
    let tenths = [vec![0.1; 10], vec![0.0]].concat();
    assert_eq!(choose(&tenths, 1.0_f64.next_down()), Some(9));
    assert_eq!(choose(&[5e-324, 0.0], 0.5), Some(0));
    assert_eq!(choose(&[0.0, 0.0], 0.5), None);
    assert_eq!(choose(&[], 0.5), None);
}

#[test]
fn realised_choices_match_their_propensities() {
    // Chi-square over 40,000 decisions with a fixed key and 7 degrees of freedom: 29.9 is exceeded once in 10,000
    // keys, and this key is fixed.
    let spec = PolicySpec { floor: 0.08, ..spec(Rule::SquareCb { gamma: 30.0 }) };
    let policy = Policy::compile(&spec, &catalogue(9)).unwrap();
    let eligible = mask(9, &[0, 1, 2, 3, 5, 6, 7, 8]);
    let scores = [0.5, 0.9, 0.55, 0.88, 0.99, 0.1, 0.7, 0.6, 0.87];
    let mut pmf = vec![0.0; 9];
    policy.pmf(&scores, &eligible, &mut pmf, &mut PolicyScratch::new(&policy)).unwrap();
    let mut counts = [0_u32; 9];
    let n = 40_000;
    for decision in 0..n {
        let u = draw(&policy.salt().0, "action.authorise", &format!("decision-{decision}"));
        counts[choose(&pmf, u).unwrap()] += 1;
    }
    assert_eq!(counts[4], 0);
    let chi: f64 = eligible
        .iter()
        .map(|action| {
            let expected = pmf[action] * f64::from(n);
            (f64::from(counts[action]) - expected).powi(2) / expected
        })
        .sum();
    assert!(chi < 29.9, "chi-square {chi}: {counts:?}");
}
