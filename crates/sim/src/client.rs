//! A client as small as a client can be: it connects, subscribes to its own inbox, publishes, and reads what comes.
//!
//! Its parser is its own, so that an error in the server's codec is not hidden by the same error here.

use crate::network::End;
use bytes::Bytes;

/// Names a client connection; never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClientId(pub(crate) u64);

/// What a client hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It is let in.
    Ready,
    /// An answer to its request.
    Reply(Reply),
    /// A message on one of its own subscriptions.
    Message(Message),
    /// The connection has ended, or was never opened.
    Closed,
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Number of the request.
    pub(crate) token: u64,
    /// Header block, empty without one.
    pub(crate) header: Bytes,
    /// Body.
    pub(crate) payload: Bytes,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The subscription that it came on.
    pub(crate) sid: u64,
    /// Where an answer goes: for a delivery its acknowledgement; empty without.
    pub(crate) reply: String,
    /// Header block, empty without one.
    pub(crate) header: Bytes,
    /// Body.
    pub(crate) payload: Bytes,
}

/// Where answers to a message go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplyTo {
    /// Nowhere.
    Nobody,
    /// To the client's inbox, where they are told apart by this number.
    Inbox(u64),
    /// To this subject.
    Subject(String),
}

/// The subscription of a client's inbox.
const INBOX_SID: u64 = 1;

/// One connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) actor: usize,
    pub(crate) end: End,
    input: Vec<u8>,
    pub(crate) output: Vec<u8>,
    ready: bool,
}

/// A frame of the protocol, as a client receives it.
enum Frame {
    Line(String),
    Message {
        subject: String,
        sid: u64,
        reply: String,
        header: Bytes,
        payload: Bytes,
    },
}

impl Client {
    pub(crate) fn new(id: ClientId, actor: usize, end: End) -> Self {
        let hello = format!(
            "CONNECT {{\"verbose\":false,\"pedantic\":false,\"lang\":\"sim\",\"version\":\"1\",\"protocol\":1,\
             \"headers\":true,\"no_responders\":true}}\r\nSUB _INBOX.{}.* {INBOX_SID}\r\nPING\r\n",
            id.0
        );
        Self {
            id,
            actor,
            end,
            input: Vec::new(),
            output: hello.into_bytes(),
            ready: false,
        }
    }

    /// Subscribes.
    pub(crate) fn subscribe(&mut self, subject: &str, sid: u64) {
        self.output
            .extend_from_slice(format!("SUB {subject} {sid}\r\n").as_bytes());
    }

    /// Publishes, with or without somewhere to answer to.
    pub(crate) fn publish(
        &mut self,
        subject: &str,
        to: &ReplyTo,
        headers: &[(&str, String)],
        payload: &[u8],
    ) {
        let reply = match to {
            ReplyTo::Nobody => String::new(),
            ReplyTo::Inbox(token) => format!("_INBOX.{}.{token} ", self.id.0),
            ReplyTo::Subject(subject) => format!("{subject} "),
        };
        if headers.is_empty() {
            self.output
                .extend_from_slice(format!("PUB {subject} {reply}{}\r\n", payload.len()).as_bytes());
        } else {
            let lines: String = headers
                .iter()
                .map(|(key, value)| format!("{key}: {value}\r\n"))
                .collect();
            let block = format!("NATS/1.0\r\n{lines}\r\n");
            let total = block.len() + payload.len();
            self.output.extend_from_slice(
                format!("HPUB {subject} {reply}{} {total}\r\n{block}", block.len()).as_bytes(),
            );
        }
        self.output.extend_from_slice(payload);
        self.output.extend_from_slice(b"\r\n");
    }

    /// Takes what has come.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Vec<Heard> {
        self.input.extend_from_slice(bytes);
        let mut heard = Vec::new();
        while let Some((frame, used)) = parse(&self.input) {
            self.input.drain(..used);
            heard.extend(self.take(frame));
        }
        heard
    }

    fn take(&mut self, frame: Frame) -> Option<Heard> {
        match frame {
            Frame::Line(line) if line == "PING" => {
                self.output.extend_from_slice(b"PONG\r\n");
                None
            }
            Frame::Line(line) if line == "PONG" && !self.ready => {
                self.ready = true;
                Some(Heard::Ready)
            }
            // INFO and +OK say nothing that this client needs; after -ERR the connection ends.
            Frame::Line(_) => None,
            Frame::Message {
                subject,
                sid: INBOX_SID,
                header,
                payload,
                ..
            } => {
                let token = subject.rsplit('.').next().and_then(|token| token.parse().ok())?;
                Some(Heard::Reply(Reply {
                    token,
                    header,
                    payload,
                }))
            }
            Frame::Message {
                sid,
                reply,
                header,
                payload,
                ..
            } => Some(Heard::Message(Message {
                sid,
                reply,
                header,
                payload,
            })),
        }
    }
}

