//! Requests at a leader: how they start, and what they do next whenever something that they wait for has ended.

use super::answer::check_request;
use super::control::Control;
use super::message_get::get_request;
use super::stream_admin::purge_request;
use super::subjects::{Call, Endpoint};
use super::{Job, MetaEvent, Stage};
use crate::cell::Request;
use crate::groups::{Behind, Done, Waiter};
use crate::worker::Core;
use bytes::Bytes;
use tidelock_api::{
    ConsumerList, ConsumerListRequest, MsgDeleteRequest, PauseRequest, ResponseKind, StreamInfoRequest,
    decode_optional, decode_strict,
};
use tidelock_base::{ApiError, ApiErrorCode, GroupId, LogIndex};
use tidelock_jetstream::meta::{GroupState, MetaOutcome};
use tidelock_jetstream::stream::CommandOutcome;

/// Consumers of a page of CONSUMER.LIST.
pub(super) const LIST_LIMIT: u64 = 256;

impl Core {
    /// A request for a group of this worker, or for the node itself.
    pub(crate) fn api_request(&mut self, request: Request) {
        let subject = request.subject.clone();
        let Some(call) = Call::parse(&subject) else { return };
        let Some(group) = request.group else {
            if call.endpoint == Endpoint::InnerUsage {
                self.usage_request(request);
            }
            return;
        };
        if !self.leads(group) {
            if call.endpoint.is_of_any_replica() && self.can_follow(group, &request) {
                return self.start_job(group, request);
            }
            let me = self.shared.identity.node;
            let hint = self.leader_of(group).filter(|node| *node != me);
            return self.reply_control(&request, &Control::NotLeader(hint), LogIndex(0));
        }
        self.begin_behind(group, Behind::Api(request));
    }

    /// Serves a request at a replica of its group, after a read.
    pub(crate) fn start_job(&mut self, group: GroupId, request: Request) {
        self.read(group, Waiter::Api(Job::new(request, group)));
    }

    /// Sends a request back to where it came from, which looks for the leader.
    pub(crate) fn send_back(&mut self, request: &Request) {
        self.reply_control(request, &Control::NotLeader(None), LogIndex(0));
    }

    /// Something that a job waited for has ended.
    pub(crate) fn api_done(&mut self, job: Box<Job>, done: Done<'_>) {
        let subject = job.request.subject.clone();
        let Some(call) = Call::parse(&subject) else { return };
        match done {
            Done::Read if job.group == GroupId::META => self.run_meta(job, &call),
            Done::Read => self.run_stream(job, &call),
            Done::Stream(outcome) => self.stream_outcome(job, &call, outcome),
            Done::Meta(outcome) => self.meta_outcome(job, &call, outcome),
            Done::Acked => {}
            Done::Lost => self.job_lost(&job, &call),
            Done::Refused(code) => self.job_refused(&job, &call, code),
        }
    }

    /// Leadership is lost, and with it the knowledge of what became of the job's last step; or a read could not be had
    /// here.
    fn job_lost(&mut self, job: &Job, call: &Call<'_>) {
        let unnamed = call.endpoint == Endpoint::ConsumerCreate;
        let only_read = matches!(job.stage, Stage::Read);
        let again =
            only_read || (call.endpoint.is_repeatable() && !unnamed && matches!(job.stage, Stage::Command));
        let me = self.shared.identity.node;
        let control = if again {
            Control::NotLeader(self.leader_of(job.group).filter(|node| *node != me))
        } else {
            Control::Nothing
        };
        self.reply_control(&job.request, &control, LogIndex(0));
    }

    /// The log cannot be written: what the job wants is not done, or is not known to be.
    fn job_refused(&mut self, job: &Job, call: &Call<'_>, code: ApiErrorCode) {
        match call.endpoint {
            endpoint if endpoint.is_subscribed() => {
                self.reply_control(&job.request, &Control::NoResponders, LogIndex(0));
            }
            Endpoint::ConsumerReset => self.reset_refused(job, &code.into()),
            endpoint => self.refuse(&job.request, endpoint, &code.into()),
        }
    }

