//! One test for each trap of the library that the driver has to keep away from its users.

use crate::sim::{
    APPEND, APPEND_ANSWER, CONFIRM, CONFIRMED, Faults, HEARTBEAT, PRE_VOTE, READ_ASK, SNAPSHOT, STEP, Sim,
    VOTE, id,
};
use bytes::Bytes;
use std::time::Duration;
use tidelock_base::{LogIndex, Mono, ReplicaId, Term};
use tidelock_replica::{
    CommittedKind, EntryKind, Failure, FrameAddress, Group, HardState, LogEntry, LogPosition, MemberChange,
    Members, OfferError, PeerState, Persist, ProposeError, ReadOutcome, ReadToken, Ready, Role, Start,
    StartError, StepError, TransferError,
};

/// Commits one entry and lets everyone apply it.
fn settle(sim: &mut Sim, n: u64) {
    let index = sim.propose(n, "settle");
    sim.run_until("settled", |sim| {
        sim.replicas
            .values()
            .all(|r| r.group.is_none() || r.machine.at.index >= index)
    });
}

fn answer(sim: &Sim, token: ReadToken) -> Option<ReadOutcome> {
    sim.answers.get(&token).copied()
}

/// Trap 1: an old acknowledgement must not release a fresh read at a leader that was replaced meanwhile.
#[test]
fn a_fresh_read_is_not_released_by_an_old_acknowledgement() {
    let mut sim = Sim::led(3);
    settle(&mut sim, 1);
    // A read at the leader is confirmed by replica 2; the confirmation of replica 3 stays on the way.
    sim.set_cut(2, 1, true);
    let first = sim.read(id(1));
    sim.pump(id(1));
    for flight in sim.catch(CONFIRM, 1, 3) {
        sim.hand(flight);
    }
    let mut old = sim.catch(CONFIRMED, 3, 1);
    assert_eq!(old.len(), 1);
    let late = sim.catch(READ_ASK, 2, 1);
    assert!(late.is_empty());
    let copy = |f: &crate::sim::Flight| crate::sim::Flight {
        at: f.at,
        from: f.from,
        to: f.to,
        frame: f.frame.clone(),
    };
    let kept = copy(&old[0]);
    sim.hand(old.remove(0));
    assert!(matches!(answer(&sim, first), Some(ReadOutcome::At(_))));

    // The leader is cut off before it can notice, another is elected and commits.
    sim.set_cut(1, 2, true);
    sim.set_cut(1, 3, true);
    let paused = sim.replica(1).group.take();
    sim.run_until("another leader", |sim| sim.leader().is_some());
    let new = sim.leader().expect("just seen");
    settle(&mut sim, new.0);

    // The old leader wakes, takes a fresh read, and then gets the old acknowledgement: nothing may be released.
    sim.replica(1).group = paused;
    sim.cut.clear();
    let fresh = sim.read(id(1));
    sim.pump(id(1));
    sim.hand(kept);
    assert_eq!(answer(&sim, fresh), None);
    sim.run_until("the read has ended", |sim| sim.answers.contains_key(&fresh));
}

/// A read at a follower is answered by one round trip with three voters, and never by an answer to an earlier life.
#[test]
fn an_answer_to_an_earlier_life_is_not_taken() {
    let mut sim = Sim::led(3);
    settle(&mut sim, 1);
    sim.read(id(2));
    sim.pump(id(2));
    for ask in sim.catch(READ_ASK, 2, 1) {
        sim.hand(ask);
    }
    assert!(sim.catch(CONFIRM, 1, 3).is_empty(), "the request itself confirms");
    let grants = sim.catch(12, 1, 2);
    assert_eq!(grants.len(), 1);
    sim.crash(id(2));
    settle(&mut sim, 1);
    sim.restart(id(2)).expect("nothing was lost");
    sim.run_until("a leader is known", |sim| sim.peek(2).leader().is_some());
    let token = sim.read(id(2));
    sim.pump(id(2));
    sim.catch(READ_ASK, 2, 1);
    for grant in grants {
        sim.hand(grant);
    }
    assert_eq!(answer(&sim, token), None);
    sim.run_until("asked again under a new identifier", |sim| {
        sim.answers.contains_key(&token)
    });
    assert!(matches!(answer(&sim, token), Some(ReadOutcome::At(_))));
}

