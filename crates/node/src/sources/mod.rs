//! Sources and mirrors: the leader of the destination copies from the origin (DESIGN section 6).
//!
//! It makes a consumer of the origin through the API, as a client would, receives the deliveries at an inbox of its own
//! and logs them in batches that name where they go on from; so whatever is delivered or logged twice is taken once.
//! What is in the log is acknowledged to an origin that lets go of what is acknowledged.
//!
//! Invariants:
//! - positions are read from the state when the first entry of the leader's own term has been applied;
//! - nothing is acknowledged before it is applied;
//! - an origin that has gone back behind the position is reported, and nothing is taken from it.

mod feed;
mod origin;

use crate::cell::{Cell, Sourced};
use crate::deliver_batch::Message;
use crate::groups::{Done, Machine, Waiter};
use crate::interest::{Change, Service, Target};
use crate::worker::Core;
use bytes::{Bytes, BytesMut};
use feed::{Answer, Arrival, Feed, Gap, Stage};
use origin::{Known, Refused};
use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_api::ErrorBody;
use tidelock_base::{AccountId, GroupId, Mono, StreamSeq, WorkerId};
use tidelock_jetstream::stream::{CommandOutcome, Stream};

/// Subjects below which origins deliver: followed by letters and the number of the worker.
const INBOX: &str = "$JS.S.";
/// Letters of an inbox.
const LETTERS: usize = 12;
/// Behind the inbox: where the origin's answers to questions come to.
const INFO: &[u8] = b".info";
const CREATED: &[u8] = b".created";
/// Leaders that begin at the same time do not ask at the same time.
const FIRST_WITHIN_MS: u32 = 100;

/// A source that waits for its batch.
#[derive(Clone, Debug)]
pub(crate) struct SourceWaiter {
    group: GroupId,
    /// Of the attempt that logged it.
    inbox: Bytes,
}

/// What only the leader knows of a mirror or source, for STREAM.INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceLive {
    /// Messages of the origin that have not come yet.
    pub(crate) lag: u64,
    /// Time since the origin was last heard; `None`: never.
    pub(crate) active: Option<Duration>,
    /// What stops it.
    pub(crate) error: Option<ErrorBody>,
}

/// The mirrors and sources of the streams that are led by a worker.
#[derive(Default)]
pub(crate) struct Sources {
    groups: BTreeMap<GroupId, Feeds>,
    inboxes: BTreeMap<Bytes, GroupId>,
    record: BytesMut,
}

/// Those of one stream.
struct Feeds {
    /// Revision of the configuration that they follow.
    rev: u64,
    list: Vec<Feed>,
}

impl Sources {
    /// Whether a stream takes messages from others.
    pub(crate) fn has(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }
}

impl Feeds {
    fn find(&mut self, inbox: &[u8]) -> Option<&mut Feed> {
        self.list
            .iter_mut()
            .find(|feed| !feed.inbox.is_empty() && feed.inbox == inbox)
    }
}

impl Core {
    /// This node now leads a group, with a state that is current.
    pub(crate) fn sources_lead(&mut self, group: GroupId) {
        self.sources_follow(group);
        self.follow_config(group);
    }

    /// This node leads a group no more.
    pub(crate) fn sources_follow(&mut self, group: GroupId) {
        let Some(feeds) = self.sources.groups.remove(&group) else {
            return;
        };
        let Some(account) = self.slot(group).map(|slot| slot.account) else {
            return;
        };
        let is_there = self.shared.directory.load().by_group(group).is_some();
        for feed in feeds.list {
            self.close_inbox(account, &feed.inbox);
            if !is_there {
                self.take_leave(account, &feed);
            }
        }
    }

    /// A source is no more: a consumer of the origin that would stay, and keep the origin's messages for it, is
    /// deleted. Best effort: an origin that is not reached keeps it.
    fn take_leave(&mut self, account: AccountId, feed: &Feed) {
        if feed.acknowledges && !feed.consumer.is_empty() {
            let subject = format!("$JS.API.CONSUMER.DELETE.{}.{}", feed.origin.name, feed.consumer);
            self.ask_origin(account, subject.as_bytes(), b"", b"");
        }
    }

