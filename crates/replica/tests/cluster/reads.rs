//! Reads at followers: who may grant them, and what becomes of them when something is lost or the leader changes.

use crate::sim::{APPEND, CONFIRM, CONFIRMED, Flight, HEARTBEAT, READ_ASK, READ_GRANT, READ_REFUSE, Sim, id};
use tidelock_base::LogIndex;
use tidelock_replica::{ReadOutcome, ReadToken};

/// Commits one entry; replica `n` leads.
fn commit(sim: &mut Sim, n: u64) -> LogIndex {
    let index = sim.propose(n, "entry");
    sim.run_until("committed", |sim| sim.peek(n).commit() >= index);
    index
}

/// Asks for a read and lets its request leave.
fn read(sim: &mut Sim, n: u64) -> ReadToken {
    let token = sim.read(id(n));
    sim.pump(id(n));
    token
}

fn answer(sim: &Sim, token: ReadToken) -> Option<ReadOutcome> {
    sim.answers.get(&token).copied()
}

/// Hands over all frames of a kind between two replicas; answers how many.
fn pass(sim: &mut Sim, kind: u8, from: u64, to: u64) -> usize {
    let caught = sim.catch(kind, from, to);
    let count = caught.len();
    for flight in caught {
        sim.hand(flight);
    }
    count
}

fn copies(flights: &[Flight]) -> Vec<Flight> {
    let copy = |f: &Flight| Flight {
        at: f.at,
        from: f.from,
        to: f.to,
        frame: f.frame.clone(),
    };
    flights.iter().map(copy).collect()
}

/// Another leader than replica 1, which stands still and knows nothing of it.
fn replaced(sim: &mut Sim, others: &[u64]) -> u64 {
    let old = sim.replica(1).group.take();
    sim.run_until("another leader", |sim| {
        sim.leader().is_some_and(|leader| others.contains(&leader.0))
    });
    let new = sim.leader().expect("just seen").0;
    commit(sim, new);
    sim.replica(1).group = old;
    new
}

#[test]
fn a_read_costs_a_frame_each_way_and_reads_of_a_turn_share_it() {
    let mut sim = Sim::led(3);
    let index = commit(&mut sim, 1);
    let tokens: Vec<_> = (0..3).map(|_| sim.read(id(3))).collect();
    sim.pump(id(3));
    assert_eq!(pass(&mut sim, READ_ASK, 3, 1), 1);
    assert!(sim.catch(CONFIRM, 1, 2).is_empty() && sim.catch(CONFIRM, 1, 3).is_empty());
    assert_eq!(pass(&mut sim, READ_GRANT, 1, 3), 1);
    for token in tokens {
        assert_eq!(answer(&sim, token), Some(ReadOutcome::At(index)));
    }
}

/// A read need not wait for the answer to an earlier one, and many reads do not become many frames.
#[test]
fn two_batches_are_out_at_a_time() {
    let mut sim = Sim::led(3);
    commit(&mut sim, 1);
    let first = read(&mut sim, 2);
    let mut asks = sim.catch(READ_ASK, 2, 1);
    let second = read(&mut sim, 2);
    asks.extend(sim.catch(READ_ASK, 2, 1));
    let third = read(&mut sim, 2);
    let fourth = read(&mut sim, 2);
    assert!(sim.catch(READ_ASK, 2, 1).is_empty());
    assert_eq!(asks.len(), 2);
    // The second is answered before the first.
    sim.hand(asks.remove(1));
    pass(&mut sim, READ_GRANT, 1, 2);
    assert_eq!(answer(&sim, first), None);
    assert!(matches!(answer(&sim, second), Some(ReadOutcome::At(_))));
    assert_eq!(pass(&mut sim, READ_ASK, 2, 1), 1, "what came meanwhile, as one");
    pass(&mut sim, READ_GRANT, 1, 2);
    assert!(matches!(answer(&sim, third), Some(ReadOutcome::At(_))));
    assert!(matches!(answer(&sim, fourth), Some(ReadOutcome::At(_))));
    sim.hand(asks.remove(0));
    pass(&mut sim, READ_GRANT, 1, 2);
    assert!(matches!(answer(&sim, first), Some(ReadOutcome::At(_))));
}

