//! Where requests of clients come in, and where their answers go out.

use super::control::Control;
use super::subjects::{Addressed, Call, Endpoint, PREFIX, addressed};
use super::tracking::Origin;
use super::{Asker, Queued};
use crate::cell::{Reply, Request};
use crate::deliver_batch::Message;
use crate::interest::ConnKey;
use crate::worker::Core;
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidelock_api::{ResponseKind, error_response, is_empty_request};
use tidelock_base::{AccountId, ApiError, ApiErrorCode};
use tidelock_jetstream::config::check_required_level;

/// Header of requests that need a certain API level (ADR-44).
const REQUIRED_LEVEL: &[u8] = b"Nats-Required-Api-Level";

impl Core {
    /// A message on a subject of the API. It is answered when the turn's publishes are on their way. `false`: nobody
    /// listens to the subject.
    pub(crate) fn api_entry(
        &mut self,
        conn: Option<ConnKey>,
        account: AccountId,
        message: &Message<'_>,
    ) -> bool {
        let shared = Arc::clone(&self.shared);
        let domain = shared
            .options
            .jetstream
            .as_ref()
            .and_then(|js| js.domain.as_deref());
        let rest = match addressed(message.subject, domain) {
            Addressed::Api(rest) => rest,
            Addressed::Publish(subject) => {
                return self.publish_made(
                    account,
                    &Message {
                        subject,
                        target: subject,
                        ..*message
                    },
                );
            }
            Addressed::Elsewhere => return false,
        };
        let Some(own) = shared.account(account) else {
            return false;
        };
        let mut subject = BytesMut::with_capacity(PREFIX.len() + rest.len());
        subject.extend_from_slice(PREFIX);
        subject.extend_from_slice(rest);
        let request = self.new_request(
            account,
            subject.freeze(),
            Bytes::copy_from_slice(message.reply),
            Bytes::copy_from_slice(message.header),
            message
                .shared
                .map_or_else(|| Bytes::copy_from_slice(message.payload), Bytes::clone),
        );
        let subject = request.subject.clone();
        let call = Call::parse(&subject);
        if own.system {
            self.system_request(conn, request, call.as_ref());
            return true;
        }
        let Some(call) = call else { return true };
        if own.jetstream.is_none() {
            if call.endpoint.is_subscribed() {
                return false;
            }
            if !call.endpoint.is_of_system() {
                let error =
                    level_error(&request.header).unwrap_or_else(|| ApiErrorCode::NotEnabledForAccount.into());
                self.refuse_here(conn, &request, call.endpoint.kind(), &error);
            }
            return true;
        }
        self.account_request(conn, request, &call, &own.name);
        true
    }

    /// A request of an account that has JetStream.
    fn account_request(&mut self, conn: Asker, request: Request, call: &Call<'_>, account: &str) {
        let clustered = self.is_clustered();
        match call.endpoint {
            Endpoint::MetaStepdown
            | Endpoint::ServerRemove
            | Endpoint::ServerEvacuate
            | Endpoint::MetaRescue
            | Endpoint::AccountPurge => {}
            Endpoint::AccountStreamMove | Endpoint::AccountCancelMove => {
                if clustered && call.stream == account {
                    self.refuse_here(
                        conn,
                        &request,
                        call.endpoint.kind(),
                        &unsupported("moving a stream"),
                    );
                }
            }
            Endpoint::PeerRemove
            | Endpoint::PeerEvacuate
            | Endpoint::CancelMove
            | Endpoint::ConsumerPeerRemove
            | Endpoint::ConsumerPeerEvacuate
            | Endpoint::StreamStepdown
            | Endpoint::ConsumerStepdown
                if !clustered =>
            {
                let error =
                    level_error(&request.header).unwrap_or_else(|| ApiErrorCode::ClusterRequired.into());
                self.refuse_here(conn, &request, call.endpoint.kind(), &error);
            }
            Endpoint::Snapshot
            | Endpoint::Restore
            | Endpoint::CancelMove
            | Endpoint::ConsumerPeerRemove
            | Endpoint::ConsumerPeerEvacuate => self.refuse_unsupported(conn, &request, call),
            _ => self.enqueue(conn, request, call),
        }
    }