    /// Makes the list of sources that of the stream's configuration; those that stay go on.
    fn follow_config(&mut self, group: GroupId) {
        let now = self.now.mono;
        let Some(slot) = self.slot(group).filter(|slot| slot.leads) else {
            return;
        };
        let account = slot.account;
        if account == AccountId::NONE {
            return;
        }
        let Some(stream) = self.stream(group) else { return };
        let rev = stream.rev();
        let known = self.sources.groups.get(&group).map(|feeds| feeds.rev);
        let config = stream.config().clone();
        if known == Some(rev) || (known.is_none() && config.mirror.is_none() && config.sources.is_empty()) {
            return;
        }
        let mut before = self
            .sources
            .groups
            .remove(&group)
            .map(|feeds| feeds.list)
            .unwrap_or_default();
        let mirror = config.mirror.iter().map(|origin| (origin, true));
        let wanted = mirror.chain(config.sources.iter().map(|origin| (origin, false)));
        let mut list = Vec::new();
        for (origin, is_mirror) in wanted {
            match before
                .iter()
                .position(|feed| feed.origin == *origin && feed.is_mirror == is_mirror)
            {
                Some(at) => list.push(before.swap_remove(at)),
                None => {
                    let pause = Duration::from_millis(u64::from(self.random.below(FIRST_WITHIN_MS)));
                    list.push(Feed::new(origin.clone(), is_mirror, now + pause));
                }
            }
        }
        for gone in before {
            self.close_inbox(account, &gone.inbox);
            self.take_leave(account, &gone);
        }
        if !list.is_empty() {
            self.sources.groups.insert(group, Feeds { rev, list });
        }
    }

    fn open_inbox(&mut self, group: GroupId, account: AccountId) -> Bytes {
        const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let mut name = INBOX.to_owned();
        for _ in 0..LETTERS {
            let at = self.random.below(62) as usize;
            name.push(char::from(DIGITS.get(at).copied().unwrap_or(b'0')));
        }
        name.push_str(&format!("{:04x}", self.id.0));
        let inbox = Bytes::from(name);
        self.sources.inboxes.insert(inbox.clone(), group);
        for filter in filters(&inbox) {
            self.change_interest(account, Change::Insert(filter, Target::Service(Service::Inbox)));
        }
        inbox
    }

    fn close_inbox(&mut self, account: AccountId, inbox: &Bytes) {
        if self.sources.inboxes.remove(inbox).is_some() {
            for filter in filters(inbox) {
                self.change_interest(account, Change::Remove(filter, Target::Service(Service::Inbox)));
            }
        }
    }

    /// Does what is due.
    pub(crate) fn sources_tick(&mut self, group: GroupId) {
        let now = self.now.mono;
        let Some(account) = self.slot(group).map(|slot| slot.account) else {
            return;
        };
        let Some(feeds) = self.sources.groups.get_mut(&group) else {
            return;
        };
        let mut over = Vec::new();
        let mut due = Vec::new();
        for (feed, at) in feeds.list.iter_mut().zip(0_usize..) {
            if feed.until > now {
                continue;
            }
            if feed.stage == Stage::Waiting {
                due.push(at);
            } else {
                over.push(feed.inbox.clone());
                feed.fail(now, None);
            }
        }
        for inbox in over {
            self.close_inbox(account, &inbox);
        }
        for at in due {
            self.begin(group, account, at);
        }
    }

    /// Begins an attempt: asks the origin what it is.
    fn begin(&mut self, group: GroupId, account: AccountId, at: usize) {
        let now = self.now.mono;
        let inbox = self.open_inbox(group, account);
        let feed = self
            .sources
            .groups
            .get_mut(&group)
            .and_then(|feeds| feeds.list.get_mut(at));
        let Some(feed) = feed else { return };
        feed.begin(now, inbox.clone());
        let subject = format!("$JS.API.STREAM.INFO.{}", feed.origin.name);
        self.ask_origin(account, subject.as_bytes(), &[&inbox[..], INFO].concat(), b"");
    }

    fn ask_origin(&mut self, account: AccountId, subject: &[u8], reply: &[u8], payload: &[u8]) {
        self.publish_made(
            account,
            &Message {
                subject,
                target: subject,
                reply,
                header: b"",
                payload,
                shared: None,
            },
        );
    }

