//! What replicas must never do, looked at between turns: two leaders of one term (Election Safety), different states at
//! the same applied index (State Machine Safety; promise P1), an applied index beyond the commit index, a replica that
//! has stopped. Raft: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", figure 3.

use std::collections::BTreeMap;
use tidelock_base::{GroupId, LogIndex, ReplicaId, Term};
use tidelock_node::{ReplicaView, SURVIVOR_TERMS};

/// What was seen so far.
#[derive(Debug, Default)]
pub(crate) struct Replicas {
    leaders: BTreeMap<(GroupId, Term), ReplicaId>,
    digests: BTreeMap<(GroupId, LogIndex), (u64, ReplicaId)>,
    /// The greatest term of each group.
    terms: BTreeMap<GroupId, Term>,
}

impl Replicas {
    /// Looks at replicas; answers what is wrong with them.
    pub(crate) fn look(&mut self, views: &[ReplicaView]) -> Vec<String> {
        let mut found = Vec::new();
        for view in views {
            let name = &view.name;
            if let Some(why) = &view.failed {
                found.push(format!("replica {} of {name} has stopped: {why}", view.replica));
            }
            self.look_for_rescue(view);
            if view.is_held && view.is_leader {
                found.push(format!(
                    "replica {} of {name} leads without its files",
                    view.replica
                ));
            }
            if view.is_leader {
                let leader = *self
                    .leaders
                    .entry((view.group, view.term))
                    .or_insert(view.replica);
                if leader != view.replica {
                    found.push(format!(
                        "{name} has two leaders in term {}: {leader} and {}",
                        view.term, view.replica
                    ));
                }
            }
            if view.applied > view.commit {
                found.push(format!(
                    "replica {} of {name} has applied {} of {}",
                    view.replica, view.applied, view.commit
                ));
            }
            if let Some(digest) = view.digest {
                let at = self
                    .digests
                    .entry((view.group, view.applied))
                    .or_insert((digest, view.replica));
                if at.0 != digest {
                    found.push(format!(
                        "replicas {} and {} of {name} differ at index {}",
                        at.1, view.replica, view.applied
                    ));
                }
            }
        }
        found
    }

    /// A stream in memory that goes on from a minority may have lost what the others had applied, and have something else
    /// at these indexes from now on.
    fn look_for_rescue(&mut self, view: &ReplicaView) {
        let greatest = self.terms.entry(view.group).or_insert(view.term);
        if view.term.value() >= greatest.value() + SURVIVOR_TERMS {
            self.digests.retain(|(group, _), _| *group != view.group);
        }
        *greatest = view.term.max(*greatest);
    }

    /// Whether each group has so many replicas, all of which vote as all of them know.
    pub(crate) fn are_spread(views: &[ReplicaView], replicas: usize) -> bool {
        let mut groups: BTreeMap<GroupId, usize> = BTreeMap::new();
        for view in views {
            *groups.entry(view.group).or_default() += 1;
        }
        let whole = |view: &ReplicaView| view.voters.len() == replicas && view.learners.is_empty();
        groups.values().all(|count| *count == replicas) && views.iter().all(whole)
    }

    /// Whether all replicas of each group, of which there are so many, have come to the same point.
    pub(crate) fn agree(views: &[ReplicaView], replicas: usize) -> Result<(), String> {
        let mut groups: BTreeMap<GroupId, Vec<&ReplicaView>> = BTreeMap::new();
        for view in views {
            groups.entry(view.group).or_default().push(view);
        }
        for all in groups.values() {
            let Some(first) = all.first() else { continue };
            let points: Vec<(LogIndex, Option<u64>)> =
                all.iter().map(|view| (view.applied, view.digest)).collect();
            if all.len() != replicas || points.iter().any(|point| *point != (first.applied, first.digest)) {
                return Err(format!("replicas of {} are at {points:?}", first.name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_base::StreamSeq;

    fn view(replica: u64, term: u64, leads: bool, applied: u64, digest: u64) -> ReplicaView {
        ReplicaView {
            group: GroupId(7),
            replica: ReplicaId(replica),
            name: "S".into(),
            term: Term(term),
            is_leader: leads,
            commit: LogIndex(applied),
            floor: LogIndex(0),
            applied: LogIndex(applied),
            digest: Some(digest),
            messages: 0,
            last_seq: StreamSeq(0),
            identity: String::new(),
            copied: Vec::new(),
            voters: Vec::new(),
            learners: Vec::new(),
            listed: Vec::new(),
            failed: None,
            is_held: false,
        }
    }

    #[test]
    fn each_kind_of_wrong_is_found() {
        let mut seen = Replicas::default();
        assert_eq!(
            seen.look(&[view(1, 2, true, 5, 50), view(2, 2, false, 4, 40)]),
            Vec::<String>::new()
        );
        assert_eq!(seen.look(&[view(2, 3, true, 5, 50)]), Vec::<String>::new());
        assert_eq!(seen.look(&[view(3, 3, true, 5, 50)]).len(), 1, "two leaders");
        assert_eq!(seen.look(&[view(3, 3, false, 5, 51)]).len(), 1, "digest");
        let early = ReplicaView {
            commit: LogIndex(4),
            ..view(1, 4, false, 5, 50)
        };
        assert_eq!(seen.look(&[early]).len(), 1, "applied");
        let failed = ReplicaView {
            failed: Some("x".into()),
            ..view(1, 4, false, 5, 50)
        };
        assert_eq!(seen.look(&[failed]).len(), 1, "failed");
    }

    #[test]
    fn a_group_is_spread_when_all_its_replicas_vote() {
        let ids = [ReplicaId(1), ReplicaId(2)];
        let whole = |replica| ReplicaView {
            voters: ids.to_vec(),
            ..view(replica, 2, false, 5, 50)
        };
        assert!(Replicas::are_spread(&[whole(1), whole(2)], 2));
        assert!(!Replicas::are_spread(&[whole(1)], 2));
        let follows = ReplicaView {
            voters: vec![ids[0]],
            learners: vec![ids[1]],
            ..whole(2)
        };
        assert!(!Replicas::are_spread(&[whole(1), follows], 2));
    }

    #[test]
    fn agreement_wants_every_replica_at_the_same_point() {
        let (one, two, three) = (
            view(1, 2, true, 5, 50),
            view(2, 2, false, 5, 50),
            view(3, 2, false, 4, 40),
        );
        assert!(Replicas::agree(&[one.clone(), two.clone()], 2).is_ok());
        assert!(Replicas::agree(&[one.clone(), two.clone()], 3).is_err());
        assert!(Replicas::agree(&[one, two, three], 3).is_err());
    }
}
