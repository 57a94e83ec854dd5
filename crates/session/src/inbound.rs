//! The half of a connection that is read from.
//!
//! ```text
//!           CONNECT            accepted
//!  Start ------------> Asking ----------> Ready <--+
//!    |                  |  refused: closed  |      | CONNECT again
//!    | other verb, connect_optional         +------+
//!    +--------------> Asking
//! ```
//! `Asking` is left at once unless the check takes time; while it lasts nothing more is read. What a client does
//! wrong is told to it, logged, and answered with a [`CloseReason`]; after that nothing is read any more.

mod checks;
mod commands;
mod timers;

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tidelock_auth::Permissions;
use tidelock_base::Mono;
use tidelock_base::limits::COPY_BYTES_MAX;
use tidelock_wire::{Connect, Event, Limits, ParseError, Parsed, PubLine, Quoted, parse, parse_publish_line};

use crate::close::CloseReason;
use crate::host::{Host, Identity, LogLevel};
use crate::publish::Publish;
use crate::settings::{Counters, Settings};
use checks::{PublishCache, is_reserved_reply, is_reserved_subject};
use timers::Timers;

/// The half of a connection that is read from.
#[derive(Debug)]
pub struct Inbound {
    settings: Arc<Settings>,
    limits: Limits,
    phase: Phase,
    connect: Connect,
    connect_received: bool,
    first_pong_sent: bool,
    identity: Option<Identity>,
    /// Permissions that restrict something; `None` if everything is allowed.
    permissions: Option<Arc<Permissions>>,
    headers: bool,
    cache: PublishCache,
    /// A large payload that is being read to its exact size.
    partial: Option<Partial>,
    counters: Counters,
    timers: Timers,
    max_subscriptions: usize,
    subscription_limit_logged: bool,
    closed: Option<CloseReason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing is known about the client.
    Start,
    /// The host decides about credentials.
    Asking,
    /// The client is bound to an account.
    Ready,
}

/// A publish whose control line is read and whose payload is not.
#[derive(Debug)]
struct Partial {
    /// The control line as it came.
    line: Vec<u8>,
    /// Room for header, payload and CRLF.
    buffer: BytesMut,
    filled: usize,
}

/// What [`Inbound::receive`] made of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that are done with. The rest is to be shown again, with more behind it.
    pub consumed: usize,
    /// What is to be read next.
    pub want: Want,
    /// The connection is to be closed, after what is queued has been sent where [`CloseReason::flushes`].
    pub close: Option<CloseReason>,
}

/// What is to be read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// More input, as it comes.
    More,
    /// This many bytes of a large payload, best straight into [`Inbound::payload_buffer`].
    Payload {
        /// Bytes still to come, CRLF included.
        missing: usize,
    },
    /// Nothing until [`Inbound::authenticated`] was called.
    Authentication,
}

impl Inbound {
    /// A connection that was just accepted; INFO is for the worker to send. `jitter` is a random number, which
    /// spreads the first PINGs of connections that come together.
    #[must_use]
    pub fn new(settings: Arc<Settings>, now: Mono, jitter: u32) -> Self {
        Self {
            limits: Limits {
                control_line: settings.max_control_line,
                payload: settings.max_payload,
            },
            phase: Phase::Start,
            connect: Connect::default(),
            connect_received: false,
            first_pong_sent: false,
            identity: None,
            permissions: None,
            headers: false,
            cache: PublishCache::default(),
            partial: None,
            counters: Counters::default(),
            timers: Timers::new(&settings, now, jitter),
            max_subscriptions: settings.max_subscriptions,
            subscription_limit_logged: false,
            closed: None,
            settings,
        }
    }

    /// Takes input, calls the host for what is in it, and says how much is done with.
    ///
    /// The rest that is not consumed is at most one control line and a payload of 16 KiB; the caller keeps it and
    /// shows it again in front of what comes next. A larger payload is read into a buffer of its own size: as long
    /// as [`Want::Payload`] is answered, input may be given here or be read into [`Inbound::payload_buffer`].
    pub fn receive<H: Host>(&mut self, now: Mono, input: &[u8], host: &mut H) -> Received {
        let mut consumed = 0;
        let outcome = match self.closed {
            Some(reason) => Err(reason),
            None => self.run(now, input, &mut consumed, host),
        };
        let (want, mut close) = match outcome {
            Ok(want) => (want, None),
            Err(reason) => (Want::More, Some(reason)),
        };
        if close.is_none() && host.outbound().0.is_slow() {
            close = Some(CloseReason::SlowConsumerPendingBytes);
        }
        if let Some(reason) = close {
            self.close(reason);
        }
        Received {
            consumed,
            want,
            close,
        }
    }

