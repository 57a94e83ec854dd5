//! The group itself: proposals, frames of peers, ticks, leadership.
//!
//! ```text
//!            ┌────────────── no leader heard ──────────────┐
//!            v                                             │
//!  Learner  Follower ──timeout──> Candidate ──votes──> Leader ──removal applied──> Removed
//!     │        ^  ^                    │                   │
//!     └promoted┘  └──────── later term, or another leader ─┘
//! ```
//!
//! The library asserts its invariants by panicking. What can be checked is checked before it is stepped; a panic that
//! comes all the same is caught here and ends this group ([`Failure::Broken`]), not the node.

use crate::config::{GroupConfig, Timers};
use crate::errors::{Failure, ProposeError, StepError, TransferError};
use crate::frame::{FrameError, Head, Kind, Outgoing, from_entry, to_entry};
use crate::log::GroupLog;
use crate::member::{MemberChange, Members};
use crate::reads::{ReadToken, Reads, View};
use crate::ready::{Outstanding, Persist, RoleChange};
use crate::snapshot::Snapshots;
use crate::status::{PeerProgress, PeerState};
use crate::types::{EntryKind, HardState, LogEntry, Start, StartError};
use bytes::Bytes;
use raft::eraftpb::{self, ConfState, Message, MessageType};
use raft::{Config, RaftState, RawNode, ReadOnlyOption, StateRole, Storage};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tidelock_base::{LogIndex, Mono, ReplicaId, Term};

/// One replica of one replicated group. See the crate's page for how it is driven.
pub struct Group {
    pub(crate) config: GroupConfig,
    pub(crate) node: RawNode<GroupLog>,
    /// As of the applied index, and the index of the entry that made them so.
    pub(crate) members: Members,
    pub(crate) members_at: u64,
    /// Changes handed out and not yet applied.
    pub(crate) changes: VecDeque<(u64, MemberChange)>,
    /// Highest index handed out as committed.
    pub(crate) delivered: u64,
    pub(crate) number: u64,
    pub(crate) outstanding: VecDeque<Outstanding>,
    /// Frames that may leave with the next `Ready`.
    pub(crate) outbox: Vec<Outgoing>,
    pub(crate) persist: Vec<Persist>,
    /// As last handed out for persistence.
    pub(crate) hard: HardState,
    pub(crate) reads: Reads,
    pub(crate) snapshots: Snapshots,
    pub(crate) role: RoleChange,
    pub(crate) removed: bool,
    pub(crate) failure: Option<Failure>,
    /// The term and index of the furthest commit that a leader has told of, and when one was told of last.
    pub(crate) told: (u64, u64),
    pub(crate) told_at: Mono,
    pub(crate) now: Mono,
    tick_at: Mono,
    timeout: Timeout,
    pub(crate) dropped_appends: u64,
}

/// The election timeout in ticks, and the term and role it was drawn for.
struct Timeout {
    min: u32,
    span: u32,
    ticks: u32,
    drawn_for: (u64, u8),
}

impl Timeout {
    fn new(timers: &Timers) -> Self {
        let ticks = |duration| u32::try_from(timers.ticks(duration)).unwrap_or(u32::MAX / 4);
        let (min, max) = (ticks(timers.election_min), ticks(timers.election_max));
        Self {
            min,
            span: max.saturating_sub(min) + 1,
            ticks: 0,
            drawn_for: (u64::MAX, 0),
        }
    }
}

