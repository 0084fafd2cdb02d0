//! `SelectAction`: one context, one action, whose propensity is in the log before the reply leaves.

use std::sync::Arc;
use std::time::Instant;

use scorer_core::bundle::{EvalError, EvalScratch, FunctionSet, SelectOut};
use scorer_core::explain::Contribution;

use super::evaluate::{self, BundleMemory, Failed, Workspace};
use super::rules::{self, Restricted};
use super::sequence::{self, Decision, Names, with_rules};
use super::{RequestContext, decide, explain};
use crate::answered::{Outcome, Pmf};
use crate::answers::{Answer, GivenReasons, GivenRules, Selected};
use crate::arrival::Arrival;
use crate::bundles::{FaultedFunctions, Loaded, Ruled};
use crate::config::Kind;
use crate::content::Content;
use crate::deadline::Deadline;
use crate::decision_log::unavailable;
use crate::defaulted::Defaulted;
use crate::engine::Engine;
use crate::idempotency::IdempotencyCache;
use crate::lanes::ActiveLane;
use crate::query::{Eligible, Features, PassedOn, Query, SelectQuery};
use crate::reason::Reason;
use crate::rejection::Rejection;
use crate::timings::Timings;

// === impl Engine ===

impl Engine {
    /// Selects one action.
    ///
    /// # Errors
    /// The request is not valid, or neither the model nor a fallback can answer.
    pub async fn select<F: Features>(
        self: &Arc<Engine>,
        arrival: &Arrival,
        query: SelectQuery<'_, F>,
    ) -> Result<Answer<Selected>, F::Error> {
        let SelectQuery { mut query, eligible, include_pmf } = query;
        let id = std::mem::take(&mut query.request_id);
        let passed = PassedOn::default();
        sequence::run(self, arrival, &Selection { query, eligible, include_pmf, passed }, id).await
    }
}

/// An action to be selected.
pub(super) struct Selection<'a, F> {
    pub(super) query: Query<'a, F>,
    pub(super) eligible: Option<Eligible<'a>>,
    pub(super) include_pmf: bool,
    /// The features that receive the result of a score.
    pub(super) passed: PassedOn<'a>,
}

/// The choice of the model.
pub(super) struct Drawn {
    out: SelectOut,
    /// The policy's probabilities if another thread evaluated it; else they are in this thread's memory.
    pmf: Option<Box<[f64]>>,
    reasons: Reasons,
}

/// The reasons of the action's score, if they are wanted.
type Reasons = Option<Arc<[Contribution]>>;

/// How an action is chosen.
#[derive(Clone, Copy)]
pub(super) struct Setup {
    /// Whether the policy explores.
    explores: bool,
    /// Number of reasons to compute.
    reasons: usize,
}

/// The chosen action, by the way in which it was chosen.
pub(super) enum Choice {
    /// The policy drew it.
    Explored {
        out: SelectOut,
        pmf: Option<Box<[f64]>>,
        reply: Option<Arc<[f32]>>,
        instead: Option<Reason>,
        reasons: Reasons,
    },
    /// The best action, because a draw could not be recorded.
    Greedy { out: SelectOut, reply: Option<Arc<[f32]>>, reason: Reason, reasons: Reasons },
    /// The checkpoint's configured action.
    Static { out: SelectOut, reply: Option<Arc<[f32]>>, reason: Reason },
}