    fn run<H: Host>(
        &mut self,
        now: Mono,
        input: &[u8],
        consumed: &mut usize,
        host: &mut H,
    ) -> Result<Want, CloseReason> {
        if self.phase == Phase::Asking {
            return Ok(Want::Authentication);
        }
        if self.partial.is_some() {
            let taken = self.fill(input);
            *consumed = taken;
            if let Some(missing) = self.missing() {
                return Ok(Want::Payload { missing });
            }
            self.finish_partial(now, host)?;
        }
        loop {
            let rest = input.get(*consumed..).unwrap_or_default();
            if self.phase != Phase::Ready && !self.start(rest, host)? {
                let asking = self.phase == Phase::Asking;
                return Ok(if asking { Want::Authentication } else { Want::More });
            }
            match parse(rest, &self.limits) {
                Ok(Parsed::Event(Event::Publish { line, block, tail }, len)) => {
                    *consumed += len;
                    self.publish(now, &line, block, tail, &OnceCell::new(), host)?;
                }
                Ok(Parsed::Event(event, len)) => {
                    *consumed += len;
                    self.command(now, &event, host)?;
                }
                Ok(Parsed::NeedLine) => return Ok(Want::More),
                Ok(Parsed::NeedPayload { line, line_len }) => {
                    return self.need_payload(rest, &line, line_len, consumed, host);
                }
                Err(error) => return Err(self.refuse_input(rest, &error, host)),
            }
        }
    }

    /// A publish that is whole.
    #[inline]
    fn publish<H: Host>(
        &mut self,
        now: Mono,
        line: &PubLine<'_>,
        block: &[u8],
        tail: &[u8],
        shared: &OnceCell<Bytes>,
        host: &mut H,
    ) -> Result<(), CloseReason> {
        if line.has_header && !self.headers {
            return Err(Self::headers_not_agreed(host));
        }
        self.counters.messages += 1;
        self.counters.bytes += line.size as u64;
        self.timers.active(now);
        let reserved = is_reserved_subject(line.subject) || line.reply.is_some_and(is_reserved_reply);
        if (self.connect.pedantic || self.permissions.is_some() || reserved)
            && !self.may_publish(now, line, host)
        {
            return Ok(());
        }
        if self.connect.verbose {
            let (out, pool) = host.outbound();
            out.ok(pool);
        }
        let body = block.get(..line.size).unwrap_or_default();
        let (header, payload) = body.split_at_checked(line.header_len).unwrap_or((&[], body));
        host.publish(&Publish {
            subject: line.subject,
            reply: line.reply,
            header,
            payload,
            now,
            tail,
            block,
            header_text: line.header_text,
            size_text: line.size_text,
            shared,
        });
        Ok(())
    }

    /// The checks that most connections do without. Says to the client what is wrong.
    #[cold]
    fn may_publish<H: Host>(&mut self, now: Mono, line: &PubLine<'_>, host: &mut H) -> bool {
        let subject = line.subject;
        if self.connect.pedantic && !tidelock_subject::is_valid_literal(subject) {
            // The message goes on all the same, as it does in nats-server.
            let (out, pool) = host.outbound();
            out.err(format_args!("Invalid Publish Subject"), pool);
        }
        let is_system = self.identity.as_ref().is_some_and(|i| i.is_system);
        let reserved = is_reserved_subject(subject) && !is_system;
        let allowed = !reserved
            && match &self.permissions {
                None => true,
                Some(permissions) => {
                    self.cache.allows(subject, permissions) || host.outbound().0.may_answer(subject, now)
                }
            };
        if !allowed {
            let (out, pool) = host.outbound();
            out.err(
                format_args!("Permissions Violation for Publish to {}", Quoted(subject)),
                pool,
            );
            host.log(
                LogLevel::Error,
                format_args!("Publish Violation - Subject {}", Quoted(subject)),
            );
            return false;
        }
        if let Some(reply) = line.reply.filter(|r| is_reserved_reply(r)) {
            let (out, pool) = host.outbound();
            out.err(
                format_args!(
                    "Permissions Violation for Publish with Reply of {}",
                    Quoted(reply)
                ),
                pool,
            );
            host.log(
                LogLevel::Error,
                format_args!("Publish Violation - Reply {}", Quoted(reply)),
            );
            return false;
        }
        true
    }

    /// A publish whose payload is not all there: waits for it if it is small, else gets it a buffer.
    #[cold]
    fn need_payload<H: Host>(
        &mut self,
        rest: &[u8],
        line: &PubLine<'_>,
        line_len: usize,
        consumed: &mut usize,
        host: &mut H,
    ) -> Result<Want, CloseReason> {
        if line.has_header && !self.headers {
            return Err(Self::headers_not_agreed(host));
        }
        if line.size <= COPY_BYTES_MAX {
            return Ok(Want::More);
        }
        let (control, payload) = rest.split_at_checked(line_len).unwrap_or((rest, &[]));
        self.partial = Some(Partial {
            line: control.to_vec(),
            buffer: host.outbound().1.payload(line.size + 2),
            filled: 0,
        });
        self.fill(payload);
        *consumed += rest.len();
        Ok(Want::Payload {
            missing: self.missing().unwrap_or(0),
        })
    }

