//! The request path as a whole. The simulator tests the behaviour over time and under traffic.

use super::*;

const NOW: Nanos = Nanos::from_secs(100);

fn point(mode: Mode) -> CheckpointSettings {
    CheckpointSettings {
        mode,
        fallback: true,
        row_cost: Nanos::from_millis(1),
        ..CheckpointSettings::new(Nanos::from_millis(10))
    }
}

fn admission(workers: usize, points: Vec<CheckpointSettings>) -> Admission {
    let admission = Admission::new(Settings::new(workers, points)).unwrap();
    for at in 0..admission.checkpoints.count() {
        admission.expect(at, 1, admission.checkpoints[at].settings.row_cost);
    }
    admission
}

fn ask(checkpoint: usize, rows: u32) -> Ask {
    Ask { checkpoint, bundle: 1, rows, arrived: NOW, timeout: None, caller: 1, cohort: 0, then: None }
}

fn admit(admission: &Admission, now: Nanos, ask: &Ask) -> Result<Ticket, Shed> {
    match admission.ask(now, ask) {
        Verdict::Admit(ticket) => Ok(ticket),
        Verdict::Shed(shed) => Err(shed),
    }
}

fn is_at_rest(admission: &Admission) -> bool {
    let snapshot = admission.snapshot();
    snapshot.queued == [0; 3]
        && snapshot.queued_work == [Nanos::ZERO; 3]
        && snapshot.running == 0
        && snapshot.waiting == 0
}

#[test]
fn settings_are_checked() {
    let with = |change: fn(&mut Settings)| {
        let mut settings = Settings::new(2, vec![point(Mode::Enforce)]);
        change(&mut settings);
        Admission::new(settings).err()
    };
    assert_eq!(with(|_| ()), None);
    assert_eq!(with(|settings| settings.workers = 0), Some(SettingsError::NoWorkers));
    assert_eq!(with(|settings| settings.checkpoints.clear()), Some(SettingsError::Checkpoints(0)));
    assert_eq!(
        with(|settings| settings.checkpoints[0].tier = 4),
        Some(SettingsError::Tier { index: 0, tier: 4 })
    );
    let error = with(|settings| settings.checkpoints[0].batch_p99 = Some(Nanos::from_micros(150)));
    let expected = SettingsError::Budget { index: 0, field: "batch_p99", given: 150_000, margin: 150_000 };
    assert_eq!(error, Some(expected));
}

#[test]
fn an_added_checkpoint_is_admitted_like_one_from_the_start() {
    let points = vec![point(Mode::Observe), point(Mode::Enforce)];
    let (whole, grown) = (admission(1, points.clone()), admission(1, points[..1].to_vec()));
    let wrong = CheckpointSettings { tier: 4, ..point(Mode::Enforce) };
    assert_eq!(grown.add(wrong), Err(SettingsError::Tier { index: 1, tier: 4 }));
    assert_eq!(grown.add(points[1].clone()), Ok(1));
    grown.expect(1, 1, points[1].row_cost);
    for admission in [&whole, &grown] {
        let tickets: Vec<Ticket> = (0..50).map_while(|_| admit(admission, NOW, &ask(1, 1)).ok()).collect();
        assert_eq!(tickets.len(), 9);
        // A batch is evaluated in chunks that the shortest SLA allows.
        assert_eq!(tickets[0].chunk_rows(), 1);
        for ticket in tickets {
            admission.cancel(ticket);
        }
        admission.tick(NOW);
        assert!(is_at_rest(admission));
        assert_eq!(admission.counted(1).shed().map(|(_, count)| count).sum::<u64>(), 1);
    }
}

#[test]
fn as_many_are_let_in_as_can_be_on_time() {
    let admission = admission(1, vec![point(Mode::Enforce)]);
    let tickets: Vec<Ticket> = (0..50).map_while(|_| admit(&admission, NOW, &ask(0, 1)).ok()).collect();
    // 10 ms less 150 µs for the reply: the ninth ends at 9 ms.
    assert_eq!(tickets.len(), 9);
    let shed = admit(&admission, NOW, &ask(0, 1)).unwrap_err();
    assert_eq!(shed, Shed { reason: ShedReason::Wait, instead: Instead::Fallback, retry_after: None });
    for ticket in tickets {
        admission.cancel(ticket);
    }
    assert!(is_at_rest(&admission));
}