/// Trap 2: reads before the first commit of a term, or without a leader, are not lost in silence.
#[test]
fn reads_wait_for_the_first_commit_of_a_term_and_end_without_a_leader() {
    let mut sim = Sim::new(2, 3, Faults::default());
    let dropped = sim.read(id(3));
    sim.pump(id(3));
    assert_eq!(answer(&sim, dropped), Some(ReadOutcome::Dropped));

    let now = sim.now;
    assert!(sim.group(1).campaign(now));
    sim.run_until("replica 1 leads", |sim| sim.peek(1).is_leader());
    assert!(!sim.peek(1).has_committed_in_term());
    let waiting = sim.read(id(1));
    sim.pump(id(1));
    assert_eq!(answer(&sim, waiting), None);
    sim.run_until("committed in its term", |sim| sim.peek(1).has_committed_in_term());
    let start = sim.peek(1).commit();
    sim.run_until("the read has ended", |sim| sim.answers.contains_key(&waiting));
    assert_eq!(answer(&sim, waiting), Some(ReadOutcome::At(start)));
}

/// Five voters need a round; the requesting voter counts.
#[test]
fn a_read_with_five_voters_asks_the_missing_ones() {
    let mut sim = Sim::led(5);
    settle(&mut sim, 1);
    sim.set_cut(1, 4, true);
    sim.set_cut(1, 5, true);
    let token = sim.read(id(2));
    sim.run_until("the read has ended", |sim| sim.answers.contains_key(&token));
    assert!(matches!(answer(&sim, token), Some(ReadOutcome::At(_))));
    sim.set_cut(1, 3, true);
    let token = sim.read(id(1));
    sim.run_until("the leader steps down", |sim| !sim.peek(1).is_leader());
    sim.pump(id(1));
    assert_eq!(
        answer(&sim, token),
        Some(ReadOutcome::Dropped),
        "two of five confirm nothing"
    );
}

/// Trap 3: a new replica begins with a snapshot, not with changes of members that it cannot replay.
#[test]
fn a_new_replica_is_filled_by_a_snapshot_and_follows_a_swap() {
    let mut sim = Sim::led(3);
    settle(&mut sim, 1);
    let now = sim.now;
    sim.group(1)
        .change_members(now, &MemberChange::AddLearner(id(4)), b"")
        .expect("nothing is pending");
    sim.add(id(4), Start::join());
    assert!(sim.peek(4).members().0.is_empty());
    sim.run_until("filled", |sim| sim.peek(4).members().0.contains(id(4)));
    let filled = |ready: &Ready| ready.snapshot.restored.is_some();
    assert!(
        sim.replicas[&id(4)].log.iter().any(filled),
        "the log before the snapshot is not replayed"
    );
    let now = sim.now;
    let swap = MemberChange::Swap {
        promote: vec![id(4)],
        remove: vec![id(3)],
    };
    sim.group(1)
        .change_members(now, &swap, b"swap")
        .expect("nothing is pending");
    let members = Members::of_voters(&[id(1), id(2), id(4)]);
    sim.run_until("swapped everywhere", |sim| {
        [1, 2, 4].iter().all(|n| sim.peek(*n).members().0 == &members)
    });
    settle_members(&mut sim, &[1, 2, 4]);
    sim.crash(id(4));
    sim.restart(id(4)).expect("a filled replica starts from its disk");
    assert_eq!(sim.peek(4).members().0, &members);
}

fn settle_members(sim: &mut Sim, members: &[u64]) {
    let index = sim.propose(members[0], "settle");
    sim.run_until("settled", |sim| {
        members
            .iter()
            .all(|n| sim.replicas[&id(*n)].machine.at.index >= index)
    });
}

