//! Advisories about consumers, published where somebody listens.

use super::events::{AdvisoryKind, OwnedAdvisory};
use crate::deliver_batch::Message;
use crate::worker::Core;
use std::sync::Arc;
use tidelock_api::Time;
use tidelock_api::advisory::{
    self, Action, Advisory, ConsumerAction, MaxDeliveries, MsgNaked, MsgTerminated,
};
use tidelock_base::{AccountId, GroupId};

/// Letters of unique ids.
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Their length.
const ID_LETTERS: usize = 22;

impl Core {
    /// Publishes what the log says about a message of a consumer.
    pub(super) fn consumer_advisory(
        &mut self,
        group: GroupId,
        account: AccountId,
        consumer: &str,
        advisory: &OwnedAdvisory,
    ) {
        let Some(stream) = self.slot(group).map(|slot| Arc::clone(&slot.name)) else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        let domain = shared
            .options
            .jetstream
            .as_ref()
            .and_then(|js| js.domain.as_deref())
            .unwrap_or_default();
        let (stream_seq, consumer_seq) = (advisory.seq.0, advisory.deliver_seq.0);
        let (stream, deliveries) = (&*stream, u64::from(advisory.deliveries));
        match advisory.kind {
            AdvisoryKind::MaxDeliveries => {
                self.advise(
                    account,
                    &MaxDeliveries {
                        stream,
                        consumer,
                        stream_seq,
                        deliveries,
                        domain,
                    },
                );
            }
            AdvisoryKind::Naked => {
                self.advise(
                    account,
                    &MsgNaked {
                        stream,
                        consumer,
                        consumer_seq,
                        stream_seq,
                        deliveries,
                        domain,
                    },
                );
            }
            AdvisoryKind::Terminated => {
                let reason = &*String::from_utf8_lossy(&advisory.reason);
                let body = MsgTerminated {
                    stream,
                    consumer,
                    consumer_seq,
                    stream_seq,
                    deliveries,
                    reason,
                    domain,
                };
                self.advise(account, &body);
            }
        }
    }

    /// Publishes that a consumer was deleted because nobody used it.
    pub(super) fn deletion_advisory(&mut self, group: GroupId, account: AccountId, consumer: &str) {
        let Some(stream) = self.slot(group).map(|slot| Arc::clone(&slot.name)) else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        let domain = shared
            .options
            .jetstream
            .as_ref()
            .and_then(|js| js.domain.as_deref())
            .unwrap_or_default();
        self.advise(
            account,
            &ConsumerAction {
                stream: &stream,
                consumer,
                action: Action::Delete,
                domain,
            },
        );
    }

    fn advise(&mut self, account: AccountId, body: &impl Advisory) {
        let subject = body.subject();
        let (root, _) = self.root(account);
        if !root.tree.has_match(subject.as_bytes()) {
            return;
        }
        let id: String = (0..ID_LETTERS)
            .map(|_| {
                let at = self.random.below(62) as usize;
                char::from(LETTERS.get(at).copied().unwrap_or(b'0'))
            })
            .collect();
        let payload = advisory::advisory(body, &id, Time(self.now.wall));
        let subject = subject.as_bytes();
        let message = Message {
            subject,
            target: subject,
            reply: b"",
            header: b"",
            payload: &payload,
            shared: None,
        };
        self.publish_made(account, &message);
    }
}
