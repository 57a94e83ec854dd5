//! Changes of consumers: CONSUMER.CREATE in all its forms, DELETE, PAUSE, RESET, UNPIN. All run at the stream's leader
//! and end in the stream's log.

use super::answer::check_request;
use super::control::Control;
use super::entry::level_error;
use super::subjects::{Call, Endpoint};
use super::{Job, Stage};
use crate::cell::Request;
use crate::groups::Waiter;
use crate::worker::Core;
use bytes::Bytes;
use tidelock_api::advisory::{Action, ConsumerAction};
use tidelock_api::{
    ConsumerResetRequest, ConsumerResetResponse, ConsumerUnpinRequest, CreateConsumerRequest, Nanos,
    NoFields, PauseRequest, PauseResponse, ResponseKind, Success, Time, decode_lenient, decode_optional,
    decode_strict, error_response, ok_response,
};
use tidelock_base::{AccountId, ApiError, ApiErrorCode, LogIndex, StreamSeq, Wall};
use tidelock_jetstream::command::SetAction;
use tidelock_jetstream::config::{
    ConsumerConfig, ConsumerContext, ConsumerTarget, StreamConfig, check_consumer_names,
    check_consumer_update, check_work_queue, validate_consumer,
};
use tidelock_jetstream::stream::CommandOutcome;

/// Asks for the identity of the stream beside the answer (ADR-60).
const IDENTITY: &[u8] = b"Nats-Stream-Identity";

impl Core {
    /// CONSUMER.CREATE and CONSUMER.DURABLE.CREATE.
    pub(super) fn consumer_create(&mut self, job: Box<Job>, call: &Call<'_>) {
        match self.new_consumer(&job, call) {
            Ok((action, config)) => {
                let limits = self.config_limits(job.request.account);
                let max = self
                    .stream(job.group)
                    .and_then(|stream| limits.consumers_max(stream.config()));
                let encoded = config.encode();
                let group = job.group;
                self.command(group, Waiter::Api(job.at(Stage::Command)), |entry| {
                    entry.consumer_set(action, max.unwrap_or(u32::MAX), &config.name, &encoded)
                });
            }
            Err(error) => self.refuse(&job.request, call.endpoint, &error),
        }
    }

    /// What a create asks for, with the name from its subject; nothing is looked up yet.
    ///
    /// # Errors
    /// 10025, 10185, and those of names.
    pub(super) fn decode_create(
        &self,
        request: &Request,
        call: &Call<'_>,
    ) -> Result<CreateConsumerRequest, ApiError> {
        let mut wanted: CreateConsumerRequest = decode_strict(&request.payload, self.is_strict())?;
        check_request(request, call)?;
        let target = match call.endpoint {
            Endpoint::ConsumerDurableCreate => ConsumerTarget::Durable(call.consumer),
            Endpoint::ConsumerCreateNamed => {
                ConsumerTarget::Named(call.consumer, Some(call.rest).filter(|filter| !filter.is_empty()))
            }
            _ => ConsumerTarget::Ephemeral,
        };
        check_consumer_names(target, call.stream, &mut wanted)?;
        Ok(wanted)
    }

    /// The valid configuration that a create asks for. Rules of updates are checked here for their texts; the log
    /// checks them again.
    fn new_consumer(&mut self, job: &Job, call: &Call<'_>) -> Result<(SetAction, ConsumerConfig), ApiError> {
        let mut wanted = self.decode_create(&job.request, call)?;
        let auto_name = self.random_name(8);
        let limits = self.config_limits(job.request.account);
        let now = self.group_time(job.group).wall;
        let stream = self.stream(job.group).ok_or(ApiErrorCode::StreamNotFound)?;
        // Whoever edits what was shown sends the present pause along, which stays.
        let present = stream.consumer(&wanted.config.name);
        let paused = present.map(|consumer| Time(consumer.state().paused_until()));
        wanted.config.pause_until = wanted.config.pause_until.filter(|until| Some(*until) != paused);
        let context = ConsumerContext {
            stream: stream.config(),
            limits: &limits,
            now,
            auto_name: &auto_name,
        };
        let config = validate_consumer(&wanted.config, &context, wanted.pedantic)?;
        let action = match wanted.action {
            tidelock_api::ConsumerAction::CreateOrUpdate => SetAction::CreateOrUpdate,
            tidelock_api::ConsumerAction::Create => SetAction::Create,
            tidelock_api::ConsumerAction::Update => SetAction::Update,
        };
        let present = stream.consumer(&config.name);
        if present.is_some()
            && action == SetAction::Create
            && is_filled_in_late(&wanted.config, stream.config())
        {
            return Err(ApiErrorCode::ConsumerAlreadyExists.into());
        }
        match present {
            Some(present) if *present.config() == config => return Ok((action, config)),
            Some(_) if action == SetAction::Create => return Err(ApiErrorCode::ConsumerAlreadyExists.into()),
            None if action == SetAction::Update => return Err(ApiErrorCode::ConsumerDoesNotExist.into()),
            Some(_) | None => {}
        }
        let config = match present {
            Some(present) => check_consumer_update(present.config(), &config)?,
            None => config,
        };
        check_work_queue(
            &config,
            stream.config(),
            stream.consumers().map(|other| other.config()),
        )?;
        if let Some(present) = present {
            let subject = |config: &ConsumerConfig| config.push.as_ref().map(|push| push.subject.clone());
            let moves = subject(present.config()) != subject(&config);
            if moves
                && self
                    .consumer_live(job.group, present.id())
                    .is_some_and(|live| live.push_bound)
            {
                return Err(ApiErrorCode::ConsumerNameExist.into());
            }
        }
        Ok((action, config))
    }