/// Trap 4: the entry that leaves a joint configuration goes out at once, not with the next heartbeat.
#[test]
fn a_joint_configuration_is_left_without_a_tick() {
    let mut sim = Sim::led(3);
    let now = sim.now;
    sim.group(1)
        .change_members(now, &MemberChange::AddLearner(id(4)), b"")
        .expect("nothing is pending");
    sim.add(id(4), Start::join());
    sim.run_until("filled", |sim| sim.peek(4).members().0.contains(id(4)));
    settle(&mut sim, 1);
    sim.run(40);
    let now = sim.now;
    let swap = MemberChange::Swap {
        promote: vec![id(4)],
        remove: vec![id(3)],
    };
    sim.group(1)
        .change_members(now, &swap, b"swap")
        .expect("nothing is pending");
    sim.run_until("the leader is joint", |sim| sim.peek(1).members().0.is_joint());
    let appends: Vec<_> = sim
        .replica(1)
        .log
        .iter()
        .rev()
        .take(3)
        .flat_map(|ready| ready.send.clone())
        .collect();
    let to: Vec<_> = appends
        .iter()
        .filter(|out| out.frame[0][1] == APPEND)
        .map(|out| out.to)
        .collect();
    assert!(to.contains(&id(2)) && to.contains(&id(4)), "sent to {to:?}");
}

/// Trap 5: a leader does not remove itself, and one that applies its own removal stops leading.
#[test]
fn a_leader_that_is_removed_stops_leading() {
    let mut sim = Sim::led(3);
    settle(&mut sim, 1);
    let now = sim.now;
    let refused = sim
        .group(1)
        .change_members(now, &MemberChange::Remove(id(1)), b"");
    assert_eq!(refused, Err(ProposeError::TransferFirst));

    // Replica 2 gets its own removal and then leadership, without having heard that the removal is committed.
    sim.group(1)
        .change_members(now, &MemberChange::Remove(id(2)), b"")
        .expect("nothing is pending");
    sim.pump(id(1));
    for append in sim.catch(APPEND, 1, 2) {
        sim.hand(append);
    }
    sim.catch(APPEND, 1, 3);
    sim.set_cut(1, 3, true);
    sim.group(1).transfer(now, id(2)).expect("replica 2 is a voter");
    for _ in 0..200 {
        sim.catch(APPEND, 1, 2);
        sim.catch(HEARTBEAT, 1, 2);
        if sim.peek(2).is_leader() {
            break;
        }
        sim.step();
    }
    assert!(sim.peek(2).is_leader());
    sim.set_cut(1, 3, false);
    sim.run_until("removed", |sim| sim.peek(2).is_removed());
    assert!(!sim.peek(2).is_leader());
    let last = sim
        .replica(2)
        .log
        .iter()
        .rev()
        .find_map(|ready| ready.role)
        .expect("its role changed");
    assert_eq!(last.role, Role::Removed);
    sim.run_until("another leader", |sim| {
        sim.leader().is_some_and(|leader| leader != id(2))
    });
    let refused = sim.group(2).propose(Mono(0), Bytes::from_static(b"x"));
    assert!(matches!(refused, Err(ProposeError::NotLeader { .. })));
    sim.run_until("nothing is left to wait for", |sim| {
        sim.peek(2).next_deadline().is_none()
    });
}

/// A removal is committed by the vote of the one that goes. It knows of that, the one that stays does not and crashes:
/// to lead again it needs the vote of the one that has gone.
#[test]
fn one_that_was_removed_votes_for_those_that_do_not_know_yet() {
    for restarts in [false, true] {
        let mut sim = Sim::led(2);
        settle(&mut sim, 1);
        let now = sim.now;
        sim.group(1)
            .change_members(now, &MemberChange::Remove(id(2)), b"")
            .expect("nothing is pending");
        sim.run_until("removed", |sim| sim.peek(2).is_removed());
        let last = sim.peek(1).last_index();
        sim.restart(id(1)).expect("its log is whole");
        assert!(sim.peek(1).last_index() >= last);
        if restarts {
            sim.restart(id(2)).expect("its log is whole");
        }
        sim.run_until("a leader", |sim| sim.peek(1).is_leader());
    }
}

