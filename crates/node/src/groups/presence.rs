//! Which replicas may start here (DESIGN section 7, "Founding").
//!
//! A replica that was made must never be made a second time under the same id: it may have voted, and would vote
//! again. So each is bound to the start of the server in which it was made. That is written into the log first, then
//! recorded in the metadata (the first record counts), and only then does the replica begin:
//! ```text
//!   listed, never recorded --made here, logged--> newborn --recorded as of that start--> runs
//!   listed, recorded as of another start, no state here --> lost: reported, replaced under a new id by its leader
//! ```
//! That holds while the metadata is replayed, too: what the log says of an earlier start does not fit what is made
//! now. The only replica of a memory stream is the exception: it is made anew, and recorded anew, at each start.

use super::meta::MetaNotice;
use super::open::Birth;
use super::{GroupId, membership};
use crate::worker::Core;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_base::{BootId, Mono, ReplicaId, WorkerId};
use tidelock_jetstream::config::Storage;
use tidelock_jetstream::meta::{GroupState, MetaCommand, Replica, StreamEntry};
use tidelock_replica::Failure;
use tidelock_wal::WalRecord;

/// Without a leader of the metadata, what it says here is believed after this long.
const LEADERLESS_MAX: Duration = Duration::from_secs(5);

/// Replicas of this worker that are listed and do not run.
#[derive(Default)]
pub(super) struct Presence {
    newborn: BTreeMap<GroupId, Newborn>,
    lost: BTreeMap<GroupId, Lost>,
    /// Damaged ones that had begun, and of which the metadata here, as far as it has come, does not say so yet.
    begun: BTreeMap<GroupId, ReplicaId>,
    /// The metadata here had everything that its leader was known to have committed, once in this start.
    current: bool,
}

/// A replica that was made and is not recorded yet.
struct Newborn {
    replica: ReplicaId,
    birth: Birth,
    logged: bool,
}

/// A replica that was recorded and has no state here.
struct Lost {
    replica: ReplicaId,
    /// The metadata shows it.
    shown: bool,
    /// Of which stream, in the words of the log, and whether that has no other.
    stream: String,
    alone: bool,
    /// It was in memory, so that it ends with each process.
    in_memory: bool,
    /// Since when it is known here.
    since: Mono,
    /// The log says so.
    reported: bool,
}

impl Presence {
    /// A replica comes back from the log that has not begun.
    pub(super) fn found(&mut self, group: GroupId, replica: ReplicaId, birth: Birth) {
        let logged = true;
        self.newborn.insert(
            group,
            Newborn {
                replica,
                birth,
                logged,
            },
        );
    }

    pub(super) fn is_empty(&self) -> bool {
        self.newborn.is_empty() && self.lost.is_empty() && self.begun.is_empty()
    }

    /// The replicas that do not run.
    pub(super) fn replicas(&self) -> impl Iterator<Item = (GroupId, ReplicaId)> + '_ {
        let newborn = self.newborn.iter().map(|(group, one)| (*group, one.replica));
        let lost = self.lost.iter().map(|(group, one)| (*group, one.replica));
        let begun = self.begun.iter().map(|(group, replica)| (*group, *replica));
        newborn.chain(lost).chain(begun)
    }
}

impl Core {
    /// Starts a replica that the metadata has placed here, as far as it may start.
    pub(super) fn start_replica(&mut self, entry: &StreamEntry, replica: &Replica) {
        if self.groups.slots.contains_key(&entry.group) {
            return;
        }
        let newborn = self
            .groups
            .presence
            .newborn
            .get(&entry.group)
            .filter(|newborn| newborn.replica == replica.id)
            .map(|newborn| newborn.birth.boot);
        let made_anew = entry.spec.storage == Storage::Memory && entry.replicas.len() == 1;
        let kept = self.groups.damages.kept(entry.group);
        let begun = kept.is_some_and(|kept| kept.begun && kept.replica == replica.id);
        if begun && replica.present.is_none() {
            self.groups.presence.begun.insert(entry.group, replica.id);
            return;
        }
        self.groups.presence.begun.remove(&entry.group);
        match (newborn, replica.present) {
            (Some(here), Some(recorded)) if here == recorded && !replica.lost => self.bring_up(entry),
            (Some(_), None) => self.tell_present(entry.group),
            (None, None) => self.bear(entry, replica),
            (Some(_), Some(_)) if made_anew => self.tell_present(entry.group),
            (None, Some(_)) if made_anew => self.bear(entry, replica),
            (_, Some(_)) => self.lose(entry, replica),
        }
    }

