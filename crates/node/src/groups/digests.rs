//! Replicas of a stream are compared, and one that differs is replaced (promise P1; DESIGN section 9, "Digests").
//!
//! ```text
//!   leader                                   followers
//!     entry DigestCheck at index i ------------>  applied: digest of the state at i
//!       <------------------------------------- Digest{i, d}
//!     more than half of the voters have d?
//!       yes: those with another one --- Verdict{i, d} --> stop, are reported as lost, and replaced
//!            (the leader itself: it hands over to one of the majority, which looks again)
//!       no:  nobody can tell who is right; the log and `/healthz` say so, nothing is rebuilt
//! ```
//! A replica that finds its own state damaged while it applies an entry goes the same way.
//!
//! A check is an entry of some twenty bytes and as many digests as there are replicas, a minute, of streams that have
//! changed. A digest takes a walk over the consumers and their pending messages, not over the stored ones.

use super::{Machine, Slot};
use crate::cell::{Cell, Digest, LaneKind};
use crate::worker::Core;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_base::{GroupId, LogIndex, Mono, NodeId, ReplicaId};
use tidelock_jetstream::command::EntryBuilder;

/// A new leader compares after so long.
const FIRST_AFTER: Duration = Duration::from_secs(5);
/// A stream that has changed is compared again after so long.
const EVERY: Duration = Duration::from_secs(60);
/// Who has not answered by then is away.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// What a replica knows of comparisons.
#[derive(Debug, Default)]
pub(super) struct Digests {
    /// As leader: when the next one is due.
    next_at: Option<Mono>,
    /// The last one that was applied here, and when.
    own: Option<(LogIndex, u64)>,
    applied_at: Mono,
    /// The last answer of each of the others.
    answers: BTreeMap<ReplicaId, (LogIndex, u64)>,
    /// As leader: the last one is judged.
    judged: bool,
    /// As leader: no majority has one digest.
    disputed: bool,
    /// The state of this replica is wrong or damaged, and others have it: it is to be replaced.
    pub(super) is_spoiled: bool,
}

impl Digests {
    /// This replica leads from now on.
    pub(super) fn elected(&mut self, now: Mono) {
        (self.next_at, self.judged) = (Some(now + FIRST_AFTER), true);
    }

    /// The digest that more than half of these voters have at that index.
    fn majority(&self, me: ReplicaId, voters: &[ReplicaId], index: LogIndex) -> Option<u64> {
        let all = || voters.iter().filter_map(|voter| self.of(me, *voter, index));
        let count = |digest: u64| all().filter(|one| *one == digest).count();
        all().find(|digest| 2 * count(*digest) > voters.len())
    }

    /// What a replica has at that index, if it is known.
    fn of(&self, me: ReplicaId, replica: ReplicaId, index: LogIndex) -> Option<u64> {
        let known = if replica == me {
            self.own
        } else {
            self.answers.get(&replica).copied()
        };
        known.filter(|(at, _)| *at == index).map(|(_, digest)| digest)
    }
}

impl Core {
    /// As the leader of a stream: compares the replicas when that is due, and judges when all have answered, or nobody
    /// is waited for any longer.
    pub(super) fn tick_digests(&mut self, group: GroupId) {
        let now = self.now.mono;
        let Some(slot) = self.groups.slots.get_mut(&group).filter(|slot| slot.leads) else {
            return;
        };
        if !slot.is_compared() {
            slot.digests.disputed = false;
            return;
        }
        let (digests, applied) = (&mut slot.digests, slot.raft.applied_index());
        if !digests.judged && now.since(digests.applied_at) >= ANSWER_MAX {
            return self.judge(group);
        }
        if digests.next_at.is_some_and(|at| at > now) {
            return;
        }
        digests.next_at = Some(now + EVERY);
        if digests.disputed || digests.own.is_none_or(|(index, _)| index < applied) {
            self.command(group, super::Waiter::Nobody, EntryBuilder::digest_check);
        }
    }

    /// A comparison is applied here.
    pub(super) fn digest_applied(&mut self, group: GroupId, index: LogIndex, digest: u64) {
        let now = self.now.mono;
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        let digests = &mut slot.digests;
        (digests.own, digests.applied_at, digests.judged) = (Some((index, digest)), now, false);
        digests.answers.retain(|_, (at, _)| *at >= index);
        if slot.leads {
            return self.judge_if_all_answered(group);
        }
        let answer = Digest {
            group,
            replica: slot.me,
            index,
            digest,
            is_verdict: false,
        };
        if let Some(leader) = slot.leader.and_then(|leader| slot.node_of(leader)) {
            self.send_cell(leader, LaneKind::Log, Cell::Digest(answer));
        }
    }

    /// Another replica has said what it has, or the leader what the majority has.
    pub(crate) fn digest_heard(&mut self, heard: &Digest) {
        let Some(slot) = self.groups.slots.get_mut(&heard.group) else {
            return;
        };
        if heard.is_verdict {
            return self.digest_differs(heard);
        }
        let is_listed = slot.replicas.iter().any(|one| one.id == heard.replica);
        if slot.leads && is_listed {
            let answer = (heard.index, heard.digest);
            slot.digests.answers.insert(heard.replica, answer);
            self.judge_if_all_answered(heard.group);
        }
    }

    fn judge_if_all_answered(&mut self, group: GroupId) {
        let Some(slot) = self.slot(group) else { return };
        let (digests, me) = (&slot.digests, slot.me);
        let Some((index, _)) = digests.own.filter(|_| !digests.judged) else {
            return;
        };
        let voters = &slot.raft.members().0.voters;
        if voters.iter().all(|voter| digests.of(me, *voter, index).is_some()) {
            self.judge(group);
        }
    }

