//! Everything that happens because time passes, at an `ExpireThrough` of the log: message age and TTL, delete
//! markers, message ids, deadlines of consumers.

use super::header::PubHeaders;
use super::publish::Form;
use super::removal::{Removal, Task};
use super::ttl::{Ttl, go_seconds};
use super::{Advisory, Budget, ConsumerChange, Effects, Halt, Progress, Stream, ns};
use crate::command::CommandError;
use bytes::{Bytes, BytesMut};
use tidelock_base::{StreamSeq, Wall};
use tidelock_record::encode_into;
use tidelock_store::{Filters, Removed};

/// Age, TTL and message ids are looked at no more often than this.
const SWEEP_NS: i64 = 250_000_000;

impl Stream {
    /// When an [`crate::command::EntryBuilder::expire_through`] is due next; `None` if nothing waits for time to
    /// pass. Age, TTL and message ids come at most every 250 ms, deadlines of consumers when they are due.
    #[must_use]
    pub fn next_due(&self) -> Option<Wall> {
        let sweep = [self.age_due(), self.ttl_due(), self.dedupe.next_due()];
        let soonest = self.last_sweep.plus_nanos(SWEEP_NS);
        let sweep = sweep.into_iter().flatten().min().map(|due| due.max(soonest));
        let consumers = self
            .consumers
            .values()
            .filter_map(|consumer| consumer.state().next_due());
        consumers.chain(sweep).min()
    }

    fn age_due(&self) -> Option<Wall> {
        let age = self.config.max_age.filter(|_| !self.config.sealed)?;
        let (seq, ts) = self.age_head?;
        let (first, first_ts) = self.store.oldest()?;
        // The head may have left in another way; nothing older than the first message is left then.
        Some(if seq < first { first_ts } else { ts } + age)
    }

    fn ttl_due(&self) -> Option<Wall> {
        // What was published with an end has it in a sealed stream, too.
        self.ttl.next_due().filter(|_| self.config.allow_msg_ttl)
    }

    /// Everything due at the entry's stamp happens.
    pub(super) fn expire_through(
        &mut self,
        progress: &mut Progress,
        budget: &mut Budget,
        fx: &mut impl Effects,
    ) -> Result<(), Halt> {
        if !progress.started {
            progress.started = true;
            self.dedupe.sweep(self.clock);
            self.last_sweep = self.clock;
            self.expire_consumers(fx);
        }
        self.expire_by_ttl(budget, fx)?;
        if !self.config.sealed {
            self.expire_by_age(budget, fx)?;
        }
        Ok(())
    }

    fn expire_consumers(&mut self, fx: &mut impl Effects) {
        let clock = self.clock;
        for (id, consumer) in &mut self.consumers {
            let state = consumer.state_mut();
            if state.next_due().is_none_or(|due| due > clock) {
                continue;
            }
            let running = &mut self.running;
            let mut redeliver = false;
            let resumed = state.expire(clock, &mut |expired| {
                running.mix(expired.seq.0);
                if expired.exhausted {
                    fx.advisory(&Advisory::MaxDeliveries {
                        consumer: *id,
                        seq: expired.seq,
                        deliveries: expired.count,
                    });
                }
                redeliver |= !expired.exhausted;
            });
            if redeliver {
                fx.consumer_changed(*id, ConsumerChange::Redeliver);
            }
            if resumed {
                fx.consumer_changed(*id, ConsumerChange::Resumed);
            }
        }
    }

    fn expire_by_ttl(&mut self, budget: &mut Budget, fx: &mut impl Effects) -> Result<(), Halt> {
        if !self.config.allow_msg_ttl {
            return Ok(());
        }
        while let Some(seq) = self.ttl.expired(self.clock) {
            budget.ready()?;
            // A sealed stream takes no markers.
            let is_final = self.ttl.is_final(seq) || self.config.sealed;
            let removed = self.remove(seq, Removal::Ttl, fx)?;
            self.ttl.done(seq);
            self.mark(removed, is_final, fx)?;
            budget.spend();
        }
        Ok(())
    }

    fn expire_by_age(&mut self, budget: &mut Budget, fx: &mut impl Effects) -> Result<(), Halt> {
        let Some(age) = self.config.max_age else {
            return Ok(());
        };
        // A message is gone once `ts + max_age <= clock`.
        let newest = self.clock.plus_nanos(-ns(Some(age)));
        if self.age_head.is_none_or(|(_, ts)| ts > newest) {
            return Ok(());
        }
        if !self.ttl.any_never() && self.marker_ttl_seconds() == 0 {
            let first = self.store.seq_at_or_after(newest.plus_nanos(1))?;
            self.tasks.push_back(Task::remove_below(first, Removal::Age));
            self.run_tasks(budget, fx)?;
            self.age_head = self.store.oldest();
            return Ok(());
        }
        self.expire_by_age_one_by_one(newest, budget, fx)
    }

    /// For streams where the subject or the TTL of each message counts.
    fn expire_by_age_one_by_one(
        &mut self,
        newest: Wall,
        budget: &mut Budget,
        fx: &mut impl Effects,
    ) -> Result<(), Halt> {
        while let Some((head, _)) = self.age_head {
            budget.ready()?;
            let Some(seq) = self.next_matching(head, &Filters::all())? else {
                self.age_head = None;
                break;
            };
            let ts = self.store.outline(seq)?.map_or(newest, |outline| outline.ts);
            if ts > newest {
                self.age_head = Some((seq, ts));
                break;
            }
            if !self.ttl.is_never(seq) {
                let is_final = self.ttl.is_final(seq);
                let removed = self.remove(seq, Removal::Age, fx)?;
                self.mark(removed, is_final, fx)?;
            }
            // A marker just stored may have become the head if there was none; here there is one, below it.
            self.age_head = Some((seq.next(), ts));
            budget.spend();
        }
        Ok(())
    }

    /// TTL of delete markers in seconds, 0 if the stream leaves none.
    pub(super) fn marker_ttl_seconds(&self) -> i64 {
        ns(self.config.subject_delete_marker_ttl) / 1_000_000_000
    }

    /// Leaves a delete marker if the message that expired was the last one of its subject (ADR-43), unless it was
    /// one itself or said that its subject ends.
    fn mark(&mut self, removed: Option<Removed>, is_final: bool, fx: &mut impl Effects) -> Result<(), Halt> {
        let seconds = self.marker_ttl_seconds();
        let Some(removed) = removed.filter(|removed| removed.subject_left == 0) else {
            return Ok(());
        };
        if seconds == 0 || is_final || self.nobody_wants(&removed.subject) {
            return Ok(());
        }
        let header = format!(
            "NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: {}\r\nNats-Rollup: sub\r\n\r\n",
            go_seconds(seconds)
        );
        let mut record = BytesMut::new();
        encode_into(&mut record, &removed.subject, header.as_bytes(), b"").map_err(CommandError::from)?;
        let form = Form {
            ttl: Some(Ttl::Seconds(seconds)),
            // It is the only one of its subject.
            rollup: None,
        };
        let headers = PubHeaders::scan(header.as_bytes());
        let seq: StreamSeq = self.store.last_seq().next();
        let record: Bytes = record.freeze();
        self.store_message(seq, self.clock, &headers, form, record, fx)
    }
}
