//! STREAM.UPDATE: the metadata reserves what the new configuration needs, the stream's own log decides, and the
//! metadata follows it (DESIGN section 8).
//!
//! ```text
//!  read ─> UpdateBegin ─> stream's log: StreamUpdate ─┬─> UpdateFinish ─> described ─> answer
//!                                                     └─> UpdateRevert ─> refusal
//! ```
//! A leader of the metadata that dies in between leaves an update pending. The next update of the stream first brings
//! it to its end: the stream's log takes a revision only once, so whatever has happened before is found out.

use super::subjects::{Call, Endpoint};
use super::tracking::Origin;
use super::{Job, Stage};
use crate::groups::Waiter;
use crate::worker::Core;
use bytes::{BufMut, Bytes, BytesMut};
use tidelock_api::advisory::Action;
use tidelock_api::{ResponseKind, StreamConfigRequest, decode_strict};
use tidelock_base::{ApiError, ApiErrorCode, GroupId};
use tidelock_jetstream::config::{StreamConfig, check_stream_update};
use tidelock_jetstream::meta::{MetaCommand, MetaOutcome};

use super::stream_create::text_of;

/// How often an update starts again since another one came between.
const ATTEMPTS_MAX: u32 = 8;

/// An update under way.
#[derive(Debug)]
pub(super) struct Update {
    group: GroupId,
    /// Revision of the new configuration, once it is reserved.
    rev: u64,
    config: StreamConfig,
    /// It is the request's own; otherwise one that somebody left pending.
    own: bool,
    /// Replicas are to be added or taken.
    replicas: Option<u8>,
    step: Step,
    attempts: u32,
}

#[derive(Clone, Debug)]
enum Step {
    /// The metadata reserves.
    Begin,
    /// The stream's log decides.
    Decide,
    /// The metadata follows.
    Finish,
    /// The metadata takes the reservation back, for this reason.
    Revert(ApiError),
}

impl Core {
    /// STREAM.UPDATE at the metadata's leader.
    pub(super) fn stream_update(&mut self, job: Box<Job>, call: &Call<'_>) {
        self.start_update(job, call, 0);
    }

    fn start_update(&mut self, job: Box<Job>, call: &Call<'_>, attempts: u32) {
        match self.plan_update(&job, call, attempts) {
            Ok(Some(update)) if update.own => self.begin_update(job, update),
            Ok(Some(update)) => self.decide_update(job, update),
            // Nothing changes.
            Ok(None) => self.describe_for(job, call.stream),
            Err(error) => self.refuse(&job.request, call.endpoint, &error),
        }
    }

    /// What is to be done first; `None` if the configuration is in force already.
    fn plan_update(&self, job: &Job, call: &Call<'_>, attempts: u32) -> Result<Option<Update>, ApiError> {
        let wanted: StreamConfigRequest = decode_strict(&job.request.payload, self.is_strict())?;
        let config = self.validated(&job.request, &wanted)?;
        if config.name != call.stream {
            return Err(ApiErrorCode::StreamMismatch.into());
        }
        let account = self.account_name(job.request.account);
        let meta = self.meta().ok_or(ApiErrorCode::ClusterNotAvail)?;
        let entry = meta
            .stream(&account, call.stream)
            .ok_or(ApiErrorCode::StreamNotFound)?;
        if attempts >= ATTEMPTS_MAX {
            return Err(ApiErrorCode::StreamReconfigureInProgress.into());
        }
        if let Some(pending) = &entry.pending {
            return Ok(Some(Update {
                group: entry.group,
                rev: pending.rev,
                config: pending.spec.config().clone(),
                own: false,
                replicas: None,
                step: Step::Decide,
                attempts,
            }));
        }
        let old = entry.spec.config();
        let config = check_stream_update(old, &config)?;
        if config == *old {
            return Ok(None);
        }
        if self.is_clustered() && config.placement != old.placement {
            let text = "moving a stream by its placement is not supported by this version yet";
            return Err(ApiError::text(ApiErrorCode::StreamInvalidConfigF, text));
        }
        let replicas = (config.num_replicas != old.num_replicas).then_some(config.num_replicas);
        if replicas.is_some_and(|wanted| wanted > old.num_replicas) {
            self.check_peers_for(usize::from(config.num_replicas))?;
        }
        let step = Step::Begin;
        Ok(Some(Update {
            group: entry.group,
            rev: entry.rev,
            config,
            own: true,
            replicas,
            step,
            attempts,
        }))
    }

    /// Whether the cluster has so many servers at all.
    fn check_peers_for(&self, replicas: usize) -> Result<(), ApiError> {
        let hint = self.placement_hint();
        if hint
            .candidates
            .iter()
            .filter(|candidate| candidate.online)
            .count()
            >= replicas
        {
            return Ok(());
        }
        Err(ApiError::text(
            ApiErrorCode::ClusterNoPeers,
            "no suitable peers for placement",
        ))
    }