    /// When [`Core::sources_tick`] must run at the latest.
    pub(crate) fn sources_deadline(&self, group: GroupId) -> Option<Mono> {
        self.sources
            .groups
            .get(&group)?
            .list
            .iter()
            .map(|feed| feed.until)
            .min()
    }

    /// Something has come to an inbox of sources; answers whether it is known.
    pub(crate) fn source_entry(&mut self, account: AccountId, message: &Message<'_>) -> bool {
        let inbox = inbox_of(message.target);
        let rest = message.target.get(inbox.len()..).unwrap_or_default();
        let Some(group) = self.sources.inboxes.get(inbox).copied() else {
            return self.pass_to_owner(account, inbox, message);
        };
        let arrival = Arrival {
            subject: message.subject,
            reply: message.reply,
            header: message.header,
            payload: message.payload,
        };
        match rest {
            INFO => self.origin_known(group, account, inbox, message.payload),
            CREATED => self.origin_ready(group, account, inbox, message.payload),
            _ => self.origin_sent(group, account, inbox, &arrival),
        }
        true
    }

    /// The inbox of another worker: its number stands at the end.
    fn pass_to_owner(&mut self, account: AccountId, inbox: &[u8], message: &Message<'_>) -> bool {
        let number = inbox.len().checked_sub(4).and_then(|at| inbox.get(at..));
        let number = number.and_then(|text| u16::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok());
        let Some(owner) = number
            .map(WorkerId)
            .filter(|id| *id != self.id && id.0 < self.shared.workers)
        else {
            return false;
        };
        let [subject, target, reply, header] =
            [message.subject, message.target, message.reply, message.header].map(Bytes::copy_from_slice);
        let payload = message
            .shared
            .cloned()
            .unwrap_or_else(|| Bytes::copy_from_slice(message.payload));
        let sourced = Sourced {
            account,
            subject,
            target,
            reply,
            header,
            payload,
        };
        self.out
            .cells
            .push_back((owner, Cell::Sourced(Box::new(sourced))));
        true
    }

    /// Another worker has received something for an inbox of this one.
    pub(crate) fn receive_sourced(&mut self, sourced: &Sourced) {
        let message = Message {
            subject: &sourced.subject,
            target: &sourced.target,
            reply: &sourced.reply,
            header: &sourced.header,
            payload: &sourced.payload,
            shared: None,
        };
        if self.sources.inboxes.contains_key(inbox_of(&sourced.target)) {
            self.source_entry(sourced.account, &message);
        }
    }

    /// The origin has said what it is: a consumer of it is asked for.
    fn origin_known(&mut self, group: GroupId, account: AccountId, inbox: &[u8], payload: &[u8]) {
        let now = self.now.mono;
        let answer = origin::read_info(payload);
        let consumer = self.random_consumer();
        let Some(slot) = self.groups.slots.get(&group).filter(|slot| slot.leads) else {
            return;
        };
        let Machine::Stream(stream) = &slot.machine else {
            return;
        };
        let Some(feed) = self
            .sources
            .groups
            .get_mut(&group)
            .and_then(|feeds| feeds.find(inbox))
        else {
            return;
        };
        if feed.stage != Stage::Asking {
            return;
        }
        let begun = answer.and_then(|known| start_of(feed, stream, known));
        let (known, position, start) = match begun {
            Ok(begun) => begun,
            Err(Refused(error)) => return self.attempt_failed(group, account, inbox, error),
        };
        feed.create(now, known.identity, position, known.frees);
        feed.consumer = match known.frees {
            true => origin::durable_name(feed, &slot.name),
            false => consumer,
        };
        let (subject, body) = origin::create_request(feed, start);
        self.ask_origin(account, subject.as_bytes(), &[inbox, CREATED].concat(), &body);
    }

    fn random_consumer(&mut self) -> String {
        format!("JS_SRC_{:016x}", self.random.next())
    }

