//! Judging and storing messages. The order of checks is in the documentation of [`super`].

use super::header::{PubHeaders, sequence, with_value};
use super::removal::{Removal, Task};
use super::ttl::Ttl;
use super::{Budget, Effects, Entry, Halt, StoredMessage, Stream};
use crate::codec::Malformed;
use crate::command::{Command, CommandError, WindowKey};
use crate::config::{Discard, Retention};
use crate::window::{Judged, PubOutcome, Refusal};
use bytes::{Bytes, BytesMut};
use tidelock_base::limits::STORED_HEADER_BYTES_MAX;
use tidelock_base::{ApiErrorCode, StreamSeq, Wall};
use tidelock_record::{RecordRef, encode_into};

/// What a rollup removes: all that is older, on the message's subject or in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rollup {
    Subject,
    All,
}

/// What the checks say of a message.
#[derive(Debug)]
enum Verdict {
    Store,
    Skip,
    Duplicate(StreamSeq),
    Refuse(Refusal),
}

/// What the form of a message's headers says: step 3 of the order of checks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Form {
    pub(super) ttl: Option<Ttl>,
    pub(super) rollup: Option<Rollup>,
}

impl From<ApiErrorCode> for Refusal {
    fn from(code: ApiErrorCode) -> Self {
        Self::Code(code)
    }
}

impl Stream {
    /// Judges the publishes of a run, from where `entry` says.
    pub(super) fn publish_run(
        &mut self,
        command: &Command<'_>,
        entry: &mut Entry,
        budget: &mut Budget,
        fx: &mut impl Effects,
    ) -> Result<(), Halt> {
        let Command::PublishRun {
            key,
            first,
            low_water,
            count,
            records,
        } = *command
        else {
            return Ok(());
        };
        self.windows.begin_run(key, low_water);
        while entry.progress.done < count {
            budget.ready()?;
            let (record, next) = records.at(entry.progress.offset)?;
            let number = first.saturating_add(u64::from(entry.progress.done));
            self.judge_once(key, number, fx, |stream, fx| {
                stream.publish(&record, &entry.bytes, fx)
            })?;
            entry.progress.offset = next;
            entry.progress.done += 1;
            budget.spend();
            self.run_tasks(budget, fx)?;
        }
        if entry.progress.offset != records.0.len() {
            return Err(CommandError::from(Malformed("after the last record")).into());
        }
        Ok(())
    }

    /// Refuses the publishes of a run that the leader has not let in, from where `entry` says.
    pub(super) fn refuse_run(
        &mut self,
        command: &Command<'_>,
        entry: &mut Entry,
        budget: &mut Budget,
        fx: &mut impl Effects,
    ) -> Result<(), Halt> {
        let Command::RefuseRun {
            key,
            first,
            low_water,
            count,
            code,
        } = *command
        else {
            return Ok(());
        };
        self.windows.begin_run(key, low_water);
        while entry.progress.done < count {
            budget.ready()?;
            let number = first.saturating_add(u64::from(entry.progress.done));
            self.judge_once(key, number, fx, |stream, _| Ok(stream.refused(code.into())))?;
            entry.progress.done += 1;
            budget.spend();
        }
        Ok(())
    }

    /// Tells the outcome of a publish: by `judge` if its number comes next, or what it was before. Nothing has changed if
    /// `judge` halts.
    fn judge_once<F: Effects>(
        &mut self,
        key: WindowKey,
        number: u64,
        fx: &mut F,
        judge: impl FnOnce(&mut Self, &mut F) -> Result<PubOutcome, Halt>,
    ) -> Result<(), Halt> {
        match self.windows.judge(key, number) {
            Judged::Next => {
                let outcome = judge(self, fx)?;
                fx.published(key, number, &outcome);
                self.windows.record(key, outcome);
            }
            Judged::Known(outcome) => fx.published(key, number, outcome),
            Judged::Ignored => {}
        }
        Ok(())
    }

