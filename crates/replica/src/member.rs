//! Who belongs to a group, how that changes, and how both are written.
//!
//! A change of members is an entry of the log. Its bytes are written and read here; the library's own encoding is
//! never read back, so no parser of it sees stored or received bytes.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState};
use tidelock_base::ReplicaId;

/// Version byte of [`Members::encode`].
const MEMBERS_VERSION: u8 = 1;
/// Upper bound of replicas in one list; more is damage, not a group.
const REPLICAS_MAX: u16 = 1024;

/// The members of a group. Lists are sorted and without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Replicas that vote and count for a quorum.
    pub voters: Vec<ReplicaId>,
    /// Replicas that receive the log without a vote.
    pub learners: Vec<ReplicaId>,
    /// While joint: the voters of the old configuration, a majority of whom is needed too. Empty otherwise.
    pub outgoing: Vec<ReplicaId>,
    /// While joint: voters of the old configuration that become learners at its end.
    pub learners_next: Vec<ReplicaId>,
    /// While joint: the leader leaves the joint configuration by itself.
    pub auto_leave: bool,
}

/// Why bytes are not a list of members, or not a change of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an encoded list or change of members")]
pub struct MembersError;

impl Members {
    /// A group of voters only.
    #[must_use]
    pub fn of_voters(voters: &[ReplicaId]) -> Self {
        Self {
            voters: sorted(voters.iter().copied()),
            ..Self::default()
        }
    }

    /// True if nobody is a member: a replica before its first snapshot.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.voters.is_empty() && self.learners.is_empty()
    }

    /// True while two configurations hold at once (Raft thesis, section 4.3).
    #[must_use]
    pub const fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// True if `replica` votes, in either configuration.
    #[must_use]
    pub fn is_voter(&self, replica: ReplicaId) -> bool {
        self.voters.contains(&replica) || self.outgoing.contains(&replica)
    }

    /// True if `replica` belongs to the group in any way.
    #[must_use]
    pub fn contains(&self, replica: ReplicaId) -> bool {
        self.is_voter(replica) || self.learners.contains(&replica)
    }

    /// Every member, sorted.
    #[must_use]
    pub fn all(&self) -> Vec<ReplicaId> {
        sorted(
            self.voters
                .iter()
                .chain(&self.learners)
                .chain(&self.outgoing)
                .copied(),
        )
    }

    /// Every voter of either configuration, sorted.
    #[must_use]
    pub fn all_voters(&self) -> Vec<ReplicaId> {
        sorted(self.voters.iter().chain(&self.outgoing).copied())
    }

    /// True if `replica` is the only voter and nothing is joint.
    #[must_use]
    pub fn is_sole_voter(&self, replica: ReplicaId) -> bool {
        self.voters.as_slice() == [replica] && !self.is_joint()
    }

    /// True if `replicas` hold a majority of the voters, of both configurations while joint.
    #[must_use]
    pub fn is_quorum(&self, replicas: &[ReplicaId]) -> bool {
        let majority = |voters: &[ReplicaId]| {
            voters.is_empty() || voters.iter().filter(|id| replicas.contains(id)).count() > voters.len() / 2
        };
        !self.voters.is_empty() && majority(&self.voters) && majority(&self.outgoing)
    }

    /// `version u8 | auto_leave u8 |` then voters, learners, outgoing, learners_next as `count u16 | id u64 …`,
    /// little-endian.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(MEMBERS_VERSION);
        out.put_u8(u8::from(self.auto_leave));
        for list in [&self.voters, &self.learners, &self.outgoing, &self.learners_next] {
            put_list(&mut out, list);
        }
        out.freeze()
    }

    /// Reads what [`Members::encode`] wrote.
    ///
    /// # Errors
    /// [`MembersError`] if the bytes are anything else.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, MembersError> {
        if bytes.len() < 2 || bytes.get_u8() != MEMBERS_VERSION {
            return Err(MembersError);
        }
        let auto_leave = match bytes.get_u8() {
            0 => false,
            1 => true,
            _ => return Err(MembersError),
        };
        let mut list = || {
            let ids = take_list(&mut bytes)?;
            let in_order = ids.iter().zip(ids.iter().skip(1)).all(|(a, b)| a < b);
            if in_order { Ok(ids) } else { Err(MembersError) }
        };
        let (voters, learners, outgoing, learners_next) = (list()?, list()?, list()?, list()?);
        let members = Self {
            voters,
            learners,
            outgoing,
            learners_next,
            auto_leave,
        };
        if bytes.is_empty() && members.is_sound() {
            Ok(members)
        } else {
            Err(MembersError)
        }
    }

    /// The library panics on configurations that contradict themselves; these are the rules it asserts.
    fn is_sound(&self) -> bool {
        let learner_votes = self.learners.iter().any(|id| self.is_voter(*id));
        let next_not_outgoing = self.learners_next.iter().any(|id| !self.outgoing.contains(id));
        let next_not_clean = self
            .learners_next
            .iter()
            .any(|id| self.voters.contains(id) || self.learners.contains(id));
        let joint_fields_alone = !self.is_joint() && (self.auto_leave || !self.learners_next.is_empty());
        let voterless = self.voters.is_empty() && (self.is_joint() || !self.learners.is_empty());
        !learner_votes && !next_not_outgoing && !next_not_clean && !joint_fields_alone && !voterless
    }

    pub(crate) fn to_conf_state(&self) -> ConfState {
        let numbers = |list: &[ReplicaId]| list.iter().map(|id| id.value()).collect::<Vec<_>>();
        let mut state = ConfState::default();
        state.set_voters(numbers(&self.voters));
        state.set_learners(numbers(&self.learners));
        state.set_voters_outgoing(numbers(&self.outgoing));
        state.set_learners_next(numbers(&self.learners_next));
        state.auto_leave = self.auto_leave;
        state
    }

    pub(crate) fn from_conf_state(state: &ConfState) -> Self {
        let ids = |list: &[u64]| sorted(list.iter().copied().map(ReplicaId));
        Self {
            voters: ids(state.get_voters()),
            learners: ids(state.get_learners()),
            outgoing: ids(state.get_voters_outgoing()),
            learners_next: ids(state.get_learners_next()),
            auto_leave: state.auto_leave,
        }
    }
}

