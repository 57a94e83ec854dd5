//! The cluster's metadata on this node: applying it, and starting and stopping the replicas that it places here.

use super::listing::Listing;
use super::{Done, Machine, Slot};
use crate::api::MetaEvent;
use crate::cell::Cell;
use crate::directory::{Directory, StreamRoute};
use crate::interest::{Change, StreamTarget, Target};
use crate::worker::Core;
use std::sync::Arc;
use tidelock_base::{AccountId, GroupId, NodeId, WorkerId};
use tidelock_jetstream::config::Storage;
use tidelock_jetstream::meta::{
    GroupState, MetaCommand, MetaEffects, MetaOutcome, Replica, Server, StreamEntry,
};
use tidelock_replica::{Committed, CommittedKind};

/// What the metadata says to the worker that owns a stream's group.
#[derive(Clone, Debug)]
pub enum MetaNotice {
    /// This replica is to exist here.
    Start(Box<StreamEntry>, Replica),
    /// This replica is to go.
    Stop(GroupId, Replica),
    /// The stream has changed.
    Changed(Box<StreamEntry>),
    /// The stream is gone.
    Removed(Box<StreamEntry>),
    /// All that is placed here; for every worker.
    Listed(Arc<Listing>),
    /// What is known here of the metadata is what its leader had committed; for every worker, once.
    Current,
}

impl MetaNotice {
    /// The group that it is about, if it is about one.
    fn group(&self) -> Option<GroupId> {
        match self {
            Self::Start(entry, _) | Self::Changed(entry) | Self::Removed(entry) => Some(entry.group),
            Self::Stop(group, _) => Some(*group),
            Self::Listed(_) | Self::Current => None,
        }
    }
}

/// Collects what an entry of the metadata brings about.
#[derive(Default)]
struct Collected {
    me: NodeId,
    notices: Vec<MetaNotice>,
    events: Vec<MetaEvent>,
    replies: Vec<(u32, MetaOutcome)>,
    servers_changed: bool,
}

impl MetaEffects for Collected {
    fn replied(&mut self, ordinal: u32, outcome: &MetaOutcome) {
        self.replies.push((ordinal, outcome.clone()));
    }

    fn replica_start(&mut self, stream: &StreamEntry, replica: &Replica) {
        if replica.node == self.me {
            self.notices
                .push(MetaNotice::Start(Box::new(stream.clone()), *replica));
        }
    }

    fn replica_stop(&mut self, group: GroupId, replica: &Replica) {
        if replica.node == self.me {
            self.notices.push(MetaNotice::Stop(group, *replica));
        }
    }

    fn stream_changed(&mut self, stream: &StreamEntry) {
        self.notices.push(MetaNotice::Changed(Box::new(stream.clone())));
        self.events.push(MetaEvent::Stream(Box::new(stream.clone())));
    }

    fn stream_removed(&mut self, stream: &StreamEntry) {
        // The stream is gone before its replica stops: those who wait there are told why.
        let stops =
            |notice: &MetaNotice| matches!(notice, MetaNotice::Stop(group, _) if *group == stream.group);
        let at = self
            .notices
            .iter()
            .rposition(|notice| !stops(notice))
            .map_or(0, |at| at + 1);
        self.notices
            .insert(at, MetaNotice::Removed(Box::new(stream.clone())));
        self.events.push(MetaEvent::Removed(Box::new(stream.clone())));
    }

    fn server_changed(&mut self, _server: &Server) {
        self.servers_changed = true;
    }

    fn server_removed(&mut self, _server: &Server) {
        self.servers_changed = true;
    }
}