    /// Judges one publish, and stores it if it may be. Halts only before anything has changed.
    fn publish(
        &mut self,
        record: &RecordRef<'_>,
        entry: &Bytes,
        fx: &mut impl Effects,
    ) -> Result<PubOutcome, Halt> {
        let headers = PubHeaders::scan(record.header());
        let form = match self.check_form(record, &headers) {
            Ok(form) => form,
            Err(refusal) => return Ok(self.refused(refusal)),
        };
        let verdict = self.check_state(record, &headers, form.rollup.is_some())?;
        Ok(match verdict {
            Verdict::Store => {
                let seq = self.store.last_seq().next();
                let bytes = entry.slice_ref(record.bytes());
                self.store_message(seq, self.clock, &headers, form, bytes, fx)?;
                PubOutcome::Stored { seq }
            }
            Verdict::Skip => {
                let seq = self.store.last_seq().next();
                self.skip_message(seq, self.clock, &headers);
                PubOutcome::Skipped { seq }
            }
            Verdict::Duplicate(seq) => {
                self.running.mix(seq.0);
                PubOutcome::Duplicate { seq }
            }
            Verdict::Refuse(refusal) => self.refused(refusal),
        })
    }

    fn refused(&mut self, refusal: Refusal) -> PubOutcome {
        self.running.mix(u64::from(refusal.code().err_code()));
        PubOutcome::Refused(refusal)
    }

    /// Steps 1 to 3 of the order of checks.
    fn check_form(&self, record: &RecordRef<'_>, headers: &PubHeaders<'_>) -> Result<Form, Refusal> {
        let config = &self.config;
        if config.mirror.is_some() {
            return Err(ApiErrorCode::BadRequest.into());
        }
        if config.sealed {
            return Err(ApiErrorCode::StreamSealed.into());
        }
        if self.is_too_large(record) {
            return Err(ApiErrorCode::StreamMessageExceedsMaximum.into());
        }
        if record.header().len() > STORED_HEADER_BYTES_MAX {
            return Err(ApiErrorCode::StreamHeaderExceedsMaximum.into());
        }
        if let Some(code) = later_feature(headers) {
            return Err(code.into());
        }
        let ttl = match headers.ttl.map(Ttl::parse) {
            None => None,
            Some(None) => return Err(ApiErrorCode::MessageTTLInvalid.into()),
            Some(Some(_)) if !config.allow_msg_ttl => return Err(ApiErrorCode::MessageTTLDisabled.into()),
            Some(ttl) => ttl,
        };
        let rollup = match headers.rollup {
            None => None,
            Some(_) if !config.allow_rollup_hdrs || config.deny_purge => {
                return Err(Refusal::RollupNotPermitted);
            }
            Some(value) => Some(rollup(value).ok_or_else(|| Refusal::RollupValue(value.into()))?),
        };
        if headers.expected_last_subject.is_some() && headers.expected_last_subject_seq.is_none() {
            return Err(ApiErrorCode::StreamExpectedLastSeqPerSubjectInvalid.into());
        }
        Ok(Form { ttl, rollup })
    }

    pub(super) fn is_too_large(&self, record: &RecordRef<'_>) -> bool {
        let size = record.header().len() + record.payload().len();
        self.config
            .max_msg_size
            .is_some_and(|max| size as u64 > u64::from(max))
    }

    /// Steps 4 to 10 of the order of checks.
    fn check_state(
        &self,
        record: &RecordRef<'_>,
        headers: &PubHeaders<'_>,
        is_rollup: bool,
    ) -> Result<Verdict, Halt> {
        if headers
            .expected_stream
            .is_some_and(|name| name != self.config.name.as_bytes())
        {
            return Ok(Verdict::Refuse(ApiErrorCode::StreamNotMatch.into()));
        }
        if let Some(seq) = headers.msg_id.and_then(|id| self.dedupe.lookup(id, self.clock)) {
            return Ok(Verdict::Duplicate(seq));
        }
        if let Some(expected) = headers.expected_last_subject_seq {
            let last = self.last_on(headers.expected_last_subject.unwrap_or_else(|| record.subject()));
            if last.0 != sequence(expected) {
                return Ok(Verdict::Refuse(Refusal::WrongLastSeq(last)));
            }
        }
        if let Some(expected) = headers.expected_last_seq
            && self.store.last_seq().0 != sequence(expected)
        {
            return Ok(Verdict::Refuse(Refusal::WrongLastSeq(self.store.last_seq())));
        }
        if headers
            .expected_last_msg_id
            .is_some_and(|id| id != self.last_msg_id)
        {
            return Ok(Verdict::Refuse(Refusal::WrongLastMsgId(
                self.last_msg_id.as_slice().into(),
            )));
        }
        if self.nobody_wants(record.subject()) {
            return Ok(Verdict::Skip);
        }
        Ok(match self.check_discard_new(record, is_rollup)? {
            Some(refusal) => Verdict::Refuse(refusal),
            None => Verdict::Store,
        })
    }

