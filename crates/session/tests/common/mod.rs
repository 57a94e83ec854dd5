//! A worker of one connection: publishes go to the connection's own subscriptions, and everything that happens is
//! written down.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file is a crate of its own and uses a part of this"
)]

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tidelock_auth::{Permissions, PermissionsSpec, Responses, SubjectRules};
use tidelock_base::{AccountId, Mono};
use tidelock_session::{
    AuthFailure, Authentication, ChunkPool, CloseReason, Delivered, Host, Identity, Inbound, LogLevel,
    Outbound, Publish, Settings, SubSlot, Want,
};
use tidelock_wire::{Connect, Info};

/// The host side of the connection.
#[derive(Debug)]
pub struct Worker {
    pub out: Outbound,
    pub pool: ChunkPool,
    pub notes: String,
    pub slow_authentication: bool,
    /// Subscriptions of other connections; they get every publish.
    pub others: Vec<(Outbound, SubSlot)>,
    auth_required: bool,
}

/// A connection and its worker.
#[derive(Debug)]
pub struct Session {
    pub inbound: Inbound,
    pub worker: Worker,
    pub now: Mono,
    rest: Vec<u8>,
    pub closed: Option<CloseReason>,
}

pub fn identity(user: &str, permissions: Option<Permissions>) -> Identity {
    Identity {
        account: AccountId(1),
        account_name: Arc::from("A"),
        is_system: user == "sys",
        user: Arc::from(user),
        permissions: permissions.map(Arc::new),
        max_payload: None,
        max_subscriptions: None,
    }
}

/// The user `p` of the transcripts.
pub fn restricted() -> Permissions {
    let list = |items: &[&str]| items.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    let spec = PermissionsSpec {
        publish: Some(SubjectRules {
            allow: Some(list(&["ok.>", "s.>"])),
            deny: list(&["ok.no"]),
        }),
        subscribe: Some(SubjectRules {
            allow: Some(list(&["s.>"])),
            deny: list(&["s.no", "s.x.*"]),
        }),
        responses: Some(Responses {
            max: 1,
            expires_ns: 1_000_000_000,
        }),
    };
    Permissions::new(spec).expect("subjects are valid")
}

impl Worker {
    pub fn authenticate_now(&self, connect: &Connect) -> Result<Identity, AuthFailure> {
        match connect.user.as_str() {
            "" if !self.auth_required => Ok(identity("", None)),
            "full" => Err(AuthFailure::AccountConnectionsExceeded),
            "p" if connect.pass == "p" => Ok(identity("p", Some(restricted()))),
            user if !user.is_empty() && connect.pass == user => Ok(identity(user, None)),
            _ => Err(AuthFailure::Violation),
        }
    }
}

impl Host for Worker {
    fn outbound(&mut self) -> (&mut Outbound, &mut ChunkPool) {
        (&mut self.out, &mut self.pool)
    }

    fn authenticate(&mut self, connect: &Connect) -> Authentication {
        if self.slow_authentication {
            return Authentication::Pending;
        }
        match self.authenticate_now(connect) {
            Ok(identity) => Authentication::Accepted(identity),
            Err(failure) => Authentication::Refused(failure),
        }
    }

    fn publish(&mut self, message: &Publish<'_>) {
        for (out, slot) in &mut self.others {
            assert_eq!(out.deliver(*slot, message, &mut self.pool), Delivered::Ok);
        }
        let matching = |subject: &[u8]| -> Vec<SubSlot> {
            let all = self.out.subs();
            all.filter(|(_, s)| tidelock_subject::matches(s.subject(), subject))
                .map(|(slot, _)| slot)
                .collect()
        };
        let slots = if self.out.echo() {
            matching(message.subject)
        } else {
            Vec::new()
        };
        if slots.is_empty()
            && self.out.no_responders()
            && let Some(reply) = message.reply
            && let Some(slot) = matching(reply).first()
        {
            self.out
                .deliver_no_responders(*slot, reply, message.subject, message.now, &mut self.pool);
        }
        for slot in slots {
            match self.out.deliver(slot, message, &mut self.pool) {
                Delivered::Ok => {}
                Delivered::AutoUnsubscribed(slot) => {
                    self.unsubscribed(slot);
                    self.out.remove(slot);
                }
                other => {
                    let _ = writeln!(self.notes, "delivery: {other:?}");
                }
            }
        }
    }