    pub(super) fn consumer_created(&mut self, job: &Job, stream: &str, outcome: &CommandOutcome) {
        let CommandOutcome::Consumer { id, created } = *outcome else {
            return;
        };
        let made = self
            .stream(job.group)
            .and_then(|stream| stream.consumer_by_id(id))
            .map(|one| (one.name().to_owned(), one.config().direct));
        let Some((name, direct)) = made else {
            // Deleted again by the same entry.
            let error = ApiErrorCode::ConsumerNotFound.into();
            return self.reply_json(&job.request, error_response(ResponseKind::ConsumerCreate, &error));
        };
        // Those that feed mirrors and sources are nobody's business.
        if created && !direct {
            self.consumer_action(job.request.account, stream, &name, Action::Create);
            self.consumer_leader_elected(job.group, &name);
        }
        self.look_at_new(job.group, id);
        if let Some(info) = self.consumer_shown(job.group, &name, true) {
            self.reply_ok(&job.request, ResponseKind::ConsumerCreate, &info);
        }
    }

    /// Publishes that a consumer was created or deleted by a request.
    pub(super) fn consumer_action(
        &mut self,
        account: AccountId,
        stream: &str,
        consumer: &str,
        action: Action,
    ) {
        let domain = self.domain();
        self.publish_advisory(
            account,
            &ConsumerAction {
                stream,
                consumer,
                action,
                domain: &domain,
            },
        );
    }

    /// CONSUMER.DELETE.
    pub(super) fn consumer_delete(&mut self, job: Box<Job>, call: &Call<'_>) {
        let group = job.group;
        self.command(group, Waiter::Api(job.at(Stage::Command)), |entry| {
            entry.consumer_delete(call.consumer)
        });
    }

    pub(super) fn consumer_deleted(&mut self, job: &Job, call: &Call<'_>) {
        self.consumer_action(job.request.account, call.stream, call.consumer, Action::Delete);
        self.reply_ok(&job.request, ResponseKind::ConsumerDelete, &Success::YES);
    }

    /// CONSUMER.PAUSE: a time in the future pauses, anything else resumes.
    pub(super) fn consumer_pause(&mut self, job: Box<Job>, call: &Call<'_>) {
        let wanted = match decode_optional::<PauseRequest>(&job.request.payload, self.is_strict()) {
            Ok(wanted) => wanted.pause_until.0,
            Err(error) => return self.refuse(&job.request, call.endpoint, &error),
        };
        let group = job.group;
        let until = Some(wanted).filter(|until| *until > self.group_time(group).wall);
        self.command(group, Waiter::Api(job.at(Stage::Pausing(wanted))), |entry| {
            entry.consumer_pause(call.consumer, until)
        });
    }

    pub(super) fn consumer_paused(&mut self, job: &Job, call: &Call<'_>, outcome: &CommandOutcome) {
        let CommandOutcome::Paused { until, .. } = *outcome else {
            return;
        };
        let Stage::Pausing(wanted) = job.stage else { return };
        let now = self.group_time(job.group).wall;
        let paused = until.is_some_and(|until| until > now);
        // nats-server repeats a time that is over.
        let shown = until.unwrap_or(wanted);
        let answer = PauseResponse {
            paused,
            pause_until: Time(shown),
            pause_remaining: remaining(until, now),
        };
        if let Some(stream) = self.slot(job.group).map(|slot| slot.name.to_string()) {
            let domain = self.domain();
            let advisory = tidelock_api::advisory::ConsumerPause {
                stream: &stream,
                consumer: call.consumer,
                paused,
                pause_until: Time(shown),
                domain: &domain,
            };
            self.publish_advisory(job.request.account, &advisory);
        }
        self.reply_ok(&job.request, ResponseKind::ConsumerPause, &answer);
    }