impl Group {
    /// A replica that continues from `start`. A sole voter leads at once; all others wait for a leader.
    ///
    /// # Errors
    /// [`StartError`] if the stored state has lost something or contradicts itself.
    pub fn new(config: GroupConfig, mut start: Start, now: Mono) -> Result<Self, StartError> {
        start.check()?;
        let blank = start.is_blank();
        let hard = start.hard;
        let (applied, members_at) = (start.applied.value(), start.members_at.value());
        let library = library_config(&config, applied);
        let changes = changes_applied_later(&start)?;
        let log = open_log(&config, start)?;
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&library, log, &logger).map_err(|e| StartError::Config(e.to_string()))?;
        let mut group = Self {
            members: Members::from_conf_state(&node.raft.prs().conf().to_conf_state()),
            members_at,
            changes: VecDeque::new(),
            delivered: applied,
            number: 0,
            outstanding: VecDeque::new(),
            outbox: Vec::new(),
            persist: Vec::new(),
            hard,
            reads: Reads::new(config.life),
            snapshots: Snapshots::default(),
            role: RoleChange::default(),
            removed: false,
            failure: None,
            told: (0, 0),
            told_at: Mono(0),
            now,
            tick_at: next_tick(&config, now),
            timeout: Timeout::new(&config.timers),
            dropped_appends: 0,
            config,
            node,
        };
        for (index, change) in changes {
            group.apply_change(index, &change);
        }
        group.persist.clear();
        // One that was removed still votes: those that stay may not know of the removal and need its vote.
        group.removed = !blank && !group.members.contains(group.config.me);
        group.node.mut_store().set_applied(applied, u64::MAX);
        group.node.mut_store().forget_initial();
        group.settle();
        if group.members.is_sole_voter(group.config.me) {
            group.campaign(now);
        }
        Ok(group)
    }

    /// Appends an entry, as leader, and returns the index it has if it commits in this term.
    ///
    /// # Errors
    /// [`ProposeError`]; the log is untouched then.
    pub fn propose(&mut self, now: Mono, data: Bytes) -> Result<LogIndex, ProposeError> {
        let max = self.config.limits.entry_bytes_max;
        if data.is_empty() {
            return Err(ProposeError::Empty);
        }
        if data.len() > max {
            return Err(ProposeError::TooLarge { max });
        }
        self.append(
            now,
            eraftpb::Entry {
                data,
                ..eraftpb::Entry::default()
            },
        )
    }

    /// Proposes a change of members; `context` comes back with it once it is committed.
    ///
    /// # Errors
    /// [`ProposeError`]; the log is untouched then.
    pub fn change_members(
        &mut self,
        now: Mono,
        change: &MemberChange,
        context: &[u8],
    ) -> Result<LogIndex, ProposeError> {
        self.may_propose()?;
        // The library turns a change that may not be made now into an empty entry, without an error.
        if self.node.raft.has_pending_conf() || self.members.is_joint() {
            return Err(ProposeError::ChangePending);
        }
        if let Some(objection) = change.objection(&self.members) {
            return Err(ProposeError::InvalidChange(objection));
        }
        if change.removes(self.config.me) {
            return Err(ProposeError::TransferFirst);
        }
        let max = self.config.limits.entry_bytes_max;
        if context.len() >= max / 2 {
            return Err(ProposeError::TooLarge { max: max / 2 });
        }
        self.now = now;
        self.guarded(Err(ProposeError::Failed), |group| {
            group.append_change(change, context)
        })
    }

    fn append_change(&mut self, change: &MemberChange, context: &[u8]) -> Result<LogIndex, ProposeError> {
        let data = change.encode(context);
        let proposed = self
            .node
            .propose_conf_change(data.into(), change.to_conf_change());
        proposed.map_err(|_| ProposeError::Overloaded)?;
        let last = self.node.raft.raft_log.unstable_entries().last();
        assert!(
            last.is_some_and(|entry| from_entry(entry).0 == EntryKind::Members),
            "the change is the last entry"
        );
        Ok(self.last_index())
    }

    fn append(&mut self, now: Mono, entry: eraftpb::Entry) -> Result<LogIndex, ProposeError> {
        self.may_propose()?;
        self.now = now;
        self.guarded(Err(ProposeError::Failed), |group| {
            let mut message = Message::default();
            message.set_msg_type(MessageType::MsgPropose);
            message.from = group.config.me.value();
            message.set_entries(vec![entry].into());
            match group.node.raft.step(message) {
                Ok(()) => Ok(group.last_index()),
                Err(_) => Err(ProposeError::Overloaded),
            }
        })
    }

    /// A replica that has just become a follower would forward a proposal without a word; so the role is asked first.
    fn may_propose(&self) -> Result<(), ProposeError> {
        if self.failure.is_some() {
            return Err(ProposeError::Failed);
        }
        if !self.is_leader() {
            return Err(ProposeError::NotLeader { hint: self.leader() });
        }
        if self.node.raft.lead_transferee.is_some() {
            return Err(ProposeError::Transferring);
        }
        if self.node.store().unapplied_bytes() > self.config.limits.unapplied_bytes_max {
            return Err(ProposeError::Overloaded);
        }
        Ok(())
    }

    /// Ends this replica, whose state cannot go on: it neither votes nor leads any more.
    pub const fn stop(&mut self) {
        if self.failure.is_none() {
            self.failure = Some(Failure::Stopped);
        }
    }

    /// Asks for a linearizable read. The outcome comes with a later `Ready`; reads of one turn share a round.
    pub fn read(&mut self, now: Mono, token: ReadToken) {
        self.now = now;
        self.reads.add(token);
    }

    /// Hands leadership to `to`, once that has the whole log; given up after an election timeout.
    ///
    /// # Errors
    /// [`TransferError`] if it cannot even begin.
    pub fn transfer(&mut self, now: Mono, to: ReplicaId) -> Result<(), TransferError> {
        if self.failure.is_some() {
            return Err(TransferError::Failed);
        }
        if !self.is_leader() {
            return Err(TransferError::NotLeader);
        }
        if to == self.config.me || !self.members.voters.contains(&to) {
            return Err(TransferError::NotVoter);
        }
        if !self
            .node
            .raft
            .prs()
            .get(to.value())
            .is_some_and(|progress| progress.recent_active)
        {
            return Err(TransferError::Unreachable);
        }
        self.now = now;
        self.guarded(Err(TransferError::Failed), |group| {
            group.node.transfer_leader(to.value());
            Ok(())
        })
    }

    /// Whether leadership is being handed over: until that has ended nothing can be proposed.
    #[must_use]
    pub fn is_handing_over(&self) -> bool {
        self.node.raft.lead_transferee.is_some()
    }

    /// Hands leadership to the reachable voter that has most of the log; `None` if there is none or nothing to hand.
    pub fn hand_over(&mut self, now: Mono) -> Option<ReplicaId> {
        if self.node.raft.lead_transferee.is_some() {
            return None;
        }
        let fit = |peer: &PeerProgress| {
            peer.replica != self.config.me
                && peer.recent_active
                && self.members.voters.contains(&peer.replica)
                && peer.state != PeerState::Snapshot
        };
        let peers = self.progress().into_iter().filter(fit);
        let best = peers.max_by_key(|peer| (peer.matched, std::cmp::Reverse(peer.replica)))?;
        self.transfer(now, best.replica).ok().map(|()| best.replica)
    }

    /// Campaigns at once instead of after a timeout: the first listed replica of a group that was just founded, or a
    /// sole voter. A running group of several is left alone, since a campaign takes back what this replica promised
    /// its leader. Returns whether it campaigned.
    pub fn campaign(&mut self, now: Mono) -> bool {
        let founding = self.last_index() == LogIndex(1) && self.term() == Term(1);
        let sole = self.members.is_sole_voter(self.config.me);
        if self.is_leader() || !(founding || sole) || !self.may_campaign() {
            return false;
        }
        self.now = now;
        self.guarded(false, |group| group.node.campaign().is_ok())
    }

    /// Takes a frame that arrived from `from`.
    ///
    /// # Errors
    /// [`StepError`]; the frame has had no effect then, except that proof of loss stops the group.
    pub fn step(&mut self, now: Mono, from: ReplicaId, frame: &Bytes) -> Result<(), StepError> {
        if self.failure.is_some() {
            return Err(StepError::Failed);
        }
        let head = Head::read(frame)?;
        let addressed = head.group == self.config.group.value() && head.to == self.config.me.value();
        if !addressed || head.from != from.value() || head.from == head.to {
            return Err(StepError::Address);
        }
        self.now = now;
        self.guarded(Err(StepError::Failed), |group| group.take(&head, frame))
    }

    fn take(&mut self, head: &Head, frame: &Bytes) -> Result<(), StepError> {
        let last = self.last_index().value();
        let current = head.term >= self.node.raft.term;
        if let Some(commit) = head.leaders_commit() {
            self.told = self.told.max((head.term, commit));
            self.told_at = self.now;
        }
        match head.kind {
            Kind::ReadAsk | Kind::ReadGrant | Kind::ReadRefuse | Kind::Confirm | Kind::Confirmed => {
                if frame.len() != crate::frame::HEAD_BYTES {
                    return Err(FrameError::Length.into());
                }
                self.with_reads(|reads, view| reads.step(view, head));
                return Ok(());
            }
            Kind::Heartbeat if current && head.commit > last => {
                // The leader sends what this replica acknowledged as durable, or less.
                self.failure = Some(Failure::Lost);
                return Err(StepError::ProofOfLoss {
                    commit: LogIndex(head.commit),
                    last: LogIndex(last),
                });
            }
            Kind::AppendAnswer if self.is_leader() && current && head.index > last => {
                return Err(StepError::Invalid("acknowledges what was never sent"));
            }
            Kind::Append => {
                if self.snapshots.is_staging() {
                    return Ok(());
                }
                if self.node.store().unapplied_bytes() > self.config.limits.unapplied_bytes_max {
                    self.dropped_appends += 1;
                    return Err(StepError::Overloaded);
                }
            }
            Kind::Snapshot => return self.take_snapshot(head, frame),
            Kind::TimeoutNow if !self.may_campaign() => return Ok(()),
            Kind::AppendAnswer
            | Kind::Vote
            | Kind::VoteAnswer
            | Kind::PreVote
            | Kind::PreVoteAnswer
            | Kind::Heartbeat
            | Kind::HeartbeatAnswer
            | Kind::TimeoutNow => {}
        }
        let message = head.message(frame)?;
        // Answers of replicas that are no longer members are refused by the library; that is no error of anyone.
        let _ = self.node.step(message);
        if head.kind == Kind::HeartbeatAnswer {
            self.watch_transfer(head);
        }
        Ok(())
    }

    /// Fires what is due at or before `now`: at most one tick, however late. Missed ticks are dropped, because a burst
    /// of them after a pause would end the promise that a heartbeat just renewed.
    pub fn tick(&mut self, now: Mono) {
        self.now = now;
        if now < self.tick_at || self.next_deadline().is_none() {
            return;
        }
        let tick = self.config.timers.tick;
        self.tick_at = next_tick(&self.config, now);
        if self.tick_at.since(now) < tick / 2 {
            // This one was late.
            self.tick_at += tick;
        }
        self.guarded((), |group| {
            group.reads.tick(&group.members);
            if group.is_leader() {
                // A leader whose disk hangs still sends heartbeats and would stall its group without an election.
                if group.is_disk_stalled() {
                    group.hand_over(now);
                }
                group.node.tick();
            } else if group.may_campaign() || !group.is_about_to_campaign() {
                group.node.tick();
            }
        });
    }

    /// When `tick` must be called next. `None`: never, as long as nothing else happens. A sole member that leads needs
    /// no ticks.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Mono> {
        let alone = self.is_leader()
            && self.members.is_sole_voter(self.config.me)
            && self.members.learners.is_empty();
        let idle = alone || (self.removed && !self.is_bound());
        (!idle && self.failure.is_none()).then_some(self.tick_at)
    }

    /// Whether it refuses its vote to others for the sake of a leader that it has heard of lately. A replica that was
    /// removed may still be asked: those that stay need its vote if they crash before they know of the removal. Its time
    /// must go on until it is free to give it.
    fn is_bound(&self) -> bool {
        let raft = &self.node.raft;
        raft.leader_id != 0 && raft.election_elapsed < raft.election_timeout()
    }

    fn is_about_to_campaign(&self) -> bool {
        let raft = &self.node.raft;
        raft.promotable() && raft.election_elapsed + 1 >= raft.randomized_election_timeout()
    }

    /// A campaign reads every entry between the applied and the commit index, which a snapshot that is not yet in
    /// force hides; a sole voter becomes leader at once, for which its log must be durable; and a hanging disk must
    /// not lead.
    pub(crate) fn may_campaign(&self) -> bool {
        let log = &self.node.raft.raft_log;
        let restoring = self.snapshots.is_staging() || log.applied < log.store.base().0;
        let undurable = self.members.is_sole_voter(self.config.me) && log.persisted < log.last_index();
        !restoring && !undurable && !self.is_disk_stalled() && !self.removed
    }

    fn is_disk_stalled(&self) -> bool {
        let stall = self.config.timers.disk_stall;
        self.outstanding
            .iter()
            .find(|ready| ready.sync)
            .is_some_and(|ready| self.now.since(ready.since) >= stall)
    }

    /// Runs `work` unless the group has stopped; a panic in it stops the group and gives `otherwise`.
    pub(crate) fn guarded<R>(&mut self, otherwise: R, work: impl FnOnce(&mut Self) -> R) -> R {
        if self.failure.is_some() {
            return otherwise;
        }
        let result = catch_unwind(AssertUnwindSafe(|| {
            let result = work(self);
            self.settle();
            result
        }));
        result.unwrap_or_else(|_| {
            self.failure = Some(Failure::Broken);
            otherwise
        })
    }

    /// Replaces the election timeout that the library drew at random by one that follows from seed, term and role.
    pub(crate) fn settle(&mut self) {
        let raft = &mut self.node.raft;
        let drawn_for = (raft.term, raft.state as u8);
        if self.timeout.drawn_for != drawn_for {
            let mut hash = self.config.seed;
            for part in [
                self.config.group.value(),
                self.config.me.value(),
                drawn_for.0,
                u64::from(drawn_for.1),
            ] {
                hash = mix(hash ^ part);
            }
            let draw = u32::try_from(hash % u64::from(self.timeout.span)).unwrap_or(0);
            self.timeout.ticks = self.timeout.min + draw;
            self.timeout.drawn_for = drawn_for;
        }
        let ticks = usize::try_from(self.timeout.ticks).unwrap_or(usize::MAX);
        if raft.randomized_election_timeout() != ticks {
            raft.set_randomized_election_timeout(ticks);
        }
    }

    pub(crate) fn with_reads(&mut self, work: impl FnOnce(&mut Reads, &View<'_>)) {
        let raft = &self.node.raft;
        let view = View {
            me: self.config.me,
            term: raft.term,
            leader: raft.leader_id,
            leads: raft.state == StateRole::Leader,
            committed_in_term: raft.commit_to_current_term(),
            commit: raft.raft_log.committed,
            members: &self.members,
        };
        work(&mut self.reads, &view);
    }

    /// Tells that the connection to a peer broke: what was sent may be lost, its position is found out again.
    pub fn peer_unreachable(&mut self, peer: ReplicaId) {
        self.guarded((), |group| group.node.report_unreachable(peer.value()));
    }

    /// Drops applied entries up to `upto` from memory, and what else an idle group can do without.
    pub fn compact(&mut self, upto: LogIndex) {
        self.node.raft.maybe_free_inflight_buffers();
        self.node.mut_store().compact(upto.value());
    }
}

