//! STREAM.CREATE: the metadata places the stream, its first leader founds it, and then it is described.

use super::answer::check_request;
use super::catalog::MetaCatalog;
use super::subjects::Call;
use super::tracking::Origin;
use super::{Job, Stage};
use crate::cell::Request;
use crate::groups::Waiter;
use crate::worker::Core;
use bytes::Bytes;
use std::time::Duration;
use tidelock_api::advisory::Action;
use tidelock_api::{
    ResponseKind, StreamConfigRequest, StreamCreateResponse, StreamInfo, decode_strict, ok_response,
};
use tidelock_base::{ApiError, ApiErrorCode, Mono};
use tidelock_jetstream::config::{
    Storage, StreamConfig, check_create_request, validate_stream, with_dynamic,
};
use tidelock_jetstream::meta::{GroupState, MetaCommand, MetaOutcome, StreamEntry};

/// For so long a new stream's first leader is awaited.
const FORMS_WITHIN: Duration = Duration::from_secs(5);

/// A job that waits until its stream has a leader.
#[derive(Debug)]
pub(super) struct Forming {
    account: String,
    name: String,
    until: Mono,
    job: Box<Job>,
}

impl Core {
    /// STREAM.CREATE at the metadata's leader.
    pub(super) fn stream_create(&mut self, job: Box<Job>, call: &Call<'_>) {
        let config = match self.new_config(&job.request, call) {
            Ok(config) => config,
            Err(error) => return self.refuse(&job.request, call.endpoint, &error),
        };
        let account = self.account_name(job.request.account);
        let exists = self
            .meta()
            .is_some_and(|meta| meta.stream(&account, &config.name).is_some());
        if !exists && let Err(error) = self.check_server_room(&config) {
            return self.refuse(&job.request, call.endpoint, &error);
        }
        let command = MetaCommand::StreamCreate {
            account,
            config: text_of(&config),
            limits: self.meta_limits(job.request.account),
            hint: self.placement_hint(),
        };
        self.meta_command(command, Waiter::Api(job.at(Stage::Creating)));
    }

    /// The configuration that a create asks for, filled in and checked.
    fn new_config(&self, request: &Request, call: &Call<'_>) -> Result<StreamConfig, ApiError> {
        check_request(request, call)?;
        let wanted: StreamConfigRequest = decode_strict(&request.payload, self.is_strict())?;
        check_create_request(call.stream, &wanted.config)?;
        self.validated(request, &wanted)
    }

    /// A configuration, checked against the account's other streams and its limits.
    pub(super) fn validated(
        &self,
        request: &Request,
        wanted: &StreamConfigRequest,
    ) -> Result<StreamConfig, ApiError> {
        let account = self.account_name(request.account);
        let meta = self.meta().ok_or(ApiErrorCode::ClusterNotAvail)?;
        let catalog = MetaCatalog {
            meta,
            account: &account,
        };
        validate_stream(
            &wanted.config,
            &self.config_limits(request.account),
            &catalog,
            wanted.pedantic,
        )
    }

    /// A server of its own refuses to reserve more than it has; in a cluster the placement looks for room.
    fn check_server_room(&self, config: &StreamConfig) -> Result<(), ApiError> {
        let Some(wanted) = config.max_bytes else {
            return Ok(());
        };
        if self.is_clustered() {
            return Ok(());
        }
        let code = match config.storage {
            Storage::Memory => ApiErrorCode::MemoryResourcesExceeded,
            Storage::File => ApiErrorCode::StorageResourcesExceeded,
        };
        let streams = self.meta().into_iter().flat_map(|meta| meta.streams());
        let reserved = streams
            .filter(|entry| entry.spec.storage == config.storage)
            .map(|entry| entry.spec.reserved_bytes())
            .fold(wanted, u64::saturating_add);
        if reserved > self.shared.room.max(config.storage) {
            return Err(code.into());
        }
        Ok(())
    }

