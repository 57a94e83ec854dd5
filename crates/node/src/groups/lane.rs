//! The worker's lane of the write-ahead log: one batch in flight, one sync for all groups of a turn.

use super::Groups;
use super::trouble::What;
use crate::room::LogTrouble;
use crate::worker::{Core, IoJob, IoOwner};
use std::time::Duration;
use tidelock_base::{GroupId, Mono};
use tidelock_record::IoDone;
use tidelock_replica::Persist;
use tidelock_wal::{BatchNo, Lane, LaneEvent, WalEntry, WalRecord};

/// A batch of at most this many bytes may be synced by the worker itself, if nobody else needs the worker just now.
const INLINE_BYTES_MAX: usize = 16 * 1024;
/// Nobody else needs it if no other connection was read for this long.
const INLINE_QUIET: Duration = Duration::from_millis(2);
/// So much is a batch by itself, and need not wait for the end of the turn in which the one before has become durable.
const AHEAD_BYTES_MIN: usize = 64 * 1024;
/// A log that the disk refuses is tried again this often.
const RETRY_AFTER: Duration = Duration::from_secs(3);
/// An idle log says in its control file how far it is synced after this long.
const SETTLE_AFTER: Duration = Duration::from_secs(1);

/// The lane, and what the node remembers about it.
#[derive(Default)]
pub(super) struct LaneState {
    pub(super) lane: Option<Lane>,
    retry_at: Option<Mono>,
    settle_at: Option<Mono>,
    /// Publishes are refused: the log cannot be written.
    pub(super) broken: bool,
    /// The log has nothing but its reserve.
    short: bool,
}

impl LaneState {
    pub(super) fn deadline(&self) -> Option<Mono> {
        [self.retry_at, self.settle_at].into_iter().flatten().min()
    }
}

impl Groups {
    /// Appends a record to the lane.
    pub(super) fn log(&mut self, record: &WalRecord<'_>) -> BatchNo {
        self.lane
            .lane
            .as_mut()
            .map_or(BatchNo(0), |lane| lane.append(record))
    }

    fn log_entry(&mut self, entry: &WalEntry<'_>) -> BatchNo {
        self.lane
            .lane
            .as_mut()
            .map_or(BatchNo(0), |lane| lane.append_entry(entry))
    }

    /// Appends what a group wants persisted, in order; answers the batch that holds the last of it.
    pub(super) fn persist(&mut self, group: GroupId, records: &[Persist]) -> BatchNo {
        let mut batch = BatchNo(0);
        for record in records {
            batch = match record {
                Persist::Entry {
                    index,
                    term,
                    kind,
                    data,
                } => self.log_entry(&WalEntry {
                    group,
                    index: *index,
                    term: *term,
                    kind: kind.to_u8(),
                    data,
                }),
                Persist::HardState(hard) => self.log(&WalRecord::HardState {
                    group,
                    term: hard.term,
                    vote: hard.vote,
                    commit: hard.commit,
                }),
                Persist::Members { index, members } => {
                    let mut blob = index.0.to_le_bytes().to_vec();
                    blob.extend_from_slice(&members.encode());
                    self.log(&WalRecord::Members { group, blob: &blob })
                }
                Persist::SnapshotInstalled {
                    position,
                    members,
                    manifest,
                } => {
                    let blob = super::manifest::installed_blob(members, manifest);
                    self.log(&WalRecord::SnapshotInstalled {
                        group,
                        index: position.index,
                        term: position.term,
                        blob: &blob,
                    })
                }
            };
        }
        batch
    }
}

impl Core {
    /// Starts writing what was appended, unless a batch is in flight.
    pub(super) fn cut_lane(&mut self) {
        let quiet = self.readers_quiet_since + INLINE_QUIET <= self.now.mono;
        let now = self.now.mono;
        let state = &mut self.groups.lane;
        let Some(lane) = &mut state.lane else { return };
        let small = lane.open_bytes() <= INLINE_BYTES_MAX;
        let Some((_, requests)) = lane.cut() else { return };
        state.settle_at = Some(now + SETTLE_AFTER);
        let inline = small && quiet && requests.len() == 1;
        self.out.io.push(IoJob {
            owner: IoOwner::Log,
            requests,
            inline,
        });
    }

    /// Starts writing the next batch before anything else is done about the one that has just become durable, if it is
    /// large: the disk has no pause then.
    pub(crate) fn cut_lane_ahead(&mut self) {
        let lane = self.groups.lane.lane.as_ref();
        if lane.is_some_and(|lane| lane.open_bytes() >= AHEAD_BYTES_MIN) {
            self.cut_lane();
        }
    }