/// A change of members. New replicas always come in as learners and vote once they have caught up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// A new replica begins to receive the log.
    AddLearner(ReplicaId),
    /// A learner becomes a voter.
    Promote(ReplicaId),
    /// A voter or learner leaves.
    Remove(ReplicaId),
    /// Several learners become voters and several members leave, through a joint configuration that the leader leaves
    /// by itself.
    Swap {
        /// Learners that become voters.
        promote: Vec<ReplicaId>,
        /// Members that leave.
        remove: Vec<ReplicaId>,
    },
    /// The end of a joint configuration. Only ever reported: the leader proposes it by itself.
    Leave,
}

const TAG_LEAVE: u8 = 0;
const TAG_ADD_LEARNER: u8 = 1;
const TAG_PROMOTE: u8 = 2;
const TAG_REMOVE: u8 = 3;
const TAG_SWAP: u8 = 4;

impl MemberChange {
    /// `tag u8 |` id or two lists `| context`. The end of a joint configuration without context is empty.
    pub(crate) fn encode(&self, context: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(32 + context.len());
        match self {
            Self::Leave => out.put_u8(TAG_LEAVE),
            Self::AddLearner(id) => put_tagged(&mut out, TAG_ADD_LEARNER, *id),
            Self::Promote(id) => put_tagged(&mut out, TAG_PROMOTE, *id),
            Self::Remove(id) => put_tagged(&mut out, TAG_REMOVE, *id),
            Self::Swap { promote, remove } => {
                out.put_u8(TAG_SWAP);
                put_list(&mut out, promote);
                put_list(&mut out, remove);
            }
        }
        out.put_slice(context);
        out.freeze()
    }

