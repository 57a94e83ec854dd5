//! Trouble with the disk: what the log says of it, and what is answered while the write-ahead log cannot be written.
//!
//! **The log's lines.** One when a trouble begins, one a minute while it lasts, with how often it has happened since,
//! and one when it is over ([`Trouble`]).
//!
//! **A log that cannot be written** (DESIGN section 9): nothing that needs it is taken on any more, and nobody waits
//! in silence. Reads are answered from what is committed, unless their connection has published what is not. Changes
//! are refused at once. Of changes that were in the log's way already nobody can say whether they will be carried out:
//! who waits for one is told that the system is not available for now. Publishes under way get their outcome when the
//! disk is well again; what a sender sends meanwhile is not taken, and comes again.

use super::reads::READ_ORDINAL;
use super::{Done, Machine, Waiter};
use crate::cell::Request;
use crate::consumers::AckWaiter;
use crate::worker::Core;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_base::{ApiErrorCode, GroupId, Mono};
use tidelock_replica::ReadOutcome;

/// While a trouble lasts, the log says so this often.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// What goes wrong, each with lines of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// The log is written to another segment.
    Retry,
    /// The log cannot be written.
    Log,
    /// No segment can be made ahead of use.
    Spare,
    /// Old records are not moved.
    Relocation,
    /// Blocks are not written.
    Blocks,
    /// Checkpoints are not written.
    Checkpoints,
    /// The state of received snapshots is not brought back.
    Snapshots,
    /// Blocks of a stream are not read.
    Reads(GroupId),
    /// Messages of a stream are damaged.
    Damage(GroupId),
}

impl What {
    /// What is over when it is over.
    const fn over(self) -> &'static str {
        match self {
            Self::Retry => "Write-ahead log goes on in a new segment",
            Self::Log => "Write-ahead log is written again; publishes are accepted",
            Self::Spare => "Write-ahead log has its reserve again",
            Self::Relocation => "Write-ahead log: old records are moved again",
            Self::Blocks => "Blocks of streams are written again",
            Self::Checkpoints => "Checkpoints of streams are written again",
            Self::Reads(_) => "Blocks of a stream can be read again",
            Self::Damage(_) => "Nothing of a stream is known to be damaged any more",
            Self::Snapshots => "Received snapshots of streams can be read again",
        }
    }
}

/// One trouble that lasts.
#[derive(Clone, Copy, Debug)]
struct Lasting {
    since: Mono,
    said: Mono,
    /// Failures since the last line.
    unsaid: u64,
    /// Failures altogether.
    count: u64,
}

/// What is wrong at the moment.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    lasting: BTreeMap<What, Lasting>,
}

impl Trouble {
    /// It has failed once more. Answers whether to say so, and how often it has failed without a line before.
    fn failed(&mut self, what: What, now: Mono) -> Option<u64> {
        let Some(lasting) = self.lasting.get_mut(&what) else {
            let first = Lasting {
                since: now,
                said: now,
                unsaid: 0,
                count: 1,
            };
            self.lasting.insert(what, first);
            return Some(0);
        };
        lasting.count += 1;
        if now.since(lasting.said) < SAY_AGAIN {
            lasting.unsaid += 1;
            return None;
        }
        lasting.said = now;
        Some(std::mem::take(&mut lasting.unsaid))
    }

    /// It has succeeded. Answers how long it had failed and how often, if it had.
    fn over(&mut self, what: What, now: Mono) -> Option<(Duration, u64)> {
        let lasting = self.lasting.remove(&what)?;
        Some((now.since(lasting.since), lasting.count))
    }
}

impl Core {
    /// Something has failed: says `text` if it is news, or has not been said for long.
    pub(super) fn trouble(&mut self, what: What, text: &dyn std::fmt::Display) {
        let now = self.now.mono;
        let Some(before) = self.groups.trouble.failed(what, now) else {
            return;
        };
        let more = if before == 0 {
            String::new()
        } else {
            format!(" (and {before} times more since this was last said)")
        };
        if what == What::Log {
            tracing::error!("{text}{more}");
        } else {
            tracing::warn!("{text}{more}");
        }
    }

    /// A trouble has become another one, which has lines of its own, or what it was about is gone.
    pub(super) fn trouble_forgotten(&mut self, what: What) {
        self.groups.trouble.lasting.remove(&what);
    }

    /// Something has succeeded that may have failed before.
    pub(super) fn trouble_over(&mut self, what: What) {
        let now = self.now.mono;
        if let Some((lasted, count)) = self.groups.trouble.over(what, now) {
            let text = what.over();
            tracing::info!("{text} (after {}s, {count} failures)", lasted.as_secs());
        }
    }

    /// Whether what this group wants to have written is not getting written.
    pub(super) fn is_held_up(&self, group: GroupId) -> bool {
        self.log_is_broken() && self.slot(group).is_some_and(|slot| slot.durable)
    }

    /// The log has just broken: everybody who waits for it is told what there is to tell.
    pub(super) fn log_has_broken(&mut self) {
        let groups: Vec<GroupId> = self.groups.slots.keys().copied().collect();
        for group in groups {
            if self.is_held_up(group) {
                self.release_held_up(group);
            }
        }
    }