    /// CONSUMER.RESET (ADR-60).
    pub(super) fn consumer_reset(&mut self, job: Box<Job>, call: &Call<'_>) {
        if self
            .stream(job.group)
            .is_none_or(|stream| stream.consumer(call.consumer).is_none())
        {
            // The consumer itself would have subscribed.
            return self.reply_control(&job.request, &Control::Nothing, LogIndex(0));
        }
        let wanted = match job.request.payload.is_empty() {
            true => Ok(ConsumerResetRequest::default()),
            false => decode_lenient::<ConsumerResetRequest>(&job.request.payload),
        };
        let seq = match wanted {
            Ok(wanted) => Some(StreamSeq(wanted.seq)).filter(|seq| seq.0 > 0),
            Err(error) => {
                let error = ApiError::with(ApiErrorCode::InvalidJSON, &[&error.to_string()]);
                return self.reset_refused(&job, &error);
            }
        };
        let group = job.group;
        self.command(group, Waiter::Api(job.at(Stage::Command)), |entry| {
            entry.consumer_reset(call.consumer, seq)
        });
    }

    pub(super) fn consumer_was_reset(&mut self, job: &Job, outcome: &CommandOutcome) {
        let CommandOutcome::Reset { id, seq } = *outcome else {
            return;
        };
        let Some(stream) = self.stream(job.group) else {
            return;
        };
        let Some(name) = stream.consumer_by_id(id).map(|one| one.name().to_owned()) else {
            return;
        };
        let created = Time(stream.created()).to_string();
        let Some(info) = self.consumer_shown(job.group, &name, true) else {
            return;
        };
        let answer = ConsumerResetResponse {
            info,
            reset_seq: seq.0,
        };
        let payload = ok_response(ResponseKind::ConsumerReset, &answer);
        let header = match tidelock_wire::header::find(&job.request.header, IDENTITY) {
            Some(_) => {
                let identity = tidelock_auth::hash8(created.as_bytes());
                Bytes::from(format!("NATS/1.0\r\nNats-Stream-Identity: {identity}\r\n\r\n"))
            }
            None => Bytes::new(),
        };
        self.reply_to(&job.request, header, payload.into(), true, LogIndex(0));
    }

    /// A refused reset still says where it would start: nowhere.
    pub(super) fn reset_refused(&mut self, job: &Job, error: &ApiError) {
        if error.code == ApiErrorCode::ConsumerNotFound {
            return self.reply_control(&job.request, &Control::Nothing, LogIndex(0));
        }
        let mut payload = error_response(ResponseKind::ConsumerReset, error);
        if !payload.ends_with(b",\"reset_seq\":0}") {
            payload.pop();
            payload.extend_from_slice(b",\"reset_seq\":0}");
        }
        self.reply_json(&job.request, payload);
    }

    /// CONSUMER.UNPIN. Consumers with priority groups cannot be created yet, so no group is one of the consumer's.
    pub(super) fn consumer_unpin(&mut self, job: &Job, call: &Call<'_>) {
        let refused = match decode_lenient::<ConsumerUnpinRequest>(&job.request.payload) {
            Err(error) => Some(ApiError::with(ApiErrorCode::InvalidJSON, &[&error.to_string()])),
            Ok(_) if level_error(&job.request.header).is_some() => level_error(&job.request.header),
            Ok(_) => match self
                .stream(job.group)
                .and_then(|stream| stream.consumer(call.consumer))
            {
                None => Some(ApiErrorCode::ConsumerNotFound.into()),
                Some(_) => Some(ApiErrorCode::ConsumerInvalidPriorityGroup.into()),
            },
        };
        match refused {
            Some(error) => self.refuse(&job.request, call.endpoint, &error),
            None => self.reply_ok(&job.request, ResponseKind::ConsumerUnpin, &NoFields {}),
        }
    }

    /// A name of random letters and digits.
    pub(super) fn random_name(&mut self, length: usize) -> String {
        const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let mut digit = || {
            let at = self.random.below(62) as usize;
            char::from(DIGITS.get(at).copied().unwrap_or(b'0'))
        };
        (0..length).map(|_| digit()).collect()
    }
}

/// How long a pause lasts yet.
pub(super) fn remaining(until: Option<Wall>, now: Wall) -> Nanos {
    Nanos(until.map_or(0, |until| until.0.saturating_sub(now.0).max(0)))
}

/// Whether a repeated create is refused though it asks for the same: nats-server compares what was asked for with what
/// is there before it fills in how long a consumer without a durable name stays.
fn is_filled_in_late(wanted: &tidelock_api::ConsumerConfig, stream: &StreamConfig) -> bool {
    wanted.durable_name.is_empty()
        && wanted.inactive_threshold.0 <= 0
        && stream.consumer_limits.inactive_threshold.is_none()
}