    /// The change and its context. Empty bytes are what the library itself writes to leave a joint configuration.
    pub(crate) fn decode(data: &Bytes) -> Result<(Self, Bytes), MembersError> {
        let mut rest: &[u8] = data;
        if rest.is_empty() {
            return Ok((Self::Leave, Bytes::new()));
        }
        let change = match rest.get_u8() {
            TAG_LEAVE => Self::Leave,
            TAG_ADD_LEARNER => Self::AddLearner(take_id(&mut rest)?),
            TAG_PROMOTE => Self::Promote(take_id(&mut rest)?),
            TAG_REMOVE => Self::Remove(take_id(&mut rest)?),
            TAG_SWAP => Self::Swap {
                promote: take_list(&mut rest)?,
                remove: take_list(&mut rest)?,
            },
            _ => return Err(MembersError),
        };
        Ok((change, data.slice(data.len() - rest.len()..)))
    }

    /// Why this change makes no sense for `members`, or `None` if the library will accept it.
    pub(crate) fn objection(&self, members: &Members) -> Option<&'static str> {
        match self {
            Self::AddLearner(id) if id.value() == 0 => Some("replica 0 does not exist"),
            Self::AddLearner(id) if members.contains(*id) => Some("the replica is a member already"),
            Self::AddLearner(_) => None,
            Self::Promote(id) if !members.learners.contains(id) => Some("only a learner can be promoted"),
            Self::Promote(_) => None,
            Self::Remove(id) if !members.contains(*id) => Some("the replica is not a member"),
            Self::Remove(id) if members.is_sole_voter(*id) => Some("the last voter cannot leave"),
            Self::Remove(_) => None,
            Self::Swap { promote, remove } => swap_objection(members, promote, remove),
            Self::Leave => Some("a joint configuration is left by the leader itself"),
        }
    }

    /// True if `replica` leaves by this change.
    pub(crate) fn removes(&self, replica: ReplicaId) -> bool {
        match self {
            Self::Remove(id) => *id == replica,
            Self::Swap { remove, .. } => remove.contains(&replica),
            Self::AddLearner(_) | Self::Promote(_) | Self::Leave => false,
        }
    }

    pub(crate) fn to_conf_change(&self) -> ConfChangeV2 {
        let single = |id: &ReplicaId, kind: ConfChangeType| {
            let mut single = ConfChangeSingle {
                node_id: id.value(),
                ..ConfChangeSingle::default()
            };
            single.set_change_type(kind);
            single
        };
        let mut change = ConfChangeV2::default();
        let changes = match self {
            Self::AddLearner(id) => vec![single(id, ConfChangeType::AddLearnerNode)],
            Self::Promote(id) => vec![single(id, ConfChangeType::AddNode)],
            Self::Remove(id) => vec![single(id, ConfChangeType::RemoveNode)],
            Self::Swap { promote, remove } => {
                change.set_transition(ConfChangeTransition::Implicit);
                let added = promote.iter().map(|id| single(id, ConfChangeType::AddNode));
                added
                    .chain(remove.iter().map(|id| single(id, ConfChangeType::RemoveNode)))
                    .collect()
            }
            Self::Leave => Vec::new(),
        };
        change.set_changes(changes.into());
        change
    }
}

fn swap_objection(members: &Members, promote: &[ReplicaId], remove: &[ReplicaId]) -> Option<&'static str> {
    if promote.is_empty() && remove.is_empty() {
        return Some("nothing changes");
    }
    if promote.len() + remove.len() > usize::from(REPLICAS_MAX) {
        return Some("too many replicas at once");
    }
    if promote
        .iter()
        .any(|id| !members.learners.contains(id) || remove.contains(id))
    {
        return Some("only a learner can be promoted");
    }
    if remove.iter().any(|id| !members.contains(*id)) {
        return Some("a replica to remove is not a member");
    }
    if promote.is_empty() && members.voters.iter().all(|id| remove.contains(id)) {
        return Some("the last voter cannot leave");
    }
    None
}