#[test]
fn a_request_with_two_evaluations_is_admitted_once_for_both() {
    let admission = admission(1, vec![point(Mode::Enforce), point(Mode::Enforce)]);
    let both = Ask { then: Some(Then { checkpoint: 1, bundle: 1 }), ..ask(0, 1) };
    let mut tickets: Vec<Ticket> = (0..50).map_while(|_| admit(&admission, NOW, &both).ok()).collect();
    // Two SLAs of 10 ms less 150 µs for the reply, and 2 ms of work each.
    assert_eq!(tickets.len(), 9);
    let shed = admit(&admission, NOW, &both).unwrap_err();
    assert_eq!((shed.reason, shed.instead), (ShedReason::Wait, Instead::Fallback));
    let counted = [0, 1].map(|at| admission.counted(at).shed().map(|(_, count)| count).sum::<u64>());
    assert_eq!(counted, [2, 2], "the request is counted at both checkpoints");

    let mut first = tickets.pop().unwrap();
    let work = |admission: &Admission| admission.snapshot().queued_work[0];
    let before = work(&admission);
    let mut second = admission.split(&mut first).unwrap();
    assert_eq!(work(&admission), before, "the work of the request does not change");
    assert_eq!(admission.split(&mut first), None);
    assert_eq!(first.deadline(), second.deadline());
    assert_eq!(first.deadline(), NOW.plus(Nanos::from_millis(20)));
    let later = NOW.plus(Nanos::from_millis(12));
    assert_eq!(admission.start(NOW, &mut first), Start::Run);
    let served = Served { exec: Nanos::from_millis(3), outcome: Outcome::Model };
    admission.finish(later, first, served);
    assert_eq!(admission.start(later, &mut second), Start::Run, "after the SLA of one, within that of both");
    admission.finish(later, second, Served { exec: Nanos::from_millis(5), ..served });
    for ticket in tickets {
        admission.cancel(ticket);
    }
    assert!(is_at_rest(&admission));
    admission.tick(later);
    let expected = [0, 1].map(|at| admission.expected(at, 1, 1).unwrap().0);
    assert!(expected[0] < Nanos::from_millis(4) && expected[1] > Nanos::from_millis(4), "{expected:?}");
    assert_eq!([0, 1].map(|at| admission.counted(at).missed), [0, 0]);
}

#[test]
fn two_evaluations_are_shed_only_if_both_checkpoints_enforce() {
    let points = vec![point(Mode::Enforce), CheckpointSettings { tier: 3, ..point(Mode::Observe) }];
    let admission = admission(1, points);
    let both = Ask { then: Some(Then { checkpoint: 1, bundle: 1 }), ..ask(0, 1) };
    let tickets: Vec<Ticket> = (0..50).map(|_| admit(&admission, NOW, &both).unwrap()).collect();
    assert!(tickets.iter().all(|ticket| ticket.queue() == Queue::First), "the more important tier counts");
    assert!(tickets.last().unwrap().would_shed().is_some());
    for ticket in tickets {
        admission.cancel(ticket);
    }
    assert!(is_at_rest(&admission));
}

#[test]
fn a_dearer_bundle_is_not_shed_for_what_the_one_before_it_cost() {
    // An SLA of ten seconds, and requests of 5 µs: 256 of them are the limit, which is 1.3 ms of work.
    let patient = CheckpointSettings {
        row_cost: Nanos::from_micros(5),
        ..CheckpointSettings { mode: Mode::Enforce, ..CheckpointSettings::new(Nanos::from_secs(10)) }
    };
    let admission = admission(2, vec![patient]);
    let mut now = NOW;
    for _ in 0..20 {
        for _ in 0..100 {
            let asked = Ask { arrived: now, ..ask(0, 1) };
            let mut ticket = admit(&admission, now, &asked).unwrap();
            assert_eq!(admission.start(now, &mut ticket), Start::Run);
            let exec = Nanos::from_micros(5);
            admission.finish(now.plus(exec), ticket, Served { exec, outcome: Outcome::Model });
        }
        now = now.plus(WINDOW);
        admission.tick(now);
    }
    assert!(admission.snapshot().limit < Nanos::from_millis(2), "{:?}", admission.snapshot().limit);
    admission.expect(0, 2, Nanos::from_millis(4));
    let dear = Ask { bundle: 2, arrived: now, ..ask(0, 1) };
    let tickets: Vec<Ticket> = (0..1000).map_while(|_| admit(&admission, now, &dear).ok()).collect();
    // A twentieth of the SLA for each of two workers.
    assert_eq!(tickets.len(), 250);
    assert_eq!(admit(&admission, now, &dear).unwrap_err().reason, ShedReason::Limit);
    for ticket in tickets {
        admission.cancel(ticket);
    }
    assert!(is_at_rest(&admission));
}