    fn begin_update(&mut self, job: Box<Job>, update: Update) {
        let command = MetaCommand::UpdateBegin {
            account: self.account_name(job.request.account),
            config: text_of(&update.config),
            rev: update.rev,
            limits: self.meta_limits(job.request.account),
        };
        self.meta_command(command, Waiter::Api(job.at(Stage::Updating(Box::new(update)))));
    }

    /// Asks the stream's leader to put the configuration into the stream's log.
    fn decide_update(&mut self, job: Box<Job>, mut update: Update) {
        update.step = Step::Decide;
        let account = job.request.account;
        let payload = encode_inner(update.rev, &update.config);
        let name = update.config.name.clone();
        let job = job.at(Stage::Updating(Box::new(update)));
        self.ask(Origin::Job(job), account, "UPDATE", &name, payload);
    }

    /// An update at the stream's leader.
    pub(super) fn inner_update(&mut self, job: Box<Job>) {
        let Some((rev, config)) = decode_inner(&job.request.payload) else {
            return self.refuse(
                &job.request,
                Endpoint::InnerUpdate,
                &ApiErrorCode::BadRequest.into(),
            );
        };
        let group = job.group;
        self.command(group, Waiter::Api(job.at(Stage::Command)), |entry| {
            entry.stream_update(rev, &config)
        });
    }

    /// The stream's log has decided, or it is not known what it has.
    pub(super) fn update_answered(
        &mut self,
        mut job: Box<Job>,
        call: &Call<'_>,
        answer: Result<Bytes, ApiError>,
    ) {
        let Stage::Updating(mut update) = std::mem::replace(&mut job.stage, Stage::Command) else {
            return;
        };
        let (group, rev) = (update.group, update.rev);
        let command = match answer {
            Ok(_) => {
                update.step = Step::Finish;
                MetaCommand::UpdateFinish { group, rev }
            }
            Err(error) if error.code == ApiErrorCode::ClusterNotAvail => {
                // The update stays pending; the next one finds out what became of it.
                return self.refuse(&job.request, call.endpoint, &error);
            }
            Err(error) => {
                update.step = Step::Revert(error);
                MetaCommand::UpdateRevert { group, rev }
            }
        };
        self.meta_command(command, Waiter::Api(job.at(Stage::Updating(update))));
    }

    /// A step in the metadata has ended.
    pub(super) fn update_step(&mut self, mut job: Box<Job>, call: &Call<'_>, outcome: &MetaOutcome) {
        let Stage::Updating(mut update) = std::mem::replace(&mut job.stage, Stage::Command) else {
            return;
        };
        let attempts = update.attempts + 1;
        match (&update.step, outcome) {
            (Step::Begin, MetaOutcome::Update { rev, .. }) => {
                update.rev = *rev;
                self.decide_update(job, *update);
            }
            // Somebody else was faster: look again at what is there now.
            (_, MetaOutcome::Conflict) => self.start_update(job, call, attempts),
            (Step::Begin, MetaOutcome::Refused(error))
                if error.code == ApiErrorCode::StreamReconfigureInProgress =>
            {
                self.start_update(job, call, attempts);
            }
            (_, MetaOutcome::Refused(error)) => self.refuse(&job.request, call.endpoint, error),
            _ if !update.own => self.start_update(job, call, attempts),
            (Step::Revert(error), _) => self.refuse(&job.request, call.endpoint, error),
            _ => {
                self.stream_advisory(job.request.account, call.stream, Action::Modify);
                if let Some(replicas) = update.replicas {
                    self.rescale(update.group, replicas);
                }
                debug_assert_eq!(
                    call.endpoint.kind(),
                    ResponseKind::StreamUpdate,
                    "only updates come here"
                );
                self.describe_for(job, call.stream);
            }
        }
    }
}

/// Revision (u64, little-endian), then the configuration as logs hold it.
fn encode_inner(rev: u64, config: &StreamConfig) -> Bytes {
    let config = config.encode();
    let mut out = BytesMut::with_capacity(8 + config.len());
    out.put_u64_le(rev);
    out.put_slice(&config);
    out.freeze()
}

/// Reads what [`encode_inner`] wrote; `None` for a configuration that this version does not know.
fn decode_inner(payload: &Bytes) -> Option<(u64, Bytes)> {
    let (rev, config) = payload.split_first_chunk::<8>()?;
    StreamConfig::decode(config).ok()?;
    Some((u64::from_le_bytes(*rev), payload.slice(8..)))
}
