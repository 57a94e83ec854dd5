//! The half of a connection that is written to: its subscriptions and its output.

use std::fmt::{self, Write as _};
use std::io::IoSlice;
use std::sync::Arc;

use bytes::Bytes;
use tidelock_auth::Permissions;
use tidelock_base::Mono;
use tidelock_base::limits::COPY_BYTES_MAX;
use tidelock_wire::{Connect, Decimal, Info};

use crate::pool::ChunkPool;
use crate::publish::Publish;
use crate::queue::OutQueue;
use crate::replies::ReplyGrants;
use crate::settings::{Counters, Settings};
use crate::subscription::{SubSlot, Subscription, Subscriptions};

/// The half of a connection that is written to.
#[derive(Debug)]
pub struct Outbound {
    subs: Subscriptions,
    queue: OutQueue,
    counters: Counters,
    max_pending: usize,
    /// Nothing more is queued: the client is too slow, or the connection is closing.
    closed: bool,
    slow: bool,
    echo: bool,
    headers: bool,
    no_responders: bool,
    permissions: Option<Arc<Permissions>>,
    replies: Option<ReplyGrants>,
    stalled_since: Option<Mono>,
}

/// What became of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// Queued. [`Outbound::pending`] says how much waits.
    Ok,
    /// Queued, and the subscription has had its last message. The worker takes it out of interest, then calls
    /// [`Outbound::remove`].
    AutoUnsubscribed(SubSlot),
    /// Not queued: the client's permissions deny the subject. A queue group tries another member.
    Denied,
    /// Not queued: more than `max_pending` would wait. The client is a slow consumer from now on and is to be closed
    /// with [`crate::CloseReason::SlowConsumerPendingBytes`]. Carries the bytes that wait.
    OverLimit(usize),
    /// Not queued: the subscription has ended or the connection takes nothing more.
    Gone,
}

/// A message that is not a client's publish: made by the server, read from a stream, or come from another worker.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Subject as the receiver sees it.
    pub subject: &'a [u8],
    /// Reply subject.
    pub reply: Option<&'a [u8]>,
    /// The whole header block, or empty.
    pub header: &'a [u8],
    /// Payload without header.
    pub payload: &'a [u8],
    /// The payload as shared bytes; used instead of a copy if it is large.
    pub shared: Option<&'a Bytes>,
    /// Now; permission to answer starts with it.
    pub now: Mono,
}

/// A message in the general form.
struct Message<'a> {
    subject: &'a [u8],
    reply: &'a [u8],
    header: &'a [u8],
    payload: &'a [u8],
    header_text: &'a [u8],
    size_text: &'a [u8],
}

/// The large end of a message.
enum End<'a> {
    /// Copied with the line; CRLF follows.
    Copied(&'a [u8]),
    /// Shared, without its CRLF.
    Shared(Bytes),
    /// Shared, CRLF included.
    SharedWithCrlf(Bytes),
}

