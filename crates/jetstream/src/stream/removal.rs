//! Messages leave the stream: limits, rollups, purges, deletions, and retention by interest or work queue.
//!
//! What a command removes beyond itself is left as a [`Task`]; tasks run to their end before the next command, in
//! the order in which they were left, a unit of the budget for each message. The start of the stream leaves as one,
//! whatever its length: the store drops whole blocks, and frees memory and files later.

use super::{Budget, CommandOutcome, Effects, Halt, Progress, Stream};
use crate::config::{Discard, MAX_FIRST_SEQ, Retention};
use bytes::Bytes;
use std::cmp::max;
use tidelock_base::{ApiError, ApiErrorCode, ConsumerId, StreamSeq};
use tidelock_store::{Filters, Purge, PurgeStep, RemoveError, Removed, StoreKind};
use tidelock_subject::SubjectFilter;

/// Why a message left the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// `max_msgs`, `max_bytes` or `max_msgs_per_subject`.
    Limit,
    /// `max_age`.
    Age,
    /// Its own TTL.
    Ttl,
    /// A later message with `Nats-Rollup`.
    Rollup,
    /// STREAM.PURGE.
    Purge,
    /// STREAM.MSG.DELETE.
    Deleted,
    /// Consumers are done with it (interest and work-queue retention).
    Acked,
    /// No consumer wants it any more (interest retention).
    NoInterest,
}

/// Work that a command has left.
#[derive(Clone, Debug)]
pub(super) enum Task {
    /// Only so many messages stay on this subject.
    KeepNewest { subject: Bytes, keep: u64, why: Removal },
    /// Discard old: the oldest leave until `max_msgs` and `max_bytes` are met.
    Trim,
    /// The start of the stream leaves as one.
    RemoveFirst(Purge, Removal),
    /// Messages that match leave, oldest first: those from `next` on and below `before`, `left` at most.
    RemoveMatching {
        filters: Filters,
        next: StreamSeq,
        before: StreamSeq,
        left: u64,
        why: Removal,
    },
    /// Interest retention: of the messages that match, those from `next` on leave that no consumer wants.
    Reconsider { filters: Filters, next: StreamSeq },
    /// A consumer without acknowledgements has delivered what it wants of `next..=last`.
    FreeThrough {
        consumer: ConsumerId,
        next: StreamSeq,
        last: StreamSeq,
    },
    /// `max_msgs_per_subject` has been lowered: these subjects have more, the last of them comes first. `None`: they
    /// have not been looked for yet.
    TrimSubjects { subjects: Option<Vec<Bytes>> },
}

impl Task {
    /// Everything below `first` leaves.
    pub(super) fn remove_below(first: StreamSeq, why: Removal) -> Self {
        Self::RemoveFirst(Purge::new(Filters::all(), Some(first), 0), why)
    }
}

impl Stream {
    /// Runs what is left to be done, to its end or until it halts.
    pub(super) fn run_tasks(&mut self, budget: &mut Budget, fx: &mut impl Effects) -> Result<(), Halt> {
        loop {
            self.run_freed(budget, fx)?;
            let Some(mut task) = self.tasks.pop_front() else {
                return Ok(());
            };
            if let Err(halt) = self.run_task(&mut task, budget, fx) {
                self.tasks.push_front(task);
                return Err(halt);
            }
        }
    }

    fn run_task(&mut self, task: &mut Task, budget: &mut Budget, fx: &mut impl Effects) -> Result<(), Halt> {
        match task {
            Task::KeepNewest { subject, keep, why } => self.keep_newest(subject, *keep, *why, budget, fx),
            Task::Trim => self.trim(budget, fx),
            Task::RemoveFirst(purge, why) => self.remove_first(purge, *why, budget, fx),
            Task::RemoveMatching {
                filters,
                next,
                before,
                left,
                why,
            } => {
                while *left > 0 {
                    budget.ready()?;
                    let Some(seq) = self.next_matching(*next, filters)?.filter(|seq| seq < before) else {
                        break;
                    };
                    self.remove(seq, *why, fx)?;
                    budget.spend();
                    *next = seq.next();
                    *left -= 1;
                }
                Ok(())
            }
            Task::Reconsider { filters, next } => loop {
                budget.ready()?;
                let Some(seq) = self.next_matching(*next, filters)? else {
                    return Ok(());
                };
                if !self.is_wanted(seq)? {
                    self.remove(seq, Removal::NoInterest, fx)?;
                }
                budget.spend();
                *next = seq.next();
            },
            Task::FreeThrough { consumer, next, last } => loop {
                budget.ready()?;
                let Some(filters) = self.consumers.get(consumer).map(super::Consumer::filters) else {
                    return Ok(());
                };
                let Some(seq) = self.next_matching(*next, filters)?.filter(|seq| seq <= last) else {
                    return Ok(());
                };
                self.free(seq, fx)?;
                budget.spend();
                *next = seq.next();
            },
            Task::TrimSubjects { subjects } => self.trim_subjects(subjects, budget, fx),
        }
    }