impl<F: Features> Decision for Selection<'_, F> {
    const KIND: Kind = Kind::Action;
    type Features = F;
    type Inputs = Restricted;
    type Setup = Setup;
    type Evaluated = Drawn;
    type Choice = Choice;
    type Answer = Selected;

    fn query(&self) -> &Query<'_, F> {
        &self.query
    }

    fn cache(engine: &Engine) -> &IdempotencyCache<Selected> {
        &engine.remembered.selections
    }

    /// Hashes the eligible ids as a set, because their order has no meaning.
    fn hash(&self, content: &mut Content) {
        content.number(u64::from(self.include_pmf));
        if self.query.reasons > 0 {
            content.number(u64::from(self.query.reasons));
        }
        match self.eligible {
            None => content.number(0),
            Some(Eligible { ids, mask }) => {
                content.number(1);
                content.bytes(mask);
                content.set(ids.iter(), |content, id| content.bytes(id.as_bytes()));
            }
        }
    }

    /// Explores only if the log can keep a record, because an unrecorded draw could not be used for learning.
    fn setup(&self, context: RequestContext<'_>, loaded: &Loaded) -> Setup {
        Setup {
            explores: context.engine.available_log().is_some(),
            reasons: explain::wanted(context, loaded, self.query.reasons),
        }
    }

    fn read_inputs(&self, loaded: &Loaded, memory: &mut BundleMemory) -> Result<(), Rejection> {
        decide::eligible(self.eligible, loaded, &mut memory.eligible)
    }

    fn restrict(
        context: RequestContext<'_>,
        loaded: &Loaded,
        row: &[f32],
        memory: &mut BundleMemory,
    ) -> Result<(), Failed> {
        rules::of_actions(context, loaded, row, memory)
    }

    fn inputs(memory: &BundleMemory) -> Restricted {
        Restricted::of(memory)
    }

    fn install(inputs: &Restricted, memory: &mut BundleMemory) {
        inputs.install(memory);
    }

    fn evaluate(
        Setup { explores, reasons }: Setup,
        loaded: &Loaded,
        Names { checkpoint, id }: Names<'_>,
        row: &[f32],
        memory: &mut BundleMemory,
        deadline: &Deadline<'_>,
    ) -> Result<Drawn, EvalError> {
        let BundleMemory { eval, eligible, .. } = memory;
        let out = if explores {
            loaded.bundle.select(row, eligible, checkpoint, id, deadline, eval)?
        } else {
            loaded.bundle.select_greedy(row, eligible, deadline, eval)?
        };
        let reasons = reasons_of(loaded, row, out.index, reasons, eval, deadline)?;
        Ok(Drawn { out, pmf: None, reasons })
    }

    fn detach(drawn: &mut Drawn, memory: &BundleMemory) {
        drawn.pmf = Some(memory.eval.pmf().into());
    }

    fn decide(
        &self,
        context: RequestContext<'_>,
        loaded: &Loaded,
        workspace: &mut Workspace,
        Setup { explores, .. }: Setup,
        drawn: Result<Drawn, Failed>,
        instead: Option<Reason>,
    ) -> Result<Choice, Rejection> {
        match drawn {
            Ok(Drawn { out, pmf, reasons }) if explores => {
                let reply = self.include_pmf.then(|| {
                    let memory = workspace.parts(loaded).1;
                    float32(Pmf::Policy(pmf.as_deref().unwrap_or(memory.eval.pmf())), loaded)
                });
                Ok(Choice::Explored { out, pmf, reply, instead, reasons })
            }
            Ok(Drawn { out, reasons, .. }) => {
                let reason = unavailable(context.engine.log.as_ref());
                Ok(Choice::Greedy { out, reply: self.only(out, loaded), reason, reasons })
            }
            Err(failed) => self.fixed(context, loaded, workspace, failed),
        }
    }

    fn needs_record(choice: &Choice) -> bool {
        matches!(choice, Choice::Explored { .. })
    }

    /// Chooses the best action instead of a draw that could not be recorded and used for learning.
    fn unrecorded(
        &self,
        context: RequestContext<'_>,
        loaded: &Loaded,
        workspace: &mut Workspace,
        drawn: Choice,
    ) -> Result<Choice, Rejection> {
        let RequestContext { engine, id, .. } = context;
        let deadline = Deadline::new(None, None);
        let count = Self::reasons(&drawn).len();
        let best =
            evaluate::evaluate(engine, loaded, workspace, id, &deadline, Instant::now(), |row, memory| {
                let BundleMemory { eval, eligible, .. } = memory;
                let out = loaded.bundle.select_greedy(row, eligible, &deadline, eval)?;
                Ok((out, reasons_of(loaded, row, out.index, count, eval, &deadline)?))
            });
        match best {
            Ok((out, reasons)) => {
                let reason = unavailable(engine.log.as_ref());
                Ok(Choice::Greedy { out, reply: self.only(out, loaded), reason, reasons })
            }
            Err(failed) => self.fixed(context, loaded, workspace, failed),
        }
    }

    fn fallback(choice: &Choice) -> Option<Reason> {
        match choice {
            Choice::Explored { instead, .. } => *instead,
            Choice::Greedy { reason, .. } | Choice::Static { reason, .. } => Some(*reason),
        }
    }

    fn outcome<'a>(
        choice: &'a Choice,
        loaded: &'a Loaded,
        memory: &'a BundleMemory,
        recorded: bool,
    ) -> Outcome<'a> {
        let SelectOut { index, propensity, expected_reward, .. } = choice.out();
        let pmf = match choice {
            _ if !recorded => Pmf::Omitted,
            Choice::Explored { pmf, .. } => Pmf::Policy(pmf.as_deref().unwrap_or(memory.eval.pmf())),
            Choice::Greedy { .. } | Choice::Static { .. } => {
                Pmf::Only { index, actions: loaded.actions.len() }
            }
        };
        let requested = memory.ruled.as_ref().map(|_| &memory.requested);
        let eligible = requested.filter(|_| !recorded).unwrap_or(&memory.eligible);
        Outcome::Action {
            eligible: Some(eligible).filter(|eligible| !eligible.is_full()),
            requested: requested.filter(|requested| !requested.is_full()),
            pmf,
            index,
            action: loaded.actions.get(index).map_or("", |action| &action.id),
            propensity,
            expected_reward,
        }
    }

    fn reasons(choice: &Choice) -> &[Contribution] {
        match choice {
            Choice::Explored { reasons, .. } | Choice::Greedy { reasons, .. } => {
                reasons.as_deref().unwrap_or_default()
            }
            Choice::Static { .. } => &[],
        }
    }

    fn ruled<'a>(_: &'a Choice, memory: &'a BundleMemory) -> Option<&'a Ruled> {
        memory.ruled.as_ref()
    }

    fn faulted(choice: &Choice) -> FunctionSet {
        choice.out().faulted
    }

    fn answer(
        &self,
        mut choice: Choice,
        memory: &BundleMemory,
        lane: &ActiveLane,
        timings: Timings,
        defaulted: Option<Defaulted>,
        logged: bool,
    ) -> Selected {
        let fallback = Self::fallback(&choice);
        let SelectOut { index, propensity, expected_reward, faulted } = choice.out();
        let faulted = with_rules(faulted, memory.ruled.as_ref());
        let reasons = match &mut choice {
            Choice::Explored { reasons, .. } | Choice::Greedy { reasons, .. } => reasons.take(),
            Choice::Static { .. } => None,
        };
        let (Choice::Explored { reply, .. } | Choice::Greedy { reply, .. } | Choice::Static { reply, .. }) =
            choice;
        Selected {
            source: Arc::clone(&lane.source),
            index: index as u32,
            propensity,
            expected_reward,
            passed: [self.passed.score, self.passed.decision]
                .map(|name| !name.is_empty() && lane.loaded.bundle.schema().index_of(name).is_some()),
            pmf: reply,
            logged,
            fallback,
            timings,
            defaulted,
            faulted: FaultedFunctions::of(&lane.loaded.shape, faulted),
            reasons: GivenReasons::of(&lane.loaded, reasons, self.query.reasons),
            rules: GivenRules::of(&lane.loaded, memory.ruled.clone()),
        }
    }
}