    /// Last sequence on a subject, which may have wildcards; 0 if there is none, or if it is no subject.
    fn last_on(&self, subject: &[u8]) -> StreamSeq {
        let last = if tidelock_subject::has_wildcard(subject) {
            tidelock_subject::SubjectFilter::try_from(subject)
                .ok()
                .and_then(|filter| self.store.last_matching(&tidelock_store::Filters::one(filter)))
        } else {
            self.store.last_of(subject)
        };
        last.unwrap_or_default()
    }

    /// Whether interest retention has no use for a message on this subject.
    pub(super) fn nobody_wants(&self, subject: &[u8]) -> bool {
        self.config.retention == Retention::Interest
            && !self
                .consumers
                .values()
                .any(|consumer| consumer.filters().matches(subject))
    }

    /// Step 10: whether discard new has no room for the message.
    pub(super) fn check_discard_new(
        &self,
        record: &RecordRef<'_>,
        is_rollup: bool,
    ) -> Result<Option<Refusal>, Halt> {
        let config = &self.config;
        if config.discard != Discard::New {
            return Ok(None);
        }
        // The message that makes room on its subject, if the subject is full.
        let replaced = match config.max_msgs_per_subject {
            Some(max) => self
                .store
                .subject_state(record.subject())
                .filter(|subject| subject.count >= max),
            None => None,
        };
        if replaced.is_some() && config.discard_new_per_subject && !is_rollup {
            return Ok(Some(Refusal::MaxMsgsPerSubject));
        }
        if replaced.is_none() && config.max_msgs.is_some_and(|max| self.store.msgs() >= max) {
            return Ok(Some(Refusal::MaxMsgs));
        }
        if let Some(max) = config.max_bytes {
            let size = self.store.config().kind.message_bytes(record);
            let bytes = self.store.bytes().saturating_add(size);
            if bytes > max {
                let freed = match replaced {
                    Some(subject) => self.size_of(subject.first)?,
                    None => 0,
                };
                if bytes.saturating_sub(freed) > max {
                    return Ok(Some(Refusal::MaxBytes));
                }
            }
        }
        Ok(None)
    }

    /// Uses up a sequence without storing the message.
    pub(super) fn skip_message(&mut self, seq: StreamSeq, ts: Wall, headers: &PubHeaders<'_>) {
        self.running.mix(!seq.0);
        self.store.skip(seq, ts);
        if let Some(id) = headers.msg_id {
            self.dedupe.insert(id, seq, self.clock);
        }
        self.set_last_msg_id(headers.msg_id);
    }

    fn set_last_msg_id(&mut self, id: Option<&[u8]>) {
        self.last_msg_id.clear();
        self.last_msg_id.extend_from_slice(id.unwrap_or_default());
    }

    /// Stores a message that may be stored, and leaves the tasks that make room for it. `bytes` is its record.
    pub(super) fn store_message(
        &mut self,
        seq: StreamSeq,
        ts: Wall,
        headers: &PubHeaders<'_>,
        form: Form,
        bytes: Bytes,
        fx: &mut impl Effects,
    ) -> Result<(), Halt> {
        let (bytes, ttl) = self.raise_ttl(bytes, form.ttl)?;
        let (record, _) = RecordRef::parse(&bytes).map_err(CommandError::from)?;
        let previous = match self.config.republish {
            Some(_) => self.store.last_of(record.subject()).unwrap_or_default(),
            None => StreamSeq(0),
        };
        self.store.append(seq, ts, bytes.clone())?;
        self.running.mix(seq.0);
        self.running.mix(u64::from(record.crc()));

        if let Some(id) = headers.msg_id
            && self.config.mirror.is_none()
        {
            self.dedupe.insert(id, seq, self.clock);
        }
        self.set_last_msg_id(headers.msg_id);
        if let Some(ttl) = ttl {
            self.ttl.insert(seq, ts, ttl);
        }
        if headers.ends_subject() {
            self.ttl.insert_final(seq);
        }
        if self.config.max_age.is_some() && self.age_head.is_none() {
            self.age_head = Some((seq, ts));
        }
        fx.stored(&StoredMessage {
            seq,
            ts,
            previous,
            bytes: &bytes,
            record,
        });
        self.make_room(seq, form.rollup, &record, &bytes);
        Ok(())
    }