    /// Messages that acknowledgements have set free.
    fn run_freed(&mut self, budget: &mut Budget, fx: &mut impl Effects) -> Result<(), Halt> {
        while let Some(seq) = self.freed.front().copied() {
            budget.ready()?;
            self.free(seq, fx)?;
            self.freed.pop_front();
            budget.spend();
        }
        Ok(())
    }

    /// A consumer is done with a message: it leaves a work queue at once, and an interest stream if nobody else wants
    /// it.
    fn free(&mut self, seq: StreamSeq, fx: &mut impl Effects) -> Result<(), Halt> {
        let leaves = match self.config.retention {
            Retention::Limits => false,
            Retention::WorkQueue => true,
            Retention::Interest => !self.is_wanted(seq)?,
        };
        if leaves {
            self.remove(seq, Removal::Acked, fx)?;
        }
        Ok(())
    }

    /// Whether a consumer whose filter matches has not yet done with a message.
    fn is_wanted(&self, seq: StreamSeq) -> Result<bool, Halt> {
        let mut subject = None;
        for consumer in self
            .consumers
            .values()
            .filter(|consumer| consumer.still_wants(seq))
        {
            if consumer.filters().is_all() {
                return Ok(true);
            }
            if subject.is_none() {
                // A message that is gone needs no more looking at.
                let Some(outline) = self.store.outline(seq)? else {
                    return Ok(false);
                };
                subject = Some(outline.subject);
            }
            if subject
                .as_ref()
                .is_some_and(|subject| consumer.filters().matches(subject))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn next_matching(
        &self,
        from: StreamSeq,
        filters: &Filters,
    ) -> Result<Option<StreamSeq>, Halt> {
        Ok(self.store.next_matching(from, filters)?)
    }

    /// Removes one message, if it is there.
    pub(super) fn remove(
        &mut self,
        seq: StreamSeq,
        why: Removal,
        fx: &mut impl Effects,
    ) -> Result<Option<Removed>, Halt> {
        match self.store.remove(seq) {
            Ok(removed) => {
                self.gone(seq, why, fx);
                Ok(Some(removed))
            }
            Err(RemoveError::Missing) => Ok(None),
            Err(RemoveError::Need(need)) => Err(Halt::Need(need)),
            Err(RemoveError::Damaged(seq)) => Err(Halt::Damaged(seq)),
        }
    }

    fn gone(&mut self, seq: StreamSeq, why: Removal, fx: &mut impl Effects) {
        self.task_removed += 1;
        self.running.mix(seq.0.rotate_left(32));
        self.ttl.forget(seq);
        for consumer in self.consumers.values_mut() {
            consumer.message_gone(seq);
        }
        fx.removed(seq, why);
    }

    /// Removes the start of the stream: for everybody outside at once, and in the store bit by bit.
    fn remove_first(
        &mut self,
        purge: &mut Purge,
        why: Removal,
        budget: &mut Budget,
        fx: &mut impl Effects,
    ) -> Result<(), Halt> {
        budget.ready()?;
        match self.store.purge(purge, budget.0) {
            // The store walks over what is there; where it finds nothing, it is through.
            Ok(PurgeStep::Done) | Err(RemoveError::Missing) => budget.spend(),
            Ok(PurgeStep::More) => {
                budget.0 = 0;
                return Err(Halt::More);
            }
            Err(RemoveError::Need(need)) => return Err(Halt::Need(need)),
            Err(RemoveError::Damaged(seq)) => return Err(Halt::Damaged(seq)),
        }
        if purge.purged() == 0 {
            return Ok(());
        }
        let first = self
            .store
            .oldest()
            .map_or_else(|| self.store.last_seq().next(), |(seq, _)| seq);
        self.task_removed += purge.purged();
        self.running.mix(purge.purged());
        self.gone_below(first, why, fx);
        Ok(())
    }

    fn gone_below(&mut self, first: StreamSeq, why: Removal, fx: &mut impl Effects) {
        self.running.mix(first.0.rotate_left(32));
        self.ttl.forget_below(first);
        for consumer in self.consumers.values_mut() {
            consumer.messages_gone_below(first);
        }
        fx.removed_below(first, why);
    }

    fn keep_newest(
        &mut self,
        subject: &[u8],
        keep: u64,
        why: Removal,
        budget: &mut Budget,
        fx: &mut impl Effects,
    ) -> Result<(), Halt> {
        while self
            .store
            .subject_state(subject)
            .is_some_and(|subject| subject.count > keep)
        {
            budget.ready()?;
            match self.store.remove_oldest_of(subject) {
                Ok(trimmed) => self.gone(trimmed.seq, why, fx),
                Err(RemoveError::Missing) => return Ok(()),
                Err(RemoveError::Need(need)) => return Err(Halt::Need(need)),
                Err(RemoveError::Damaged(seq)) => return Err(Halt::Damaged(seq)),
            }
            budget.spend();
        }
        Ok(())
    }

    /// Whether discard old has to make room. With discard new nothing leaves a stream whose limits were lowered: it takes
    /// no more until there is room.
    pub(super) fn is_over_limits(&self) -> bool {
        self.config.discard == Discard::Old
            && (self.config.max_msgs.is_some_and(|max| self.store.msgs() > max)
                || self.config.max_bytes.is_some_and(|max| self.store.bytes() > max))
    }

    fn trim(&mut self, budget: &mut Budget, fx: &mut impl Effects) -> Result<(), Halt> {
        while self.is_over_limits() {
            budget.ready()?;
            let Some((seq, _)) = self.store.oldest() else {
                return Ok(());
            };
            self.remove(seq, Removal::Limit, fx)?;
            budget.spend();
        }
        Ok(())
    }

    fn trim_subjects(
        &mut self,
        subjects: &mut Option<Vec<Bytes>>,
        budget: &mut Budget,
        fx: &mut impl Effects,
    ) -> Result<(), Halt> {
        let Some(keep) = self.config.max_msgs_per_subject else {
            return Ok(());
        };
        let subjects = subjects.get_or_insert_with(|| {
            let mut all = self.store.subjects(None);
            let mut over = Vec::new();
            while let Some((subject, state)) = all.next() {
                if state.count > keep {
                    over.push(Bytes::copy_from_slice(subject));
                }
            }
            over.reverse();
            over
        });
        while let Some(subject) = subjects.last() {
            self.keep_newest(subject, keep, Removal::Limit, budget, fx)?;
            subjects.pop();
        }
        Ok(())
    }

    /// STREAM.PURGE. It ends in one of two ways: at once for a prefix of the stream, else through a task. Without a
    /// filter, a sequence beyond the end is the one that the next message gets.
    pub(super) fn purge(
        &mut self,
        filter: Option<&[u8]>,
        upto: Option<StreamSeq>,
        keep: Option<u64>,
        progress: &mut Progress,
        budget: &mut Budget,
        fx: &mut impl Effects,
    ) -> Result<CommandOutcome, Halt> {
        if !progress.started {
            match self.begin_purge(filter, upto, keep) {
                Ok(task) => self.tasks.push_back(task),
                Err(error) => return Ok(CommandOutcome::Refused(error)),
            }
            progress.started = true;
        }
        self.run_tasks(budget, fx)?;
        let takes_all = filter.is_none_or(|filter| filter == b">");
        if let Some(first) = upto.filter(|first| takes_all && *first > self.store.last_seq().next()) {
            // No message is new, so the time of the last one stays.
            self.store
                .skip(StreamSeq(first.0 - 1), self.store.state().last_ts);
            self.gone_below(first, Removal::Purge, fx);
        }
        Ok(CommandOutcome::Purged(self.task_removed))
    }

    fn begin_purge(
        &self,
        filter: Option<&[u8]>,
        upto: Option<StreamSeq>,
        keep: Option<u64>,
    ) -> Result<Task, ApiError> {
        if self.config.sealed {
            return Err(ApiErrorCode::StreamSealed.into());
        }
        if self.config.deny_purge {
            return Err(ApiError::text(
                ApiErrorCode::StreamPurgeFailedF,
                "stream purge not permitted",
            ));
        }
        if upto.is_some_and(|upto| upto.0 > MAX_FIRST_SEQ) {
            return Err(ApiError::text(
                ApiErrorCode::StreamPurgeFailedF,
                format!("sequence can not be above {MAX_FIRST_SEQ}"),
            ));
        }
        let end = self.store.last_seq().next();
        let before = upto.map_or(end, |upto| upto.min(end));
        let filters = match filter.map(SubjectFilter::try_from) {
            None => Filters::all(),
            Some(Ok(filter)) => Filters::one(filter),
            Some(Err(_)) => return Err(ApiErrorCode::BadRequest.into()),
        };
        if filters.is_all() {
            let purge = Purge::new(filters, Some(before), keep.unwrap_or(0));
            return Ok(Task::RemoveFirst(purge, Removal::Purge));
        }
        let left = match keep {
            Some(keep) => self
                .store
                .count_matching(StreamSeq(0), &filters)
                .saturating_sub(keep),
            None => u64::MAX,
        };
        Ok(Task::RemoveMatching {
            filters,
            next: StreamSeq(0),
            before,
            left,
            why: Removal::Purge,
        })
    }

    /// STREAM.MSG.DELETE.
    pub(super) fn msg_delete(
        &mut self,
        seq: StreamSeq,
        fx: &mut impl Effects,
    ) -> Result<CommandOutcome, Halt> {
        let refused = |error| Ok(CommandOutcome::Refused(error));
        if self.config.sealed {
            return refused(ApiErrorCode::StreamSealed.into());
        }
        let failed = |text| ApiError::text(ApiErrorCode::StreamMsgDeleteFailedF, text);
        if self.config.deny_delete {
            return refused(failed("message delete not permitted"));
        }
        // Two storages, two sets of answers: clients have seen both.
        let state = self.store.state();
        if self.store.config().kind == StoreKind::File && seq > state.last_seq {
            return refused(failed("stream store EOF"));
        }
        if self.store.config().kind == StoreKind::File && seq < max(state.first_seq, StreamSeq(1)) {
            return refused(failed("no message found"));
        }
        match self.remove(seq, Removal::Deleted, fx)? {
            Some(_) => Ok(CommandOutcome::Done),
            None => refused(ApiError::with(
                ApiErrorCode::SequenceNotFound,
                &[&seq.to_string()],
            )),
        }
    }

    /// What a message counts against `max_bytes`, headers apart: where they make a difference, of 4 bytes, less is
    /// said than the truth, which errs on the side of the limit.
    pub(super) fn size_of(&self, seq: StreamSeq) -> Result<u64, Halt> {
        let fixed = match self.store.config().kind {
            StoreKind::File => 30,
            StoreKind::Memory => 16,
        };
        Ok(self
            .store
            .outline(seq)?
            .map_or(0, |outline| outline.content_bytes + fixed))
    }

    /// Interest retention: looks at what a consumer that is gone, or wants other subjects now, may have held.
    pub(super) fn reconsider(&mut self, filters: Filters, from: StreamSeq) {
        if self.config.retention != Retention::Interest {
            return;
        }
        // Without any consumer nothing is wanted, and everything can leave at once.
        self.tasks.push_back(if self.consumers.is_empty() {
            Task::remove_below(self.store.last_seq().next(), Removal::NoInterest)
        } else {
            Task::Reconsider {
                filters,
                next: max(from, StreamSeq(1)),
            }
        });
    }

    /// Limits were lowered, or apply from now on.
    pub(super) fn trim_all(&mut self) {
        if self.config.max_msgs_per_subject.is_some() {
            self.tasks.push_back(Task::TrimSubjects { subjects: None });
        }
        if self.is_over_limits() {
            self.tasks.push_back(Task::Trim);
        }
    }
}