/// Trap 6: a change that cannot be made now is refused; it does not become an empty entry.
#[test]
fn a_second_change_is_refused_while_one_is_pending() {
    let mut sim = Sim::led(3);
    settle(&mut sim, 1);
    let now = sim.now;
    let index = sim
        .group(1)
        .change_members(now, &MemberChange::AddLearner(id(4)), b"one")
        .expect("none pending");
    let refused = sim
        .group(1)
        .change_members(now, &MemberChange::AddLearner(id(5)), b"two");
    assert_eq!(refused, Err(ProposeError::ChangePending));
    assert_eq!(sim.peek(1).last_index(), index);
    settle(&mut sim, 1);
    let change = sim
        .replica(1)
        .log
        .iter()
        .flat_map(|r| &r.committed)
        .find(|entry| entry.index == index)
        .cloned();
    let (change, context) = (MemberChange::AddLearner(id(4)), change.expect("committed").kind);
    let CommittedKind::Members {
        change: seen,
        context,
    } = context
    else {
        panic!("not a change")
    };
    assert_eq!((seen, context), (change, Bytes::from_static(b"one")));
    let refused = sim
        .group(1)
        .change_members(now, &MemberChange::Promote(id(3)), b"");
    assert!(matches!(refused, Err(ProposeError::InvalidChange(_))));
}

/// Traps 7 and 12: inputs between a `Ready` and its report are fine, and one report covers all before it.
#[test]
fn one_report_covers_every_ready_before_it_and_frames_wait_for_it() {
    let mut sim = Sim::led(3);
    settle(&mut sim, 1);
    sim.hung.insert(id(2));
    sim.propose(1, "one");
    sim.run(3);
    sim.propose(1, "two");
    sim.run(3);
    assert_eq!(
        sim.replica(2)
            .log
            .iter()
            .filter(|ready| ready.sync)
            .rev()
            .take(2)
            .count(),
        2
    );
    let posted = |sim: &Sim| {
        sim.net
            .iter()
            .filter(|f| f.kind() == APPEND_ANSWER && f.from == id(2))
            .count()
    };
    sim.catch(APPEND_ANSWER, 2, 1);
    sim.run(3);
    assert_eq!(posted(&sim), 0, "nothing is acknowledged before it is synced");
    let number = sim.replica(2).log.last().expect("it has worked").number;
    sim.group(2).persisted(number);
    sim.pump(id(2));
    assert!(posted(&sim) >= 2);
    assert_eq!(sim.peek(2).persisted_index(), sim.peek(2).last_index());
}

/// A vote is durable before it leaves.
#[test]
fn a_vote_is_held_until_it_is_synced() {
    let mut sim = Sim::new(4, 3, Faults::default());
    sim.hung.insert(id(2));
    sim.set_cut(1, 3, true);
    let now = sim.now;
    assert!(sim.group(1).campaign(now));
    sim.run(30);
    assert!(!sim.peek(1).is_leader());
    let voted = sim.replica(2).log.iter().flat_map(|ready| &ready.persist).any(
        |record| matches!(record, Persist::HardState(hard) if hard.vote == id(1) && hard.term == Term(2)),
    );
    assert!(voted, "the vote was cast but not sent");
    sim.hung.clear();
    sim.run_until("elected", |sim| sim.peek(1).is_leader());
}

/// Trap 9: a late tick counts once.
#[test]
fn missed_ticks_are_dropped() {
    let mut sim = Sim::led(3);
    let term = sim.peek(2).term();
    sim.run(1);
    let late = sim.now + Duration::from_secs(60);
    sim.group(2).tick(late);
    let next = sim.peek(2).next_deadline().expect("it goes on");
    let wait = next.since(late);
    assert!(
        (10..=30).contains(&wait.as_millis()),
        "a tick of 20 ms is due in {wait:?}"
    );
    sim.group(2).tick(late + Duration::from_millis(1));
    sim.pump(id(2));
    assert!(sim.catch(PRE_VOTE, 2, 1).is_empty());
    assert_eq!((sim.peek(2).term(), sim.peek(2).leader()), (term, Some(id(1))));
}