    /// A job of a stream, after a read of it.
    fn run_stream(&mut self, job: Box<Job>, call: &Call<'_>) {
        if let Stage::Direct(_) = job.stage {
            return self.go_on_direct(job, call);
        }
        if self.stream(job.group).is_none() {
            return self.reply_control(&job.request, &Control::NotLeader(None), LogIndex(0));
        }
        if call.endpoint.is_subscribed() {
            return self.direct_get(job, call);
        }
        if let Err(error) = check_request(&job.request, call) {
            return self.refuse(&job.request, call.endpoint, &error);
        }
        match call.endpoint {
            Endpoint::StreamInfo => self.stream_info(&job, call),
            Endpoint::InnerInfo => self.inner_info(&job),
            Endpoint::InnerUpdate => self.inner_update(job),
            Endpoint::StreamPurge => self.stream_purge(job, call),
            Endpoint::MsgDelete => self.message_delete(job, call),
            Endpoint::MsgGet => self.message_get(job, call),
            Endpoint::StreamStepdown | Endpoint::ConsumerStepdown => self.stepdown(&job, call),
            Endpoint::ConsumerCreate | Endpoint::ConsumerCreateNamed | Endpoint::ConsumerDurableCreate => {
                self.consumer_create(job, call);
            }
            Endpoint::ConsumerNames => self.consumer_names(&job, call),
            Endpoint::ConsumerList => self.consumer_list(&job, call),
            Endpoint::ConsumerInfo => self.consumer_info(&job, call),
            Endpoint::ConsumerDelete => self.consumer_delete(job, call),
            Endpoint::ConsumerPause => self.consumer_pause(job, call),
            Endpoint::ConsumerUnpin => self.consumer_unpin(&job, call),
            Endpoint::ConsumerReset => self.consumer_reset(job, call),
            _ => self.reply_control(&job.request, &Control::Nothing, LogIndex(0)),
        }
    }

    /// A job of the metadata, after a read of it.
    fn run_meta(&mut self, job: Box<Job>, call: &Call<'_>) {
        if call.endpoint.is_of_stream() {
            return self.run_unknown(&job, call);
        }
        if let Err(error) = check_request(&job.request, call) {
            return self.refuse(&job.request, call.endpoint, &error);
        }
        match call.endpoint {
            Endpoint::AccountInfo => self.account_info(job),
            Endpoint::StreamCreate => self.stream_create(job, call),
            Endpoint::StreamUpdate => self.stream_update(job, call),
            Endpoint::StreamNames => self.stream_names(&job),
            Endpoint::StreamList => self.stream_list(job),
            Endpoint::StreamDelete => self.stream_delete(job, call),
            Endpoint::PeerRemove => self.peer_remove(job, call),
            Endpoint::PeerEvacuate => self.peer_evacuate(&job, call),
            Endpoint::MetaStepdown => self.stepdown(&job, call),
            Endpoint::ServerRemove => self.server_remove(job),
            Endpoint::AccountPurge => self.account_purge(job, call),
            _ => self.reply_control(&job.request, &Control::Nothing, LogIndex(0)),
        }
    }

    /// A request for a stream that the node where it entered did not know.
    fn run_unknown(&mut self, job: &Job, call: &Call<'_>) {
        let request = &job.request;
        let account = self.account_name(request.account);
        let known = self
            .meta()
            .and_then(|meta| meta.stream(&account, call.stream))
            .is_some();
        if known {
            let after = self.meta_applied();
            return self.reply_control(request, &Control::Again, after);
        }
        if call.endpoint.is_subscribed() {
            return self.reply_control(request, &Control::NoResponders, LogIndex(0));
        }
        if call.endpoint == Endpoint::ConsumerReset {
            return self.reply_control(request, &Control::Nothing, LogIndex(0));
        }
        if let Err(error) = self.check_unknown(request, call) {
            return self.refuse(request, call.endpoint, &error);
        }
        if call.endpoint == Endpoint::ConsumerList && self.is_clustered() {
            // A cluster of nats-servers has nobody who would say that there is no such stream.
            let page = ConsumerList {
                limit: LIST_LIMIT,
                ..ConsumerList::default()
            };
            return self.reply_ok(request, ResponseKind::ConsumerList, &page);
        }
        self.refuse(request, call.endpoint, &ApiErrorCode::StreamNotFound.into());
    }