/// A lost request or answer costs two ticks; the answer to the lost one that comes late is nobody's.
#[test]
fn what_is_lost_is_asked_again_under_another_identifier() {
    let mut sim = Sim::led(3);
    commit(&mut sim, 1);
    let token = read(&mut sim, 2);
    assert_eq!(pass(&mut sim, READ_ASK, 2, 1), 1);
    let late = sim.catch(READ_GRANT, 1, 2);
    assert_eq!(late.len(), 1);
    let index = commit(&mut sim, 1);
    let mut again = Vec::new();
    for _ in 0..20 {
        again.extend(sim.catch(READ_ASK, 2, 1));
        if !again.is_empty() {
            break;
        }
        sim.step();
    }
    assert_eq!(again.len(), 1);
    for grant in late {
        sim.hand(grant);
    }
    assert_eq!(answer(&sim, token), None, "an answer to what was given up");
    for ask in copies(&again).into_iter().chain(again) {
        sim.hand(ask);
    }
    assert!(pass(&mut sim, READ_GRANT, 1, 2) >= 1);
    assert_eq!(answer(&sim, token), Some(ReadOutcome::At(index)));
}

/// The leader was replaced while the request was on its way: its grant, if it still gives one, is not taken.
#[test]
fn the_grant_of_a_leader_that_was_replaced_is_not_taken() {
    let mut sim = Sim::led(3);
    commit(&mut sim, 1);
    let token = read(&mut sim, 2);
    let asks = sim.catch(READ_ASK, 2, 1);
    assert_eq!(asks.len(), 1);
    let new = replaced(&mut sim, &[2, 3]);
    // It has waited for an answer in the old term, as long as it followed.
    assert!(new == 2 || answer(&sim, token) == Some(ReadOutcome::Dropped));
    let before = answer(&sim, token);
    let fresh = read(&mut sim, 2);
    sim.set_cut(2, 3, true);
    for ask in asks {
        sim.hand(ask);
    }
    let grants = sim.catch(READ_GRANT, 1, 2);
    assert_eq!(grants.len(), 1, "it does not know better");
    for grant in grants {
        sim.hand(grant);
    }
    assert_eq!(answer(&sim, token), before);
    assert_eq!(answer(&sim, fresh), None);
    sim.set_cut(2, 3, false);
    sim.run_until("the fresh read has ended", |sim| sim.answers.contains_key(&fresh));
}

/// A leader and a follower that have both slept through an election of five are no quorum, however well they
/// understand each other.
#[test]
fn a_follower_of_a_stale_leader_waits_for_the_others() {
    let mut sim = Sim::led(5);
    commit(&mut sim, 1);
    let follower = sim.replica(2).group.take();
    replaced(&mut sim, &[3, 4, 5]);
    sim.replica(2).group = follower;
    sim.net.clear();
    let token = read(&mut sim, 2);
    assert_eq!(pass(&mut sim, READ_ASK, 2, 1), 1);
    assert!(sim.catch(READ_GRANT, 1, 2).is_empty());
    assert!(sim.catch(CONFIRM, 1, 2).is_empty(), "its request has said it");
    for n in 3..=5 {
        assert_eq!(pass(&mut sim, CONFIRM, 1, n), 1);
        assert!(sim.catch(CONFIRMED, n, 1).is_empty(), "they are in a later term");
    }
    assert_eq!(answer(&sim, token), None);
    sim.run_until("it has ended", |sim| sim.answers.contains_key(&token));
}

/// With five voters the follower's request and one more voter are enough, and another read of the same round that has
/// not got its own quorum does not hold it up.
#[test]
fn a_batch_is_granted_when_it_has_its_own_quorum() {
    let mut sim = Sim::led(5);
    let index = commit(&mut sim, 1);
    sim.run(40);
    sim.net.clear();
    let at_follower = read(&mut sim, 2);
    let at_leader = sim.read(id(1));
    pass(&mut sim, READ_ASK, 2, 1);
    // The leader's own read wants the word of replica 2, too: the request may have left before that read came.
    assert_eq!(pass(&mut sim, CONFIRM, 1, 3), 1);
    assert_eq!(pass(&mut sim, CONFIRMED, 3, 1), 1);
    assert_eq!(pass(&mut sim, READ_GRANT, 1, 2), 1);
    assert_eq!(answer(&sim, at_follower), Some(ReadOutcome::At(index)));
    assert_eq!(answer(&sim, at_leader), None, "two of five");
    assert_eq!(pass(&mut sim, CONFIRM, 1, 2), 1);
    assert_eq!(pass(&mut sim, CONFIRMED, 2, 1), 1);
    assert_eq!(answer(&sim, at_leader), Some(ReadOutcome::At(index)));
}