/// A sole voter leads at once, needs no ticks, and answers reads by itself.
#[test]
fn a_sole_voter_leads_at_once_and_needs_no_ticks() {
    let mut sim = Sim::led(1);
    assert_eq!(sim.peek(1).next_deadline(), None);
    let index = sim.propose(1, "one");
    sim.run_until("applied", |sim| sim.replicas[&id(1)].machine.at.index == index);
    let token = sim.read(id(1));
    sim.pump(id(1));
    assert_eq!(answer(&sim, token), Some(ReadOutcome::At(index)));
    sim.crash(id(1));
    sim.restart(id(1)).expect("nothing was lost");
    assert!(sim.peek(1).is_leader());
    assert!(sim.net.is_empty());
}

/// Trap 13: a follower refuses proposals instead of forwarding them.
#[test]
fn a_follower_never_forwards_a_proposal() {
    let mut sim = Sim::led(3);
    sim.net.clear();
    let now = sim.now;
    let refused = sim.group(2).propose(now, Bytes::from_static(b"x"));
    assert_eq!(refused, Err(ProposeError::NotLeader { hint: Some(id(1)) }));
    assert_eq!(sim.group(1).propose(now, Bytes::new()), Err(ProposeError::Empty));
    sim.pump(id(2));
    assert!(sim.net.is_empty());
}

/// Trap 14: a leader that knows of more than there is proves a loss, in a heartbeat and at the start.
#[test]
fn a_log_shorter_than_known_stops_the_replica() {
    let mut sim = Sim::led(3);
    settle(&mut sim, 1);
    sim.run(40);
    let start = sim.stored(2);
    let mut lost = start.clone();
    lost.entries.pop();
    let known = lost.hard.commit.max(start.last_index());
    lost.hard.commit = known;
    let config = sim.config(id(2), 9);
    let refused = Group::new(config.clone(), lost.clone(), sim.now).map(|_| ());
    assert_eq!(
        refused,
        Err(StartError::Lost {
            known,
            last: lost.last_index()
        })
    );

    // The same loss, unknown to the replica itself.
    lost.hard.commit = lost.base.index;
    lost.applied = lost.base.index;
    let group = Group::new(config, lost.clone(), sim.now).expect("the loss cannot be seen");
    sim.replica(2).group = Some(group);
    sim.net.clear();
    sim.run_until("a heartbeat", |sim| {
        sim.net.iter().any(|f| f.kind() == HEARTBEAT && f.to == id(2))
    });
    let heartbeat = sim.catch(HEARTBEAT, 1, 2).remove(0);
    let (now, last) = (sim.now, lost.last_index());
    let stopped = sim.group(2).step(now, id(1), &heartbeat.frame);
    assert_eq!(stopped, Err(StepError::ProofOfLoss { commit: known, last }));
    assert_eq!(sim.peek(2).failure(), Some(Failure::Lost));
    assert_eq!(sim.group(2).take_ready(), None);
    assert_eq!(
        sim.group(2).step(now, id(1), &heartbeat.frame),
        Err(StepError::Failed)
    );
}