impl Core {
    /// Applies one entry of the metadata.
    pub(super) fn apply_meta(&mut self, entry: Committed) {
        let Committed {
            index,
            term,
            kind,
            data,
        } = entry;
        let mut collected = Collected {
            me: self.shared.identity.node,
            ..Collected::default()
        };
        let Some(slot) = self.groups.slots.get_mut(&GroupId::META) else {
            return;
        };
        let Machine::Meta(meta) = &mut slot.machine else {
            return;
        };
        let normal = kind == CommittedKind::Normal;
        if normal {
            if let Err(error) = meta.apply(index, &data, &mut collected) {
                self.stop_replica(GroupId::META, error.to_string());
                return;
            }
        } else {
            meta.term_start(index);
        }
        slot.raft.applied(index);
        slot.applied_term = term;
        for notice in collected.notices {
            self.meta_notice(notice);
        }
        self.publish_directory(|directory| directory.applied = index);
        self.groups.meta_events.append(&mut collected.events);
        if collected.servers_changed {
            self.meta_servers_changed();
        }
        if !normal {
            self.entry_applied(GroupId::META, index, term);
            if let CommittedKind::Members { change, context } = kind {
                self.members_changed(GroupId::META, &change, &context);
            }
            return;
        }
        let waiters = self.take_waiters(GroupId::META, index, term);
        for (ordinal, waiter) in waiters {
            if ordinal == super::reads::READ_ORDINAL {
                self.end(waiter, Done::Read);
            } else if let Some((_, outcome)) = collected.replies.iter().find(|(n, _)| *n == ordinal) {
                self.end(waiter, Done::Meta(outcome));
            } else {
                self.end(waiter, Done::Meta(&MetaOutcome::Done));
            }
        }
        self.serve_reads(GroupId::META);
    }

    /// Tells API jobs what has changed, after everything else of the turn.
    pub(super) fn flush_meta_events(&mut self) {
        for event in std::mem::take(&mut self.groups.meta_events) {
            self.meta_changed(event);
        }
    }

    /// Changes the directory that all workers read.
    pub(super) fn publish_directory(&self, change: impl FnOnce(&mut Directory)) {
        let mut directory = Directory::clone(&self.shared.directory.load());
        change(&mut directory);
        self.shared.directory.store(Arc::new(directory));
    }

    /// Acts on a notice, or hands it to the worker whose it is.
    pub(crate) fn meta_notice(&mut self, notice: MetaNotice) {
        if let MetaNotice::Changed(entry) = &notice {
            self.enter_directory(entry);
        }
        if let MetaNotice::Removed(entry) = &notice {
            self.leave_directory(entry);
        }
        let owner = notice
            .group()
            .map_or(self.id, |group| self.shared.worker_of(group));
        self.notice_to(owner, notice);
    }

    /// Hands a notice to a worker.
    pub(super) fn notice_to(&mut self, worker: WorkerId, notice: MetaNotice) {
        if worker == self.id {
            self.meta_notice_here(notice);
        } else {
            self.out.cells.push_back((worker, Cell::Meta(notice)));
        }
    }

    /// Acts on a notice about a group of this worker.
    pub(crate) fn meta_notice_here(&mut self, notice: MetaNotice) {
        match notice {
            MetaNotice::Start(entry, replica) => self.start_replica(&entry, &replica),
            MetaNotice::Stop(group, replica) => self.remove_replica(group, replica.id),
            MetaNotice::Listed(listing) => self.stop_unlisted(&listing),
            MetaNotice::Current => self.metadata_is_current(),
            MetaNotice::Changed(entry) => {
                if let Some(slot) = self.slot_mut(entry.group) {
                    slot.replicas.clone_from(&entry.replicas);
                    slot.listed = true;
                }
                self.presence_changed(&entry);
                self.rescued(&entry);
                self.reconcile(&entry);
            }
            MetaNotice::Removed(entry) => self.drop_sender(entry.group),
        }
    }

    /// The account whose streams have this owner, if it is configured here and may use JetStream. The streams of another
    /// one stay as they are, and nobody reaches them.
    pub(crate) fn served_account(&self, name: &str) -> Option<AccountId> {
        let id = self.shared.account_id(name)?;
        let account = self.shared.account(id)?;
        account.jetstream.as_ref().map(|_| id)
    }

