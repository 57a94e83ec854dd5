//! Commands that concern consumers, and a consumer as the stream holds it.

use super::removal::Task;
use super::ttl::decode_seqs;
use super::{
    Advisory, ApplyError, Budget, CommandOutcome, ConsumerChange, Effects, Entry, Gone, Halt, Stream,
};
use crate::codec::{Malformed, Put, PutSection, Reader};
use crate::command::{Command, Seqs, SetAction};
use crate::config::{ConsumerConfig, DeliverFrom, Retention, check_consumer_update};
use crate::consumer::{AckKind, AckOutcome, ConsumerState, Position};
use roaring::RoaringTreemap;
use std::sync::Arc;
use tidelock_base::{ApiError, ApiErrorCode, ConsumerId, StreamSeq, Wall};
use tidelock_store::{Filters, Need, Unanswered};

/// A consumer of the stream.
#[derive(Clone, Debug)]
pub struct Consumer {
    name: Arc<str>,
    state: ConsumerState,
    filters: Filters,
    /// Deliver policy "last per subject", until the consumer has got through it.
    initial: Option<Initial>,
}

/// What a consumer with deliver policy "last per subject" delivers first.
#[derive(Clone, Debug, PartialEq)]
struct Initial {
    /// The newest message of each subject when the consumer was created, less those that are gone.
    seqs: RoaringTreemap,
    /// Last sequence of the stream then: beyond it everything that matches is delivered.
    last: StreamSeq,
}

/// What a consumer is to deliver next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextMessage {
    /// This one.
    Seq(StreamSeq),
    /// Nothing, so far.
    End,
    /// This must be read first; ask again then.
    Cold(Need),
    /// The block of this message is damaged and must come from another replica.
    Damaged(StreamSeq),
}

impl Consumer {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its incarnation.
    #[must_use]
    pub const fn id(&self) -> ConsumerId {
        self.state.id()
    }

    /// Its configuration.
    #[must_use]
    pub const fn config(&self) -> &ConsumerConfig {
        self.state.config()
    }

    /// What it has delivered, and what of that is acknowledged.
    #[must_use]
    pub const fn state(&self) -> &ConsumerState {
        &self.state
    }

    /// Which messages it wants.
    #[must_use]
    pub const fn filters(&self) -> &Filters {
        &self.filters
    }

    pub(super) const fn state_mut(&mut self) -> &mut ConsumerState {
        &mut self.state
    }

    /// Whether it has not yet done with a message of a subject that it wants.
    pub(super) fn still_wants(&self, seq: StreamSeq) -> bool {
        self.state.still_wants(seq) && self.initial.as_ref().is_none_or(|initial| initial.covers(seq))
    }

    pub(super) fn message_gone(&mut self, seq: StreamSeq) {
        self.state.stream_removed(seq);
        if let Some(initial) = &mut self.initial {
            initial.seqs.remove(seq.0);
        }
    }

    pub(super) fn messages_gone_below(&mut self, first: StreamSeq) {
        self.state.stream_purged(first);
        if let Some(initial) = &mut self.initial {
            initial.seqs.remove_range(..first.0);
        }
    }

