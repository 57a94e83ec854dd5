//! What leaves a consumer: messages and statuses, in order.

use super::leading::One;
use super::waiters::AckWaiter;
use crate::deliver_batch::Message;
use crate::groups::Waiter;
use crate::worker::{Core, MadeRoute};
use bytes::Bytes;
use std::collections::VecDeque;
use tidelock_base::limits::COPY_BYTES_MAX;
use tidelock_base::{AccountId, ConsumerId, GroupId, StreamSeq};
use tidelock_jetstream::consumer::{Notice, Outgoing, Pick, Status};
use tidelock_record::RecordRef;
use tidelock_store::{Lookup, Need, Stored};

/// Messages that are looked up at once.
const STEP: usize = 128;

/// Something that leaves.
#[derive(Debug)]
pub(super) enum Out {
    /// A message.
    Message(Outgoing),
    /// A status, or the end of a pull request.
    Notice(Notice),
}

/// Memory of a turn that is used again.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) picks: Vec<Pick>,
    pub(super) notices: Vec<Notice>,
    pub(super) seqs: Vec<StreamSeq>,
    pub(super) ranges: Vec<(StreamSeq, StreamSeq)>,
    pub(super) ready: VecDeque<(Out, Option<Stored>)>,
    reply: Vec<u8>,
    header: Vec<u8>,
}

/// The route of the last message or status; the next one mostly has the same receiver.
struct Way {
    to: Bytes,
    route: MadeRoute,
}

impl One {
    /// Queues what one call of the consumer's leader gave out.
    pub(super) fn queue(&mut self, notices: &mut Vec<Notice>) {
        self.outbox.extend(notices.drain(..).map(Out::Notice));
    }
}

impl Core {
    /// Sends what a consumer has queued, until a message has to be read from disk first.
    pub(super) fn flush_outbox(
        &mut self,
        group: GroupId,
        account: AccountId,
        id: ConsumerId,
        one: &mut One,
        scratch: &mut Scratch,
    ) {
        let mut way = None;
        while !one.outbox.is_empty() && !one.fetching {
            let need = self.look_up(group, one, scratch);
            while let Some((out, stored)) = scratch.ready.pop_front() {
                self.send_out(group, account, one, (out, stored), &mut way, scratch);
            }
            if let Some(need) = need {
                one.fetching = true;
                self.fetch(
                    group,
                    need,
                    Waiter::Ack(AckWaiter::Fetched { group, consumer: id }),
                );
            }
        }
        if let Some(Way { route, .. }) = way {
            self.release_route(route);
        }
    }

    /// Moves what can leave now from the outbox to `scratch.ready`, with its bytes; says what must be read for the
    /// rest. A message that is gone, or damaged on the only replica, is left out: it stays pending, as the log has it.
    fn look_up(&self, group: GroupId, one: &mut One, scratch: &mut Scratch) -> Option<Need> {
        let Some(stream) = self.stream(group) else {
            one.outbox.clear();
            return None;
        };
        for _ in 0..STEP {
            let stored = match one.outbox.front()? {
                Out::Notice(_) => None,
                Out::Message(outgoing) => match stream.store().get(outgoing.delivered.stream_seq) {
                    Lookup::Found(stored) => Some(stored),
                    Lookup::Cold(need) => return Some(need),
                    Lookup::Damaged if self.may_get_copy(group, outgoing.delivered.stream_seq) => {
                        return Some(Need {
                            seq: outgoing.delivered.stream_seq,
                            record: true,
                        });
                    }
                    Lookup::Missing | Lookup::Damaged => {
                        one.outbox.pop_front();
                        continue;
                    }
                },
            };
            let out = one.outbox.pop_front()?;
            scratch.ready.push_back((out, stored));
        }
        None
    }

    fn send_out(
        &mut self,
        group: GroupId,
        account: AccountId,
        one: &mut One,
        (out, stored): (Out, Option<Stored>),
        way: &mut Option<Way>,
        scratch: &mut Scratch,
    ) {
        match out {
            Out::Message(outgoing) => {
                if let Some(stored) = stored {
                    self.turn_to(account, &outgoing.to, way);
                    if let Some(way) = way {
                        self.send_message(account, one, &outgoing, &stored, &way.route, scratch);
                    }
                }
            }
            Out::Notice(Notice::Status { to, reply, status }) => {
                scratch.header.clear();
                status.render(&mut scratch.header);
                self.turn_to(account, &to, way);
                let message = Message {
                    subject: &to,
                    target: &to,
                    reply: reply.as_deref().unwrap_or_default(),
                    header: &scratch.header,
                    payload: b"",
                    shared: None,
                };
                if let Some(way) = way {
                    self.publish_along(account, &way.route, &message);
                }
            }
            Out::Notice(Notice::Ended { to }) => {
                if let Some(from) = one.leave(&to) {
                    self.pull_ended(group, from, crate::cell::PullEnd::Served);
                }
            }
        }
    }

    /// Makes `way` lead to `to`: to everyone who listens there. A deliver group says who has to listen for anything to
    /// be delivered; who else does gets copies, as of any message.
    fn turn_to(&mut self, account: AccountId, to: &Bytes, way: &mut Option<Way>) {
        if way.as_ref().is_some_and(|way| way.to == *to) {
            return;
        }
        if let Some(Way { route, .. }) = way.take() {
            self.release_route(route);
        }
        let route = self.made_route(account, to);
        *way = Some(Way {
            to: to.clone(),
            route,
        });
    }

    fn send_message(
        &mut self,
        account: AccountId,
        one: &One,
        outgoing: &Outgoing,
        stored: &Stored,
        route: &MadeRoute,
        scratch: &mut Scratch,
    ) {
        let Ok((record, _)) = RecordRef::parse(&stored.record) else {
            return;
        };
        let Outgoing {
            to,
            delivered,
            num_pending,
        } = outgoing;
        super::subjects::write_ack_subject(
            &mut scratch.reply,
            &one.ack_prefix,
            delivered,
            stored.ts,
            *num_pending,
        );
        let mut message = Message {
            subject: record.subject(),
            target: to,
            reply: &scratch.reply,
            header: record.header(),
            payload: record.payload(),
            shared: None,
        };
        if one.headers_only {
            scratch.header.clear();
            scratch.header.extend_from_slice(record.header());
            let size = record.payload().len().to_string();
            tidelock_wire::header::append(&mut scratch.header, b"Nats-Msg-Size", size.as_bytes());
            message.header = &scratch.header;
            message.payload = b"";
            self.publish_along(account, route, &message);
        } else if record.payload().len() > COPY_BYTES_MAX {
            let shared = stored.record.slice_ref(record.payload());
            message.shared = Some(&shared);
            self.publish_along(account, route, &message);
        } else {
            self.publish_along(account, route, &message);
        }
    }

    /// Sends a status that no consumer's order binds.
    pub(super) fn send_status(&mut self, account: AccountId, inbox: &[u8], status: &Status) {
        let mut header = Vec::new();
        status.render(&mut header);
        self.publish_to(account, inbox, &header, b"");
    }

    /// Answers whoever awaits that an acknowledgement counts.
    pub(super) fn answer_ack(&mut self, account: AccountId, reply: &[u8]) {
        self.publish_to(account, reply, b"", b"");
    }

    /// Tells whoever awaits an answer that nobody listens to the subject he has asked on.
    pub(super) fn answer_no_responders(&mut self, account: AccountId, reply: &[u8], subject: &[u8]) {
        let header = [b"NATS/1.0 503\r\nNats-Subject: ", subject, b"\r\n\r\n"].concat();
        self.publish_to(account, reply, &header, b"");
    }
}