/// Trap 15: frames for or from another replica are refused, and acknowledgements of what was never sent.
#[test]
fn frames_of_others_are_refused() {
    let mut sim = Sim::led(3);
    sim.net.clear();
    sim.propose(1, "one");
    sim.run_until("acknowledged", |sim| {
        sim.net
            .iter()
            .any(|f| f.kind() == APPEND_ANSWER && f.from == id(2))
    });
    let answer = sim.catch(APPEND_ANSWER, 2, 1).remove(0);
    let now = sim.now;
    let address = FrameAddress::of(&answer.frame).expect("a frame");
    assert_eq!((address.from, address.to), (id(2), id(1)));
    assert_eq!(
        sim.group(1).step(now, id(3), &answer.frame),
        Err(StepError::Address)
    );
    assert_eq!(
        sim.group(3).step(now, id(2), &answer.frame),
        Err(StepError::Address)
    );
    let with = |at: usize, value: u64| {
        let mut frame = answer.frame.to_vec();
        frame[at..at + 8].copy_from_slice(&value.to_le_bytes());
        Bytes::from(frame)
    };
    assert_eq!(
        sim.group(1).step(now, id(2), &with(8, 99)),
        Err(StepError::Address)
    );
    let unsent = StepError::Invalid("acknowledges what was never sent");
    assert_eq!(sim.group(1).step(now, id(2), &with(40, 1_000_000)), Err(unsent));
    assert_eq!(sim.group(1).step(now, id(2), &answer.frame), Ok(()));
}

/// Trap 16: a leader whose disk hangs hands over, and a hanging disk does not campaign.
#[test]
fn a_hanging_disk_neither_leads_nor_campaigns() {
    let mut sim = Sim::led(3);
    settle(&mut sim, 1);
    sim.hung.insert(id(1));
    sim.propose(1, "stuck");
    sim.run_until("handed over", |sim| {
        sim.leader().is_some_and(|leader| leader != id(1))
    });
    let leader = sim.leader().expect("just seen");
    sim.run(80);
    for other in [1, 2, 3].into_iter().filter(|other| *other != leader.0) {
        sim.set_cut(leader.0, other, true);
    }
    sim.catch(VOTE, 1, 2);
    let campaigned = |sim: &Sim| {
        sim.replicas[&id(1)]
            .log
            .iter()
            .filter_map(|r| r.role)
            .last()
            .map(|r| r.role)
    };
    for _ in 0..200 {
        sim.step();
        assert_ne!(campaigned(&sim), Some(Role::Candidate));
    }
}

/// Trap 17: proposals during a transfer are refused and may be made again; so are those beyond the limit.
#[test]
fn proposals_during_a_transfer_or_over_the_limit_are_refused() {
    let mut sim = Sim::led(3);
    settle(&mut sim, 1);
    let now = sim.now;
    assert_eq!(sim.group(1).transfer(now, id(9)), Err(TransferError::NotVoter));
    assert_eq!(sim.group(2).transfer(now, id(3)), Err(TransferError::NotLeader));
    sim.group(1)
        .transfer(now, id(2))
        .expect("replica 2 is a reachable voter");
    let last = sim.peek(1).last_index();
    assert_eq!(
        sim.group(1).propose(now, Bytes::from_static(b"x")),
        Err(ProposeError::Transferring)
    );
    assert_eq!(sim.peek(1).last_index(), last);
    sim.run_until("transferred", |sim| sim.peek(2).is_leader());

    let mut sim = Sim::new(1, 1, Faults::default());
    sim.limits.uncommitted_bytes_max = 1000;
    sim.limits.append_bytes_max = 500;
    sim.add(id(1), Start::found(&[id(1)]));
    let now = sim.now;
    let large = Bytes::from(vec![1; 5000]);
    sim.group(1)
        .propose(now, large.clone())
        .expect("alone it is admitted");
    assert_eq!(sim.group(1).propose(now, large), Err(ProposeError::Overloaded));
}

/// Trap 18: unapplied entries stay in memory; the library reads them all before it campaigns.
#[test]
fn unapplied_entries_stay_resident_for_a_campaign() {
    let mut sim = Sim::led(3);
    sim.limits.cache_bytes = 0;
    sim.idle.insert(id(2));
    for n in 0..50 {
        sim.propose(1, &format!("entry {n}"));
        sim.run(1);
    }
    sim.run(60);
    assert!(sim.peek(2).applied_index() < sim.peek(2).commit());
    sim.group(2).compact(LogIndex(u64::MAX));
    let now = sim.now;
    sim.group(1)
        .transfer(now, id(2))
        .expect("replica 2 is a reachable voter");
    sim.run_until("transferred", |sim| sim.peek(2).is_leader());
    sim.idle.clear();
    settle(&mut sim, 2);
}