    /// The consumer is there; it may have begun to deliver.
    fn origin_ready(&mut self, group: GroupId, account: AccountId, inbox: &[u8], payload: &[u8]) {
        let now = self.now.mono;
        let Some(feed) = self
            .sources
            .groups
            .get_mut(&group)
            .and_then(|feeds| feeds.find(inbox))
        else {
            return;
        };
        if feed.stage != Stage::Creating {
            return;
        }
        match origin::read_created(payload) {
            Ok(pending) => feed.run(now, pending),
            Err(Refused(error)) => return self.attempt_failed(group, account, inbox, error),
        }
        // The timer is to be set anew.
        let _ = self.slot_mut(group);
    }

    /// A message or status of the origin.
    fn origin_sent(&mut self, group: GroupId, account: AccountId, inbox: &[u8], arrival: &Arrival<'_>) {
        let now = self.now.mono;
        let mut record = std::mem::take(&mut self.sources.record);
        let Some(feed) = self
            .sources
            .groups
            .get_mut(&group)
            .and_then(|feeds| feeds.find(inbox))
        else {
            return;
        };
        let arrived = match feed.stage {
            Stage::Creating | Stage::Running => feed.arrived(now, arrival, &mut record),
            Stage::Waiting | Stage::Asking => Ok(()),
        };
        let full = feed.is_full();
        self.sources.record = record;
        match arrived {
            Ok(()) if full => self.log_batches(group),
            Ok(()) => {}
            Err(Gap) => self.attempt_over(group, account, inbox),
        }
        let _ = self.slot_mut(group);
    }

    /// An attempt has failed; the next one comes after a pause.
    fn attempt_failed(&mut self, group: GroupId, account: AccountId, inbox: &[u8], error: Option<ErrorBody>) {
        let now = self.now.mono;
        let Some(feed) = self
            .sources
            .groups
            .get_mut(&group)
            .and_then(|feeds| feeds.find(inbox))
        else {
            return;
        };
        let inbox = feed.inbox.clone();
        feed.fail(now, error);
        self.close_inbox(account, &inbox);
        let _ = self.slot_mut(group);
    }

    /// An attempt is given up, and the next one comes soon.
    fn attempt_over(&mut self, group: GroupId, account: AccountId, inbox: &[u8]) {
        let now = self.now.mono;
        let Some(feed) = self
            .sources
            .groups
            .get_mut(&group)
            .and_then(|feeds| feeds.find(inbox))
        else {
            return;
        };
        let inbox = feed.inbox.clone();
        feed.restart(now);
        self.close_inbox(account, &inbox);
        let _ = self.slot_mut(group);
    }

    /// The end of a turn, before the group proposes.
    pub(crate) fn sources_turn(&mut self, group: GroupId) {
        self.follow_config(group);
        if self.sources.groups.contains_key(&group) {
            self.log_batches(group);
            self.answer_origins(group);
        }
    }

    /// Adds what has come to the log.
    fn log_batches(&mut self, group: GroupId) {
        let Some(feeds) = self.sources.groups.get_mut(&group) else {
            return;
        };
        let mut batches = Vec::new();
        for feed in &mut feeds.list {
            batches.extend(feed.take_batch().map(|batch| (feed.inbox.clone(), batch)));
        }
        for (inbox, batch) in batches {
            if let Some(code) = self.copies_turned_away(group, batch.len() as u64) {
                // Read again from the origin when there may be room.
                let account = self.slot(group).map_or(AccountId::NONE, |slot| slot.account);
                let error = ErrorBody::from(&tidelock_base::ApiError::new(code));
                self.attempt_failed(group, account, &inbox, Some(error));
                continue;
            }
            let waiter = Waiter::Source(SourceWaiter { group, inbox });
            self.command(group, waiter, |entry| entry.source_batch(&batch));
        }
    }

    /// Tells origins what is in the log.
    fn answer_origins(&mut self, group: GroupId) {
        let Some(account) = self.slot(group).map(|slot| slot.account) else {
            return;
        };
        let Some(feeds) = self.sources.groups.get_mut(&group) else {
            return;
        };
        let mut answers: Vec<(Vec<u8>, Answer)> = Vec::new();
        for feed in &mut feeds.list {
            if let Some(answer) = feed.answer() {
                let unasked = || format!("$JS.FC.{}.{}.0", feed.origin.name, feed.consumer).into_bytes();
                let subject = answer.reply.as_ref().map_or_else(unasked, |reply| reply.to_vec());
                answers.push((subject, answer));
            }
        }
        for (subject, answer) in answers {
            let header = format!(
                "NATS/1.0\r\nNats-Last-Consumer: {}\r\nNats-Last-Stream: {}\r\n\r\n",
                answer.deliver_seq, answer.seq
            );
            self.publish_to(account, &subject, header.as_bytes(), b"");
        }
    }