    /// Leaves the tasks that a stored message makes necessary: a rollup first, then limits from the narrowest to the
    /// widest.
    fn make_room(&mut self, seq: StreamSeq, rollup: Option<Rollup>, record: &RecordRef<'_>, bytes: &Bytes) {
        match rollup {
            Some(Rollup::All) => self.tasks.push_back(Task::remove_below(seq, Removal::Rollup)),
            Some(Rollup::Subject) => {
                let subject = bytes.slice_ref(record.subject());
                self.tasks.push_back(Task::KeepNewest {
                    subject,
                    keep: 1,
                    why: Removal::Rollup,
                });
            }
            None => {}
        }
        if let Some(keep) = self.config.max_msgs_per_subject
            && self
                .store
                .subject_state(record.subject())
                .is_some_and(|subject| subject.count > keep)
        {
            let subject = bytes.slice_ref(record.subject());
            self.tasks.push_back(Task::KeepNewest {
                subject,
                keep,
                why: Removal::Limit,
            });
        }
        if self.is_over_limits() {
            self.tasks.push_back(Task::Trim);
        }
    }

    /// A TTL below that of delete markers is raised to it, in the stored header too, or markers would be due before
    /// what they stand for was ever gone elsewhere (ADR-48). Not with one message a subject, where none stays behind.
    fn raise_ttl(&self, bytes: Bytes, ttl: Option<Ttl>) -> Result<(Bytes, Option<Ttl>), Halt> {
        let least = self.marker_ttl_seconds();
        let Some(Ttl::Seconds(seconds)) = ttl else {
            return Ok((bytes, ttl));
        };
        if seconds >= least || self.config.max_msgs_per_subject == Some(1) {
            return Ok((bytes, ttl));
        }
        let (record, _) = RecordRef::parse(&bytes).map_err(CommandError::from)?;
        let header = with_value(record.header(), b"Nats-TTL", least.to_string().as_bytes());
        let mut raised = BytesMut::with_capacity(bytes.len() + 20);
        encode_into(&mut raised, record.subject(), &header, record.payload()).map_err(CommandError::from)?;
        Ok((raised.freeze(), Some(Ttl::Seconds(least))))
    }
}

/// The error for headers that only servers set, or that belong to features which no stream has yet; the codes are
/// those that nats-server 2.15.1 gives on a stream where the feature is off.
fn later_feature(headers: &PubHeaders<'_>) -> Option<ApiErrorCode> {
    let is_purge = headers.schedule_next == Some(b"purge") && headers.scheduler.is_some();
    let schedules_further = headers.schedule_next.is_some() || headers.scheduler.is_some();
    [
        (
            headers.stream_source.is_some(),
            ApiErrorCode::MessageSourceHdrNotAllowed,
        ),
        (
            headers.incr.is_some_and(|incr| !is_integer(incr)),
            ApiErrorCode::MessageIncrInvalid,
        ),
        (headers.incr.is_some(), ApiErrorCode::MessageIncrDisabled),
        (headers.batch_id.is_some(), ApiErrorCode::AtomicPublishDisabled),
        (
            headers.schedule.is_some() || is_purge,
            ApiErrorCode::MessageSchedulesDisabled,
        ),
        (schedules_further, ApiErrorCode::MessageSchedulesSchedulerInvalid),
    ]
    .into_iter()
    .find_map(|(applies, code)| applies.then_some(code))
}

/// Decimal digits behind an optional sign, as many as there are.
fn is_integer(value: &[u8]) -> bool {
    let digits = value
        .strip_prefix(b"+")
        .or_else(|| value.strip_prefix(b"-"))
        .unwrap_or(value);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// `sub` or `all`, in any case.
pub(super) fn rollup(value: &[u8]) -> Option<Rollup> {
    if value.eq_ignore_ascii_case(b"sub") {
        Some(Rollup::Subject)
    } else if value.eq_ignore_ascii_case(b"all") {
        Some(Rollup::All)
    } else {
        None
    }
}