    /// A stream has changed: a replica of it that waits here may begin, or is known to be lost.
    pub(super) fn presence_changed(&mut self, entry: &StreamEntry) {
        let me = self.shared.identity.node;
        let presence = &self.groups.presence;
        let waits = |id| presence.replicas().any(|one| one == (entry.group, id));
        let mine = entry
            .replicas
            .iter()
            .find(|replica| replica.node == me && waits(replica.id));
        if let Some(replica) = mine.copied() {
            self.start_replica(entry, &replica);
        }
    }

    /// Makes a replica. It begins once the metadata has recorded that.
    fn bear(&mut self, entry: &StreamEntry, replica: &Replica) {
        self.forget_absent(entry.group);
        let memory = entry.spec.storage == Storage::Memory;
        let alone = entry.replicas.len() == 1;
        let founds = entry.state == GroupState::Forming || (memory && alone);
        let voters = if founds {
            entry.replicas.iter().map(|one| one.id).collect()
        } else {
            Vec::new()
        };
        let birth = Birth {
            account: entry.account.clone(),
            name: entry.spec.name.clone(),
            config: Bytes::from(entry.spec.config().encode()),
            created: entry.created,
            rev: entry.rev,
            boot: self.shared.identity.boot,
            voters,
            meta: Bytes::new(),
        };
        if !memory {
            self.log_birth(entry.group, replica.id, &birth);
        }
        let newborn = Newborn {
            replica: replica.id,
            birth,
            logged: !memory,
        };
        self.groups.presence.newborn.insert(entry.group, newborn);
        self.groups.damages.forget(entry.group);
        self.tell_present(entry.group);
    }

    /// A replica that was recorded has no state here. The others of its group replace it; where there is none, the
    /// metadata need not know, so that the replica can come back if its files are put back.
    fn lose(&mut self, entry: &StreamEntry, replica: &Replica) {
        self.forget_newborn(entry.group);
        let alone = entry.replicas.len() == 1 && entry.state == GroupState::Formed;
        let known = self.groups.presence.lost.get(&entry.group);
        let known = known.filter(|lost| lost.replica == replica.id);
        let lost = Lost {
            replica: replica.id,
            shown: replica.lost || alone,
            stream: format!("{} > {}", entry.account, entry.spec.name),
            alone,
            in_memory: entry.spec.storage == Storage::Memory,
            since: known.map_or(self.now.mono, |lost| lost.since),
            reported: known.is_some_and(|lost| lost.reported),
        };
        self.groups.presence.lost.insert(entry.group, lost);
        self.look_soon();
    }

    /// Logs which replicas are lost, once it is known that the metadata still lists them: what is gone here may have been
    /// removed later.
    fn report_all_lost(&mut self) {
        let now = self.now.mono;
        let presence = &self.groups.presence;
        let due = |lost: &Lost| presence.current || now.since(lost.since) >= LEADERLESS_MAX;
        let lost = presence.lost.iter();
        let due = lost.filter(|(_, lost)| lost.shown && !lost.reported && due(lost));
        let due: Vec<GroupId> = due.map(|(group, _)| *group).collect();
        for group in due {
            self.report_lost(group);
        }
    }

    /// As the worker of the metadata: tells all workers, once, that it has caught up. What it has brought about until then
    /// was told before.
    pub(super) fn tell_current(&mut self) {
        let is_current = |slot: &super::Slot| {
            slot.leader.is_some() && slot.raft.applied_index() >= slot.raft.leaders_commit()
        };
        if self.groups.presence.current || !self.slot(GroupId::META).is_some_and(is_current) {
            return;
        }
        for worker in 0..self.shared.workers {
            self.notice_to(WorkerId(worker), MetaNotice::Current);
        }
    }

    /// Whether a group that has only this replica may have been deleted while its server was away: it leads at once, and
    /// nobody else would know what it takes.
    ///
    /// One that was made in this start of the server was there a moment ago: a leader of the metadata has recorded it.
    pub(super) fn may_be_deleted(&self, group: GroupId) -> bool {
        let boot = self.shared.identity.boot;
        let is_older = |slot: &super::Slot| !slot.was_recorded_in(boot);
        let alone = |slot: &super::Slot| slot.raft.members().0.is_sole_voter(slot.me);
        self.shared.options.cluster.is_some()
            && !self.groups.presence.current
            && self.now.mono.since(self.shared.identity.start.mono) < LEADERLESS_MAX
            && self.slot(group).is_some_and(|slot| is_older(slot) && alone(slot))
    }

    /// The metadata has caught up.
    pub(super) fn metadata_is_current(&mut self) {
        self.groups.presence.current = true;
    }