    /// What is wrong with a request before its stream is looked for.
    fn check_unknown(&self, request: &Request, call: &Call<'_>) -> Result<(), ApiError> {
        match call.endpoint {
            Endpoint::ConsumerCreate | Endpoint::ConsumerCreateNamed | Endpoint::ConsumerDurableCreate => {
                self.decode_create(request, call).map(drop)
            }
            _ => check_request(request, call),
        }?;
        let (body, strict) = (&request.payload, self.is_strict());
        match call.endpoint {
            Endpoint::StreamInfo => decode_optional::<StreamInfoRequest>(body, strict).map(drop),
            Endpoint::StreamPurge => purge_request(body, strict).map(drop),
            Endpoint::MsgGet => get_request(body, strict).map(drop),
            Endpoint::MsgDelete => decode_strict::<MsgDeleteRequest>(body, strict).map(drop),
            Endpoint::ConsumerNames | Endpoint::ConsumerList => {
                decode_optional::<ConsumerListRequest>(body, strict).map(drop)
            }
            Endpoint::ConsumerPause => decode_optional::<PauseRequest>(body, strict).map(drop),
            _ => Ok(()),
        }
    }

    /// A command of a stream was applied.
    fn stream_outcome(&mut self, job: Box<Job>, call: &Call<'_>, outcome: &CommandOutcome) {
        if let CommandOutcome::Refused(error) = outcome {
            return self.command_refused(&job, call, error);
        }
        let request = &job.request;
        let kind = call.endpoint.kind();
        match call.endpoint {
            Endpoint::StreamPurge => self.purged(&job, outcome),
            Endpoint::MsgDelete => self.reply_ok(request, kind, &tidelock_api::Success::YES),
            Endpoint::ConsumerCreate | Endpoint::ConsumerCreateNamed | Endpoint::ConsumerDurableCreate => {
                self.consumer_created(&job, call.stream, outcome);
            }
            Endpoint::ConsumerDelete => self.consumer_deleted(&job, call),
            Endpoint::ConsumerPause => self.consumer_paused(&job, call, outcome),
            Endpoint::ConsumerReset => self.consumer_was_reset(&job, outcome),
            Endpoint::InnerUpdate => self.reply_json(request, Vec::new()),
            _ => self.reply_control(request, &Control::Nothing, LogIndex(0)),
        }
    }

    fn command_refused(&mut self, job: &Job, call: &Call<'_>, error: &ApiError) {
        match call.endpoint {
            Endpoint::ConsumerReset => self.reset_refused(job, error),
            _ => self.refuse(&job.request, call.endpoint, error),
        }
    }

    /// A command of the metadata was applied.
    fn meta_outcome(&mut self, job: Box<Job>, call: &Call<'_>, outcome: &MetaOutcome) {
        if matches!(job.stage, Stage::Updating(_)) {
            return self.update_step(job, call, outcome);
        }
        if let MetaOutcome::Refused(error) = outcome {
            return self.refuse(&job.request, call.endpoint, error);
        }
        match call.endpoint {
            Endpoint::StreamCreate => self.stream_placed(job, outcome),
            Endpoint::StreamDelete => self.stream_deleted(&job, call),
            Endpoint::PeerRemove | Endpoint::ServerRemove => {
                self.reply_changed(&job.request, call.endpoint.kind(), &tidelock_api::Success::YES);
            }
            Endpoint::AccountPurge => self.account_purged(&job),
            _ => self.reply_control(&job.request, &Control::Nothing, LogIndex(0)),
        }
    }

    /// Another leader has answered what a job has asked.
    pub(super) fn job_answered(&mut self, job: Box<Job>, answer: Result<Bytes, ApiError>) {
        let subject = job.request.subject.clone();
        let Some(call) = Call::parse(&subject) else { return };
        match job.stage {
            Stage::Updating(_) => self.update_answered(job, &call, answer),
            _ => self.described(&job, &call, answer),
        }
    }

    /// All that a job has asked for has come, or will not come.
    pub(super) fn job_gathered(&mut self, job: Box<Job>, parts: Vec<Option<Bytes>>) {
        let subject = job.request.subject.clone();
        match Call::parse(&subject).map(|call| call.endpoint) {
            Some(Endpoint::StreamList) => self.streams_listed(job, &parts),
            Some(Endpoint::AccountInfo) => self.account_used(&job, &parts),
            _ => {}
        }
    }

    /// The metadata has changed.
    pub(crate) fn meta_changed(&mut self, event: MetaEvent) {
        match event {
            MetaEvent::Stream(entry) if entry.state == GroupState::Formed => self.stream_formed(&entry, true),
            MetaEvent::Stream(_) => {}
            MetaEvent::Removed(entry) => self.stream_formed(&entry, false),
        }
    }

    /// Name of an account, or empty.
    pub(crate) fn account_name(&self, account: tidelock_base::AccountId) -> String {
        self.shared
            .account(account)
            .map(|account| account.name.to_string())
            .unwrap_or_default()
    }
}