    /// A request of the system account: only what concerns the cluster is for it.
    fn system_request(&mut self, conn: Asker, request: Request, call: Option<&Call<'_>>) {
        let clustered = self.is_clustered();
        let Some(call) = call.filter(|call| call.endpoint.is_of_system()) else {
            let info = call.is_some_and(|call| call.endpoint == Endpoint::AccountInfo);
            let kind = if info {
                ResponseKind::AccountInfo
            } else {
                ResponseKind::System
            };
            return self.refuse_here(conn, &request, kind, &ApiErrorCode::NotEnabledForAccount.into());
        };
        match call.endpoint {
            Endpoint::AccountPurge => self.enqueue(conn, request, call),
            // A server of its own has no cluster to ask: like nats-server it keeps silent.
            _ if !clustered => {}
            Endpoint::MetaStepdown | Endpoint::ServerRemove => self.enqueue(conn, request, call),
            _ => self.refuse_unsupported(conn, &request, call),
        }
    }

    fn refuse_unsupported(&mut self, conn: Asker, request: &Request, call: &Call<'_>) {
        let what = match call.endpoint {
            Endpoint::Snapshot => "snapshot of a stream",
            Endpoint::Restore => "restore of a stream",
            Endpoint::CancelMove | Endpoint::AccountStreamMove | Endpoint::AccountCancelMove => {
                "moving a stream"
            }
            Endpoint::MetaRescue => "rescue of the metadata",
            _ => "moving replicas off a server",
        };
        let needs_body = !matches!(call.endpoint, Endpoint::CancelMove | Endpoint::AccountCancelMove);
        let error = level_error(&request.header).unwrap_or_else(|| {
            if needs_body && is_empty_request(&request.payload) {
                ApiErrorCode::BadRequest.into()
            } else {
                unsupported(what)
            }
        });
        self.refuse_here(conn, request, call.endpoint.kind(), &error);
    }

    /// Puts a request behind the turn's publishes; above the limit of its queue it is dropped, as on nats-server,
    /// and an advisory says so.
    fn enqueue(&mut self, conn: Asker, request: Request, call: &Call<'_>) {
        let limit = self.shared.options.jetstream.as_ref().map_or(0, |js| {
            if call.endpoint.is_info() {
                js.info_queue_limit
            } else {
                js.request_queue_limit
            }
        });
        if self.requests_waiting() as u64 >= limit {
            self.api.dropped += 1;
            return;
        }
        if conn.is_none() {
            // No client's turn is under way that would end with the queue.
            self.arm_api(self.now.mono);
        }
        self.api.queue.push_back(Queued {
            origin: Origin::Client(conn),
            request,
        });
    }

    /// Whether the server is part of a cluster.
    pub(crate) fn is_clustered(&self) -> bool {
        self.shared.options.cluster.is_some()
    }

    /// Answers a request with an error, without asking anybody.
    fn refuse_here(&mut self, conn: Asker, request: &Request, kind: ResponseKind, error: &ApiError) {
        let payload = Bytes::from(error_response(kind, error));
        self.tell_client(request, b"", &payload);
        if kind != ResponseKind::System {
            self.count_answer(conn, request, &payload);
        }
    }

    /// Passes the last reply on to the client.
    pub(super) fn answer_client(
        &mut self,
        conn: Asker,
        request: &Request,
        reply: &Reply,
        control: Option<Control>,
    ) {
        match control {
            None => {
                self.tell_client(request, &reply.header, &reply.payload);
                self.count_answer(conn, request, &reply.payload);
            }
            Some(Control::NoResponders) => self.no_responders_for(conn, request),
            Some(Control::NotLeader(_) | Control::Again | Control::Nothing | Control::Refused(_)) => {}
        }
    }