/// Parts of a tick at which groups may tick.
const PHASES: u64 = 4;

/// The next time after `now` at which the group ticks. All groups of a server tick at one of a few points of its clock, so
/// that the heartbeats of many leave together: a turn, a write and a wake-up of the other side for hundreds of them.
fn next_tick(config: &GroupConfig, now: Mono) -> Mono {
    let tick = u64::try_from(config.timers.tick.as_nanos())
        .unwrap_or(u64::MAX)
        .max(PHASES);
    let phase = tick / PHASES * (mix(config.seed ^ mix(config.group.value())) % PHASES);
    let begun = now.0.saturating_add(tick - phase) / tick;
    Mono(begun.saturating_mul(tick).saturating_add(phase))
}

fn library_config(config: &GroupConfig, applied: u64) -> Config {
    let (timers, limits) = (&config.timers, &config.limits);
    let bytes = |limit: usize| u64::try_from(limit).unwrap_or(u64::MAX);
    let election_tick = timers.ticks(timers.election_min);
    Config {
        id: config.me.value(),
        election_tick,
        heartbeat_tick: timers.ticks(timers.heartbeat),
        applied,
        max_size_per_msg: bytes(limits.append_bytes_max),
        max_inflight_msgs: limits.inflight_max,
        check_quorum: true,
        pre_vote: true,
        min_election_tick: election_tick,
        max_election_tick: timers.ticks(timers.election_max).saturating_add(1),
        read_only_option: ReadOnlyOption::Safe,
        skip_bcast_commit: !config.timers.announce_commits,
        // Batching would merge a whole catch-up into one message without a limit.
        batch_append: false,
        priority: 0,
        max_uncommitted_size: bytes(limits.uncommitted_bytes_max),
        max_committed_size_per_ready: bytes(limits.committed_bytes_per_ready),
    }
}