    fn subscribed(&mut self, slot: SubSlot) {
        let sub = self.out.sub(slot).expect("it can be read");
        let _ = writeln!(
            self.notes,
            "interest: +{}",
            String::from_utf8_lossy(sub.subject())
        );
    }

    fn unsubscribed(&mut self, slot: SubSlot) {
        let sub = self.out.sub(slot).expect("it can still be read");
        let _ = writeln!(
            self.notes,
            "interest: -{}",
            String::from_utf8_lossy(sub.subject())
        );
    }

    fn first_pong(&mut self) -> Option<Info> {
        Some(Info {
            connect_info: true,
            ..Info::default()
        })
    }

    fn log(&mut self, level: LogLevel, text: fmt::Arguments<'_>) {
        let _ = writeln!(self.notes, "log: {level:?} {text}");
    }
}

impl Session {
    pub fn new(settings: Settings) -> Self {
        let worker = Worker {
            out: Outbound::new(&settings),
            pool: ChunkPool::new(),
            notes: String::new(),
            slow_authentication: false,
            others: Vec::new(),
            auth_required: settings.auth_required,
        };
        let now = Mono(1_000_000_000);
        Self {
            inbound: Inbound::new(Arc::new(settings), now, 0),
            worker,
            now,
            rest: Vec::new(),
            closed: None,
        }
    }

    /// Input from the socket.
    pub fn receive(&mut self, input: &[u8]) -> Want {
        self.rest.extend_from_slice(input);
        let received = self.inbound.receive(self.now, &self.rest, &mut self.worker);
        self.rest.drain(..received.consumed);
        self.note_close(received.close);
        received.want
    }

    /// Time passes, and what becomes due on the way is done.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self
            .inbound
            .next_deadline(&self.worker.out)
            .filter(|at| *at <= end)
        {
            self.now = at;
            let close = self.inbound.tick(at, &mut self.worker.out, &mut self.worker.pool);
            self.note_close(close);
        }
        self.now = end;
    }

    fn note_close(&mut self, close: Option<CloseReason>) {
        if self.closed.is_none()
            && let Some(reason) = close
        {
            let _ = writeln!(self.worker.notes, "close: {reason}");
            self.closed = close;
        }
    }

    /// The answer to a slow authentication.
    pub fn authenticated(&mut self) {
        let answer = self.worker.authenticate_now(self.inbound.connect());
        let close = self.inbound.authenticated(answer, &mut self.worker);
        self.note_close(close);
    }

    /// Everything that waits to be sent.
    pub fn sent(&mut self) -> Vec<u8> {
        sent(&mut self.worker.out, &mut self.worker.pool)
    }
}

/// Everything that waits to be sent.
pub fn sent(out: &mut Outbound, pool: &mut ChunkPool) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut iov = Vec::new();
        out.chunks(&mut iov);
        let piece: Vec<u8> = iov.iter().flat_map(|s| s.to_vec()).collect();
        if piece.is_empty() {
            return all;
        }
        all.extend_from_slice(&piece);
        out.advance(piece.len(), pool);
    }
}

/// The outbound half of a connection that has sent this, and its first subscription.
pub fn receiver(input: &str) -> (Outbound, SubSlot) {
    let mut session = Session::new(Settings::default());
    session.receive(input.as_bytes());
    session.sent();
    let slot = session.worker.out.subs().next().map(|(slot, _)| slot);
    (session.worker.out, slot.expect("it subscribes"))
}
