//! Events for the operator: JSON lines in a bounded ring, which the control plane reads.
//!
//! A request adds an event only if the server itself is at fault.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use scorer_log::Clock;
use serde_json::{Value, json};
use uuid::Uuid;

/// Number of events that are kept until they are read. The oldest are dropped first.
const CAPACITY: usize = 2048;

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Normal operation.
    Info,
    /// Degraded operation.
    Warning,
    /// A failure.
    Error,
}

/// A ring of the newest events.
pub struct Events {
    ring: Mutex<Ring>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Ring {
    lines: VecDeque<String>,
    lost: u64,
}

// === impl Events ===

impl Events {
    /// Creates an empty ring. `clock` gives the times of events.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Events {
        Events { ring: Mutex::default(), clock }
    }

    /// Microseconds since the Unix epoch, by the clock of the events.
    #[must_use]
    pub fn now_us(&self) -> i64 {
        self.clock.unix_us()
    }

    /// Adds one event. `fields` is a JSON object.
    pub fn push(&self, level: Level, event: &str, fields: Value) {
        let mut line = json!({
            "ts": self.clock.unix_us() as f64 / 1e6,
            "level": level.as_str(),
            "event": event,
        });
        if let (Some(line), Value::Object(fields)) = (line.as_object_mut(), fields) {
            line.extend(fields);
        }
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.lines.len() == CAPACITY {
            ring.lines.pop_front();
            ring.lost += 1;
        }
        ring.lines.push_back(line.to_string());
    }

    /// Adds an event for a caught panic, with its message. Returns the event's id, which the caller receives instead of
    /// the message.
    pub fn defect(&self, what: &str, panic: &(dyn Any + Send)) -> String {
        let message = panic
            .downcast_ref::<&str>()
            .map(|message| (*message).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        let id = Uuid::now_v7().to_string();
        self.push(Level::Error, "panic", json!({"id": id, "in": what, "error": message}));
        id
    }

    /// Removes and returns all events since the last call, oldest first.
    #[must_use]
    pub fn take(&self) -> Vec<String> {
        let ring = {
            let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *ring)
        };
        if ring.lost > 0 {
            self.push(Level::Warning, "events_lost", json!({"count": ring.lost}));
        }
        ring.lines.into()
    }
}

// === impl Level ===

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

#[cfg(test)]
mod tests {
    use scorer_log::RealClock;

    use super::*;

    #[test]
    fn keeps_the_newest_and_says_what_was_lost() {
        let events = Events::new(Arc::new(RealClock::default()));
        for number in 0..CAPACITY + 3 {
            events.push(Level::Info, "tick", json!({"number": number}));
        }
        let lines: Vec<Value> =
            events.take().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), CAPACITY);
        assert_eq!((&lines[0]["number"], &lines[0]["level"]), (&json!(3), &json!("info")));
        let lines: Vec<Value> =
            events.take().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["event"], &lines[0]["count"]), (&json!("events_lost"), &json!(3)));
        assert!(events.take().is_empty());
    }

    /// Fault case 36.
    #[test]
    fn one_event_stays_one_line() {
        let events = Events::new(Arc::new(RealClock::default()));
        events.push(Level::Error, "odd", json!({"text": "a\nb\u{1b}[31m\"}"}));
        let lines = events.take();
        assert!(!lines[0].contains('\n') && !lines[0].contains('\u{1b}'), "{}", lines[0]);
        assert_eq!(serde_json::from_str::<Value>(&lines[0]).unwrap()["text"], "a\nb\u{1b}[31m\"}");
    }
}
