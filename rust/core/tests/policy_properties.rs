//! Policies compared with a naive reference: the formulas of the papers, over plain vectors.
#![expect(clippy::unwrap_used, reason = "a reference that fails is a failed test")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use scorer_core::policy::{
    Action, ActionCatalogue, Cap, Mask, Policy, PolicyScratch, PolicySpec, Rule, choose, draw,
};

#[derive(Debug, Clone)]
struct Case {
    spec: PolicySpec,
    costs: Vec<f64>,
    scores: Vec<f64>,
    eligible: Vec<bool>,
}

fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        Just(Rule::Uniform),
        (0.0..=1.0).prop_map(|epsilon| Rule::EpsilonGreedy { epsilon }),
        (0.0..500.0).prop_map(|inverse_temperature| Rule::Softmax { inverse_temperature }),
        (0.0..5000.0).prop_map(|gamma| Rule::SquareCb { gamma }),
        (0.0..5000.0).prop_map(|gamma| Rule::FastCb { gamma }),
        (0.0..500.0).prop_map(|exponent| Rule::LossRatio { exponent }),
        (2_usize..12).prop_map(|voters| Rule::Bagging { voters }),
    ]
}

/// Generates probabilities with frequent ties, near-ties and ends of the range.
fn score() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => 0.0..=1.0,
        2 => prop::sample::select(vec![0.0, 0.25, 0.5, 0.5 + 1e-16, 0.75, 1.0, 5e-324]),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    (rule(), 1_usize..80).prop_flat_map(|(rule, actions)| {
        let voters = if let Rule::Bagging { voters } = rule { voters } else { 0 };
        (
            Just(rule),
            prop::collection::vec(score(), actions * (1 + voters)),
            prop::collection::vec(prop::bool::weighted(0.6), actions),
            prop::collection::vec(0.0..2.0, actions),
            (0.0..0.5, 0.0..0.3, any::<prop::sample::Index>(), 0.0..0.2, any::<[u8; 16]>()),
        )
            .prop_map(|(rule, scores, mut eligible, costs, (floor, own, which, lambda, salt))| {
                let at = which.index(eligible.len());
                if !eligible.contains(&true) {
                    eligible[at] = true;
                }
                let caps = vec![Cap { attribute: "cost".to_owned(), lambda, limit: None }];
                let salt = salt.iter().map(|byte| format!("{byte:02x}")).collect();
                let action_floors = BTreeMap::from([(format!("a{at}"), own)]);
                let spec = PolicySpec { rule, floor, action_floors, caps, salt };
                Case { spec, costs, scores, eligible }
            })
    })
}

fn catalogue(costs: &[f64]) -> ActionCatalogue {
    let action = |(index, &cost): (usize, &f64)| Action {
        id: format!("a{index}"),
        factors: BTreeMap::new(),
        features: Vec::new(),
        attributes: BTreeMap::from([("cost".to_owned(), cost)]),
    };
    ActionCatalogue::new(costs.iter().enumerate().map(action).collect()).unwrap()
}

fn mask(eligible: &[bool]) -> Mask {
    let mut mask = Mask::none(eligible.len());
    eligible.iter().enumerate().filter(|(_, is)| **is).for_each(|(action, _)| assert!(mask.insert(action)));
    mask
}

fn best_of(scores: &[f64]) -> Vec<bool> {
    scores.iter().map(|a| scores.iter().all(|b| a >= b)).collect()
}

/// Inverse-gap weights: `others` for actions that are not best, and the rest in equal parts for the best
/// ones.
fn inverse_gap(scores: &[f64], others: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let best = best_of(scores);
    let top = scores.iter().zip(&best).find(|(_, best)| **best).unwrap().0;
    let spent: f64 =
        scores.iter().zip(&best).filter(|(_, best)| !**best).map(|(s, _)| others(*top, *s)).sum();
    let ties = best.iter().filter(|best| **best).count() as f64;
    scores
        .iter()
        .zip(&best)
        .map(|(s, best)| if *best { (1.0 - spent) / ties } else { others(*top, *s) })
        .collect()
}