/// Fault case 10.
#[test]
fn a_batch_costs_its_rows() {
    let batch = CheckpointSettings { row_cost: Nanos::from_micros(20), ..point(Mode::Enforce) };
    let patient = CheckpointSettings { batch_p99: Some(Nanos::from_millis(100)), ..batch.clone() };
    let admission = admission(1, vec![batch, patient]);
    assert_eq!(admit(&admission, NOW, &ask(0, 1_000)).unwrap_err().reason, ShedReason::Deadline);
    let mut ticket = admit(&admission, NOW, &ask(1, 1_000)).unwrap();
    assert_eq!((ticket.queue(), ticket.place(), ticket.chunk_rows()), (Queue::Last, Place::Pool, 25));
    assert_eq!(admission.start(NOW, &mut ticket), Start::Run);
    // Single rows wait for one chunk of the batch and not for all of it.
    let single = admit(&admission, NOW, &ask(0, 1)).unwrap();
    assert_eq!((single.queue(), single.place()), (Queue::First, Place::Inline));
    let before = admission.snapshot().queued_work[2];
    admission.progress(&mut ticket, 500);
    let after = admission.snapshot().queued_work[2];
    assert!((before.since(after).0 as f64 / 10e6 - 1.0).abs() < 0.01, "{before:?} {after:?}");
    admission.finish(NOW, ticket, Served { exec: Nanos::from_millis(20), outcome: Outcome::Model });
    admission.cancel(single);
    assert!(is_at_rest(&admission));
}

#[test]
fn what_cannot_be_on_time_any_more_is_not_started_and_holds_nothing() {
    let admission = admission(1, vec![point(Mode::Enforce)]);
    let mut ticket = admit(&admission, NOW, &ask(0, 1)).unwrap();
    let last = ticket.finish_by().minus(Nanos::from_millis(1));
    assert_eq!(admission.start(last.plus(Nanos(1)), &mut ticket), Start::TooLate);
    assert!(is_at_rest(&admission));
    assert_eq!(admission.start(NOW, &mut ticket), Start::TooLate, "and stays so");
    admission.cancel(ticket);
    assert!(is_at_rest(&admission));
    let mut ticket = admit(&admission, NOW, &ask(0, 1)).unwrap();
    assert_eq!(admission.start(last, &mut ticket), Start::Run);
    assert_eq!(admission.start(ticket.finish_by(), &mut ticket), Start::TooLate, "no further chunk");
    admission.cancel(ticket);
    assert!(is_at_rest(&admission));
}

#[test]
fn the_callers_own_deadline_counts_in_every_mode() {
    for mode in [Mode::Off, Mode::Observe, Mode::Enforce] {
        let admission = admission(1, vec![point(mode)]);
        let hurried = Ask { timeout: Some(Nanos::from_millis(5)), ..ask(0, 1) };
        let ticket = admit(&admission, NOW, &hurried).unwrap();
        assert_eq!(ticket.deadline(), NOW.plus(Nanos::from_millis(5)), "{mode:?}");
        admission.cancel(ticket);
        let late = NOW.plus(Nanos::from_millis(5));
        assert_eq!(admit(&admission, late, &hurried).unwrap_err().reason, ShedReason::Deadline, "{mode:?}");
        let patient = Ask { timeout: Some(Nanos::MAX), ..ask(0, 1) };
        let ticket = admit(&admission, NOW, &patient).unwrap();
        let enforced = NOW.plus(Nanos::from_millis(10));
        assert_eq!(ticket.deadline(), if mode == Mode::Enforce { enforced } else { Nanos::MAX });
        admission.cancel(ticket);
    }
}

#[test]
fn observing_admits_and_counts() {
    let admission = admission(1, vec![point(Mode::Observe)]);
    let tickets: Vec<Ticket> = (0..50).map_while(|_| admit(&admission, NOW, &ask(0, 1)).ok()).collect();
    assert_eq!(tickets.len(), 50);
    let would = tickets.iter().filter(|ticket| ticket.would_shed() == Some(ShedReason::Wait)).count();
    assert_eq!(would, 41);
    let counted = admission.counted(0);
    assert_eq!(counted.would_shed.iter().sum::<u64>(), 41);
    assert_eq!(counted.shed.iter().sum::<u64>(), 0);
    for mut ticket in tickets {
        assert_eq!(admission.start(NOW.plus(Nanos::from_secs(1)), &mut ticket), Start::Run);
        admission.finish(NOW, ticket, Served { exec: Nanos::ZERO, outcome: Outcome::Failed });
    }
    assert!(is_at_rest(&admission));
}