    /// Makes a stream's subjects lead to it, once it has a log.
    pub(super) fn enter_directory(&self, entry: &StreamEntry) {
        let Some(account) = self.served_account(&entry.account) else {
            return;
        };
        let Some(shared) = self.shared.account(account) else {
            return;
        };
        let old = self.shared.directory.load();
        let was_formed = old.by_group(entry.group).is_some_and(|route| route.formed);
        let formed = entry.state != GroupState::Forming;
        self.publish_directory(|directory| {
            directory.insert(StreamRoute {
                group: entry.group,
                account,
                name: entry.spec.name.as_str().into(),
                nodes: entry.nodes().collect(),
                formed,
                no_ack: entry.spec.no_ack,
                in_memory: entry.spec.storage == Storage::Memory,
                mirror_of: entry
                    .spec
                    .mirror
                    .as_ref()
                    .map(|origin| origin.name.as_str().into()),
            });
        });
        if !formed {
            return;
        }
        // Subjects of an update that is on its way are not entered before the stream's own log has decided.
        let target = Target::Stream(StreamTarget { group: entry.group });
        let wanted: Vec<&[u8]> = entry.spec.subjects.iter().map(|s| &**s).collect();
        let mut changes = Vec::new();
        if was_formed {
            shared.interest.load().tree.for_each(&mut |filter, targets| {
                if targets.contains(&target) && !wanted.contains(&filter.as_bytes()) {
                    changes.push(Change::Remove(filter.as_bytes().into(), target.clone()));
                }
            });
        }
        changes.extend(
            wanted
                .iter()
                .map(|filter| Change::Insert((*filter).into(), target.clone())),
        );
        shared.interest.commit(&changes);
    }

    /// Takes a stream out of the directory of which nothing more is known than that it is gone.
    pub(super) fn forget_route(&self, group: GroupId) {
        let directory = self.shared.directory.load_full();
        let Some(route) = directory.by_group(group) else {
            return;
        };
        let Some(shared) = self.shared.account(route.account) else {
            return;
        };
        self.publish_directory(|directory| directory.remove(group));
        let target = Target::Stream(StreamTarget { group });
        let mut changes = Vec::new();
        shared.interest.load().tree.for_each(&mut |filter, targets| {
            if targets.contains(&target) {
                changes.push(Change::Remove(filter.as_bytes().into(), target.clone()));
            }
        });
        shared.interest.commit(&changes);
    }

    fn leave_directory(&self, entry: &StreamEntry) {
        self.publish_directory(|directory| directory.remove(entry.group));
        let account = self
            .served_account(&entry.account)
            .and_then(|id| self.shared.account(id));
        let Some(shared) = account else { return };
        let target = Target::Stream(StreamTarget { group: entry.group });
        let changes: Vec<Change> = entry
            .spec
            .subjects
            .iter()
            .map(|filter| Change::Remove(Box::from(&**filter), target.clone()))
            .collect();
        shared.interest.commit(&changes);
    }

    /// This replica has just become a leader that is current.
    pub(super) fn now_leads(&mut self, group: GroupId) {
        self.leader_changed(group);
        if group == GroupId::META {
            self.meta_leads();
            return;
        }
        self.consumers_lead(group);
        self.sources_lead(group);
        let directory = self.shared.directory.load();
        if directory.by_group(group).is_none_or(|route| !route.formed) {
            self.report_formed(group);
        }
        self.leader_elected(group);
    }

    /// Tells the metadata that a group has its log.
    fn report_formed(&mut self, group: GroupId) {
        self.tell_meta(MetaCommand::GroupFormed { group });
    }
}

impl Slot {
    /// The encoded name of the machine, for log lines.
    pub(crate) const fn is_meta(&self) -> bool {
        matches!(self.machine, Machine::Meta(_))
    }
}