    /// An operation of the log has ended.
    pub(super) fn lane_done(&mut self, done: &IoDone) {
        let now = self.now.mono;
        let state = &mut self.groups.lane;
        let Some(lane) = &mut state.lane else { return };
        let event = lane.done(done);
        let requests = lane.take_requests();
        if !requests.is_empty() {
            self.out.io.push(IoJob {
                owner: IoOwner::Log,
                requests,
                inline: false,
            });
        }
        match event {
            LaneEvent::Foreign | LaneEvent::Pending => {}
            LaneEvent::Synced(batch) => {
                if std::mem::take(&mut state.broken) {
                    self.shared.room.set_log(self.id.0, LogTrouble::Broken, false);
                }
                self.trouble_over(What::Log);
                self.trouble_over(What::Retry);
                self.synced(batch);
            }
            LaneEvent::Retrying(error) => {
                self.trouble(
                    What::Retry,
                    &format_args!("Write-ahead log: {error}; writing to a new segment"),
                );
            }
            LaneEvent::Broken(error) => {
                let news = !std::mem::replace(&mut state.broken, true);
                state.retry_at = Some(now + RETRY_AFTER);
                self.trouble_forgotten(What::Retry);
                self.trouble(
                    What::Log,
                    &format_args!(
                        "Write-ahead log cannot be written: {error}; changes are refused until it can"
                    ),
                );
                if news {
                    self.shared.room.set_log(self.id.0, LogTrouble::Broken, true);
                    self.hand_over_all();
                    self.log_has_broken();
                }
            }
            LaneEvent::SpareFailed(error) => self.trouble(
                What::Spare,
                &format_args!("Write-ahead log: no spare segment: {error}"),
            ),
            LaneEvent::RelocationFailed(error) => self.trouble(
                What::Relocation,
                &format_args!("Write-ahead log: old records not moved: {error}"),
            ),
            LaneEvent::ReadBack {
                group,
                first,
                entries,
            } => self.entries_read(group, first, entries),
            LaneEvent::Damaged(groups) => {
                tracing::error!("Write-ahead log: damaged records of groups {groups:?}")
            }
        }
        self.look_at_reserve();
    }

    /// Notes whether the log has nothing but its reserve.
    pub(super) fn look_at_reserve(&mut self) {
        let now = self.now.mono;
        let state = &mut self.groups.lane;
        let short = state.lane.as_ref().is_some_and(Lane::is_short);
        state.retry_at = match state.retry_at {
            Some(at) if short || state.broken => Some(at),
            None if short => Some(now + RETRY_AFTER),
            Some(_) | None => None,
        };
        if std::mem::replace(&mut state.short, short) != short {
            self.shared.room.set_log(self.id.0, LogTrouble::Short, short);
            if short {
                self.trouble(
                    What::Spare,
                    &"Write-ahead log: the disk gives no spare segment; publishes are refused until it does",
                );
            } else {
                self.trouble_over(What::Spare);
            }
        }
    }

    /// All records up to a batch are durable: tells the groups that wait for it.
    fn synced(&mut self, batch: BatchNo) {
        let mut ready = Vec::new();
        for (group, slot) in &mut self.groups.slots {
            let mut last = None;
            while slot.unsynced.front().is_some_and(|(_, wanted)| *wanted <= batch) {
                last = slot.unsynced.pop_front().map(|(number, _)| number);
            }
            if let Some(number) = last {
                slot.raft.persisted(number);
                ready.push(*group);
            }
        }
        self.groups.touched.extend(ready);
    }

    /// What is due for the log.
    pub(super) fn tick_lane(&mut self) {
        let now = self.now.mono;
        let state = &mut self.groups.lane;
        let Some(lane) = &mut state.lane else { return };
        let mut requests = Vec::new();
        if state.retry_at.is_some_and(|at| at <= now) {
            state.retry_at = Some(now + RETRY_AFTER);
            requests = lane.retry();
        }
        if state.settle_at.is_some_and(|at| at <= now) {
            state.settle_at = None;
            requests.append(&mut lane.settle());
        }
        if !requests.is_empty() {
            self.out.io.push(IoJob {
                owner: IoOwner::Log,
                requests,
                inline: false,
            });
        }
    }

    /// Whether the log takes no more: publishes are to be refused.
    pub(crate) const fn log_is_broken(&self) -> bool {
        self.groups.lane.broken
    }
}