fn naive_rule(rule: Rule, oracle: &[f64], voters: &[Vec<f64>]) -> Vec<f64> {
    let k = oracle.len() as f64;
    match rule {
        Rule::Uniform => vec![1.0 / k; oracle.len()],
        Rule::EpsilonGreedy { epsilon } => {
            let best = best_of(oracle);
            let ties = best.iter().filter(|best| **best).count() as f64;
            best.iter().map(|best| epsilon / k + if *best { (1.0 - epsilon) / ties } else { 0.0 }).collect()
        }
        Rule::Softmax { inverse_temperature: beta } => {
            oracle.iter().map(|a| 1.0 / oracle.iter().map(|b| (beta * (b - a)).exp()).sum::<f64>()).collect()
        }
        Rule::SquareCb { gamma } => inverse_gap(oracle, |best, score| 1.0 / (k + gamma * (best - score))),
        Rule::FastCb { gamma } => inverse_gap(oracle, |best, score| {
            let (loss, least) = (1.0 - score, 1.0 - best);
            if least == 0.0 { 0.0 } else { least / (k * least + gamma * (loss - least)) }
        }),
        // p(a) = 1 / sum over c of (l(a) / l(c))^exponent. An action that never fails gets all of the
        // probability.
        Rule::LossRatio { exponent } => {
            let best = best_of(oracle);
            let perfect = oracle.iter().filter(|score| **score == 1.0).count();
            if perfect > 0 && exponent > 0.0 {
                return best.iter().map(|best| f64::from(u8::from(*best)) / perfect as f64).collect();
            }
            let weight = |s: f64, c: f64| if s == c { 1.0 } else { ((1.0 - s) / (1.0 - c)).powf(exponent) };
            oracle.iter().map(|a| 1.0 / oracle.iter().map(|c| weight(*a, *c)).sum::<f64>()).collect()
        }
        Rule::Bagging { .. } => {
            let mut p = vec![0.0; oracle.len()];
            for voter in voters {
                let best = best_of(voter);
                let ties = best.iter().filter(|best| **best).count() as f64;
                for (p, best) in p.iter_mut().zip(best) {
                    *p += if best { 1.0 / ties / voters.len() as f64 } else { 0.0 };
                }
            }
            p
        }
    }
}

/// The projection, by bisection of the subtracted amount.
fn naive_floor(p: &[f64], floors: &[f64]) -> Vec<f64> {
    let raised = |tau: f64| -> Vec<f64> { p.iter().zip(floors).map(|(p, f)| (p - tau).max(*f)).collect() };
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..200 {
        let tau = (low + high) / 2.0;
        if raised(tau).iter().sum::<f64>() > 1.0 { low = tau } else { high = tau }
    }
    raised((low + high) / 2.0)
}

fn naive(case: &Case) -> Vec<f64> {
    let actions = case.costs.len();
    let places: Vec<usize> = (0..actions).filter(|&action| case.eligible[action]).collect();
    let lambda = case.spec.caps[0].lambda;
    let rows: Vec<Vec<f64>> = case
        .scores
        .chunks(actions)
        .map(|row| places.iter().map(|&action| row[action] - lambda * case.costs[action]).collect())
        .collect();
    let p = naive_rule(case.spec.rule, &rows[0], &rows[1..]);
    let floor = |action: usize| {
        let own = case.spec.action_floors.get(&format!("a{action}")).copied().unwrap_or(0.0);
        (case.spec.floor / places.len() as f64).max(own)
    };
    let floors: Vec<f64> = places.iter().map(|&action| floor(action)).collect();
    let mut out = vec![0.0; actions];
    naive_floor(&p, &floors).iter().zip(&places).for_each(|(p, &action)| out[action] = *p);
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_pmf_equals_the_reference_and_keeps_its_invariants(case in case(), ids in prop::collection::vec("[a-z0-9]{1,16}", 4)) {
        let policy = Policy::compile(&case.spec, &catalogue(&case.costs)).unwrap();
        let eligible = mask(&case.eligible);
        let mut pmf = vec![f64::NAN; case.costs.len()];
        let mut scratch = PolicyScratch::new(&policy);
        policy.pmf(&case.scores, &eligible, &mut pmf, &mut scratch).unwrap();

        prop_assert!((pmf.iter().sum::<f64>() - 1.0).abs() <= 1e-9);
        for (action, &p) in pmf.iter().enumerate() {
            if case.eligible[action] {
                prop_assert!(p >= policy.floor(action, eligible.count()), "action {} has {}", action, p);
            } else {
                prop_assert_eq!(p.to_bits(), 0);
            }
        }
        for (actual, expected) in pmf.iter().zip(naive(&case)) {
            prop_assert!((actual - expected).abs() < 1e-9, "{:?} against {:?}", pmf, naive(&case));
        }
        // Neither used scratch memory nor scores of ineligible actions change the result.
        let mut poisoned = case.scores.clone();
        for (at, score) in poisoned.iter_mut().enumerate() {
            if !case.eligible[at % case.costs.len()] {
                *score = f64::NAN;
            }
        }
        let mut again = vec![f64::NAN; pmf.len()];
        policy.pmf(&poisoned, &eligible, &mut again, &mut scratch).unwrap();
        prop_assert_eq!(&pmf, &again);
        for id in ids {
            let index = choose(&pmf, draw(&policy.salt().0, "action.authorise", &id)).unwrap();
            prop_assert!(pmf[index] > 0.0);
        }
    }

    #[test]
    fn a_choice_inverts_the_cumulative_sum(weights in prop::collection::vec(prop_oneof![Just(0.0), 0.0..1.0], 1..40), u in 0.0..1.0) {
        let total: f64 = weights.iter().sum();
        prop_assume!(total > 0.0);
        let pmf: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
        let index = choose(&pmf, u).unwrap();
        let below: f64 = pmf[..index].iter().sum();
        prop_assert!(pmf[index] > 0.0);
        prop_assert!(below <= u + 1e-12 && u < below + pmf[index] + 1e-12);
    }
}
