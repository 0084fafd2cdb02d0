//! Records whether the reply of a recorded decision was delivered.
//!
//! A reply that was not delivered (stream reset, connection lost) leaves a decision in the log that had no effect. A
//! [`DeliveryRecord`] marks it, so that it is not used for training. A retry that receives the same answer from the
//! cache removes the mark.

use std::sync::atomic::Ordering::Relaxed;

use scorer_proto::v1::DeliveryRecord;

use crate::arrival::{Arrival, DecisionMade};
use crate::checkpoint::Checkpoint;
use crate::config::Kind;
use crate::engine::Engine;

// === impl Engine ===

impl Engine {
    /// Marks the decisions of a request, or those of its batch, as undelivered, because the caller was gone before the
    /// reply. An answer from the idempotency cache is not marked.
    pub fn given_up(&self, arrival: &Arrival) {
        for (checkpoint, made) in self.decisions_of(arrival).filter(|(_, made)| !made.replayed) {
            self.counters.undelivered.fetch_add(made.rows.max(1).into(), Relaxed);
            // Batches are not in the idempotency cache, so a retry is recorded again.
            if made.rows == 0 {
                self.set_undelivered(arrival, checkpoint, made, true);
            }
            self.record_delivery(checkpoint, made, false);
        }
    }

    /// Records that the reply was given to the transport. An answer from the idempotency cache removes the mark of its
    /// decision.
    pub fn handed_over(&self, arrival: &Arrival) {
        for (checkpoint, made) in self.decisions_of(arrival) {
            if made.replayed && self.set_undelivered(arrival, checkpoint, made, false) {
                self.record_delivery(checkpoint, made, true);
            }
        }
    }

    fn decisions_of<'a>(
        &'a self,
        arrival: &'a Arrival,
    ) -> impl Iterator<Item = (&'a Checkpoint, &'a DecisionMade)> {
        arrival.steps().filter_map(|step| Some((self.checkpoints.at(step.checkpoint()?), step.decision()?)))
    }

    fn set_undelivered(
        &self,
        arrival: &Arrival,
        checkpoint: &Checkpoint,
        made: &DecisionMade,
        undelivered: bool,
    ) -> bool {
        let (principal, index, id) = (arrival.principal, checkpoint.index, made.id());
        match checkpoint.kind {
            Kind::Score => {
                let cache = &self.remembered.scores;
                cache.set_undelivered(cache.key(principal, index, id), undelivered)
            }
            Kind::Action => {
                let cache = &self.remembered.selections;
                cache.set_undelivered(cache.key(principal, index, id), undelivered)
            }
        }
    }

    fn record_delivery(&self, checkpoint: &Checkpoint, made: &DecisionMade, delivered: bool) {
        let Some(log) = &self.log else { return };
        log.note_delivery(DeliveryRecord {
            checkpoint: checkpoint.name.clone(),
            decision_id: made.id().to_owned(),
            decided_at_us: made.decided_at_us,
            delivered,
            rows: made.rows,
            at_us: self.clock.unix_us(),
        });
    }
}