/// A confirmation of a later round confirms the earlier ones, not the other way round.
#[test]
fn a_later_confirmation_is_one_of_what_began_before() {
    let mut sim = Sim::led(3);
    commit(&mut sim, 1);
    let first = read(&mut sim, 1);
    let old = sim.catch(CONFIRM, 1, 2);
    let second = read(&mut sim, 1);
    let new = sim.catch(CONFIRM, 1, 2);
    sim.catch(CONFIRM, 1, 3);
    assert_eq!((old.len(), new.len()), (1, 1), "two rounds are out");
    for flight in copies(&old) {
        sim.hand(flight);
    }
    pass(&mut sim, CONFIRMED, 2, 1);
    assert!(matches!(answer(&sim, first), Some(ReadOutcome::At(_))));
    assert_eq!(answer(&sim, second), None);
    let third = read(&mut sim, 1);
    sim.catch(CONFIRM, 1, 3);
    pass(&mut sim, CONFIRM, 1, 2);
    pass(&mut sim, CONFIRMED, 2, 1);
    assert!(matches!(answer(&sim, second), Some(ReadOutcome::At(_))));
    assert!(matches!(answer(&sim, third), Some(ReadOutcome::At(_))));
}

/// A leader that has not committed in its term yet keeps the request, and answers when it has.
#[test]
fn a_new_leader_answers_when_it_has_committed() {
    let mut sim = Sim::led(3);
    commit(&mut sim, 1);
    sim.crash(id(1));
    sim.run_until("another leader", |sim| sim.leader().is_some());
    let new = sim.leader().expect("just seen").0;
    let other = 5 - new;
    sim.run_until("it is known", |sim| sim.peek(other).leader() == Some(id(new)));
    let early = !sim.peek(new).has_committed_in_term();
    let token = read(&mut sim, other);
    pass(&mut sim, READ_ASK, other, new);
    assert!(!early || sim.catch(READ_GRANT, new, other).is_empty());
    sim.run_until("the read has ended", |sim| sim.answers.contains_key(&token));
    assert!(matches!(answer(&sim, token), Some(ReadOutcome::At(_))));
    assert!(sim.peek(new).has_committed_in_term());
}

/// A replica that does not lead says so at once, and the read ends instead of waiting for ticks.
#[test]
fn who_does_not_lead_refuses() {
    let mut sim = Sim::led(3);
    commit(&mut sim, 1);
    let token = read(&mut sim, 2);
    let mut asks = sim.catch(READ_ASK, 2, 1);
    let now = sim.now;
    sim.group(1).transfer(now, id(3)).expect("a voter");
    sim.set_cut(2, 3, true);
    sim.set_cut(1, 2, true);
    while !sim.peek(3).is_leader() {
        sim.step();
        let again = sim.catch(READ_ASK, 2, 1);
        if !again.is_empty() {
            asks = again;
        }
    }
    sim.set_cut(1, 2, false);
    for ask in asks {
        sim.hand(ask);
    }
    assert_eq!(pass(&mut sim, READ_REFUSE, 1, 2), 1);
    assert_eq!(answer(&sim, token), Some(ReadOutcome::Dropped));
}

/// The index of a read may be ahead of what a follower has; the entries come, and the commit index with them.
#[test]
fn a_follower_that_lags_is_told_an_index_ahead_of_it() {
    let mut sim = Sim::led(3);
    commit(&mut sim, 1);
    sim.run(40);
    let index = sim.propose(1, "not at replica 3 yet");
    sim.pump(id(1));
    let held = sim.catch(APPEND, 1, 3);
    assert_eq!(held.len(), 1);
    for _ in 0..6 {
        sim.step();
        sim.catch(HEARTBEAT, 1, 3);
    }
    assert_eq!(sim.peek(1).commit(), index);
    let token = read(&mut sim, 3);
    pass(&mut sim, READ_ASK, 3, 1);
    pass(&mut sim, READ_GRANT, 1, 3);
    assert_eq!(answer(&sim, token), Some(ReadOutcome::At(index)));
    assert!(sim.replicas[&id(3)].machine.at.index < index);
    for append in held {
        sim.hand(append);
    }
    for _ in 0..4 {
        sim.step();
        sim.catch(HEARTBEAT, 1, 3);
        sim.catch(APPEND, 1, 3);
    }
    assert_eq!(
        sim.replicas[&id(3)].machine.at.index,
        index,
        "the answer has told that it is committed"
    );
}
