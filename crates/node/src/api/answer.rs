//! How a leader answers a request.

use super::control::Control;
use super::entry::level_error;
use super::subjects::{Call, Endpoint, INNER_PREFIX};
use super::{Job, Stage};
use crate::cell::{Cell, LaneKind, Reply, Request};
use crate::worker::Core;
use bytes::Bytes;
use serde::Serialize;
use tidelock_api::{ResponseKind, error_response, is_empty_request, ok_response};
use tidelock_base::{ApiError, ApiErrorCode, GroupId, LogIndex};

impl Core {
    /// Sends one reply to whoever asked.
    pub(super) fn reply_to(
        &mut self,
        request: &Request,
        header: Bytes,
        payload: Bytes,
        last: bool,
        after: LogIndex,
    ) {
        let reply = Reply {
            id: request.id,
            header,
            payload,
            last,
            after_meta: after,
        };
        if request.node == self.shared.identity.node && request.id.sender.worker == self.id {
            self.api_reply(reply);
        } else {
            self.send_cell(request.node, LaneKind::Client, Cell::Reply(Box::new(reply)));
        }
    }

    /// Says something else than an answer.
    pub(super) fn reply_control(&mut self, request: &Request, control: &Control, after: LogIndex) {
        let (header, payload) = control.encode();
        self.reply_to(request, header, payload, true, after);
    }

    /// Answers with JSON.
    pub(super) fn reply_json(&mut self, request: &Request, payload: Vec<u8>) {
        self.reply_to(request, Bytes::new(), Bytes::from(payload), true, LogIndex(0));
    }

    /// Answers that it is done.
    pub(super) fn reply_ok<T: Serialize>(&mut self, request: &Request, kind: ResponseKind, body: &T) {
        self.reply_json(request, ok_response(kind, body));
    }

    /// Answers after a change of the metadata, which must be known where the answer leaves.
    pub(super) fn reply_changed<T: Serialize>(&mut self, request: &Request, kind: ResponseKind, body: &T) {
        let after = self.meta_applied();
        self.reply_to(request, Bytes::new(), ok_response(kind, body).into(), true, after);
    }

    /// Answers with an error: in JSON, or between nodes as what it is.
    pub(super) fn refuse(&mut self, request: &Request, endpoint: Endpoint, error: &ApiError) {
        match endpoint {
            Endpoint::InnerInfo | Endpoint::InnerUpdate | Endpoint::InnerUsage => {
                self.reply_control(request, &Control::Refused(error.clone()), LogIndex(0));
            }
            _ => self.reply_json(request, error_response(endpoint.kind(), error)),
        }
    }

    /// How far this node's metadata is.
    pub(super) fn meta_applied(&self) -> LogIndex {
        self.shared.directory.load().applied
    }

    /// Whether unknown members of requests are refused.
    pub(super) fn is_strict(&self) -> bool {
        self.shared.options.jetstream.as_ref().is_none_or(|js| js.strict)
    }

    /// JetStream domain of the server, or empty.
    pub(super) fn domain(&self) -> String {
        self.shared
            .options
            .jetstream
            .as_ref()
            .and_then(|js| js.domain.clone())
            .unwrap_or_default()
    }
}

impl Job {
    pub(super) fn new(request: Request, group: GroupId) -> Box<Self> {
        Box::new(Self {
            request,
            group,
            stage: Stage::Read,
        })
    }

    /// What is asked.
    pub(crate) const fn request(&self) -> &Request {
        &self.request
    }

    pub(super) fn at(mut self: Box<Self>, stage: Stage) -> Box<Self> {
        self.stage = stage;
        self
    }
}

/// Whether a node, not a client, has made a request.
pub(crate) fn is_between_nodes(request: &Request) -> bool {
    request.subject.starts_with(INNER_PREFIX.as_bytes())
}

/// What is checked of every request before anything is looked up, in nats-server's order: the API level, and whether
/// there is a body where one must be or must not be.
///
/// # Errors
/// 10185, 10038, 10003.
pub(super) fn check_request(request: &Request, call: &Call<'_>) -> Result<(), ApiError> {
    let empty = is_empty_request(&request.payload);
    if call.endpoint == Endpoint::ConsumerInfo && !empty {
        return Err(ApiErrorCode::NotEmptyRequest.into());
    }
    if let Some(error) = level_error(&request.header) {
        return Err(error);
    }
    match call.endpoint {
        Endpoint::StreamDelete | Endpoint::ConsumerDelete if !empty => {
            Err(ApiErrorCode::NotEmptyRequest.into())
        }
        Endpoint::MsgDelete
        | Endpoint::MsgGet
        | Endpoint::PeerRemove
        | Endpoint::PeerEvacuate
        | Endpoint::ServerRemove
            if empty =>
        {
            Err(ApiErrorCode::BadRequest.into())
        }
        _ => Ok(()),
    }
}
