//! One connection: lines in, lines out. Output is collected while there is input and sent at the end of each read.

use crate::api;
use crate::hub::{Hub, Out, Receiver, send};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

const READ_BYTES: usize = 256 * 1024;

/// State of a connection.
pub struct Connection<'a> {
    pub hub: &'a Hub,
    id: u64,
    own: Out,
    /// Own subscriptions: subject and sid.
    subs: Vec<(Vec<u8>, Vec<u8>)>,
    pub output: Vec<u8>,
    /// Who receives the subject of the last publish, as of a state of the hub.
    cached: Cached,
    /// Sequence of acknowledgements and deliveries.
    pub sequence: u64,
}

#[derive(Default)]
struct Cached {
    subject: Vec<u8>,
    changes: u64,
    receivers: Vec<(Receiver, Vec<u8>)>,
}

/// Serves until the client leaves.
pub fn serve(hub: &Hub, stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = stream.try_clone()?;
    let id = hub.next_connection();
    let port = stream.local_addr()?.port();
    let mut connection = Connection {
        hub,
        id,
        own: Arc::new(Mutex::new(stream)),
        subs: Vec::new(),
        output: Vec::new(),
        cached: Cached::default(),
        sequence: 0,
    };
    write!(
        connection.output,
        "INFO {{\"server_id\":\"NULL\",\"server_name\":\"null\",\"version\":\"2.15.1\",\"proto\":1,\"go\":\"\",\"host\":\"127.0.0.1\",\
         \"port\":{port},\"headers\":true,\"max_payload\":8388608,\"jetstream\":true,\"client_id\":{id},\"api_lvl\":5}} \r\n"
    )?;
    let ended = connection.flush().and_then(|()| connection.run(&mut input));
    hub.leave(id);
    ended
}

impl Connection<'_> {
    fn run(&mut self, input: &mut TcpStream) -> std::io::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        let mut filled = 0;
        loop {
            let n = input.read(&mut buffer[filled..])?;
            if n == 0 {
                return Ok(());
            }
            filled += n;
            let taken = self.consume(&buffer[..filled]);
            buffer.copy_within(taken..filled, 0);
            filled -= taken;
            if filled == buffer.len() {
                buffer.resize(filled * 2, 0);
            }
            self.flush()?;
        }
    }

    fn consume(&mut self, input: &[u8]) -> usize {
        let mut at = 0;
        while let Some(taken) = self.one(&input[at..]) {
            at += taken;
        }
        at
    }

    /// Takes one line, with its payload; `None` if it is not whole.
    fn one(&mut self, input: &[u8]) -> Option<usize> {
        let end = input.iter().position(|byte| *byte == b'\n')?;
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let after = end + 1;
        match words.next()? {
            verb @ (b"PUB" | b"HPUB") => {
                let (mut subject, mut reply, mut header, mut size) = (&b""[..], &b""[..], 0, 0);
                let words: [&[u8]; 4] = std::array::from_fn(|_| words.next().unwrap_or_default());
                let count = words.iter().filter(|word| !word.is_empty()).count();
                let sizes = if verb == b"PUB" { 1 } else { 2 };
                if count > sizes {
                    subject = words[0];
                    size = number(words[count - 1]);
                    header = if sizes == 2 { number(words[count - 2]) } else { 0 };
                    reply = if count > sizes + 1 { words[1] } else { b"" };
                }
                let body = input.get(after..after + size)?;
                input.get(after + size + 1)?;
                self.publish(subject, reply, header, body);
                return Some(after + size + 2);
            }
            b"SUB" => {
                let (subject, last) = (words.next()?, words.last()?);
                self.subs.push((subject.to_vec(), last.to_vec()));
                let (connection, sid) = (self.id, last.to_vec());
                let out = Arc::clone(&self.own);
                self.hub.subscribe(subject, Receiver { connection, sid, out });
            }
            b"UNSUB" => {
                let sid = words.next()?;
                // With a number of messages it may stay: nothing comes that was not asked for.
                if words.next().is_none() {
                    self.subs.retain(|(_, own)| own != sid);
                }
            }
            b"PING" => self.output.extend_from_slice(b"PONG\r\n"),
            _ => {}
        }
        Some(after)
    }

    fn publish(&mut self, subject: &[u8], reply: &[u8], header: usize, body: &[u8]) {
        if subject.starts_with(b"$JS.") {
            let text = String::from_utf8_lossy(subject).into_owned();
            return api::request(self, &text, reply, body);
        }
        if self.cached.subject != subject || self.cached.changes != self.hub.changes() {
            self.cached.changes = self.hub.changes();
            self.cached.subject = subject.to_vec();
            let receivers = self.hub.receivers(subject).into_iter();
            // What was collected for others goes out before they are forgotten.
            let old = std::mem::take(&mut self.cached.receivers);
            let _ = old.iter().try_for_each(|(to, bytes)| send(&to.out, bytes));
            self.cached.receivers = receivers.map(|receiver| (receiver, Vec::new())).collect();
        }
        if self.cached.receivers.is_empty() {
            if !reply.is_empty() {
                self.sequence += 1;
                let ack = format!("{{\"stream\":\"S\",\"seq\":{}}}", self.sequence);
                self.answer(reply, b"", 0, ack.as_bytes());
            }
            return;
        }
        for (receiver, out) in &mut self.cached.receivers {
            message(out, subject, &receiver.sid, reply, header, body);
        }
    }

    /// Sends to the own subscription that matches `inbox`, exactly or by its last token.
    pub fn answer(&mut self, inbox: &[u8], reply: &[u8], header: usize, body: &[u8]) {
        self.deliver(inbox, inbox, reply, header, body);
    }

    /// The same under another subject, as messages from a stream have it.
    pub fn deliver(&mut self, inbox: &[u8], subject: &[u8], reply: &[u8], header: usize, body: &[u8]) {
        let parent = inbox
            .iter()
            .rposition(|byte| *byte == b'.')
            .map_or(&b""[..], |at| &inbox[..=at]);
        let found = self
            .subs
            .iter()
            .find(|(own, _)| own == inbox || (own.ends_with(b".*") && &own[..own.len() - 1] == parent));
        if let Some((_, sid)) = found {
            message(&mut self.output, subject, sid, reply, header, body);
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        for (receiver, bytes) in &mut self.cached.receivers {
            if !bytes.is_empty() {
                // A receiver that has left is not the sender's trouble.
                let _ = send(&receiver.out, bytes);
                bytes.clear();
            }
        }
        if !self.output.is_empty() {
            send(&self.own, &self.output)?;
            self.output.clear();
        }
        Ok(())
    }
}

fn message(out: &mut Vec<u8>, subject: &[u8], sid: &[u8], reply: &[u8], header: usize, body: &[u8]) {
    out.extend_from_slice(if header > 0 { b"HMSG " } else { b"MSG " });
    for word in [subject, sid, reply] {
        if !word.is_empty() {
            out.extend_from_slice(word);
            out.push(b' ');
        }
    }
    if header > 0 {
        decimal(out, header);
        out.push(b' ');
    }
    decimal(out, body.len());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body);
    out.extend_from_slice(b"\r\n");
}

fn decimal(out: &mut Vec<u8>, number: usize) {
    // Writing to a vector does not fail.
    let _ = write!(out, "{number}");
}

fn number(text: &[u8]) -> usize {
    text.iter()
        .fold(0, |sum: usize, digit| {
            sum.saturating_mul(10)
                .saturating_add(usize::from(digit.wrapping_sub(b'0')))
        })
        .min(1 << 26)
}