/// Changes of members that the checkpoint contains and the recorded members do not.
fn changes_applied_later(start: &Start) -> Result<Vec<(u64, MemberChange)>, StartError> {
    let between = |entry: &&LogEntry| {
        entry.kind == EntryKind::Members && entry.index > start.members_at && entry.index <= start.applied
    };
    let decode = |entry: &LogEntry| match MemberChange::decode(&entry.data) {
        Ok((change, _)) => Ok((entry.index.value(), change)),
        Err(_) => Err(StartError::BadChange { index: entry.index }),
    };
    start.entries.iter().filter(between).map(decode).collect()
}

fn open_log(config: &GroupConfig, start: Start) -> Result<GroupLog, StartError> {
    let mut entries = VecDeque::with_capacity(start.entries.len());
    for LogEntry {
        index,
        term,
        kind,
        data,
    } in start.entries
    {
        let entry =
            to_entry(index.value(), term.value(), kind, data).ok_or(StartError::Disorder { index })?;
        entries.push_back(entry);
    }
    let conf_state: ConfState = start.members.to_conf_state();
    let hard_state = eraftpb::HardState {
        term: start.hard.term.value(),
        vote: start.hard.vote.value(),
        commit: start.hard.commit.value(),
        ..eraftpb::HardState::default()
    };
    let initial = RaftState::new(hard_state, conf_state);
    let base = (start.base.index.value(), start.base.term.value());
    let log = GroupLog::new(base, entries, initial, config.limits.cache_bytes);
    log.first_index().map_err(|e| StartError::Config(e.to_string()))?;
    Ok(log)
}

/// A bijective mix of 64 bits (the finalizer of SplitMix64, Steele et al. 2014).
const fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