#[test]
fn a_violated_sla_is_counted_whatever_the_mode() {
    let admission = admission(1, vec![point(Mode::Off)]);
    for (after, missed) in [(10, 0), (11, 1)] {
        let mut permit = Permit::new(&admission, admit(&admission, NOW, &ask(0, 1)).unwrap());
        assert_eq!(permit.start(NOW), Start::Run);
        let served = Served { exec: Nanos::from_millis(1), outcome: Outcome::Model };
        permit.finish(NOW.plus(Nanos::from_millis(after)), served);
        assert_eq!(admission.counted(0).missed, missed);
    }
}

#[test]
fn those_who_wait_unread_are_in_the_house() {
    let admission = admission(1, vec![point(Mode::Enforce)]);
    for _ in 0..100 {
        assert_eq!(admission.enter(), Ok(()), "nothing is known before the first window");
    }
    // One window of requests gives the cost of one. Then five make half of 10 ms, and one is for the worker, which
    // is less than the limit.
    admission.cancel(admit(&admission, NOW, &ask(0, 1)).unwrap());
    admission.tick(NOW);
    for left in (0..100).rev() {
        let refused = admission.enter().is_err();
        assert_eq!(refused, left + 1 >= 5, "{left}");
        if !refused {
            admission.left();
        }
        admission.left();
    }
    assert!(is_at_rest(&admission));
}

/// Fault case 7.
#[test]
fn each_tier_fills_its_part_of_the_limit() {
    let points: Vec<_> = (0..3)
        .map(|tier| CheckpointSettings { tier, p99: Nanos::from_secs(1), ..point(Mode::Enforce) })
        .collect();
    let admission = admission(1, points);
    admission.rules.limit.store(20_000_000, std::sync::atomic::Ordering::Relaxed);
    for (checkpoint, all) in [(2, 14), (1, 18), (0, 20)] {
        let mut tickets = Vec::new();
        let shed = loop {
            match admit(&admission, NOW, &ask(checkpoint, 1)) {
                Ok(ticket) => tickets.push(ticket),
                Err(shed) => break shed.reason,
            }
        };
        assert_eq!((tickets.len(), shed), (all, ShedReason::Limit), "of 20 ms, tier {checkpoint}");
        tickets.into_iter().for_each(|ticket| admission.cancel(ticket));
    }
}

/// Every possible end of a request, from four threads at once.
/// Fault case 6.
#[test]
fn a_hundred_thousand_cancelled_requests_leave_nothing_behind() {
    let bulk = CheckpointSettings { batch_p99: Some(Nanos::from_secs(9)), tier: 3, ..point(Mode::Enforce) };
    let admission = admission(2, vec![point(Mode::Enforce), point(Mode::Observe), bulk]);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let admission = &admission;
            scope.spawn(move || {
                let mut held: Vec<Permit<&Admission>> = Vec::new();
                for request in 0..50_000_u64 {
                    let random = (request + thread * 7_919).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                    let now = NOW.plus(Nanos(request * 20_000));
                    let rows = if random.is_multiple_of(5) { 300 } else { 1 };
                    let checkpoint = (random % 3) as usize;
                    let ask = Ask {
                        checkpoint,
                        arrived: now,
                        rows,
                        caller: random % 40,
                        cohort: random << 40,
                        then: None,
                        ..ask(0, 1)
                    };
                    assert!(admission.enter().is_ok());
                    let verdict = admission.ask(now, &ask);
                    admission.left();
                    if let Verdict::Admit(ticket) = verdict {
                        held.push(Permit::new(admission, ticket));
                    }
                    if held.len() > (random % 8) as usize {
                        let mut permit = held.swap_remove((random % held.len() as u64) as usize);
                        match random % 4 {
                            0 => drop(permit),
                            1 => {
                                let _ = permit.start(now);
                                permit.progress(100);
                                drop(permit);
                            }
                            _ => {
                                let _ = permit.start(now);
                                let exec = Nanos(1 + random % 100_000);
                                permit.finish(now, Served { exec, outcome: Outcome::Model });
                            }
                        }
                    }
                    if thread == 0 && request.is_multiple_of(1_000) {
                        admission.tick(now);
                    }
                }
            });
        }
    });
    assert!(is_at_rest(&admission), "{:?}", admission.snapshot());
}
