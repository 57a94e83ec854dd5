//! What a client sends: control lines, CONNECT, header blocks, and the connection that reads them.

use std::fmt;
use std::sync::Arc;

use tidelock_auth::{Permissions, PermissionsSpec, Responses, SubjectRules};
use tidelock_base::{AccountId, Mono};
use tidelock_session::{
    AuthFailure, Authentication, ChunkPool, CloseReason, Delivered, Host, Identity, Inbound, LogLevel,
    Outbound, Publish, Settings, SubSlot, Want,
};
use tidelock_wire::{Connect, Event, Info, Limits, Parsed, header, parse, parse_publish_line};

/// Longest control line where the input asks for a short one; longest payload likewise.
const SHORT: usize = 64;

/// How a connection is set up and fed, from the first two bytes of the input.
#[derive(Clone, Copy)]
struct Setup {
    short_lines: bool,
    small_payloads: bool,
    auth_required: bool,
    slow_authentication: bool,
    restricted: bool,
    /// Large payloads go straight into the buffer made for them.
    direct: bool,
    /// Bytes that arrive at once.
    piece: usize,
}

impl Setup {
    fn new(options: u8, piece: u8) -> Self {
        let bit = |n: u8| options & (1 << n) != 0;
        Self {
            short_lines: bit(0),
            small_payloads: bit(1),
            auth_required: bit(2),
            slow_authentication: bit(3),
            restricted: bit(4),
            direct: bit(5),
            piece: usize::from(piece).max(1),
        }
    }

    fn settings(self) -> Settings {
        let standard = Settings::default();
        Settings {
            max_control_line: if self.short_lines {
                SHORT
            } else {
                standard.max_control_line
            },
            max_payload: if self.small_payloads {
                SHORT
            } else {
                standard.max_payload
            },
            max_subscriptions: 40,
            auth_required: self.auth_required,
            connect_optional: !self.auth_required,
            ..standard
        }
    }
}

/// Bytes from a client. They are parsed on their own, then given to two connections, to one as a whole and to the
/// other in pieces: both must send the same and end alike.
pub fn client(data: &[u8]) {
    let Some((&[options, piece], input)) = data.split_first_chunk() else {
        return;
    };
    let setup = Setup::new(options, piece);
    events(setup, input);
    let whole = Session::new(setup).run(input, input.len().max(1), false);
    let pieces = Session::new(setup).run(input, setup.piece, setup.direct);
    assert_eq!(whole, pieces, "the same bytes in other pieces mean the same");
}

/// Cuts the input into events; each takes something, and no more than there is.
fn events(setup: Setup, input: &[u8]) {
    let settings = setup.settings();
    let limits = Limits {
        control_line: settings.max_control_line,
        payload: settings.max_payload,
    };
    let mut rest = input;
    while let Ok(Parsed::Event(event, taken)) = parse(rest, &limits) {
        assert!(taken > 0 && taken <= rest.len(), "an event of {taken} bytes");
        let (front, behind) = rest.split_at(taken);
        match event {
            Event::Publish { line, block, .. } => {
                assert_eq!(block.len(), line.size + 2, "payload and line end");
                assert!(line.header_len <= line.size, "the header is a part of the whole");
                let head = front.strip_suffix(block).unwrap_or_default();
                assert_eq!(
                    parse_publish_line(head),
                    Some(line),
                    "the line that was kept says the same"
                );
                let (header, _) = block.split_at(line.header_len);
                headers(header);
            }
            Event::Connect(json) => {
                let _ = Connect::default().update(json);
            }
            Event::Sub { .. }
            | Event::Unsub { .. }
            | Event::Ping
            | Event::Pong
            | Event::Ok
            | Event::Err(_)
            | Event::Info(_) => {}
        }
        rest = behind;
    }
}

/// A header block as a client may send it, and everything that is asked of one or done to it.
pub fn headers(data: &[u8]) {
    let _ = (header::status(data), header::find(data, b"Nats-Msg-Id"));
    let names: Vec<&[u8]> = header::iter(data).map(|(name, _)| name).collect();
    let mut block = data.to_vec();
    if !header::is_well_formed(data) {
        // Refused where it enters; nothing may panic on the way there.
        header::set(&mut block, b"A", b"1");
        header::remove_prefixed(&mut block, b"Nats-");
        return;
    }
    header::set(&mut block, b"A", b"1");
    assert_eq!(
        header::find(&block, b"A"),
        Some(&b"1"[..]),
        "a value that was set is found"
    );
    assert!(header::is_well_formed(&block), "a block stays one");
    for name in &names {
        header::remove(&mut block, name);
        assert_eq!(
            header::find(&block, name),
            None,
            "a line that was removed is gone"
        );
    }
    assert!(
        block.is_empty() || header::is_well_formed(&block),
        "what is left is a block or nothing"
    );
}

/// A connection whose host delivers its publishes to its own subscriptions and to those of a plain receiver.
struct Session {
    inbound: Inbound,
    host: Worker,
    rest: Vec<u8>,
    close: Option<CloseReason>,
}

struct Worker {
    out: Outbound,
    pool: ChunkPool,
    receiver: Option<(Outbound, SubSlot)>,
    setup: Setup,
}

const NOW: Mono = Mono(1_000_000_000);

impl Session {
    fn new(setup: Setup) -> Self {
        let mut session = Self::bare(setup);
        let mut receiver = Self::bare(Setup::new(0, 1));
        receiver.receive(b"CONNECT {\"verbose\":false}\r\nSUB > 1\r\n");
        let slot = receiver.host.out.subs().next().map(|(slot, _)| slot);
        session.host.receiver = slot.map(|slot| (receiver.host.out, slot));
        session
    }