impl Outbound {
    /// The output of a connection that has sent nothing yet.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {
            subs: Subscriptions::default(),
            queue: OutQueue::default(),
            counters: Counters::default(),
            max_pending: settings.max_pending,
            closed: false,
            slow: false,
            echo: true,
            headers: false,
            no_responders: false,
            permissions: None,
            replies: None,
            stalled_since: None,
        }
    }

    /// Delivers a client's publish to a subscription.
    #[inline]
    pub fn deliver(&mut self, slot: SubSlot, message: &Publish<'_>, pool: &mut ChunkPool) -> Delivered {
        let with_header = !message.header.is_empty();
        let fast = !message.tail.is_empty()
            && message.block.len() <= COPY_BYTES_MAX
            && (self.headers || !with_header)
            && self.replies.is_none();
        if !fast {
            return self.deliver_slowly(slot, message, pool);
        }
        let Some(sub) = self.subs.get_mut(slot) else {
            return Delivered::Gone;
        };
        if self.closed || sub.delivered >= sub.max {
            return Delivered::Gone;
        }
        if sub.deny_filter
            && self
                .permissions
                .as_ref()
                .is_some_and(|p| p.denies_delivery(message.subject))
        {
            return Delivered::Denied;
        }
        let prefix = sub.prefix(message.subject);
        let prefix = prefix.get(usize::from(!with_header)..).unwrap_or_default();
        if self.queue.pending() + prefix.len() + message.tail.len() > self.max_pending {
            return self.over_limit();
        }
        self.queue.append([prefix, message.tail], pool);
        self.counters.messages += 1;
        self.counters.bytes += message.len() as u64;
        sub.delivered += 1;
        if sub.delivered >= sub.max {
            Delivered::AutoUnsubscribed(slot)
        } else {
            Delivered::Ok
        }
    }

    /// A publish that is not in canonical form, large, or must be changed for this receiver.
    #[cold]
    fn deliver_slowly(&mut self, slot: SubSlot, message: &Publish<'_>, pool: &mut ChunkPool) -> Delivered {
        let header = if self.headers { message.header } else { &[] };
        let stripped = header.len() != message.header.len();
        let mut digits = Decimal::new();
        let size_text = if stripped {
            digits.format(message.payload.len() as u64)
        } else {
            message.size_text
        };
        let parts = Message {
            subject: message.subject,
            reply: message.reply.unwrap_or_default(),
            header,
            payload: message.payload,
            header_text: message.header_text,
            size_text,
        };
        let large = message.block.len() > COPY_BYTES_MAX || message.is_shared();
        let end = || {
            if large {
                // The header is short: it is copied with the line, so that the end is the same for all receivers.
                End::SharedWithCrlf(message.share_block().slice(message.header.len()..))
            } else {
                End::Copied(message.payload)
            }
        };
        self.enqueue(slot, &parts, end, message.now, pool)
    }

    /// Delivers a message that is not a client's publish.
    pub fn deliver_parts(&mut self, slot: SubSlot, message: &Parts<'_>, pool: &mut ChunkPool) -> Delivered {
        let header = if self.headers { message.header } else { &[] };
        let (mut header_digits, mut size_digits) = (Decimal::new(), Decimal::new());
        let size = header.len() + message.payload.len();
        let parts = Message {
            subject: message.subject,
            reply: message.reply.unwrap_or_default(),
            header,
            payload: message.payload,
            header_text: header_digits.format(header.len() as u64),
            size_text: size_digits.format(size as u64),
        };
        let end = || match message.shared {
            Some(bytes) if bytes.len() > COPY_BYTES_MAX => End::Shared(bytes.clone()),
            _ => End::Copied(message.payload),
        };
        self.enqueue(slot, &parts, end, message.now, pool)
    }

    fn enqueue<'a>(
        &mut self,
        slot: SubSlot,
        message: &Message<'_>,
        end: impl FnOnce() -> End<'a>,
        now: Mono,
        pool: &mut ChunkPool,
    ) -> Delivered {
        let Some(sub) = self.subs.get_mut(slot) else {
            return Delivered::Gone;
        };
        if self.closed || sub.delivered >= sub.max {
            return Delivered::Gone;
        }
        if sub.deny_filter
            && self
                .permissions
                .as_ref()
                .is_some_and(|p| p.denies_delivery(message.subject))
        {
            return Delivered::Denied;
        }
        let prefix = sub.prefix(message.subject);
        let prefix = prefix
            .get(usize::from(message.header.is_empty())..)
            .unwrap_or_default();
        let size = message.header.len() + message.payload.len();
        let line = prefix.len() + message.reply.len() + message.header_text.len() + message.size_text.len();
        if self.queue.pending() + line + size + 6 > self.max_pending {
            return self.over_limit();
        }
        let reply_space: &[u8] = if message.reply.is_empty() { b"" } else { b" " };
        let (header_text, size_space): (&[u8], &[u8]) = if message.header.is_empty() {
            (b"", b"")
        } else {
            (message.header_text, b" ")
        };
        let head = [
            prefix,
            message.reply,
            reply_space,
            header_text,
            size_space,
            message.size_text,
            b"\r\n",
        ];
        let [a, b, c, d, e, f, g] = head;
        match end() {
            End::Copied(payload) => {
                self.queue
                    .append([a, b, c, d, e, f, g, message.header, payload, b"\r\n"], pool);
            }
            End::Shared(payload) => {
                self.queue.append([a, b, c, d, e, f, g, message.header], pool);
                self.queue.append_shared(payload, pool);
                self.queue.append([b"\r\n"], pool);
            }
            End::SharedWithCrlf(block) => {
                self.queue.append([a, b, c, d, e, f, g, message.header], pool);
                self.queue.append_shared(block, pool);
            }
        }
        self.counters.messages += 1;
        self.counters.bytes += size as u64;
        sub.delivered += 1;
        let done = sub.delivered >= sub.max;
        if let Some(replies) = &mut self.replies
            && !message.reply.is_empty()
        {
            replies.open(message.reply, now);
        }
        if done {
            Delivered::AutoUnsubscribed(slot)
        } else {
            Delivered::Ok
        }
    }

    #[cold]
    fn over_limit(&mut self) -> Delivered {
        self.slow = true;
        self.closed = true;
        Delivered::OverLimit(self.queue.pending())
    }

    /// Answers a request that nobody received, on the subscription of this connection that waits for the reply:
    /// status 503 with the subject of the request.
    pub fn deliver_no_responders(
        &mut self,
        slot: SubSlot,
        reply: &[u8],
        subject: &[u8],
        now: Mono,
        pool: &mut ChunkPool,
    ) -> Delivered {
        let header = [b"NATS/1.0 503\r\nNats-Subject: ", subject, b"\r\n\r\n"].concat();
        let parts = Parts {
            subject: reply,
            reply: None,
            header: &header,
            payload: &[],
            shared: None,
            now,
        };
        self.deliver_parts(slot, &parts, pool)
    }

    /// Queues protocol bytes. They count as pending like messages.
    fn raw(&mut self, parts: [&[u8]; 3], pool: &mut ChunkPool) {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        if self.closed {
            return;
        }
        if self.queue.pending() + len > self.max_pending {
            self.over_limit();
            return;
        }
        self.queue.append(parts, pool);
    }

    /// Queues INFO.
    pub fn info(&mut self, info: &Info, pool: &mut ChunkPool) {
        self.raw([&info.to_line(), b"", b""], pool);
    }

    /// Queues `-ERR 'text'`.
    pub fn err(&mut self, text: fmt::Arguments<'_>, pool: &mut ChunkPool) {
        let mut line = String::new();
        // Writing into a string cannot fail.
        let _ = write!(line, "-ERR '{text}'\r\n");
        self.raw([line.as_bytes(), b"", b""], pool);
    }

    /// Queues `+OK`.
    pub fn ok(&mut self, pool: &mut ChunkPool) {
        self.raw([b"+OK\r\n", b"", b""], pool);
    }

    /// Queues PONG.
    pub fn pong(&mut self, pool: &mut ChunkPool) {
        self.raw([b"PONG\r\n", b"", b""], pool);
    }

    /// Queues PING.
    pub fn ping(&mut self, pool: &mut ChunkPool) {
        self.raw([b"PING\r\n", b"", b""], pool);
    }

    /// Adds the slices that are to be written next, at most as many as one vectored write takes.
    pub fn chunks<'a>(&'a self, iov: &mut impl Extend<IoSlice<'a>>) {
        iov.extend(self.queue.slices());
    }

    /// The first `n` bytes of [`Self::chunks`] are written.
    pub fn advance(&mut self, n: usize, pool: &mut ChunkPool) {
        if n > 0 {
            self.stalled_since = None;
        }
        self.queue.advance(n, pool);
    }

    /// The socket takes no more for now; starts the write deadline unless it runs already.
    pub fn stalled(&mut self, now: Mono) {
        if self.queue.pending() > 0 && self.stalled_since.is_none() {
            self.stalled_since = Some(now);
        }
    }

    /// Since when a write has been blocked, if one is.
    #[must_use]
    pub const fn stalled_since(&self) -> Option<Mono> {
        self.stalled_since
    }

    /// Bytes that wait to be sent.
    #[must_use]
    #[inline]
    pub const fn pending(&self) -> usize {
        self.queue.pending()
    }

    /// Whether more than `max_pending` bytes had to wait: the connection is to be closed.
    #[must_use]
    pub const fn is_slow(&self) -> bool {
        self.slow
    }

    /// Queues nothing more from now on; what is queued can still be sent.
    pub const fn close(&mut self) {
        self.closed = true;
    }

    /// Drops what is queued and gives its buffers back.
    pub fn discard(&mut self, pool: &mut ChunkPool) {
        self.closed = true;
        self.queue.clear(pool);
    }

    /// Whether the connection gets its own publishes.
    #[must_use]
    pub const fn echo(&self) -> bool {
        self.echo
    }

    /// Whether the client understands headers.
    #[must_use]
    pub const fn headers(&self) -> bool {
        self.headers
    }

    /// Whether the client wants a 503 for requests that nobody receives.
    #[must_use]
    pub const fn no_responders(&self) -> bool {
        self.no_responders
    }

    /// Messages and bytes delivered.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// A subscription.
    #[must_use]
    pub fn sub(&self, slot: SubSlot) -> Option<&Subscription> {
        self.subs.get(slot)
    }

    /// All subscriptions, in a fixed order.
    pub fn subs(&self) -> impl Iterator<Item = (SubSlot, &Subscription)> {
        self.subs.iter()
    }

    /// Number of subscriptions.
    #[must_use]
    pub fn sub_count(&self) -> usize {
        self.subs.len()
    }

    /// Forgets a subscription that has left interest.
    pub fn remove(&mut self, slot: SubSlot) {
        self.subs.remove(slot);
    }

    /// Takes over what CONNECT and the identity say about this half.
    pub(crate) fn configure(
        &mut self,
        connect: &Connect,
        headers: bool,
        permissions: Option<&Arc<Permissions>>,
    ) {
        self.echo = connect.echo;
        self.headers = headers;
        self.no_responders = connect.no_responders;
        self.permissions = permissions.cloned();
        self.replies = permissions
            .and_then(|p| p.allow_responses())
            .map(ReplyGrants::new);
    }

    /// Takes over changed settings.
    pub(crate) const fn reconfigure(&mut self, settings: &Settings) {
        self.max_pending = settings.max_pending;
    }

    /// Whether a publish is an answer that is allowed; counts it.
    pub(crate) fn may_answer(&mut self, subject: &[u8], now: Mono) -> bool {
        self.replies.as_mut().is_some_and(|r| r.use_up(subject, now))
    }

    pub(crate) const fn subscriptions(&mut self) -> &mut Subscriptions {
        &mut self.subs
    }
}