/// Computes the reasons of an action's score.
fn reasons_of(
    loaded: &Loaded,
    row: &[f32],
    action: usize,
    count: usize,
    eval: &mut EvalScratch,
    deadline: &Deadline<'_>,
) -> Result<Reasons, EvalError> {
    if count == 0 {
        return Ok(None);
    }
    match loaded.bundle.explain_action(row, action, deadline, eval) {
        Ok(()) => Ok(Some(eval.reasons(count).as_slice().into())),
        // The action is chosen in time, so it is answered without reasons.
        Err(EvalError::OutOfTime(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

// === impl Selection ===

impl<F: Features> Selection<'_, F> {
    /// Returns the configured action, because the model cannot answer.
    fn fixed(
        &self,
        context: RequestContext<'_>,
        loaded: &Loaded,
        workspace: &mut Workspace,
        failed: Failed,
    ) -> Result<Choice, Rejection> {
        let (row, memory, _) = workspace.parts(loaded);
        let (out, reason) = decide::static_action(context, loaded, row, &memory.eligible, failed)?;
        Ok(Choice::Static { out, reply: self.only(out, loaded), reason })
    }

    /// Returns the probabilities of an action with propensity 1, if the request asks for them.
    fn only(&self, out: SelectOut, loaded: &Loaded) -> Option<Arc<[f32]>> {
        let actions = loaded.actions.len();
        self.include_pmf.then(|| float32(Pmf::Only { index: out.index, actions }, loaded))
    }
}

fn float32(pmf: Pmf<'_>, loaded: &Loaded) -> Arc<[f32]> {
    let mut to: Vec<f32> = Vec::with_capacity(loaded.actions.len());
    pmf.extend(&mut to, |p| p as f32);
    to.into()
}

// === impl Choice ===

impl Choice {
    fn out(&self) -> SelectOut {
        match self {
            Choice::Explored { out, .. } | Choice::Greedy { out, .. } | Choice::Static { out, .. } => *out,
        }
    }
}