    fn release_held_up(&mut self, group: GroupId) {
        let Some(slot) = self.slot_mut(group) else { return };
        let mut released = Vec::new();
        let open = std::iter::once(&mut slot.open.waiters);
        let sealed = slot.sealed.iter_mut().map(|entry| &mut entry.waiters);
        let proposed = slot.proposed.iter_mut().map(|entry| &mut entry.waiters);
        for waiters in open.chain(sealed).chain(proposed) {
            for (ordinal, waiter) in std::mem::take(waiters) {
                if ordinal == READ_ORDINAL || waiter.wants_an_answer() {
                    released.push((ordinal, waiter));
                } else {
                    waiters.push((ordinal, waiter));
                }
            }
        }
        let durable = slot.raft.persisted_index();
        let reads = slot.reads.take_beyond(durable);
        released.extend(reads.into_iter().map(|waiter| (READ_ORDINAL, waiter)));
        let early = slot.early.take_waiting();
        for (ordinal, waiter) in released {
            if ordinal == READ_ORDINAL {
                self.read(group, waiter);
            } else {
                self.end(waiter, Done::Refused(ApiErrorCode::ClusterNotAvail));
            }
        }
        for one in early {
            self.begin_behind(group, one);
        }
    }

    /// A read of a group that is held up: it may ask for what is committed, unless its connection has published what
    /// is not. Gives the waiter back if so.
    pub(super) fn may_read_committed(&mut self, group: GroupId, waiter: Waiter) -> Option<Waiter> {
        let slot = self.slot(group)?;
        let waits = match &waiter {
            Waiter::Api(job) => slot.is_behind(job.request()),
            Waiter::Ack(AckWaiter::Pull(request, _)) => slot.is_behind(request),
            Waiter::Ack(_) | Waiter::Source(_) | Waiter::Messages(_) | Waiter::Reform(_) | Waiter::Nobody => {
                false
            }
        };
        if waits {
            self.end(waiter, Done::Refused(ApiErrorCode::ClusterNotAvail));
            return None;
        }
        Some(waiter)
    }

    /// Reads of a group that is held up are confirmed, or not. Those that were asked for before the log broke are among
    /// them: what they would wait for is not applied any more, so each is judged now.
    pub(super) fn read_ended_held_up(&mut self, group: GroupId, outcome: ReadOutcome, waiters: Vec<Waiter>) {
        let since = self.now.mono;
        let waiters: Vec<Waiter> = waiters
            .into_iter()
            .filter_map(|waiter| self.may_read_committed(group, waiter))
            .collect();
        let Some(slot) = self.slot_mut(group) else { return };
        let lost = match outcome {
            ReadOutcome::At(index) if index <= slot.raft.persisted_index() => {
                return slot.reads.confirmed(waiters, index, since);
            }
            // Committed by others, and not applied here before this log is written again.
            ReadOutcome::At(_) => Done::Refused(ApiErrorCode::ClusterNotAvail),
            ReadOutcome::Dropped => Done::Lost,
        };
        for waiter in waiters {
            self.end(waiter, lost);
        }
    }

    /// A command for a group that is held up. What can be refused is; the rest waits in the group's next entry, and is
    /// bounded by what the leader has in hand.
    pub(super) fn refuse_held_up(&mut self, waiter: Waiter) -> Option<Waiter> {
        match waiter {
            Waiter::Api(job) => {
                self.end(
                    Waiter::Api(job),
                    Done::Refused(ApiErrorCode::InsufficientResources),
                );
                None
            }
            Waiter::Ack(AckWaiter::Acked {
                group,
                consumer,
                replies,
            }) => {
                self.acks_unanswered(group, &replies);
                Some(Waiter::Ack(AckWaiter::Acked {
                    group,
                    consumer,
                    replies: Vec::new(),
                }))
            }
            Waiter::Ack(_) | Waiter::Source(_) | Waiter::Messages(_) | Waiter::Reform(_) | Waiter::Nobody => {
                Some(waiter)
            }
        }
    }
}

impl Waiter {
    /// Whether a client waits for the end of a command.
    fn wants_an_answer(&self) -> bool {
        match self {
            Self::Api(_) => true,
            Self::Ack(AckWaiter::Acked { replies, .. }) => !replies.is_empty(),
            Self::Ack(_) | Self::Source(_) | Self::Messages(_) | Self::Reform(_) | Self::Nobody => false,
        }
    }
}

impl super::Slot {
    /// Whether the connection of a request has published something before it that is not applied. What nodes ask each
    /// other is answered from what there is.
    fn is_behind(&self, request: &Request) -> bool {
        let Machine::Stream(stream) = &self.machine else {
            return false;
        };
        let judged = stream.windows().position(request.id.sender);
        request.after > 0
            && !crate::api::is_between_nodes(request)
            && judged.is_none_or(|(last, _)| last < request.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_said_when_it_begins_once_a_minute_and_when_it_ends() {
        let mut trouble = Trouble::default();
        let at = |seconds: u64| Mono(seconds * 1_000_000_000);
        assert_eq!(trouble.over(What::Blocks, at(0)), None);
        assert_eq!(trouble.failed(What::Blocks, at(1)), Some(0));
        for second in 2..61 {
            assert_eq!(trouble.failed(What::Blocks, at(second)), None);
        }
        assert_eq!(trouble.failed(What::Log, at(60)), Some(0), "another trouble");
        assert_eq!(trouble.failed(What::Blocks, at(61)), Some(59));
        assert_eq!(trouble.failed(What::Blocks, at(62)), None);
        assert_eq!(
            trouble.over(What::Blocks, at(70)),
            Some((Duration::from_secs(69), 62))
        );
        assert_eq!(trouble.failed(What::Blocks, at(71)), Some(0));
    }
}