/// The first frame, and how long it is; `None` if it is not whole.
fn parse(input: &[u8]) -> Option<(Frame, usize)> {
    let end = input.windows(2).position(|two| two == b"\r\n")?;
    let line = String::from_utf8_lossy(input.get(..end)?).into_owned();
    let body_at = end + 2;
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let (headers, rest) = match words.split_first() {
        Some((&"MSG", rest)) => (false, rest),
        Some((&"HMSG", rest)) => (true, rest),
        _ => return Some((Frame::Line(line), body_at)),
    };
    let numbers = if headers { 2 } else { 1 };
    let (names, sizes) = rest.split_at_checked(rest.len().checked_sub(numbers)?)?;
    let sizes: Vec<usize> = sizes.iter().filter_map(|size| size.parse().ok()).collect();
    let (head, total) = match sizes.as_slice() {
        [total] => (0, *total),
        [head, total] => (*head, *total),
        _ => return None,
    };
    let body = input.get(body_at..body_at + total + 2)?;
    let frame = Frame::Message {
        subject: (*names.first()?).to_owned(),
        sid: names.get(1)?.parse().ok()?,
        reply: names.get(2).map_or_else(String::new, |reply| (*reply).to_owned()),
        header: Bytes::copy_from_slice(body.get(..head)?),
        payload: Bytes::copy_from_slice(body.get(head..total)?),
    };
    Some((frame, body_at + total + 2))
}

impl Reply {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let text = String::from_utf8_lossy(&self.header).into_owned();
        text.split("\r\n").find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key == name).then(|| value.trim().to_owned())
        })
    }

    /// The status line's code; 0 without one.
    pub(crate) fn status(&self) -> u16 {
        status(&self.header)
    }

    /// The body as JSON; `Null` if it is none.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.payload).unwrap_or_default()
    }
}

/// The code in the first line of a header block; 0 without one.
pub(crate) fn status(header: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(header).into_owned();
    let first = text
        .split("\r\n")
        .next()
        .and_then(|line| line.strip_prefix("NATS/1.0 "));
    first
        .and_then(|rest| rest.get(..3))
        .and_then(|code| code.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_in_any_pieces() {
        let end = End { conn: 1, side: 0 };
        let all = b"INFO {}\r\nPONG\r\nMSG _INBOX.9.7 1 3\r\nabc\r\nHMSG a.b 2 re.ply 17 19\r\nNATS/1.0 503 \r\n\r\nhi\r\nPING\r\n";
        let whole = Client::new(ClientId(9), 0, end).receive(all);
        let mut client = Client::new(ClientId(9), 0, end);
        let pieces: Vec<Heard> = all.iter().flat_map(|byte| client.receive(&[*byte])).collect();
        assert_eq!(whole, pieces);
        assert!(client.output.ends_with(b"PING\r\nPONG\r\n"));
        let [Heard::Ready, Heard::Reply(reply), Heard::Message(message)] = whole.as_slice() else {
            panic!("{whole:?}")
        };
        assert_eq!(
            (reply.token, &reply.payload[..], reply.status()),
            (7, &b"abc"[..], 0)
        );
        assert_eq!(
            (message.sid, message.reply.as_str(), &message.payload[..]),
            (2, "re.ply", &b"hi"[..])
        );
    }

    #[test]
    fn headers_of_replies() {
        let header = Bytes::from_static(b"NATS/1.0 404 Message Not Found\r\nNats-Sequence: 12\r\n\r\n");
        let reply = Reply {
            token: 0,
            header,
            payload: Bytes::new(),
        };
        assert_eq!(
            (reply.status(), reply.header("Nats-Sequence").as_deref()),
            (404, Some("12"))
        );
        assert_eq!(reply.header("Nats"), None);
    }
}