    fn moved(&mut self) {
        let delivered = self.state.delivered().stream_seq;
        if self
            .initial
            .as_ref()
            .is_some_and(|initial| initial.last <= delivered)
        {
            self.initial = None;
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_sized(&self.config().encode());
        out.put_section(|section| self.state.encode(section));
        match &self.initial {
            None => out.put_u64(0),
            Some(initial) => {
                out.put_u64(initial.last.0);
                out.put_section(|section| {
                    initial
                        .seqs
                        .serialize_into(section)
                        .expect("a Vec takes all of it");
                });
            }
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, ApplyError> {
        let malformed = |error: Malformed| ApplyError::Command(error.into());
        let config = ConsumerConfig::decode(reader.sized("consumer: config").map_err(malformed)?)
            .map_err(ApplyError::Config)?;
        let state = reader.sized("consumer: state").map_err(malformed)?;
        let state = ConsumerState::decode(state, config.clone()).map_err(malformed)?;
        let last = StreamSeq(reader.u64("consumer: initial").map_err(malformed)?);
        let initial = match last.0 {
            0 => None,
            _ => Some(Initial {
                last,
                seqs: decode_seqs(reader).map_err(malformed)?,
            }),
        };
        Ok(Self {
            name: config.name.as_str().into(),
            filters: Filters::new(config.filters.iter().cloned()),
            state,
            initial,
        })
    }
}

impl Initial {
    fn covers(&self, seq: StreamSeq) -> bool {
        seq > self.last || self.seqs.contains(seq.0)
    }
}

impl Stream {
    /// All consumers, in the order in which they were created.
    pub fn consumers(&self) -> impl Iterator<Item = &Consumer> {
        self.consumers.values()
    }

    /// The consumers that users see: without those by which other streams copy this one.
    pub fn users_consumers(&self) -> impl Iterator<Item = &Consumer> {
        self.consumers().filter(|consumer| !consumer.config().direct)
    }

    /// The consumer with this name.
    #[must_use]
    pub fn consumer(&self, name: &str) -> Option<&Consumer> {
        self.consumers.get(self.names.get(name)?)
    }

    /// The consumer of this incarnation.
    #[must_use]
    pub fn consumer_by_id(&self, id: ConsumerId) -> Option<&Consumer> {
        self.consumers.get(&id)
    }

    /// What a consumer is to deliver after a position: the first message at or after `from` that it wants. Messages
    /// for redelivery are in its state.
    #[must_use]
    pub fn next_for(&self, consumer: &Consumer, from: StreamSeq) -> NextMessage {
        let mut from = from;
        if let Some(initial) = consumer.initial.as_ref().filter(|initial| from <= initial.last) {
            let mut left = initial.seqs.iter();
            left.advance_to(from.0);
            if let Some(seq) = left.next() {
                return NextMessage::Seq(StreamSeq(seq));
            }
            from = initial.last.next();
        }
        match self.store.next_matching(from, &consumer.filters) {
            Ok(next) => next.map_or(NextMessage::End, NextMessage::Seq),
            Err(Unanswered::Need(need)) => NextMessage::Cold(need),
            Err(Unanswered::Damaged(seq)) => NextMessage::Damaged(seq),
        }
    }

    /// How many messages a consumer has yet to deliver from a position on (`num_pending`), redeliveries apart.
    #[must_use]
    pub fn pending_for(&self, consumer: &Consumer, from: StreamSeq) -> u64 {
        match consumer.initial.as_ref().filter(|initial| from <= initial.last) {
            Some(initial) => {
                initial.seqs.range_cardinality(from.0..)
                    + self.store.count_matching(initial.last.next(), &consumer.filters)
            }
            None => self.store.count_matching(from, &consumer.filters),
        }
    }

    // --- create, update, delete ---

    pub(super) fn consumer_set(
        &mut self,
        action: SetAction,
        max_consumers: u32,
        name: &str,
        config: &[u8],
        fx: &mut impl Effects,
    ) -> Result<CommandOutcome, Halt> {
        let config = ConsumerConfig::decode(config).map_err(ApplyError::Config)?;
        let refused = |error: ApiError| Ok(CommandOutcome::Refused(error));
        if config.name != name {
            return refused(ApiErrorCode::BadRequest.into());
        }
        let present = self.names.get(name).copied();
        if let Some(consumer) = present.and_then(|id| self.consumers.get(&id)) {
            if *consumer.config() == config {
                return Ok(CommandOutcome::Consumer {
                    id: consumer.id(),
                    created: false,
                });
            }
            if action == SetAction::Create {
                return refused(ApiErrorCode::ConsumerAlreadyExists.into());
            }
            if let Err(error) = check_consumer_update(consumer.config(), &config) {
                return refused(error);
            }
        } else if action == SetAction::Update {
            return refused(ApiErrorCode::ConsumerDoesNotExist.into());
        } else if self.has_all_consumers(max_consumers) && !config.direct {
            return refused(ApiErrorCode::MaximumConsumersLimit.into());
        }
        if let Err(error) = self.check_work_queue(&config) {
            return refused(error);
        }
        match present {
            Some(id) => Ok(self.consumer_update(id, config, fx)),
            None => self.consumer_create(config, fx),
        }
    }

    /// Consumers that servers made for mirrors and sources do not count.
    fn has_all_consumers(&self, max_consumers: u32) -> bool {
        let max = self
            .config
            .max_consumers
            .map_or(max_consumers, |own| own.min(max_consumers));
        self.users_consumers().count() as u64 >= u64::from(max)
    }

    /// Each message of a work queue is for one consumer: filters must not overlap. Consumers that servers made for
    /// mirrors and sources are exempt.
    fn check_work_queue(&self, config: &ConsumerConfig) -> Result<(), ApiError> {
        if self.config.retention != Retention::WorkQueue || config.direct || config.sourcing {
            return Ok(());
        }
        let others = self.consumers.values().filter(|other| {
            *other.name != *config.name && !other.config().direct && !other.config().sourcing
        });
        for other in others {
            if config.filters.is_empty() {
                return Err(ApiErrorCode::ConsumerWQMultipleUnfiltered.into());
            }
            let theirs = &other.config().filters;
            let meet =
                |own| theirs.is_empty() || theirs.iter().any(|their| tidelock_subject::overlaps(own, their));
            if config.filters.iter().any(|own| meet(own)) {
                return Err(ApiErrorCode::ConsumerWQConsumerNotUnique.into());
            }
        }
        Ok(())
    }

    fn consumer_create(
        &mut self,
        config: ConsumerConfig,
        fx: &mut impl Effects,
    ) -> Result<CommandOutcome, Halt> {
        let filters = Filters::new(config.filters.iter().cloned());
        let (start, initial) = self.starting_position(config.deliver_from, &filters)?;
        let id = self.next_consumer;
        self.next_consumer = id.next();
        self.running.mix(id.0);
        self.running.mix(start.0);
        let name: Arc<str> = config.name.as_str().into();
        let consumer = Consumer {
            name: name.clone(),
            state: ConsumerState::new(id, 0, config, self.clock, start),
            filters,
            initial,
        };
        self.names.insert(name, id);
        self.consumers.insert(id, consumer);
        fx.consumer_changed(id, ConsumerChange::Created);
        Ok(CommandOutcome::Consumer { id, created: true })
    }

    /// Where a consumer starts: its first sequence. It does not lie before the stream's first message, but beyond its
    /// last if a configured sequence does: then what comes before it is not for this consumer.
    fn starting_position(
        &self,
        from: DeliverFrom,
        filters: &Filters,
    ) -> Result<(StreamSeq, Option<Initial>), Halt> {
        let end = self.store.last_seq().next();
        let first = self.store.oldest().map_or(end, |(seq, _)| seq);
        let start = match from {
            DeliverFrom::First => first,
            // The last one that there was, if nothing is chosen from.
            DeliverFrom::Last if filters.is_all() => self.store.last_seq(),
            DeliverFrom::Last => self.store.last_matching(filters).unwrap_or(end),
            DeliverFrom::New => end,
            DeliverFrom::Seq(seq) => StreamSeq(seq),
            DeliverFrom::Time(time) => self.store.seq_at_or_after(time)?,
            // With one message a subject, the last of each subject is all there is.
            DeliverFrom::LastPerSubject if self.config.max_msgs_per_subject == Some(1) => first,
            DeliverFrom::LastPerSubject => {
                let last = self.store.last_seq();
                let each = self.store.multi_last(filters, StreamSeq(0), last, usize::MAX);
                let seqs: RoaringTreemap = each
                    .unwrap_or_default()
                    .into_iter()
                    .map(StreamSeq::value)
                    .collect();
                let start = seqs.min().map_or(end, StreamSeq);
                let initial = (!seqs.is_empty()).then_some(Initial { seqs, last });
                return Ok((start, initial));
            }
        };
        let is_configured = matches!(from, DeliverFrom::Seq(_));
        let most = if is_configured { start.max(end) } else { end };
        Ok((start.clamp(first, most), None))
    }

    fn consumer_update(
        &mut self,
        id: ConsumerId,
        config: ConsumerConfig,
        fx: &mut impl Effects,
    ) -> CommandOutcome {
        let filters = Filters::new(config.filters.iter().cloned());
        let mut held = None;
        if let Some(consumer) = self.consumers.get_mut(&id) {
            consumer.state.update(config, &mut |expired| {
                fx.advisory(&Advisory::MaxDeliveries {
                    consumer: id,
                    seq: expired.seq,
                    deliveries: expired.count,
                });
            });
            if consumer.filters != filters {
                held = Some((
                    std::mem::replace(&mut consumer.filters, filters),
                    first_held(consumer),
                ));
            }
        }
        self.running.mix(id.0);
        if let Some((filters, from)) = held {
            self.reconsider(filters, from);
        }
        fx.consumer_changed(id, ConsumerChange::Updated);
        CommandOutcome::Consumer { id, created: false }
    }

    pub(super) fn consumer_delete(&mut self, name: &str, fx: &mut impl Effects) -> CommandOutcome {
        match self.names.get(name).copied() {
            Some(id) => {
                self.drop_consumer(id, Gone::Deleted, fx);
                CommandOutcome::Done
            }
            None => CommandOutcome::Refused(ApiErrorCode::ConsumerNotFound.into()),
        }
    }

    pub(super) fn delete_if_idle(
        &mut self,
        id: ConsumerId,
        activity: u64,
        fx: &mut impl Effects,
    ) -> CommandOutcome {
        match self.consumers.get(&id) {
            Some(consumer) if consumer.state.activity() == activity => {
                self.drop_consumer(id, Gone::Inactive, fx);
                CommandOutcome::Done
            }
            Some(_) | None => CommandOutcome::Stale,
        }
    }

    fn drop_consumer(&mut self, id: ConsumerId, why: Gone, fx: &mut impl Effects) {
        let Some(consumer) = self.consumers.remove(&id) else {
            return;
        };
        self.names.remove(&consumer.name);
        self.running.mix(!id.0);
        self.reconsider(consumer.filters.clone(), first_held(&consumer));
        fx.consumer_gone(id, &consumer.name, why);
    }

    // --- deliveries and acknowledgements ---

    pub(super) fn deliver(
        &mut self,
        id: ConsumerId,
        epoch: u32,
        seqs: Seqs<'_>,
        entry: &mut Entry,
        budget: &mut Budget,
        fx: &mut impl Effects,
    ) -> Result<(), Halt> {
        let clock = self.clock;
        let Some(consumer) = self
            .consumers
            .get(&id)
            .filter(|it| it.state.accepts_deliver(epoch))
        else {
            return Ok(());
        };
        let without_acks = consumer.config().ack_policy == crate::config::AckPolicy::None;
        let frees = without_acks && self.config.retention != Retention::Limits;
        while let Some(seq) = usize::try_from(entry.progress.done)
            .ok()
            .and_then(|at| seqs.at(at))
        {
            budget.ready()?;
            let Some(consumer) = self.consumers.get_mut(&id) else {
                break;
            };
            entry.progress.done += 1;
            budget.spend();
            // It may have left the stream since the leader picked it.
            if !self.store.contains(seq) {
                consumer.state.skip_to(seq);
                continue;
            }
            let running = &mut self.running;
            consumer
                .state
                .deliver(std::iter::once(seq), clock, &mut |delivered| {
                    running.mix(delivered.stream_seq.0);
                    running.mix(delivered.deliver_seq.0);
                    fx.delivered(id, &delivered);
                });
            if frees {
                self.freed.push_back(seq);
                // Before the next one, as it would be if this replica stopped here.
                self.run_tasks(budget, fx)?;
            }
        }
        if let Some(consumer) = self.consumers.get_mut(&id) {
            consumer.moved();
        }
        Ok(())
    }

    pub(super) fn acks(
        &mut self,
        command: &Command<'_>,
        entry: &mut Entry,
        budget: &mut Budget,
        fx: &mut impl Effects,
    ) -> Result<(), Halt> {
        let Command::Acks {
            consumer,
            epoch,
            verb,
            ranges,
            reason,
        } = *command
        else {
            return Ok(());
        };
        while let Some((from, to)) = usize::try_from(entry.progress.done)
            .ok()
            .and_then(|at| ranges.at(at))
        {
            let Some(slot) = self
                .consumers
                .get(&consumer)
                .filter(|it| it.state.accepts_ack(epoch))
            else {
                break;
            };
            let last = to.min(slot.state.delivered().stream_seq);
            let mut seq = from.max(entry.progress.next).max(StreamSeq(1));
            while seq <= last {
                budget.ready()?;
                self.ack_one(consumer, seq, verb, reason, fx);
                seq = seq.next();
                entry.progress.next = seq;
                budget.spend();
                self.run_tasks(budget, fx)?;
            }
            entry.progress.next = StreamSeq(0);
            entry.progress.done += 1;
        }
        // Whoever waits for the acknowledgement is answered even if it changed nothing.
        fx.acked(entry.ordinal);
        Ok(())
    }

    fn ack_one(
        &mut self,
        id: ConsumerId,
        seq: StreamSeq,
        kind: AckKind,
        reason: &[u8],
        fx: &mut impl Effects,
    ) {
        let Some(consumer) = self.consumers.get_mut(&id) else {
            return;
        };
        let frees = self.config.retention != Retention::Limits;
        let freed = &mut self.freed;
        let outcome = consumer.state.ack(seq, kind, self.clock, &mut |seq| {
            if frees {
                freed.push_back(seq);
            }
        });
        self.running.mix(seq.0);
        match outcome {
            AckOutcome::Done { deliver_seq, count } if kind == AckKind::Term => {
                fx.advisory(&Advisory::Terminated {
                    consumer: id,
                    seq,
                    deliver_seq,
                    deliveries: count,
                    reason,
                });
            }
            AckOutcome::Naked {
                deliver_seq,
                count,
                exhausted,
            } => {
                fx.advisory(&Advisory::Naked {
                    consumer: id,
                    seq,
                    deliver_seq,
                    deliveries: count,
                });
                if exhausted {
                    fx.advisory(&Advisory::MaxDeliveries {
                        consumer: id,
                        seq,
                        deliveries: count,
                    });
                } else {
                    fx.consumer_changed(id, ConsumerChange::Redeliver);
                }
            }
            AckOutcome::Done { .. } | AckOutcome::DoneLate | AckOutcome::Extended | AckOutcome::Ignored => {}
        }
    }

    pub(super) fn consumer_progress(&mut self, id: ConsumerId, epoch: u32, to: Position) -> CommandOutcome {
        let Some(consumer) = self
            .consumers
            .get_mut(&id)
            .filter(|it| it.state.accepts_deliver(epoch))
        else {
            return CommandOutcome::Stale;
        };
        // Nothing beyond the end of the stream can have been delivered.
        let to = Position {
            stream_seq: to.stream_seq.min(self.store.last_seq()),
            ..to
        };
        let before = consumer.state.progress(to, self.clock);
        consumer.moved();
        self.running.mix(to.stream_seq.0);
        if self.config.retention != Retention::Limits && to > before {
            self.tasks.push_back(Task::FreeThrough {
                consumer: id,
                next: before.stream_seq.next(),
                last: to.stream_seq,
            });
        }
        CommandOutcome::Done
    }

    // --- reset, pause ---

    pub(super) fn consumer_reset(
        &mut self,
        name: &str,
        seq: Option<StreamSeq>,
        fx: &mut impl Effects,
    ) -> Result<CommandOutcome, Halt> {
        let Some(consumer) = self.consumer(name) else {
            return Ok(CommandOutcome::Refused(ApiErrorCode::ConsumerNotFound.into()));
        };
        let id = consumer.id();
        let seq = match seq {
            None => consumer.state.done_floor().stream_seq.next(),
            Some(seq) => match self.check_reset(consumer, seq)? {
                None => seq,
                Some(reason) => {
                    let error = ApiError::with(ApiErrorCode::ConsumerInvalidReset, &[reason]);
                    return Ok(CommandOutcome::Refused(error));
                }
            },
        };
        if let Some(consumer) = self.consumers.get_mut(&id) {
            consumer.state.reset(seq);
            consumer.moved();
        }
        self.running.mix(seq.0);
        fx.consumer_changed(id, ConsumerChange::Reset);
        Ok(CommandOutcome::Reset { id, seq })
    }

    /// Why a consumer cannot be set to a sequence (ADR-60).
    fn check_reset(&self, consumer: &Consumer, seq: StreamSeq) -> Result<Option<&'static str>, Halt> {
        Ok(match consumer.config().deliver_from {
            DeliverFrom::First => None,
            DeliverFrom::Seq(start) => (seq.0 < start).then_some("below start seq"),
            DeliverFrom::Time(time) => {
                (seq < self.store.seq_at_or_after(time)?).then_some("below start time")
            }
            DeliverFrom::Last | DeliverFrom::LastPerSubject | DeliverFrom::New => Some("not allowed"),
        })
    }

    pub(super) fn consumer_pause(
        &mut self,
        name: &str,
        until: Option<Wall>,
        fx: &mut impl Effects,
    ) -> CommandOutcome {
        let consumer = self.names.get(name).and_then(|id| self.consumers.get_mut(id));
        let Some(consumer) = consumer else {
            return CommandOutcome::Refused(ApiErrorCode::ConsumerNotFound.into());
        };
        consumer.state.pause(until.unwrap_or(Wall::ZERO), self.clock);
        let until = Some(consumer.state.paused_until()).filter(|until| *until != Wall::ZERO);
        let change = if until.is_some() {
            ConsumerChange::Paused
        } else {
            ConsumerChange::Resumed
        };
        let id = consumer.id();
        self.running.mix(until.map_or(0, |until| until.0.cast_unsigned()));
        fx.consumer_changed(id, change);
        CommandOutcome::Paused { id, until }
    }
}

/// The first message that a consumer may hold: messages delivered in vain as often as allowed lie below its floor,
/// and so do those that were stored before its start.
fn first_held(consumer: &Consumer) -> StreamSeq {
    let config = consumer.config();
    if config.max_deliver.is_some() || matches!(config.deliver_from, DeliverFrom::Seq(_)) {
        StreamSeq(1)
    } else {
        consumer.state.done_floor().stream_seq.next()
    }
}