    /// A batch is applied.
    pub(crate) fn source_done(&mut self, waiter: SourceWaiter, done: Done<'_>) {
        let SourceWaiter { group, inbox } = waiter;
        let now = self.now.mono;
        let Some(account) = self.slot(group).map(|slot| slot.account) else {
            return;
        };
        let Some(feed) = self
            .sources
            .groups
            .get_mut(&group)
            .and_then(|feeds| feeds.find(&inbox))
        else {
            return;
        };
        match done {
            Done::Stream(CommandOutcome::Source(outcome)) => {
                if outcome.too_large > 0 {
                    tracing::warn!(
                        "{} messages of {:?} are larger than the stream allows and left out",
                        outcome.too_large,
                        feed.origin.name
                    );
                }
                if !feed.logged(outcome) {
                    feed.fail(now, None);
                    self.close_inbox(account, &inbox);
                }
            }
            // It does not continue the state: the attempt was made from a position that is no longer the present one.
            Done::Stream(_) => self.attempt_over(group, account, &inbox),
            Done::Meta(_) | Done::Acked | Done::Read | Done::Lost | Done::Refused(_) => {}
        }
        let _ = self.slot_mut(group);
    }

    /// What only the leader knows of a mirror or source, by the key of [`tidelock_jetstream::stream::source_key`];
    /// `None` if this node does not lead.
    pub(crate) fn source_live(&self, group: GroupId, key: &[u8]) -> Option<SourceLive> {
        let feed = self
            .sources
            .groups
            .get(&group)?
            .list
            .iter()
            .find(|feed| feed.key == key)?;
        Some(SourceLive {
            lag: feed.lag,
            active: feed.heard.map(|heard| self.now.mono.since(heard)),
            error: feed.error.clone(),
        })
    }
}

/// Where a feed goes on at an origin: the position in the log, and the first sequence to ask for, if it is not the
/// configuration that says.
///
/// # Errors
/// The origin has gone back behind the position.
fn start_of(
    feed: &Feed,
    stream: &Stream,
    known: Known,
) -> Result<(Known, StreamSeq, Option<StreamSeq>), Refused> {
    let position = stream.source(&feed.key);
    let position = position
        .filter(|position| *position.identity == *known.identity)
        .map_or(StreamSeq(0), |at| at.seq);
    if known.last_seq < position {
        let description = format!(
            "origin ends at sequence {}, {position} was taken from it before",
            known.last_seq
        );
        return Err(Refused(Some(ErrorBody {
            code: 500,
            err_code: 0,
            description,
        })));
    }
    // A mirror that has none of this origin's messages yet, and others, goes on behind those.
    let from = if feed.is_mirror {
        position.max(stream.last_seq())
    } else {
        position
    };
    // An origin that was made anew is begun like one that was never read: as the configuration says.
    let start = (from > StreamSeq(0)).then(|| from.next());
    Ok((known, position, start))
}

/// The patterns of an inbox: deliveries, and answers to questions.
fn filters(inbox: &[u8]) -> [Box<[u8]>; 2] {
    [inbox.into(), [inbox, b".*"].concat().into()]
}

/// The inbox that a subject belongs to: its first three tokens.
fn inbox_of(target: &[u8]) -> &[u8] {
    let end = target
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'.')
        .nth(2);
    end.and_then(|(at, _)| target.get(..at)).unwrap_or(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inboxes_are_told_from_what_follows() {
        assert_eq!(inbox_of(b"$JS.S.abc0000"), b"$JS.S.abc0000");
        assert_eq!(inbox_of(b"$JS.S.abc0000.info"), b"$JS.S.abc0000");
        assert_eq!(inbox_of(b"$JS.S"), b"$JS.S");
    }
}