    fn bare(setup: Setup) -> Self {
        let settings = setup.settings();
        Self {
            host: Worker {
                out: Outbound::new(&settings),
                pool: ChunkPool::new(),
                receiver: None,
                setup,
            },
            inbound: Inbound::new(Arc::new(settings), NOW, 0),
            rest: Vec::new(),
            close: None,
        }
    }

    /// Feeds the input in pieces and gives what was sent, to the client and to the receiver, and how it ended.
    fn run(mut self, input: &[u8], piece: usize, direct: bool) -> (Vec<u8>, Vec<u8>, Option<CloseReason>) {
        let mut input = input;
        while !input.is_empty() && self.close.is_none() {
            let (mut now, mut later) = input.split_at(piece.min(input.len()));
            let want = self.receive(now);
            if let (true, Want::Payload { missing }) = (direct, want) {
                (now, later) = later.split_at(missing.min(later.len()));
                let room = self.inbound.payload_buffer();
                assert_eq!(room.len(), missing, "there is room for what is missing");
                room.iter_mut().zip(now).for_each(|(to, from)| *to = *from);
                self.inbound.payload_filled(now.len());
                self.receive(&[]);
            }
            input = later;
        }
        for _ in 0..8 {
            let Some(at) = self.inbound.next_deadline(&self.host.out) else {
                break;
            };
            let host = &mut self.host;
            let close = self.inbound.tick(at, &mut host.out, &mut host.pool);
            self.close = self.close.or(close);
        }
        let to_receiver = self
            .host
            .receiver
            .as_mut()
            .map(|(out, _)| sent(out, &mut self.host.pool));
        let to_client = sent(&mut self.host.out, &mut self.host.pool);
        (to_client, to_receiver.unwrap_or_default(), self.close)
    }

    fn receive(&mut self, input: &[u8]) -> Want {
        self.rest.extend_from_slice(input);
        loop {
            let received = self.inbound.receive(NOW, &self.rest, &mut self.host);
            assert!(
                received.consumed <= self.rest.len(),
                "no more is taken than there is"
            );
            self.rest.drain(..received.consumed);
            self.close = self.close.or(received.close);
            if received.want != Want::Authentication || self.close.is_some() {
                return received.want;
            }
            let answer = self.host.decide(self.inbound.connect());
            self.close = self.inbound.authenticated(answer, &mut self.host);
        }
    }
}

fn sent(out: &mut Outbound, pool: &mut ChunkPool) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut slices = Vec::new();
        out.chunks(&mut slices);
        let piece: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        if piece.is_empty() {
            return all;
        }
        all.extend_from_slice(&piece);
        out.advance(piece.len(), pool);
    }
}

impl Worker {
    fn decide(&self, connect: &Connect) -> Result<Identity, AuthFailure> {
        if self.setup.auth_required && connect.user != connect.pass {
            return Err(AuthFailure::Violation);
        }
        Ok(Identity {
            account: AccountId(1),
            account_name: Arc::from("A"),
            is_system: connect.user == "sys",
            user: Arc::from(connect.user.as_str()),
            permissions: self.setup.restricted.then(restrictions).flatten().map(Arc::new),
            max_payload: None,
            max_subscriptions: None,
        })
    }
}

fn restrictions() -> Option<Permissions> {
    let list = |items: &[&str]| items.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    let rules = |allow: &[&str], deny: &[&str]| SubjectRules {
        allow: Some(list(allow)),
        deny: list(deny),
    };
    Permissions::new(PermissionsSpec {
        publish: Some(rules(&["a.>", "b"], &["a.no"])),
        subscribe: Some(rules(&["a.>", "b", "_INBOX.*"], &["a.no.*", "a.b.c q"])),
        responses: Some(Responses {
            max: 1,
            expires_ns: 1_000_000_000,
        }),
    })
    .ok()
}

impl Host for Worker {
    fn outbound(&mut self) -> (&mut Outbound, &mut ChunkPool) {
        (&mut self.out, &mut self.pool)
    }

    fn authenticate(&mut self, connect: &Connect) -> Authentication {
        if self.setup.slow_authentication {
            return Authentication::Pending;
        }
        match self.decide(connect) {
            Ok(identity) => Authentication::Accepted(identity),
            Err(failure) => Authentication::Refused(failure),
        }
    }

    fn publish(&mut self, message: &Publish<'_>) {
        if let Some((out, slot)) = &mut self.receiver {
            let delivered = out.deliver(*slot, message, &mut self.pool);
            assert_eq!(
                delivered,
                Delivered::Ok,
                "a receiver without limits takes everything"
            );
        }
        let slots: Vec<SubSlot> = self
            .out
            .subs()
            .filter(|(_, sub)| tidelock_subject::matches(sub.subject(), message.subject))
            .map(|(slot, _)| slot)
            .collect();
        for slot in slots {
            if let Delivered::AutoUnsubscribed(slot) = self.out.deliver(slot, message, &mut self.pool) {
                self.out.remove(slot);
            }
        }
    }

    fn subscribed(&mut self, slot: SubSlot) {
        assert!(self.out.sub(slot).is_some(), "a new subscription can be read");
    }

    fn unsubscribed(&mut self, slot: SubSlot) {
        assert!(
            self.out.sub(slot).is_some(),
            "a subscription that ends can still be read"
        );
    }

    fn first_pong(&mut self) -> Option<Info> {
        Some(Info::default())
    }

    fn log(&mut self, _: LogLevel, text: fmt::Arguments<'_>) {
        let _ = text.to_string();
    }
}