    /// Where the missing bytes of a large payload go, its CRLF included; empty if none is being read. Its content
    /// before it is filled is arbitrary.
    #[must_use]
    pub fn payload_buffer(&mut self) -> &mut [u8] {
        self.partial
            .as_mut()
            .and_then(|p| p.buffer.get_mut(p.filled..))
            .unwrap_or_default()
    }

    /// The first `n` bytes of [`Self::payload_buffer`] have been filled. [`Self::receive`] must be called next, with
    /// what was read behind them or with nothing.
    pub fn payload_filled(&mut self, n: usize) {
        if let Some(partial) = &mut self.partial {
            partial.filled = (partial.filled + n).min(partial.buffer.len());
        }
    }

    /// Copies the front of `input` into the payload buffer and says how much it took.
    fn fill(&mut self, input: &[u8]) -> usize {
        let room = self.payload_buffer();
        let n = room.len().min(input.len());
        if let (Some(to), Some(from)) = (room.get_mut(..n), input.get(..n)) {
            to.copy_from_slice(from);
        }
        self.payload_filled(n);
        n
    }

    /// Bytes of a large payload that are still to come, if any.
    fn missing(&self) -> Option<usize> {
        let partial = self.partial.as_ref()?;
        Some(partial.buffer.len() - partial.filled).filter(|n| *n > 0)
    }

    fn finish_partial<H: Host>(&mut self, now: Mono, host: &mut H) -> Result<(), CloseReason> {
        let Some(partial) = self.partial.take() else {
            return Ok(());
        };
        let Some(line) = parse_publish_line(&partial.line) else {
            return Ok(());
        };
        let block = partial.buffer.freeze();
        if !block.ends_with(b"\r\n") {
            let end = block.get(line.size..).unwrap_or_default();
            return Err(Self::refuse(&ParseError::unknown_operation(end), host));
        }
        host.outbound().1.lend(&block);
        let shared = OnceCell::from(block.clone());
        self.publish(now, &line, &block, &[], &shared, host)
    }

    /// Tells the client and the log what is wrong with the input.
    fn refuse<H: Host>(error: &ParseError, host: &mut H) -> CloseReason {
        if let Some(text) = error.reply() {
            let (out, pool) = host.outbound();
            out.err(format_args!("{text}"), pool);
        }
        host.log(LogLevel::Error, format_args!("{error}"));
        match error {
            ParseError::ControlLine => CloseReason::MaxControlLineExceeded,
            ParseError::MaxPayload { .. } => CloseReason::MaxPayloadExceeded,
            ParseError::UnknownOperation { .. }
            | ParseError::Arguments { .. }
            | ParseError::Size { .. }
            | ParseError::HeaderSize { .. }
            | ParseError::TotalSize { .. }
            | ParseError::HeaderLargerThanTotal { .. } => CloseReason::ProtocolViolation,
        }
    }

    /// What the parser cannot take. An HPUB that was not agreed on is refused for that, whatever else is wrong with
    /// it and however much of it is there, unless its line is too long.
    #[cold]
    fn refuse_input<H: Host>(&self, rest: &[u8], error: &ParseError, host: &mut H) -> CloseReason {
        let is_header_publish = rest.first_chunk::<5>().is_some_and(|[verb @ .., blank]| {
            verb.eq_ignore_ascii_case(b"HPUB") && matches!(blank, b' ' | b'\t')
        });
        if is_header_publish && !self.headers && *error != ParseError::ControlLine {
            return Self::headers_not_agreed(host);
        }
        Self::refuse(error, host)
    }

    fn headers_not_agreed<H: Host>(host: &mut H) -> CloseReason {
        host.log(LogLevel::Error, format_args!("message headers not supported"));
        CloseReason::ProtocolViolation
    }

    /// Reads nothing more from now on.
    pub const fn close(&mut self, reason: CloseReason) {
        if self.closed.is_none() {
            self.closed = Some(reason);
        }
    }

    /// What CONNECT said; the defaults before it.
    #[must_use]
    pub const fn connect(&self) -> &Connect {
        &self.connect
    }

    /// Who the client is, once it is let in.
    #[must_use]
    pub const fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Whether the client takes INFO at any time: it said so, and has had its first PONG.
    #[must_use]
    pub const fn takes_async_info(&self) -> bool {
        self.connect_received && self.first_pong_sent && self.connect.protocol >= 1
    }

    /// Most bytes of header and payload of a publish of this client, for its INFO.
    #[must_use]
    pub const fn max_payload(&self) -> usize {
        self.limits.payload
    }

    /// Messages and bytes received.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Round trip of the last PING that was answered.
    #[must_use]
    pub const fn rtt(&self) -> Option<Duration> {
        self.timers.rtt()
    }

    /// When the client last sent a message, a subscription or a PING.
    #[must_use]
    pub const fn last_activity(&self) -> Mono {
        self.timers.last_activity()
    }
}
