//! What else is done to streams: STREAM.DELETE, STREAM.PURGE, STREAM.MSG.DELETE.

use super::subjects::Call;
use super::{Job, Stage};
use crate::groups::Waiter;
use crate::worker::Core;
use tidelock_api::advisory::Action;
use tidelock_api::{
    MsgDeleteRequest, PurgeRequest, PurgeResponse, ResponseKind, Success, decode_optional, decode_strict,
};
use tidelock_base::{ApiError, ApiErrorCode, StreamSeq};
use tidelock_jetstream::meta::MetaCommand;
use tidelock_jetstream::stream::CommandOutcome;

impl Core {
    /// STREAM.DELETE at the metadata's leader.
    pub(super) fn stream_delete(&mut self, job: Box<Job>, call: &Call<'_>) {
        let account = self.account_name(job.request.account);
        let group = self
            .shared
            .directory
            .load()
            .stream(job.request.account, call.stream)
            .map(|route| route.group);
        let consumers = match group
            .filter(|group| self.leads(*group))
            .and_then(|group| self.stream(group))
        {
            Some(stream) => stream
                .consumers()
                .map(|consumer| consumer.name().to_owned())
                .collect(),
            None => Vec::new(),
        };
        let command = MetaCommand::StreamDelete {
            account,
            name: call.stream.to_owned(),
        };
        self.meta_command(command, Waiter::Api(job.at(Stage::Deleting(consumers))));
    }

    pub(super) fn stream_deleted(&mut self, job: &Job, call: &Call<'_>) {
        if let Stage::Deleting(consumers) = &job.stage {
            for consumer in consumers {
                self.consumer_action(job.request.account, call.stream, consumer, Action::Delete);
            }
        }
        self.stream_advisory(job.request.account, call.stream, Action::Delete);
        self.reply_changed(&job.request, ResponseKind::StreamDelete, &Success::YES);
    }

    /// STREAM.PURGE at the stream's leader.
    pub(super) fn stream_purge(&mut self, job: Box<Job>, call: &Call<'_>) {
        let wanted = match purge_request(&job.request.payload, self.is_strict()) {
            Ok(wanted) => wanted,
            Err(error) => return self.refuse(&job.request, call.endpoint, &error),
        };
        let filter = (!wanted.filter.is_empty()).then_some(wanted.filter.as_bytes());
        if filter.is_some_and(|filter| !tidelock_subject::is_valid_filter(filter)) {
            // Nothing can match.
            let none = PurgeResponse {
                success: true,
                purged: 0,
            };
            return self.reply_ok(&job.request, ResponseKind::StreamPurge, &none);
        }
        let upto = (wanted.seq > 0).then_some(StreamSeq(wanted.seq));
        let keep = (wanted.keep > 0).then_some(wanted.keep);
        let group = job.group;
        self.command(group, Waiter::Api(job.at(Stage::Command)), |entry| {
            entry.purge(filter, upto, keep)
        });
    }

    pub(super) fn purged(&mut self, job: &Job, outcome: &CommandOutcome) {
        let purged = match outcome {
            CommandOutcome::Purged(purged) => *purged,
            _ => 0,
        };
        self.reply_ok(
            &job.request,
            ResponseKind::StreamPurge,
            &PurgeResponse {
                success: true,
                purged,
            },
        );
    }

    /// STREAM.MSG.DELETE at the stream's leader. Bytes of a deleted message are gone with its block in either case;
    /// `no_erase` makes no difference.
    pub(super) fn message_delete(&mut self, job: Box<Job>, call: &Call<'_>) {
        let wanted = decode_strict::<MsgDeleteRequest>(&job.request.payload, self.is_strict());
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(error) => return self.refuse(&job.request, call.endpoint, &error),
        };
        let group = job.group;
        let seq = StreamSeq(wanted.seq);
        self.command(group, Waiter::Api(job.at(Stage::Command)), |entry| {
            entry.msg_delete(seq)
        });
    }
}

/// What the body of a STREAM.PURGE asks for.
pub(super) fn purge_request(body: &[u8], strict: bool) -> Result<PurgeRequest, ApiError> {
    let wanted: PurgeRequest = decode_optional(body, strict)?;
    if wanted.seq > 0 && wanted.keep > 0 {
        return Err(ApiErrorCode::BadRequest.into());
    }
    Ok(wanted)
}