    /// Publishes an answer.
    pub(super) fn tell_client(&mut self, request: &Request, header: &[u8], payload: &Bytes) {
        if request.reply.is_empty() {
            return;
        }
        let message = Message {
            subject: &request.reply,
            target: &request.reply,
            reply: b"",
            header,
            payload,
            shared: Some(payload),
        };
        self.publish_made(request.account, &message);
    }

    /// What a client hears that asks where nobody listens; those that did not ask to be told hear nothing.
    fn no_responders_for(&mut self, conn: Asker, request: &Request) {
        let told = conn
            .and_then(|key| self.client(key))
            .is_some_and(|client| client.outbound.no_responders());
        if told {
            let subject = String::from_utf8_lossy(&request.subject);
            let header = format!("NATS/1.0 503\r\nNats-Subject: {subject}\r\n\r\n");
            self.tell_client(request, header.as_bytes(), &Bytes::new());
        }
    }

    fn count_answer(&mut self, conn: Asker, request: &Request, payload: &Bytes) {
        let refused = is_refusal(payload);
        let Some(call) = Call::parse(&request.subject).filter(|call| call.endpoint.is_counted(refused))
        else {
            return;
        };
        let totals = &self.shared.totals;
        let own = self.shared.account(request.account).map(|account| &account.api);
        totals.api_total.fetch_add(1, Ordering::Relaxed);
        if let Some((total, _)) = own {
            total.fetch_add(1, Ordering::Relaxed);
        }
        if refused {
            totals.api_errors.fetch_add(1, Ordering::Relaxed);
            if let Some((_, errors)) = own {
                errors.fetch_add(1, Ordering::Relaxed);
            }
        }
        if call.endpoint.is_audited() {
            self.audit(conn, request, payload);
        }
    }

    /// Nobody leads what a request is for, and nobody has come to within its bound.
    pub(super) fn leaderless(&mut self, conn: Asker, request: &Request) {
        let subject = request.subject.clone();
        let Some(call) = Call::parse(&subject) else { return };
        // Requests to who subscribes himself are not answered by others.
        if call.endpoint.is_subscribed() || call.endpoint == Endpoint::ConsumerReset {
            return;
        }
        self.refuse_here(
            conn,
            request,
            call.endpoint.kind(),
            &ApiErrorCode::ClusterNotAvail.into(),
        );
    }
}

/// The refusal of a request that needs a higher API level than this server has.
pub(super) fn level_error(header: &[u8]) -> Option<ApiError> {
    let level = tidelock_wire::header::find(header, REQUIRED_LEVEL)?;
    check_required_level(&String::from_utf8_lossy(level)).err()
}

/// What a feature says that is not there.
pub(super) fn unsupported(what: &str) -> ApiError {
    ApiError::text(
        ApiErrorCode::StreamGeneralErrorF,
        format!("{what} is not supported by this version yet"),
    )
}

/// Whether a JSON answer is an error: it stands right behind the type.
fn is_refusal(payload: &[u8]) -> bool {
    let Some(rest) = payload.strip_prefix(b"{\"type\":\"") else {
        return false;
    };
    let end = rest.iter().position(|byte| *byte == b'"').unwrap_or(rest.len());
    rest.get(end..)
        .is_some_and(|tail| tail.starts_with(b"\",\"error\":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_by_its_beginning() {
        let refused = error_response(ResponseKind::StreamInfo, &ApiErrorCode::StreamNotFound.into());
        assert!(is_refusal(&refused));
        assert!(!is_refusal(
            br#"{"type":"io.nats.jetstream.api.v1.stream_info_response","total":0}"#
        ));
        assert!(!is_refusal(br#"{"type":"x"#));
        assert!(!is_refusal(b""));
    }

    #[test]
    fn the_required_level_is_read_from_the_header() {
        let block =
            |level: &str| format!("NATS/1.0\r\nNats-Required-Api-Level: {level}\r\n\r\n").into_bytes();
        assert_eq!(level_error(b""), None);
        assert_eq!(level_error(&block("5")), None);
        assert_eq!(level_error(&block("6")).map(|e| e.code.err_code()), Some(10185));
        assert_eq!(level_error(&block("x")).map(|e| e.code.err_code()), Some(10185));
    }
}
