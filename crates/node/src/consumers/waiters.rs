//! What becomes of commands and reads of this module.

use super::leading::Entered;
use crate::cell::Request;
use crate::groups::Done;
use crate::worker::Core;
use bytes::Bytes;
use tidelock_base::{ConsumerId, GroupId};
use tidelock_jetstream::consumer::Ticket;

/// What a client hears whose acknowledgement cannot be written: an error to every one.
const UNAVAILABLE: &[u8] = b"NATS/1.0 503\r\n\r\n";

/// What waits for the end of a command or read.
pub(crate) enum AckWaiter {
    /// A Deliver command is applied: what of it had no effect is given back.
    Delivered {
        /// The group.
        group: GroupId,
        /// The consumer.
        consumer: ConsumerId,
        /// The last pick in it.
        ticket: Ticket,
    },
    /// Acknowledgements count.
    Acked {
        /// The group.
        group: GroupId,
        /// The consumer.
        consumer: ConsumerId,
        /// Who wants to know.
        replies: Vec<Bytes>,
    },
    /// A block has been read.
    Fetched {
        /// The group.
        group: GroupId,
        /// The consumer.
        consumer: ConsumerId,
    },
    /// A pull request that does not wait is served when the state holds all that was published before.
    Pull(Box<Request>, Option<Entered>),
}

impl Core {
    /// A command or read of this module has ended. Called between entries, after what they brought about.
    pub(crate) fn ack_done(&mut self, waiter: AckWaiter, done: Done<'_>) {
        let lost = matches!(done, Done::Lost);
        if let Done::Refused(_) = done {
            return self.ack_refused(waiter);
        }
        match waiter {
            AckWaiter::Pull(request, entered) if lost => self.refuse_pull(*request, entered),
            AckWaiter::Pull(request, entered) => self.take_pull(*request, entered),
            // The leader's side is gone, or about to be.
            AckWaiter::Delivered { .. } | AckWaiter::Acked { .. } | AckWaiter::Fetched { .. } if lost => {}
            AckWaiter::Delivered {
                group,
                consumer,
                ticket,
            } => {
                self.touch_consumer(group, consumer, |one| one.applied = one.applied.max(Some(ticket)));
            }
            AckWaiter::Fetched { group, consumer } => {
                self.touch_consumer(group, consumer, |one| one.fetching = false);
            }
            AckWaiter::Acked {
                group,
                consumer,
                replies,
            } => {
                self.touch_consumer(group, consumer, |_| ());
                let Some(account) = self.slot(group).map(|slot| slot.account) else {
                    return;
                };
                for reply in replies {
                    self.answer_ack(account, &reply);
                }
            }
        }
    }

    /// The log cannot be written.
    fn ack_refused(&mut self, waiter: AckWaiter) {
        match waiter {
            AckWaiter::Pull(request, entered) => self.pull_unanswered(&request, entered),
            AckWaiter::Acked { group, replies, .. } => self.acks_unanswered(group, &replies),
            AckWaiter::Delivered { .. } | AckWaiter::Fetched { .. } => {}
        }
    }

    /// Acknowledgements whose clients wait, and cannot be told that they count. Any body would be taken for a yes; a
    /// status of 503 is an error to every client.
    pub(crate) fn acks_unanswered(&mut self, group: GroupId, replies: &[Bytes]) {
        let Some(account) = self.slot(group).map(|slot| slot.account) else {
            return;
        };
        for reply in replies {
            self.publish_to(account, reply, UNAVAILABLE, b"");
        }
    }

    fn touch_consumer(
        &mut self,
        group: GroupId,
        consumer: ConsumerId,
        change: impl FnOnce(&mut super::leading::One),
    ) {
        let Some(slot) = self.slot_mut(group) else { return };
        if let Some(one) = slot.consumers.consumers.get_mut(&consumer) {
            change(one);
            slot.consumers.touch(consumer);
        }
    }
}