    /// The metadata has placed a stream, or had it already.
    pub(super) fn stream_placed(&mut self, job: Box<Job>, outcome: &MetaOutcome) {
        let MetaOutcome::Stream { group, created } = *outcome else {
            return self.refuse_unplaced(&job);
        };
        let Some(entry) = self.meta().and_then(|meta| meta.stream_of_group(group)) else {
            return self.refuse_unplaced(&job);
        };
        let (account, name, state) = (entry.account.clone(), entry.spec.name.clone(), entry.state);
        if created {
            self.stream_advisory(job.request.account, &name, Action::Create);
        }
        if state == GroupState::Formed {
            return self.describe_for(job, &name);
        }
        let until = self.now.mono + FORMS_WITHIN;
        self.arm_api(until);
        self.api.forming.push(Forming {
            account,
            name,
            until,
            job: job.at(Stage::Forming),
        });
    }

    fn refuse_unplaced(&mut self, job: &Job) {
        self.reply_json(
            &job.request,
            tidelock_api::error_response(ResponseKind::StreamCreate, &ApiErrorCode::ClusterNotAvail.into()),
        );
    }

    /// A stream has its first leader, or is gone before it had one.
    pub(super) fn stream_formed(&mut self, entry: &StreamEntry, formed: bool) {
        let is_it = |waits: &Forming| waits.account == entry.account && waits.name == entry.spec.name;
        if !self.api.forming.iter().any(is_it) {
            return;
        }
        let (ready, others) = std::mem::take(&mut self.api.forming).into_iter().partition(is_it);
        self.api.forming = others;
        let ready: Vec<Forming> = ready;
        for Forming { name, job, .. } in ready {
            if formed {
                self.describe_for(job, &name);
            } else {
                let gone = ApiErrorCode::StreamNotFound.into();
                self.reply_json(
                    &job.request,
                    tidelock_api::error_response(ResponseKind::StreamCreate, &gone),
                );
            }
        }
    }

    /// Gives up on streams that have found no leader in time. They may yet: the client can ask again.
    pub(super) fn forming_tick(&mut self, now: Mono) {
        if self.api.forming.iter().all(|waits| waits.until > now) {
            return;
        }
        let (late, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.api.forming)
            .into_iter()
            .partition(|waits| waits.until <= now);
        self.api.forming = others;
        for waits in late {
            self.refuse_unplaced(&waits.job);
        }
        if let Some(next) = self.api.forming.iter().map(|waits| waits.until).min() {
            self.arm_api(next);
        }
    }

    /// Asks the leader of a job's stream what the stream is.
    pub(super) fn describe_for(&mut self, job: Box<Job>, name: &str) {
        let account = job.request.account;
        self.ask(
            Origin::Job(job.at(Stage::Describing)),
            account,
            "INFO",
            name,
            Bytes::new(),
        );
    }

    /// The stream's leader has said what the stream is: the answer to a create or update.
    pub(super) fn described(&mut self, job: &Job, call: &Call<'_>, answer: Result<Bytes, ApiError>) {
        let info = answer.and_then(|json| decode_strict::<StreamInfo>(&json, false));
        let mut info = match info {
            Ok(info) => info,
            Err(error) => return self.refuse(&job.request, call.endpoint, &error),
        };
        let metadata = std::mem::take(&mut info.config.metadata);
        info.config.metadata = with_dynamic(metadata);
        if !self.is_clustered() {
            info.cluster = None;
        }
        let payload = match call.endpoint.kind() {
            ResponseKind::StreamCreate => ok_response(
                ResponseKind::StreamCreate,
                &StreamCreateResponse {
                    info,
                    did_create: true,
                },
            ),
            kind => ok_response(kind, &info),
        };
        let after = self.meta_applied();
        self.reply_to(&job.request, Bytes::new(), payload.into(), true, after);
    }
}

/// A configuration as the metadata's log holds it.
pub(super) fn text_of(config: &StreamConfig) -> String {
    String::from_utf8_lossy(&config.encode()).into_owned()
}