/// A replica over its budget of unapplied entries drops appends, and goes on when it has caught up.
#[test]
fn appends_are_dropped_while_too_much_is_unapplied() {
    let mut sim = Sim::led(3);
    sim.crash(id(2));
    sim.limits.unapplied_bytes_max = 5_000;
    sim.restart(id(2)).expect("nothing was lost");
    sim.idle.insert(id(2));
    for n in 0..100 {
        sim.propose(1, &format!("{n:>200}"));
        sim.run(1);
    }
    sim.run(20);
    assert!(sim.peek(2).dropped_appends() > 0);
    assert!(sim.peek(2).resident_bytes() < 30_000);
    assert_eq!(sim.peek(2).leader(), Some(id(1)), "heartbeats still pass");
    sim.idle.clear();
    settle(&mut sim, 1);
}

/// A manifest that is lost, or an install that fails, is noticed; the snapshot is offered again.
#[test]
fn a_lost_or_failed_snapshot_is_offered_again() {
    let mut sim = Sim::led(3);
    sim.crash(id(3));
    for n in 0..60 {
        sim.propose(1, &format!("{n:>200}"));
        sim.run(1);
    }
    sim.run(20);
    assert!(sim.peek(1).base_index() > sim.stored(3).last_index());
    sim.restart(id(3)).expect("nothing was lost");
    sim.run_until("a manifest leaves", |sim| {
        sim.net.iter().any(|f| f.kind() == SNAPSHOT)
    });
    assert_eq!(sim.catch(SNAPSHOT, 1, 3).len(), 1);
    let state = |sim: &Sim| {
        sim.peek(1)
            .progress()
            .iter()
            .find(|p| p.replica == id(3))
            .map(|p| p.state)
    };
    assert_eq!(state(&sim), Some(PeerState::Snapshot));
    sim.run_until("another manifest leaves", |sim| {
        sim.net.iter().any(|f| f.kind() == SNAPSHOT)
    });
    sim.faults.failed_install = 1000;
    sim.run(100);
    assert!(sim.peek(3).last_index() < sim.peek(1).base_index());
    sim.faults.failed_install = 0;
    settle(&mut sim, 1);
}

/// A snapshot is offered only where the follower can go on from it.
#[test]
fn useless_snapshots_are_not_offered() {
    let mut sim = Sim::led(3);
    for n in 0..60 {
        sim.propose(1, &format!("{n:>200}"));
        sim.run(1);
    }
    settle(&mut sim, 1);
    let members = sim.peek(1).members().0.clone();
    let at = sim.replicas[&id(1)].machine.at;
    let offer = |sim: &mut Sim, n: u64, to: u64, at: LogPosition, members: &Members| {
        sim.group(n).offer_snapshot(id(to), at, members, Bytes::new())
    };
    let others = Members::of_voters(&[id(1), id(2)]);
    assert_eq!(offer(&mut sim, 2, 3, at, &members), Err(OfferError::NotLeader));
    assert_eq!(offer(&mut sim, 1, 3, at, &others), Err(OfferError::NotMember));
    assert_eq!(offer(&mut sim, 1, 9, at, &members), Err(OfferError::NotMember));
    let old = LogPosition {
        index: LogIndex(2),
        term: at.term,
    };
    assert_eq!(offer(&mut sim, 1, 3, old, &members), Err(OfferError::TooOld));
    let new = LogPosition {
        index: at.index.next(),
        term: at.term,
    };
    assert_eq!(
        offer(&mut sim, 1, 3, new, &members),
        Err(OfferError::NotOfThisLog)
    );
}