    fn report_lost(&mut self, group: GroupId) {
        let kept = self.groups.damages.kept(group);
        let files = kept.map(|kept| self.files_of(group, kept)).unwrap_or_default();
        let Some(lost) = self.groups.presence.lost.get_mut(&group) else {
            return;
        };
        lost.reported = true;
        let (stream, id) = (&lost.stream, lost.replica);
        match (kept.map(|kept| &kept.why), lost.alone) {
            (None, false) if lost.in_memory => tracing::info!(
                "JetStream stream '{stream}', in memory: replica {id} of this server ended with its process; another one takes \
                 its place once a majority of the others is there"
            ),
            (None, false) => tracing::error!(
                "JetStream stream '{stream}': replica {id} of this server is lost; it is replaced once a majority of the \
                 others is there"
            ),
            (Some(why), false) => tracing::error!(
                "JetStream stream '{stream}': replica {id} of this server is damaged: {why}; it is replaced once a majority \
                 of the others is there"
            ),
            (None, true) => tracing::error!(
                "JetStream stream '{stream}' stays down: this store has nothing of its only replica, {id}; put the store's \
                 files back from a backup, or delete the stream"
            ),
            (Some(why), true) => tracing::error!(
                "JetStream stream '{stream}' stays down: {why}. It has no other replica. Nothing was deleted, its files are \
                 kept: {files}; put them back from a backup, or delete the stream"
            ),
        }
    }

    /// A listed replica that did not run is to go; `false` if it is none of those.
    pub(super) fn forget_waiting(&mut self, group: GroupId, replica: ReplicaId) -> bool {
        let waits = self.groups.presence.replicas().any(|one| one == (group, replica));
        if waits {
            self.forget_absent(group);
        }
        waits
    }

    fn forget_absent(&mut self, group: GroupId) {
        self.groups.presence.lost.remove(&group);
        self.groups.presence.begun.remove(&group);
        self.forget_newborn(group);
    }

    fn forget_newborn(&mut self, group: GroupId) {
        let newborn = self.groups.presence.newborn.remove(&group);
        if newborn.is_some_and(|newborn| newborn.logged) {
            self.groups.log(&WalRecord::Destroyed { group });
        }
    }

    /// A replica that was made here is recorded: it begins.
    fn bring_up(&mut self, entry: &StreamEntry) {
        let Some(newborn) = self.groups.presence.newborn.remove(&entry.group) else {
            return;
        };
        let Newborn { replica, birth, .. } = newborn;
        if let Err(text) = self.begin_replica(entry, replica, &birth) {
            tracing::error!("Replica of stream {:?} cannot start: {text}", entry.spec.name);
        }
    }

    fn tell_present(&mut self, group: GroupId) {
        self.look_soon();
        let Some(newborn) = self.groups.presence.newborn.get(&group) else {
            return;
        };
        let (replicas, boot) = (vec![newborn.replica], newborn.birth.boot);
        self.tell_meta(MetaCommand::ReplicasPresent {
            group,
            replicas,
            boot,
        });
    }

    /// Tells again what the metadata does not show yet.
    pub(super) fn tick_presence(&mut self) {
        self.give_up_lost_metadata();
        self.report_all_lost();
        let newborn: Vec<GroupId> = self.groups.presence.newborn.keys().copied().collect();
        for group in newborn {
            self.tell_present(group);
        }
        let absent = self.groups.presence.lost.iter().filter(|(_, lost)| !lost.shown);
        let mut lost: Vec<(GroupId, ReplicaId)> =
            absent.map(|(group, lost)| (*group, lost.replica)).collect();
        // A replica that runs can learn, too, that something is gone which it had.
        let proven = self.groups.slots.values().filter(|slot| !slot.is_meta());
        let proven =
            proven.filter(|slot| slot.digests.is_spoiled || slot.raft.failure() == Some(Failure::Lost));
        lost.extend(
            proven
                .filter(|slot| !slot.is_shown_lost())
                .map(|slot| (slot.group, slot.me)),
        );
        for (group, replica) in lost {
            self.tell_meta(MetaCommand::ReplicaLost { group, replica });
        }
        self.tick_rescue();
    }

    /// What was told may have to be told again.
    fn look_soon(&mut self) {
        let soon = self.now.mono + membership::MEMBERSHIP_TICK;
        self.groups.membership_at = Some(self.groups.membership_at.map_or(soon, |at| at.min(soon)));
    }
}

impl super::Slot {
    /// Whether the metadata says that this replica was made in that start of its server.
    fn was_recorded_in(&self, boot: BootId) -> bool {
        let is_it = |one: &Replica| one.id == self.me && one.present == Some(boot);
        self.listed && self.replicas.iter().any(is_it)
    }

    fn is_shown_lost(&self) -> bool {
        self.replicas.iter().any(|one| one.id == self.me && one.lost)
    }
}