fn sorted(ids: impl Iterator<Item = ReplicaId>) -> Vec<ReplicaId> {
    let mut ids: Vec<_> = ids.collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn put_tagged(out: &mut BytesMut, tag: u8, id: ReplicaId) {
    out.put_u8(tag);
    out.put_u64_le(id.value());
}

fn put_list(out: &mut BytesMut, ids: &[ReplicaId]) {
    let count = u16::try_from(ids.len()).expect("a group has at most 1024 replicas");
    out.put_u16_le(count);
    for id in ids {
        out.put_u64_le(id.value());
    }
}

fn take_id(bytes: &mut &[u8]) -> Result<ReplicaId, MembersError> {
    match bytes.try_get_u64_le() {
        Ok(0) | Err(_) => Err(MembersError),
        Ok(id) => Ok(ReplicaId(id)),
    }
}

fn take_list(bytes: &mut &[u8]) -> Result<Vec<ReplicaId>, MembersError> {
    let count = bytes.try_get_u16_le().map_err(|_| MembersError)?;
    if count > REPLICAS_MAX || bytes.len() < usize::from(count) * 8 {
        return Err(MembersError);
    }
    (0..count).map(|_| take_id(bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(list: &[u64]) -> Vec<ReplicaId> {
        list.iter().copied().map(ReplicaId).collect()
    }

    #[test]
    fn a_joint_quorum_needs_both_majorities() {
        let members = Members {
            voters: ids(&[1, 2, 4]),
            outgoing: ids(&[1, 2, 3]),
            auto_leave: true,
            ..Members::default()
        };
        assert!(members.is_quorum(&ids(&[1, 2])));
        assert!(!members.is_quorum(&ids(&[1, 4])));
        assert!(members.is_quorum(&ids(&[2, 3, 4])));
        assert!(!Members::default().is_quorum(&[]));
    }

    #[test]
    fn objections_are_those_of_the_library() {
        let members = Members {
            learners: ids(&[4]),
            ..Members::of_voters(&ids(&[1, 2, 3]))
        };
        assert!(MemberChange::Promote(ReplicaId(4)).objection(&members).is_none());
        assert!(MemberChange::Promote(ReplicaId(5)).objection(&members).is_some());
        assert!(
            MemberChange::AddLearner(ReplicaId(3))
                .objection(&members)
                .is_some()
        );
        assert!(MemberChange::Remove(ReplicaId(9)).objection(&members).is_some());
        let swap = MemberChange::Swap {
            promote: ids(&[4]),
            remove: ids(&[1, 2, 3]),
        };
        assert!(swap.objection(&members).is_none());
        let empties = MemberChange::Swap {
            promote: vec![],
            remove: ids(&[1, 2, 3]),
        };
        assert!(empties.objection(&members).is_some());
    }

    proptest! {
        #[test]
        fn changes_survive_their_encoding(tag in 0u8..5, a in proptest::collection::vec(1u64.., 0..4),
            b in proptest::collection::vec(1u64.., 0..4), id in 1u64.., context: Vec<u8>) {
            let change = match tag {
                0 => MemberChange::Leave,
                1 => MemberChange::AddLearner(ReplicaId(id)),
                2 => MemberChange::Promote(ReplicaId(id)),
                3 => MemberChange::Remove(ReplicaId(id)),
                _ => MemberChange::Swap { promote: ids(&a), remove: ids(&b) },
            };
            let encoded = change.encode(&context);
            prop_assert_eq!(MemberChange::decode(&encoded), Ok((change, Bytes::from(context))));
        }

        #[test]
        fn members_survive_their_encoding(voters in proptest::collection::btree_set(1u64..9, 1..5),
            learners in proptest::collection::btree_set(9u64..20, 0..3)) {
            let members = Members {
                voters: voters.into_iter().map(ReplicaId).collect(),
                learners: learners.into_iter().map(ReplicaId).collect(),
                ..Members::default()
            };
            prop_assert_eq!(Members::decode(&members.encode()), Ok(members.clone()));
            prop_assert_eq!(Members::from_conf_state(&members.to_conf_state()), members);
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = Members::decode(&bytes);
            let _ = MemberChange::decode(&Bytes::from(bytes));
        }
    }
}
