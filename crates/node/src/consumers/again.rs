//! Acknowledgements that a leader has taken and not proposed when its leadership ended: they go to the next leader, with
//! those who wait for an answer. They are told by the stream's sequence and may come twice, so that this is safe.
//!
//! What was proposed is in the log of the next leader, or was lost with the old one; whichever it is, who waits is told
//! when the entry is applied here, or not at all.

use super::AckWaiter;
use super::items::{Item, Say};
use crate::groups::{Machine, Waiter};
use crate::worker::Core;
use bytes::Bytes;
use tidelock_base::{GroupId, StreamSeq};
use tidelock_jetstream::command::{Command, commands};
use tidelock_jetstream::consumer::AckKind;

/// Most of one command that are passed on. The messages of others are delivered again.
const AGAIN_MAX: u64 = 65_536;

impl Core {
    /// Takes the acknowledgements out of an entry that was never proposed, and those who wait for them out of `waiters`.
    pub(crate) fn acks_go_on(&mut self, group: GroupId, entry: &[u8], waiters: &mut Vec<(u32, Waiter)>) {
        let Some(slot) = self.slot(group) else { return };
        let Machine::Stream(stream) = &slot.machine else {
            return;
        };
        let Ok((_, commands)) = commands(entry) else {
            return;
        };
        let mut out = Vec::new();
        for (command, ordinal) in commands.map_while(Result::ok).zip(0_u32..) {
            let Command::Acks {
                consumer,
                verb,
                ranges,
                reason,
                ..
            } = command
            else {
                continue;
            };
            let Some(consumer) = stream.consumer_by_id(consumer) else {
                continue;
            };
            let replies = take_replies(waiters, ordinal);
            let mut item = Item {
                consumer: consumer.name(),
                seq: StreamSeq(0),
                say: say(verb),
                reply: b"",
                text: reason,
                subject: b"",
            };
            let all = (0..ranges.len())
                .filter_map(|at| ranges.at(at))
                .flat_map(|(from, to)| from.0..=to.0);
            for seq in all.take(usize::try_from(AGAIN_MAX).unwrap_or(usize::MAX)) {
                item.seq = StreamSeq(seq);
                item.encode(&mut out);
            }
            for reply in &replies {
                item.reply = reply;
                item.encode(&mut out);
            }
        }
        self.keep_acks(group, &out);
    }
}

/// Those who wait for the outcome of a command.
fn take_replies(waiters: &mut Vec<(u32, Waiter)>, ordinal: u32) -> Vec<Bytes> {
    let mut found = Vec::new();
    waiters.retain_mut(|(at, waiter)| match waiter {
        Waiter::Ack(AckWaiter::Acked { replies, .. }) if *at == ordinal => {
            found.append(replies);
            false
        }
        _ => true,
    });
    found
}

const fn say(verb: AckKind) -> Say {
    match verb {
        AckKind::Ack => Say::Ack,
        AckKind::Nak { delay_ns } => Say::Nak(delay_ns),
        AckKind::Term => Say::Term,
        AckKind::Progress => Say::Progress,
    }
}