    /// Finds out who differs.
    fn judge(&mut self, group: GroupId) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        slot.digests.judged = true;
        let (me, digests) = (slot.me, &slot.digests);
        let Some((index, own)) = digests.own else { return };
        let voters = &slot.raft.members().0.voters;
        let majority = digests.majority(me, voters, index);
        let has = |replica: &ReplicaId, right: u64| digests.of(me, *replica, index).map(|one| one == right);
        let right = majority.unwrap_or(own);
        let listed = slot.replicas.iter().map(|one| (one.id, one.node));
        let wrong: Vec<(ReplicaId, NodeId)> =
            listed.filter(|(id, _)| has(id, right) == Some(false)).collect();
        let fit = voters.iter().find(|voter| has(voter, right) == Some(true));
        let fit = fit.and_then(|voter| slot.node_of(*voter));
        let is_disputed = majority.is_none() && !wrong.is_empty();
        self.digests_disputed(group, index, is_disputed);
        if is_disputed {
            return;
        }
        for (replica, node) in &wrong {
            self.report_difference(group, *replica, *node, index);
        }
        if wrong.iter().any(|(replica, _)| *replica == me) {
            self.step_down(group, fit);
        } else if let Some((replica, node)) = wrong.first() {
            // One at a time: the next check finds the next.
            let verdict = Digest {
                group,
                replica: *replica,
                index,
                digest: right,
                is_verdict: true,
            };
            self.send_cell(*node, LaneKind::Log, Cell::Digest(verdict));
        }
    }

    fn report_difference(&self, group: GroupId, replica: ReplicaId, node: NodeId, index: LogIndex) {
        let Some(slot) = self.slot(group) else { return };
        tracing::error!(
            "JetStream stream '{} > {}': replica {replica} on server {:?} differs from the majority at entry {index}; it is \
             replaced",
            self.account_name(slot.account),
            slot.name,
            self.server_name(node)
        );
    }

    /// No majority has one digest, or that is over.
    fn digests_disputed(&mut self, group: GroupId, index: LogIndex, is_disputed: bool) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        if std::mem::replace(&mut slot.digests.disputed, is_disputed) == is_disputed {
            return;
        }
        let Some(slot) = self.slot(group) else { return };
        let (account, name) = (self.account_name(slot.account), &slot.name);
        if is_disputed {
            tracing::error!(
                "JetStream stream '{account} > {name}': replicas differ at entry {index}, and no majority of them agrees; \
                 nothing is replaced"
            );
        } else {
            tracing::info!("JetStream stream '{account} > {name}': a majority of the replicas agrees again");
        }
    }

    /// The leader says what the majority has at an entry. Who has something else stops here, and is replaced.
    fn digest_differs(&mut self, verdict: &Digest) {
        let Some(slot) = self.groups.slots.get_mut(&verdict.group) else {
            return;
        };
        let is_mine = slot.me == verdict.replica && !slot.leads && slot.failed.is_none();
        let differs = |(index, digest)| index == verdict.index && digest != verdict.digest;
        if !is_mine || !slot.digests.own.is_some_and(differs) {
            return;
        }
        slot.digests.is_spoiled = true;
        let text = format!(
            "it differs from the majority of its replicas at entry {}",
            verdict.index
        );
        self.stop_replica(verdict.group, text);
    }
}

impl Slot {
    /// This replica cannot go on for damage of its own state. Where there are others, it is replaced.
    pub(super) fn spoil(&mut self) {
        self.digests.is_spoiled = self.raft.members().0.voters.iter().any(|voter| *voter != self.me);
    }

    /// Whether no majority of the replicas agrees, as its leader has found.
    pub(crate) const fn is_disputed(&self) -> bool {
        self.digests.disputed
    }

    /// Whether there is anyone to compare with.
    fn is_compared(&self) -> bool {
        let is_stream = matches!(self.machine, Machine::Stream(_));
        is_stream && self.failed.is_none() && self.raft.members().0.voters.len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: ReplicaId = ReplicaId(1);

    fn known(own: u64, others: &[(u64, u64, u64)]) -> Digests {
        Digests {
            own: Some((LogIndex(7), own)),
            answers: others
                .iter()
                .map(|(id, index, digest)| (ReplicaId(*id), (LogIndex(*index), *digest)))
                .collect(),
            ..Digests::default()
        }
    }

    #[test]
    fn more_than_half_of_all_voters_are_a_majority() {
        let three = [ME, ReplicaId(2), ReplicaId(3)];
        for (own, others, majority) in [
            (5, vec![(2, 7, 5), (3, 7, 5)], Some(5)),
            (5, vec![(2, 7, 5), (3, 7, 6)], Some(5)),
            (6, vec![(2, 7, 5), (3, 7, 5)], Some(5)),
            (5, vec![(2, 7, 6), (3, 7, 4)], None),
            (5, vec![(2, 7, 5)], Some(5)),
            (5, vec![(2, 7, 6)], None),
            // Of another comparison.
            (5, vec![(2, 6, 5), (3, 8, 5)], None),
            (5, vec![(2, 6, 6), (3, 7, 5)], Some(5)),
        ] {
            let digests = known(own, &others);
            assert_eq!(
                digests.majority(ME, &three, LogIndex(7)),
                majority,
                "{own} {others:?}"
            );
        }
        assert_eq!(
            known(5, &[(2, 7, 6)]).majority(ME, &three[..2], LogIndex(7)),
            None
        );
        // One that does not vote counts for nothing.
        let digests = known(5, &[(2, 7, 6), (3, 7, 6), (4, 7, 5)]);
        assert_eq!(digests.majority(ME, &three, LogIndex(7)), Some(6));
    }
}