/// Entries whose term was not synced with them raise the term; the vote in it is open.
#[test]
fn a_term_is_completed_from_the_entries() {
    let mut start = Start::found(&[id(1), id(2), id(3)]);
    let data = Bytes::from_static(b"x");
    let entry = LogEntry {
        index: LogIndex(2),
        term: Term(5),
        kind: EntryKind::Normal,
        data,
    };
    start.entries.push(entry.clone());
    start.hard = HardState {
        term: Term(4),
        vote: id(3),
        commit: LogIndex(1),
    };
    let sim = Sim::new(1, 1, Faults::default());
    let mut group = Group::new(sim.config(id(1), 1), start.clone(), Mono(0)).expect("consistent");
    assert_eq!(group.term(), Term(5));
    assert!(!group.campaign(Mono(0)), "a running group is not disturbed");
    let ready = group.take_ready();
    assert!(ready.is_none_or(|ready| ready.persist.is_empty() && ready.send.is_empty()));

    let gap = Start {
        applied: LogIndex(1),
        base: LogPosition {
            index: LogIndex(9),
            term: Term(1),
        },
        ..start.clone()
    };
    let gap = Start {
        entries: Vec::new(),
        members_at: LogIndex(9),
        ..gap
    };
    let refused = Group::new(sim.config(id(1), 1), gap, Mono(0)).map(|_| ());
    assert!(matches!(refused, Err(StartError::Gap { .. })), "{refused:?}");
    let disorder = Start {
        entries: vec![entry.clone(), entry],
        ..start.clone()
    };
    let refused = Group::new(sim.config(id(1), 1), disorder, Mono(0)).map(|_| ());
    assert_eq!(refused, Err(StartError::Disorder { index: LogIndex(3) }));
    let removed = Group::new(sim.config(id(8), 1), start, Mono(0)).map(|group| group.is_removed());
    assert_eq!(removed, Ok(true));
}

/// Whatever a peer sends, the node lives: most of it is refused, and what breaks the library stops only this group.
#[test]
fn damaged_frames_never_unwind() {
    let mut sim = Sim::led(3);
    let mut frames = Vec::new();
    for n in 0..20 {
        sim.propose(1, &format!("{n:>50}"));
        sim.read(id(2));
        sim.run(2);
        frames.extend(
            sim.net
                .iter()
                .map(|flight| (flight.from, flight.to, flight.frame.clone())),
        );
    }
    assert!(frames.len() > 50);
    let start = sim.stored(2);
    for (n, (from, to, frame)) in frames.iter().enumerate() {
        let mut group =
            Group::new(sim.config(*to, 50), start_of(&sim, *to, &start), sim.now).expect("starts");
        for at in 0..frame.len().min(80) {
            let mut damaged = frame.to_vec();
            damaged[at] ^= 1 << (n % 8);
            let _ = group.step(sim.now, *from, &Bytes::from(damaged));
            while group.take_ready().is_some() {}
            if group.failure() == Some(Failure::Lost) {
                group =
                    Group::new(sim.config(*to, 50), start_of(&sim, *to, &start), sim.now).expect("starts");
            }
            assert_eq!(group.failure(), None, "frame {n} damaged at {at}");
        }
    }
}

fn start_of(sim: &Sim, replica: ReplicaId, default: &Start) -> Start {
    if replica == id(2) {
        default.clone()
    } else {
        sim.stored(replica.0)
    }
}

/// A follower learns of the commit index from the answer to its read, not only from the next heartbeat.
#[test]
fn an_answer_to_a_read_carries_the_commit_index() {
    let mut sim = Sim::led(3);
    settle(&mut sim, 1);
    sim.run(40);
    let index = sim.propose(1, "one");
    sim.run_until("committed at the leader", |sim| sim.peek(1).commit() == index);
    assert!(sim.peek(2).commit() < index);
    let token = sim.read(id(2));
    for _ in 0..8 {
        sim.step();
        sim.catch(HEARTBEAT, 1, 2);
    }
    assert_eq!(answer(&sim, token), Some(ReadOutcome::At(index)));
    assert_eq!(sim.replicas[&id(2)].machine.at.index, index);
    assert!(STEP * 8 <= Duration::from_millis(40));
}
